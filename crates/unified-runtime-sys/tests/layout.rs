//! Compares the list of tables with the structure of tables, and the known size of the 0.12 headers
//! on a 64-bit machine with that of the declarations. `cargo xtask bindings --check` compares the
//! whole layout with the headers.

use std::mem::offset_of;

use unified_runtime_sys::*;

macro_rules! listed {
    ($($field:ident: $table:ident, $symbol:ident;)*) => {{
        // The pattern has no `..`, so it compiles only with all fields. The types must agree too.
        let _ = |tables: ur_dditable_t| {
            let ur_dditable_t { $($field),* } = tables;
            $(let _: $table = $field;)*
        };
        [$((
            offset_of!(ur_dditable_t, $field),
            concat!("urGet", stringify!($field), "ProcAddrTable"),
            stringify!($symbol),
        )),*]
    }};
}

#[test]
fn the_list_of_tables_is_the_structure_of_tables() {
    let listed = for_each_table!([listed]);
    assert!(listed.is_sorted_by_key(|(offset, ..)| *offset));
    for (_, wanted, symbol) in listed {
        assert_eq!(symbol, wanted);
    }
}

#[test]
fn the_tables_hold_241_functions() {
    assert_eq!(size_of::<ur_dditable_t>(), 1928);
    assert_eq!(ur_api_version_t::UR_API_VERSION_CURRENT.0, 0xc);
}
