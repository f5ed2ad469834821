//! Chunks: the pieces in which the files of a context grow.
//!
//! A context numbers the objects that it shares; a number is a *record*. Everything that is kept for
//! each record lies in files of one chunk each, made and mapped when the chunk's first record is
//! needed. So a context with few objects takes little memory and few addresses, and a file that
//! other processes have mapped never changes its size.

mod catalog;
mod ledger;

pub(crate) use catalog::{Catalog, CatalogChunk, PeerDescription};
pub(crate) use ledger::{Ledger, LedgerChunk};

use crate::os::mapping::page_size;

/// The number of objects that one context can share at a time.
pub(crate) const MAX_RECORDS: u32 = 1 << 20;
/// The number of chunks.
pub(crate) const CHUNKS: usize = 11;

/// The binary logarithm of the number of records in the first chunk.
const FIRST_LOG: u32 = 10;

/// A record's chunk, and its index there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) chunk: usize,
    pub(crate) index: usize,
}

/// Returns the place of a record; `None` if no context has such a record.
#[inline]
pub(crate) fn place_of(record: u32) -> Option<Place> {
    if record < 1 << FIRST_LOG {
        return Some(Place {
            chunk: 0,
            index: record as usize,
        });
    }
    if record >= MAX_RECORDS {
        return None;
    }
    let log = record.ilog2();
    Some(Place {
        chunk: (log - FIRST_LOG) as usize + 1,
        index: (record - (1 << log)) as usize,
    })
}

/// Returns the number of records in a chunk.
pub(crate) const fn capacity(chunk: usize) -> usize {
    match chunk {
        0 => 1 << FIRST_LOG,
        chunk => 1 << (FIRST_LOG as usize + chunk - 1),
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
            for index in 0..capacity(chunk) {
                assert_eq!(place_of(next), Some(Place { chunk, index }));
                next += 1;
            }
        }
        assert_eq!(next, MAX_RECORDS);
        assert_eq!(place_of(MAX_RECORDS), None);
        assert_eq!(place_of(u32::MAX), None);
    }
}
