//! Each check against a small tree in which one fault is planted.

use super::*;

/// A library of these files, `lib.rs` among them.
fn library(files: &[(&str, &str)]) -> (Tree, Vec<Edge>) {
    let sources: Sources = files
        .iter()
        .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()))
        .collect();
    let tree = Tree::read(&sources).expect("sources");
    let edges = imports::edges(&tree);
    (tree, edges)
}

fn printed(faults: &[Fault]) -> Vec<String> {
    faults.iter().map(ToString::to_string).collect()
}

fn upward(files: &[(&str, &str)]) -> Vec<String> {
    let (tree, edges) = library(files);
    printed(&layer_faults(&tree, &edges))
}

fn circles(files: &[(&str, &str)]) -> Vec<Vec<String>> {
    let (tree, edges) = library(files);
    let name = |file: &usize| tree.files[*file].path.clone();
    cycles::find(&tree, &edges)
        .iter()
        .map(|component| component.files.iter().map(name).collect())
        .collect()
}

fn broken(path: &str, text: &str) -> Vec<String> {
    let rules = Rules {
        path,
        is_library: true,
        is_in_users_process: true,
    };
    let file = syn::parse_file(text).expect("a source");
    let found = rules.check(&file).into_iter();
    found
        .map(|(line, message)| format!("{line}: {message}"))
        .collect()
}

const ROOT: (&str, &str) = (
    "lib.rs",
    "mod error; mod hal; mod ipc; pub use error::Error;",
);
const ERROR: (&str, &str) = ("error.rs", "pub struct Error;");
const IPC: (&str, &str) = ("ipc.rs", "pub(crate) struct Exporter;");
const HAL: (&str, &str) = ("hal/mod.rs", "mod queue; pub(crate) use queue::Queue;");
const QUEUE: (&str, &str) = (
    "hal/queue.rs",
    "use crate::ipc::Exporter; pub(crate) struct Queue(Exporter);",
);

#[test]
fn imports_that_point_down_are_no_fault() {
    assert!(upward(&[ROOT, ERROR, IPC, HAL, QUEUE]).is_empty());
}

#[test]
fn an_upward_import_is_found_in_every_form() {
    let forms = [
        "use crate::hal::Queue;",
        "use crate::{Error, hal::{self, Queue as Other}};",
        "use super::hal::queue::*;",
        "use crate::hal; fn f(_: hal::Queue) {}",
        "fn f() { let _ = crate::hal::queue::Queue; }",
        "fn f() { use crate::hal::Queue; }",
        "fn f() { println!(\"{}\", crate::hal::Queue::name()); }",
        "pub(crate) use crate::hal::Queue as Passed;",
        "mod inner { use super::super::hal::Queue; }",
        "use crate::*; fn f(_: hal::Queue) {}",
    ];
    for form in forms {
        let faults = upward(&[ROOT, ERROR, HAL, QUEUE, ("ipc.rs", form)]);
        assert!(
            faults.iter().any(
                |fault| fault.starts_with("crates/crosshandle/src/ipc.rs:1: ")
                    && fault.contains("the layer ipc imports from the higher layer hal")
            ),
            "{form}: {faults:?}"
        );
    }
}

#[test]
fn a_name_that_is_passed_on_counts_where_it_is_defined() {
    // The error is the lowest layer's, also by the name it has at the root, the highest.
    let ipc = (
        "ipc.rs",
        "use crate::Error; pub(crate) struct Exporter(Error);",
    );
    assert!(upward(&[ROOT, ERROR, ipc, HAL, QUEUE]).is_empty());
    // The backend passes on what only looks like its own.
    let hal = (
        "hal/mod.rs",
        "mod queue; pub(crate) use crate::error::Error as Failure;",
    );
    let queue = ("hal/queue.rs", "");
    let ipc = ("ipc.rs", "use crate::hal::Failure;");
    assert!(upward(&[ROOT, ERROR, ipc, hal, queue]).is_empty());
}

#[test]
fn code_of_tests_may_import_anything() {
    let ipc = (
        "ipc.rs",
        "#[cfg(test)] mod tests { use crate::hal::Queue; } #[cfg(all(test, unix))] use crate::hal::Queue;
         struct A; impl A { #[cfg(test)] fn f(_: crate::hal::Queue) {} }",
    );
    assert!(upward(&[ROOT, ERROR, ipc, HAL, QUEUE]).is_empty());
}

#[test]
fn a_file_without_a_layer_is_found() {
    let faults = upward(&[("lib.rs", "mod attic;"), ("attic.rs", "")]);
    assert!(faults[0].contains("attic is no layer"), "{faults:?}");
}

#[test]
fn a_module_with_its_direct_children_may_go_round_and_nothing_larger() {
    let parent = (
        "hal/mod.rs",
        "mod a; mod b; pub(crate) use a::A; pub(crate) struct P(b::B);",
    );
    let first = ("hal/a.rs", "pub(crate) struct A(super::P);");
    let second = ("hal/b.rs", "use super::A; pub(crate) struct B(A);");
    let root = ("lib.rs", "mod hal; mod api;");
    let api = ("api.rs", "use crate::hal::A; pub(crate) struct Thing(A);");
    assert!(circles(&[root, parent, first, second, api]).is_empty());

    // A grandchild is one too many.
    let second = (
        "hal/b/mod.rs",
        "mod c; use super::A; pub(crate) struct B(A, c::C);",
    );
    let third = ("hal/b/c.rs", "pub(crate) struct C(crate::hal::P);");
    let found = circles(&[root, parent, first, second, third, api]);
    assert_eq!(
        found,
        [["hal/mod.rs", "hal/a.rs", "hal/b/mod.rs", "hal/b/c.rs"]]
    );
    let (tree, edges) = library(&[root, parent, first, second, third, api]);
    let fault = printed(&cycle_faults(&tree, &edges)).remove(0);
    assert!(
        fault.contains("4 files import each other in circles"),
        "{fault}"
    );
    assert!(
        fault.contains("hal/b/c.rs:1 uses crate::hal::P of hal/mod.rs"),
        "{fault}"
    );
}

#[test]
fn two_modules_that_use_each_other_are_a_circle() {
    let found = circles(&[
        ("lib.rs", "mod ipc; mod pool;"),
        ("ipc/mod.rs", "mod arena;"),
        (
            "ipc/arena.rs",
            "use crate::pool::block::Block; pub(crate) struct Arena(Block);",
        ),
        ("pool/mod.rs", "pub(crate) mod block;"),
        (
            "pool/block.rs",
            "pub(crate) struct Block(crate::ipc::arena::Arena);",
        ),
    ]);
    assert_eq!(found, [["ipc/arena.rs", "pool/block.rs"]]);
}

#[test]
fn unsafe_code_has_its_places() {
    let forms = [
        "fn f() { unsafe { g() } }",
        "unsafe fn f() {} fn g() { unsafe { f() } }",
        "unsafe impl Send for A {}",
        "m! { unsafe { g() } }",
    ];
    for form in forms {
        assert!(
            broken("api/event.rs", form)[0].contains("unsafe outside"),
            "{form}"
        );
        assert!(broken("hal/host/queue.rs", form).is_empty(), "{form}");
    }
    // What the caller promised may be passed on.
    let promise = "impl A { unsafe fn f() { unsafe { g() } } }";
    assert!(broken("api/event.rs", promise).is_empty());
    let test = "#[cfg(test)] mod tests { fn f() { unsafe { g() } } }";
    assert!(broken("api/event.rs", test).is_empty());
}

#[test]
fn only_its_backend_names_a_drivers_bindings() {
    for form in [
        "use cudarc::driver::sys;",
        "fn f(_: cudarc::A) {}",
        "m!(cudarc::b());",
    ] {
        let faults = broken("hal/common/mod.rs", form);
        assert!(
            faults[0].contains("cudarc is named outside of hal/cuda/"),
            "{form}"
        );
        assert!(broken("hal/cuda/driver.rs", form).is_empty(), "{form}");
    }
    assert!(!broken("hal/cuda/mod.rs", "use level_zero_sys as sys;").is_empty());
}

#[test]
fn threads_are_started_in_one_place() {
    let forms = [
        "fn f() { std::thread::spawn(|| {}); }",
        "use std::{thread::{self, Builder}, time};",
        "use std::thread; fn f() { thread::Builder::new(); }",
        "fn f() { m!(thread::spawn(g)); }",
    ];
    for form in forms {
        let faults = broken("hal/host/queue.rs", form);
        assert!(
            faults
                .iter()
                .any(|fault| fault.contains("ThreadKind::start")),
            "{form}"
        );
        assert!(broken("threads/mod.rs", form).is_empty(), "{form}");
    }
}

#[test]
fn constants_of_time_are_in_files_of_their_own() {
    let forms = [
        "const IDLE: Duration = Duration::from_secs(2);",
        "const IDLE_MS: u64 = 2_000;",
        "impl A { const IDLE: std::time::Duration = X; }",
        "fn f() { const IDLE: Duration = X; }",
    ];
    for form in forms {
        assert!(
            broken("ipc/arena.rs", form)[0].contains("constant of time"),
            "{form}"
        );
        assert!(broken("ipc/tuning.rs", form).is_empty(), "{form}");
    }
}

#[test]
fn visibility_in_a_path_is_found() {
    assert!(broken("ipc/arena.rs", "pub(in crate::ipc) fn f() {}")[0].contains("pub(in"));
    assert!(broken("ipc/arena.rs", "pub(super) fn f() {}").is_empty());
}

#[test]
fn a_directory_with_too_many_entries_is_found() {
    let mut paths: documents::Paths = (0..MAX_ENTRIES)
        .map(|number| format!("crates/a/src/b/{number}.rs"))
        .collect();
    paths.insert("crates/a/src/b/".into());
    assert!(directory_faults(&paths).is_empty());
    paths.insert("crates/a/src/b/more/".into());
    paths.insert("crates/a/src/b/more/one.rs".into());
    assert_eq!(
        printed(&directory_faults(&paths)),
        ["crates/a/src/b: 15 entries: 14 at most"]
    );
}

#[test]
fn retired_words_are_found_in_names_and_comments_but_not_in_texts() {
    let found = |text| words::retired(text, true);
    assert_eq!(found("struct LaneSet;")[0].0, 1);
    assert_eq!(found("\n// One of the lanes.\n")[0].0, 2);
    assert_eq!(found("fn all_lanes() {}").len(), 1);
    assert_eq!(found("let traffic = 1; // much traffic").len(), 1);
    assert!(words::retired("let traffic = 1;", false).is_empty());
    assert_eq!(found("const MOST: usize = 1;").len(), 1);
    let fine = "let text = \"a lane\"; let raw = r#\"lane\"#; let c = '\"'; struct Plane<'lane>;";
    assert_eq!(found(fine).len(), 1, "the lifetime alone");
    assert!(found("// most planes settle at a gate").is_empty());
    assert!(found("let utmost = almost(MOST_BYTES);").is_empty());
}

#[test]
fn terms_of_the_glossary_occur_in_the_code() {
    let glossary = "# Words\n| term | meaning |\n|---|---|\n| **wait list**, **fence** | what |\n\
                    | **liveness lock** | what |\n- **unicorn**: none **really**\n";
    let terms = words::terms(glossary);
    assert_eq!(terms, ["wait list", "liveness lock", "unicorn"]);
    let sources = ["struct WaitList;", "// liveness locks"];
    assert_eq!(words::missing(&terms, &sources), ["unicorn"]);
}

#[test]
fn paths_that_documents_name_exist() {
    let paths: documents::Paths = [
        "README.md",
        "docs/events.md",
        "crates/crosshandle/src/hal/mod.rs",
        "crates/crosshandle/src/hal/",
        "crates/crosshandle/src/hal/cuda/",
    ]
    .map(str::to_owned)
    .into();
    let found = |text: &str| -> Vec<String> {
        let found = documents::dangling(text, "docs/", &paths).into_iter();
        found.map(|(line, path)| format!("{line} {path}")).collect()
    };
    let fine = "`hal/mod.rs`, `crates/crosshandle/src/hal/{mod.rs,cuda}`, `hal/` and [events](events.md#x)\n\
                [all](../README.md), `Event::wait`, `a / b`, `crates/*/src`, <https://a/b.rs>, `cargo run -- x`";
    assert_eq!(found(fine), Vec::<String>::new());
    assert_eq!(found("\n`hal/gone.rs`"), ["2 hal/gone.rs"]);
    assert_eq!(found("`crates/gone`"), ["1 crates/gone"]);
    assert_eq!(found("[gone](gone.md)"), ["1 ./gone.md"]);
    assert_eq!(found("```\ncrates/gone/x.rs\n```"), ["2 crates/gone/x.rs"]);
}

#[test]
fn tests_that_are_named_as_evidence_exist() {
    let mut tests = evidence::Tests::default();
    tests.add_functions(
        "#[test]\nfn nobody_gets_in() {}\n    pub(crate) fn exchange_timeout(x: u8) {}",
    );
    tests.add_cases("for_each {\n  $callback! {\n hostile {\n  floods\n  by_many_words\n }\n }\n}");
    let found = |text: &str| -> Vec<String> {
        let found = evidence::missing(text, &tests).into_iter();
        found.map(|(line, name)| format!("{line} {name}")).collect()
    };
    let fine = "`hostile::floods`, `by_many_words`, `nobody_gets_in`, `hostile::…`, `open_count`, `Guard::Look`";
    assert_eq!(found(fine), Vec::<String>::new());
    assert_eq!(found("\n| `hostile::gone`"), ["2 hostile::gone"]);
    assert_eq!(
        found("`nobody_gets_out` and `gone::…`"),
        ["1 nobody_gets_out", "1 gone::…"]
    );
}

#[test]
fn the_layers_in_the_documents_are_these() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = fs::read_to_string(root.join("docs/architecture.md")).expect("the page");
    let rows = page
        .lines()
        .skip_while(|line| !line.starts_with("| layer |"))
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let mut named: Vec<_> = rows
        .map(|row| row.split('`').nth(1).expect("a name").to_owned())
        .collect();
    named.reverse();
    assert_eq!(
        named, LAYERS,
        "the table in docs/architecture.md is high to low"
    );
}
