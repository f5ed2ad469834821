use super::*;

use crate::ipc::broker::protocol::{ProgramName, Reply, Request};
use crate::ipc::broker::{Connection, Deadline, Route};
use crate::ipc::chunks::LedgerChunk;
use crate::ipc::open_count;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(20);

/// Returns an exporter that answers in a directory of its own.
fn exporter() -> (Arc<Exporter>, PathBuf) {
    let name = format!("xh-exporter-{}", address::exporter_id().unwrap());
    let directory = std::env::temp_dir().join(name);
    let policy = PeerPolicy::default();
    let exporter = Exporter::new(Label::default(), policy, Some(directory.clone()), false).unwrap();
    exporter.go_public().unwrap();
    (exporter, directory)
}

/// Makes an event that can be opened with the result.
fn event(exporter: &Exporter, mirror: Option<Arc<dyn Shared>>) -> Credential {
    let record = exporter.create_event_record(false).unwrap();
    exporter.export_event(record, None, mirror).unwrap()
}

/// Attaches as another process does, and opens an event. The connection's timeout is the test's
/// deadline.
fn attach(
    exporter: &Exporter,
    directory: &Path,
    credential: Credential,
) -> Result<(Connection, Ledger)> {
    let number = address::exporter_id()?;
    let policy = PeerPolicy::default();
    let deadline = Deadline::after(DEADLINE);
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

/// A value whose drop says that it has begun, and then blocks until it may go on.
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
    /// An object whose descriptor takes as long as the test likes.
    struct Slow(Sender<()>, std::sync::Mutex<Receiver<()>>);
    impl Shared for Slow {
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
            let deadline = Deadline::after(DEADLINE);
            let ask = || first.ask::<1>(Request::Mirror(slow), &deadline).is_err();
            // Questions are taken again after the answer.
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
        // Both answers came long before the deadline, so they are refusals.
        assert!(is_asked.try_recv().is_ok(), "the driver was asked again");
    });
}
