//! Compares known sizes of the 1.17 headers on a 64-bit machine with those of the declarations.
//! `cargo xtask bindings --check` compares the whole layout with the headers.

use level_zero_sys as ze;

#[test]
fn what_crosses_processes_has_the_sizes_that_it_is_known_by() {
    assert_eq!(size_of::<ze::ze_ipc_mem_handle_t>(), 64);
    assert_eq!(size_of::<ze::zex_ipc_counter_based_event_handle_t>(), 64);
    assert_eq!(size_of::<ze::ze_event_counter_based_desc_t>(), 32);
    assert_eq!(size_of::<ze::ze_event_dditable_t>(), 136);
}
