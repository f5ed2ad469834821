//! What becomes of lists that are busy, and of commands that they have only a part of.

use crate::roles::{LONG, await_the_end, harness, report};
use crosshandle::{Command, Error};
use crosshandle_conformance::PeerOptions;
use std::time::{Duration, Instant};

/// Everything takes 200 ms here, so that the list has not gone on long after the signal came.
pub(crate) fn a_busy_list_is_waited_for() {
    let harness = harness();
    let slow = PeerOptions::new().variable("CROSSHANDLE_SIM_COMMAND_DELAY_US", "100000");
    let peer = harness.peer_with(slow).unwrap();
    peer.ask("event e").unwrap();
    peer.ask("queue q").unwrap();
    let handle = peer.ask("event-handle e").unwrap()[0].parse().unwrap();
    let context = harness.context().unwrap();
    let queue = context.create_queue().unwrap();
    let event = context.open_event(&handle).unwrap();
    // Makes the list, and both sides' events.
    queue.submit(Command::barrier().signal(&event)).unwrap();
    event.wait_timeout(LONG).unwrap();
    for _ in 0..2 {
        peer.ask("submit q barrier signal=e").unwrap();
        queue.submit(Command::barrier().after(&event)).unwrap();
        queue.finish_timeout(LONG).unwrap();
    }
    drop((event, queue, context));
    await_the_end();
    let report = report();
    assert!(
        report.contains("calls zeCommandListAppendWaitOnEvents"),
        "{report}"
    );
    assert!(
        report.contains("calls zeCommandListCreateImmediate 1\n"),
        "{report}"
    );
}

/// The first row of a fill is in the list, and is waited for, when its copies are refused.
pub(crate) fn a_refused_part_fails_its_command_later() {
    let harness = harness();
    let context = harness.context().unwrap();
    let queue = context.create_queue().unwrap();
    let memory = context.allocate(3 << 20).unwrap();
    let fill = Command::fill_2d(memory.all(), 8192, 4096, 16, &[1]).unwrap();
    queue.submit(fill).unwrap();
    let refused = queue.finish_timeout(LONG);
    assert!(matches!(refused, Err(Error::Driver { .. })), "{refused:?}");
    // The driver finds fault with memory that is freed while the fill is still to come.
    drop((memory, queue, context));
    await_the_end();
}

/// What nobody will see done is kept.
pub(crate) fn a_command_without_an_end_keeps_its_memory() {
    let harness = harness();
    let context = harness.context().unwrap();
    let queue = context.create_queue().unwrap();
    let memory = context.allocate(3 << 20).unwrap();
    // By way of memory in between.
    let (to, from) = (memory.range(1024, 1 << 20), memory.range(0, 1 << 20));
    let copy = Command::copy(to.unwrap(), from.unwrap()).unwrap();
    queue.submit(copy).unwrap();
    let refused = queue.finish_timeout(LONG);
    assert!(refused.is_err(), "{refused:?}");
    assert!(queue.is_idle());
    drop((memory, queue, context, harness));
    // The process ends with what the list may still use.
    std::process::exit(0);
}

/// It would say of the next command that it is done.
pub(crate) fn an_event_that_cannot_be_reset_is_not_used_again() {
    let harness = harness();
    let context = harness.context().unwrap();
    let queue = context.create_queue().unwrap();
    let memory = context.allocate(4096).unwrap();
    for _ in 0..3 {
        let start = Instant::now();
        queue
            .submit(Command::fill(memory.all(), &[1]).unwrap())
            .unwrap();
        queue.finish_timeout(LONG).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(30));
    }
    drop((memory, queue, context));
    await_the_end();
}
