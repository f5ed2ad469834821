//! Compares the declarations with the real headers.

use std::path::{Path, PathBuf};

use layout_check::Interface;
use level_zero_sys as ze;

/// The directory with `level_zero/ze_api.h`; `cargo xtask test` sets it.
const INCLUDE: &str = "ZE_INCLUDE_DIR";
const HEADERS: [&str; 2] = ["level_zero/ze_api.h", "level_zero/ze_ddi.h"];

/// Decorations and macros that are not plain values.
const NOT_ABI: [&str; 10] = [
    "ZE_APICALL",
    "ZE_APIEXPORT",
    "ZE_DLLEXPORT",
    "ZE_BIT",
    "ZE_CALLBACK_CONV",
    "ZE_MAKE_VERSION",
    "ZE_MAJOR_VERSION",
    "ZE_MINOR_VERSION",
    "ZE_API_VERSION_CURRENT_M",
    "ze_api",
];

/// The arguments of functions and the tables of callbacks, as tracing layers see them.
fn is_for_tracing(name: &str) -> bool {
    let params = name.ends_with("_params_t") && !name.ends_with("_cb_params_t");
    params || name.ends_with("callbacks_t") || name.ends_with("Cb_t")
}

/// The text of a macro, which is compared as such.
fn is_text(name: &str) -> bool {
    name.starts_with("ZE_extension_") || name.starts_with("ZE_experimental_")
}

/// Runs `check` where there are headers.
fn compare(test: &str, check: fn(&Interface<'_>) -> String) {
    let Some(include) = layout_check::include_dir(INCLUDE, HEADERS[0], test) else {
        return;
    };
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let sources: [PathBuf; 2] = ["api.rs", "ddi.rs"].map(|name| directory.join(name));
    let result = check(&Interface {
        sources: &sources,
        include: &include,
        headers: &HEADERS,
        prefixes: &["ze_", "ZE_"],
        not_abi: |name| NOT_ABI.contains(&name) || is_for_tracing(name) || is_text(name),
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

/// Figures of the 1.17 headers on a 64-bit machine, whether or not they are at hand.
#[test]
fn what_crosses_processes_has_the_sizes_that_it_is_known_by() {
    assert_eq!(size_of::<ze::ze_ipc_mem_handle_t>(), 64);
    assert_eq!(size_of::<ze::zex_ipc_counter_based_event_handle_t>(), 64);
    assert_eq!(size_of::<ze::ze_event_counter_based_desc_t>(), 32);
    assert_eq!(size_of::<ze::ze_event_dditable_t>(), 136);
}
