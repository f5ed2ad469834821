//! Checks of the pieces that an exporter sends.

use crate::broker::FetchedPieces;
use crate::broker::protocol::PieceTable;
use crosshandle_handle::HandleError;
use crosshandle_types::error::{Error, Result};

/// The pieces of a segment that an exporter still has to send. Each piece must come once, in order,
/// and their bytes must add up to the announced length.
pub(super) struct ExpectedPieces {
    segment: u32,
    /// Number of the next piece.
    pub(super) next: u32,
    /// Number of all pieces and their total bytes, once the exporter has announced them.
    all: Option<(u32, u64)>,
    /// Total bytes of the pieces received so far.
    bytes: u64,
}

impl ExpectedPieces {
    pub(super) fn new(segment: u32) -> Self {
        Self {
            segment,
            next: 0,
            all: None,
            bytes: 0,
        }
    }

    pub(super) fn check(&mut self, pieces: &FetchedPieces) -> Result<()> {
        let batch = &pieces.batch;
        let table = PieceTable {
            total: batch.total,
            first: batch.first,
            parts: batch.files.iter().map(|file| file.part).collect(),
        };
        self.check_table(pieces.segment, pieces.len, &table)
    }

    pub(super) fn check_table(&mut self, segment: u32, len: u64, table: &PieceTable) -> Result<()> {
        if segment != self.segment {
            return Err(other_segment());
        }
        let all = (table.total, len);
        if *self.all.get_or_insert(all) != all || table.first != self.next {
            return Err(Error::Protocol("its pieces are not consecutive"));
        }
        self.next += table.parts.len() as u32;
        for part in &table.parts {
            self.bytes = self.bytes.saturating_add(part.len);
        }
        let is_right = match self.is_done() {
            true => self.bytes == len,
            false => self.bytes < len,
        };
        match is_right {
            true => Ok(()),
            false => Err(Error::Protocol("its pieces have a wrong total length")),
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.all.is_some_and(|(total, _)| self.next == total)
    }
}

pub(super) fn other_segment() -> Error {
    Error::Handle(HandleError::Malformed {
        field: "segment",
        why: "its exporter has the object in another one",
    })
}
