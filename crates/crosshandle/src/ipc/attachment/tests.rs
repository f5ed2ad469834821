//! Memory that crosses by a driver's handle: an attachment to an exporter of this process, made as another process does.

use super::*;
use crate::handle::{BackendKind, DeviceUuid, Fields, Key};
use crate::ipc::broker::protocol::{BackendBlob, ProgramName, Request};
use crate::ipc::broker::{FetchedHandle, FetchedPieces, Route, address};
use crate::ipc::describe::Label;
use crate::ipc::records::{ExportCells, Particulars, Shared};
use crate::types::Access;
use std::os::fd::OwnedFd;
use std::time::Instant;

const DEADLINE: Duration = Duration::from_secs(20);
const SEGMENT: u32 = 1 << 31 | 5;
const LEN: usize = 1 << 21;

/// Memory without a descriptor.
struct HandleOnly(u8);

impl HandleOnly {
    fn handle(&self) -> BackendBlob {
        BackendBlob::new(&[self.0; 80])
    }
}

impl Shared for HandleOnly {
    fn len(&self) -> usize {
        LEN
    }

    fn descriptor(&self, _: Access) -> Result<Arc<OwnedFd>> {
        Err(Error::invalid("it has none"))
    }

    fn driver_handle(&self) -> Option<BackendBlob> {
        Some(self.handle())
    }
}

/// An exporter with memory of which only a driver's handle crosses.
struct Exporting {
    exporter: Arc<Exporter>,
    directory: PathBuf,
}

impl Exporting {
    fn new(name: &str) -> Self {
        let id = address::exporter_id().unwrap();
        let directory = std::env::temp_dir().join(format!("xh-attachment-{name}-{id}"));
        let (label, policy) = (Label::default(), PeerPolicy::default());
        let exporter = Exporter::new(label, policy, Some(directory.clone()), false).unwrap();
        exporter.go_public().unwrap();
        Self {
            exporter,
            directory,
        }
    }

    /// Shares memory, and returns what its handle says.
    fn share(&self, number: u8, access: Access) -> Fields {
        let memory: Arc<dyn Shared> = Arc::new(HandleOnly(number));
        let cells = ExportCells::default();
        let exported =
            self.exporter
                .export_at(&cells, Particulars::default(), &memory, SEGMENT, access);
        let Credential { record, key } = exported.unwrap();
        Fields {
            backend: BackendKind::Cuda,
            read_only: access == Access::ReadOnly,
            host: 0,
            exporter: address::exporter_id().unwrap(),
            pid: 0,
            context: self.exporter.number(),
            key,
            device: DeviceUuid::from_bytes([0; 16]),
            generation: record.generation,
            record: record.index,
            segment: SEGMENT,
            offset: 0,
            length: LEN as u64,
        }
    }

    fn attach(&self, fields: &Fields) -> Arc<Attachment> {
        let (policy, deadline) = (PeerPolicy::default(), Deadline::after(DEADLINE));
        let directory = Some(self.directory.as_path());
        let route = Route::Exporter;
        let connection =
            Connection::open(fields.exporter, 0, route, directory, &policy, &deadline).unwrap();
        let request = Request::Attach {
            context: fields.context,
            credential: Credential::of(fields),
            program: ProgramName::default(),
        };
        let answer = connection.ask_for_memory(request, None, &deadline).unwrap();
        let context = ContextId::by(fields, route);
        Attachment::accepted(context, connection, DEADLINE, answer).unwrap()
    }
}

/// Opens memory, and returns what was handed on ahead of the exporter's answer, and the answer.
fn fetch(
    attachment: &Attachment,
    fields: &Fields,
    access: Access,
) -> (Vec<FetchedHandle>, Result<FetchedHandle>) {
    let mut ahead = Vec::new();
    let take = |_: FetchedPieces| -> Result<()> { panic!("it does not consist of pieces") };
    let deadline = Deadline::after(DEADLINE);
    let note = |found| ahead.push(found);
    let delivery = attachment.fetch_segment(fields, access, &deadline, note, take);
    let answer = delivery.map(|delivery| match delivery {
        Some(Delivery::DriverHandle(found)) => found,
        _ => panic!("it has no descriptor"),
    });
    (ahead, answer)
}

fn found(number: u8) -> FetchedHandle {
    FetchedHandle {
        segment: SEGMENT,
        len: LEN as u64,
        handle: HandleOnly(number).handle(),
    }
}

#[test]
fn a_drivers_handle_is_there_before_the_answer_that_says_that_it_may_be_used() {
    let exporting = Exporting::new("ahead");
    let first = exporting.share(1, Access::ReadWrite);
    let read_only = exporting.share(2, Access::ReadOnly);
    let attachment = exporting.attach(&first);
    for (fields, access, number) in [
        (&first, Access::ReadWrite, 1),
        (&first, Access::ReadOnly, 1),
        (&read_only, Access::ReadOnly, 2),
    ] {
        let (ahead, answer) = fetch(&attachment, fields, access);
        assert_eq!(ahead, [found(number)]);
        assert_eq!(answer.unwrap(), found(number));
    }
    // The exporter has the last word.
    let (_, answer) = fetch(&attachment, &read_only, Access::ReadWrite);
    assert!(matches!(answer, Err(Error::ReadOnly)), "{answer:?}");
    // Only descriptors can be held.
    let deadline = Deadline::after(DEADLINE);
    let held = attachment.fetch(&first, Access::ReadWrite, &deadline);
    assert!(matches!(held.map(drop), Err(Error::Unsupported(_))));
}

#[test]
fn many_are_handed_on_ahead_each_before_its_answer() {
    let exporting = Exporting::new("many");
    let all: Vec<_> = (0..100)
        .map(|number| exporting.share(number, Access::ReadWrite))
        .collect();
    let attachment = exporting.attach(&all[0]);
    let deadline = Deadline::after(DEADLINE);
    let ahead: RefCell<Vec<_>> = RefCell::default();
    let mut answers = Vec::new();
    let note = |_: &Fields, found: FetchedHandle| ahead.borrow_mut().push(found);
    let take = |_: &Fields, delivery: Option<Delivery>| {
        let Some(Delivery::DriverHandle(found)) = delivery else {
            panic!("it has no descriptor");
        };
        answers.push(found);
        assert_eq!(*ahead.borrow(), answers);
        Ok(())
    };
    let access = Access::ReadWrite;
    attachment
        .fetch_each(&all, access, &deadline, note, take)
        .unwrap();
    assert_eq!(answers, Vec::from_iter((0..100).map(found)));
}

#[test]
fn without_its_key_a_drivers_handle_is_neither_read_nor_given() {
    let exporting = Exporting::new("key");
    let own = exporting.share(1, Access::ReadWrite);
    let mut other = exporting.share(2, Access::ReadWrite);
    let attachment = exporting.attach(&own);
    other.key = own.key;
    let (ahead, answer) = fetch(&attachment, &other, Access::ReadWrite);
    assert!(matches!(answer, Err(Error::WrongKey)), "{answer:?}");
    assert_eq!(ahead, []);
    other.key = Key::from_bytes([9; 16]);
    assert_eq!(fetch(&attachment, &other, Access::ReadWrite).0, []);
    // Nor is it anywhere in the clear.
    let sealed = attachment.catalog.sealed_handle(other.record).unwrap();
    assert!(!sealed.windows(4).any(|bytes| bytes == [2; 4]));
}

#[test]
fn the_handles_of_freed_memory_can_be_read_no_more() {
    let exporting = Exporting::new("freed");
    let (freed, kept) = (
        exporting.share(1, Access::ReadWrite),
        exporting.share(2, Access::ReadWrite),
    );
    let attachment = exporting.attach(&kept);
    let is_cleared = |fields: &Fields| {
        let sealed = attachment.catalog.sealed_handle(fields.record).unwrap();
        sealed.iter().all(|byte| *byte == 0)
    };
    assert!(!is_cleared(&freed) && !is_cleared(&kept));
    let record = Credential::of(&freed).record;
    exporting.exporter.retire(record, true, None);
    let (ahead, answer) = fetch(&attachment, &freed, Access::ReadWrite);
    assert_eq!(ahead, []);
    assert!(matches!(answer, Err(Error::Stale)), "{answer:?}");
    assert!(is_cleared(&freed) && !is_cleared(&kept));
    // The catalog outlives its context, which ends in the background if it has just answered.
    drop(exporting);
    let end = Instant::now() + DEADLINE;
    while !is_cleared(&kept) {
        assert!(Instant::now() < end);
        std::thread::yield_now();
    }
}

impl Drop for Exporting {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
