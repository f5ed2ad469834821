//! Records: the numbers under which a context's objects are known to importers.

mod pieces;

pub(crate) use pieces::{Piece, PieceSet, PiecedMemory};

use super::chunks::MAX_RECORDS;
use super::event_arena::EventArena;
use super::record::{Credential, Record};
use crate::error::{Error, Result};
use crate::handle::Key;
use crate::ipc::broker::protocol::BackendBlob;
use crate::observe::ExportedObject;
use crate::os::process;
use crate::types::Access;
use crate::types::report::ObjectKind;
use chacha20::ChaCha20Rng;
use chacha20::rand_core::{Rng, SeedableRng};
use std::any::Any;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The segment number in records of native events. No segment has it.
pub(super) const MIRROR_SEGMENT: u32 = u32::MAX;

/// An object that can be shared by its descriptor.
pub(crate) trait Shared: Any + Send + Sync {
    /// Returns the number of bytes behind the descriptor.
    fn len(&self) -> usize;

    /// Does the steps of [`descriptor`](Self::descriptor) that may fail, so that a handle that was
    /// given away can be opened. From then on `descriptor` and [`note`](Self::note) call no driver.
    fn prepare(&self) -> Result<()> {
        Ok(())
    }

    /// Returns a descriptor that allows this access, and no more if the driver can limit it. May call
    /// a driver unless the object is [prepared](Self::prepare).
    fn descriptor(&self, access: Access) -> Result<Arc<OwnedFd>>;

    /// Returns the blob that the importer's backend needs beside the descriptor. Called after
    /// [`descriptor`](Self::descriptor).
    fn note(&self) -> BackendBlob {
        BackendBlob::NONE
    }

    /// Returns the driver's handle to the memory, if the driver shares it by that alone and has no descriptor
    /// of it. Whoever has the handle can map the memory, so it goes only to those who have shown a key. Calls no
    /// driver.
    fn driver_handle(&self) -> Option<BackendBlob> {
        None
    }

    /// Returns the pieces that the memory consists of, if it has no descriptor of its own.
    fn pieces(&self) -> Option<&PieceSet> {
        None
    }

    /// Does the steps of [`lend`](Self::lend) that may fail. Keeps few descriptors or none, since there may
    /// be thousands of such objects.
    fn prepare_to_lend(&self) -> Result<()> {
        self.prepare()
    }

    /// Returns a descriptor for one importer, as [`descriptor`](Self::descriptor) does, but keeps none that
    /// it makes for that.
    fn lend(&self, access: Access) -> Result<Arc<OwnedFd>> {
        self.descriptor(access)
    }

    /// Returns whether [`lend`](Self::lend) calls a driver, although the object is prepared.
    fn lends_by_driver(&self) -> bool {
        false
    }
}

/// The credentials under which an object is exported, once it is: for writing, and for reading only.
/// Every allocation has room for them, so that room is small.
#[derive(Default)]
pub(crate) struct ExportCells {
    /// By access, each set after its credential. They take part in the order of all sequentially
    /// consistent operations: see `Allocation::free`.
    is_set: [AtomicBool; 2],
    // The credential for writing, without the gaps that it would leave.
    index: AtomicU32,
    generation: AtomicU64,
    key: AtomicKey,
    /// The credential for reading only, which few objects have.
    read_only: OnceLock<Box<Credential>>,
}

impl ExportCells {
    /// Returns the credential for an access, if there is one.
    #[inline]
    pub(crate) fn get(&self, access: Access) -> Option<Credential> {
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

    /// Returns all credentials that there are.
    pub(crate) fn all(&self) -> impl Iterator<Item = Credential> {
        [Access::ReadWrite, Access::ReadOnly]
            .into_iter()
            .filter_map(|access| self.get(access))
    }

    /// Returns whether there is a credential.
    pub(crate) fn has_some(&self) -> bool {
        self.is_set
            .iter()
            .any(|is_set| is_set.load(Ordering::SeqCst))
    }

    /// Sets the credential for an access. The caller has the lock on the exporter's records, and has found
    /// that there is none.
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

/// A key that another thread may look at as soon as something else tells that it is there.
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
    /// Returns whether the catalog has the driver's handle to its memory, sealed.
    pub(super) fn is_sealed(&self) -> bool {
        matches!(&self.object, Exported::Memory(memory) if memory.is_sealed)
    }
}

pub(super) enum Exported {
    Memory(ExportedMemory),
    /// An event; most have neither an arena nor a mirror.
    Event(Option<Box<ExportedEvent>>),
}

/// What few events have.
pub(super) struct ExportedEvent {
    /// The event's arena, if it has one to itself.
    pub(super) isolated: Option<Arc<EventArena>>,
    pub(super) mirror: Option<ExportedMemory>,
}

impl ExportedEvent {
    /// Returns what an event has that few have: an arena to itself, a native mirror.
    #[cold]
    pub(super) fn boxed(
        isolated: Option<Arc<EventArena>>,
        mirror: Option<Arc<dyn Shared>>,
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
    pub(super) object: Arc<dyn Shared>,
    /// The number of its segment.
    pub(super) segment: u32,
    /// The most access that handles grant.
    pub(super) access: Access,
    /// Whether asking for the descriptor calls no driver any more.
    pub(super) is_prepared: bool,
    /// Whether it was handed over: importers ask its holder.
    pub(super) is_moved: bool,
    /// Whether the catalog has the driver's handle to it, sealed.
    pub(super) is_sealed: bool,
    pub(super) particulars: Particulars,
}

/// What reports tell of shared memory.
#[derive(Clone, Copy, Default)]
pub(crate) struct Particulars {
    pub(crate) kind: ObjectKind,
    /// Bytes of the allocation.
    pub(crate) len: u64,
    /// A number that the allocation's records have in common, as long as it is there.
    pub(crate) allocation: usize,
}

/// A record that was freed but is still open somewhere.
pub(super) struct Retired {
    pub(super) index: u32,
    /// The segment, if it was memory.
    pub(super) segment: Option<u32>,
    /// What must not be used again until it is closed.
    pub(super) keep: KeepAlive,
    /// Whether that is also so after the end of the context.
    pub(super) is_loaned: bool,
    /// What it was, if it was memory.
    pub(super) memory: Option<(Particulars, Access)>,
}

/// A generator of keys, seeded by the system: to ask the system for each takes longer than all the
/// rest of an export.
struct KeyGenerator(ChaCha20Rng);

impl KeyGenerator {
    fn new() -> Result<Self> {
        let mut seed = [0; 32];
        process::random(&mut seed).map_err(Error::os("reading random bytes"))?;
        Ok(Self(ChaCha20Rng::from_seed(seed)))
    }

    fn next(&mut self) -> Key {
        // Whole words: a key that is written byte by byte is waited for where it is read.
        let mut words = [self.0.next_u64(), self.0.next_u64()];
        // A handle with an all-zero key is refused, so this one never occurs.
        words[0] |= u64::from(words == [0; 2]);
        Key::from_bytes(zerocopy::transmute!(words))
    }
}

/// All records of a context.
pub(super) struct Records {
    pub(super) free: Vec<u32>,
    /// The number of records that were ever used.
    used: u32,
    /// The object that each record lets importers fetch, if any.
    exports: Vec<Option<Export>>,
    /// Records that were freed but are still open somewhere.
    pub(super) retired: VecDeque<Retired>,
    /// Whether the context allocates no more, so that nothing has to be kept.
    pub(super) is_closed: bool,
    keys: KeyGenerator,
}

/// A value that is kept until no importer can see what it stands for.
pub(crate) type KeepAlive = Option<Box<dyn Any + Send + Sync>>;

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

    // In its caller, which would write it in pieces, to be read here as a whole: a wait of the processor.
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

    /// Returns the exports of at most `most` records from `first` on; `None` behind the last record.
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

    /// Returns the number of the segment that a record's memory lies in.
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
