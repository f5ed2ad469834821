//! The demo: both processes verify the data. If a process is killed at any point, its partner ends
//! soon.

use crate::common::{Running, Sandbox, wait_for_end};
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, waitpid,
};

const POINTS: [&str; 6] = [
    "started",
    "shared",
    "exchange",
    "latency",
    "bandwidth",
    "done",
];

/// Arguments of a quick demo. Its timeout is long, so a process can end early only if it notices a
/// death.
const QUICK: [&str; 7] = [
    "demo",
    "--size",
    "64KiB",
    "--rounds",
    "2",
    "--timeout",
    "10m",
];

#[test]
fn it_verifies_what_it_prints() {
    let sandbox = Sandbox::new();
    let demo = sandbox
        .run(["demo", "--size", "1MiB", "--rounds", "3"])
        .expect(0);
    let last = demo.text().lines().last().expect("a line");
    assert!(last.starts_with("verified: 4 MiB and "), "{}", demo.text());
    assert!(demo.text().contains("round trip"), "{}", demo.text());
    assert_eq!(demo.stderr, "");
    assert_eq!(sandbox.listed_sockets(), Vec::<String>::new());
}

#[test]
fn its_json_has_the_same() {
    let sandbox = Sandbox::new();
    let demo = sandbox.run([&QUICK[..], &["--json"]].concat()).expect(0);
    let report = demo.json();
    assert_eq!(report["verified"], true);
    assert_eq!(report["exchange"]["size"], 64 << 10);
    // Each side verifies half of the bytes in each round, and one side finally verifies all of
    // them.
    assert_eq!(report["exchange"]["bytes_verified"], 3 * (64 << 10));
    let trip = &report["nanoseconds"]["round_trip"];
    assert!(trip["p50"].as_f64() > Some(0.0), "{report}");
    assert!(trip["p99"].as_f64() >= trip["p50"].as_f64(), "{report}");
    assert!(report["read_bandwidth"]["bytes_per_second"].as_f64() > Some(0.0));
}

#[test]
fn its_page_has_the_same() {
    let sandbox = Sandbox::new();
    let old = sandbox.file("report.html", b"an old file");
    let arguments = ["--html", old.to_str().expect("UTF-8")];
    let demo = sandbox.run([&QUICK[..], &arguments].concat()).expect(0);
    let page = std::fs::read_to_string(&old).expect("a page");
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
    let (printed, last) = demo.text().trim_end().rsplit_once('\n').expect("lines");
    assert!(page.contains(last), "{last}: {page}");
    for row in printed.lines().filter(|line| line.contains(" ns")) {
        let (what, rest) = row.split_once("  ").expect("columns");
        let value = rest.trim_start().split("  ").next().expect("a value");
        let cells = format!("<td>{what}<td class=n>{value}<");
        assert!(page.contains(&cells), "{cells}: {page}");
    }
    // A directory cannot be replaced by a file.
    let refused = [&QUICK[..], &["--html", "/"]].concat();
    let refused = sandbox.run(refused).expect(1);
    assert!(refused.stderr.contains("writing /"), "{}", refused.stderr);
}

#[test]
fn odd_sizes_are_shared_too() {
    let sandbox = Sandbox::new();
    sandbox
        .run(["demo", "--size", "1000003", "--rounds", "1"])
        .expect(0);
}

#[test]
fn killing_the_second_process_ends_the_first() {
    for point in POINTS {
        let sandbox = Sandbox::new();
        let (first, second) = stopped(&sandbox, &format!("second:{point}"), &QUICK);
        assert_ne!(first.pid(), second);
        kill_process(second, Signal::KILL).expect("it stands still");
        let ended = first.finish().expect(4);
        assert!(
            ended.stderr.contains("signal 9"),
            "{point}: {}",
            ended.stderr
        );
        assert!(ended.stdout.is_empty(), "{point}");
    }
}

#[test]
fn killing_the_first_process_ends_the_second() {
    // When the first process dies, the second becomes a child of this process, which can reap it.
    set_child_subreaper(Some(getpid())).expect("this process adopts");
    for point in POINTS {
        let sandbox = Sandbox::new();
        let (first, second) = stopped(&sandbox, &format!("first:{point}"), &QUICK);
        first.signal(Signal::KILL);
        wait_for_end(second);
        drop(first);
        let (_, status) = waitpid(Some(second), WaitOptions::empty())
            .expect("adopted")
            .expect("it has ended");
        assert_eq!(status.exit_status(), Some(4), "{point}: {status:?}");
    }
}

#[test]
fn a_process_that_stands_still_is_not_waited_for_for_ever() {
    // The timeout is long enough for the steps before the process stops, even on a busy machine.
    let arguments = ["demo", "--size", "64KiB", "--timeout", "1s"];
    for point in POINTS {
        let sandbox = Sandbox::new();
        let (first, second) = stopped(&sandbox, &format!("second:{point}"), &arguments);
        first.finish().expect(3);
        let gone = kill_process(second, Signal::KILL);
        assert!(gone.is_err(), "{point}: the second process is still there");
    }
}

/// Starts a demo and waits until one process stops. Returns the first process and the ID of the
/// second.
fn stopped(sandbox: &Sandbox, at: &str, arguments: &[&str]) -> (Running, Pid) {
    let mut command = sandbox.command(arguments);
    command.env("CROSSHANDLE_DEMO_STOP", at);
    let mut first = Running::start(command);
    let said = first.stderr.line();
    let pids = said
        .strip_prefix(&format!("stopped at {at}: "))
        .and_then(|pids| pids.split_once(" of "))
        .unwrap_or_else(|| panic!("{said}"));
    let pid = |text: &str| {
        let number: i32 = text.parse().expect("a process id");
        Pid::from_raw(number).expect("a process id")
    };
    let (stopped, other) = (pid(pids.0), pid(pids.1));
    if at.starts_with("first") {
        assert_eq!(stopped, first.pid());
        (first, other)
    } else {
        assert_eq!(other, first.pid());
        (first, stopped)
    }
}
