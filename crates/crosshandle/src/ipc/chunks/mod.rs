//! Chunks: the pieces in which the files of a context grow.
//!
//! A context numbers the objects that it shares; a number is a *record*. Everything that is kept for
//! each record lies in files of one chunk each, made and mapped when the chunk's first record is
//! needed. So a context with few objects takes little memory and few addresses, and a file that
//! other processes have mapped never changes its size.

mod catalog;
mod ledger;
mod sealed_handle;

pub(crate) use catalog::{Catalog, CatalogChunk, MAX_NAME_BYTES};
pub(crate) use ledger::{Ledger, LedgerChunk, Sleeper};
pub(crate) use sealed_handle::{open as open_sealed, seal};

#[cfg(fuzzing)]
pub(crate) use {catalog::len_of as catalog_len, ledger::len_of as ledger_len};

use crate::os::mapping::page_size;

/// The number of objects that one context can share at a time.
pub(crate) const MAX_RECORDS: u32 = 1 << 20;
/// The number of chunks.
pub(crate) const CHUNKS: usize = 6;

/// The binary logarithm of the number of records in the first chunk.
const FIRST_LOG: u32 = 10;
/// The binary logarithm of the factor by which a chunk ends later than the one before: large, because
/// each chunk is a mapping, and small, because it takes that many more addresses than are used.
const GROWTH_LOG: u32 = 2;

/// A record's chunk, and its index there, which is below the chunk's capacity. Only [`place_of`]
/// makes one.
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

/// Returns the place of a record; `None` if no context has such a record.
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

/// Returns the first record behind a chunk.
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

/// An arena of events among those of a context.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ArenaKey(u32);

impl ArenaKey {
    /// Returns the key of the context's own arena in which a record's event lies.
    pub(crate) fn common(record: u32) -> Self {
        // No record lies in a chunk of this number.
        let chunk = place_of(record).map_or(CHUNKS, RecordPlace::chunk);
        Self(chunk as u32)
    }

    /// Returns the key of the arena of an event that has one to itself.
    pub(crate) fn isolated(record: u32) -> Self {
        Self(CHUNKS as u32 + 1 + record)
    }
}

/// Returns the length of a file with so many bytes of contents: whole pages.
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
