//! Compares `docs/ipc-extension.md` with the code: its declarations with the stock headers, and its
//! result codes with those that the error tests check.
//!
//! The error tests are the C clients of the adapter. Their rows `FAILS(CODE, call)` fail unless the
//! call returns exactly that code, so the rows are the codes that the functions return.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The functions of the extension, with the helpers in the clients that call only them.
const FUNCTIONS: [(&str, &[&str]); 11] = [
    ("urIPCGetMemHandleExp", &[]),
    ("urIPCPutMemHandleExp", &[]),
    (
        "urIPCOpenMemHandleExp",
        &["open_memory_bytes(", "as->open("],
    ),
    ("urIPCCloseMemHandleExp", &[]),
    ("urIPCGetPhysMemHandleExp", &[]),
    ("urIPCPutPhysMemHandleExp", &[]),
    (
        "urIPCOpenPhysMemHandleExp",
        &["open_physical_bytes(", "as->open("],
    ),
    ("urIPCClosePhysMemHandleExp", &[]),
    ("urIPCGetEventHandleExp", &[]),
    ("urIPCPutEventHandleExp", &[]),
    // Rows that call `as->open` for an event are also in the error table.
    ("urIPCOpenEventHandleExp", &["open_event_bytes("]),
];

/// The heading of the page's table of codes that a driver or the system can cause.
const GENERAL: &str = "Results of the driver and the system";

type Codes = BTreeMap<String, BTreeSet<String>>;

fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the code and the call of each row `FAILS(CODE, call)` of a C program.
fn rows(program: &str) -> impl Iterator<Item = (&str, &str)> {
    program.split("FAILS(").skip(1).filter_map(|rest| {
        let (row, _) = rest.split_once(';')?;
        row.split_once(',')
    })
}

/// Returns the codes that the clients check for each function.
fn tested() -> Codes {
    let mut codes = Codes::new();
    let directory = fs::read_dir(file("clients/ur")).expect("the clients");
    for entry in directory {
        let program = read(&entry.expect("a client").path());
        for (code, call) in rows(&program) {
            for (function, helpers) in FUNCTIONS {
                let own = format!("{function}(");
                if call.contains(&own) || helpers.iter().any(|helper| call.contains(helper)) {
                    codes
                        .entry(function.to_owned())
                        .or_default()
                        .insert(code.to_owned());
                }
            }
        }
    }
    // The codes that the simulated driver returns, with their results.
    let refusals = read(&file("clients/include/refusals.h"));
    let (table, _) = refusals
        .split_once("codes[] = {")
        .map(|(_, rest)| rest.split_once("};").expect("its end"))
        .expect("the codes");
    let results = table.split("UR_RESULT_ERROR_").skip(1);
    let results = results.filter_map(|rest| Some(rest.split_once('}')?.0.to_owned()));
    codes.insert(GENERAL.to_owned(), results.collect());
    codes
}

/// Returns the codes in the tables of the page, each with the heading that it is under.
fn documented() -> Codes {
    let page = read(&file("../../docs/ipc-extension.md"));
    let (mut codes, mut heading) = (Codes::new(), "");
    for line in page.lines() {
        if line.starts_with('#') {
            heading = line.trim_start_matches('#').trim().trim_matches('`');
        }
        let is_known = heading == GENERAL || FUNCTIONS.iter().any(|(name, _)| *name == heading);
        let Some(row) = line.strip_prefix("| `").filter(|_| is_known) else {
            continue;
        };
        let (code, _) = row.split_once('`').expect("the code's end");
        // The tables of parameters have names in lower case.
        if code.chars().all(|c| c.is_ascii_uppercase() || c == '_') && code != "SUCCESS" {
            let is_new = codes
                .entry(heading.to_owned())
                .or_default()
                .insert(code.to_owned());
            assert!(is_new, "{heading} has {code} twice");
        }
    }
    codes
}

#[test]
fn the_page_has_the_codes_that_the_error_tests_produce() {
    let (tested, documented) = (tested(), documented());
    for (name, codes) in &tested {
        assert!(!codes.is_empty(), "no test of {name}");
    }
    assert_eq!(tested.len(), FUNCTIONS.len() + 1, "{tested:#?}");
    let mut faults = Vec::new();
    for name in tested
        .keys()
        .chain(documented.keys())
        .collect::<BTreeSet<_>>()
    {
        let (in_tests, on_page) = (tested.get(name), documented.get(name));
        let none = BTreeSet::new();
        let (in_tests, on_page) = (in_tests.unwrap_or(&none), on_page.unwrap_or(&none));
        for code in in_tests.difference(on_page) {
            faults.push(format!("the page lacks {code} of {name}"));
        }
        for code in on_page.difference(in_tests) {
            faults.push(format!("no test produces {code} of {name}"));
        }
    }
    assert_eq!(faults, Vec::<String>::new());
}

/// Returns the Rust type of a parameter of a C declaration.
fn type_of(parameter: &str) -> String {
    let named = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let of = parameter.trim().trim_end_matches(named).trim();
    let (is_constant, of) = match of.strip_prefix("const ") {
        Some(of) => (true, of),
        None => (false, of),
    };
    let pointers = of.matches('*').count();
    let pointee = match of.trim_end_matches(['*', ' ']) {
        "void" => "core::ffi::c_void",
        "size_t" => "usize",
        name => name,
    };
    let innermost = if is_constant { "*const " } else { "*mut " };
    let outer = "*mut ".repeat(pointers.saturating_sub(1));
    let inner = if pointers > 0 { innermost } else { "" };
    format!("{outer}{inner}{pointee}")
}

/// The generated declarations come from the stock headers.
#[test]
fn the_page_declares_the_functions_as_the_headers_do() {
    let page = read(&file("../../docs/ipc-extension.md"));
    let generated = read(&file("../unified-runtime-sys/src/ddi.rs"));
    let mut declared = BTreeSet::new();
    for block in page.split("\n```c\n").skip(1) {
        let block = block.split("```").next().expect("a block");
        let (head, parameters) = block.split_once('(').expect("a function");
        let name = head.strip_prefix("ur_result_t ").expect("a result");
        let parameters = parameters.trim_end().strip_suffix(");").expect("its end");
        let on_page: Vec<_> = parameters.split(',').map(type_of).collect();

        let short = name.strip_prefix("ur").expect("a prefix");
        let (_, rest) = generated
            .split_once(&format!("pub type ur_pfn{short}_t ="))
            .unwrap_or_else(|| panic!("the headers lack {name}"));
        let (_, rest) = rest.split_once("fn(").expect("a function");
        let (parameters, _) = rest.split_once(')').expect("its end");
        let parameters = parameters.split(',').filter_map(|it| it.split_once(": "));
        let in_headers: Vec<_> = parameters.map(|(_, of)| of.trim().to_owned()).collect();
        assert_eq!(on_page, in_headers, "{name}");
        assert!(declared.insert(name.to_owned()), "{name} is declared twice");
    }
    let all = FUNCTIONS.map(|(name, _)| name.to_owned());
    assert_eq!(declared, BTreeSet::from(all));
}
