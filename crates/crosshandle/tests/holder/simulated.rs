//! Runs tests of this program over the simulated Level Zero driver, whose memory has descriptors
//! like Intel's.

use std::process::{Command, Stdio};

/// Runs tests of this program again on the simulated driver, with the newest Level Zero loader.
fn run_on_the_simulated_driver(tests: &[&str], variables: &[(&str, &str)]) {
    let loaders = std::env::var("ZE_LOADER_LIB_DIRS").unwrap_or_default();
    let newest = loaders.split(':').next_back();
    let loader = newest.filter(|path| !path.is_empty()).expect(
        "ZE_LOADER_LIB_DIRS is not set: run this test with `cargo xtask test`, which sets it",
    );
    let program = std::env::current_exe().expect("this program");
    let driver = program.with_file_name("libze_sim.so");
    assert!(driver.is_file(), "there is no {}", driver.display());
    let ran = Command::new(program)
        .args(["--exact", "--test-threads=1"])
        .args(tests)
        .env("CROSSHANDLE_HOLDER_DEVICE", "level_zero:0")
        .env("LD_LIBRARY_PATH", loader)
        .env("ZE_ENABLE_ALT_DRIVERS", driver)
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .output()
        .expect("this program again");
    let said = String::from_utf8_lossy(&ran.stdout);
    let complained = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}\n{complained}");
    let passed = format!("{} passed", tests.len());
    assert!(said.contains(&passed), "{said}");
}

const NAMES: [&str; 4] = [
    "names::handed_over_memory_outlives_its_maker",
    "names::a_killed_holder_has_a_successor_and_readers_notice_nothing",
    "names::names_have_versions_tokens_and_pins",
    "recovery::names_come_back_from_readers_when_both_holders_die",
];

#[test]
#[ignore = "needs a Level Zero loader; `cargo xtask test` runs it"]
fn memory_of_level_zero_outlives_its_maker_and_its_holder() {
    run_on_the_simulated_driver(&NAMES, &[]);
}

/// The driver would fetch the descriptor from the exporter, which has ended.
#[test]
#[ignore = "needs a Level Zero loader; `cargo xtask test` runs it"]
fn memory_of_level_zero_whose_handle_names_its_maker_outlives_it() {
    for version in [
        // Version 26.09 does not recognise a replaced number, and the later version does.
        "17011259", "17012854",
    ] {
        let variables = [
            ("CROSSHANDLE_SIM_TRANSPORT", "pidfd"),
            ("CROSSHANDLE_SIM_DRIVER_VERSION", version),
        ];
        run_on_the_simulated_driver(&NAMES[..2], &variables);
    }
}

#[test]
#[ignore = "needs a Level Zero loader; `cargo xtask test` runs it"]
fn writers_and_all_others_are_killed_over_level_zero() {
    let tests = [
        "claims::writers_are_killed_and_no_two_have_one_epoch",
        "deaths::nothing_is_lost_whoever_dies_when",
    ];
    let variables = [
        ("CROSSHANDLE_CLAIM_CYCLES", "10"),
        ("CROSSHANDLE_HOLDER_CYCLES", "20"),
    ];
    run_on_the_simulated_driver(&tests, &variables);
}
