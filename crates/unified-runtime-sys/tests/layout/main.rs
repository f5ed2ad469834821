//! Compares the declarations with the real headers: every size, alignment, offset and value.
//!
//! What to compare is read from the sources of this crate, so nothing can be forgotten. It is
//! written down twice, as a C and as a Rust program that print the same facts; the first is
//! compiled against the headers in `UR_INCLUDE_DIR`, the second against this crate. That the
//! crate declares all that the headers do is compared by name.

mod declarations;
mod headers;
mod programs;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::declarations::Declarations;

/// The directory with `unified-runtime/ur_api.h`; `cargo xtask test` sets it.
const INCLUDE: &str = "UR_INCLUDE_DIR";

/// The value of `INCLUDE`, or a line that says why the test checks nothing.
fn include_dir(test: &str) -> Option<PathBuf> {
    let directory = std::env::var_os(INCLUDE).filter(|value| !value.is_empty());
    if directory.is_none() {
        eprintln!(
            "SKIPPED {test}: there are no headers to compare with. Set {INCLUDE} to the directory \
             that holds unified-runtime/ur_api.h, or run `cargo xtask test`, which does so"
        );
    }
    directory.map(PathBuf::from)
}

#[test]
fn sizes_offsets_and_values_are_those_of_the_headers() {
    let Some(include) = include_dir("sizes_offsets_and_values_are_those_of_the_headers") else {
        return;
    };
    let declarations = Declarations::read();
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join("layout");
    std::fs::create_dir_all(&scratch).unwrap();
    let c = programs::run_c(&declarations, &include, &scratch);
    let rust = programs::run_rust(&declarations, &scratch);

    let differences: Vec<_> = c
        .iter()
        .zip(&rust)
        .filter(|(theirs, ours)| theirs != ours)
        .map(|(theirs, ours)| format!("  header: {theirs}\n  crate:  {ours}"))
        .collect();
    assert!(
        differences.is_empty() && c.len() == rust.len(),
        "{} of {} facts differ, {} in the crate:\n{}",
        differences.len(),
        c.len(),
        rust.len(),
        differences.join("\n")
    );

    let mut counts = BTreeMap::<_, usize>::new();
    for fact in &rust {
        *counts.entry(fact.split(' ').next().unwrap()).or_default() += 1;
    }
    assert!(counts.values().all(|&count| count > 0) && counts.len() == 6);
    let opaque = declarations.opaque.len();
    println!("compared: {counts:?}; {opaque} structures have no layout to compare");
}

#[test]
fn everything_in_the_headers_is_declared() {
    let Some(include) = include_dir("everything_in_the_headers_is_declared") else {
        return;
    };
    let declarations = Declarations::read();
    let names = headers::names(&include);
    let missing: Vec<_> = names
        .iter()
        .filter(|name| !declarations.has(name))
        .collect();
    assert!(missing.is_empty(), "not in the crate: {missing:?}");
    println!("declared: {} names of the headers", names.len());
}

#[test]
fn the_list_of_tables_is_the_structure_of_tables() {
    macro_rules! listed {
        ($($field:ident: $table:ident, $symbol:ident;)*) => {
            [$((stringify!($field), stringify!($table), stringify!($symbol))),*]
        };
    }
    let listed = unified_runtime_sys::for_each_table!([listed]);
    let declarations = Declarations::read();
    let fields = declarations.fields_of("ur_dditable_t");
    assert_eq!(fields.len(), listed.len());
    for ((field, table), listed) in fields.iter().zip(listed) {
        let symbol = format!("urGet{field}ProcAddrTable");
        assert_eq!((field.as_str(), table.as_str(), symbol.as_str()), listed);
        assert!(declarations.has(&format!("ur_pfnGet{field}ProcAddrTable_t")));
    }
}

/// The figures of the 0.12 headers on a 64-bit machine, whether or not they are at hand.
#[test]
fn the_tables_hold_241_functions() {
    use unified_runtime_sys as ur;
    assert_eq!(size_of::<ur::ur_dditable_t>(), 1928);
    assert_eq!(ur::ur_api_version_t::UR_API_VERSION_CURRENT.0, 0xc);
}
