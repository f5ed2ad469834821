//! The catalog informs a context's importers about its objects and about each other.
//!
//! For each record, the catalog has the generation, which shows whether a handle is stale, and the
//! object's name. It may also have a driver's handle that can be read only with the record's key.
//! For each attached process, it has the process id and the program, so that errors can name the
//! process. Only the exporter writes the catalog. Once the exporter has mapped a chunk, the kernel
//! lets no other process map it for writing.

use super::sealed_handle::SEALED_BYTES;
use super::{CHUNKS, RecordPlace, capacity, file_len, place_of};
use crate::platform::{AtomicU32, AtomicU64, Ordering};
use crosshandle_events::Owner;
use crosshandle_events::open_count;
use crosshandle_os::mapping::Mapping;
use crosshandle_os::memfd;
use crosshandle_types::Access;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::Mutex;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

/// Maximum length of an object's name in bytes.
pub const MAX_NAME_BYTES: usize = 32;
/// Maximum length of a program's name in bytes.
pub(crate) const MAX_PROGRAM_BYTES: usize = 16;

const MAGIC: u64 = u64::from_le_bytes(*b"XHCATLG3");
/// Number of bytes before the peers in the first chunk, or before the generations in other chunks.
const HEADER_BYTES: usize = 4096;
/// Number of peer entries, one for each owner number and an unused one.
const PEERS: usize = Owner::MAX as usize + 1;

type NameWords = [AtomicU64; MAX_NAME_BYTES / 8];
type SealedWords = [AtomicU64; SEALED_BYTES / 8];

/// A process that is or was attached. All fields are atomic, and any bits are valid.
#[repr(C)]
struct PeerEntry {
    /// The process id in the exporter's PID namespace, or 0 if it is unknown.
    pid: AtomicU32,
    /// Unused padding that keeps the following words aligned.
    _reserved: AtomicU32,
    program: [AtomicU64; MAX_PROGRAM_BYTES / 8],
    /// Time at which the process hung up, in nanoseconds since 1970, or 0 while it is attached.
    ended: AtomicU64,
    _rest: [AtomicU64; 4],
}

const _: () = assert!(size_of::<PeerEntry>() == 64);

/// A process as the catalog describes it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PeerDescription {
    /// The process id in the exporter's PID namespace, or 0 if it is unknown.
    pub pid: u32,
    /// The program's name, or an empty string if it is unknown.
    pub program: String,
    /// Time at which the process hung up, in nanoseconds since 1970. 0 if it has not, as far as
    /// known.
    pub ended: u64,
}

const _: () = assert!(
    cfg!(target_pointer_width = "64"),
    "importers load eight bytes from memory that they cannot write"
);

/// A mapped chunk of a catalog.
pub struct CatalogChunk {
    mapping: Mapping,
    chunk: usize,
    /// The descriptor to send to importers, in the process that made the chunk.
    file: Option<Arc<OwnedFd>>,
    /// A bit for each record whose object has a name, in the process that made the chunk. Few have
    /// a name.
    named: Box<[AtomicU64]>,
}

/// Returns the offset of a chunk's generations in bytes.
const fn generations_at(chunk: usize) -> usize {
    match chunk {
        0 => HEADER_BYTES + PEERS * size_of::<PeerEntry>(),
        _ => HEADER_BYTES,
    }
}

/// Returns the offset of a chunk's names in bytes.
const fn names_at(chunk: usize) -> usize {
    generations_at(chunk) + capacity(chunk) * size_of::<AtomicU64>()
}

/// Returns the offset of a chunk's sealed handles in bytes. They are separate because few records
/// have one.
const fn sealed_at(chunk: usize) -> usize {
    names_at(chunk) + capacity(chunk) * MAX_NAME_BYTES
}

pub fn len_of(chunk: usize) -> usize {
    file_len(sealed_at(chunk) + capacity(chunk) * SEALED_BYTES)
}

impl CatalogChunk {
    fn create(chunk: usize) -> Result<Self> {
        let len = len_of(chunk);
        let creating = memfd::failed("creating a catalog", len);
        let file = memfd::create_unsealed("crosshandle-catalog", len as u64).map_err(&creating)?;
        let mapping = Self::map(&file, len, Access::ReadWrite)?;
        let file = memfd::seal_for_readers(file).map_err(&creating)?;
        let created = Self {
            mapping,
            chunk,
            file: Some(Arc::new(file)),
            named: std::iter::repeat_with(AtomicU64::default)
                .take(capacity(chunk).div_ceil(64))
                .collect(),
        };
        created.magic().store(MAGIC, Ordering::Release);
        Ok(created)
    }

    /// Maps the chunk of a descriptor that an exporter sent.
    pub fn open(file: &OwnedFd, chunk: usize) -> Result<Self> {
        let (len, is_sealed) = memfd::check(file).map_err(Error::os("looking at a catalog"))?;
        if len != len_of(chunk) as u64 || !is_sealed {
            return Err(Error::Protocol("its catalog has another size or no seal"));
        }
        let opened = Self {
            mapping: Self::map(file, len as usize, Access::ReadOnly)?,
            chunk,
            file: None,
            named: Box::default(),
        };
        if opened.magic().load(Ordering::Acquire) != MAGIC {
            return Err(Error::Protocol("its catalog has another layout"));
        }
        Ok(opened)
    }

    fn map(file: &OwnedFd, len: usize, access: Access) -> Result<Mapping> {
        let mapping = Mapping::shared(file, len, 1, access);
        let mapping = mapping.map_err(Error::memory("mapping a catalog", len))?;
        mapping.exclude_from_dumps();
        Ok(mapping)
    }

    /// Returns a value in the mapping.
    ///
    /// # Safety
    /// `T` must consist only of atomics. A `T` at `offset` must lie inside the mapping and be
    /// aligned.
    #[inline]
    unsafe fn at<T>(&self, offset: usize) -> &T {
        // SAFETY: the value is in bounds and aligned, by the contract of this function. The file is
        // sealed against shrinking, and the mapping lives as long as `self`. All processes access
        // it atomically, and any bits are valid. An importer has a read-only mapping and only
        // loads, at most eight bytes at a time. On 64-bit machines such a load is an instruction
        // that writes nothing, in all memory orders. (The standard library guarantees this only for
        // relaxed loads.)
        unsafe { self.mapping.start().add(offset).cast().as_ref() }
    }

    fn magic(&self) -> &AtomicU64 {
        // SAFETY: the header is longer, and the mapping starts at a page.
        unsafe { self.at(0) }
    }

    /// Returns the generation of a record of this chunk.
    #[inline]
    fn generation(&self, place: RecordPlace) -> &AtomicU64 {
        debug_assert_eq!(place.chunk(), self.chunk);
        // SAFETY: a catalog keeps each chunk under its own number, so the place belongs to this
        // chunk and its index is below the capacity. By `len_of`, all generations up to the
        // capacity lie in the mapping, and they start at a multiple of eight.
        unsafe { self.at(generations_at(self.chunk) + place.index() * size_of::<AtomicU64>()) }
    }

    fn name(&self, place: RecordPlace) -> &NameWords {
        debug_assert_eq!(place.chunk(), self.chunk);
        // SAFETY: as for the generations, the place belongs to this chunk and its index is below
        // the capacity. By `len_of`, all names lie in the mapping. They follow the generations, and
        // so start at a multiple of eight.
        unsafe { self.at(names_at(self.chunk) + place.index() * MAX_NAME_BYTES) }
    }

    fn sealed(&self, place: RecordPlace) -> &SealedWords {
        debug_assert_eq!(place.chunk(), self.chunk);
        // SAFETY: as for the generations, the place belongs to this chunk and its index is below
        // the capacity. By `len_of`, all sealed handles lie in the mapping. They follow the names,
        // and so start at a multiple of eight.
        unsafe { self.at(sealed_at(self.chunk) + place.index() * SEALED_BYTES) }
    }

    /// Returns the word and the bit that say whether a record's object has a name.
    #[inline]
    fn named(&self, place: RecordPlace) -> (&AtomicU64, u64) {
        (&self.named[place.index() / 64], 1 << (place.index() % 64))
    }

    /// Returns an owner's entry. Only for the first chunk.
    fn peer(&self, owner: Owner) -> &PeerEntry {
        assert!(self.chunk == 0);
        // SAFETY: an owner is at most `Owner::MAX`, so its entry lies before the generations of the
        // first chunk. The entries start at a page.
        unsafe { self.at(HEADER_BYTES + usize::from(owner.get()) * size_of::<PeerEntry>()) }
    }
}

/// A context's catalog, in the exporter or in an importer.
#[derive(Default)]
pub struct Catalog {
    chunks: [OnceLock<CatalogChunk>; CHUNKS],
    /// The lock is held while a chunk is made, so that only one thread makes it.
    making: Mutex<()>,
}

impl Catalog {
    /// Returns the chunk of a record, if it exists here, and the record's place.
    #[inline]
    fn chunk_of(&self, record: u32) -> Option<(&CatalogChunk, RecordPlace)> {
        let place = place_of(record)?;
        Some((self.chunks[place.chunk()].get()?, place))
    }

    /// Creates a record's chunk if necessary. Only for the exporter.
    #[inline]
    pub fn ensure(&self, record: u32) -> Result<()> {
        match self.chunk_of(record) {
            Some(_) => Ok(()),
            None => self.make(record),
        }
    }

    #[cold]
    fn make(&self, record: u32) -> Result<()> {
        let chunk = place_of(record).ok_or(Error::Stale)?.chunk();
        let _making = self.making.lock();
        if self.chunks[chunk].get().is_none() {
            self.add(CatalogChunk::create(chunk)?);
        }
        Ok(())
    }

    /// Adds a chunk that the exporter sent, unless another thread was faster.
    pub fn add(&self, chunk: CatalogChunk) {
        let _ = self.chunks[chunk.chunk].set(chunk);
    }

    /// Returns the descriptor of a chunk, to send to importers. Only for the exporter.
    pub fn file(&self, chunk: usize) -> Option<Arc<OwnedFd>> {
        self.chunks[chunk].get()?.file.clone()
    }

    /// Returns the generation of a record, if its chunk exists here.
    #[inline]
    pub fn generation(&self, record: u32) -> Option<&AtomicU64> {
        let (chunk, place) = self.chunk_of(record)?;
        Some(chunk.generation(place))
    }

    /// Names a record's object. Only for the exporter, which ensures that the chunk exists.
    pub fn set_name(&self, record: u32, name: &str) {
        if let Some((chunk, place)) = self.chunk_of(record) {
            let (word, bit) = chunk.named(place);
            word.fetch_or(bit, Ordering::Relaxed);
            store_text(chunk.name(place), name);
        }
    }

    /// Lets importers that have the record's key read a driver's handle. Only for the exporter,
    /// which ensures that the chunk exists, and calls this once per key.
    pub fn set_sealed_handle(&self, record: u32, sealed: &[u8; SEALED_BYTES]) {
        if let Some((chunk, place)) = self.chunk_of(record) {
            let words: [u64; SEALED_BYTES / 8] = zerocopy::transmute!(*sealed);
            for (word, value) in chunk.sealed(place).iter().zip(words) {
                word.store(value, Ordering::Relaxed);
            }
        }
    }

    /// Clears a sealed handle. An importer that has not read the handle yet then asks the exporter,
    /// which refuses the request. Only the exporter may call this.
    pub fn clear_sealed_handle(&self, record: u32) {
        self.set_sealed_handle(record, &[0; SEALED_BYTES]);
    }

    /// Returns the sealed handle of a record, if its chunk exists here. No key opens the result if
    /// none was set, or if it is being overwritten.
    pub fn sealed_handle(&self, record: u32) -> Option<[u8; SEALED_BYTES]> {
        let (chunk, place) = self.chunk_of(record)?;
        let words = chunk.sealed(place);
        let words: [u64; SEALED_BYTES / 8] =
            std::array::from_fn(|index| words[index].load(Ordering::Relaxed));
        Some(zerocopy::transmute!(words))
    }

    /// Starts a new use of a record, for an object of this kind without a name, and returns its
    /// generation. Returns `None` if its chunk does not exist here. Only for the exporter.
    #[inline]
    pub fn start_use(&self, record: u32, kind: u64) -> Option<u64> {
        let (chunk, place) = self.chunk_of(record)?;
        let (word, bit) = chunk.named(place);
        if word.load(Ordering::Relaxed) & bit != 0 {
            word.fetch_and(!bit, Ordering::Relaxed);
            store_text(chunk.name(place), "");
        }
        Some(open_count::start_generation(chunk.generation(place), kind))
    }

    /// Returns the name of a record's object, or an empty string if it has none.
    pub fn name(&self, record: u32) -> String {
        let found = self.chunk_of(record);
        found.map_or_else(String::new, |(chunk, place)| load_text(chunk.name(place)))
    }

    /// Describes the process that attached as `owner`. Only for the exporter.
    pub fn set_peer(&self, owner: Owner, pid: u32, program: &str) {
        if let Some(first) = self.chunks[0].get() {
            let entry = first.peer(owner);
            entry.pid.store(pid, Ordering::Relaxed);
            store_text(&entry.program, program);
            entry.ended.store(0, Ordering::Release);
        }
    }

    /// Records when a process hung up, in nanoseconds since 1970. Only for the exporter.
    pub fn set_ended(&self, owner: Owner, time: u64) {
        if let Some(first) = self.chunks[0].get() {
            first.peer(owner).ended.store(time, Ordering::Release);
        }
    }

    /// Returns the process id of a process as the exporter recorded it, or 0 if it is unknown.
    #[inline]
    pub fn peer_pid(&self, owner: Owner) -> u32 {
        let first = self.chunks[0].get();
        first.map_or(0, |first| first.peer(owner).pid.load(Ordering::Relaxed))
    }

    /// Returns the description of a process.
    pub fn peer(&self, owner: Owner) -> PeerDescription {
        self.chunks[0].get().map_or_else(Default::default, |first| {
            let entry = first.peer(owner);
            PeerDescription {
                pid: entry.pid.load(Ordering::Relaxed),
                program: load_text(&entry.program),
                ended: entry.ended.load(Ordering::Acquire),
            }
        })
    }
}

/// Stores a text, truncated at a character boundary if it is too long.
fn store_text(words: &[AtomicU64], text: &str) {
    let mut bytes = [0; MAX_NAME_BYTES];
    let room = 8 * words.len();
    let end = text.floor_char_boundary(room.min(text.len()));
    bytes[..end].copy_from_slice(&text.as_bytes()[..end]);
    for (word, bytes) in words.iter().zip(bytes.chunks_exact(8)) {
        let bytes = bytes.try_into().expect("eight bytes");
        word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
    }
}

/// Returns a text that a peer may have chosen. Unprintable parts are replaced.
fn load_text(words: &[AtomicU64]) -> String {
    let bytes = words.iter().map(|word| word.load(Ordering::Relaxed));
    let bytes: Vec<u8> = bytes.flat_map(u64::to_le_bytes).collect();
    let end = bytes.iter().position(|byte| *byte == 0);
    let text = String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]);
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn importers_read_what_the_exporter_writes_and_cannot_write() {
        let catalog = Catalog::default();
        for record in [3, 5_000] {
            catalog.ensure(record).expect("made");
            catalog
                .generation(record)
                .expect("there")
                .store(7, Ordering::SeqCst);
            catalog.set_name(record, "weights of the größte model, layer 17");
            let chunk = place_of(record).expect("a place").chunk();
            let file = catalog.file(chunk).expect("ours");
            let view = Catalog::default();
            view.add(CatalogChunk::open(&file, chunk).expect("opened"));
            assert_eq!(
                view.generation(record)
                    .expect("there")
                    .load(Ordering::SeqCst),
                7
            );
            assert_eq!(view.name(record), "weights of the größte model, l");
            let denied = Mapping::shared(&*file, 4096, 1, Access::ReadWrite);
            assert_eq!(denied.err(), Some(Errno::PERM));
            assert_eq!(rustix::io::pwrite(&*file, b"x", 0), Err(Errno::PERM));
        }
        let owner = Owner::new(Owner::MAX).expect("the greatest");
        catalog.set_peer(owner, 17, "a program with a long name");
        catalog.set_ended(owner, 5);
        let found = catalog.peer(owner);
        assert_eq!((found.pid, found.ended), (17, 5));
        assert_eq!(found.program, "a program with a");
    }
}
