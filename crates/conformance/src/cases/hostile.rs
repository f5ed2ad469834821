//! Importers that break the protocol harm only themselves.

use crate::Peer;
use crate::failure::{Failure, Verdict};
use crate::harness::{Harness, eventually};
use crate::pattern::Random;
use crate::raw::{
    self, ARENA, BAD_REQUEST, CHUNK, DESCRIBE, EVENTS, LEDGER, MEMORY, MIRROR, OTHER_VERSION,
    READ_ONLY, REPLY, Request, SLOT, STALE, Socket, UNKNOWN_CONTEXT, VERSION, WRONG_KEY, borrowed,
    status,
};
use crate::suite::PASSED;
use crate::tamper::at;
use crosshandle::{EventHandle, MemoryHandle};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) fn exporter(harness: &Harness) -> Result<(Peer, MemoryHandle), Failure> {
    let peer = harness.peer()?;
    peer.ask("allocate m 5000000")?;
    peer.ask("write m 0 1 100")?;
    let handle = peer.ask("memory-handle m")?.remove(0).parse()?;
    Ok((peer, handle))
}

/// Checks that the exporter serves a well-behaved process.
fn check_served(harness: &Harness, handle: &MemoryHandle) -> Result<(), Failure> {
    let peer = harness.peer()?;
    peer.ask(format!("open-memory m {handle}"))?;
    peer.ask("check m 0 1 100")?;
    Ok(())
}

/// Returns the broker's status for a message.
fn ask(socket: &Socket, message: &[u8]) -> Result<u16, Failure> {
    socket.send(message, &[])?;
    let (answer, granted) = socket.receive()?;
    assert_eq!(answer.len(), REPLY);
    assert_eq!(granted.is_empty(), status(&answer) != 0);
    Ok(status(&answer))
}

/// Returns the broker's status for a message on a new connection.
fn answer(harness: &Harness, message: &[u8]) -> Result<u16, Failure> {
    ask(&Socket::connect_in(harness.directory())?, message)
}

/// Checks that a message with descriptors does not arrive. The kernel refuses to send it (Linux
/// 6.16), or the exporter hangs up.
fn check_descriptors_refused(
    socket: &Socket,
    message: &[u8],
    files: &[OwnedFd],
) -> Result<(), Failure> {
    match socket.send(message, &borrowed(files)) {
        Err(Errno::PERM) => {}
        Ok(()) => assert!(socket.is_hung_up(), "{} descriptors", files.len()),
        Err(errno) => return Err(errno.into()),
    }
    Ok(())
}

/// Attaches a connection by a handle, and returns it with the ledger that it received.
pub(super) fn attached(
    harness: &Harness,
    handle: &[u8],
) -> Result<(Socket, Vec<OwnedFd>), Failure> {
    let socket = Socket::connect_in(harness.directory())?;
    socket.send(&Request::attach(handle).bytes(), &[])?;
    let (answer, granted) = socket.receive()?;
    assert_eq!(
        (status(&answer), granted.len()),
        (0, 2),
        "catalog and ledger"
    );
    Ok((socket, granted))
}

/// Invalid requests are refused with the right status, and grant nothing.
pub(crate) fn senseless_requests_are_refused(harness: &Harness) -> Verdict {
    let (_exporter, handle) = exporter(harness)?;
    let attach = Request::attach(handle.as_bytes());
    let about = |operation| Request::about(operation, handle.as_bytes());
    // Importers must not send descriptors.
    for files in [
        vec![raw::memfd(LEDGER, true)?],
        vec![raw::memfd(LEDGER, false)?],
        vec![raw::pipe()?],
        vec![raw::memfd(LEDGER, true)?, raw::pipe()?],
    ] {
        let socket = Socket::connect_in(harness.directory())?;
        check_descriptors_refused(&socket, &attach.bytes(), &files)?;
    }
    let other = Request {
        context: attach.context + 7,
        ..attach
    };
    assert_eq!(answer(harness, &other.bytes())?, UNKNOWN_CONTEXT);
    let newer = attach.of_version(VERSION + 1);
    assert_eq!(answer(harness, &newer)?, OTHER_VERSION);
    let bytes = attach.bytes();
    for message in [
        // These requests need an attached connection.
        &about(MEMORY).bytes()[..],
        &about(CHUNK).bytes(),
        &about(ARENA).bytes(),
        &about(MIRROR).bytes(),
        // These requests have fields that their operation does not use.
        &about(DESCRIBE).bytes(),
        &attach.writing().bytes(),
        &about(99).bytes(),
        &bytes[..bytes.len() - 1],
        &bytes[..3],
        b"GET / HTTP/1.1\r\n\r\n",
    ] {
        assert_eq!(answer(harness, message)?, BAD_REQUEST, "{message:?}");
    }
    // The connection attaches and then repeats every request, or sends it out of order.
    let (socket, _) = attached(harness, handle.as_bytes())?;
    for request in [
        attach,
        // The broker has already sent the first chunk.
        about(CHUNK),
        about(ARENA),
        about(MIRROR),
        Request {
            access: 2,
            ..about(MEMORY)
        },
        Request {
            context: attach.context,
            ..about(MEMORY)
        },
    ] {
        let refused = ask(&socket, &request.bytes())?;
        assert_eq!(refused, BAD_REQUEST, "{request:?}");
    }
    let files = [raw::memfd(LEDGER, true)?];
    check_descriptors_refused(&socket, &about(MEMORY).bytes(), &files)?;
    check_served(harness, &handle)?;
    PASSED
}

/// A process of the same user gets reports, attached or not, as often as it asks. They contain no
/// key. The exporter serves others in the meantime, and does not treat such a process as an
/// importer.
pub(crate) fn reports_are_given_to_the_same_user(harness: &Harness) -> Verdict {
    let (_exporter, handle) = exporter(harness)?;
    let key: String = (handle.as_bytes()[at::KEY..at::KEY + 16].iter())
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let report = |socket: &Socket| -> Result<String, Failure> {
        let (answer, files) = socket.receive()?;
        let [file] = &files[..] else {
            return Err(Failure::new(format!("{} files", files.len())));
        };
        assert_eq!(status(&answer), 0);
        let file = File::from(file.try_clone()?);
        let mut bytes = vec![0; file.metadata()?.len() as usize];
        file.read_exact_at(&mut bytes, 0)?;
        assert!(file.write_at(b"x", 0).is_err(), "it is constant");
        Ok(String::from_utf8(bytes)?)
    };
    let describe = Request::describe().bytes();
    let (attached, _files) = attached(harness, handle.as_bytes())?;
    let strangers: Result<Vec<_>, _> = (0..20)
        .map(|_| Socket::connect_in(harness.directory()))
        .collect();
    let sockets = strangers?;
    for round in 0..3 {
        for socket in sockets.iter().chain([&attached]) {
            socket.send(&describe, &[])?;
        }
        for socket in sockets.iter().chain([&attached]) {
            let report = report(socket)?;
            assert!(report.contains("\"bytes\":5000000"), "{round}: {report}");
            assert!(report.contains("\"attaches\":1,"), "{round}: {report}");
            assert!(!report.contains(&key), "{report}");
        }
    }
    check_served(harness, &handle)?;
    PASSED
}

/// Checks that a guessing request with a known key is refused in this way, both for attaching and
/// afterwards.
fn check_guess(
    harness: &Harness,
    (socket, context): (&Socket, u32),
    guess: Request,
    expected: &[u16],
) -> Result<(), Failure> {
    for operation in [MEMORY, ARENA, MIRROR, CHUNK] {
        let message = Request { operation, ..guess }.bytes();
        let refused = ask(socket, &message)?;
        assert!(expected.contains(&refused), "{refused} to {guess:?}");
    }
    let attach = Request {
        operation: raw::ATTACH,
        context,
        ..guess
    };
    let refused = answer(harness, &attach.bytes())?;
    assert!(expected.contains(&refused), "{refused} to {attach:?}");
    Ok(())
}

/// A handle is a capability for its own object and access. A process that has it gets no other
/// object of the same context, whatever records and generations it guesses.
pub(crate) fn a_key_opens_one_object_alone(harness: &Harness) -> Verdict {
    let unit = harness.peer_device().info().granularity;
    for pooling in ["yes", "no"] {
        let exporter = harness.peer()?;
        exporter.ask(format!("context default pooling={pooling}"))?;
        let mut handles = Vec::new();
        for (name, len) in [("granted", 5_000_000), ("large", 5_000_000), ("small", 100)] {
            exporter.ask(format!("allocate {name} {len}"))?;
            handles.push(exporter.ask(format!("memory-handle {name}"))?.remove(0));
        }
        let of_memory = |text: &String| text.parse::<MemoryHandle>();
        let others: Result<Vec<_>, _> = handles[1..].iter().map(of_memory).collect();
        let mut others: Vec<_> = others?
            .iter()
            .map(|handle| handle.as_bytes().to_vec())
            .collect();
        // The same memory, but with a handle for reading and writing.
        others.push(of_memory(&handles[0])?.as_bytes().to_vec());
        exporter.ask(format!("physical p {unit}"))?;
        let physical = exporter.ask("physical-handle p")?.remove(0);
        others.push(
            physical
                .parse::<crosshandle::virtual_memory::PhysicalMemoryHandle>()?
                .as_bytes()
                .to_vec(),
        );
        exporter.ask("event e")?;
        let event: EventHandle = exporter.ask("event-handle e")?.remove(0).parse()?;
        others.push(event.as_bytes().to_vec());
        let granted = exporter.ask("memory-handle granted read-only=yes")?;
        let granted: MemoryHandle = granted[0].parse()?;
        let own = Request::about(MEMORY, granted.as_bytes());
        let context = Request::attach(granted.as_bytes()).context;

        let (socket, _) = attached(harness, granted.as_bytes())?;
        assert_eq!(ask(&socket, &own.writing().bytes())?, READ_ONLY);
        for other in &others {
            // The record and the generation are correct, but the key belongs to the granted object.
            let target = Request {
                key: own.key,
                ..Request::about(MEMORY, other)
            };
            check_guess(harness, (&socket, context), target, &[WRONG_KEY])?;
            let target = Request {
                key: [7; 16],
                ..target
            };
            check_guess(harness, (&socket, context), target, &[WRONG_KEY])?;
        }
        for record in (0..20).filter(|record| *record != own.record) {
            for generation in (0..32).chain([u64::MAX, 1 << 32 | own.generation]) {
                let guess = Request {
                    record,
                    generation,
                    ..own
                };
                check_guess(harness, (&socket, context), guess, &[WRONG_KEY, STALE])?;
            }
        }
        for generation in [0, 1, own.generation + 4, own.generation ^ 1 << 33] {
            let guess = Request { generation, ..own };
            check_guess(harness, (&socket, context), guess, &[STALE])?;
        }
        // An event's key opens its arena, and no memory.
        let event = event.as_bytes();
        let (socket, _) = attached(harness, event)?;
        let memory = Request::about(MEMORY, event).bytes();
        assert_eq!(ask(&socket, &memory)?, BAD_REQUEST);
        socket.send(&Request::about(ARENA, event).bytes(), &[])?;
        let (answer, files) = socket.receive()?;
        assert_eq!((status(&answer), files.len()), (0, 2), "arena and locks");
        assert_eq!(rustix::fs::fstat(&files[0])?.st_size as u64, EVENTS);
        assert_eq!(rustix::fs::fstat(&files[1])?.st_size, 0);
        drop(exporter);
        std::fs::remove_file(raw::only_socket(harness.directory())?)?;
    }
    PASSED
}

/// The later chunks of a context are sent only a few times to each importer, in case the first
/// reply was lost. The request needs the key of a record in that chunk.
pub(crate) fn chunks_are_given_few_times(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    // The events are more than the first chunk has room for.
    let events: Result<Vec<_>, _> = (0..1030).map(|_| context.create_event()).collect();
    let events = events?;
    let handles = [&events[0], &events[1027], &events[1028]].map(crosshandle::Event::handle);
    let [first, late, later] = handles;
    let [first, late, later] = [first?, late?, later?];
    let (socket, _) = attached(harness, first.as_bytes())?;
    let chunk = |handle: &EventHandle| Request::about(CHUNK, handle.as_bytes());
    let stolen = Request {
        key: chunk(&first).key,
        ..chunk(&late)
    };
    assert_eq!(ask(&socket, &stolen.bytes())?, WRONG_KEY);
    socket.send(&chunk(&late).bytes(), &[])?;
    let (answer, files) = socket.receive()?;
    assert_eq!((status(&answer), files.len()), (0, 2));
    assert_eq!(ask(&socket, &chunk(&first).bytes())?, BAD_REQUEST);
    let again = |handle| ask(&socket, &chunk(handle).bytes());
    let sent = (0..1000)
        .map(|_| again(&later))
        .take_while(|answer| matches!(answer, Ok(0)));
    assert!((1..100).contains(&sent.count()));
    for handle in [&late, &later] {
        assert_eq!(again(handle)?, BAD_REQUEST);
    }
    // A process that opens the event in the normal way gets the chunk automatically.
    let peer = harness.peer()?;
    peer.ask(format!("open-event e {late}"))?;
    peer.ask("signal e")?;
    events[1027].wait_value_timeout(1, crate::harness::deadline())?;
    PASSED
}

/// Importers cannot write to the exporter's catalog, and cannot change its length.
pub(crate) fn catalogs_cannot_be_written(harness: &Harness) -> Verdict {
    let (_exporter, handle) = exporter(harness)?;
    let (_socket, granted) = attached(harness, handle.as_bytes())?;
    let [catalog, ledger] = &granted[..] else {
        return Err(Failure::new("two descriptors"));
    };
    assert!(rustix::io::pwrite(catalog, b"x", 0).is_err());
    for file in [catalog, ledger] {
        assert_eq!(rustix::fs::ftruncate(file, 1), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(file, 1 << 30), Err(Errno::PERM));
    }
    // SAFETY: the mapping is new, and no code accesses it if the call succeeds.
    let mapped = unsafe {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let access = ProtFlags::READ | ProtFlags::WRITE;
        mmap(
            std::ptr::null_mut(),
            4096,
            access,
            MapFlags::SHARED,
            catalog,
            0,
        )
    };
    assert_eq!(mapped.err(), Some(Errno::PERM));
    check_served(harness, &handle)?;
    PASSED
}

/// The broker closes a connection whose request is too long or has too many descriptors.
pub(crate) fn oversized_requests_are_hung_up_on(harness: &Harness) -> Verdict {
    let (exporter, handle) = exporter(harness)?;
    check_served(harness, &handle)?;
    let before = exporter.usage()?;
    let attach = Request::attach(handle.as_bytes()).bytes();
    for _ in 0..20 {
        let socket = Socket::connect_in(harness.directory())?;
        socket.send(&[0; 4096], &[])?;
        assert!(socket.is_hung_up());
        for count in [3, 8] {
            let files: Result<Vec<_>, _> = (0..count).map(|_| raw::memfd(LEDGER, true)).collect();
            let socket = Socket::connect_in(harness.directory())?;
            check_descriptors_refused(&socket, &attach, &files?)?;
        }
    }
    // The exporter keeps no descriptor of the request.
    eventually("all are closed", || {
        Ok(exporter.usage()?.descriptors <= before.descriptors)
    })?;
    check_served(harness, &handle)?;
    PASSED
}

/// A process that has an event's handle may write anything into the arena of that event and into
/// its own ledger. The events of that arena become meaningless. No process crashes or hangs, and
/// events in other arenas are not affected.
pub(crate) fn scribbles_stay_in_their_arena(harness: &Harness) -> Verdict {
    let (victim, _) = exporter(harness)?;
    let witness = harness.peer()?;
    victim.ask("context other")?;
    victim.ask("event apart context=other")?;
    let apart = victim.ask("event-handle apart")?.remove(0);
    witness.ask(format!("open-event apart {apart}"))?;
    victim.ask("event e")?;
    let event = victim.ask("event-handle e")?.remove(0);
    witness.ask(format!("open-event e {event}"))?;
    let event: EventHandle = event.parse()?;
    let record = event.as_bytes()[at::RECORD..at::RECORD + 4].try_into()?;
    let slot = SLOT * u64::from(u32::from_le_bytes(record));
    // The attacker attaches like a regular importer.
    let (socket, mut granted) = attached(harness, event.as_bytes())?;
    let ledger = File::from(granted.pop().ok_or(Failure::new("no ledger"))?);
    socket.send(&Request::about(ARENA, event.as_bytes()).bytes(), &[])?;
    let (_, granted) = socket.receive()?;
    let mut granted = granted.into_iter();
    let arena = File::from(granted.next().ok_or(Failure::new("no arena"))?);
    for peer in [&victim, &witness] {
        peer.ask("queue q")?;
        peer.ask("event gate")?;
    }
    let mut random = Random(7);
    for round in 0..300 {
        // It writes whole slots of noise first, and then single words, some of them extreme.
        if random.below(3) == 0 {
            arena.write_all_at(&crate::pattern(random.next(), SLOT as usize), slot)?;
        }
        for _ in 0..=random.below(3) {
            let word = match random.below(4) {
                0 => 0,
                1 => u64::MAX,
                2 => 1 << random.below(64),
                _ => random.next(),
            };
            let place = 8 * random.below(SLOT as usize / 8) as u64;
            arena.write_all_at(&word.to_le_bytes(), slot + place)?;
        }
        if round % 50 == 49 {
            // It writes correct and false open counts.
            let noise = crate::pattern(random.next(), LEDGER as usize);
            ledger.write_all_at(&noise, 0)?;
        }
        let peer = if round % 2 == 0 { &victim } else { &witness };
        for question in [
            "status e",
            "signal e",
            "try-wait e 5",
            "wait e 1",
            "signal-value e 1000",
            "wait-value e 1000000 1",
            "wait-any 1 e gate",
            "submit q barrier signal=e",
            "submit q fail paper signal=e",
        ] {
            match peer.ask(question) {
                Err(refused) if refused.kind == "Ended" || refused.kind == "Late" => {
                    return Err(Failure::new(format!("round {round}: {refused}")));
                }
                _ => {}
            }
        }
    }
    drop((socket, arena, ledger));
    for peer in [&victim, &witness] {
        // Failed commands without an event do not matter here, but a command that hangs would be
        // late. A device that only compares numbers may wait forever for an invented number.
        if harness.peer_device().info().capabilities.late_failures {
            peer.ask("finish q 5000")?;
        }
        assert!(
            !peer.complaints().contains("panicked"),
            "{}",
            peer.complaints()
        );
    }
    assert_eq!(victim.ask("signal apart")?, ["1"]);
    witness.ask("wait-value apart 1 10000")?;
    assert_eq!(witness.ask("status apart")?, ["1", "1", "ok"]);
    victim.ask("check m 0 1 100")?;
    victim.ask("event fresh")?;
    assert_eq!(victim.ask("signal fresh")?, ["1"]);
    PASSED
}

/// Random requests, and random changes of valid requests, do no harm.
pub(crate) fn random_requests_do_no_harm(harness: &Harness) -> Verdict {
    let (exporter, handle) = exporter(harness)?;
    let mut random = Random(42);
    let attach = Request::attach(handle.as_bytes()).bytes();
    let fetch = Request::about(MEMORY, handle.as_bytes()).bytes();
    let mut socket = Socket::connect_in(harness.directory())?;
    for round in 0..3_000 {
        let mut message = match round % 3 {
            0 => crate::pattern(random.next(), random.below(100)),
            1 => attach.clone(),
            _ => fetch.clone(),
        };
        for _ in 0..random.below(3) {
            let at = random.below(message.len().max(1));
            if let Some(byte) = message.get_mut(at) {
                *byte = random.next() as u8;
            }
        }
        // The exporter treats an empty message like a hang-up.
        let sent = socket.send(&message, &[]);
        let answered = sent.is_ok() && socket.receive().is_ok_and(|(answer, _)| !answer.is_empty());
        if !answered || round % 50 == 0 {
            socket = Socket::connect_in(harness.directory())?;
        }
    }
    drop(socket);
    exporter.ask("check m 0 1 100")?;
    check_served(harness, &handle)?;
    PASSED
}

/// Importers that flood the exporter, or that never read, do not delay others.
pub(crate) fn floods_hold_up_nobody(harness: &Harness) -> Verdict {
    let (exporter, handle) = exporter(harness)?;
    let before = exporter.usage()?;
    let idle: Result<Vec<_>, Failure> = (0..50)
        .map(|_| Socket::connect_in(harness.directory()))
        .collect();
    let floods: Result<Vec<_>, Failure> = (0..4)
        .map(|_| Socket::connect_in(harness.directory()))
        .collect();
    let (idle, floods) = (idle?, floods?);
    let message = Request {
        key: [7; 16],
        ..Request::attach(handle.as_bytes())
    };
    let message = message.bytes();
    let done = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        for socket in &floods {
            let message = &message;
            scope.spawn(move || {
                // This importer never reads.
                while !done.load(Ordering::Relaxed) {
                    match socket.send(message, &[]) {
                        Ok(()) | Err(Errno::AGAIN) => {}
                        Err(_) => break,
                    }
                }
            });
        }
        let served = (0..5).try_for_each(|_| check_served(harness, &handle));
        done.store(true, Ordering::Relaxed);
        served
    })?;
    drop((idle, floods));
    eventually("their connections are closed", || {
        Ok(exporter.usage()?.descriptors <= before.descriptors + 1)
    })?;
    PASSED
}
