//! Commands that need only one process: devices, doctor, inspect, wrong usage, generated files.

use crate::common::{Sandbox, text};
use std::fs;

#[test]
fn devices_are_listed() {
    let sandbox = Sandbox::new();
    let devices = sandbox.run(["devices", "--json"]).expect(0).json();
    assert_eq!(devices[0]["device"], "host:0");
    assert!(devices[0]["total_memory"].as_u64() > Some(0));
    assert_eq!(devices[0]["shares"]["events"], true);
    let table = sandbox.run(["devices"]).expect(0);
    assert!(table.text().contains("host:0"), "{}", table.text());
}

#[test]
fn the_doctor_finds_a_healthy_machine() {
    let sandbox = Sandbox::new();
    let report = sandbox.run(["doctor", "--json"]).expect(0).json();
    assert_eq!(report["healthy"], true, "{report}");
    let checks = report["checks"].as_array().expect("a list");
    let level = |name: &str| {
        let found = checks.iter().find(|check| check["check"] == name);
        found.unwrap_or_else(|| panic!("no {name}: {report}"))["level"].clone()
    };
    assert_eq!(level("sharing on host:0"), "ok");
    assert_eq!(level("socket directory"), "ok");
    assert_eq!(level("backend host"), "ok");
    let table = sandbox.run(["doctor"]).expect(0);
    assert!(table.text().contains("huge pages"), "{}", table.text());
}

#[test]
fn the_doctor_finds_a_bad_socket_directory() {
    let sandbox = Sandbox::new();
    let file = sandbox.file("file", b"no directory");
    let long = sandbox.path(&"x".repeat(100));
    for directory in [text(&file), text(&long), "/proc/none"] {
        let sick = sandbox
            .run(["doctor", "--json", "--socket-dir", directory])
            .expect(1);
        assert_eq!(sick.json()["healthy"], false);
        let checks = sick.json();
        let problems: Vec<_> = checks["checks"]
            .as_array()
            .expect("a list")
            .iter()
            .filter(|check| check["level"] == "problem")
            .map(|check| check["check"].as_str().expect("a name"))
            .collect();
        assert_eq!(problems, ["socket directory", "sharing on host:0"]);
    }
}

#[test]
fn handles_are_explained_without_being_opened() {
    let sandbox = Sandbox::new();
    let (holder, handle) = sandbox.hold(["event", "new"]);
    let pid = holder.pid().as_raw_nonzero().get();
    drop(holder);
    let words = sandbox.run(["inspect", &handle]).expect(0);
    assert!(words.text().contains("event"), "{}", words.text());
    assert!(words.text().contains("this machine"), "{}", words.text());
    let explained = sandbox.run(["inspect", &handle, "--json"]).expect(0).json();
    assert_eq!(explained["kind"], "event");
    assert_eq!(explained["same_host"], true);
    assert_eq!(explained["exporter_pid"], pid);
}

#[test]
fn garbage_is_refused() {
    let sandbox = Sandbox::new();
    let (_holder, handle) = sandbox.hold(["event", "new"]);
    // Changes one character in the middle, or cuts one off.
    let mut damaged = handle.clone().into_bytes();
    let middle = damaged.len() / 2;
    damaged[middle] = if damaged[middle] == b'A' { b'B' } else { b'A' };
    let damaged = String::from_utf8(damaged).expect("text");
    for (garbage, reason) in [
        ("garbage", "not a handle"),
        ("", "not a handle"),
        (&damaged, "damaged"),
        (&handle[..handle.len() - 1], "character"),
    ] {
        for command in [&["inspect"][..], &["read"], &["event", "wait"]] {
            let refused = sandbox.run([command, &[garbage]].concat()).expect(1);
            // `read` checks the handle's kind first, so it may report another reason.
            if command != ["read"] {
                assert!(refused.stderr.contains(reason), "{}", refused.stderr);
            }
            assert!(refused.stdout.is_empty());
        }
    }
}

#[test]
fn wrong_usage_is_told_apart() {
    let sandbox = Sandbox::new();
    for arguments in [
        &["nonsense"][..],
        &[],
        &["share"],
        &["read"],
        &["read", "h", "--offset", "much"],
        &["event"],
        &["event", "wait", "h", "--timeout", "5 parsecs"],
        &["event", "wait", "h", "--value", "1", "--next"],
        &["event", "signal", "h", "--value", "0"],
        &["demo", "--size", "1B"],
        &["demo", "--rounds", "0"],
        &["completions", "klingon"],
    ] {
        let refused = sandbox.run(arguments).expect(2);
        assert!(!refused.stderr.is_empty(), "{arguments:?}");
    }
    let help = sandbox.run(["--help"]).expect(0);
    assert!(help.text().contains("Exit status"), "{}", help.text());
    sandbox.run(["--version"]).expect(0);
}

#[test]
fn completions_and_manual_pages_are_generated() {
    let sandbox = Sandbox::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = sandbox.run(["completions", shell]).expect(0);
        assert!(script.text().contains("doctor"), "{shell}");
        // The hidden command must not appear. `--peer-device` is an option of `demo`.
        let rest = script.text().replace("peer-device", "");
        assert!(!rest.contains("peer"), "{shell}");
    }
    let page = sandbox.run(["man"]).expect(0);
    assert!(page.text().contains(".TH crosshandle 1"), "{}", page.text());
    let pages = sandbox.path("man");
    sandbox.run(["man", text(&pages)]).expect(0);
    for name in [
        "crosshandle.1",
        "crosshandle-demo.1",
        "crosshandle-event-wait.1",
    ] {
        let page = fs::read_to_string(pages.join(name)).expect(name);
        assert!(page.contains(".TH"), "{name}");
    }
    assert!(!pages.join("crosshandle-peer.1").exists());
}
