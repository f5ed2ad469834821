//! Runs the suite over the stock Level Zero loaders and the simulated driver, and checks the
//! driver's report.

mod hostile;
mod kernels;
mod lists;
mod misuse;
mod roles;
mod run;
mod session;

use run::{Outcome, role, suite, suite_with_peers_on};

/// Checks that a run succeeded and used the driver correctly. Processes that exited must not have
/// left driver objects behind.
fn clean(outcome: &Outcome) {
    assert!(outcome.succeeded, "{}", outcome.printed);
    assert_eq!(outcome.misuse, "", "{}", outcome.printed);
    for report in &outcome.reports {
        for line in report.lines() {
            let words: Vec<_> = line.split(' ').collect();
            if let ["live", kind, count, ..] = words[..] {
                let is_permanent = matches!(kind, "drivers" | "devices");
                assert!(is_permanent || count == "0", "{line}: {report}");
            }
        }
    }
}

#[test]
#[ignore = "needs a Level Zero loader; `cargo xtask test` runs it"]
fn the_suite_passes() {
    for outcome in suite("", &[]) {
        // The line is also shown when the test passes (see .config/nextest.toml).
        println!("over the simulated driver: {}", outcome.last_line());
        // Killed processes write no report, and a process that abandoned a list keeps it.
        assert!(outcome.succeeded, "{}", outcome.printed);
        assert_eq!(outcome.misuse, "", "{}", outcome.printed);
    }
}

#[test]
#[ignore = "needs a Level Zero loader; `cargo xtask test` runs it"]
fn channels_leave_no_driver_objects() {
    let filters = [
        "items_cross",
        "queues_publish",
        "leaving_members",
        "no_slot_is",
        "consumers_wait",
        "broadcasts_reach",
    ];
    for filter in filters {
        suite(&format!("channel::{filter}"), &[])
            .iter()
            .for_each(clean);
    }
}

#[test]
#[ignore = "needs a Level Zero loader; `cargo xtask test` runs it"]
fn the_driver_may_fetch_descriptors() {
    for filter in ["memory::", "queues::", "timeline::"] {
        suite(filter, &[("TRANSPORT", "pidfd")])
            .iter()
            .for_each(clean);
    }
}

/// Intel's driver 26.14 behaves like this: it takes a replaced number for one of the exporter's
/// descriptors.
#[test]
#[ignore = "needs a Level Zero loader; `cargo xtask test` runs it"]
fn the_driver_may_fetch_the_wrong_descriptors() {
    let switches = [("TRANSPORT", "pidfd"), ("DRIVER_VERSION", "17011657")];
    suite("memory::", &switches).iter().for_each(clean);
}

#[test]
#[ignore = "needs a Level Zero loader; `cargo xtask test` runs it"]
fn the_loader_may_stand_between() {
    let switches = [("ZE_ENABLE_LOADER_INTERCEPT", "1")];
    for filter in ["memory::", "physical::", "queues::", "queue_events::"] {
        suite(filter, &switches).iter().for_each(clean);
    }
}

#[test]
#[ignore = "needs a Level Zero loader; `cargo xtask test` runs it"]
fn the_driver_may_have_no_events_of_its_own() {
    for switch in [
        ("MISSING", "ZEX_counter_based_event"),
        ("API_VERSION", "1.4"),
    ] {
        for filter in ["events::", "timeline::", "queues::"] {
            suite(filter, &[switch]).iter().for_each(clean);
        }
    }
}

/// Memory can be opened on another device only if that device has access to the memory.
#[test]
#[ignore = "needs a Level Zero loader; `cargo xtask test` runs it"]
fn peers_may_be_on_another_device() {
    let two = ("DEVICES", "2");
    for filter in ["memory::", "physical::", "queues::"] {
        suite_with_peers_on("level_zero:1", filter, &[two])
            .iter()
            .for_each(clean);
    }
    let switches = [two, ("MISSING", "peer_access")];
    for outcome in suite_with_peers_on("level_zero:1", "memory::many_open", &switches) {
        assert!(outcome.printed.contains("the handle is for device"));
        assert_eq!(outcome.misuse, "", "{}", outcome.printed);
    }
}

#[test]
#[ignore = "needs a Level Zero loader; `cargo xtask test` runs it"]
fn what_the_driver_cannot_share_is_skipped() {
    for outcome in suite("memory::", &[("MISSING", "ipc_memory")]) {
        assert!(outcome.printed.contains("lacks memory_sharing"));
    }
    for outcome in suite("physical::", &[("MISSING", "external_memory")]) {
        assert!(outcome.printed.contains("lacks physical_memory_sharing"));
    }
    // This is Intel's driver 26.14, which would ignore the descriptor and return new memory.
    for outcome in suite("physical::", &[("DRIVER_VERSION", "17011657")]) {
        assert!(outcome.printed.contains("lacks physical_memory_sharing"));
    }
    suite("events::", &[("MISSING", "ipc_memory")])
        .iter()
        .for_each(|outcome| assert_eq!(outcome.misuse, ""));
}

#[test]
#[ignore = "needs a Level Zero loader; `cargo xtask test` runs it"]
fn physical_memory_may_be_mapped_once_at_a_time() {
    suite("physical::", &[("MISSING", "several_mappings")])
        .iter()
        .for_each(clean);
}

/// Small memory must be allocated for sharing. Otherwise sharing it would also share the rest of
/// its pool.
#[test]
#[ignore = "needs a Level Zero loader; `cargo xtask test` runs it"]
fn small_memory_is_made_to_be_shared() {
    suite("memory::", &[("MISSING", "pooled_exports")])
        .iter()
        .for_each(clean);
}

#[test]
#[ignore = "needs a Level Zero loader; `cargo xtask test` runs it"]
fn freed_memory_may_come_back_at_once() {
    for filter in ["memory_lifetime::", "memory::"] {
        suite(filter, &[("REUSE", "1")]).iter().for_each(|outcome| {
            assert!(outcome.succeeded, "{}", outcome.printed);
            assert_eq!(outcome.misuse, "", "{}", outcome.printed);
        });
    }
}

#[test]
#[ignore = "needs a Level Zero loader; `cargo xtask test` runs it"]
fn commands_may_take_long() {
    suite("queue_events::", &[("COMMAND_DELAY_US", "3000")])
        .iter()
        .for_each(clean);
}

/// Calls a macro with every role. The module `roles` and its siblings implement the roles, and each
/// one runs in a separate process.
macro_rules! roles {
    ($($(#[$doc:meta])* $module:ident::$name:ident [$($switch:expr),*];)*) => {
        $($(#[$doc])*
        #[test]
        #[ignore = "needs a Level Zero loader; `cargo xtask test` runs it"]
        fn $name() {
            if run::is_role() {
                return $module::$name();
            }
            role(stringify!($name), &[$($switch),*]).iter().for_each(clean);
        })*
    };
}

roles! {
    /// Ten thousand rounds leave as much behind as one.
    roles::rounds_leave_nothing_of_the_drivers [];
    /// Ten thousand rounds with events leave as much behind as one.
    roles::rounds_of_events_leave_nothing_of_the_drivers [];
    /// The driver fetches descriptors, as newer drivers do.
    roles::rounds_leave_nothing_behind_that_was_fetched [("TRANSPORT", "pidfd")];
    /// A handle of another version of the driver is refused before the driver sees it.
    roles::another_drivers_handles_are_refused [];
    roles::refused_descriptors_are_errors [("REFUSE_DESCRIPTORS", "1")];
    roles::devices_say_what_they_are [];
    /// Like Intel's driver, the driver returns an error although it has mapped the memory.
    roles::mappings_may_fail_late [("MISSING", "residency")];
    roles::allocations_may_fail [("FAIL_ALLOCATIONS_AFTER", "80")];
    roles::queues_wait_for_each_other_on_the_device [];
    roles::hosts_need_no_event_of_the_drivers [];
    /// Intel's first drivers with such handles behave like this, and so do drivers that cannot
    /// fetch descriptors.
    roles::handles_of_events_may_be_snapshots [("MISSING", "event_updates")];
    /// Otherwise a waiter would have to fetch descriptors from every signaller, which it may not be
    /// allowed to do.
    lists::a_driver_that_fetches_fetches_from_the_exporter_alone [("TRANSPORT", "pidfd")];
    lists::submitting_waits_for_no_other_process [];
    /// Additional calls would cost more than the commands themselves.
    lists::commands_take_a_call_each [];
    lists::a_busy_list_is_waited_for [("COMMAND_DELAY_US", "200000")];
    lists::a_list_may_be_asked_for_while_others_submit [("COMMAND_DELAY_US", "20")];
    lists::a_refused_part_fails_its_command_later [
        ("REFUSE", "zeCommandListAppendMemoryCopyRegion:78000004"),
        ("COMMAND_DELAY_US", "100000")
    ];
    lists::an_event_that_cannot_be_reset_is_not_used_again [
        ("REFUSE", "zeEventHostReset:70000003"),
        ("COMMAND_DELAY_US", "30000")
    ];
    kernels::arguments_shapes_and_constants_reach_kernels [];
    kernels::several_modules_are_linked [];
    kernels::refusals_say_what_is_wrong [];
    kernels::refused_launches_fail_in_their_turn [("COMMAND_DELAY_US", "30000")];
    kernels::a_refused_launch_keeps_what_it_may_use [
        ("REFUSE", "zeCommandListAppendLaunchKernel:78000004")
    ];
    /// The driver lacks a compiler, as if that were not installed.
    kernels::a_driver_without_a_compiler_says_so [("MISSING", "modules")];
    /// Invalid handles cause no driver call. The test tries 15,000 handles of all kinds.
    hostile::bad_handles_reach_no_driver [];
    /// Wrong replies of an exporter cause no driver call.
    hostile::hostile_answers_reach_no_driver [];
}

/// Objects of one driver never reach another driver.
#[test]
#[ignore = "needs a Level Zero loader; `cargo xtask test` runs it"]
fn two_drivers_are_kept_apart() {
    if run::is_role() {
        return roles::two_drivers_are_kept_apart();
    }
    let drivers = run::two_drivers();
    let switch = ("ZE_ENABLE_ALT_DRIVERS", drivers.as_str());
    role("two_drivers_are_kept_apart", &[switch])
        .iter()
        .for_each(clean);
}

/// The role itself checks each report.
#[test]
#[ignore = "needs a Level Zero loader; `cargo xtask test` runs it"]
fn wrong_uses_are_reported() {
    let name = "wrong_uses_are_reported";
    if run::is_role() {
        return misuse::wrong_uses_are_reported();
    }
    for outcome in role(name, &[]) {
        assert!(outcome.succeeded, "{}", outcome.printed);
    }
    for outcome in role(name, &[("MISUSE", "abort")]) {
        assert!(!outcome.succeeded, "the first wrong use ends the process");
        assert_eq!(outcome.misuse.lines().count(), 1, "{}", outcome.misuse);
    }
}

/// The role itself checks each report.
#[test]
#[ignore = "needs a Level Zero loader; `cargo xtask test` runs it"]
fn wrong_uses_of_a_driver_that_fetches_are_reported() {
    if run::is_role() {
        return misuse::wrong_uses_of_a_driver_that_fetches_are_reported();
    }
    let name = "wrong_uses_of_a_driver_that_fetches_are_reported";
    for outcome in role(name, &[("TRANSPORT", "pidfd")]) {
        assert!(outcome.succeeded, "{}", outcome.printed);
    }
}

/// A lost device fails its pending commands, and nothing hangs.
#[test]
#[ignore = "needs a Level Zero loader; `cargo xtask test` runs it"]
fn the_device_may_be_lost() {
    if run::is_role() {
        return roles::the_device_may_be_lost();
    }
    for outcome in role("the_device_may_be_lost", &[("LOST_AFTER", "10")]) {
        assert!(outcome.succeeded, "{}", outcome.printed);
        assert_eq!(outcome.misuse, "", "{}", outcome.printed);
    }
}

/// A list that can no longer signal keeps the memory that it may use.
#[test]
#[ignore = "needs a Level Zero loader; `cargo xtask test` runs it"]
fn a_command_without_an_end_keeps_its_memory() {
    let name = "a_command_without_an_end_keeps_its_memory";
    if run::is_role() {
        return lists::a_command_without_an_end_keeps_its_memory();
    }
    let refused = (
        "REFUSE",
        "zeCommandListAppendMemoryCopyRegion:78000004,zeCommandListAppendSignalEvent:70000003",
    );
    for outcome in role(name, &[refused, ("COMMAND_DELAY_US", "100000")]) {
        assert!(outcome.succeeded, "{}", outcome.printed);
        assert_eq!(outcome.misuse, "", "{}", outcome.printed);
    }
}

/// A list is not destroyed, and its memory is not freed, while the device executes it.
#[test]
#[ignore = "needs a Level Zero loader; `cargo xtask test` runs it"]
fn a_list_that_goes_on_is_not_lost() {
    if run::is_role() {
        return lists::a_list_that_goes_on_is_not_lost();
    }
    for function in ["zeCommandListAppendSignalEvent", "zeEventHostSynchronize"] {
        let lost = format!("{function}:70000001");
        let switches = [("REFUSE", lost.as_str()), ("COMMAND_DELAY_US", "100000")];
        for outcome in role("a_list_that_goes_on_is_not_lost", &switches) {
            assert!(outcome.succeeded, "{}", outcome.printed);
            assert_eq!(outcome.misuse, "", "{}", outcome.printed);
        }
    }
}

/// A list that waits on the device for a dying process is abandoned, and the queue continues.
#[test]
#[ignore = "needs a Level Zero loader; `cargo xtask test` runs it"]
fn a_waiting_list_is_given_up_when_its_peer_dies() {
    let name = "a_waiting_list_is_given_up_when_its_peer_dies";
    if run::is_role() {
        return roles::a_waiting_list_is_given_up_when_its_peer_dies();
    }
    for outcome in role(name, &[]) {
        assert!(outcome.succeeded, "{}", outcome.printed);
        assert_eq!(outcome.misuse, "", "{}", outcome.printed);
    }
}

#[test]
#[ignore = "needs a Level Zero loader; `cargo xtask test` runs it"]
fn whoever_waits_for_a_list_that_is_given_up_goes_on() {
    let name = "whoever_waits_for_a_list_that_is_given_up_goes_on";
    if run::is_role() {
        return lists::whoever_waits_for_a_list_that_is_given_up_goes_on();
    }
    for outcome in role(name, &[]) {
        assert!(outcome.succeeded, "{}", outcome.printed);
        assert_eq!(outcome.misuse, "", "{}", outcome.printed);
    }
}
