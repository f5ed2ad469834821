//! Tests of memory that the importer maps by a driver's handle, also while it waits for the
//! exporter's reply. They check what happens to the mapping. The backend is `noop` with a driver
//! that only counts calls. The exporter is in this process, and replies as an exporter in another
//! process does.

use super::*;
use crate::api::core::ContextOptions;
use crate::api::device::Device;
use crosshandle_hal::noop::NoopContext;
use crosshandle_hal::{BackendBlob, BackendDriverHandles, BackendObject};
use crosshandle_handle::BackendKind;
use crosshandle_ipc::testing::{DEADLINE, Exporting, HandleOnly, LEN};
use crosshandle_os::memfd;
use crosshandle_types::{Address, SharedBytes};
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// A fake driver that records its calls.
#[derive(Default)]
struct Driver {
    /// The first byte of each handle that the driver was asked to map.
    asked: Mutex<Vec<u8>>,
    /// The number of current mappings.
    mapped: AtomicUsize,
    /// The number of calls that fail before one succeeds.
    failures: AtomicUsize,
    /// Called before each mapping.
    before: Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl Driver {
    fn asked(&self) -> Vec<u8> {
        self.asked.lock().unwrap().clone()
    }

    fn mapped(&self) -> usize {
        self.mapped.load(Ordering::SeqCst)
    }

    /// Waits until the driver is asked for a mapping. Returns `false` if the deadline passes first.
    fn await_asked(&self) -> bool {
        let end = Instant::now() + DEADLINE;
        while self.asked().is_empty() {
            if Instant::now() > end {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }
}

struct Mapped {
    driver: Arc<Driver>,
    /// The first byte of the handle by which the memory was mapped.
    byte: u8,
}

impl Mapped {
    fn by(driver: &Arc<Driver>, byte: u8) -> Arc<dyn BackendSegment> {
        driver.mapped.fetch_add(1, Ordering::SeqCst);
        let driver = Arc::clone(driver);
        Arc::new(Self { driver, byte })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.driver.mapped.fetch_sub(1, Ordering::SeqCst);
    }
}

impl BackendObject for Mapped {
    fn len(&self) -> usize {
        LEN
    }

    fn descriptor(&self, _: Access) -> Result<Arc<OwnedFd>> {
        Err(Error::invalid("it has none"))
    }
}

impl BackendSegment for Mapped {
    fn start(&self) -> Address {
        Address::new(std::ptr::NonNull::dangling())
    }

    fn host_bytes(&self) -> Option<SharedBytes<'_>> {
        None
    }

    fn populate(&self, _: usize, _: usize) {}
}

struct Counting(Arc<Driver>);

impl BackendDriverHandles for Counting {
    fn import_handle(&self, handle: &BackendBlob, len: usize) -> Result<Arc<dyn BackendSegment>> {
        assert_eq!((handle.as_bytes().len(), len), (80, LEN));
        if let Some(before) = &*self.0.before.lock().unwrap() {
            before();
        }
        let byte = handle.as_bytes()[0];
        self.0.asked.lock().unwrap().push(byte);
        let fails = |left: usize| left.checked_sub(1);
        let failures = &self.0.failures;
        match failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fails) {
            Ok(_) => Err(Error::invalid("it is to fail")),
            Err(_) => Ok(Mapped::by(&self.0, byte)),
        }
    }
}

/// Memory whose exporter may reply with another handle than the sealed one in the catalog.
struct Answering<F> {
    sealed: u8,
    times: AtomicUsize,
    /// Returns the first byte of the handle in a reply; `None` for a descriptor.
    answer: F,
}

impl<F: Fn() -> Option<u8> + Send + Sync + 'static> Answering<F> {
    fn with(sealed: u8, answer: F) -> Arc<dyn BackendObject> {
        Arc::new(Self {
            sealed,
            times: AtomicUsize::new(0),
            answer,
        })
    }
}

impl<F: Fn() -> Option<u8> + Send + Sync + 'static> BackendObject for Answering<F> {
    fn len(&self) -> usize {
        LEN
    }

    fn descriptor(&self, _: Access) -> Result<Arc<OwnedFd>> {
        let file = memfd::create("crosshandle-test", LEN as u64);
        Ok(Arc::new(file.map_err(Error::os("creating memory"))?))
    }

    fn driver_handle(&self) -> Option<BackendBlob> {
        let byte = match self.times.fetch_add(1, Ordering::SeqCst) {
            0 => Some(self.sealed),
            _ => (self.answer)(),
        };
        Some(HandleOnly(byte?).handle())
    }
}

/// An exporter, and an importer with a driver that records its calls.
struct Pair {
    exporting: Exporting,
    core: ContextCore,
    driver: Arc<Driver>,
}

impl Pair {
    fn new(name: &str) -> Self {
        let driver = Arc::new(Driver::default());
        let counting = Counting(Arc::clone(&driver));
        let backend = Arc::new(NoopContext::with_driver_handles(counting));
        let device = Device::find("host").expect("it is always there");
        // No holder listens in this directory.
        let directory = std::env::temp_dir().join(format!("xh-imports-{name}"));
        let options = ContextOptions::new().socket_dir(directory);
        let core = ContextCore::new(device, options, |_| Ok(backend)).expect("a context");
        Self {
            exporting: Exporting::new(name),
            core,
            driver,
        }
    }

    fn share(&self, number: u8, access: Access) -> Fields {
        self.for_here(self.exporting.share(number, access))
    }

    fn share_memory(&self, number: u8, memory: Arc<dyn BackendObject>) -> Fields {
        self.for_here(
            self.exporting
                .share_memory(number, memory, Access::ReadWrite),
        )
    }

    fn for_here(&self, fields: Fields) -> Fields {
        Fields {
            backend: BackendKind::Host,
            host: self.core.host,
            device: self.core.uuid,
            ..fields
        }
    }

    /// Attaches to the exporter as another process does.
    fn attach(&self, fields: &Fields) -> Arc<Attachment> {
        let attachment = self.exporting.attach(fields);
        let known = &self.core.imports.attachments;
        write(known).insert(ContextId::of(fields), Arc::clone(&attachment));
        attachment
    }

    fn import(&self, fields: &Fields) -> Result<Arc<Imported>> {
        let deadline = OpenDeadline::after(DEADLINE);
        self.core.imported(fields, Access::ReadWrite, &deadline)
    }
}

/// Returns the first byte of the handle by which the memory was mapped. Returns `None` if a
/// descriptor was mapped.
fn mapped_by(imported: &Imported) -> Option<u8> {
    let memory: &dyn std::any::Any = &*imported.memory;
    memory.downcast_ref::<Mapped>().map(|memory| memory.byte)
}

#[test]
fn memory_is_mapped_before_its_exporter_answers() {
    let pair = Pair::new("before");
    let driver = Arc::clone(&pair.driver);
    let memory = Answering::with(1, move || driver.await_asked().then_some(1));
    let fields = pair.share_memory(1, memory);
    let attachment = pair.attach(&fields);
    let imported = pair.import(&fields).unwrap();
    assert_eq!(mapped_by(&imported), Some(1));
    assert_eq!((pair.driver.asked(), pair.driver.mapped()), (vec![1], 1));
    assert!(
        !Exporting::is_open(&attachment, &fields),
        "whoever opens it counts"
    );
    drop(imported);
    assert_eq!(pair.driver.mapped(), 0);
}

#[test]
fn what_the_exporter_refuses_is_unmapped() {
    let pair = Pair::new("refused");
    let mut fields = pair.share(1, Access::ReadOnly);
    // A forged handle. Its key only allows reading.
    fields.read_only = false;
    let attachment = pair.attach(&fields);
    let refused = pair.import(&fields).map(drop);
    assert!(matches!(refused, Err(Error::ReadOnly)), "{refused:?}");
    assert_eq!((pair.driver.asked(), pair.driver.mapped()), (vec![1], 0));
    assert!(!Exporting::is_open(&attachment, &fields));
}

#[test]
fn only_what_the_exporter_answers_with_is_kept() {
    for answer in [Some(2), None] {
        let pair = Pair::new("other");
        let fields = pair.share_memory(1, Answering::with(1, move || answer));
        let attachment = pair.attach(&fields);
        let imported = pair.import(&fields).unwrap();
        assert_eq!(mapped_by(&imported), answer);
        assert_eq!(pair.driver.mapped(), usize::from(answer.is_some()));
        let asked: Vec<u8> = [Some(1), answer].into_iter().flatten().collect();
        assert_eq!(pair.driver.asked(), asked);
        assert!(!Exporting::is_open(&attachment, &fields));
    }
}

#[test]
fn a_mapping_that_fails_is_tried_again_with_the_answer() {
    let pair = Pair::new("again");
    let fields = pair.share(1, Access::ReadWrite);
    let attachment = pair.attach(&fields);
    pair.driver.failures.store(1, Ordering::SeqCst);
    let imported = pair.import(&fields).unwrap();
    assert_eq!(mapped_by(&imported), Some(1));
    assert_eq!((pair.driver.asked(), pair.driver.mapped()), (vec![1, 1], 1));
    drop(imported);
    // If the second attempt fails too, the caller gets the error.
    pair.driver.failures.store(2, Ordering::SeqCst);
    let failed = pair.import(&fields).map(drop);
    assert!(
        matches!(failed, Err(Error::InvalidArgument { .. })),
        "{failed:?}"
    );
    assert_eq!(pair.driver.mapped(), 0);
    assert!(!Exporting::is_open(&attachment, &fields));
}

#[test]
fn of_many_those_before_the_first_refused_are_mapped() {
    let pair = Pair::new("many");
    let mut all: Vec<_> = (1..=3)
        .map(|number| match number {
            2 => pair.share(number, Access::ReadOnly),
            _ => pair.share(number, Access::ReadWrite),
        })
        .collect();
    all[1].read_only = false;
    let attachment = pair.attach(&all[0]);
    let mapped = pair
        .core
        .map_ahead(&all, Access::ReadWrite, &pair.core.deadline());
    let bytes: Vec<_> = mapped.iter().map(|imported| mapped_by(imported)).collect();
    assert_eq!(bytes, [Some(1)]);
    assert_eq!((pair.driver.asked(), pair.driver.mapped()), (vec![1, 2], 1));
    assert!(
        all.iter()
            .all(|fields| !Exporting::is_open(&attachment, fields))
    );
    drop(mapped);
    assert_eq!(pair.driver.mapped(), 0);
}

#[test]
fn what_is_mapped_is_unmapped_if_the_exporter_dies_before_it_answers() {
    let pair = Pair::new("dies");
    let driver = Arc::clone(&pair.driver);
    let memory = Answering::with(1, move || driver.await_asked().then_some(1));
    let fields = pair.share_memory(1, memory);
    let attachment = pair.attach(&fields);
    let (broken, seen) = (Arc::downgrade(&attachment), fields);
    let break_off = move || {
        let attachment = broken.upgrade().expect("in use");
        assert!(Exporting::is_open(&attachment, &seen), "while it is mapped");
        attachment.break_off();
    };
    *pair.driver.before.lock().unwrap() = Some(Box::new(break_off));
    let failed = pair.import(&fields).map(drop);
    assert!(
        matches!(failed, Err(Error::ExporterGone { .. })),
        "{failed:?}"
    );
    assert_eq!((pair.driver.asked(), pair.driver.mapped()), (vec![1], 0));
    assert!(!Exporting::is_open(&attachment, &fields));
}

#[test]
fn few_shared_segments_stay_mapped_while_nothing_in_them_is_open() {
    let pair = Pair::new("unused");
    let shared = |number: u8| {
        let (segment, memory) = (number.into(), Arc::new(HandleOnly(number)));
        let fields = pair
            .exporting
            .share_segment(segment, memory, Access::ReadWrite);
        pair.for_here(fields)
    };
    let all: Vec<_> = (1..=3 * MAX_UNUSED as u8).map(shared).collect();
    pair.attach(&all[0]);
    let open = pair.import(&all[0]).unwrap();
    for fields in &all[1..] {
        drop(pair.import(fields).unwrap());
    }
    let await_mapped = |count: usize| {
        let end = Instant::now() + DEADLINE;
        while pair.driver.mapped() != count {
            assert!(Instant::now() < end, "{} are mapped", pair.driver.mapped());
            std::thread::yield_now();
        }
    };
    // The first is open, and the last was when it was mapped.
    await_mapped(MAX_UNUSED + 2);
    // Open memory stays mapped, and so do the newest segments.
    let asked = pair.driver.asked().len();
    for fields in [&all[0], &all[all.len() - 1]] {
        drop(pair.import(fields).unwrap());
    }
    assert_eq!(pair.driver.asked().len(), asked);
    // An old segment is mapped again when it is needed.
    drop(pair.import(&all[1]).unwrap());
    assert_eq!(pair.driver.asked().len(), asked + 1);
    pair.core.trim();
    await_mapped(1);
    drop(open);
    pair.core.trim();
    await_mapped(0);
}
