//! At the limits of the system and of the library there are clear errors, no losses, and recovery.

use crate::failure::{Failure, Verdict};
use crate::harness::{Harness, deadline, eventually};
use crate::raw::Socket;
use crate::suite::PASSED;
use crate::{Outcome, Peer, Transfer, procfs};
use crosshandle::virtual_memory::PhysicalMemory;
use crosshandle::{Command, Event, Memory};
use std::time::{Duration, Instant};

/// Number of objects of each kind for one peer.
const MANY: usize = 100_000;

/// An importer without free descriptors reports that, keeps its open objects, and recovers when
/// descriptors become free.
pub(crate) fn importer_without_descriptors(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let unit = context.device().info().granularity;
    let peer = harness.peer()?;
    // The driver's own descriptors are open before the limit is set.
    peer.ask("allocate own 100")?;
    let physical = PhysicalMemory::new(&context, unit)?;
    peer.ask(format!("open-physical p {}", physical.handle()?))?;
    // The arena of the exporter's events is open as well.
    let first = context.create_event()?;
    peer.ask(format!("open-event first {}", first.handle()?))?;
    let limit = peer.usage()?.descriptors + 50;
    peer.ask(format!("limit-files {limit}"))?;
    peer.ask("take-files all 0")?;
    let refused = peer
        .ask(format!("open-physical q {}", physical.handle()?))
        .expect_err("there is no descriptor left");
    assert_eq!(refused.kind, "LimitReached", "{refused}");
    assert!(refused.message.contains("RLIMIT_NOFILE"), "{refused}");
    // Objects that need no permanent descriptor, or already have one, still open or fail with the
    // same error.
    let (memory, event) = (context.allocate(1_000)?, context.create_event()?);
    peer.ask(format!("open-event e {}", event.handle()?))?;
    peer.ask("signal e")?;
    event.wait_value_timeout(1, deadline())?;
    peer.refused(
        format!("open-memory m {}", memory.handle()?),
        "LimitReached",
    )?;
    // Another exporter cannot be reached, which is also reported clearly.
    let other = harness.peer()?;
    other.ask("event f")?;
    let handle = other.ask("event-handle f")?.remove(0);
    peer.refused(format!("open-event f {handle}"), "LimitReached")?;
    peer.ask("close all")?;
    peer.ask(format!("open-memory m {}", memory.handle()?))?;
    peer.ask("write m 0 1 100")?;
    peer.ask(format!("open-event f {handle}"))?;
    peer.ask("signal f")?;
    // The peer's open objects are unchanged.
    peer.ask(format!("reserve r {unit}"))?;
    peer.ask(format!("map r 0 p 0 {unit} read-write"))?;
    peer.ask("range-write r 0 1 100")?;
    peer.ask(format!("open-physical q {}", physical.handle()?))?;
    PASSED
}

/// An exporter without free descriptors refuses new importers with a clear error, and still serves
/// the others.
pub(crate) fn exporter_without_descriptors(harness: &Harness) -> Verdict {
    let (exporter, attached) = (harness.peer()?, harness.peer()?);
    exporter.ask("allocate m 5000000")?;
    exporter.ask("write m 0 1 100")?;
    exporter.ask("event e")?;
    let memory = exporter.ask("memory-handle m")?.remove(0);
    let event = exporter.ask("event-handle e")?.remove(0);
    attached.ask(format!("open-event e {event}"))?;
    let limit = exporter.usage()?.descriptors + 12;
    exporter.ask(format!("limit-files {limit}"))?;
    // Other processes that only connect use up all remaining descriptors.
    let connections: Result<Vec<_>, Failure> = (0..30)
        .map(|_| Socket::connect_in(harness.directory()))
        .collect();
    let connections = connections?;
    eventually("all descriptors are taken", || {
        Ok(procfs::descriptors_below(exporter.pid(), limit)? + 1 >= limit)
    })?;
    let newcomer = harness.peer()?;
    newcomer.ask("context hasty timeout=3000")?;
    let refused = newcomer
        .ask(format!("open-event e {event} context=hasty"))
        .expect_err("there is no room");
    assert_eq!(refused.kind, "LimitReached", "{refused}");
    if harness.is_host() {
        // Host memory needs a descriptor when it is allocated.
        exporter.refused("allocate x 5000000", "LimitReached")?;
    }
    // An importer that attached earlier is still served.
    attached.ask(format!("open-memory m {memory}"))?;
    attached.ask("check m 0 1 100")?;
    exporter.ask("signal e")?;
    attached.ask("wait-value e 1 10000")?;
    drop(connections);
    eventually("there is room again", || {
        match newcomer.ask(format!("open-event e {event} context=hasty")) {
            Ok(_) => Ok(true),
            Err(refused) if refused.kind == "LimitReached" => Ok(false),
            Err(refused) => Err(refused.into()),
        }
    })?;
    newcomer.ask("signal e")?;
    exporter.ask("wait-value e 2 10000")?;
    exporter.ask("allocate x 5000000")?;
    PASSED
}

/// An exporter's own allocations use up all descriptors.
pub(crate) fn allocations_without_descriptors(harness: &Harness) -> Verdict {
    let exporter = harness.peer()?;
    exporter.ask("context c pooling=no")?;
    exporter.ask("allocate first 100 context=c")?;
    let limit = exporter.usage()?.descriptors + 50;
    exporter.ask(format!("limit-files {limit}"))?;
    if !harness.is_host() {
        // Device memory needs a descriptor when it is exported, and the socket exists by then.
        exporter.ask("memory-handle first")?;
    }
    let mut count = 0;
    let refused = loop {
        let mut taken = exporter.ask(format!("allocate m{count} 100 context=c"));
        if taken.is_ok() && !harness.is_host() {
            taken = exporter.ask(format!("memory-handle m{count}"));
        }
        match taken {
            Ok(_) => count += 1,
            Err(refused) => break refused,
        }
        assert!(count < 100, "no limit");
    };
    assert_eq!(refused.kind, "LimitReached", "{refused}");
    let least = match harness.expectations().keeps_descriptors {
        true => 12,
        false => 30,
    };
    assert!(count > least, "{count} could be allocated");
    if harness.is_host() {
        let refused = exporter.ask("memory-handle m0").expect_err("no socket");
        assert_eq!(refused.kind, "LimitReached", "{refused}");
    }
    exporter.ask("close m1 m2 m3 m4 m5 m6 m7 m8 m9 m10")?;
    exporter.ask("trim context=c")?;
    let handle = exporter.ask("memory-handle m0")?.remove(0);
    let importer = harness.peer()?;
    importer.ask(format!("open-memory m {handle}"))?;
    exporter.ask("allocate again 100 context=c")?;
    PASSED
}

/// A peer shares a hundred thousand events and as many allocations, with 1024 descriptors.
pub(crate) fn a_hundred_thousand_objects(harness: &Harness) -> Verdict {
    let (context, transfer) = harness.transfer()?;
    let peer = harness.peer()?;
    // The driver's own resources are not counted.
    peer.ask("allocate own 100")?;
    peer.ask("write own 0 1 100")?;
    let before = peer.usage()?;
    peer.ask("limit-files 1024")?;
    let began = Instant::now();
    let mut bytes = Vec::new();
    let mut memories: Vec<Memory> = Vec::with_capacity(MANY);
    for number in 0..MANY as u64 {
        let memory = context.allocate(64)?;
        transfer.write(&memory, 0, &number.to_le_bytes())?;
        bytes.extend_from_slice(memory.handle()?.as_bytes());
        memories.push(memory);
    }
    let created = began.elapsed();
    let list = context.allocate(bytes.len())?;
    transfer.write(&list, 0, &bytes)?;
    peer.ask(format!("open-memory list {}", list.handle()?))?;
    let open = |kind: &str| {
        let question = format!("open-many {kind} {kind}s list {MANY}");
        peer.begin(question).reply(Duration::from_secs(60))
    };
    let opened_memory = open("memory")?;
    bytes.clear();
    let mut events: Vec<Event> = Vec::with_capacity(MANY);
    for _ in 0..MANY {
        let event = context.create_event()?;
        bytes.extend_from_slice(event.handle()?.as_bytes());
        events.push(event);
    }
    transfer.write(&list, 0, &bytes)?;
    let opened_events = open("event")?;
    for (number, event) in events.iter().enumerate() {
        assert_eq!(
            event.submitted(),
            u64::from(number % 2 == 0),
            "event {number}"
        );
    }
    let usage = peer.usage()?;
    assert!(usage.descriptors < before.descriptors + 50, "{usage:?}");
    assert!(usage.mappings < before.mappings + 500, "{usage:?}");
    // The exporter frees the objects while they are open here, and they are closed afterwards.
    let began = Instant::now();
    drop((memories, events));
    let freed = began.elapsed();
    let began = Instant::now();
    let more: Result<Vec<Memory>, _> = (0..1_000).map(|_| context.allocate(64)).collect();
    drop(more?);
    let allocated = began.elapsed();
    let close = peer.begin("close memorys events");
    close.reply(Duration::from_secs(60))?;
    Ok(Outcome::Passed(format!(
        "created in {created:?}; opened in {} ns (memory) and {} ns (events) each, the last tenth in \
         {} × and {} × the time of the first; freed in {freed:?} while open, 1000 allocated in \
         {allocated:?} after that",
        opened_memory[0], opened_events[0], opened_memory[1], opened_events[1]
    )))
}

/// More processes are attached to one context than a slot has runs.
pub(crate) fn twenty_processes(harness: &Harness) -> Verdict {
    const PEERS: usize = 20;
    let context = harness.context()?;
    let (event, memory) = (context.create_event()?, context.allocate(PEERS * 100)?);
    let peers: Result<Vec<Peer>, Failure> = (0..PEERS).map(|_| harness.peer()).collect();
    let peers = peers?;
    let transfer = Transfer::new(&context)?;
    for (place, peer) in peers.iter().enumerate() {
        peer.ask(format!("open-event e {}", event.handle()?))?;
        peer.ask(format!("open-memory m {}", memory.handle()?))?;
        peer.ask(format!("write m {} {place} 100", place * 100))?;
    }
    let signals: Vec<_> = peers
        .iter()
        .map(|peer| peer.begin("signal e 100"))
        .collect();
    for signal in signals {
        signal.reply(deadline())?;
    }
    let all = PEERS as u64 * 100;
    event.wait_value_timeout(all, deadline())?;
    assert_eq!(event.submitted(), all);
    for place in 0..PEERS {
        transfer.check(&memory, place * 100, place as u64, 100)?;
    }
    // Each process has a pending signal of its own event. Then all of them die.
    let others: Result<Vec<Event>, _> = (0..PEERS).map(|_| context.create_event()).collect();
    for (peer, other) in peers.iter().zip(others.as_ref().map_err(Clone::clone)?) {
        peer.ask(format!("open-event other {}", other.handle()?))?;
        peer.ask("event gate")?;
        peer.ask("queue q")?;
        peer.ask("submit q barrier after-value=gate:1 signal=other")?;
    }
    drop(peers);
    for other in &others? {
        fails!(other.wait_timeout(deadline()), PeerDied);
    }
    PASSED
}

/// Two processes alternate with pending signals until an event can store no more runs.
pub(crate) fn runs_are_limited(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let (event, gate) = (context.create_event()?, context.create_event()?);
    let peer = harness.peer()?;
    peer.ask(format!("open-event e {}", event.handle()?))?;
    peer.ask(format!("open-event gate {}", gate.handle()?))?;
    peer.ask("queue q")?;
    let queue = context.create_queue()?;
    let mut signals = 0_u64;
    let refused = loop {
        let command = Command::barrier().after_value(&gate, 1).signal(&event);
        if let Err(error) = queue.submit(command) {
            break crate::Refused {
                kind: format!("{error:#?}"),
                message: error.to_string(),
            };
        }
        signals += 1;
        if let Err(refused) = peer.ask("submit q barrier after-value=gate:1 signal=e") {
            break refused;
        }
        signals += 1;
        assert!(signals < 100, "no limit");
    };
    assert!(refused.kind.starts_with("LimitReached"), "{refused}");
    assert!(signals >= 16, "only {signals} signals");
    assert_eq!(event.submitted(), signals);
    gate.signal()?;
    for value in 1..=signals {
        event.wait_value_timeout(value, deadline())?;
    }
    let status = event.status();
    assert_eq!((status.submitted, status.completed), (signals, signals));
    // The event still works afterwards.
    assert_eq!(peer.ask("signal e")?, [(signals + 1).to_string()]);
    queue.signal(&event)?;
    event.wait_value_timeout(signals + 2, deadline())?;
    PASSED
}
