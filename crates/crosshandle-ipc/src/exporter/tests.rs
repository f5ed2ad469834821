use super::*;
use crate::broker::protocol::PieceSpan;
use crate::broker::{Dialogue, FullReply, address};
use crate::records::{Piece, PieceSet, PiecedMemory};
use crosshandle_os::{memfd, socket};
use std::sync::atomic::AtomicUsize;

use crate::broker::protocol::{ProgramName, Refusal, Reply, Request};
use crate::broker::{Connection, OpenDeadline, Route};
use crate::chunks::LedgerChunk;
use crosshandle_events::open_count;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(20);

/// Returns an exporter that listens in its own directory.
fn exporter() -> (Arc<Exporter>, PathBuf) {
    let name = format!("xh-exporter-{}", address::exporter_id().unwrap());
    let directory = std::env::temp_dir().join(name);
    let policy = PeerPolicy::default();
    let exporter = Exporter::new(Label::default(), policy, Some(directory.clone()), false).unwrap();
    exporter.go_public().unwrap();
    (exporter, directory)
}

/// Makes an event, and returns the credential that opens it.
fn event(exporter: &Exporter, mirror: Option<Arc<dyn BackendObject>>) -> Credential {
    let record = exporter.create_event_record(false).unwrap();
    exporter.export_event(record, None, mirror).unwrap()
}

/// Attaches like another process, and opens an event. The connection's timeout is the test's
/// deadline.
fn attach(
    exporter: &Exporter,
    directory: &Path,
    credential: Credential,
) -> Result<(Connection, Ledger)> {
    let number = address::exporter_id()?;
    let policy = PeerPolicy::default();
    let deadline = OpenDeadline::after(DEADLINE);
    let connection = Connection::open(
        number,
        0,
        Route::Exporter,
        Some(directory),
        &policy,
        &deadline,
    )?;
    let request = Request::Attach {
        context: exporter.number(),
        credential,
        program: ProgramName::default(),
    };
    let (reply, [_, file]) = connection.ask_for_memory(request, None, &deadline)?;
    assert!(matches!(reply, Reply::Attached { .. }));
    let ledger = Ledger::default();
    ledger.add(LedgerChunk::open(&file, 0)?);
    Ok((connection, ledger))
}

/// A value whose drop reports that it has begun, and then blocks until the test releases it.
struct Blocking(Sender<()>, std::sync::Mutex<Receiver<()>>);

impl Drop for Blocking {
    fn drop(&mut self) {
        let _ = self.0.send(());
        let _ = self.1.lock().map(|release| release.recv());
    }
}

#[test]
fn a_drop_that_blocks_after_a_hang_up_holds_up_no_other_importer() {
    let (exporter, directory) = exporter();
    let event = event(&exporter, None);
    let Credential { record, .. } = event;
    let (connection, ledger) = attach(&exporter, &directory, event).unwrap();
    let generation = exporter.catalog.generation(record.index).unwrap();
    let count = ledger.count(record.index).unwrap();
    assert!(open_count::try_open(count, generation, record.generation));
    let other = self::event(&exporter, None);
    let (dropping, is_dropping) = channel();
    let (release, released) = channel::<()>();
    let keep = Blocking(dropping, std::sync::Mutex::new(released));
    exporter.retire(record, true, Some(Box::new(keep)));
    assert!(is_dropping.try_recv().is_err(), "an importer has it open");

    connection.hang_up();
    is_dropping.recv_timeout(DEADLINE).expect("it is dropped");
    let attached = attach(&exporter, &directory, other).map(drop);
    drop(release);
    attached.expect("another importer attaches meanwhile");
    drop(exporter);
    let _ = std::fs::remove_dir(&directory);
}

#[test]
fn a_driver_call_for_one_importer_holds_up_no_other() {
    /// An object whose descriptor takes as long as the test wants.
    struct Slow(Sender<()>, std::sync::Mutex<Receiver<()>>);
    impl BackendObject for Slow {
        fn len(&self) -> usize {
            1
        }

        fn descriptor(&self, _: Access) -> Result<Arc<OwnedFd>> {
            let _ = self.0.send(());
            let _ = self.1.lock().map(|release| release.recv());
            Err(Error::Unsupported("only a test".into()))
        }
    }
    let (exporter, _) = exporter();
    let directory = exporter.directory.clone().unwrap();
    let (asked, is_asked) = channel();
    let (release, released) = channel::<()>();
    let slow = Slow(asked, std::sync::Mutex::new(released));
    let slow = event(&exporter, Some(Arc::new(slow)));
    std::thread::scope(|scope| {
        let (first, _ledger) = attach(&exporter, &directory, slow).unwrap();
        let asking = scope.spawn(move || {
            let deadline = OpenDeadline::after(DEADLINE);
            let ask = || first.ask(Request::Mirror(slow), &deadline).is_err();
            // Requests are received again after the reply.
            (ask(), ask())
        });
        is_asked
            .recv_timeout(DEADLINE)
            .expect("the driver is asked");
        let attached = attach(&exporter, &directory, slow).map(drop);
        drop(release);
        attached.expect("another importer attaches meanwhile");
        let answers = asking.join().unwrap();
        assert_eq!(answers, (true, true), "there is no such event");
        // Both replies came long before the deadline, so they are refusals.
        assert!(is_asked.try_recv().is_ok(), "the driver was asked again");
    });
}

/// Size of a piece in bytes.
const PIECE: u64 = 4096;

/// A piece that pretends that a driver makes its descriptor each time.
struct MadeEachTime {
    file: Arc<OwnedFd>,
    /// Number of times that the descriptor was created.
    made: Arc<AtomicUsize>,
}

impl BackendObject for MadeEachTime {
    fn len(&self) -> usize {
        PIECE as usize
    }

    fn descriptor(&self, _: Access) -> Result<Arc<OwnedFd>> {
        self.made.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::clone(&self.file))
    }

    fn lends_by_driver(&self) -> bool {
        true
    }
}

/// Exports memory in this many pieces. Also returns how often the driver was asked for a piece.
fn pieces(exporter: &Exporter, count: usize) -> (Credential, Arc<AtomicUsize>) {
    let file = memfd::create("piece", PIECE).expect("memory");
    let piece = MadeEachTime {
        file: Arc::new(file),
        made: Arc::default(),
    };
    let made = Arc::clone(&piece.made);
    let object: Arc<dyn BackendObject> = Arc::new(piece);
    let part = crate::PiecePart {
        whole: PIECE,
        offset: 0,
        len: PIECE,
    };
    let piece = |_| Piece {
        object: Arc::clone(&object),
        part,
    };
    let set = PieceSet::new((0..count).map(piece).collect()).expect("few enough");
    let memory: Arc<dyn BackendObject> = Arc::new(PiecedMemory(set));
    let particulars = Particulars {
        kind: ObjectKind::Device,
        len: PIECE * count as u64,
        allocation: 1,
    };
    let cells = ExportCells::default();
    let credential = exporter.export_at(&cells, particulars, memory, 1, Access::ReadWrite);
    (credential.expect("exported"), made)
}

fn request(credential: Credential, first: u32, most: usize) -> Request {
    Request::Memory {
        credential,
        access: Access::ReadWrite,
        span: PieceSpan {
            first,
            most: most as u8,
        },
    }
}

#[test]
fn others_ask_between_the_answers_of_one_opening() {
    /// Fetches pieces. Another thread sends a request after the first reply, and gets its reply
    /// before the third.
    struct Fetching<'a, 'scope> {
        scope: &'scope std::thread::Scope<'scope, 'a>,
        connection: &'a Connection,
        pieces: Credential,
        event: Credential,
        next: usize,
        answers: usize,
        is_answered: (Sender<bool>, Receiver<bool>),
    }
    impl Dialogue for Fetching<'_, '_> {
        fn request(&mut self, most: usize) -> Request {
            request(self.pieces, self.next as u32, most)
        }

        fn look(&mut self, full: &FullReply) -> Result<bool> {
            let table = full.pieces.as_ref().expect("pieces");
            self.next += table.parts.len();
            Ok(self.next < table.total as usize)
        }

        fn take(&mut self, _: FullReply) -> Result<()> {
            self.answers += 1;
            if self.answers == 1 {
                let (connection, event) = (self.connection, self.event);
                let answered = self.is_answered.0.clone();
                self.scope.spawn(move || {
                    let deadline = OpenDeadline::after(DEADLINE);
                    let full = connection.ask(Request::Arena(event), &deadline);
                    answered.send(full.is_ok())
                });
                let began = std::time::Instant::now();
                while !self.connection.has_waiting() {
                    assert!(began.elapsed() < DEADLINE, "the other thread asks");
                    std::thread::yield_now();
                }
            }
            if self.answers == 3 {
                let answered = self.is_answered.1.recv_timeout(DEADLINE);
                assert_eq!(answered, Ok(true), "the other thread has its answer");
            }
            Ok(())
        }

        fn has_begun(&self) -> bool {
            self.next > 0
        }
    }
    let (exporter, directory) = exporter();
    let event = event(&exporter, None);
    let (pieces, _) = pieces(&exporter, 3 * socket::MAX_DESCRIPTORS + 1);
    let (connection, _ledger) = attach(&exporter, &directory, event).unwrap();
    std::thread::scope(|scope| {
        let mut fetching = Fetching {
            scope,
            connection: &connection,
            pieces,
            event,
            next: 0,
            answers: 0,
            is_answered: channel(),
        };
        let deadline = OpenDeadline::after(DEADLINE);
        connection.converse(&mut fetching, &deadline).unwrap();
        assert!(fetching.answers >= 4);
    });
    drop(exporter);
    let _ = std::fs::remove_dir(&directory);
}

#[test]
fn a_driver_makes_no_descriptors_that_cannot_be_sent() {
    let (exporter, directory) = exporter();
    let (pieces, made) = pieces(&exporter, 2 * socket::MAX_DESCRIPTORS);
    let path = std::fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let path = path
        .into_iter()
        .find(|path| path.extension().is_some_and(|end| end == "sock"));
    let path = path.expect("its socket");
    let until = crosshandle_types::sync::Deadline::after(DEADLINE);
    let stream = socket::connect(&path, until).unwrap();
    let attach = Request::Attach {
        context: exporter.number(),
        credential: pieces,
        program: ProgramName::default(),
    };
    let read = || {
        let mut buffer = [0; crate::broker::protocol::MAX_REPLY_MESSAGE];
        let most = socket::MAX_DESCRIPTORS;
        let received = socket::receive_until::<OwnedFd>(&stream, &mut buffer, most, until);
        let Ok(socket::Received::Message(len, files)) = received else {
            panic!("{received:?}");
        };
        let (reply, _, _) = Reply::read(&buffer[..len]).unwrap();
        (reply, files.len())
    };
    socket::send(&stream, &attach.encode(1), &[]).unwrap();
    assert!(matches!(read(), (Reply::Attached { .. }, 2)));
    // In the meantime, the importer reads nothing.
    for serial in 2..10 {
        socket::send(&stream, &request(pieces, 0, 7).encode(serial), &[]).unwrap();
    }
    assert!(
        matches!(read(), (Reply::Pieces { .. }, 7)),
        "as many as were asked for"
    );
    let mut answered = 1;
    for _ in 3..10 {
        match read() {
            (Reply::Pieces { .. }, 7) => answered += 1,
            (reply, _) => assert_eq!(reply, Reply::Refused(Refusal::Busy)),
        }
    }
    assert_eq!(made.load(Ordering::Relaxed), 7 * answered);
    drop((stream, exporter));
    let _ = std::fs::remove_dir(&directory);
}

#[test]
fn what_was_loaned_outlives_its_context_until_it_is_closed() {
    let (exporter, directory) = exporter();
    let [early, late] = [(); 2].map(|()| pieces(&exporter, 1).0.record);
    let ledger = exporter.own_ledger().expect("a ledger");
    let [first, second] = [early, late].map(|record| {
        let count = ledger.count(record.index).expect("in the first chunk");
        count.store(1, Ordering::SeqCst);
        count
    });
    let owner = Arc::new(());
    let keep = || -> crate::KeepAlive { Some(Box::new(Arc::clone(&owner))) };
    exporter.retire_loaned(early, keep());
    exporter.close();
    exporter.retire_loaned(late, keep());
    exporter.reclaim_all();
    assert_eq!(Arc::strong_count(&owner), 3, "both are open");
    first.store(0, Ordering::SeqCst);
    exporter.reclaim_all();
    assert_eq!(Arc::strong_count(&owner), 2, "one is open");
    second.store(0, Ordering::SeqCst);
    exporter.reclaim_all();
    assert_eq!(Arc::strong_count(&owner), 1, "none is open");
    drop(exporter);
    let _ = std::fs::remove_dir(&directory);
}

#[test]
fn segments_that_are_gone_are_forgotten_unless_they_are_open() {
    let (exporter, directory) = exporter();
    let (connection, ledger) = attach(&exporter, &directory, event(&exporter, None)).unwrap();
    let owner = exporter.importers().latest;
    let file = Arc::new(memfd::create("memory", PIECE).expect("memory"));
    let fetch = |segment: u32| {
        let object: Arc<dyn BackendObject> = Arc::new(MadeEachTime {
            file: Arc::clone(&file),
            made: Arc::default(),
        });
        let (cells, particulars) = (ExportCells::default(), Particulars::default());
        let shared = Arc::clone(&object);
        let exported = exporter.export_at(&cells, particulars, shared, segment, Access::ReadWrite);
        let credential = exported.expect("exported");
        let access = Access::ReadWrite;
        exporter
            .memory(owner, &credential, access, PieceSpan::ALL)
            .map(drop)
            .unwrap();
        (credential.record, object)
    };
    // One segment exists, and the importer has another one open that was freed.
    let (_, _exists) = fetch(0);
    let (open, _) = fetch(1);
    ledger
        .count(open.index)
        .expect("in the first chunk")
        .store(1, Ordering::SeqCst);
    exporter.retire(open, true, None);
    for segment in 2..1000 {
        exporter.retire(fetch(segment).0, true, None);
    }
    let given = exporter.importers().by_owner[&owner].ledger.given();
    assert!(given.len() < 200, "{} segments", given.len());
    assert!(given.starts_with(&[0, 1]), "{given:?}");
    drop((connection, exporter));
    let _ = std::fs::remove_dir(&directory);
}

/// Waits until a condition is true.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + DEADLINE;
    while !is_so() {
        assert!(std::time::Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn an_export_that_relies_on_the_latest_check_gets_its_directory() {
    let (exporter, directory) = exporter();
    let socket = directory.join(format!("{:016x}.sock", address::exporter_id().unwrap()));
    for _ in 0..3 {
        // The first export checks, and the second one relies on that check.
        std::thread::sleep(Duration::from_millis(15));
        let _ = event(&exporter, None);
        std::fs::remove_dir_all(&directory).unwrap();
        let next = event(&exporter, None);
        until("the socket is made again", || socket.exists());
        drop(attach(&exporter, &directory, next).unwrap());
    }
    drop(exporter);
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_removed_socket_is_there_again() {
    let (exporter, directory) = exporter();
    let first = event(&exporter, None);
    // The exporter may bind again while the directory is being removed.
    let remove = || {
        until("the directory is removed", || {
            std::fs::remove_dir_all(&directory).is_ok()
        })
    };
    let socket = directory.join(format!("{:016x}.sock", address::exporter_id().unwrap()));
    for _ in 0..3 {
        // This works without an export, if the system reports removals.
        std::fs::remove_file(&socket).unwrap();
        until("the socket is made again", || socket.exists());
        drop(attach(&exporter, &directory, first).unwrap());
        // This works with an export, which checks a few milliseconds after the latest check.
        std::fs::remove_file(&socket).unwrap();
        until("an export makes the socket again", || {
            let _ = event(&exporter, None);
            socket.exists()
        });
        let next = event(&exporter, None);
        drop(attach(&exporter, &directory, next).unwrap());
    }
    // Another file has the name.
    std::fs::rename(&socket, directory.join("elsewhere")).unwrap();
    until("the socket is made again", || socket.exists());
    drop(attach(&exporter, &directory, first).unwrap());
    // A directory that the program chose is recreated only for another export. This export makes
    // a check of its own.
    std::thread::sleep(Duration::from_millis(15));
    let _ = event(&exporter, None);
    remove();
    std::thread::sleep(Duration::from_millis(50));
    assert!(!directory.exists());
    let next = event(&exporter, None);
    drop(attach(&exporter, &directory, next).unwrap());
    let other = Exporter::new(
        Label::default(),
        PeerPolicy::default(),
        Some(directory.clone()),
        false,
    );
    let other = other.unwrap();
    other.go_public().unwrap();
    let (next, own) = (event(&other, None), event(&exporter, None));
    // The removal has two steps, so that each of two brokers could recreate the directory.
    remove();
    std::fs::create_dir(&directory).unwrap();
    until("exports make the socket again", || {
        let _ = (event(&exporter, None), event(&other, None));
        socket.exists()
    });
    drop(attach(&other, &directory, next).unwrap());
    drop(attach(&exporter, &directory, own).unwrap());
    drop((exporter, other));
    assert!(!socket.exists());
    std::fs::remove_dir_all(&directory).unwrap();
}
