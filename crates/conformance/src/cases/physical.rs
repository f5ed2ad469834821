//! Physical memory is shared without an address, and each process maps it where it chooses.

use crate::failure::{Failure, Verdict};
use crate::harness::Harness;
use crate::procfs;
use crate::suite::PASSED;
use crate::{Outcome, Peer, Transfer, Usage, pattern};
use crosshandle::virtual_memory::PhysicalMemory;
use crosshandle::{
    Access, Error,
    virtual_memory::{PhysicalMemoryHandle, VirtualRange},
};

/// The number of the signal SIGSEGV.
const FAULT: i32 = 11;

fn has(
    transfer: &Transfer,
    range: &VirtualRange,
    offset: usize,
    seed: u64,
) -> Result<bool, Failure> {
    Ok(transfer.read_range(range, offset, 1_000)? == pattern(seed, 1_000))
}

/// One physical memory is mapped at several places in two processes, and all mappings show the same
/// bytes.
pub(crate) fn mapped_in_both(harness: &Harness) -> Verdict {
    let (context, transfer) = harness.transfer()?;
    let unit = context.device().info().granularity;
    let peer = harness.peer()?;
    let memory = PhysicalMemory::new(&context, 3 * unit)?;
    let range = VirtualRange::reserve(&context, 8 * unit)?;
    range.map(0, &memory, ..3 * unit, Access::ReadWrite)?;
    if harness.is_host() {
        let first = transfer.read_range(&range, 0, 3 * unit)?;
        assert!(first.iter().all(|byte| *byte == 0), "fresh memory is zero");
    }
    // The memory is mapped twice in one process.
    range.map(4 * unit, &memory, ..3 * unit, Access::ReadWrite)?;
    transfer.write_range(&range, unit, &pattern(1, 1_000))?;
    assert!(has(&transfer, &range, 5 * unit, 1)?);
    // The memory is also mapped in the other process.
    let words = peer.ask(format!("open-physical p {}", memory.handle()?))?;
    assert_eq!(words[0].parse::<usize>()?, 3 * unit);
    peer.ask(format!("reserve r {}", 4 * unit))?;
    peer.ask(format!("map r {unit} p 0 {} read-write", 3 * unit))?;
    peer.ask(format!("range-check r {} 1 1000", 2 * unit))?;
    peer.ask(format!("range-write r {} 2 1000", 2 * unit))?;
    assert!(has(&transfer, &range, unit, 2)? && has(&transfer, &range, 5 * unit, 2)?);
    // In the other direction, the peer shares with this process.
    peer.ask(format!("physical own {unit}"))?;
    peer.ask(format!("map r 0 own 0 {unit} read-write"))?;
    peer.ask("range-write r 0 3 1000")?;
    let handle: PhysicalMemoryHandle = peer.ask("physical-handle own")?.remove(0).parse()?;
    let opened = PhysicalMemory::open(&context, &handle)?;
    range.map(7 * unit, &opened, ..unit, Access::ReadWrite)?;
    assert!(has(&transfer, &range, 7 * unit, 3)?);
    fails!(opened.handle(), InvalidArgument);
    PASSED
}

/// A part of physical memory can be mapped, unless the device's capabilities say otherwise.
pub(crate) fn parts_are_mapped(harness: &Harness) -> Verdict {
    let (context, transfer) = harness.transfer()?;
    let unit = context.device().info().granularity;
    let memory = PhysicalMemory::new(&context, 3 * unit)?;
    let range = VirtualRange::reserve(&context, 8 * unit)?;
    let parts = [(4 * unit, unit, 2 * unit), (6 * unit, 0, unit)];
    if !harness.capabilities().partial_mappings {
        for (offset, memory_offset, len) in parts {
            fails!(
                range.map(
                    offset,
                    &memory,
                    memory_offset..memory_offset + len,
                    Access::ReadWrite,
                ),
                Unsupported
            );
        }
        return Ok(Outcome::Skipped("partial_mappings"));
    }
    range.map(0, &memory, ..3 * unit, Access::ReadWrite)?;
    for (offset, memory_offset, len) in parts {
        range.map(
            offset,
            &memory,
            memory_offset..memory_offset + len,
            Access::ReadWrite,
        )?;
        let seed = offset as u64;
        transfer.write_range(&range, memory_offset + len - 1_000, &pattern(seed, 1_000))?;
        assert!(has(&transfer, &range, offset + len - 1_000, seed)?);
        let peer = harness.peer()?;
        peer.ask(format!("open-physical p {}", memory.handle()?))?;
        peer.ask(format!("reserve r {len}"))?;
        peer.ask(format!("map r 0 p {memory_offset} {len} read-write"))?;
        peer.ask(format!("range-check r {} {seed} 1000", len - 1_000))?;
    }
    PASSED
}

/// Physical memory lives as long as any process owns it, maps it or has it open.
pub(crate) fn lives_while_anyone_has_it(harness: &Harness) -> Verdict {
    let (context, transfer) = harness.transfer()?;
    let unit = context.device().info().granularity;
    let peer = harness.peer()?;
    let memory = PhysicalMemory::new(&context, unit)?;
    let range = VirtualRange::reserve(&context, unit)?;
    range.map(0, &memory, ..unit, Access::ReadWrite)?;
    let handle = memory.handle()?;
    drop(memory);
    // The memory is still mapped, so it can still be opened.
    peer.ask(format!("open-physical p {handle}"))?;
    transfer.write_range(&range, 0, &pattern(1, 1_000))?;
    range.unmap(..unit)?;
    peer.ask(format!("reserve r {unit}"))?;
    peer.ask(format!("map r 0 p 0 {unit} read-write"))?;
    peer.ask("range-check r 0 1 1000")?;
    peer.refused(format!("open-physical q {handle}"), "Stale")?;
    // The peer's mapping alone keeps the memory, too.
    peer.ask("close p")?;
    peer.ask("range-write r 0 2 1000")?;
    peer.ask("range-check r 0 2 1000")?;
    // The exporter's death does not affect open memory.
    let victim = harness.peer()?;
    victim.ask(format!("physical p {unit}"))?;
    let handle: PhysicalMemoryHandle = victim.ask("physical-handle p")?.remove(0).parse()?;
    let opened = PhysicalMemory::open(&context, &handle)?;
    victim.kill();
    range.map(0, &opened, ..unit, Access::ReadWrite)?;
    transfer.write_range(&range, 0, &pattern(3, 1_000))?;
    assert!(has(&transfer, &range, 0, 3)?);
    PASSED
}

/// Only valid mappings, access changes and unmappings succeed. All others are refused with clear
/// errors.
pub(crate) fn mappings_are_exact(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let unit = context.device().info().granularity;
    let memory = PhysicalMemory::new(&context, 4 * unit)?;
    let range = VirtualRange::reserve(&context, 8 * unit)?;
    let all = Access::ReadWrite;
    let half = PhysicalMemory::new(&context, 2 * unit)?;
    range.map(2 * unit, &half, ..2 * unit, all)?;
    let refused = |what: &str, result: crosshandle::Result<()>| match result {
        Err(Error::InvalidArgument(message)) if !message.is_empty() => Ok(()),
        other => Err(Failure::new(format!("{what}: {other:?}"))),
    };
    for len in [0, 1, unit - 1, unit + 1] {
        refused("physical", PhysicalMemory::new(&context, len).map(drop))?;
        refused("reserve", VirtualRange::reserve(&context, len).map(drop))?;
        refused("map length", range.map(0, &memory, ..len, all))?;
    }
    refused("map offset", range.map(1, &memory, ..unit, all))?;
    refused("memory offset", range.map(0, &memory, 1..1 + unit, all))?;
    refused("outside", range.map(7 * unit, &memory, ..2 * unit, all))?;
    refused(
        "overflow",
        range.map(usize::MAX - unit + 1, &memory, ..unit, all),
    )?;
    refused(
        "more than there is",
        range.map(4 * unit, &memory, 3 * unit..5 * unit, all),
    )?;
    for offset in [unit, 2 * unit, 3 * unit] {
        refused("overlap", range.map(offset, &memory, ..2 * unit, all))?;
    }
    refused("around", range.map(unit, &memory, ..4 * unit, all))?;
    for (offset, len) in [
        (0, unit),
        (2 * unit, unit),
        (3 * unit, unit),
        (2 * unit, 3 * unit),
    ] {
        refused("unmap", range.unmap(offset..offset + len))?;
        refused(
            "access",
            range.set_access(offset..offset + len, Access::ReadOnly),
        )?;
    }
    assert_eq!(range.access(2 * unit - 1), None);
    assert_eq!(range.access(2 * unit), Some(all));
    assert_eq!(range.access(4 * unit - 1), Some(all));
    assert_eq!(range.access(4 * unit), None);
    refused(
        "across",
        range.with_bytes(4 * unit - 1..4 * unit + 1, |_| ()),
    )?;
    refused("unmapped", range.with_bytes(..1, |_| ()))?;
    range.unmap(2 * unit..4 * unit)?;
    refused("twice", range.unmap(2 * unit..4 * unit))?;
    range.map(unit, &memory, ..4 * unit, all)?;
    // One call can change the access of adjacent mappings.
    let quarter = PhysicalMemory::new(&context, unit)?;
    range.map(5 * unit, &quarter, ..unit, all)?;
    refused("access", range.set_access(unit..4 * unit, Access::ReadOnly))?;
    range.set_access(unit..6 * unit, Access::ReadOnly)?;
    assert_eq!(range.access(5 * unit), Some(Access::ReadOnly));
    range.unmap(unit..6 * unit)?;
    assert!((0..8).all(|place| !range.is_mapped(place * unit)));
    PASSED
}

/// Memory that is mapped without access keeps its bytes, and they are visible once access is
/// granted.
pub(crate) fn access_is_taken_and_given(harness: &Harness) -> Verdict {
    let (context, transfer) = harness.transfer()?;
    let unit = context.device().info().granularity;
    let memory = PhysicalMemory::new(&context, unit)?;
    let range = VirtualRange::reserve(&context, 2 * unit)?;
    range.map(0, &memory, ..unit, None)?;
    assert_eq!((range.access(0), range.is_mapped(0)), (None, true));
    let refused = |range: &VirtualRange| {
        fails!(range.with_bytes(..1, |_| ()), InvalidArgument);
    };
    refused(&range);
    for seed in 1..3 {
        range.set_access(..unit, Access::ReadWrite)?;
        transfer.write_range(&range, 0, &pattern(seed, 1_000))?;
        range.set_access(..unit, None)?;
        refused(&range);
        range.set_access(..unit, Access::ReadOnly)?;
        assert!(has(&transfer, &range, 0, seed)?);
        range.set_access(..unit, None)?;
    }
    fails!(
        range.map(0, &memory, ..unit, Access::ReadWrite),
        InvalidArgument
    );
    range.unmap(..unit)?;
    range.map(0, &memory, ..unit, Access::ReadWrite)?;
    assert!(has(&transfer, &range, 0, 2)?);
    PASSED
}

/// Each export has its own handle, which is valid until the export is dropped. A process that has
/// opened the handle keeps the memory.
pub(crate) fn exports_are_taken_back(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let unit = context.device().info().granularity;
    let peer = harness.peer()?;
    let memory = PhysicalMemory::new(&context, unit)?;
    let [first, second] = [memory.export()?, memory.export()?];
    let [handle, stale] = [first.handle(), second.handle()];
    assert_ne!(handle, stale);
    assert_ne!(handle, memory.handle()?);
    peer.ask(format!("open-physical a {handle}"))?;
    peer.ask(format!("open-physical b {stale}"))?;
    drop(second);
    peer.refused(format!("open-physical c {stale}"), "Stale")?;
    let refused = PhysicalMemory::open(&context, &stale);
    assert!(matches!(refused, Err(Error::Stale)));
    peer.ask(format!("open-physical c {handle}"))?;
    // The export keeps the memory, and opened memory is not affected by its end.
    drop(memory);
    peer.ask(format!("open-physical d {handle}"))?;
    drop(first);
    peer.refused(format!("open-physical e {handle}"), "Stale")?;
    peer.ask(format!("reserve r {}", 2 * unit))?;
    peer.ask(format!("map r 0 b 0 {unit} read-write"))?;
    peer.ask(format!("map r {unit} d 0 {unit} read-write"))?;
    let opened = PhysicalMemory::new(&context, unit)?.export()?.handle();
    assert!(matches!(
        PhysicalMemory::open(&context, &opened),
        Err(Error::Stale)
    ));
    PASSED
}

/// A range may start where another range ends, if no other mapping is there.
pub(crate) fn ranges_grow_where_there_is_room(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let unit = context.device().info().granularity;
    let reserve = || {
        let start = VirtualRange::reserve(&context, 8 * unit)?.as_ptr();
        let first = VirtualRange::reserve_at(&context, start, 4 * unit)?;
        let second = VirtualRange::reserve_at(&context, start.wrapping_add(4 * unit), 4 * unit)?;
        Ok::<_, Failure>((start, first, second))
    };
    let is_as_wished = |(start, first, second): &(*mut u8, VirtualRange, VirtualRange)| {
        first.as_ptr() == *start && second.as_ptr() == start.wrapping_add(4 * unit)
    };
    // Another thread of this process may take the addresses in between.
    let mut reserved = reserve()?;
    for _ in 0..10 {
        if is_as_wished(&reserved) {
            break;
        }
        reserved = reserve()?;
    }
    assert!(is_as_wished(&reserved), "{reserved:?}");
    let (start, first, second) = reserved;
    // No other range can have the address of the first one.
    let other = VirtualRange::reserve_at(&context, start, unit)?;
    assert_ne!(other.as_ptr(), start);
    for range in [&first, &second] {
        assert_eq!(range.len(), 4 * unit);
        let memory = PhysicalMemory::new(&context, 4 * unit)?;
        range.map(0, &memory, ..4 * unit, Access::ReadWrite)?;
    }
    let odd = VirtualRange::reserve_at(&context, start.wrapping_add(1), unit)?;
    assert!(odd.as_ptr().addr().is_multiple_of(unit));
    PASSED
}

/// The mapping decides the access. After a read-only open, it never allows writes.
pub(crate) fn access_is_kept(harness: &Harness) -> Verdict {
    if !harness.capabilities().read_only_memory {
        return Ok(Outcome::Skipped("read_only_memory"));
    }
    let context = harness.context()?;
    let unit = context.device().info().granularity;
    let faults = harness.capabilities().host_accessible_memory;
    // The host kills a process that writes to read-only memory. A device refuses all later work of
    // that process.
    let cannot_write = |peer: &Peer| -> Result<(), Failure> {
        let refused = peer.ask("range-poke r 0").expect_err("it wrote");
        if faults {
            assert_eq!(refused.kind, "Ended", "{refused}");
            assert_eq!(peer.ended_by_signal()?, FAULT);
        } else {
            assert_ne!(refused.kind, "Late", "{refused}");
        }
        Ok(())
    };
    let memory = PhysicalMemory::new(&context, unit)?;
    for handle in [memory.handle_read_only()?, memory.handle()?] {
        let peer = harness.peer()?;
        if handle.is_read_only() {
            peer.refused(format!("open-physical p {handle}"), "ReadOnly")?;
        }
        peer.ask(format!("open-physical p {handle} read-only=yes"))?;
        let words = peer.ask(format!("reserve r {unit}"))?;
        let map = |access: &str| format!("map r 0 p 0 {unit} {access}");
        peer.refused(map("read-write"), "ReadOnly")?;
        peer.ask(map("read-only"))?;
        peer.refused(format!("set-access r 0 {unit} read-write"), "ReadOnly")?;
        peer.refused("range-write r 0 1 10", "ReadOnly")?;
        if faults {
            let protection = procfs::protection(peer.pid(), words[0].parse()?)?;
            assert_eq!(protection.as_deref(), Some("r--s"));
        }
        cannot_write(&peer)?;
    }
    // The access is changed and then restored.
    let peer = harness.peer()?;
    peer.ask(format!("open-physical p {}", memory.handle()?))?;
    peer.ask(format!("reserve r {unit}"))?;
    peer.ask(format!("map r 0 p 0 {unit} read-only"))?;
    peer.refused("range-write r 0 1 10", "ReadOnly")?;
    peer.ask(format!("set-access r 0 {unit} read-write"))?;
    peer.ask("range-poke r 0")?;
    peer.ask(format!("set-access r 0 {unit} read-only"))?;
    cannot_write(&peer)?;
    PASSED
}

/// After hundreds of rounds no process has more descriptors or mappings than before.
pub(crate) fn rounds_leave_nothing_behind(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let unit = context.device().info().granularity;
    let peer = harness.peer()?;
    let range = VirtualRange::reserve(&context, 4 * unit)?;
    let round = |number: usize| -> Result<(), Failure> {
        let memory = PhysicalMemory::new(&context, 2 * unit)?;
        range.map(unit, &memory, ..2 * unit, Access::ReadWrite)?;
        peer.ask(format!("open-physical p {}", memory.handle()?))?;
        peer.ask(format!("reserve r {}", 2 * unit))?;
        peer.ask(format!("map r 0 p 0 {} read-write", 2 * unit))?;
        // The mapping ends explicitly, or together with the range.
        if number.is_multiple_of(2) {
            peer.ask(format!("unmap r 0 {}", 2 * unit))?;
        }
        range.unmap(unit..unit + 2 * unit)?;
        peer.ask("close r p")?;
        Ok(())
    };
    (0..10).try_for_each(round)?;
    let before = [Usage::of_self()?, peer.usage()?];
    (0..300).try_for_each(round)?;
    for (before, after) in before.into_iter().zip([Usage::of_self()?, peer.usage()?]) {
        assert!(
            after.descriptors <= before.descriptors + 2 && after.mappings <= before.mappings + 4,
            "{before:?}, and later {after:?}"
        );
    }
    PASSED
}
