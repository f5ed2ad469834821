//! `event new`, `signal`, `wait` and `status` between real processes.

use crate::common::Sandbox;
use rustix::process::Signal;

#[test]
fn an_event_is_signalled_and_waited_on() {
    let sandbox = Sandbox::new();
    let (holder, handle) = sandbox.hold(["event", "new"]);
    let event = |arguments: &[&str]| sandbox.run([&["event"], arguments].concat());
    let status = || event(&["status", &handle, "--json"]).expect(0).json();

    let late = event(&["wait", &handle, "--timeout", "50ms"]).expect(3);
    assert!(late.stderr.contains("signal 1"), "{}", late.stderr);
    assert_eq!(status()["submitted"], 0);
    assert_eq!(status()["state"], "none");
    let table = event(&["status", &handle]).expect(0);
    assert!(table.text().contains("none"), "{}", table.text());
    let late = event(&["wait", &handle, "--value", "1", "--timeout", "50ms"]).expect(3);
    assert!(late.stderr.contains("signal 1"), "{}", late.stderr);
    event(&["wait", &handle, "--next", "--timeout", "50ms"]).expect(3);

    assert_eq!(event(&["signal", &handle]).expect(0).text(), "1\n");
    event(&["wait", &handle]).expect(0);
    event(&["wait", &handle, "--value", "1"]).expect(0);
    let signalled = event(&["signal", &handle, "--value", "5"]).expect(0);
    assert_eq!(signalled.text(), "5\n");
    event(&["wait", &handle, "--value", "4", "--timeout", "1s"]).expect(0);
    assert_eq!(status()["submitted"], 5);
    assert_eq!(status()["completed"], 5);
    assert_eq!(status()["state"], "complete");
    let table = event(&["status", &handle]).expect(0);
    assert!(table.text().contains("complete"), "{}", table.text());

    let refused = event(&["signal", &handle, "--value", "3"]).expect(1);
    assert!(refused.stderr.contains('5'), "{}", refused.stderr);
    assert_eq!(status()["submitted"], 5);

    holder.signal(Signal::INT);
    holder.finish().expect(0);
    assert_eq!(sandbox.listed_sockets(), Vec::<String>::new());
    event(&["signal", &handle]).expect(4);
    event(&["wait", &handle]).expect(4);
}

#[test]
fn waiters_in_several_processes_are_released_at_once() {
    let sandbox = Sandbox::new();
    let (_holder, handle) = sandbox.hold(["event", "new"]);
    let mut waiters: Vec<_> = (0..3)
        .map(|_| sandbox.start(["-v", "event", "wait", &handle, "--next"]))
        .chain([sandbox.start(["-v", "event", "wait", &handle])])
        .collect();
    for waiter in &mut waiters {
        assert!(waiter.stderr.line().contains("waiting for signal 1"));
    }
    sandbox.run(["event", "signal", &handle]).expect(0);
    for waiter in waiters {
        waiter.finish().expect(0);
    }
}

#[test]
fn waiters_learn_that_the_holder_is_gone() {
    for (signal, code) in [(Signal::KILL, None), (Signal::TERM, Some(0))] {
        let sandbox = Sandbox::new();
        let (holder, handle) = sandbox.hold(["event", "new"]);
        let arguments = [
            &["-v", "event", "wait", &handle, "--value", "7"][..],
            &["-v", "event", "wait", &handle, "--next", "--timeout", "10m"],
        ];
        let mut waiters = arguments.map(|arguments| sandbox.start(arguments));
        for waiter in &mut waiters {
            assert!(waiter.stderr.line().contains("waiting for signal"));
        }
        holder.signal(signal);
        for waiter in waiters {
            let ended = waiter.finish().expect(4);
            assert!(ended.stderr.contains("has ended"), "{}", ended.stderr);
        }
        if let Some(code) = code {
            holder.finish().expect(code);
        }
    }
}

#[test]
fn handles_of_other_things_are_refused() {
    let sandbox = Sandbox::new();
    let file = sandbox.file("data", b"bytes");
    let (_sharer, memory) = sandbox.hold(["share", crate::common::text(&file)]);
    let (_holder, event) = sandbox.hold(["event", "new"]);
    for arguments in [
        ["event", "wait", &memory],
        ["event", "signal", &memory],
        ["event", "status", &memory],
    ] {
        let refused = sandbox.run(arguments).expect(1);
        assert!(refused.stderr.contains("\"memory\""), "{}", refused.stderr);
    }
    let refused = sandbox.run(["read", &event]).expect(1);
    assert!(refused.stderr.contains("\"event\""), "{}", refused.stderr);
}
