//! Compares the declarations with the real headers.

use std::path::{Path, PathBuf};

use layout_check::{Declarations, Interface};

/// The directory with `unified-runtime/ur_api.h`; `cargo xtask test` sets it.
const INCLUDE: &str = "UR_INCLUDE_DIR";
const HEADERS: [&str; 2] = ["unified-runtime/ur_api.h", "unified-runtime/ur_ddi.h"];

/// Decorations and macros with arguments: nothing of the binary interface.
const NOT_ABI: [&str; 11] = [
    "UR_API_H_INCLUDED",
    "UR_DDI_H_INCLUDED",
    "UR_APICALL",
    "UR_APIEXPORT",
    "UR_DLLEXPORT",
    "UR_BIT",
    "UR_MAKE_VERSION",
    "UR_MAJOR_VERSION",
    "UR_MINOR_VERSION",
    "ur_api",
    "ur_ddi",
];

fn sources() -> [PathBuf; 3] {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    ["api.rs", "ddi.rs", "params.rs"].map(|name| directory.join(name))
}

/// Runs `check` where there are headers.
fn compare(test: &str, check: fn(&Interface<'_>) -> String) {
    let Some(include) = layout_check::include_dir(INCLUDE, HEADERS[0], test) else {
        return;
    };
    let result = check(&Interface {
        sources: &sources(),
        include: &include,
        headers: &HEADERS,
        prefixes: &["ur_", "UR_"],
        not_abi: |name| NOT_ABI.contains(&name),
        scratch: &Path::new(env!("CARGO_TARGET_TMPDIR")).join(env!("CARGO_PKG_NAME")),
    });
    println!("{result}");
}

#[test]
fn sizes_offsets_and_values_are_those_of_the_headers() {
    let test = "sizes_offsets_and_values_are_those_of_the_headers";
    compare(test, |interface| interface.check_layout());
}

#[test]
fn everything_in_the_headers_is_declared() {
    let test = "everything_in_the_headers_is_declared";
    compare(test, |interface| interface.check_names());
}

#[test]
fn the_list_of_tables_is_the_structure_of_tables() {
    macro_rules! listed {
        ($($field:ident: $table:ident, $symbol:ident;)*) => {
            [$((stringify!($field), stringify!($table), stringify!($symbol))),*]
        };
    }
    let listed = unified_runtime_sys::for_each_table!([listed]);
    let declarations = Declarations::read(&sources());
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
