//! Memory has one content, in all processes that have it open.

use crate::failure::{Failure, Verdict};
use crate::harness::Harness;
use crate::procfs;
use crate::suite::{Outcome, PASSED};
use crate::{Transfer, pattern};
use crosshandle::{Access, AllocationOptions, Buffer, Error, Memory, MemoryHandle, MemoryKind};
use std::time::Instant;

pub(super) const KINDS: [(MemoryKind, &str); 3] = [
    (MemoryKind::Device, "device"),
    (MemoryKind::Host, "host"),
    (MemoryKind::Shared, "shared"),
];

/// Each side immediately reads what the other side writes.
pub(crate) fn both_sides_write(harness: &Harness) -> Verdict {
    let (context, transfer) = harness.transfer()?;
    let peer = harness.peer()?;
    let memory = context.allocate(100_000)?;
    transfer.write(&memory, 0, &pattern(1, 100_000))?;
    peer.ask(format!("open-memory m {}", memory.handle()?))?;
    peer.ask("check m 0 1 100000")?;
    peer.ask("write m 40000 2 20000")?;
    transfer.check(&memory, 40_000, 2, 20_000)?;
    transfer.write(&memory, 99_000, &pattern(3, 1_000))?;
    peer.ask("check m 99000 3 1000")?;
    // In the other direction, this process opens the peer's memory.
    peer.ask("allocate n 5000")?;
    peer.ask("write n 0 4 5000")?;
    let handle = peer.ask("memory-handle n")?.remove(0).parse()?;
    let opened = context.open_memory(&handle)?;
    transfer.check(&opened, 0, 4, 5_000)?;
    transfer.write(&opened, 0, &pattern(5, 5_000))?;
    peer.ask("check n 0 5 5000")?;
    assert_eq!(opened.kind(), None);
    assert_eq!(opened.access(), Access::ReadWrite);
    PASSED
}

/// Device, host and shared memory can all be shared.
pub(crate) fn every_kind_is_shared(harness: &Harness) -> Verdict {
    let (context, transfer) = harness.transfer()?;
    let peer = harness.peer()?;
    for (seed, (kind, name)) in (1..).zip(KINDS) {
        let memory = context.allocate_with(AllocationOptions::new(9_999).kind(kind))?;
        assert_eq!(memory.kind(), Some(kind));
        let accessible =
            kind != MemoryKind::Device || harness.capabilities().host_accessible_memory;
        assert_eq!(memory.bytes().is_ok(), accessible, "{name}");
        transfer.write(&memory, 0, &pattern(seed, 9_999))?;
        peer.ask(format!("open-memory m {}", memory.handle()?))?;
        peer.ask(format!("check m 0 {seed} 9999"))?;
        peer.ask(format!("allocate n 3000 kind={name}"))?;
        peer.ask(format!("write n 0 {seed} 3000"))?;
        let handle = peer.ask("memory-handle n")?.remove(0).parse()?;
        let opened = context.open_memory(&handle)?;
        transfer.check(&opened, 0, seed, 3_000)?;
        assert_eq!(opened.bytes().is_ok(), accessible, "{name}, opened");
        if accessible {
            // The host reads what the device writes, and the device what the host writes.
            let mut first = [0; 100];
            opened.read(0, &mut first)?;
            assert_eq!(first[..], pattern(seed, 100));
            opened.write(100, &pattern(seed + 10, 100))?;
            peer.ask(format!("check n 100 {} 100", seed + 10))?;
        }
    }
    PASSED
}

/// Every alignment up to 2 MiB is kept in the exporter and in the importer.
pub(crate) fn alignment_is_kept(harness: &Harness) -> Verdict {
    let (context, peer) = harness.with_peer()?;
    for shift in 0..=21 {
        let align = 1_usize << shift;
        for len in [1, 100, 70_000, 3 << 20] {
            let memory = context.allocate_with(AllocationOptions::new(len).align(align))?;
            assert!(memory.as_ptr().addr().is_multiple_of(align.max(64)));
            let address = peer.ask(format!("open-memory m {}", memory.handle()?))?;
            let address: usize = address[0].parse()?;
            // A mapping is aligned to its pages, and to huge pages if it has any.
            let kept = align.clamp(64, harness.peer_device().info().import_alignment);
            assert!(
                address.is_multiple_of(kept),
                "{len} bytes aligned to {align} are at {address:#x} in the importer"
            );
        }
    }
    PASSED
}

/// A handle may start at any byte of an allocation, and shares the bytes from there on.
pub(crate) fn handles_start_anywhere_inside(harness: &Harness) -> Verdict {
    let (context, transfer) = harness.transfer()?;
    let peer = harness.peer()?;
    let bytes = pattern(7, 50_000);
    // The neighbours make a wrong offset visible.
    let _before = context.allocate(50_000)?;
    let memory = context.allocate(50_000)?;
    transfer.write(&memory, 0, &bytes)?;
    for offset in [1, 8, 63, 64, 4095, 4096, 4097, 49_992, 49_999] {
        let handle = memory.handle_at(offset)?;
        assert_eq!(handle.len(), (50_000 - offset) as u64);
        let by_pointer = context.memory_handle(memory.as_ptr().wrapping_add(offset))?;
        assert_eq!(handle, by_pointer);
        let words = peer.ask(format!("open-memory part {handle}"))?;
        assert_eq!(words[1].parse::<usize>()?, 50_000 - offset);
        // The peer writes the first byte of its part.
        peer.ask("write part 0 9 1")?;
        assert_eq!(
            transfer.read(&memory, offset, 1)?,
            pattern(9, 1),
            "at {offset}"
        );
        assert_eq!(
            transfer.read(&memory, offset - 1, 1)?,
            bytes[offset - 1..offset]
        );
        transfer.write(&memory, offset, &bytes[offset..=offset])?;
    }
    PASSED
}

/// A buffer is typed memory on every device. It is filled from a slice and opened by its handle.
pub(crate) fn buffers_hold_elements(harness: &Harness) -> Verdict {
    let (context, transfer) = harness.transfer()?;
    let peer = harness.peer()?;
    let bytes = pattern(3, 4_000);
    let elements: Vec<[u8; 40]> = bytes
        .chunks_exact(40)
        .map(|chunk| chunk.try_into().expect("as long"))
        .collect();
    let buffer = Buffer::from_slice(&context, &elements)?;
    assert_eq!(buffer.len(), 100);
    assert!(transfer.read(buffer.as_memory(), 0, 4_000)? == bytes);
    peer.ask(format!("open-memory m {}", buffer.handle()?))?;
    peer.ask("check m 0 3 4000")?;
    assert_eq!(buffer.range(10..=19)?.len(), 400);
    fails!(buffer.range(..101).map(drop), InvalidArgument);
    PASSED
}

/// Each open is closed separately, and freeing the memory in the exporter closes none of them.
pub(crate) fn opens_close_independently(harness: &Harness) -> Verdict {
    let (context, transfer) = harness.transfer()?;
    let (one, two) = (harness.peer()?, harness.peer()?);
    let memory = context.allocate(10_000)?;
    transfer.write(&memory, 0, &pattern(1, 10_000))?;
    let handle = memory.handle()?;
    assert_eq!(handle, memory.handle()?, "one memory has one handle");
    one.ask(format!("open-memory a {handle}"))?;
    one.ask(format!("open-memory b {handle}"))?;
    two.ask(format!("open-memory a {handle}"))?;
    one.ask("close a")?;
    one.ask("check b 0 1 10000")?;
    one.ask("write b 0 2 10000")?;
    two.ask("check a 0 2 10000")?;
    drop(memory);
    two.ask("close a")?;
    one.ask("check b 0 2 10000")?;
    one.ask("close b")?;
    one.refused(format!("open-memory a {handle}"), "Stale")?;
    PASSED
}

/// A handle can be made, opened and closed repeatedly.
pub(crate) fn rounds_of_get_open_close(harness: &Harness) -> Verdict {
    let (context, transfer) = harness.transfer()?;
    let peer = harness.peer()?;
    let memory = context.allocate(5_000_000)?;
    for round in 0..3 {
        transfer.write(&memory, 0, &pattern(round, 10_000))?;
        peer.ask(format!("open-memory m {}", memory.handle()?))?;
        peer.ask(format!("check m 0 {round} 10000"))?;
        peer.ask("close m")?;
    }
    PASSED
}

/// The exporting process can open its own handles, in the same and in another context.
pub(crate) fn opens_in_its_own_process(harness: &Harness) -> Verdict {
    let (context, other) = (harness.context()?, harness.context()?);
    let transfer = Transfer::new(&context)?;
    let memory = context.allocate(10_000)?;
    transfer.write(&memory, 0, &pattern(1, 10_000))?;
    let handle = memory.handle()?;
    for opener in [&context, &other] {
        let opened = opener.open_memory(&handle)?;
        transfer.check(&opened, 0, 1, 10_000)?;
        transfer.write(&opened, 5, &[0xAA])?;
        assert_eq!(transfer.read(&memory, 5, 1)?, [0xAA]);
        transfer.write(&memory, 0, &pattern(1, 10_000))?;
        assert!(matches!(opened.handle(), Err(Error::InvalidArgument(_))));
    }
    let kept = other.open_memory(&handle)?;
    drop(memory);
    // The memory is freed but still open here, so its bytes stay and no other allocation gets them.
    let next = context.allocate(10_000)?;
    transfer.write(&next, 0, &pattern(2, 10_000))?;
    transfer.check(&kept, 0, 1, 10_000)?;
    assert!(matches!(context.open_memory(&handle), Err(Error::Stale)));
    PASSED
}

/// Allocations from one byte to one gibibyte share their first and last bytes.
pub(crate) fn all_sizes_up_to_a_gibibyte(harness: &Harness) -> Verdict {
    // Without huge pages, a gibibyte uses only as much memory as the test touches.
    let options = harness.options().huge_pages(false);
    let context = crosshandle::Context::with_options(harness.device(), options)?;
    let transfer = Transfer::new(&context)?;
    let peer = harness.peer()?;
    let sizes = [
        1_usize,
        64,
        65,
        4 << 10,
        (64 << 10) + 1,
        1 << 20,
        2 << 20,
        (2 << 20) + 1,
        64 << 20,
        1 << 30,
    ];
    for len in sizes {
        let memory = context.allocate(len)?;
        assert_eq!(memory.len(), len);
        let part = len.min(1_000);
        transfer.write(&memory, 0, &pattern(1, part))?;
        transfer.write(&memory, len - part, &pattern(2, part))?;
        let words = peer.ask(format!("open-memory m {}", memory.handle()?))?;
        assert_eq!(words[1].parse::<usize>()?, len);
        peer.ask(format!("check m {} 2 {part}", len - part))?;
        peer.ask(format!("write m 0 3 {part}"))?;
        transfer.check(&memory, 0, 3, part)?;
        peer.ask("close m")?;
    }
    PASSED
}

/// Without pooling, an allocation has its own pages and its own descriptor.
pub(crate) fn without_pooling_allocations_are_apart(harness: &Harness) -> Verdict {
    let options = harness.options().pooling(false);
    let context = crosshandle::Context::with_options(harness.device(), options)?;
    let transfer = Transfer::new(&context)?;
    let peer = harness.peer()?;
    let (one, two) = (context.allocate(100)?, context.allocate(100)?);
    let before = procfs::mappings_named(peer.pid(), "crosshandle-memory")?;
    peer.ask(format!("open-memory one {}", one.handle()?))?;
    if harness.is_host() {
        let after = procfs::mappings_named(peer.pid(), "crosshandle-memory")?;
        assert_eq!(after, before + 1);
        let page = context.device().info().granularity;
        let apart = one.as_ptr().addr().abs_diff(two.as_ptr().addr());
        assert!(apart >= page, "{apart} bytes apart");
    }
    peer.ask(format!("open-memory two {}", two.handle()?))?;
    peer.ask("write one 0 1 100")?;
    peer.ask("write two 0 2 100")?;
    transfer.check(&one, 0, 1, 100)?;
    transfer.check(&two, 0, 2, 100)?;
    peer.ask("close one two")?;
    if harness.is_host() {
        let after = procfs::mappings_named(peer.pid(), "crosshandle-memory")?;
        assert_eq!(after, before, "closing unmaps");
    }
    context.trim();
    PASSED
}

/// Invalid arguments are refused with clear errors, and change nothing.
pub(crate) fn bad_arguments_are_refused(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let invalid = |result: crosshandle::Result<()>, what: &str| match result {
        Err(Error::InvalidArgument(message)) if !message.is_empty() => Ok(()),
        other => Err(Failure::new(format!("{what}: {other:?}"))),
    };
    invalid(context.allocate(0).map(drop), "no bytes")?;
    for align in [0, 3, 48, 4 << 20] {
        let options = AllocationOptions::new(64).align(align);
        invalid(context.allocate_with(options).map(drop), "alignment")?;
    }
    for len in [usize::MAX, isize::MAX as usize, 1 << 60, 1 << 48] {
        let error = context.allocate(len).expect_err("so much memory");
        assert!(
            matches!(error, Error::OutOfMemory { .. } | Error::Driver { .. }),
            "{len} bytes: {error:?}"
        );
    }
    let memory = context.allocate(100)?;
    invalid(memory.handle_at(100).map(drop), "handle at the end")?;
    invalid(memory.range(50..101).map(drop), "range")?;
    invalid(memory.range(..=usize::MAX).map(drop), "overflowing range")?;
    let behind = memory.as_ptr().wrapping_add(100);
    invalid(context.memory_handle(behind).map(drop), "behind the end")?;
    invalid(context.memory_handle(std::ptr::null()).map(drop), "null")?;
    let local = 5_u8;
    invalid(
        context.memory_handle(&raw const local).map(drop),
        "a variable",
    )?;
    let start = memory.as_ptr();
    drop(memory);
    invalid(context.memory_handle(start).map(drop), "freed memory")?;
    PASSED
}

/// Many handles from any exporters open at once with the same result as one by one. The error names
/// a handle that cannot be opened.
pub(crate) fn many_open_at_once(harness: &Harness) -> Verdict {
    const MEMORIES: usize = 40;
    const LEN: usize = 10_000;
    let exporters = [harness.peer()?, harness.peer()?];
    let mut handles: Vec<MemoryHandle> = Vec::new();
    for peer in &exporters {
        peer.ask("context apart pooling=no")?;
    }
    for number in 0..MEMORIES {
        let peer = &exporters[number % 3 / 2];
        peer.ask(format!("allocate m{number} {LEN} context=apart"))?;
        peer.ask(format!("write m{number} 0 {number} {LEN}"))?;
        handles.push(
            peer.ask(format!("memory-handle m{number}"))?
                .remove(0)
                .parse()?,
        );
    }
    let own = harness.context()?;
    let transfer = Transfer::new(&own)?;
    let memory = own.allocate(LEN)?;
    transfer.write(&memory, 0, &pattern(MEMORIES as u64, LEN))?;
    handles.push(memory.handle()?);
    // A handle that is given twice is opened twice.
    handles.push(handles[0]);
    let check = |memories: &[Memory]| -> Result<(), Failure> {
        assert_eq!(memories.len(), handles.len());
        for (number, memory) in memories.iter().enumerate() {
            transfer.check(memory, 0, (number % (MEMORIES + 1)) as u64, LEN)?;
        }
        Ok(())
    };
    let began = Instant::now();
    let memories = own.open_memories(&handles, Access::ReadWrite)?;
    let at_once = began.elapsed();
    check(&memories)?;
    // All of them are open already.
    let again = own.open_memories(&handles, Access::ReadWrite)?;
    drop(memories);
    check(&again)?;
    let read_only = own.open_memories(&handles, Access::ReadOnly)?;
    assert!(
        read_only
            .iter()
            .all(|memory| memory.access() == Access::ReadOnly)
    );
    check(&read_only)?;
    drop((again, read_only));
    assert!(own.open_memories(&[], Access::ReadWrite)?.is_empty());
    // Another thread opens them one by one at the same time.
    let other = harness.context()?;
    let began = Instant::now();
    let one_by_one: Result<Vec<_>, _> = handles
        .iter()
        .map(|handle| other.open_memory(handle))
        .collect();
    let alone = began.elapsed();
    check(&one_by_one?)?;
    std::thread::scope(|scope| {
        let opening = scope.spawn(|| own.open_memories(&handles, Access::ReadWrite));
        for handle in handles.iter().rev() {
            own.open_memory(handle)?;
        }
        let memories = opening.join().map_err(|_| Failure::new("it panicked"))??;
        check(&memories)
    })?;
    exporters[0].ask("close m21")?;
    fails!(own.open_memories(&handles, Access::ReadWrite), Stale);
    let rest: Vec<_> = [&handles[..21], &handles[22..]].concat();
    assert_eq!(
        own.open_memories(&rest, Access::ReadWrite)?.len(),
        handles.len() - 1
    );
    exporters[1].kill();
    let gone = own.open_memories(&rest, Access::ReadWrite);
    assert!(gone.is_err_and(|error| error.is_peer_dead()));
    Ok(Outcome::Passed(format!(
        "{} at once in {at_once:?}, one by one in {alone:?}",
        handles.len()
    )))
}
