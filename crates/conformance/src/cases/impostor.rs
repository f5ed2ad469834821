//! Importers detect false exporters, and are not harmed by them.

use super::hostile::{LEDGER, exporter, secret};
use crate::failure::{Failure, Verdict};
use crate::harness::{Harness, deadline};
use crate::raw::{self, ATTACH, FETCH, REPLY, Socket, VERSION, borrowed, field, reply, request};
use crate::suite::PASSED;
use crate::tamper::{at, with};
use crate::{Peer, Pending};
use crosshandle::MemoryHandle;
use std::os::fd::OwnedFd;

/// A false exporter's answer, given the request's serial number; the descriptor sent with it; and
/// the error that the importer must report.
type Answer = (Box<dyn Fn(u32) -> Vec<u8>>, Option<OwnedFd>, &'static str);

/// A false exporter, for handles that name it.
struct Impostor {
    socket: Socket,
    handle: MemoryHandle,
}

impl Impostor {
    fn new(harness: &Harness, handle: &MemoryHandle, number: u64) -> Result<Self, Failure> {
        let bytes = with(handle.as_bytes(), at::EXPORTER, &number.to_le_bytes());
        let path = harness.directory().join(format!("{number:016x}.sock"));
        Ok(Self {
            socket: Socket::listen(&path)?,
            handle: MemoryHandle::from_bytes(&bytes)?,
        })
    }

    /// Has a peer open the handle, and returns the peer's connection and first request.
    fn lure<'a>(&self, peer: &'a Peer) -> Result<(Pending<'a>, Socket, Vec<u8>), Failure> {
        let pending = peer.begin(format!("open-memory m {} context=hasty", self.handle));
        let nobody = || Failure::new("nobody connects");
        let connection = self.socket.accept()?.ok_or_else(nobody)?;
        let (message, _) = connection.receive()?;
        Ok((pending, connection, message))
    }
}

fn expect(pending: Pending<'_>, kind: &str) -> Result<(), Failure> {
    match pending.reply(deadline()) {
        Err(refused) if refused.kind == kind => Ok(()),
        other => Err(Failure::new(format!("{kind} expected, but {other:?}"))),
    }
}

/// For any first answer of a false exporter, the importer reports a fitting error.
pub(crate) fn false_exporters_are_seen_through(harness: &Harness) -> Verdict {
    const ARENA: u64 = 4096 + (1 << 20) * (8 + 384);
    let (_exporter, handle) = exporter(harness)?;
    let importer = harness.peer()?;
    importer.ask("context hasty timeout=300")?;
    let impostor = Impostor::new(harness, &handle, 0xBAD)?;
    let attached = |serial| reply(VERSION, 0, 2, serial, 0);
    let answers: Vec<Answer> = vec![
        (Box::new(|_| b"nonsense".to_vec()), None, "Protocol"),
        (Box::new(|_| vec![0; REPLY]), None, "Protocol"),
        (Box::new(|_| vec![0xFF; 200]), None, "Os"),
        (
            Box::new(|n| reply(VERSION + 1, 0, 2, n, 0)),
            None,
            "Protocol",
        ),
        (Box::new(attached), None, "Protocol"),
        (Box::new(attached), Some(raw::pipe()?), "Protocol"),
        (
            Box::new(attached),
            Some(raw::memfd(4096, true)?),
            "Protocol",
        ),
        (
            Box::new(attached),
            Some(raw::memfd(ARENA, false)?),
            "Protocol",
        ),
        (
            Box::new(attached),
            Some(raw::memfd(ARENA, true)?),
            "Protocol",
        ),
        (
            Box::new(|n| reply(VERSION, 0, 1, n, 0)),
            Some(raw::memfd(ARENA, true)?),
            "Protocol",
        ),
        (
            Box::new(|n| reply(VERSION, 0, 5000, n, 0)),
            Some(raw::memfd(ARENA, true)?),
            "Protocol",
        ),
        (
            Box::new(|n| reply(VERSION, 0, 0, n, 100)),
            Some(raw::memfd(ARENA, true)?),
            "Protocol",
        ),
        (Box::new(|n| reply(VERSION, 0, 2, n, 100)), None, "Protocol"),
        (Box::new(|n| reply(VERSION, 1, 0, n, 0)), None, "Protocol"),
        (Box::new(|n| reply(VERSION, 2, 0, n, 0)), None, "Protocol"),
        (
            Box::new(|n| reply(VERSION, 3, 0, n, 0)),
            None,
            "ExporterGone",
        ),
        (
            Box::new(|n| reply(VERSION, 4, 0, n, 0)),
            None,
            "NotAdmitted",
        ),
        (Box::new(|n| reply(VERSION, 5, 0, n, 0)), None, "Stale"),
        (Box::new(|n| reply(VERSION, 6, 0, n, 0)), None, "ReadOnly"),
        (
            Box::new(|n| reply(VERSION, 7, 0, n, 0)),
            None,
            "LimitReached",
        ),
        (Box::new(|n| reply(VERSION, 99, 0, n, 0)), None, "Protocol"),
        // An answer to another request is skipped.
        (
            Box::new(|n| reply(VERSION, 5, 0, n + 1, 0)),
            None,
            "TimedOut",
        ),
    ];
    let mut usage = importer.usage()?;
    for (round, (message, file, kind)) in answers.into_iter().enumerate() {
        let (pending, connection, question) = impostor.lure(&importer)?;
        let files: Vec<OwnedFd> = file.into_iter().collect();
        connection.send(&message(raw::serial(&question)), &borrowed(&files))?;
        expect(pending, kind)
            .map_err(|failure| Failure::new(format!("answer {round}: {failure}")))?;
        if round == 0 {
            usage = importer.usage()?;
        }
    }
    let (pending, connection, _) = impostor.lure(&importer)?;
    drop(connection);
    expect(pending, "ExporterGone")?;
    let (pending, _connection, _) = impostor.lure(&importer)?;
    expect(pending, "TimedOut")?;
    assert_eq!(importer.usage()?.descriptors, usage.descriptors);
    // The true exporter is still trusted.
    importer.ask(format!("open-memory m {handle} context=hasty"))?;
    importer.ask("check m 0 1 100")?;
    PASSED
}

/// An exporter that first answers correctly and then sends harmful descriptors is refused.
pub(crate) fn false_memory_is_refused(harness: &Harness) -> Verdict {
    // Where all memory is files, a descriptor of no file has the wrong size; elsewhere it is no
    // memory.
    let no_file = if harness.is_host() {
        "Extent"
    } else {
        "Protocol"
    };
    // Where a driver's handle is needed, the file is not even examined.
    let (wrong_size, unwritable) = match harness.has_driver_handles() {
        true => ("Protocol", "Protocol"),
        false => ("Extent", "Os"),
    };
    let (_exporter, handle) = exporter(harness)?;
    let true_path = raw::only_socket(harness.directory())?;
    let importer = harness.peer()?;
    importer.ask("context hasty timeout=2000")?;
    let impostor = Impostor::new(harness, &handle, 0xBAD)?;
    let bytes = handle.as_bytes();
    let len = u64::from_le_bytes(bytes[at::SEGMENT_LENGTH..at::SEGMENT_LENGTH + 8].try_into()?);
    let segment = u32::from_le_bytes(bytes[at::SEGMENT..at::SEGMENT + 4].try_into()?);
    // The first request is forwarded to the true exporter, and its answer back.
    let pending = importer.begin(format!("open-memory m {} context=hasty", impostor.handle));
    let nobody = || Failure::new("nobody connects");
    let connection = impostor.socket.accept()?.ok_or_else(nobody)?;
    let (question, ledger) = connection.receive()?;
    let truth = Socket::connect(&true_path)?;
    truth.send(&question, &borrowed(&ledger))?;
    let (answer, arena) = truth.receive()?;
    connection.send(&answer, &borrowed(&arena))?;
    let read_only = || {
        let file = raw::memfd(len, true)?;
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        std::fs::File::open(path).map(OwnedFd::from)
    };
    let null = std::fs::File::open("/dev/null")?;
    let fetched = |len| move |serial| reply(VERSION, 0, segment, serial, len);
    let answers: Vec<Answer> = vec![
        (Box::new(fetched(len)), None, "Protocol"),
        (Box::new(fetched(len)), Some(raw::pipe()?), no_file),
        (Box::new(fetched(len)), Some(null.into()), no_file),
        (
            Box::new(fetched(len)),
            Some(raw::memfd(4096, true)?),
            wrong_size,
        ),
        (
            Box::new(fetched(len)),
            Some(raw::memfd(len * 2, true)?),
            wrong_size,
        ),
        (
            Box::new(fetched(len)),
            Some(raw::memfd(len, false)?),
            "Protocol",
        ),
        (
            Box::new(fetched(len * 2)),
            Some(raw::memfd(len * 2, true)?),
            "Extent",
        ),
        (
            Box::new(fetched(4096)),
            Some(raw::memfd(4096, true)?),
            "Extent",
        ),
        (Box::new(fetched(len)), Some(read_only()?), unwritable),
        (
            Box::new(move |n| reply(VERSION, 0, segment ^ 1, n, len)),
            Some(raw::memfd(len, true)?),
            "Handle",
        ),
        (
            Box::new(|n| reply(VERSION, 0, 2, n, 0)),
            Some(raw::memfd(len, true)?),
            "Protocol",
        ),
        (Box::new(|_| vec![1; REPLY]), None, "Protocol"),
        (Box::new(|n| reply(VERSION, 5, 0, n, 0)), None, "Stale"),
    ];
    let mut pending = Some(pending);
    for (round, (message, file, kind)) in answers.into_iter().enumerate() {
        let asked = pending.take().unwrap_or_else(|| {
            importer.begin(format!("open-memory m {} context=hasty", impostor.handle))
        });
        let (question, _) = connection.receive()?;
        assert_eq!(field(&question, 6), FETCH, "answer {round}");
        let files: Vec<OwnedFd> = file.into_iter().collect();
        connection.send(&message(raw::serial(&question)), &borrowed(&files))?;
        expect(asked, kind)
            .map_err(|failure| Failure::new(format!("answer {round}: {failure}")))?;
    }
    // The importer lives on, and accepts correct memory.
    let asked = importer.begin(format!("open-memory m {} context=hasty", impostor.handle));
    let (question, _) = connection.receive()?;
    truth.send(&question, &[])?;
    let (answer, memory) = truth.receive()?;
    connection.send(&answer, &borrowed(&memory))?;
    asked.reply(deadline())?;
    importer.ask("check m 0 1 100")?;
    PASSED
}

/// Another exporter's arena, passed off by a false exporter, is refused if the importer has it open
/// already. Holding it for a moment does not make others take the importer for dead.
pub(crate) fn anothers_arena_is_refused(harness: &Harness) -> Verdict {
    let (exporter, handle) = exporter(harness)?;
    let true_path = raw::only_socket(harness.directory())?;
    exporter.ask("event e")?;
    let event = exporter.ask("event-handle e")?.remove(0);
    let importer = harness.peer()?;
    importer.ask("context hasty timeout=2000")?;
    importer.ask(format!("open-event e {event} context=hasty"))?;
    importer.ask("event gate")?;
    importer.ask("queue q")?;
    importer.ask("submit q barrier after-value=gate:1 signal=e")?;
    // Attached as a regular importer, with a secret of its own.
    let truth = Socket::connect(&true_path)?;
    let attach = request(VERSION, ATTACH, secret(&handle), [0, 0, 0, 1]);
    truth.send(&attach, &borrowed(&[raw::memfd(LEDGER, true)?]))?;
    let (answer, arena) = truth.receive()?;
    let owner = field(&answer, 8);
    let handle = MemoryHandle::from_bytes(&with(handle.as_bytes(), at::SECRET, &[7; 16]))?;
    let impostor = Impostor::new(harness, &handle, 0xBAD)?;
    for _ in 0..3 {
        let (pending, connection, question) = impostor.lure(&importer)?;
        let attached = reply(VERSION, 0, owner.into(), raw::serial(&question), 0);
        connection.send(&attached, &borrowed(&arena))?;
        expect(pending, "Protocol")?;
    }
    expect(exporter.begin("wait e 300"), "TimedOut")?;
    importer.ask("signal gate")?;
    exporter.ask("wait e 10000")?;
    PASSED
}
