//! Roles with busy command lists, and with commands that are appended only in part.

use crate::roles::{LONG, await_the_end, calls, harness, report, slow_peer};
use crosshandle::{AllocationOptions, Command, Error, MemoryKind};
use crosshandle_conformance::PeerOptions;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// Every command takes 200 ms here, so the list is still busy when the signal arrives.
pub(crate) fn a_busy_list_is_waited_for() {
    let harness = harness();
    let (peer, handle) = slow_peer(&harness, Duration::from_millis(100));
    let context = harness.context().unwrap();
    let queue = context.create_queue().unwrap();
    let event = context.open_event(&handle).unwrap();
    // The first command waits on the host, and the driver's event is fetched in the meantime.
    for _ in 0..3 {
        peer.ask("submit q fill m 1 signal=e").unwrap();
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

/// The driver refuses the copies of a fill's first row, which is already in the list. The queue
/// must wait for that row.
pub(crate) fn a_refused_part_fails_its_command_later() {
    let harness = harness();
    let context = harness.context().unwrap();
    let queue = context.create_queue().unwrap();
    let memory = context.allocate(3 << 20).unwrap();
    // With these numbers of rows, the refused part would signal a fence of its own.
    for rows in [16, 32] {
        let fill = Command::fill_2d(memory.all(), 8192, 4096, rows, &[1]).unwrap();
        queue.submit(fill).unwrap();
        let refused = queue.finish_timeout(LONG);
        assert!(matches!(refused, Err(Error::Driver { .. })), "{refused:?}");
    }
    // The driver reports memory that is freed before the fill has run.
    drop((memory, queue, context));
    await_the_end();
}

/// A command whose end can never be observed keeps its memory.
pub(crate) fn a_command_without_an_end_keeps_its_memory() {
    let harness = harness();
    let context = harness.context().unwrap();
    let queue = context.create_queue().unwrap();
    let memory = context.allocate(3 << 20).unwrap();
    // The first row is in the list, and its copies are not.
    let fill = Command::fill_2d(memory.all(), 8192, 4096, 16, &[1]).unwrap();
    queue.submit(fill).unwrap();
    let refused = queue.finish_timeout(LONG);
    assert!(refused.is_err(), "{refused:?}");
    assert!(queue.is_idle());
    drop((memory, queue, context, harness));
    // The process ends without freeing what the list may still use.
    std::process::exit(0);
}

/// A list that still runs although a call reports a lost device also keeps its memory.
pub(crate) fn a_list_that_goes_on_is_not_lost() {
    let harness = harness();
    let context = harness.context().unwrap();
    let queue = context.create_queue().unwrap();
    let memory = context.allocate(4096).unwrap();
    let fill = Command::fill(memory.all(), &[1]).unwrap();
    queue.submit(fill).unwrap();
    let refused = queue.finish_timeout(LONG);
    assert!(matches!(refused, Err(Error::Driver { .. })), "{refused:?}");
    assert!(queue.is_idle());
    drop((memory, queue, context, harness));
    // The process ends without freeing what the list may still use.
    std::process::exit(0);
}

/// An event that cannot be reset must not be reused, because it would report the next command as
/// complete at once.
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

/// A stopped process does not reply, and so sends no driver's event to other processes.
pub(crate) fn submitting_waits_for_no_other_process() {
    let harness = harness();
    let (peer, handle) = slow_peer(&harness, Duration::from_millis(200));
    let context = harness.context().unwrap();
    let queue = context.create_queue().unwrap();
    let event = context.open_event(&handle).unwrap();
    peer.ask("submit q fill m 1 signal=e").unwrap();
    let peer_is = |signal: &str| {
        let mut kill = std::process::Command::new("kill");
        kill.args([signal, &peer.pid().to_string()]);
        assert!(kill.status().unwrap().success());
    };
    peer_is("-STOP");
    let start = Instant::now();
    queue.submit(Command::barrier().after(&event)).unwrap();
    queue.submit(Command::barrier().signal(&event)).unwrap();
    let took = start.elapsed();
    peer_is("-CONT");
    assert!(took < Duration::from_secs(1), "{took:?}");
    queue.finish_timeout(LONG).unwrap();
    drop((event, queue, context));
    await_the_end();
}

pub(crate) fn a_driver_that_fetches_fetches_from_the_exporter_alone() {
    let harness = harness();
    let slow = PeerOptions::new().variable("CROSSHANDLE_SIM_COMMAND_DELAY_US", "50000");
    let peer = harness.peer_with(slow).unwrap();
    let context = harness.context().unwrap();
    let (event, queue) = (
        context.create_event().unwrap(),
        context.create_queue().unwrap(),
    );
    let handle = event.handle().unwrap();
    peer.ask(format!("open-event e {handle}")).unwrap();
    peer.ask("queue q").unwrap();
    peer.ask("allocate m 4096").unwrap();
    for number in 1..=3 {
        peer.ask("submit q fill m 1 signal=e").unwrap();
        queue.submit(Command::barrier().after(&event)).unwrap();
        queue.finish_timeout(LONG).unwrap();
        assert_eq!(event.submitted(), number);
    }
    drop((event, queue, context));
    await_the_end();
    for function in [
        "zeCommandListAppendWaitOnEvents",
        "zeCommandListAppendBarrier",
    ] {
        assert_eq!(calls(function), 0, "{}", report());
    }
}

/// The commands of one thread stay in order while another thread requests the list.
pub(crate) fn a_list_may_be_asked_for_while_others_submit() {
    const LAST: u8 = 250;
    let harness = harness();
    let context = harness.context().unwrap();
    let options = AllocationOptions::new(4096).kind(MemoryKind::Host);
    let memory = context.allocate_with(options).unwrap();
    for first in (0..LAST).step_by(10) {
        let queue = context.create_queue().unwrap();
        let submitted = AtomicU8::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while submitted.load(Ordering::Relaxed) < first {
                    std::hint::spin_loop();
                }
                queue.native().unwrap();
            });
            for number in 1..=LAST {
                let fill = Command::fill(memory.all(), &[number]).unwrap();
                queue.submit(fill).unwrap();
                submitted.store(number, Ordering::Relaxed);
            }
        });
        queue.finish_timeout(LONG).unwrap();
        let mut found = [0; 4096];
        memory.bytes().unwrap().read(0, &mut found).unwrap();
        assert!(found.iter().all(|byte| *byte == LAST), "{found:?}");
    }
    drop((memory, context));
    await_the_end();
}

/// Each command takes one driver call. A wait that is already over takes none.
pub(crate) fn commands_take_a_call_each() {
    const COUNT: u64 = 1000;
    let harness = harness();
    let (context, queue) = {
        let context = harness.context().unwrap();
        let queue = context.create_queue().unwrap();
        (context, queue)
    };
    let memory = context.allocate(64).unwrap();
    let (shared, private) = (
        context.create_event().unwrap(),
        context.create_event().unwrap(),
    );
    shared.handle().unwrap();
    for _ in 0..COUNT {
        queue.signal(&shared).unwrap();
        queue.signal(&private).unwrap();
        assert!(shared.try_wait().unwrap() && private.try_wait().unwrap());
    }
    for _ in 0..COUNT {
        let fill = || Command::fill(memory.all(), &[1]).unwrap();
        queue.submit(fill()).unwrap();
        queue.submit(fill().signal(&shared)).unwrap();
        queue.submit(fill().signal(&private)).unwrap();
    }
    queue.finish_timeout(LONG).unwrap();
    drop((memory, shared, private, queue, context));
    await_the_end();
    assert_eq!(calls("zeCommandListAppendMemoryFill"), 3 * COUNT);
    // The fences of the list's thread are fewer than the commands.
    let signals = calls("zeCommandListAppendSignalEvent");
    assert!(signals < COUNT, "{signals}: {}", report());
}

/// A list waits on the device for another list, which is abandoned when a process dies. The waiting
/// queue learns of that, whatever the number of revoked signals.
pub(crate) fn whoever_waits_for_a_list_that_is_given_up_goes_on() {
    let harness = harness();
    let (peer, handle) = slow_peer(&harness, Duration::from_secs(30));
    let context = harness.context().unwrap();
    let theirs = context.open_event(&handle).unwrap();
    let own = context.create_event().unwrap();
    own.handle().unwrap();
    let [queue, other] = [(); 2].map(|()| context.create_queue().unwrap());
    let memory = context.allocate(4096).unwrap();
    // The first waits are on the host, and request the driver's events.
    for (queue, event) in [(&queue, &theirs), (&other, &own)] {
        queue
            .submit(Command::barrier().after_value(event, 1))
            .unwrap();
    }
    peer.ask("signal e").unwrap();
    own.signal().unwrap();
    queue.finish_timeout(LONG).unwrap();
    other.finish_timeout(LONG).unwrap();
    peer.ask("submit q fill m 1 signal=e").unwrap();
    queue.submit(Command::barrier().after(&theirs)).unwrap();
    for _ in 0..32 {
        let fill = Command::fill(memory.all(), &[7]).unwrap();
        queue.submit(fill.signal(&own)).unwrap();
    }
    let done = context.create_event().unwrap();
    other
        .submit(Command::barrier().after(&own).signal(&done))
        .unwrap();
    assert!(!done.try_wait().unwrap());
    peer.kill();
    done.wait_timeout(LONG).unwrap();
    other.finish_timeout(LONG).unwrap();
    let told = queue.finish_timeout(LONG);
    assert!(matches!(told, Err(Error::PeerDied(_))), "{told:?}");
    // The process ends without freeing what the list may still use.
    drop((peer, harness));
    std::process::exit(0);
}
