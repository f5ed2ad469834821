//! Records of a context: the numbers by which importers know its objects.

mod pieces;

pub use pieces::{Piece, PieceSet, PiecedMemory};

use super::chunks::MAX_RECORDS;
use super::event_arena::EventArena;
use super::record::{Credential, Record};
use crate::broker::protocol::BackendBlob;
use chacha20::ChaCha20Rng;
use chacha20::rand_core::{Rng, SeedableRng};
use crosshandle_handle::Key;
use crosshandle_os::process;
use crosshandle_types::Access;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::observe::ExportedObject;
use crosshandle_types::report::ObjectKind;
use std::any::Any;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The segment number in records of native mirrors. No segment has it.
pub(super) const MIRROR_SEGMENT: u32 = u32::MAX;

/// An object that can be shared by its descriptor.
pub trait BackendObject: Any + Send + Sync {
    /// Returns the number of bytes behind the descriptor.
    fn len(&self) -> usize;

    /// Performs the steps of [`descriptor`](Self::descriptor) that may fail, so that an exported
    /// handle can be opened. Afterwards `descriptor` and [`note`](Self::note) call no driver.
    fn prepare(&self) -> Result<()> {
        Ok(())
    }

    /// Returns a descriptor that allows this access, and no more if the driver can limit it. May
    /// call a driver unless the object is [prepared](Self::prepare).
    fn descriptor(&self, access: Access) -> Result<Arc<OwnedFd>>;

    /// Returns the blob that the importer's backend needs in addition to the descriptor. Called
    /// after [`descriptor`](Self::descriptor).
    fn note(&self) -> BackendBlob {
        BackendBlob::NONE
    }

    /// Returns the driver's handle of the memory, if the driver shares the memory only by this
    /// handle and not by a descriptor. Any process that has the handle can map the memory, so the
    /// exporter gives it only to importers that have shown a key. Calls no driver.
    fn driver_handle(&self) -> Option<BackendBlob> {
        None
    }

    /// Returns the pieces that the memory consists of, if it has no descriptor of its own.
    fn pieces(&self) -> Option<&PieceSet> {
        None
    }

    /// Performs the steps of [`lend`](Self::lend) that may fail. Keeps few or no descriptors,
    /// because there may be thousands of such objects.
    fn prepare_to_lend(&self) -> Result<()> {
        self.prepare()
    }

    /// Returns a descriptor for one importer, like [`descriptor`](Self::descriptor), but keeps no
    /// descriptor that it makes for this purpose.
    fn lend(&self, access: Access) -> Result<Arc<OwnedFd>> {
        self.descriptor(access)
    }

    /// Returns whether [`lend`](Self::lend) calls a driver even though the object is prepared.
    fn lends_by_driver(&self) -> bool {
        false
    }
}

/// The credentials of an exported object, one for writing and one for reading only. Every
/// allocation has these cells, so they are small.
#[derive(Default)]
pub struct ExportCells {
    /// Flags by access, each of which is set after its credential. They are part of the order of
    /// all sequentially consistent operations (see `Allocation::free`).
    is_set: [AtomicBool; 2],
    // The credential for writing, without padding.
    index: AtomicU32,
    generation: AtomicU64,
    key: AtomicKey,
    /// The credential for reading only, which few objects have.
    read_only: OnceLock<Box<Credential>>,
}

impl ExportCells {
    /// Returns the credential for an access, if it exists.
    #[inline]
    pub fn get(&self, access: Access) -> Option<Credential> {
        if !self.is_set(access).load(Ordering::SeqCst) {
            return None;
        }
        match access {
            Access::ReadWrite => Some(Credential {
                record: Record {
                    index: self.index.load(Ordering::Relaxed),
                    generation: self.generation.load(Ordering::Relaxed),
                },
                key: self.key.load(),
            }),
            Access::ReadOnly => self.read_only.get().map(|credential| **credential),
        }
    }

    /// Returns all existing credentials.
    pub fn all(&self) -> impl Iterator<Item = Credential> {
        [Access::ReadWrite, Access::ReadOnly]
            .into_iter()
            .filter_map(|access| self.get(access))
    }

    /// Returns whether a credential exists.
    pub fn has_some(&self) -> bool {
        self.is_set
            .iter()
            .any(|is_set| is_set.load(Ordering::SeqCst))
    }

    /// Sets the credential for an access. The caller holds the lock on the exporter's records and
    /// has checked that none exists.
    pub(super) fn set(&self, access: Access, credential: Credential) {
        match access {
            Access::ReadWrite => {
                let Credential { record, key } = credential;
                self.index.store(record.index, Ordering::Relaxed);
                self.generation.store(record.generation, Ordering::Relaxed);
                self.key.store(key);
            }
            Access::ReadOnly => {
                let _ = self.read_only.set(Box::new(credential));
            }
        }
        self.is_set(access).store(true, Ordering::SeqCst);
    }

    fn is_set(&self, access: Access) -> &AtomicBool {
        &self.is_set[usize::from(access == Access::ReadOnly)]
    }
}

/// A key that other threads may read after a separate flag says that it is set.
#[derive(Default)]
pub(super) struct AtomicKey([AtomicU64; 2]);

impl AtomicKey {
    #[inline]
    pub(super) fn load(&self) -> Key {
        let words = self.0.each_ref().map(|word| word.load(Ordering::Relaxed));
        Key::from_bytes(zerocopy::transmute!(words))
    }

    pub(super) fn store(&self, key: Key) {
        let words: [u64; 2] = zerocopy::transmute!(*key.as_bytes());
        for (word, value) in self.0.iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
    }
}

/// An object that importers may fetch, or an event that they may open.
pub(super) struct Export {
    pub(super) key: Key,
    pub(super) object: Exported,
    pub(super) _counted: ExportedObject,
}

impl Export {
    /// Returns whether the catalog contains the sealed driver's handle of the memory.
    pub(super) fn is_sealed(&self) -> bool {
        matches!(&self.object, Exported::Memory(memory) if memory.is_sealed)
    }
}

pub(super) enum Exported {
    Memory(ExportedMemory),
    /// An event. Most events have neither an arena of their own nor a mirror.
    Event(Option<Box<ExportedEvent>>),
}

/// Parts that few events have.
pub(super) struct ExportedEvent {
    /// The event's own arena, if it has one.
    pub(super) isolated: Option<Arc<EventArena>>,
    pub(super) mirror: Option<ExportedMemory>,
}

impl ExportedEvent {
    /// Returns the parts that few events have: an arena of its own and a native mirror.
    #[cold]
    pub(super) fn boxed(
        isolated: Option<Arc<EventArena>>,
        mirror: Option<Arc<dyn BackendObject>>,
    ) -> Box<Self> {
        let mirror = mirror.map(|object| ExportedMemory {
            object,
            segment: MIRROR_SEGMENT,
            access: Access::ReadWrite,
            is_prepared: false,
            is_moved: false,
            is_sealed: false,
            particulars: Particulars::default(),
        });
        Box::new(Self { isolated, mirror })
    }
}

impl Exported {
    /// Returns the memory, or the event's native mirror.
    pub(super) fn memory_mut(&mut self) -> Option<&mut ExportedMemory> {
        match self {
            Self::Memory(memory) => Some(memory),
            Self::Event(event) => event.as_mut()?.mirror.as_mut(),
        }
    }
}

/// Memory, or an event's native mirror.
pub(super) struct ExportedMemory {
    pub(super) object: Arc<dyn BackendObject>,
    /// Number of the segment.
    pub(super) segment: u32,
    /// The most access that handles grant.
    pub(super) access: Access,
    /// Whether getting the descriptor no longer calls a driver.
    pub(super) is_prepared: bool,
    /// Whether the memory was handed over, so that importers must ask its holder.
    pub(super) is_moved: bool,
    /// Whether the catalog contains the sealed driver's handle.
    pub(super) is_sealed: bool,
    pub(super) particulars: Particulars,
}

/// Properties of shared memory that reports show.
#[derive(Clone, Copy, Default)]
pub struct Particulars {
    pub kind: ObjectKind,
    /// Size of the allocation in bytes.
    pub len: u64,
    /// Number that all records of the allocation share while it exists.
    pub allocation: usize,
}

/// A freed record that a process still has open.
pub(super) struct Retired {
    pub(super) index: u32,
    /// Number of the segment, if the object was memory.
    pub(super) segment: Option<u32>,
    /// The value that must be kept until the record is closed.
    pub(super) keep: KeepAlive,
    /// Whether the value must be kept even after the end of the context.
    pub(super) is_loaned: bool,
    /// Properties of the memory, if the object was memory.
    pub(super) memory: Option<(Particulars, Access)>,
}

/// A generator of keys that the system seeds. Asking the system for each key would take longer than
/// the rest of an export.
struct KeyGenerator(ChaCha20Rng);

impl KeyGenerator {
    fn new() -> Result<Self> {
        let mut seed = [0; 32];
        process::random(&mut seed).map_err(Error::os("reading random bytes"))?;
        Ok(Self(ChaCha20Rng::from_seed(seed)))
    }

    fn next(&mut self) -> Key {
        // Keys are made of whole words. Reading a key that was written byte by byte would stall the
        // processor.
        let mut words = [self.0.next_u64(), self.0.next_u64()];
        // An all-zero key is replaced, because handles with such a key are refused.
        words[0] |= u64::from(words == [0; 2]);
        Key::from_bytes(zerocopy::transmute!(words))
    }
}

/// All records of a context.
pub(super) struct Records {
    pub(super) free: Vec<u32>,
    /// Number of records that were ever used.
    used: u32,
    /// The export of each record, if it has one.
    exports: Vec<Option<Export>>,
    /// Freed records that processes still have open.
    pub(super) retired: VecDeque<Retired>,
    /// Whether the context no longer allocates, so that nothing must be kept.
    pub(super) is_closed: bool,
    keys: KeyGenerator,
}

/// A value that is kept until no importer can access the memory that it stands for.
pub type KeepAlive = Option<Box<dyn Any + Send + Sync>>;

impl Records {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            free: Vec::new(),
            used: 0,
            exports: Vec::new(),
            retired: VecDeque::new(),
            is_closed: false,
            keys: KeyGenerator::new()?,
        })
    }

    // Inlined into the caller, which would otherwise write the export in pieces. Reading it here as
    // a whole would then stall the processor.
    #[inline]
    pub(super) fn set_export(&mut self, record: u32, export: Export) {
        let record = record as usize;
        match self.exports.get_mut(record) {
            Some(place) => *place = Some(export),
            None => {
                self.exports.resize_with(record, || None);
                self.exports.push(Some(export));
            }
        }
    }

    pub(super) fn export(&self, record: u32) -> Option<&Export> {
        self.exports.get(record as usize)?.as_ref()
    }

    /// Returns the exports of at most `most` records from `first` on, or `None` after the last
    /// record.
    pub(super) fn exports_from(
        &self,
        first: u32,
        most: u32,
    ) -> Option<impl Iterator<Item = (u32, &Export)>> {
        let end = self.exports.len().min((first + most) as usize);
        let slice = self.exports.get(first as usize..end)?;
        let records = (first..).zip(slice);
        (!slice.is_empty())
            .then(|| records.filter_map(|(record, export)| Some((record, export.as_ref()?))))
    }

    /// Returns whether a record's memory was handed over.
    pub(super) fn is_moved(&self, record: u32) -> bool {
        self.export(record).is_some_and(
            |export| matches!(&export.object, Exported::Memory(memory) if memory.is_moved),
        )
    }

    /// Returns the number of the segment that contains a record's memory.
    pub(super) fn segment_of(&self, record: u32) -> Option<u32> {
        match &self.export(record)?.object {
            Exported::Memory(memory) => Some(memory.segment),
            Exported::Event(_) => None,
        }
    }

    pub(super) fn export_mut(&mut self, record: u32) -> Option<&mut Export> {
        self.exports.get_mut(record as usize)?.as_mut()
    }

    pub(super) fn take_export(&mut self, record: u32) -> Option<Export> {
        self.exports.get_mut(record as usize)?.take()
    }

    /// Returns a key for a new export.
    pub(super) fn next_key(&mut self) -> Key {
        self.keys.next()
    }

    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty() && self.used == MAX_RECORDS
    }

    pub(super) fn take_index(&mut self) -> Result<u32> {
        if let Some(index) = self.free.pop() {
            return Ok(index);
        }
        if self.used == MAX_RECORDS {
            return Err(Error::LimitReached {
                what: format!("this context shares {MAX_RECORDS} objects already"),
                remedy: "free some, or use a second context".into(),
            });
        }
        self.used += 1;
        Ok(self.used - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_has_a_credential_for_each_access() {
        let mut keys = KeyGenerator::new().expect("a generator");
        let mut credential = |index| Credential {
            record: Record {
                index,
                generation: 1 << 40 | u64::from(index),
            },
            key: keys.next(),
        };
        let (first, second) = (credential(3), credential(5));
        assert_ne!(first.key, second.key);
        let both = [
            (Access::ReadWrite, Access::ReadOnly),
            (Access::ReadOnly, Access::ReadWrite),
        ];
        for (access, other) in both {
            let cells = ExportCells::default();
            assert!(!cells.has_some());
            cells.set(access, first);
            assert_eq!((cells.get(access), cells.get(other)), (Some(first), None));
            assert!(cells.has_some());
            cells.set(other, second);
            assert_eq!(cells.get(access), Some(first));
            assert_eq!(cells.get(other), Some(second));
            assert_eq!(cells.all().count(), 2);
        }
    }
}
