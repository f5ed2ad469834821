//! Allocations in code that parses data of others: their sizes are constants, or a `Bounded`.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::{Fault, Files};

/// Files and directories whose input comes from peers, linked hosts, files or other users.
const PARSERS: [&str; 10] = [
    "crates/crosshandle-handle/src/",
    "crates/crosshandle-ipc/src/broker/",
    "crates/crosshandle-ipc/src/chunks/",
    "crates/crosshandle-holder/src/",
    "crates/crosshandle/src/api/report/",
    "crates/crosshandle-store/src/manifest.rs",
    "crates/crosshandle-store/src/source.rs",
    "crates/crosshandle-store/src/state.rs",
    "crates/crosshandle-link/src/",
    "crates/crosshandle-cli/src/commands/link/",
];
/// The file that may allocate by a length which it has checked.
const BOUNDED: &str = "crates/crosshandle-handle/src/bounded.rs";
/// Words in lower case that a constant size may contain.
const KNOWN: [&str; 7] = ["size_of", "as", "usize", "u8", "u16", "u32", "u64"];

/// Returns each allocation in a parser whose size is neither a constant nor a `Bounded`.
pub(super) fn check(path: &str, text: &str) -> Vec<Fault> {
    let is_test = path.split(['/', '.']).any(|part| part == "tests");
    let is_parser = PARSERS.iter().any(|parser| path.starts_with(parser));
    let mut found = Vec::new();
    if is_parser && !is_test && path != BOUNDED {
        // The compiler reports a file without a meaning.
        scan(text.parse().unwrap_or_default(), &mut found);
    }
    found
}

/// Returns the entries of the lists above that no file matches.
pub(super) fn unused(files: &Files) -> Vec<Fault> {
    let entries = PARSERS.into_iter().chain([BOUNDED]);
    let unused = entries.filter(|entry| !files.keys().any(|path| path.starts_with(entry)));
    let unused = unused.map(|entry| (0, format!("there is no {entry}")));
    unused.collect()
}

fn scan(tokens: TokenStream, found: &mut Vec<Fault>) {
    let (mut before, mut last) = (String::new(), String::new());
    let mut is_for_tests = false;
    for token in tokens {
        let text = token.to_string();
        if let TokenTree::Group(group) = token {
            let is_body = group.delimiter() == Delimiter::Brace;
            if !is_for_tests || !is_body {
                let first = text.split(',').next();
                let size = match (&*before, &*last) {
                    ("vec", "!") => text.rsplit_once(';').map(|(_, size)| size),
                    ("fn", _) => None,
                    (_, "with_capacity" | "reserve" | "reserve_exact" | "try_reserve") => first,
                    (_, "try_reserve_exact" | "resize" | "set_len") => first,
                    _ => None,
                };
                if size.is_some_and(|size| !is_constant(size)) {
                    let what = format!("{last}: a peer may choose this size; use `Bounded`");
                    found.push((group.span_open().start().line, what));
                }
                scan(group.stream(), found);
            }
            let is_test = text.starts_with("[cfg") && text.contains("test");
            is_for_tests = is_test && !text.contains("not") || is_for_tests && !is_body;
        } else {
            is_for_tests &= text != ";";
        }
        before = std::mem::replace(&mut last, text);
    }
}

/// Returns whether the words of a size are numbers, constants and [`KNOWN`] words.
fn is_constant(size: &str) -> bool {
    let mut words = size.split(|c: char| !c.is_alphanumeric() && c != '_');
    let is_number = |word: &str| word.starts_with(|c: char| c.is_ascii_digit());
    words.all(|word| word == word.to_uppercase() || is_number(word) || KNOWN.contains(&word))
}

#[test]
fn sizes_of_others_are_found() {
    let source = "
        fn parse(claimed: usize) {
            let _ = (vec![0; MAX + 2 * size_of::<u64>()], vec![claimed], vec![0u8; claimed]);
            Vec::<u8>::with_capacity((MAX) + size_of::<u64>() * claimed).resize(claimed, 0);
        }
        #[cfg(all(test, unix))]
        mod tests { fn resize(claimed: usize) { vec![0; claimed]; } }
    ";
    let found = check("crates/crosshandle-handle/src/text.rs", source);
    assert_eq!(found.len(), 3, "{found:?}");
    assert_eq!(check("crates/crosshandle-os/src/memfd.rs", source), []);
}
