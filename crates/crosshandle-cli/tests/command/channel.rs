//! `channel new`, `send`, `receive` and `watch` between real processes.

use crate::common::{Running, Sandbox, contents};
use rustix::process::Signal;
use std::fs::File;

/// Starts `channel send` with a file as its input.
fn send(sandbox: &Sandbox, arguments: &[&str], input: &[u8]) -> Running {
    let file = sandbox.file("input", input);
    let command = sandbox.command([&["channel", "send"], arguments].concat());
    Running::start_with(command, File::open(file).expect("the input"))
}

#[test]
fn lines_go_from_one_process_to_another() {
    let sandbox = Sandbox::new();
    let (holder, handle) = sandbox.hold(["channel", "new", "--slot", "64", "--depth", "2"]);
    let mut receiver = sandbox.start(["-v", "channel", "receive", &handle]);
    assert!(receiver.stderr.line().contains("receiving"));
    let second = sandbox.run(["channel", "receive", &handle]).expect(1);
    assert!(
        second.stderr.contains("create it for more"),
        "{}",
        second.stderr
    );
    send(&sandbox, &[&handle], b"one\ntwo\n\nfour")
        .finish()
        .expect(0);
    let received = receiver.finish().expect(0);
    assert_eq!(received.text(), "one\ntwo\n\nfour\n");
    let watched = sandbox.run([
        "channel",
        "watch",
        &handle,
        "--count",
        "1",
        "--interval",
        "10ms",
    ]);
    let watched = watched.expect(0);
    let line = watched.text().lines().nth(1).expect("a line");
    let words: Vec<_> = line.split_whitespace().collect();
    assert_eq!(words, ["4", "0", "0", "0"]);

    let long = send(&sandbox, &[&handle], &[b'x'; 65]).finish().expect(1);
    assert!(
        long.stderr.contains("more bytes than a slot"),
        "{}",
        long.stderr
    );
    let full = send(&sandbox, &[&handle, "--timeout", "10ms"], b"1\n2\n3\n");
    let full = full.finish().expect(3);
    assert!(full.stderr.contains("sending item 2"), "{}", full.stderr);
    let late = [
        "channel",
        "receive",
        &handle,
        "--count",
        "3",
        "--timeout",
        "1s",
    ];
    let late = sandbox.run(late).expect(1);
    assert_eq!(late.text(), "1\n2\n");
    assert!(late.stderr.contains("receiving item 2"), "{}", late.stderr);
    holder.signal(Signal::INT);
    holder.finish().expect(0);
    sandbox.run(["channel", "receive", &handle]).expect(4);
}

#[test]
fn a_killed_sender_is_reported_after_its_items() {
    let sandbox = Sandbox::new();
    let (_holder, handle) = sandbox.hold(["channel", "new", "--slot", "100000", "--depth", "1"]);
    let whole = contents(100_000);
    send(&sandbox, &["--whole", &handle], &whole)
        .finish()
        .expect(0);
    let received = sandbox.run(["channel", "receive", &handle, "--raw", "--count", "1"]);
    assert_eq!(received.expect(0).stdout, whole);
    let receiver_only = [
        "channel",
        "new",
        "--slot",
        "8",
        "--consumer-handle",
        "--broadcast",
        "--drop-oldest",
    ];
    let (_other, consumer_handle) = sandbox.hold(receiver_only);
    let refused = send(&sandbox, &[&consumer_handle], b"1\n")
        .finish()
        .expect(1);
    assert!(
        refused.stderr.contains("reading only"),
        "{}",
        refused.stderr
    );
    // The sender waits for room with its third line.
    let (_third, handle) = sandbox.hold(["channel", "new", "--slot", "8", "--depth", "1"]);
    let sender = send(&sandbox, &[&handle], b"one\ntwo\nthree\n");
    let received = sandbox.run(["channel", "receive", &handle, "--count", "1"]);
    assert_eq!(received.expect(0).text(), "one\n");
    sender.signal(Signal::KILL);
    let last = sandbox.run(["channel", "receive", &handle, "--count", "2"]);
    let last = last.expect(4);
    assert!(
        last.text().is_empty() || last.text() == "two\n",
        "{}",
        last.text()
    );
}
