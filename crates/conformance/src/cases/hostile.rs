//! Importers that break the protocol harm only themselves.

use crate::Peer;
use crate::failure::{Failure, Verdict};
use crate::harness::{Harness, eventually};
use crate::pattern::Random;
use crate::raw::{self, ATTACH, FETCH, REPLY, Socket, VERSION, borrowed, field, request};
use crate::suite::PASSED;
use crate::tamper::at;
use crosshandle::{EventHandle, MemoryHandle};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

/// Size of a ledger in bytes: four for each of 2²⁰ records.
pub(super) const LEDGER: u64 = 4 << 20;
const BAD_REQUEST: u16 = 1;
const OTHER_VERSION: u16 = 2;
const UNKNOWN_CONTEXT: u16 = 3;

/// Starts an exporter with one object.
pub(super) fn exporter(harness: &Harness) -> Result<(Peer, MemoryHandle), Failure> {
    let peer = harness.peer()?;
    peer.ask("allocate m 5000000")?;
    peer.ask("write m 0 1 100")?;
    let handle = peer.ask("memory-handle m")?.remove(0).parse()?;
    Ok((peer, handle))
}

pub(super) fn secret(handle: &MemoryHandle) -> [u8; 16] {
    let bytes = handle.as_bytes();
    bytes[at::SECRET..at::SECRET + 16]
        .try_into()
        .expect("inside")
}

/// Checks that a well-behaved process is served.
fn check_served(harness: &Harness, handle: &MemoryHandle) -> Result<(), Failure> {
    let peer = harness.peer()?;
    peer.ask(format!("open-memory m {handle}"))?;
    peer.ask("check m 0 1 100")?;
    Ok(())
}

/// Returns the broker's status for a message on a connection of its own.
fn answer(harness: &Harness, message: &[u8], files: &[OwnedFd]) -> Result<u16, Failure> {
    let socket = Socket::connect_in(harness.directory())?;
    socket.send(message, &borrowed(files))?;
    let (answer, granted) = socket.receive()?;
    assert_eq!(answer.len(), REPLY);
    assert_eq!(granted.is_empty(), field(&answer, 6) != 0);
    Ok(field(&answer, 6))
}

/// Senseless requests are refused as such, and grant nothing.
pub(crate) fn senseless_requests_are_refused(harness: &Harness) -> Verdict {
    let (_exporter, handle) = exporter(harness)?;
    let secret = secret(&handle);
    let attach = request(VERSION, ATTACH, secret, [0, 0, 0, 1]);
    let ledger = || raw::memfd(LEDGER, true);
    let wrong_files = [
        vec![],
        vec![raw::memfd(LEDGER - 1, true)?],
        vec![raw::memfd(LEDGER + 4096, true)?],
        vec![raw::memfd(LEDGER, false)?],
        vec![raw::pipe()?],
    ];
    for files in &wrong_files {
        assert_eq!(answer(harness, &attach, files)?, BAD_REQUEST, "{files:?}");
    }
    let other = request(VERSION, ATTACH, [7; 16], [0, 0, 0, 1]);
    assert_eq!(answer(harness, &other, &[ledger()?])?, UNKNOWN_CONTEXT);
    let newer = request(VERSION + 1, ATTACH, secret, [0, 0, 0, 1]);
    assert_eq!(answer(harness, &newer, &[ledger()?])?, OTHER_VERSION);
    let fetch = request(VERSION, FETCH, [0; 16], [0, 1, 1, 1]);
    for message in [
        &fetch[..],
        &request(VERSION, 99, secret, [0, 0, 0, 1]),
        &request(VERSION, ATTACH, secret, [1, 0, 0, 1]),
        &attach[..attach.len() - 1],
        &[attach.clone(), vec![0; 4]].concat()[..3],
        b"GET / HTTP/1.1\r\n\r\n",
    ] {
        assert_eq!(answer(harness, message, &[ledger()?])?, BAD_REQUEST);
    }
    // Attached, and then every request a second time or out of place.
    let socket = Socket::connect_in(harness.directory())?;
    socket.send(&attach, &borrowed(&[ledger()?]))?;
    let (answer, granted) = socket.receive()?;
    assert_eq!((field(&answer, 6), granted.len()), (0, 1));
    for (message, files) in [
        (&attach, vec![ledger()?]),
        (&fetch, vec![ledger()?]),
        (&request(VERSION, FETCH, [0; 16], [0, 1, 2, 1]), vec![]),
        (&request(VERSION, FETCH, [1; 16], [0, 1, 1, 1]), vec![]),
    ] {
        socket.send(message, &borrowed(&files))?;
        let (answer, granted) = socket.receive()?;
        assert_eq!((field(&answer, 6), granted.len()), (BAD_REQUEST, 0));
    }
    check_served(harness, &handle)?;
    PASSED
}

/// A connection with a request that is too long or has too many descriptors is closed.
pub(crate) fn oversized_requests_are_hung_up_on(harness: &Harness) -> Verdict {
    let (exporter, handle) = exporter(harness)?;
    check_served(harness, &handle)?;
    let before = exporter.usage()?;
    let attach = request(VERSION, ATTACH, secret(&handle), [0, 0, 0, 1]);
    for _ in 0..20 {
        let socket = Socket::connect_in(harness.directory())?;
        socket.send(&[0; 4096], &[])?;
        assert!(socket.is_hung_up());
        for count in [2, 8] {
            let files: Result<Vec<_>, _> = (0..count).map(|_| raw::memfd(LEDGER, true)).collect();
            let socket = Socket::connect_in(harness.directory())?;
            socket.send(&attach, &borrowed(&files?))?;
            assert!(socket.is_hung_up(), "{count} descriptors");
        }
    }
    // The exporter keeps none of the descriptors.
    eventually("all are closed", || {
        Ok(exporter.usage()?.descriptors <= before.descriptors)
    })?;
    check_served(harness, &handle)?;
    PASSED
}

/// A process that is admitted to a context may write anything into its shared memory. That
/// context's events become meaningless, but its process neither crashes nor hangs, and its other
/// contexts are not affected.
pub(crate) fn scribbles_stay_in_their_context(harness: &Harness) -> Verdict {
    const RECORDS_AT: u64 = 4096;
    const SLOTS_AT: u64 = RECORDS_AT + (8 << 20);
    const SLOT: u64 = 384;
    let (victim, handle) = exporter(harness)?;
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
    let slot = SLOTS_AT + SLOT * u64::from(u32::from_le_bytes(record));
    // Attached as a regular importer.
    let socket = Socket::connect_in(harness.directory())?;
    let attach = request(VERSION, ATTACH, secret(&handle), [0, 0, 0, 1]);
    socket.send(&attach, &borrowed(&[raw::memfd(LEDGER, true)?]))?;
    let (_, mut granted) = socket.receive()?;
    let arena = granted.pop().ok_or(Failure::new("no arena"))?;
    let arena = File::from(arena);
    for peer in [&victim, &witness] {
        peer.ask("queue q")?;
        peer.ask("event gate")?;
    }
    let mut random = Random(7);
    for round in 0..300 {
        // First whole slots of noise, then single words, some of them extreme.
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
            // The number of records.
            arena.write_all_at(&[0xFF; 4], 8)?;
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
    drop((socket, arena));
    for peer in [&victim, &witness] {
        // Failed commands without an event do not matter here; a command that hangs would be late.
        // A device that only compares numbers may wait for ever for an invented one.
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

/// Random requests, and random changes of valid ones, do no harm.
pub(crate) fn random_requests_do_no_harm(harness: &Harness) -> Verdict {
    let (exporter, handle) = exporter(harness)?;
    let mut random = Random(42);
    let attach = request(VERSION, ATTACH, secret(&handle), [0, 0, 0, 1]);
    let fetch = request(VERSION, FETCH, [0; 16], [0, 1, 1, 1]);
    let mut socket = Socket::connect_in(harness.directory())?;
    for round in 0..3_000 {
        let mut message = match round % 3 {
            0 => crate::pattern(random.next(), random.below(64)),
            1 => attach.clone(),
            _ => fetch.clone(),
        };
        for _ in 0..random.below(3) {
            let at = random.below(message.len().max(1));
            if let Some(byte) = message.get_mut(at) {
                *byte = random.next() as u8;
            }
        }
        // An empty message is like a hang-up.
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

/// Importers that flood the exporter, or never read, do not delay others.
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
    let message = request(VERSION, ATTACH, [7; 16], [0, 0, 0, 1]);
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
