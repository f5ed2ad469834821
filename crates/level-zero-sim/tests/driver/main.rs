//! Tests of the simulated driver under the stock loaders. Each scenario runs in processes of its
//! own.

mod run;

use crate::run::{Outcome, run};

/// Runs a scenario and checks that its processes leave no live objects and no reports of wrong use.
fn clean(scenario: &str, variables: &[(&str, &str)]) {
    for outcome in run(scenario, variables) {
        assert_eq!(
            outcome.misuse(),
            Vec::<String>::new(),
            "{}",
            outcome.printed
        );
        assert_nothing_is_left(&outcome);
    }
}

fn assert_nothing_is_left(outcome: &Outcome) {
    for line in outcome.reports.iter().flat_map(|report| report.lines()) {
        let mut words = line.split(' ');
        let (kind, name, count) = (words.next(), words.next(), words.next());
        let permanent = matches!(name, Some("drivers" | "devices"));
        assert!(
            kind != Some("live") || permanent || count == Some("0"),
            "{line}"
        );
    }
}

#[test]
fn devices_are_listed_with_their_properties() {
    clean("devices", &[]);
    for outcome in run("devices", &[("DEVICES", "3")]) {
        assert!(outcome.printed.contains("3 devices"), "{}", outcome.printed);
    }
}

#[test]
fn commands_are_executed_in_order() {
    clean("commands", &[]);
    clean("queues", &[]);
    clean("threads", &[]);
}

/// Compiles and runs kernels if an OpenCL runtime for the CPU is installed. Without one, the
/// scenario prints that it was skipped.
#[test]
fn kernels_are_compiled_and_run() {
    clean("kernels", &[]);
    clean("kernels", &[("ZE_ENABLE_LOADER_INTERCEPT", "1")]);
    clean("kernel-refusals", &[]);
    clean("no-kernels", &[("MISSING", "modules")]);
}

#[test]
fn memory_is_shared_by_a_descriptor_that_is_put_in_place() {
    clean("memory", &[]);
    clean("memory-same-number", &[]);
}

/// Intel's newer drivers fetch descriptors. Like them, the driver accepts a replaced number for
/// memory.
#[test]
fn memory_is_shared_by_a_driver_that_fetches_descriptors() {
    clean("memory", &[("TRANSPORT", "pidfd")]);
    clean("memory-same-number", &[("TRANSPORT", "pidfd")]);
}

#[test]
fn opening_and_closing_leaves_nothing_behind() {
    for outcome in run("memory-rounds", &[]) {
        assert_eq!(outcome.misuse(), Vec::<String>::new());
        assert_nothing_is_left(&outcome);
        let opened = outcome.reports.iter().any(|report| {
            report.contains("live opened-allocations 0 of 400 created")
                && report.contains("calls zeMemCloseIpcHandle 400")
        });
        assert!(opened, "{:?}", outcome.reports);
    }
    clean("event-rounds", &[]);
}

#[test]
fn memory_is_shared_by_its_descriptor_alone() {
    clean("memory-external", &[]);
    clean("physical", &[]);
}

#[test]
fn events_are_signalled_and_waited_for_in_either_process() {
    clean("events", &[]);
    clean("event-pools", &[]);
}

/// Intel's newer drivers fetch descriptors. Like them, the driver does not recognise a replaced
/// number for an event.
#[test]
fn events_are_shared_by_a_driver_that_fetches_descriptors() {
    clean("events", &[("TRANSPORT", "pidfd")]);
    for outcome in run("patched-event", &[("TRANSPORT", "pidfd")]) {
        assert_eq!(outcome.misuse(), outcome.expected());
    }
}

#[test]
fn the_loader_may_stand_between() {
    for scenario in ["devices", "queues", "memory", "physical", "event-pools"] {
        clean(scenario, &[("ZE_ENABLE_LOADER_INTERCEPT", "1")]);
    }
    for outcome in run("intercepted", &[("ZE_ENABLE_LOADER_INTERCEPT", "1")]) {
        assert_eq!(outcome.misuse(), outcome.expected());
    }
}

/// The scenario covers every check, for example a wrong close, a double close, and a signal from an
/// out-of-order list.
#[test]
fn every_wrong_use_is_reported() {
    for outcome in run("misuse", &[]) {
        assert_eq!(outcome.misuse(), outcome.expected(), "{}", outcome.printed);
        for check in ["wrong-close", "double-close", "out-of-order-signal"] {
            assert!(outcome.misuse().iter().any(|found| found == check));
            assert!(outcome.reports[0].contains(&format!("misuse {check} ")));
        }
    }
}

#[test]
fn a_wrong_use_can_be_the_end_of_the_process() {
    for outcome in run::run_to_its_end("misuse", &[("MISUSE", "abort")]) {
        assert!(!outcome.succeeded);
        assert_eq!(outcome.misuse(), ["wrong-close"]);
    }
}

#[test]
fn what_is_to_be_missing_is_missing() {
    let missing = "ZEX_counter_based_event,zeMemGetIpcHandle,peer_access";
    clean("missing", &[("MISSING", missing), ("DEVICES", "2")]);
    clean("older-driver", &[("API_VERSION", "1.4")]);
}

#[test]
fn what_is_to_fail_fails() {
    clean("allocation-failure", &[("FAIL_ALLOCATIONS_AFTER", "3")]);
    clean("device-lost", &[("LOST_AFTER", "2")]);
    clean("slow", &[("COMMAND_DELAY_US", "50000")]);
    clean("refused", &[]);
    let refused = "zeMemAllocHost:70010000,zeEventPoolCreate:0x78000004";
    clean("refused-calls", &[("REFUSE", refused)]);
}

#[test]
fn a_handle_of_another_version_of_the_driver_is_noticed() {
    for outcome in run("other-driver", &[]) {
        assert_eq!(outcome.misuse(), outcome.expected());
        assert_nothing_is_left(&outcome);
    }
}
