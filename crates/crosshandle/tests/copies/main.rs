//! Tests several copies of crosshandle in one process. Each copy must behave like a separate
//! process.
//!
//! A peer process has the copy in this program as number 0, and loads further copies from shared
//! libraries.

mod actor;
#[allow(dead_code, reason = "each program uses a part of it")]
#[path = "../common/mod.rs"]
mod common;
mod copy;
mod filter;
mod peer;

use common::{DEADLINE, Directory};
use crosshandle::{Context, Event};
use peer::{Peer, eventually, serve};
use std::fs;
use std::time::{Duration, Instant};

/// A time that is long enough for several liveness checks, in milliseconds.
const WHILE: u32 = 300;
/// Number of descriptors of a liveness thread without locks: three that replace the standard
/// streams, and the socket to the rest of the process.
const OWN: usize = 4;
const LONG: u32 = DEADLINE.as_millis() as u32;

/// Creates an event, and returns it with its handle as text.
fn event(context: &Context) -> (Event, String) {
    let event = context.create_event().expect("an event");
    let handle = event.handle().expect("a handle").to_string();
    (event, handle)
}

/// Waits for an event for at most [`WHILE`], and returns the outcome as a word.
fn wait(event: &Event) -> String {
    let result = event.wait_timeout(Duration::from_millis(WHILE.into()));
    actor::answer(result.map(|()| "ok".into()))
}

/// Waits for an event until [`DEADLINE`], and returns the outcome as a word.
fn wait_long(event: &Event) -> String {
    actor::answer(event.wait_timeout(DEADLINE).map(|()| "ok".into()))
}

#[test]
fn copies_open_what_others_in_their_process_export() {
    const TEST: &str = "copies_open_what_others_in_their_process_export";
    if serve() {
        return;
    }
    let directory = Directory::new();
    let mut peer = Peer::start(TEST, &directory);
    for (exporter, opener) in [(0, 1), (1, 0), (1, 2)] {
        let memory = peer.ask(exporter, "make-memory m 4096");
        peer.tell(exporter, "write m before");
        peer.tell(opener, &format!("open-memory m {memory}"));
        assert_eq!(peer.ask(opener, "read m 6"), "before");
        peer.tell(opener, "write m after!");
        assert_eq!(peer.ask(exporter, "read m 6"), "after!");
        // Freed memory stays valid for the importer.
        peer.tell(exporter, "close m");
        assert_eq!(peer.ask(opener, "read m 6"), "after!");
        peer.tell(opener, "close m");

        let event = peer.ask(exporter, "make-event e");
        peer.tell(opener, &format!("open-event e {event}"));
        assert_eq!(peer.ask(exporter, "signal e"), "1");
        peer.tell(opener, &format!("wait e {LONG}"));
        for (signaller, waiter) in [(exporter, opener), (opener, exporter)] {
            peer.tell(signaller, "pend e");
            assert_eq!(peer.ask(waiter, &format!("wait e {WHILE}")), "late");
            assert_eq!(peer.ask(waiter, &format!("wait-next e {WHILE}")), "late");
            peer.tell(signaller, "finish");
            peer.tell(waiter, &format!("wait e {LONG}"));
        }
        peer.tell(exporter, "leave");
        assert_eq!(peer.ask(opener, &format!("wait-next e {LONG}")), "dead");
        assert_eq!(peer.ask(opener, &format!("open-event f {event}")), "gone");
        peer.tell(opener, "leave");
    }
}

#[test]
fn an_exporter_lives_on_when_its_importers_in_the_same_process_leave() {
    const TEST: &str = "an_exporter_lives_on_when_its_importers_in_the_same_process_leave";
    if serve() {
        return;
    }
    let directory = Directory::new();
    let mut peer = Peer::start(TEST, &directory);
    let mut other = Peer::start(TEST, &directory);
    for exporter in [0, 1] {
        let handle = peer.ask(exporter, "make-event e");
        other.tell(0, &format!("open-event e {handle}"));
        peer.tell(1 - exporter, &format!("open-event e {handle}"));
        peer.tell(2, &format!("open-event e {handle}"));
        peer.tell(exporter, "pend e");
        for leaver in [1 - exporter, 2] {
            peer.tell(leaver, "leave");
            // The copy that checks liveness first must not mistake a leaver for a dead process.
            assert_eq!(other.ask(0, &format!("wait e {WHILE}")), "late");
            assert_eq!(other.ask(0, &format!("wait-next e {WHILE}")), "late");
        }
        peer.tell(exporter, "finish");
        other.tell(0, &format!("wait e {LONG}"));
        peer.tell(exporter, "leave");
        assert_eq!(other.ask(0, &format!("wait-next e {LONG}")), "dead");
    }
}

#[test]
fn copies_at_one_exporter_live_and_leave_by_themselves() {
    const TEST: &str = "copies_at_one_exporter_live_and_leave_by_themselves";
    if serve() {
        return;
    }
    let directory = Directory::new();
    let context = directory.context();
    let mut peer = Peer::start(TEST, &directory);
    let mut other = Peer::start(TEST, &directory);
    for (first, second) in [(0, 1), (1, 0), (1, 2)] {
        let (event, handle) = event(&context);
        let open = format!("open-event e {handle}");
        other.tell(0, &open);
        peer.tell(first, &open);
        peer.tell(second, &open);
        // The copies see each other's signals, and see each other as alive.
        for (signaller, waiter) in [(first, second), (second, first)] {
            peer.tell(signaller, "pend e");
            assert_eq!(peer.ask(waiter, &format!("wait e {WHILE}")), "late");
            peer.tell(signaller, "finish");
            peer.tell(waiter, &format!("wait e {LONG}"));
        }
        // One copy leaves, returns and leaves again while the other copy's signal is pending.
        peer.tell(second, "pend e");
        for _ in 0..2 {
            peer.tell(first, "leave");
            assert_eq!(wait(&event), "late");
            assert_eq!(other.ask(0, &format!("wait e {WHILE}")), "late");
            peer.tell(first, &open);
            assert_eq!(peer.ask(first, &format!("wait e {WHILE}")), "late");
        }
        peer.tell(first, "leave");
        peer.tell(second, "finish");
        other.tell(0, &format!("wait e {LONG}"));
        assert_eq!(wait_long(&event), "ok");
        peer.tell(second, "leave");
        other.tell(0, "leave");
    }
}

#[test]
fn the_death_of_a_process_is_that_of_all_its_copies() {
    const TEST: &str = "the_death_of_a_process_is_that_of_all_its_copies";
    if serve() {
        return;
    }
    let directory = Directory::new();
    let context = directory.context();
    let mut other = Peer::start(TEST, &directory);
    let mut peer = Peer::start(TEST, &directory);
    let events = [event(&context), event(&context)];
    for (copy, (_, handle)) in events.iter().enumerate() {
        peer.tell(copy, &format!("open-event e {handle}"));
        peer.tell(copy, "pend e");
        other.tell(0, &format!("open-event e{copy} {handle}"));
    }
    let exported = peer.ask(1, "make-event x");
    other.tell(0, &format!("open-event x {exported}"));
    // The forked child keeps all descriptors open, so the connections do not hang up. It must not
    // make its parent look alive.
    let forked = peer.fork();
    assert_eq!(wait(&events[0].0), "late");
    peer.kill();
    assert_eq!(other.ask(0, &format!("wait e0 {LONG}")), "dead");
    assert_eq!(wait_long(&events[1].0), "dead");
    assert_eq!(other.ask(0, &format!("wait-next x {LONG}")), "dead");
    drop(forked);
}

#[test]
fn a_forked_child_ends_without_a_trace() {
    const TEST: &str = "a_forked_child_ends_without_a_trace";
    if serve() {
        return;
    }
    let directory = Directory::new();
    let context = directory.context();
    let mut peer = Peer::start(TEST, &directory);
    let (event, handle) = event(&context);
    for copy in [0, 1] {
        peer.tell(copy, &format!("open-event e {handle}"));
    }
    peer.tell(1, "pend e");
    drop(peer.fork());
    assert_eq!(wait(&event), "late");
    peer.tell(1, "finish");
    assert_eq!(wait_long(&event), "ok");
}

#[test]
fn who_leaves_is_gone_although_a_forked_child_has_the_connection() {
    const TEST: &str = "who_leaves_is_gone_although_a_forked_child_has_the_connection";
    if serve() {
        return;
    }
    let directory = Directory::new();
    let mut exporter = Peer::start(TEST, &directory);
    let mut peer = Peer::start(TEST, &directory);
    let handle = exporter.ask(0, "make-event e");
    let before = exporter.descriptors();
    peer.tell(1, &format!("open-event e {handle}"));
    assert!(exporter.descriptors() > before);
    let forked = peer.fork();
    peer.tell(1, "leave");
    eventually("the exporter closes its descriptors", || {
        exporter.descriptors() <= before
    });
    drop(forked);
}

#[test]
fn liveness_threads_keep_to_themselves() {
    const TEST: &str = "liveness_threads_keep_to_themselves";
    if serve() {
        return;
    }
    let directory = Directory::new();
    let context = directory.context();
    let mut peer = Peer::start(TEST, &directory);
    let (_event, handle) = event(&context);
    for copy in [0, 1] {
        peer.tell(copy, &format!("open-event e {handle}"));
    }
    // The liveness threads keep no other descriptor of the process open. Otherwise a pipe would
    // never hang up.
    assert_eq!(peer.locked(), 2 * (OWN + 1));
    peer.ask(1, "make-event x");
    peer.ask(1, "make-event y");
    // One lock is for the arena of the exporting copy, and one for the socket directory.
    assert_eq!(peer.locked(), 2 * (OWN + 1) + 2);
    peer.tell(1, "leave");
    peer.await_locked(2 * OWN + 1);
    // The program's signal handlers must never run on a liveness thread, which has other
    // descriptors.
    for thread in peer.liveness_threads() {
        let status = fs::read_to_string(thread.join("status")).expect("procfs");
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
        let blocked = u64::from_str_radix(blocked.expect("a set").trim(), 16).expect("a number");
        for signal in [libc::SIGTERM, libc::SIGUSR1, libc::SIGCHLD, libc::SIGALRM] {
            assert_ne!(blocked & 1 << (signal - 1), 0, "signal {signal}");
        }
    }
}

#[test]
fn copies_come_and_go_at_the_same_time() {
    const TEST: &str = "copies_come_and_go_at_the_same_time";
    const ROUNDS: u32 = 1_000;
    if serve() {
        return;
    }
    let directory = Directory::new();
    let context = directory.context();
    let mut peer = Peer::start(TEST, &directory);
    let (churned, handle) = event(&context);
    let (event, pending) = event(&context);
    peer.tell(2, &format!("open-event e {pending}"));
    peer.tell(2, "pend e");
    // These rounds create everything that is created only once.
    for copy in [0, 1] {
        peer.tell(copy, &format!("churn {handle} 1"));
        peer.tell(copy, "join");
    }
    // The remaining lock belongs to the third copy.
    let settled = 3 * OWN + 1;
    peer.await_locked(settled);
    for copy in [0, 1] {
        peer.tell(copy, &format!("churn {handle} {ROUNDS}"));
    }
    // The third copy stays alive during all rounds.
    let end = Instant::now() + DEADLINE;
    while churned.status().submitted < u64::from(2 * ROUNDS + 2) {
        assert_eq!(wait(&event), "late");
        assert!(Instant::now() < end, "they don't come to an end");
    }
    for copy in [0, 1] {
        peer.tell(copy, "join");
    }
    assert_eq!(wait(&event), "late");
    peer.await_locked(settled);
    peer.tell(2, "finish");
    assert_eq!(wait_long(&event), "ok");
}

#[test]
fn without_liveness_threads_copies_refuse_each_other() {
    const TEST: &str = "without_liveness_threads_copies_refuse_each_other";
    if serve() {
        return;
    }
    let directory = Directory::new();
    let context = directory.context();
    let mut peer = Peer::start_filtered(TEST, &directory);
    let memory = peer.ask(0, "make-memory m 4096");
    let refused = peer.ask(1, &format!("open-memory m {memory}"));
    assert_eq!(refused, "unsupported");
    // Sharing with other processes still works.
    let mut other = Peer::start(TEST, &directory);
    other.tell(0, &format!("open-memory m {memory}"));
    other.tell(0, "write m hello");
    assert_eq!(peer.ask(0, "read m 5"), "hello");
    let (event, handle) = event(&context);
    peer.tell(0, &format!("open-event e {handle}"));
    peer.tell(0, "pend e");
    assert_eq!(wait(&event), "late");
    let forked = peer.fork();
    peer.kill();
    assert_eq!(wait_long(&event), "dead");
    drop(forked);
}
