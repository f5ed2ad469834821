//! Chunks are the units in which the files of a context grow.
//!
//! A context numbers its shared objects; such a number is a *record*. All data per record is in
//! files, each of which covers one chunk of records. A file is created and mapped when the first
//! record of its chunk is needed. A context with few objects therefore uses little memory and few
//! addresses, and a file that other processes have mapped never changes its size.

mod catalog;
mod ledger;
mod sealed_handle;

pub use catalog::{Catalog, CatalogChunk, MAX_NAME_BYTES};
pub use ledger::{Ledger, LedgerChunk, Sleeper};
pub use sealed_handle::open as open_sealed;
pub(crate) use sealed_handle::seal;

pub use {catalog::len_of as catalog_len, ledger::len_of as ledger_len};

use crosshandle_os::mapping::page_size;

/// Maximum number of objects that one context can share at a time.
pub(crate) const MAX_RECORDS: u32 = 1 << 20;
/// Number of chunks.
pub(crate) const CHUNKS: usize = 6;

/// Binary logarithm of the number of records in the first chunk.
const FIRST_LOG: u32 = 10;
/// Binary logarithm of the growth factor of the chunks' ends. A large factor saves mappings, and a
/// small factor saves unused addresses.
const GROWTH_LOG: u32 = 2;

/// The chunk of a record, and its index there, which is below the chunk's capacity. Only
/// [`place_of`] makes this value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RecordPlace {
    chunk: usize,
    index: usize,
}

impl RecordPlace {
    #[inline]
    pub(crate) fn chunk(self) -> usize {
        self.chunk
    }

    #[inline]
    pub(crate) fn index(self) -> usize {
        self.index
    }
}

/// Returns the place of a record, or `None` if the record is out of range.
#[inline]
pub(crate) fn place_of(record: u32) -> Option<RecordPlace> {
    if record < 1 << FIRST_LOG {
        return Some(RecordPlace {
            chunk: 0,
            index: record as usize,
        });
    }
    if record >= MAX_RECORDS {
        return None;
    }
    let chunk = (record.ilog2() - FIRST_LOG) / GROWTH_LOG + 1;
    Some(RecordPlace {
        chunk: chunk as usize,
        index: record as usize - end_of(chunk - 1),
    })
}

/// Returns the first record after a chunk.
#[inline]
const fn end_of(chunk: u32) -> usize {
    1 << (FIRST_LOG + GROWTH_LOG * chunk)
}

/// Returns the number of records in a chunk.
pub(crate) const fn capacity(chunk: usize) -> usize {
    match chunk {
        0 => end_of(0),
        chunk => end_of(chunk as u32) - end_of(chunk as u32 - 1),
    }
}

/// Returns the first record of a chunk.
pub(crate) const fn first_of(chunk: usize) -> u32 {
    match chunk {
        0 => 0,
        chunk => end_of(chunk as u32 - 1) as u32,
    }
}

/// Identifies an event arena of a context.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ArenaKey(u32);

impl ArenaKey {
    /// Returns the key of the context's arena that contains a record's event.
    pub fn common(record: u32) -> Self {
        // No record belongs to a chunk with the number `CHUNKS`.
        let chunk = place_of(record).map_or(CHUNKS, RecordPlace::chunk);
        Self(chunk as u32)
    }

    /// Returns the key of the arena that an event has to itself.
    pub fn isolated(record: u32) -> Self {
        Self(CHUNKS as u32 + 1 + record)
    }
}

/// Returns the length of a file with this many bytes of contents, rounded up to whole pages.
pub(crate) fn file_len(bytes: usize) -> usize {
    bytes.next_multiple_of(page_size())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_has_one_place() {
        let mut next = 0;
        for chunk in 0..CHUNKS {
            assert_eq!(first_of(chunk), next);
            for index in 0..capacity(chunk) {
                assert_eq!(place_of(next), Some(RecordPlace { chunk, index }));
                next += 1;
            }
        }
        assert_eq!(next, MAX_RECORDS);
        assert_eq!(place_of(MAX_RECORDS), None);
        assert_eq!(place_of(u32::MAX), None);
    }
}
