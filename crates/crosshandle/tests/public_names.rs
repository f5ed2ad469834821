//! The root of the crate has few names. Others are in modules, grouped by subject.

use std::collections::BTreeSet;

/// The source of the root, as `cargo fmt` writes it: items of the root start in the first column.
const ROOT: &str = include_str!("../src/lib.rs");

const NAMES: [&str; 25] = [
    "Access",
    "AllocationOptions",
    "Buffer",
    "Command",
    "Context",
    "ContextOptions",
    "Device",
    "Error",
    "ErrorKind",
    "Event",
    "EventHandle",
    "EventOptions",
    "Memory",
    "MemoryHandle",
    "MemoryKind",
    "MemoryRange",
    "Notifier",
    "PeerPolicy",
    "Pod",
    "Queue",
    "QueueOrder",
    "Result",
    "SharedBytes",
    "interruptible",
    "zerocopy",
];

const MODULES: [&str; 13] = [
    "adapter_support",
    "channel",
    "device",
    "event",
    "graph",
    "handle",
    "holder",
    "image",
    "kernel",
    "memory",
    "native",
    "report",
    "virtual_memory",
];

/// Adds the names that a tree of `use` makes public.
fn add_names<'a>(tree: &'a str, names: &mut BTreeSet<&'a str>) {
    let Some((_, list)) = tree.split_once('{') else {
        let path = tree.rsplit("::").next().expect("a split has a part");
        names.insert(path.rsplit(' ').next().expect("a split has a part"));
        return;
    };
    let list = list.strip_suffix('}').expect("the brace is closed");
    let mut depth = 0;
    let branches = list.split(|character| {
        depth += match character {
            '{' => 1,
            '}' => -1,
            _ => 0,
        };
        character == ',' && depth == 0
    });
    for branch in branches.map(str::trim).filter(|branch| !branch.is_empty()) {
        add_names(branch, names);
    }
}

/// Returns everything that the root of a source file makes public.
fn public_names(source: &str) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    let items = source.split("\npub ").skip(1);
    for item in items {
        if let Some(tree) = item.strip_prefix("use ") {
            let (tree, _) = tree.split_once(';').expect("the statement ends");
            add_names(tree, &mut names);
        } else {
            // `mod`, `fn`, `struct`, …
            let (_, rest) = item.split_once(' ').expect("a name follows");
            let end = rest.find(|c: char| c != '_' && !c.is_alphanumeric());
            names.insert(&rest[..end.expect("the item goes on after its name")]);
        }
    }
    names
}

#[test]
fn the_root_has_only_these_names() {
    let expected = NAMES.into_iter().chain(MODULES).collect();
    let actual = public_names(ROOT);
    let added: Vec<_> = actual.difference(&expected).collect();
    let missing: Vec<_> = expected.difference(&actual).collect();
    assert!(
        added.is_empty() && missing.is_empty(),
        "new in the root: {added:?}, no longer there: {missing:?}"
    );
}

#[test]
fn names_are_found_in_all_forms() {
    let source = "\npub use a::B;\npub use a::{\n    C, d::{E, F as G},\n    h,\n};\npub mod i {\n    \
                  pub use a::J;\n}\npub fn k() {}\npub mod l;\n";
    let expected = ["B", "C", "E", "G", "h", "i", "k", "l"];
    assert_eq!(public_names(source), expected.into_iter().collect());
}
