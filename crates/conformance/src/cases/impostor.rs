//! Importers detect false exporters and are not harmed by them.

use super::hostile::exporter;
use crate::failure::{Failure, Verdict};
use crate::harness::{Harness, deadline};
use crate::raw::{
    self, ARENA, ATTACH, EVENTS, FETCHED, KEY_AT, LEDGER, MEMORY, REPLY, Request, Socket, VERSION,
    attached, borrowed, fetched, refused, reply, sent,
};
use crate::suite::PASSED;
use crate::tamper::{at, with};
use crate::{Peer, Pending};
use crosshandle::{EventHandle, MemoryHandle};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

/// A false exporter's reply for a request's serial number, the descriptors of the reply, and the
/// error that the importer must report.
type FalseReply = (Box<dyn Fn(u32) -> Vec<u8>>, Vec<OwnedFd>, &'static str);

const NUMBER: u64 = 0xBAD;
/// The name of the false exporter's socket.
const NAME: &str = "0000000000000bad.sock";

/// A false exporter for handles that name it.
pub(super) struct Impostor {
    socket: Socket,
    pub(super) path: PathBuf,
    /// The command by which a peer opens the handle.
    open: String,
    handle: Vec<u8>,
}

impl Impostor {
    pub(super) fn new(harness: &Harness, handle: &MemoryHandle) -> Result<Self, Failure> {
        Self::with(harness, handle.as_bytes(), |bytes| {
            let handle = MemoryHandle::from_bytes(bytes)?;
            Ok(format!("open-memory m {handle} context=hasty"))
        })
    }

    pub(super) fn of_event(harness: &Harness, handle: &EventHandle) -> Result<Self, Failure> {
        Self::with(harness, handle.as_bytes(), |bytes| {
            let handle = EventHandle::from_bytes(bytes)?;
            Ok(format!("open-event f {handle} context=hasty"))
        })
    }

    fn with(
        harness: &Harness,
        handle: &[u8],
        open: impl FnOnce(&[u8]) -> Result<String, Failure>,
    ) -> Result<Self, Failure> {
        let handle = with(handle, at::EXPORTER, &NUMBER.to_le_bytes());
        let path = harness.directory().join(NAME);
        let socket = Socket::listen(&path)?;
        // The mode does not claim a lock, because importers would notice that it is missing.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        Ok(Self {
            socket,
            path,
            open: open(&handle)?,
            handle,
        })
    }

    /// Makes a peer open the handle, and returns the peer's connection and its first request.
    pub(super) fn lure<'a>(
        &self,
        peer: &'a Peer,
    ) -> Result<(Pending<'a>, Socket, Vec<u8>), Failure> {
        let pending = peer.begin(&self.open);
        let nobody = || Failure::new("no process connects");
        let connection = self.socket.accept()?.ok_or_else(nobody)?;
        let (message, files) = connection.receive()?;
        assert_eq!((message.len(), files.len()), (raw::REQUEST, 0));
        assert_eq!(raw::operation(&message), ATTACH);
        Ok((pending, connection, message))
    }

    /// Returns a catalog that lists the handle's object as current, and a ledger.
    pub(super) fn books(&self) -> Result<Vec<OwnedFd>, Failure> {
        let catalog = raw::catalog(&self.handle)?;
        Ok(vec![catalog, raw::memfd(LEDGER, true)?])
    }

    /// Returns the number of the segment that the handle names.
    pub(super) fn segment(&self) -> u32 {
        let bytes = &self.handle[at::SEGMENT..at::SEGMENT + 4];
        u32::from_le_bytes(bytes.try_into().expect("four bytes"))
    }

    /// Accepts the next connection. Returns `None` if none arrives within `limit`.
    pub(super) fn accept_soon(&self, limit: Duration) -> Result<Option<Socket>, Failure> {
        Ok(self.socket.accept_within(limit)?)
    }

    /// Makes a peer open the handle, and lets the peer attach.
    pub(super) fn admit<'a>(
        &self,
        peer: &'a Peer,
        owner: u32,
    ) -> Result<(Pending<'a>, Socket), Failure> {
        let (pending, connection, question) = self.lure(peer)?;
        let reply = attached(owner, raw::serial(&question));
        connection.send(&reply, &borrowed(&self.books()?))?;
        Ok((pending, connection))
    }
}

fn expect(pending: Pending<'_>, kind: &str) -> Result<(), Failure> {
    match pending.reply(deadline()) {
        Err(refused) if refused.kind == kind => Ok(()),
        other => Err(Failure::new(format!("{kind} expected, but {other:?}"))),
    }
}

/// For any wrong first reply of a false exporter, the importer reports a suitable error.
pub(crate) fn false_exporters_are_seen_through(harness: &Harness) -> Verdict {
    let (_exporter, handle) = exporter(harness)?;
    let importer = harness.peer()?;
    importer.ask("context hasty timeout=300")?;
    let impostor = Impostor::new(harness, &handle)?;
    let books = || impostor.books();
    let file = |len, sealed| raw::memfd(len, sealed);
    let catalog = || raw::catalog(&impostor.handle);
    let as_one = |serial| attached(2, serial);
    let mut answers: Vec<FalseReply> = vec![
        (Box::new(|_| b"nonsense".to_vec()), vec![], "Protocol"),
        (Box::new(|_| vec![0; REPLY]), vec![], "Protocol"),
        (Box::new(|_| vec![0xFF; 200]), vec![], "Protocol"),
        (
            Box::new(|n| reply(VERSION + 1, 0, raw::ATTACHED, 2, n, 0)),
            books()?,
            "Protocol",
        ),
        // Replies with a wrong number of descriptors.
        (Box::new(as_one), vec![], "Protocol"),
        (Box::new(as_one), vec![catalog()?], "Protocol"),
        (
            Box::new(as_one),
            vec![catalog()?, file(LEDGER, true)?, raw::pipe()?],
            "Protocol",
        ),
    ];
    // Descriptors that are no catalog.
    for false_catalog in [
        raw::pipe()?,
        std::fs::File::open("/dev/null")?.into(),
        file(4096, true)?,
        file(raw::CATALOG - 4096, true)?,
        file(raw::CATALOG + 4096, true)?,
        file(raw::CATALOG, false)?,
        // A catalog without its first bytes.
        file(raw::CATALOG, true)?,
        file(LEDGER, true)?,
    ] {
        let files = vec![false_catalog, file(LEDGER, true)?];
        answers.push((Box::new(as_one), files, "Protocol"));
    }
    // Descriptors that are no ledger.
    for false_ledger in [
        raw::pipe()?,
        file(0, true)?,
        file(LEDGER - 1, true)?,
        file(LEDGER - 4096, true)?,
        file(LEDGER + 4096, true)?,
        file(LEDGER, false)?,
        catalog()?,
    ] {
        let files = vec![catalog()?, false_ledger];
        answers.push((Box::new(as_one), files, "Protocol"));
    }
    // An invalid owner number, the exporter's own number, and numbers that are too large.
    for owner in [0, 1, 5000, 1 << 16 | 2, u32::MAX] {
        answers.push((Box::new(move |n| attached(owner, n)), books()?, "Protocol"));
    }
    // Replies to other requests, and replies with the fields of two replies.
    answers.extend([
        (
            Box::new(sent) as Box<dyn Fn(u32) -> Vec<u8>>,
            books()?,
            "Protocol",
        ),
        (
            Box::new(|n| reply(VERSION, 0, FETCHED, 2, n, 4096)),
            books()?,
            "Protocol",
        ),
        (
            Box::new(|n| reply(VERSION, 0, raw::ATTACHED, 2, n, 100)),
            books()?,
            "Protocol",
        ),
        (
            Box::new(|n| reply(VERSION, 0, 99, 2, n, 0)),
            books()?,
            "Protocol",
        ),
        (
            Box::new(|n| reply(VERSION, 5, raw::ATTACHED, 2, n, 0)),
            books()?,
            "Protocol",
        ),
    ]);
    for (status, kind) in [
        (1, "Protocol"),
        (2, "Protocol"),
        (3, "ExporterGone"),
        (4, "NotAdmitted"),
        (5, "Stale"),
        (6, "ReadOnly"),
        (7, "LimitReached"),
        (8, "WrongKey"),
        (9, "Unsupported"),
        (10, "LimitReached"),
        (99, "Protocol"),
    ] {
        answers.push((Box::new(move |n| refused(status, n)), vec![], kind));
    }
    // The importer skips a reply to another request.
    answers.push((Box::new(|n| refused(5, n + 1)), vec![], "TimedOut"));
    let mut usage = importer.usage()?;
    for (round, (message, files, kind)) in answers.into_iter().enumerate() {
        let (pending, connection, question) = impostor.lure(&importer)?;
        connection.send(&message(raw::serial(&question)), &borrowed(&files))?;
        expect(pending, kind)
            .map_err(|failure| Failure::new(format!("answer {round}: {failure}")))?;
        if round == 0 {
            usage = importer.usage()?;
        }
    }
    let (pending, connection, _) = impostor.lure(&importer)?;
    expect(pending, "TimedOut")?;
    drop(connection);
    let (pending, connection, _) = impostor.lure(&importer)?;
    // The importer then tries again, and finds that no process listens.
    drop((connection, impostor));
    expect(pending, "ExporterGone")?;
    assert_eq!(importer.usage()?.descriptors, usage.descriptors);
    // The importer still trusts the genuine exporter.
    importer.ask(format!("open-memory m {handle} context=hasty"))?;
    importer.ask("check m 0 1 100")?;
    PASSED
}

/// An exporter that first replies correctly and then sends harmful descriptors is refused.
pub(crate) fn false_memory_is_refused(harness: &Harness) -> Verdict {
    // On a backend whose memory is files, a descriptor of another kind has the wrong size. On other
    // backends it is no memory.
    let no_file = if harness.is_host() {
        "Extent"
    } else {
        "Protocol"
    };
    // A backend that needs a driver's handle does not even check the file.
    let (wrong_size, unwritable) = match harness.expectations().has_driver_handles {
        true => ("Protocol", "Protocol"),
        false => ("Extent", "Os"),
    };
    let (_exporter, handle) = exporter(harness)?;
    let true_path = raw::only_socket(harness.directory())?;
    let truth = Socket::connect(&true_path)?;
    truth.send(&Request::attach(handle.as_bytes()).bytes(), &[])?;
    drop(truth.receive()?);
    truth.send(
        &Request::about(MEMORY, handle.as_bytes()).writing().bytes(),
        &[],
    )?;
    let (true_answer, true_memory) = truth.receive()?;
    let segment = raw::number(&true_answer);
    let len = u64::from_le_bytes(true_answer[24..32].try_into()?);

    let importer = harness.peer()?;
    importer.ask("context hasty timeout=2000")?;
    let impostor = Impostor::new(harness, &handle)?;
    let (pending, connection) = impostor.admit(&importer, 2)?;
    let read_only = || {
        let file = raw::memfd(len, true)?;
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        std::fs::File::open(path).map(OwnedFd::from)
    };
    let null = std::fs::File::open("/dev/null")?;
    let fetched = |len| move |serial| fetched(segment, len, serial);
    let answers: Vec<FalseReply> = vec![
        (Box::new(fetched(len)), vec![], "Protocol"),
        (
            Box::new(fetched(len)),
            vec![raw::memfd(len, true)?, raw::pipe()?],
            "Protocol",
        ),
        (Box::new(fetched(len)), vec![raw::pipe()?], no_file),
        (Box::new(fetched(len)), vec![null.into()], no_file),
        (
            Box::new(fetched(len)),
            vec![raw::memfd(4096, true)?],
            wrong_size,
        ),
        (
            Box::new(fetched(len)),
            vec![raw::memfd(len * 2, true)?],
            wrong_size,
        ),
        (
            Box::new(fetched(len)),
            vec![raw::memfd(len, false)?],
            "Protocol",
        ),
        (
            Box::new(fetched(4096)),
            vec![raw::memfd(4096, true)?],
            "Extent",
        ),
        (Box::new(fetched(len)), vec![read_only()?], unwritable),
        (
            Box::new(move |n| raw::fetched(segment ^ 1, len, n)),
            vec![raw::memfd(len, true)?],
            "Handle",
        ),
        // The segment number that only events have.
        (
            Box::new(move |n| raw::fetched(u32::MAX, len, n)),
            vec![raw::memfd(len, true)?],
            "Protocol",
        ),
        // Handles that no driver makes, a handle with a descriptor, and a handle of another
        // segment.
        (
            Box::new(move |n| raw::driver_handle(segment, len, n, &[])),
            vec![],
            "Protocol",
        ),
        (
            Box::new(move |n| raw::driver_handle(segment, len, n, &[7; 128])),
            vec![],
            "Protocol",
        ),
        (
            Box::new(move |n| raw::driver_handle(segment, len, n, &[7; 80])),
            vec![raw::memfd(len, true)?],
            "Protocol",
        ),
        (
            Box::new(move |n| raw::driver_handle(segment ^ 1, len, n, &[7; 80])),
            vec![],
            "Handle",
        ),
        (
            Box::new(move |n| raw::driver_handle(u32::MAX, len, n, &[7; 80])),
            vec![],
            "Protocol",
        ),
        (
            Box::new(move |n| raw::fetched(segment, 0, n)),
            vec![raw::memfd(len, true)?],
            "Protocol",
        ),
        (
            Box::new(|n| attached(2, n)),
            vec![raw::memfd(len, true)?],
            "Protocol",
        ),
        (Box::new(sent), vec![raw::memfd(len, true)?], "Protocol"),
        (Box::new(|_| vec![1; REPLY]), vec![], "Protocol"),
        (Box::new(|n| refused(5, n)), vec![], "Stale"),
    ];
    let mut pending = Some(pending);
    for (round, (message, files, kind)) in answers.into_iter().enumerate() {
        let asked = pending
            .take()
            .unwrap_or_else(|| importer.begin(&impostor.open));
        let (question, _) = connection.receive()?;
        assert_eq!(raw::operation(&question), MEMORY, "answer {round}");
        connection.send(&message(raw::serial(&question)), &borrowed(&files))?;
        expect(asked, kind)
            .map_err(|failure| Failure::new(format!("answer {round}: {failure}")))?;
    }
    // The importer survives, and accepts correct memory.
    let asked = importer.begin(&impostor.open);
    let (question, _) = connection.receive()?;
    let answer = with_serial(true_answer, raw::serial(&question));
    connection.send(&answer, &borrowed(&true_memory))?;
    asked.reply(deadline())?;
    importer.ask("check m 0 1 100")?;
    PASSED
}

/// Returns the reply with another serial number.
fn with_serial(mut reply: Vec<u8>, serial: u32) -> Vec<u8> {
    reply[16..20].copy_from_slice(&serial.to_le_bytes());
    reply
}

/// The importer refuses whatever a false exporter sends for an event, unless it is an arena.
pub(crate) fn false_arenas_are_refused(harness: &Harness) -> Verdict {
    let (exporter, _) = exporter(harness)?;
    exporter.ask("event e")?;
    let event: EventHandle = exporter.ask("event-handle e")?.remove(0).parse()?;
    let importer = harness.peer()?;
    importer.ask("context hasty timeout=2000")?;
    let impostor = Impostor::of_event(harness, &event)?;
    let (pending, connection) = impostor.admit(&importer, 2)?;
    let file = raw::memfd;
    let locks = || file(0, true);
    let mut answers: Vec<FalseReply> = Vec::new();
    for files in [
        vec![],
        // Replies without a file of locks, or with something that is no such file.
        vec![file(EVENTS, true)?],
        vec![file(EVENTS, true)?, raw::pipe()?],
        vec![
            file(EVENTS, true)?,
            std::fs::File::open("/dev/null")?.into(),
        ],
        vec![raw::pipe()?, locks()?],
        vec![std::fs::File::open("/dev/null")?.into(), locks()?],
        vec![file(EVENTS, false)?, locks()?],
        vec![file(0, true)?, locks()?],
        vec![file(4096, true)?, locks()?],
        vec![file(EVENTS - 4096, true)?, locks()?],
        vec![file(EVENTS + 4096, true)?, locks()?],
        vec![file(LEDGER, true)?, locks()?],
    ] {
        answers.push((Box::new(sent), files, "Protocol"));
    }
    answers.push((
        Box::new(|n| raw::fetched(0, EVENTS, n)),
        vec![file(EVENTS, true)?, locks()?],
        "Protocol",
    ));
    answers.push((
        Box::new(|n| attached(2, n)),
        vec![file(EVENTS, true)?, locks()?],
        "Protocol",
    ));
    let mut pending = Some(pending);
    for (round, (message, files, kind)) in answers.into_iter().enumerate() {
        let asked = pending
            .take()
            .unwrap_or_else(|| importer.begin(&impostor.open));
        let (question, _) = connection.receive()?;
        assert_eq!(raw::operation(&question), ARENA, "answer {round}");
        connection.send(&message(raw::serial(&question)), &borrowed(&files))?;
        expect(asked, kind)
            .map_err(|failure| Failure::new(format!("answer {round}: {failure}")))?;
    }
    let asked = importer.begin(&impostor.open);
    let (question, _) = connection.receive()?;
    let files = [file(EVENTS, true)?, locks()?];
    connection.send(&sent(raw::serial(&question)), &borrowed(&files))?;
    asked.reply(deadline())?;
    importer.ask("signal f")?;
    PASSED
}

/// A forged handle has the key and the place of another exporter's object, but names a false
/// exporter. It opens what that exporter chooses, and the genuine handle still opens the genuine
/// object.
pub(crate) fn forgeries_stain_no_original(harness: &Harness) -> Verdict {
    let (_exporter, genuine) = exporter(harness)?;
    let true_path = raw::only_socket(harness.directory())?;
    // The forger's own memory has the same size and the same place in its context.
    let forger = harness.peer()?;
    forger.ask("allocate m 5000000")?;
    forger.ask("write m 0 2 100")?;
    let own: MemoryHandle = forger.ask("memory-handle m")?.remove(0).parse()?;
    for field in [at::SEGMENT, at::RECORD, at::CONTEXT] {
        let part = |handle: &MemoryHandle| handle.as_bytes()[field..field + 4].to_vec();
        assert_eq!(part(&own), part(&genuine), "numbered alike");
    }
    let mut paths = std::fs::read_dir(harness.directory())?;
    let forgers_path = paths.find_map(|entry| {
        let path = entry.ok()?.path();
        (path != true_path).then_some(path)
    });
    let forgers_path = forgers_path.ok_or(Failure::new("the forger has no socket"))?;
    let impostor = Impostor::new(harness, &genuine)?;
    let victim = harness.peer()?;
    victim.ask("context hasty timeout=5000")?;
    // The forger's own broker replies to every request, after the forger replaced the key by its
    // own.
    let accomplice = Socket::connect(&forgers_path)?;
    let (pending, connection, mut question) = impostor.lure(&victim)?;
    for _ in 0..2 {
        let key = Request::about(MEMORY, own.as_bytes()).key;
        question[KEY_AT..KEY_AT + 16].copy_from_slice(&key);
        accomplice.send(&question, &[])?;
        let (answer, files) = accomplice.receive()?;
        connection.send(&answer, &borrowed(&files))?;
        if raw::operation(&question) == ATTACH {
            (question, _) = connection.receive()?;
        }
    }
    pending.reply(deadline())?;
    victim.ask("check m 0 2 100")?;
    // The importer has the forgery open during this check.
    victim.ask(format!("open-memory genuine {genuine} context=hasty"))?;
    victim.ask("check genuine 0 1 100")?;
    victim.ask("check m 0 2 100")?;
    PASSED
}

/// A false exporter passes off another exporter's arena. The importer refuses it if it has the
/// arena open already. The short use of the arena does not make others treat the importer as dead.
pub(crate) fn anothers_arena_is_refused(harness: &Harness) -> Verdict {
    let (exporter, _) = exporter(harness)?;
    let true_path = raw::only_socket(harness.directory())?;
    exporter.ask("event e")?;
    let event = exporter.ask("event-handle e")?.remove(0);
    let importer = harness.peer()?;
    importer.ask("context hasty timeout=2000")?;
    importer.ask(format!("open-event e {event} context=hasty"))?;
    importer.ask("event gate")?;
    importer.ask("queue q")?;
    importer.ask("submit q barrier after-value=gate:1 signal=e")?;
    // The false exporter sends the genuine arena, with the importer's own number there. Number 1
    // belongs to the exporter.
    let event: EventHandle = event.parse()?;
    let truth = Socket::connect(&true_path)?;
    truth.send(&Request::attach(event.as_bytes()).bytes(), &[])?;
    drop(truth.receive()?);
    truth.send(&Request::about(ARENA, event.as_bytes()).bytes(), &[])?;
    let (_, arena) = truth.receive()?;
    let impostor = Impostor::of_event(harness, &event)?;
    let (pending, connection) = impostor.admit(&importer, 2)?;
    let mut pending = Some(pending);
    for _ in 0..3 {
        let asked = pending
            .take()
            .unwrap_or_else(|| importer.begin(&impostor.open));
        let (question, _) = connection.receive()?;
        assert_eq!(raw::operation(&question), ARENA);
        connection.send(&sent(raw::serial(&question)), &borrowed(&arena))?;
        expect(asked, "Protocol")?;
    }
    expect(exporter.begin("wait e 300"), "TimedOut")?;
    importer.ask("signal gate")?;
    exporter.ask("wait e 10000")?;
    PASSED
}
