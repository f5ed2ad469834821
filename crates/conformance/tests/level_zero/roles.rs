//! Roles of single processes over the simulated driver, whose report is checked.

use crosshandle::virtual_memory::{PhysicalMemory, VirtualRange};
use crosshandle::{Access, Command, Error, Event, EventHandle, Memory, MemoryHandle};
use crosshandle_conformance::{Devices, Harness, Peer, PeerOptions, Usage};
use std::fs;
use std::path::Path;
use std::time::Duration;

const PEER: &str = env!("CARGO_BIN_EXE_crosshandle-peer");
pub(crate) const LONG: Duration = Duration::from_secs(20);

pub(crate) fn harness() -> Harness {
    let device = || "level_zero:0".to_owned();
    let devices = Devices {
        own: device(),
        peer: device(),
    };
    Harness::new(&devices, Path::new(PEER)).unwrap()
}

/// Starts a peer with queue `q`, memory `m` and event `e`, and returns it with the event's handle.
/// Each command on the peer's device takes `delay`.
pub(crate) fn slow_peer(harness: &Harness, delay: Duration) -> (Peer, EventHandle) {
    let delay = delay.as_micros().to_string();
    let slow = PeerOptions::new().variable("CROSSHANDLE_SIM_COMMAND_DELAY_US", &delay);
    let peer = harness.peer_with(slow).unwrap();
    peer.ask("event e").unwrap();
    peer.ask("queue q").unwrap();
    peer.ask("allocate m 4096").unwrap();
    let handle = peer.ask("event-handle e").unwrap()[0].parse().unwrap();
    (peer, handle)
}

/// Returns the driver's report about this process, which the driver writes when its context ends.
pub(crate) fn report() -> String {
    let path = std::env::var("CROSSHANDLE_SIM_REPORT").unwrap();
    fs::read_to_string(format!("{path}.{}", std::process::id())).unwrap_or_default()
}

/// Waits for the end of the driver's last context, because the threads of lists end on their own.
pub(crate) fn await_the_end() {
    let end = std::time::Instant::now() + LONG;
    while !report().contains("live contexts 0") && std::time::Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the number of calls of a driver function.
pub(crate) fn calls(function: &str) -> u64 {
    let report = report();
    let line = format!("calls {function} ");
    let count = report.lines().find_map(|found| found.strip_prefix(&line));
    count.map_or(0, |count| count.parse().unwrap())
}

fn rounds(count: u64) {
    let harness = harness();
    let (exporter, importer) = (harness.context().unwrap(), harness.context().unwrap());
    let event = exporter.create_event().unwrap();
    let queue = importer.create_queue().unwrap();
    let round = |number: u64| -> Result<(), Error> {
        let memory = exporter.allocate(3_000_000)?;
        let opened = importer.open_memory(&memory.handle()?)?;
        let shared = importer.open_event(&event.handle()?)?;
        if number.is_multiple_of(16) {
            let command = Command::fill(opened.range(..4096)?, &[1])?;
            queue.submit(command.signal(&shared))?;
            event.wait_timeout(LONG)?;
        }
        Ok(())
    };
    (0..100).try_for_each(round).unwrap();
    let before = Usage::of_self().unwrap();
    (100..count).try_for_each(round).unwrap();
    queue.finish_timeout(LONG).unwrap();
    let after = Usage::of_self().unwrap();
    assert!(
        after.descriptors <= before.descriptors + 8 && after.mappings <= before.mappings + 40,
        "{before:?}, {after:?}"
    );
    drop((event, queue, exporter, importer));
    await_the_end();
    let all = report();
    let opened = format!("live opened-allocations 0 of {count} created");
    assert!(all.contains(&opened), "{all}");
    assert!(all.contains("live exported-descriptors 0 of"), "{all}");
}

pub(crate) fn rounds_leave_nothing_of_the_drivers() {
    rounds(10_000);
}

pub(crate) fn rounds_leave_nothing_behind_that_was_fetched() {
    rounds(1_000);
}

/// Each round creates, shares, opens, signals and drops an event, and also makes the importer open
/// the driver's event.
pub(crate) fn rounds_of_events_leave_nothing_of_the_drivers() {
    const COUNT: u64 = 10_000;
    let harness = harness();
    let (exporter, importer) = (harness.context().unwrap(), harness.context().unwrap());
    let (queue, waiting) = (importer.create_queue(), importer.create_queue());
    let (queue, waiting) = (queue.unwrap(), waiting.unwrap());
    let memory = importer.allocate(64).unwrap();
    let round = |_| -> Result<(), Error> {
        let event = exporter.create_event()?;
        let opened = importer.open_event(&event.handle()?)?;
        let signal = || queue.submit(Command::fill(memory.all(), &[1])?.signal(&opened));
        // The list's thread requests the driver's event, unless a later command first lets the list
        // take over this command. Therefore the next command is submitted after this one is
        // complete.
        waiting.submit(Command::barrier().after_value(&opened, 1))?;
        signal()?;
        waiting.finish_timeout(LONG)?;
        // The list now signals the driver's event as well.
        signal()?;
        waiting.submit(Command::barrier().after(&opened))?;
        waiting.finish_timeout(LONG)?;
        event.wait_timeout(LONG)
    };
    (0..100).try_for_each(round).unwrap();
    let before = Usage::of_self().unwrap();
    (100..COUNT).try_for_each(round).unwrap();
    queue.finish_timeout(LONG).unwrap();
    let after = Usage::of_self().unwrap();
    assert!(
        after.descriptors <= before.descriptors + 8 && after.mappings <= before.mappings + 40,
        "{before:?}, {after:?}"
    );
    drop((memory, queue, waiting, exporter, importer));
    await_the_end();
    // The library creates one more to find out whether handles are more than snapshots.
    for (kind, count) in [
        ("opened-counter-events", COUNT),
        ("counter-events", COUNT + 1),
    ] {
        let line = format!("live {kind} 0 of {count} created");
        assert!(report().contains(&line), "{}", report());
    }
    assert!(report().contains("live exported-descriptors 0 of"));
}

pub(crate) fn another_drivers_handles_are_refused() {
    let harness = harness();
    let other = PeerOptions::new().variable("CROSSHANDLE_SIM_DRIVER_VERSION", "99");
    let peer = harness.peer_with(other).unwrap();
    peer.ask("allocate m 3000000").unwrap();
    let handle: MemoryHandle = peer.ask("memory-handle m").unwrap()[0].parse().unwrap();
    let context = harness.context().unwrap();
    let refused = context.open_memory(&handle).unwrap_err();
    assert!(matches!(refused, Error::Unsupported(_)), "{refused}");
    assert!(refused.to_string().contains("version"), "{refused}");
    // Events work without the driver's own events.
    peer.ask("event e").unwrap();
    peer.ask("queue q").unwrap();
    let event = peer.ask("event-handle e").unwrap()[0].parse().unwrap();
    let event = context.open_event(&event).unwrap();
    let queue = context.create_queue().unwrap();
    peer.ask("submit q barrier signal=e").unwrap();
    queue
        .submit(Command::barrier().after_value(&event, 1))
        .unwrap();
    queue.submit(Command::barrier().signal(&event)).unwrap();
    peer.ask("wait-value e 2 10000").unwrap();
    queue.finish_timeout(LONG).unwrap();
    drop((event, queue, context));
    assert_eq!(calls("zeMemOpenIpcHandle"), 0);
}

pub(crate) fn two_drivers_are_kept_apart() {
    let contexts = ["level_zero:0", "level_zero:1"].map(|name| {
        let device = crosshandle::Device::find(name).unwrap();
        crosshandle::Context::new(&device).unwrap()
    });
    let unit = contexts[0].device().info().granularity;
    let memory = PhysicalMemory::new(&contexts[0], unit).unwrap();
    let range = VirtualRange::reserve(&contexts[1], unit).unwrap();
    let refused = range.map(0, &memory, ..unit, crosshandle::Access::ReadWrite);
    assert!(
        matches!(refused, Err(Error::InvalidArgument(_))),
        "{refused:?}"
    );
}

pub(crate) fn refused_descriptors_are_errors() {
    let harness = harness();
    let peer = harness.peer().unwrap();
    peer.ask("allocate m 3000000").unwrap();
    let handle = peer.ask("memory-handle m").unwrap()[0].parse().unwrap();
    let context = harness.context().unwrap();
    let refused = context.open_memory(&handle).unwrap_err();
    assert!(matches!(refused, Error::Driver { .. }), "{refused}");
    let memory = context.allocate(100).unwrap();
    memory.handle().unwrap();
}

pub(crate) fn allocations_may_fail() {
    let harness = harness();
    let context = harness.context().unwrap();
    let queue = context.create_queue().unwrap();
    let mut memory = Vec::new();
    let failed = loop {
        match context.allocate(3 << 20) {
            Ok(one) => memory.push(one),
            Err(error) => break error,
        }
        assert!(memory.len() < 100, "no limit");
    };
    assert!(matches!(failed, Error::OutOfMemory { .. }), "{failed}");
    // The event pool may be among the failing allocations. Then the command fails too, and nothing
    // hangs.
    let submitted = Command::fill(memory[0].all(), &[1]).and_then(|fill| queue.submit(fill));
    let finished = submitted.and_then(|()| queue.finish_timeout(LONG));
    assert!(
        matches!(finished, Err(Error::OutOfMemory { .. })),
        "{finished:?}"
    );
}

pub(crate) fn devices_say_what_they_are() {
    let harness = harness();
    let context = harness.context().unwrap();
    let info = context.device().info();
    assert_eq!(info.driver_version, "1.3.39030 (Level Zero 1.17)");
    assert_eq!(info.pci_address.as_deref(), Some("0000:01:00.0"));
    assert_eq!(
        (info.memory_clock_rate, info.memory_bus_width),
        (Some(1_000), Some(64))
    );
}

pub(crate) fn mappings_may_fail_late() {
    let harness = harness();
    let context = harness.context().unwrap();
    let unit = context.device().info().granularity;
    let memory = PhysicalMemory::new(&context, unit).unwrap();
    let range = VirtualRange::reserve(&context, 2 * unit).unwrap();
    for offset in [0, unit, 0] {
        let failed = range.map(offset, &memory, ..unit, Access::ReadWrite);
        assert!(
            matches!(failed, Err(Error::OutOfMemory { .. })),
            "{failed:?}"
        );
    }
    drop((range, memory));
}

pub(crate) fn the_device_may_be_lost() {
    let harness = harness();
    let context = harness.context().unwrap();
    let queue = context.create_queue().unwrap();
    let memory = context.allocate(4096).unwrap();
    let events: Vec<Event> = (0..20).map(|_| context.create_event().unwrap()).collect();
    let mut lost = 0;
    for event in &events {
        let fill = Command::fill(memory.all(), &[1]).unwrap();
        match queue.submit(fill.signal(event)) {
            Ok(()) => lost += u32::from(event.wait_timeout(LONG).is_err()),
            Err(_) => lost += 1,
        }
        assert!(!matches!(event.wait_timeout(LONG), Err(Error::TimedOut(_))));
    }
    assert!(lost > 0, "the device is lost");
    let _ = queue.finish_timeout(LONG);
    assert!(queue.is_idle());
    // The process ends without freeing what the lists may still use.
    drop(harness);
    std::process::exit(0);
}

/// A queue of this process waits for one of the peer's, five times, and never runs too early.
fn turns() {
    let harness = harness();
    let (peer, handle) = slow_peer(&harness, Duration::from_millis(100));
    let context = harness.context().unwrap();
    let queue = context.create_queue().unwrap();
    let (theirs, own) = (
        context.open_event(&handle).unwrap(),
        context.create_event().unwrap(),
    );
    for number in 1..=5 {
        peer.ask("submit q fill m 1 signal=e").unwrap();
        queue
            .submit(Command::barrier().after(&theirs).signal(&own))
            .unwrap();
        assert!(!own.try_wait().unwrap(), "its turn is to come");
        own.wait_timeout(LONG).unwrap();
        assert!(theirs.submitted() == number);
    }
    queue.finish_timeout(LONG).unwrap();
}

pub(crate) fn handles_of_events_may_be_snapshots() {
    turns();
}

pub(crate) fn queues_wait_for_each_other_on_the_device() {
    turns();
    await_the_end();
    let report = report();
    assert!(
        report.contains("live opened-counter-events 0 of 1 created"),
        "{report}"
    );
    assert!(report.contains("calls zeCommandListAppendWaitOnEvents"));
}

/// A signal that no device waits for needs no driver event.
pub(crate) fn hosts_need_no_event_of_the_drivers() {
    let harness = harness();
    let peer = harness.peer().unwrap();
    let mut number = 0;
    let created = |is_awaited: bool| {
        let context = harness.context().unwrap();
        let (queue, event) = (
            context.create_queue().unwrap(),
            context.create_event().unwrap(),
        );
        let memory = context.allocate(64).unwrap();
        number += 1;
        let handle = event.handle().unwrap();
        peer.ask(format!("open-event e{number} {handle}")).unwrap();
        peer.ask(format!("queue q{number}")).unwrap();
        for value in 1..=10 {
            let fill = Command::fill(memory.all(), &[1]).unwrap();
            if is_awaited {
                let wait = format!("submit q{number} barrier after-value=e{number}:{value}");
                peer.ask(wait).unwrap();
            }
            queue.submit(fill.signal(&event)).unwrap();
            peer.ask(format!("wait-value e{number} {value} 10000"))
                .unwrap();
        }
        if is_awaited {
            peer.ask(format!("finish q{number} 10000")).unwrap();
        }
        drop((memory, event, queue, context));
        await_the_end();
        let report = report();
        let is_wanted = |line: &&str| line.starts_with("live counter-events 0 of ");
        let line = report.lines().find(is_wanted);
        line.unwrap_or_default().to_owned()
    };
    let [without, with] = [false, true].map(created);
    assert_eq!(without, "live counter-events 0 of 0 created");
    assert!(with.starts_with("live counter-events 0 of "), "{with}");
    assert_ne!(with, without);
}

pub(crate) fn a_waiting_list_is_given_up_when_its_peer_dies() {
    let harness = harness();
    let (peer, handle) = slow_peer(&harness, Duration::from_secs(30));
    let context = harness.context().unwrap();
    let queue = context.create_queue().unwrap();
    let event = context.open_event(&handle).unwrap();
    let (dependent, after) = (
        context.create_event().unwrap(),
        context.create_event().unwrap(),
    );
    let memory: Memory = context.allocate(4096).unwrap();
    // The first wait is on the host, and requests the driver's event.
    let first = Command::barrier().after_value(&event, 1);
    queue.submit(first).unwrap();
    peer.ask("signal e").unwrap();
    queue.finish_timeout(LONG).unwrap();
    peer.ask("submit q fill m 1 signal=e").unwrap();
    queue
        .submit(Command::barrier().after(&event).signal(&dependent))
        .unwrap();
    let fill = Command::fill(memory.all(), &[7]).unwrap();
    queue.submit(fill.signal(&after)).unwrap();
    queue.submit(Command::barrier().after(&event)).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert!(!dependent.try_wait().unwrap());
    peer.kill();
    let failed = dependent.wait_timeout(LONG);
    assert!(matches!(failed, Err(Error::CommandFailed(_))), "{failed:?}");
    after.wait_timeout(LONG).unwrap();
    let told = queue.finish_timeout(LONG);
    assert!(matches!(told, Err(Error::PeerDied(_))), "{told:?}");
    queue.finish_timeout(LONG).unwrap();
    // The list keeps the memory permanently, so freeing the memory does not wait.
    assert!(!memory.is_in_use());
    // The process ends without freeing what the lists may still use.
    drop((peer, harness));
    std::process::exit(0);
}
