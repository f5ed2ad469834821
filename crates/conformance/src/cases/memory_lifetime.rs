//! Cases about the lifetime and the reuse of memory.

use crate::failure::{Failure, Verdict};
use crate::harness::{Harness, deadline, eventually};
use crate::procfs;
use crate::suite::PASSED;
use crate::{Outcome, Transfer, Usage, pattern};
use crosshandle::handle::MEMORY_HANDLE_SIZE;
use crosshandle::virtual_memory::{PhysicalMemory, VirtualRange};
use crosshandle::{
    Access, AllocationOptions, Command, Context, Error, Memory, MemoryHandle, MemoryKind,
};
use std::collections::HashSet;

const LEN: usize = 100_000;

/// Freed memory keeps its bytes for processes that have it open.
pub(crate) fn importers_keep_what_was_freed(harness: &Harness) -> Verdict {
    let (context, transfer) = harness.transfer()?;
    let peer = harness.peer()?;
    for (seed, len) in [(1, 100), (2, LEN), (3, 5_000_000)] {
        let memory = context.allocate(len)?;
        transfer.write(&memory, 0, &pattern(seed, 100))?;
        peer.ask(format!("open-memory m{seed} {}", memory.handle()?))?;
        drop(memory);
        // The exporter allocates the same sizes again, with other bytes.
        for _ in 0..10 {
            let next = context.allocate(len)?;
            transfer.write(&next, 0, &pattern(99, 100))?;
        }
    }
    for seed in 1..=3 {
        peer.ask(format!("check m{seed} 0 {seed} 100"))?;
        peer.ask(format!("write m{seed} 0 50 100"))?;
    }
    PASSED
}

/// Memory of an ended context keeps its bytes for importers, while another context of the process
/// allocates the same amount.
pub(crate) fn importers_keep_what_ended_contexts_shared(harness: &Harness) -> Verdict {
    const LENS: [usize; 3] = [100, LEN, 5_000_000];
    let peer = harness.peer()?;
    let (context, transfer) = harness.transfer()?;
    let mut kept = Vec::new();
    for (seed, len) in (1..).zip(LENS) {
        for (name, seed) in [("one", seed), ("two", seed + 10)] {
            let memory = context.allocate(len)?;
            transfer.write(&memory, 0, &pattern(seed, 100))?;
            let handle = memory.handle()?;
            peer.ask(format!("open-memory {name}{len} {handle}"))?;
            kept.push(memory);
        }
    }
    // Some allocations are freed before the context ends, others after it.
    let later = kept.split_off(LENS.len());
    drop((kept, transfer, context));
    drop(later);

    let (context, transfer) = harness.transfer()?;
    let mut next = Vec::new();
    for len in LENS.into_iter().cycle().take(12) {
        let memory = context.allocate(len)?;
        transfer.write(&memory, 0, &pattern(99, 100))?;
        next.push(memory);
    }
    for (seed, len) in (1..).zip(LENS) {
        for (name, seed) in [("one", seed), ("two", seed + 10)] {
            peer.ask(format!("check {name}{len} 0 {seed} 100"))?;
            peer.ask(format!("write {name}{len} 0 50 100"))?;
        }
    }
    for memory in &next {
        transfer.check(memory, 0, 99, 100)?;
    }
    PASSED
}

/// A freed block is not reused while any process has it open, here or as a handle. It is reused
/// afterwards.
pub(crate) fn blocks_return_when_closed(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let (one, two) = (harness.peer()?, harness.peer()?);
    let memory = context.allocate(LEN)?;
    let address = memory.as_ptr().addr();
    let handle = memory.handle()?;
    one.ask(format!("open-memory m {handle}"))?;
    two.ask(format!("open-memory m {handle}"))?;
    let own = context.open_memory(&handle)?;
    drop(memory);
    let absent = |when: &str| -> Result<(), Failure> {
        let others: Result<Vec<Memory>, _> = (0..50).map(|_| context.allocate(LEN)).collect();
        let reused = others?.iter().any(|m| m.as_ptr().addr() == address);
        assert!(!reused, "used again {when}");
        Ok(())
    };
    absent("while three have it open")?;
    one.ask("close m")?;
    absent("while two have it open")?;
    drop(own);
    absent("while one has it open")?;
    two.ask("close m")?;
    // Other freed blocks would be reused first, so the test allocates all of them.
    let mut taken = Vec::new();
    for _ in 0..60 {
        taken.push(context.allocate(LEN)?);
    }
    assert!(
        taken.iter().any(|memory| memory.as_ptr().addr() == address),
        "it never came back"
    );
    PASSED
}

/// Exporting and freeing without end uses only as much memory as is open at a time.
pub(crate) fn exported_memory_is_recycled(harness: &Harness) -> Verdict {
    let (context, peer) = harness.with_peer()?;
    let mut addresses = HashSet::new();
    for _ in 0..300 {
        let memory = context.allocate(LEN)?;
        addresses.insert(memory.as_ptr().addr());
        peer.ask(format!("open-memory m {}", memory.handle()?))?;
        drop(memory);
        peer.ask("close m")?;
    }
    assert!(addresses.len() < 10, "{} blocks were used", addresses.len());
    PASSED
}

/// A handle of freed memory results in the right error.
pub(crate) fn handles_outlive_nothing(harness: &Harness) -> Verdict {
    let (context, peer) = harness.with_peer()?;
    let memory = context.allocate(LEN)?;
    let handle = memory.handle()?;
    peer.ask(format!("open-memory m {handle}"))?;
    drop(memory);
    peer.refused(format!("open-memory n {handle}"), "Stale")?;
    // A new allocation in the same place is another object.
    peer.ask("close m")?;
    let next = context.allocate(LEN)?;
    let other = next.handle()?;
    assert_ne!(handle, other);
    peer.refused(format!("open-memory n {handle}"), "Stale")?;
    peer.ask(format!("open-memory n {other}"))?;
    // The context ends with its last object.
    drop(context);
    peer.ask(format!("open-memory m {other}"))?;
    drop(next);
    eventually("a context's end is noticed", || {
        match peer.ask(format!("open-memory o {other}")) {
            Err(refused) if refused.kind == "ExporterGone" => Ok(true),
            // The memory was freed before the context ended.
            Err(refused) if refused.kind == "Stale" => Ok(false),
            other => Err(Failure::new(format!("{other:?}"))),
        }
    })?;
    // A peer that has none of the objects open gets the same error. Open objects stay open.
    let stranger = harness.peer()?;
    stranger.refused(format!("open-memory m {other}"), "ExporterGone")?;
    peer.ask("write m 0 1 100")?;
    peer.ask("check n 0 1 100")?;
    PASSED
}

/// A killed importer keeps no memory in use.
pub(crate) fn killed_importers_hold_nothing(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    for _ in 0..10 {
        let memory = context.allocate(LEN)?;
        let address = memory.as_ptr().addr();
        let peer = harness.peer()?;
        peer.ask(format!("open-memory m {}", memory.handle()?))?;
        drop(memory);
        peer.kill();
        // The allocations are kept, so that each one is another block.
        let mut taken = Vec::new();
        eventually("a dead importer's memory comes back", || {
            taken.push(context.allocate(LEN)?);
            let last = taken.last().map(|memory: &Memory| memory.as_ptr().addr());
            Ok(last == Some(address))
        })?;
    }
    PASSED
}

/// The exporter exits or is killed, and importers keep memory of every size.
pub(crate) fn importers_outlive_the_exporter(harness: &Harness) -> Verdict {
    let (context, transfer) = harness.transfer()?;
    for end in ["exit 0", "die", "abort"] {
        let exporter = harness.peer()?;
        let mut opened = Vec::new();
        for (seed, len) in [(1, 100), (2, LEN), (3, 5_000_000)] {
            exporter.ask(format!("allocate m {len}"))?;
            exporter.ask(format!("write m 0 {seed} 100"))?;
            let handle: MemoryHandle = exporter.ask("memory-handle m")?.remove(0).parse()?;
            opened.push((seed, context.open_memory(&handle)?));
        }
        let ended = exporter.ask(end).expect_err("it ends");
        assert_eq!(ended.kind, "Ended", "{ended}");
        exporter.ended()?;
        for (seed, memory) in &opened {
            transfer.check(memory, 0, *seed, 100)?;
            transfer.write(memory, 0, &pattern(9, 100))?;
            transfer.check(memory, 0, 9, 100)?;
        }
    }
    PASSED
}

/// After a thousand rounds no process has more descriptors, mappings or memory than before. On the
/// host there are ten thousand more rounds, in batches, and memory is counted exactly.
pub(crate) fn rounds_leave_nothing_behind(harness: &Harness) -> Verdict {
    const KIB: usize = 1024;
    const BATCH: usize = 100;
    /// Permitted growth of both processes together in all rounds, in KiB. It is less than seven
    /// bytes per round.
    const NOISE: usize = 64;
    // Threads that start late, of the library or of a driver, map a stack or a heap. A leak in
    // every round would be a thousand mappings.
    let some = if harness.is_host() { 4 } else { 16 };
    let (context, peer) = harness.with_peer()?;
    let round = |number: usize| -> Result<(), Failure> {
        let small = context.allocate(1_000 + number % 7 * 10_000)?;
        let large = context.allocate(3_000_000)?;
        let event = context.create_event()?;
        peer.ask(format!("open-memory s {}", small.handle()?))?;
        peer.ask(format!("open-memory l {}", large.handle()?))?;
        peer.ask(format!("open-event e {}", event.handle()?))?;
        peer.ask("write l 0 1 100")?;
        peer.ask("signal e")?;
        event.wait_value_timeout(1, deadline())?;
        if number.is_multiple_of(2) {
            drop((small, large, event));
            peer.ask("close s l e")?;
        } else {
            peer.ask("close s l e")?;
        }
        Ok(())
    };
    let transfer = Transfer::new(&context)?;
    let list = context.allocate(BATCH * MEMORY_HANDLE_SIZE)?;
    peer.ask(format!("open-memory list {}", list.handle()?))?;
    let batch = |number: usize| -> Result<(), Failure> {
        let (mut memories, mut events) = (Vec::new(), Vec::new());
        let (mut memory_handles, mut event_handles) = (Vec::new(), Vec::new());
        for index in 0..BATCH {
            let memory = context.allocate([64 * KIB, 2 * KIB * KIB][index % 2])?;
            transfer.write(&memory, 0, &index.to_le_bytes())?;
            memory_handles.extend_from_slice(memory.handle()?.as_bytes());
            memories.push(memory);
            let event = context.create_event()?;
            event_handles.extend_from_slice(event.handle()?.as_bytes());
            events.push(event);
        }
        transfer.write(&list, 0, &memory_handles)?;
        peer.ask(format!("open-many memory m list {BATCH}"))?;
        transfer.write(&list, 0, &event_handles)?;
        peer.ask(format!("open-many events e list {BATCH}"))?;
        if number.is_multiple_of(2) {
            drop((memories, events));
        }
        peer.ask("close m e")?;
        Ok(())
    };
    let batches = if harness.is_host() { 100 } else { 0 };
    // These rounds create everything that is created only once.
    (0..100).try_for_each(round)?;
    (0..batches / 10).try_for_each(batch)?;
    let (own, other) = (Usage::of_self()?, peer.usage()?);
    let pids = [std::process::id(), peer.pid()];
    let [own_maps, other_maps] = pids.map(procfs::mappings);
    let memory = || -> Result<usize, Failure> {
        // Free memory returns to the system now, because ageing returns it at some other time.
        context.trim();
        Ok(procfs::proportional(pids[0])? + procfs::proportional(pids[1])?)
    };
    let before = memory()?;
    (100..1_100).try_for_each(round)?;
    (0..batches).try_for_each(batch)?;
    let growth = memory()?.saturating_sub(before);
    assert!(
        growth <= NOISE || !harness.is_host(),
        "both processes have grown by {growth} KiB"
    );
    for (who, before, after, pid, maps) in [
        ("exporter", own, Usage::of_self()?, pids[0], own_maps?),
        ("importer", other, peer.usage()?, pids[1], other_maps?),
    ] {
        let more = procfs::more_than(&maps, &procfs::mappings(pid)?);
        assert!(
            after.descriptors <= before.descriptors + 2
                && after.mappings <= before.mappings + some
                && after.resident <= before.resident + 8 * KIB,
            "{who}: {before:?}, and a thousand rounds later {after:?}, with more of {more:?}"
        );
    }
    Ok(Outcome::Passed(format!(
        "exporter {:?}, importer {:?}, growth {growth} KiB",
        Usage::of_self()?,
        peer.usage()?
    )))
}

/// An ended context leaves no descriptors and mappings in its process.
pub(crate) fn contexts_leave_nothing_behind(harness: &Harness) -> Verdict {
    let peer = harness.peer()?;
    let round = || -> Result<(), Failure> {
        let context = harness.context()?;
        let memory = context.allocate(LEN)?;
        let event = context.create_event()?;
        peer.ask("context c")?;
        peer.ask(format!("open-memory m {} context=c", memory.handle()?))?;
        peer.ask(format!("open-event e {} context=c", event.handle()?))?;
        peer.ask("allocate own 1000 context=c")?;
        let handle: MemoryHandle = peer.ask("memory-handle own")?.remove(0).parse()?;
        let opened = context.open_memory(&handle)?;
        peer.ask("close m e own c")?;
        drop(opened);
        Ok(())
    };
    for _ in 0..3 {
        round()?;
    }
    let (own, other) = (Usage::of_self()?, peer.usage()?);
    for _ in 0..20 {
        round()?;
    }
    // The exchange thread closes a connection shortly after the hang-up.
    eventually("everything is given back", || {
        let (now, there) = (Usage::of_self()?, peer.usage()?);
        Ok(now.descriptors <= own.descriptors
            && there.descriptors <= other.descriptors
            && now.mappings <= own.mappings + 4
            && there.mappings <= other.mappings + 4)
    })
    .map_err(|late| {
        Failure::new(format!(
            "{late}; {own:?} became {:?}, {other:?} became {:?}",
            Usage::of_self(),
            peer.usage()
        ))
    })?;
    PASSED
}

/// Trimming returns freed large memory to the system.
pub(crate) fn trim_gives_memory_back(harness: &Harness) -> Verdict {
    let context: Context = harness.context()?;
    // Only host memory is visible in `/proc`.
    let mapped = || procfs::mappings_named(std::process::id(), "crosshandle-memory");
    let before = mapped()?;
    let memory: Result<Vec<_>, _> = (0..4).map(|_| context.allocate(10 << 20)).collect();
    let addresses: Vec<_> = memory?.iter().map(|m| m.as_ptr().addr()).collect();
    // The memory was freed and kept, so the next allocation of that size reuses it.
    let again = context.allocate(10 << 20)?;
    assert!(addresses.contains(&again.as_ptr().addr()));
    drop(again);
    context.trim();
    assert_eq!(mapped()?, before);
    for address in addresses {
        assert!(matches!(
            context.memory_handle(std::ptr::without_provenance(address)),
            Err(Error::InvalidArgument(_))
        ));
    }
    if harness.is_host() {
        // An importer keeps the segments of small allocations mapped, but their pages return too.
        let peer = harness.peer()?;
        let memory = (0..20).map(|_| context.allocate(1 << 20));
        let memory = memory.collect::<Result<Vec<_>, _>>()?;
        for memory in &memory {
            peer.ask(format!("open-memory m {}", memory.handle()?))?;
            peer.ask(format!("write m 0 1 {}", 1 << 20))?;
            peer.ask("close m")?;
        }
        drop(memory);
        let before = procfs::proportional(peer.pid())?;
        context.trim();
        let after = procfs::proportional(peer.pid())?;
        assert!(
            after + (8 << 10) < before,
            "the importer keeps {after} of {before} KiB"
        );
    }
    PASSED
}

/// Allocating and freeing never wait for a queue.
pub(crate) fn queues_hold_up_no_memory(harness: &Harness) -> Verdict {
    let (context, transfer) = harness.transfer()?;
    let unit = context.device().info().granularity;
    let (gate, queue) = (context.create_event()?, context.create_queue()?);
    queue.submit(Command::barrier().after_value(&gate, 1))?;
    for kind in [MemoryKind::Device, MemoryKind::Host] {
        let memory = context.allocate_with(AllocationOptions::new(5_000_000).kind(kind))?;
        transfer.write(&memory, 0, &pattern(1, 1_000))?;
        drop(memory);
        context.trim();
    }
    let physical = PhysicalMemory::new(&context, unit)?;
    let range = VirtualRange::reserve(&context, unit)?;
    range.map(0, &physical, ..unit, Access::ReadWrite)?;
    transfer.write_range(&range, 0, &pattern(1, 1_000))?;
    range.unmap(..unit)?;
    drop((range, physical));
    // Importers also close without waiting.
    let peer = harness.peer()?;
    peer.ask("allocate m 5000000")?;
    let handle: MemoryHandle = peer.ask("memory-handle m")?.remove(0).parse()?;
    drop(context.open_memory(&handle)?);
    assert!(!queue.is_idle());
    gate.signal()?;
    queue.finish_timeout(deadline())?;
    PASSED
}
