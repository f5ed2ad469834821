//! Memory that consists of many pieces has one handle, and is one memory for the importer.

use super::hostile::exporter;
use super::impostor::Impostor;
use crate::failure::{Failure, Verdict};
use crate::harness::{Harness, deadline, eventually};
use crate::raw::{self, MEMORY, Request, Socket, borrowed};
use crate::suite::{Outcome, PASSED};
use crate::{Peer, pattern};
use crosshandle::virtual_memory::PhysicalMemory;
use crosshandle::{Access, Context, Error, MemoryHandle, virtual_memory::VirtualRange};
use std::time::{Duration, Instant};

/// The statuses of replies for which the exporter has no room at the moment.
const BUSY: u16 = 10;
const NO_ROOM: u16 = 7;
/// Maximum number of descriptors in one reply.
const BATCH: usize = 64;

/// Maps new physical memories of these lengths side by side, starting at a place. Places and
/// lengths are in units of the granularity.
fn mapped(
    context: &Context,
    places: usize,
    from: usize,
    lengths: &[usize],
) -> Result<VirtualRange, Failure> {
    let unit = context.device().info().granularity;
    let range = VirtualRange::reserve(context, places * unit)?;
    let mut next = from;
    for len in lengths {
        let memory = PhysicalMemory::new(context, len * unit)?;
        range.map(next * unit, &memory, .., Access::ReadWrite)?;
        next += len;
    }
    Ok(range)
}

/// A handle to the bytes of many mappings opens as one memory, in another process and in this one.
pub(crate) fn mappings_side_by_side_have_one_handle(harness: &Harness) -> Verdict {
    let (context, transfer) = harness.transfer()?;
    let unit = context.device().info().granularity;
    let peer = harness.peer()?;
    let range = mapped(&context, 10, 1, &[2, 1, 3, 1])?;
    // The range starts inside the first mapping and ends inside the last one.
    let (start, end) = (2 * unit + 100, 7 * unit + 200);
    let export = range.export(start..end)?;
    assert_eq!(export.len(), end - start);
    let handle = export.handle()?;
    assert_eq!(
        (handle, handle.len()),
        (export.handle()?, (end - start) as u64)
    );
    for (seed, place) in [(1, start), (2, 3 * unit), (3, 5 * unit), (4, 7 * unit)] {
        transfer.write_range(&range, place, &pattern(seed, 200))?;
    }
    let words = peer.ask(format!("open-memory m {handle}"))?;
    assert_eq!(words[1..], [(end - start).to_string(), "read-write".into()]);
    for (seed, place) in [(1, start), (2, 3 * unit), (3, 5 * unit), (4, 7 * unit)] {
        peer.ask(format!("check m {} {seed} 200", place - start))?;
    }
    // One write crosses the borders of mappings, in both directions.
    let opened = context.open_memory(&handle)?;
    for (seed, place) in [
        (5, 3 * unit - 100),
        (6, 4 * unit - 100),
        (7, 7 * unit - 100),
    ] {
        peer.ask(format!("write m {} {seed} 200", place - start))?;
        transfer.check(&opened, place - start, seed, 200)?;
        let mut both = transfer.read_range(&range, place, 100)?;
        both.extend(transfer.read_range(&range, place + 100, 100)?);
        assert_eq!(both, pattern(seed, 200));
        transfer.write(&opened, place - start, &pattern(seed + 10, 200))?;
        peer.ask(format!("check m {} {} 200", place - start, seed + 10))?;
    }
    // A range may also consist of one mapping or of a part of one.
    let part = range.export(2 * unit..2 * unit + 10)?.handle();
    assert_eq!(part?.len(), 10);
    fails!(
        VirtualRange::reserve(&context, unit)?.export(..),
        InvalidArgument
    );
    PASSED
}

/// This process opens what another process exports.
pub(crate) fn peers_export_them(harness: &Harness) -> Verdict {
    let (context, transfer) = harness.transfer()?;
    let unit = context.device().info().granularity;
    let peer = harness.peer()?;
    peer.ask(format!("reserve r {}", 100 * unit))?;
    peer.ask("map-pieces r 100")?;
    peer.ask(format!("range-write r {} 1 1000", 99 * unit))?;
    let handle: MemoryHandle = peer
        .ask(format!("export-range e r 0 {}", 100 * unit))?
        .remove(0)
        .parse()?;
    let memory = context.open_memory(&handle)?;
    assert_eq!(memory.len(), 100 * unit);
    transfer.check(&memory, 99 * unit, 1, 1000)?;
    transfer.write(&memory, 70 * unit, &pattern(2, unit))?;
    peer.ask(format!("range-check r {} 2 {unit}", 70 * unit))?;
    drop(memory);
    // The export ends, but opened memory stays open.
    let memory = context.open_memory(&handle)?;
    peer.ask("close e r")?;
    fails!(context.open_memory(&handle), Stale);
    transfer.check(&memory, 70 * unit, 2, unit)?;
    peer.kill();
    transfer.check(&memory, 70 * unit, 2, unit)?;
    PASSED
}

/// A handle cannot contain a hole between mappings, and the error says where the hole is.
pub(crate) fn holes_are_refused(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let unit = context.device().info().granularity;
    let range = mapped(&context, 10, 2, &[1, 2, 2])?;
    let refused = |part: std::ops::Range<usize>, at: usize| {
        let Err(Error::InvalidArgument(text)) = range.export(part.clone()) else {
            return Err(Failure::new(format!("{part:?} is refused")));
        };
        match text.contains(&format!("nothing is mapped at byte {at} ")) {
            true => Ok(()),
            false => Err(Failure::new(text)),
        }
    };
    refused(0..3 * unit, 0)?;
    refused(2 * unit - 1..3 * unit, 2 * unit - 1)?;
    refused(3 * unit..8 * unit, 7 * unit)?;
    refused(8 * unit..9 * unit, 8 * unit)?;
    range.export(2 * unit..7 * unit)?;
    range.unmap(3 * unit..5 * unit)?;
    refused(2 * unit..7 * unit, 3 * unit)?;
    refused(3 * unit..7 * unit, 3 * unit)?;
    for part in [0..0, 2 * unit..11 * unit, 9 * unit..2 * unit] {
        fails!(range.export(part), InvalidArgument);
    }
    // Only the exporter can share memory that was opened.
    let peer = harness.peer()?;
    peer.ask(format!("physical p {unit}"))?;
    let handle = peer.ask("physical-handle p")?.remove(0).parse()?;
    let opened = PhysicalMemory::open(&context, &handle)?;
    range.map(3 * unit, &opened, .., Access::ReadWrite)?;
    fails!(range.export(2 * unit..4 * unit), InvalidArgument);
    PASSED
}

/// A handle refers to what was mapped when it was made. Growth, other mappings and the end of the
/// range do not change it.
pub(crate) fn handles_mean_what_was_mapped_then(harness: &Harness) -> Verdict {
    let (context, transfer) = harness.transfer()?;
    let unit = context.device().info().granularity;
    let range = mapped(&context, 8, 0, &[1, 1, 1])?;
    for place in 0..3 {
        let bytes = pattern(place as u64, 100);
        transfer.write_range(&range, place * unit, &bytes)?;
    }
    let export = range.export(..3 * unit)?;
    let handle = export.handle()?;
    let early = harness.peer()?;
    early.ask(format!("open-memory m {handle}"))?;
    let other = PhysicalMemory::new(&context, unit)?;
    range.unmap(unit..2 * unit)?;
    range.map(unit, &other, .., Access::ReadWrite)?;
    range.map(
        3 * unit,
        &PhysicalMemory::new(&context, unit)?,
        ..,
        Access::ReadWrite,
    )?;
    transfer.write_range(&range, unit, &pattern(9, 100))?;
    let later = range.export(..4 * unit)?.handle()?;
    assert_ne!(later, handle);
    drop(range);
    let late = harness.peer()?;
    let words = late.ask(format!("open-memory m {handle}"))?;
    assert_eq!(words[1], (3 * unit).to_string());
    for peer in [&early, &late] {
        for place in 0..3 {
            peer.ask(format!("check m {} {place} 100", place * unit))?;
        }
    }
    late.ask(format!("write m {unit} 20 100"))?;
    early.ask(format!("check m {unit} 20 100"))?;
    drop(export);
    early.refused(format!("open-memory n {handle}"), "Stale")?;
    early.refused(format!("open-memory n {later}"), "Stale")?;
    early.ask(format!("check m {unit} 20 100"))?;
    PASSED
}

/// A read-only handle of many pieces allows reading only.
pub(crate) fn read_only_is_enforced(harness: &Harness) -> Verdict {
    let (context, transfer) = harness.transfer()?;
    let unit = context.device().info().granularity;
    let range = mapped(&context, 4, 0, &[1, 2, 1])?;
    transfer.write_range(&range, 3 * unit, &pattern(1, 100))?;
    let export = range.export(..)?;
    let (all, handle) = (export.handle()?, export.handle_read_only()?);
    assert!(handle.is_read_only() && !all.is_read_only());
    let peer = harness.peer()?;
    peer.refused(format!("open-memory m {handle}"), "ReadOnly")?;
    for handle in [handle, all] {
        let words = peer.ask(format!("open-memory m {handle} read-only=yes"))?;
        assert_eq!(words[2], "read-only");
        peer.ask(format!("check m {} 1 100", 3 * unit))?;
        peer.refused("try-write m", "ReadOnly")?;
        peer.ask("close m")?;
    }
    // No descriptor in the replies allows more.
    if harness.is_host() {
        let socket = Socket::connect_in(harness.directory())?;
        socket.send(&Request::attach(handle.as_bytes()).bytes(), &[])?;
        drop(socket.receive()?);
        let about = Request::about(MEMORY, handle.as_bytes());
        socket.send(&about.writing().bytes(), &[])?;
        let (answer, files) = socket.receive()?;
        assert_eq!((raw::status(&answer), files.len()), (raw::READ_ONLY, 0));
        socket.send(&about.bytes(), &[])?;
        let (_, files) = socket.receive()?;
        assert_eq!(files.len(), 3);
        for file in files {
            let flags = rustix::fs::fcntl_getfl(&file)?;
            assert!(!flags.contains(rustix::fs::OFlags::RDWR), "{flags:?}");
        }
    }
    PASSED
}

/// The pieces of a handle are mapped only once, however often it is opened. They are unmapped when
/// none is open any more.
pub(crate) fn importers_map_them_once(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let unit = context.device().info().granularity;
    let range = mapped(&context, 60, 0, &[1; 60])?;
    let export = range.export(..)?;
    let handle = export.handle()?;
    let peer = harness.peer()?;
    // The very first open uses some resources permanently.
    let other = context.allocate(100)?;
    peer.ask(format!("open-memory o {}", other.handle()?))?;
    peer.ask("write o 0 1 100")?;
    let before = peer.usage()?;
    peer.ask(format!("open-memory m0 {handle}"))?;
    let once = peer.usage()?;
    for number in 1..20 {
        peer.ask(format!("open-memory m{number} {handle}"))?;
    }
    let often = peer.usage()?;
    assert!(
        often.mappings <= once.mappings + 5,
        "{once:?}, then {often:?}"
    );
    peer.ask(format!("write m7 {} 3 100", 59 * unit))?;
    peer.ask(format!("check m19 {} 3 100", 59 * unit))?;
    let names: Vec<_> = (0..20).map(|number| format!("m{number}")).collect();
    peer.ask(format!("close {}", names.join(" ")))?;
    eventually("all of it is closed", || {
        let after = peer.usage()?;
        let is_unmapped = after.mappings <= before.mappings + 5;
        Ok(is_unmapped && after.descriptors <= before.descriptors + 3)
    })?;
    PASSED
}

/// Memory of a thousand pieces reaches a process with a limit of 256 descriptors, and uses none
/// afterwards.
pub(crate) fn a_thousand_fit_few_descriptors(harness: &Harness) -> Verdict {
    let (context, transfer) = harness.transfer()?;
    let unit = context.device().info().granularity;
    let count = harness.expectations().pieces;
    let range = mapped(&context, count, 0, &vec![1; count])?;
    for (seed, place) in [0, count / 2, count - 1].into_iter().enumerate() {
        transfer.write_range(&range, place * unit, &pattern(seed as u64, 100))?;
    }
    let began = Instant::now();
    let export = range.export(..)?;
    let handle = export.handle()?;
    let shared = began.elapsed();
    let peer = harness.peer()?;
    let other = context.allocate(100)?;
    peer.ask(format!("open-memory o {}", other.handle()?))?;
    let before = peer.usage()?;
    let keeps_descriptors = harness.expectations().keeps_descriptors;
    if !keeps_descriptors {
        peer.ask("limit-files 256")?;
    }
    let began = Instant::now();
    peer.ask(format!("open-memory m {handle}"))?;
    let opened = began.elapsed();
    for (seed, place) in [0, count / 2, count - 1].into_iter().enumerate() {
        peer.ask(format!("check m {} {seed} 100", place * unit))?;
    }
    if !keeps_descriptors {
        let after = peer.usage()?;
        assert!(
            after.descriptors <= before.descriptors + 3,
            "{before:?}, then {after:?}"
        );
        peer.ask("close m")?;
        // The free descriptors are too few for a whole reply, so the importer requests fewer pieces
        // at a time.
        peer.ask("take-files all 20")?;
        peer.ask(format!("open-memory m {handle}"))?;
        peer.ask(format!("check m {} 2 100", (count - 1) * unit))?;
        peer.ask("close m all")?;
        // With no free descriptor, the error is clear, and later opens are not affected.
        peer.ask("take-files all 0")?;
        let refused = peer.refused(format!("open-memory m {handle}"), "LimitReached")?;
        assert!(refused.message.contains("RLIMIT_NOFILE"), "{refused}");
        let more = context.allocate(100)?;
        peer.ask(format!("open-memory o2 {}", more.handle()?))?;
        peer.ask("close all")?;
        peer.ask(format!("open-memory m {handle}"))?;
        peer.ask(format!("check m {} 2 100", (count - 1) * unit))?;
    }
    Ok(Outcome::Passed(format!(
        "{count} pieces: shared in {shared:?}, opened in {opened:?} with the peer's answer"
    )))
}

/// An exporter that is killed while it sends pieces causes an immediate error in the importer.
pub(crate) fn killed_exporters_stop_no_importer(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let unit = context.device().info().granularity;
    let count = harness.expectations().pieces;
    let (mut opened, mut refused, mut slowest) = (0, 0, Duration::ZERO);
    for round in 0..12 {
        let peer = harness.peer()?;
        peer.ask(format!("reserve r {}", count * unit))?;
        peer.ask(format!("map-pieces r {count}"))?;
        let handle: MemoryHandle = peer
            .ask(format!("export-range e r 0 {}", count * unit))?
            .remove(0)
            .parse()?;
        let result = std::thread::scope(|scope| {
            let opening = scope.spawn(|| {
                let began = Instant::now();
                (context.open_memory(&handle), began.elapsed())
            });
            // The times range from before the first piece to after the last one.
            std::thread::sleep(Duration::from_micros(2500) * round);
            peer.kill();
            opening.join()
        });
        let (result, taken) = result.map_err(|_| Failure::new("the opening panicked"))?;
        slowest = slowest.max(taken);
        match result {
            Ok(memory) => {
                assert_eq!(memory.len(), count * unit);
                opened += 1;
            }
            Err(error) if error.is_peer_dead() => refused += 1,
            Err(error) => return Err(error.into()),
        }
    }
    match slowest < Duration::from_secs(3) * crate::slowdown() {
        true => Ok(Outcome::Passed(format!(
            "{opened} opened, {refused} refused, the slowest {slowest:?}"
        ))),
        false => Err(Failure::new(format!("an opening took {slowest:?}"))),
    }
}

fn hasty(harness: &Harness) -> Result<Peer, Failure> {
    let importer = harness.peer()?;
    let timeout = 1000 * crate::slowdown();
    importer.ask(format!("context hasty timeout={timeout}"))?;
    Ok(importer)
}

/// The importer refuses any false statement of an exporter about its pieces, and continues.
pub(crate) fn false_pieces_are_refused(harness: &Harness) -> Verdict {
    let (_exporter, handle) = exporter(harness)?;
    let impostor = Impostor::new(harness, &handle)?;
    let page = 4096;
    let (whole, len) = ([2 * page, 0, 2 * page], 2 * page);
    let huge = 1 << 40;
    type Lie = (&'static str, u64, (u32, u32), Vec<[u64; 3]>, usize);
    let lies: [Lie; 13] = [
        ("no pieces", len, (1, 0), vec![], 0),
        ("none in all", len, (0, 0), vec![whole], 1),
        ("more than any has", huge, (u32::MAX, 0), vec![whole], 1),
        ("more here than in all", 2 * len, (1, 0), vec![whole; 2], 2),
        ("another first one", len, (2, 1), vec![whole], 1),
        ("fewer descriptors", 2 * len, (2, 0), vec![whole; 2], 1),
        ("more descriptors", len, (1, 0), vec![whole], 2),
        ("too short", 2 * len, (1, 0), vec![whole], 1),
        ("too long", len, (2, 0), vec![whole; 2], 2),
        ("nothing of its memory", len, (1, 0), vec![[len, 0, 0]], 1),
        ("beyond its memory", len, (1, 0), vec![[len, page, len]], 1),
        ("no whole pages", huge, (1, 0), vec![[huge + 1, 1, huge]], 1),
        ("overflowing", len, (1, 0), vec![[len, u64::MAX, len]], 1),
    ];
    let mut count = 0;
    for (what, len, numbers, parts, files) in lies {
        let importer = hasty(harness)?;
        let (pending, connection) = impostor.admit(&importer, 2)?;
        let (question, _) = connection.receive()?;
        assert_eq!(
            (raw::operation(&question), raw::first_piece(&question)),
            (MEMORY, 0)
        );
        let answer = raw::pieces(
            impostor.segment(),
            len,
            raw::serial(&question),
            numbers,
            &parts,
        );
        let files = (0..files).map(|_| raw::memfd(2 * page, true));
        let files: Vec<_> = files.collect::<Result<_, _>>()?;
        connection.send(&answer, &borrowed(&files))?;
        match pending.reply(deadline()) {
            Err(refused) if ["Protocol", "Extent"].contains(&&*refused.kind) => {}
            other => return Err(Failure::new(format!("{what}: {other:?}"))),
        }
        // The same importer opens a genuine handle.
        importer.ask(format!("open-memory n {handle} context=hasty"))?;
        importer.ask("check n 0 1 100")?;
        count += 1;
    }
    // The second reply does not continue where the first one ended, or is no such reply.
    let memory = |number| raw::memfd(number, true);
    let large = 8 << 20;
    for (what, numbers) in [
        ("again", (2, 0)),
        ("another number", (3, 1)),
        ("no pieces", (0, 0)),
    ] {
        let importer = hasty(harness)?;
        let (pending, connection) = impostor.admit(&importer, 2)?;
        let (question, _) = connection.receive()?;
        let segment = impostor.segment();
        let (part, serial) = ([large, 0, large], raw::serial(&question));
        let first = raw::pieces(segment, 2 * large, serial, (2, 0), &[part]);
        connection.send(&first, &borrowed(&[memory(large)?]))?;
        let (question, _) = connection.receive()?;
        assert_eq!(
            (raw::operation(&question), raw::first_piece(&question)),
            (MEMORY, 1)
        );
        let serial = raw::serial(&question);
        let second = match numbers {
            (0, 0) => raw::fetched(segment, large, serial),
            numbers => raw::pieces(segment, 2 * large, serial, numbers, &[part]),
        };
        // If a driver has refused the first piece, the importer no longer listens.
        let _ = connection.send(&second, &borrowed(&[memory(large)?]));
        match pending.reply(deadline()) {
            Err(refused) if ["Protocol", "Driver", "Extent"].contains(&&*refused.kind) => {}
            other => return Err(Failure::new(format!("{what}: {other:?}"))),
        }
        // The same importer opens a genuine handle.
        importer.ask(format!("open-memory n {handle} context=hasty"))?;
        importer.ask("check n 0 1 100")?;
        count += 1;
    }
    Ok(Outcome::Passed(format!("{count} lies")))
}

/// Returns the number of a process's shared mappings, which include all mapped pieces.
fn shared_mappings(pid: u32) -> std::io::Result<usize> {
    let maps = crate::procfs::maps(pid)?;
    let shared = maps.iter().filter(|line| line.protection.ends_with('s'));
    Ok(shared.count())
}

/// An exporter that stops in the middle, or that never finishes, costs at most the importer's
/// timeout.
pub(crate) fn silent_exporters_cost_the_timeout(harness: &Harness) -> Verdict {
    if !harness.is_host() {
        // The false exporter has only host memory.
        return Ok(Outcome::Skipped("host_accessible_memory"));
    }
    let (_exporter, handle) = exporter(harness)?;
    let impostor = Impostor::new(harness, &handle)?;
    let page = 4096;
    let (total, len) = (100_000, 100_000 * page);
    let mut results = Vec::new();
    for is_silent in [true, false] {
        let importer = hasty(harness)?;
        importer.ask(format!("open-memory o {handle} context=hasty"))?;
        let before = importer.usage()?;
        let mapped_before = shared_mappings(importer.pid())?;
        let (pending, connection) = impostor.admit(&importer, 2)?;
        let began = Instant::now();
        for number in 0.. {
            if pending.is_answered() || (is_silent && number == 3) {
                break;
            }
            let Ok((question, _)) = connection.receive() else {
                break;
            };
            if question.is_empty() {
                break;
            }
            assert_eq!(raw::first_piece(&question), number);
            let (serial, part) = (raw::serial(&question), [page, 0, page]);
            let answer = raw::pieces(impostor.segment(), len, serial, (total, number), &[part]);
            std::thread::sleep(Duration::from_millis(5));
            let _ = connection.send(&answer, &borrowed(&[raw::memfd(page, true)?]));
        }
        let refused = match pending.reply(deadline()) {
            Err(refused) if refused.kind == "TimedOut" => refused,
            other => return Err(Failure::new(format!("TimedOut expected, but {other:?}"))),
        };
        results.push(format!("{} after {:?}", refused.message, began.elapsed()));
        drop(connection);
        // Threads that close pieces leave stacks and heaps, which are private.
        eventually("nothing of it is left", || {
            Ok(importer.usage()?.descriptors <= before.descriptors + 5
                && shared_mappings(importer.pid())? <= mapped_before + 9)
        })?;
        importer.ask(format!("open-memory n {handle} context=hasty"))?;
    }
    Ok(Outcome::Passed(results.join("; ")))
}

/// An importer that requests pieces and does not read the replies gets no more of them.
pub(crate) fn askers_must_read_the_answers(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let count = 2 * BATCH;
    let range = mapped(&context, count, 0, &vec![1; count])?;
    let export = range.export(..)?;
    let handle = export.handle()?;
    let socket = Socket::connect_in(harness.directory())?;
    socket.send(&Request::attach(handle.as_bytes()).bytes(), &[])?;
    drop(socket.receive()?);
    let ask = |first| Request {
        context: first,
        ..Request::about(MEMORY, handle.as_bytes()).writing()
    };
    for first in [0, BATCH as u32, 0] {
        socket.send(&ask(first).bytes(), &[])?;
    }
    // The broker serves the first request, and tells the others to wait. It replies in order, so
    // all three requests were handled when two other processes have opened the memory.
    for peer in [harness.peer()?, harness.peer()?] {
        peer.ask(format!("open-memory m {handle}"))?;
    }
    let mut answers = Vec::new();
    for _ in 0..3 {
        let (answer, files) = socket.receive()?;
        answers.push((raw::status(&answer), !files.is_empty()));
    }
    assert_eq!(answers, [(0, true), (BUSY, false), (BUSY, false)]);
    // Once the replies are read, there are more of them. There is none for a piece that does not
    // exist, or for another object.
    for (first, status) in [
        (1, 0),
        (count as u32, raw::BAD_REQUEST),
        (count as u32 - 1, 0),
    ] {
        socket.send(&ask(first).bytes(), &[])?;
        let (answer, files) = socket.receive()?;
        assert_eq!(
            (raw::status(&answer), files.is_empty()),
            (status, status != 0)
        );
    }
    let memory = context.allocate(100)?;
    let whole = memory.handle()?;
    let ask = |first| Request {
        context: first,
        ..Request::about(MEMORY, whole.as_bytes())
    };
    socket.send(&ask(1).bytes(), &[])?;
    let (answer, files) = socket.receive()?;
    assert_eq!((raw::status(&answer), files.len()), (raw::BAD_REQUEST, 0));
    PASSED
}

/// If an exporter has no room for some of its pieces for a while, the importer asks again. Mapped
/// pieces stay mapped.
pub(crate) fn exporters_without_room_are_asked_again(harness: &Harness) -> Verdict {
    if !harness.is_host() {
        // The false exporter has only host memory.
        return Ok(Outcome::Skipped("host_accessible_memory"));
    }
    let (_exporter, handle) = exporter(harness)?;
    let impostor = Impostor::new(harness, &handle)?;
    let importer = harness.peer()?;
    importer.ask("context hasty")?;
    let (pending, connection) = impostor.admit(&importer, 2)?;
    let (large, count) = (8 << 20, 4);
    let mut asked = Vec::new();
    let mut refusals = [NO_ROOM, BUSY, NO_ROOM].into_iter().cycle();
    while !pending.is_answered() && asked.len() < 20 {
        let (question, _) = connection.receive()?;
        let (first, serial) = (raw::first_piece(&question), raw::serial(&question));
        assert_eq!(raw::operation(&question), MEMORY);
        // The exporter sends the first piece at once, and each later one at the fourth request.
        let times = asked.iter().filter(|other| **other == first).count();
        asked.push(first);
        if first > 0 && times < 3 {
            let status = refusals.next().expect("without end");
            connection.send(&raw::refused(status, serial), &[])?;
            continue;
        }
        let part = [large, 0, large];
        let total = count * large;
        let segment = impostor.segment();
        let answer = raw::pieces(segment, total, serial, (count as u32, first), &[part]);
        connection.send(&answer, &borrowed(&[raw::memfd(large, true)?]))?;
        if first + 1 == count as u32 {
            break;
        }
    }
    pending.reply(deadline())?;
    assert_eq!(asked, [0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]);
    PASSED
}

/// Importers that do not read their pieces leave enough descriptors of the exporter's user for
/// others.
pub(crate) fn what_is_under_way_is_bounded(harness: &Harness) -> Verdict {
    if !harness.is_host() {
        // On other backends, the exporter's driver has descriptors of its own.
        return Ok(Outcome::Skipped("host_accessible_memory"));
    }
    let exporter = harness.peer()?;
    let unit = harness.device().info().granularity;
    exporter.ask(format!("reserve r {}", BATCH * unit))?;
    exporter.ask(format!("map-pieces r {BATCH}"))?;
    let handle: MemoryHandle = exporter
        .ask(format!("export-range e r 0 {}", BATCH * unit))?
        .remove(0)
        .parse()?;
    // Half of the limit is enough for four replies.
    exporter.ask(format!("limit-files {}", 8 * BATCH))?;
    let importers: Result<Vec<_>, Failure> = (0..6)
        .map(|_| {
            let socket = Socket::connect_in(harness.directory())?;
            socket.send(&Request::attach(handle.as_bytes()).bytes(), &[])?;
            drop(socket.receive()?);
            Ok(socket)
        })
        .collect();
    let importers = importers?;
    let ask = Request::about(MEMORY, handle.as_bytes()).writing().bytes();
    for socket in &importers {
        socket.send(&ask, &[])?;
        assert!(socket.is_ready(deadline())?, "it is answered");
    }
    let honest = harness.peer()?;
    let pending = honest.begin(format!("open-memory m {handle}"));
    let (answer, files) = importers[5].receive()?;
    assert_eq!((raw::status(&answer), files.len()), (BUSY, 0));
    let (answer, files) = importers[4].receive()?;
    assert_eq!((raw::status(&answer), files.len()), (BUSY, 0));
    assert!(!pending.is_answered());
    // The open waits until an importer reads the pieces in flight.
    let (answer, files) = importers[0].receive()?;
    assert_eq!((raw::status(&answer), files.is_empty()), (0, false));
    pending.reply(deadline())?;
    PASSED
}
