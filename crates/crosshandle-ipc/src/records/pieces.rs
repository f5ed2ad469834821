//! Memory in pieces: one range of addresses that spans many allocations of a driver.
//!
//! The exporter has a [`PieceSet`], which lists the objects of the memory. The list does not
//! change, even if the addresses are later used otherwise. An importer requests the descriptors of
//! at most [`MAX_DESCRIPTORS`] pieces at a time. It maps them side by side, closes them, and
//! requests the next ones meanwhile. Neither side therefore needs more than twice that many
//! descriptors at a time.

use super::BackendObject;
use crate::broker::protocol::{BackendBlob, MAX_PIECES, PiecePart, PieceSpan};
use crate::broker::{PieceBatch, PieceFile};
use crosshandle_os::descriptor;
use crosshandle_os::socket::MAX_DESCRIPTORS;
use crosshandle_types::Access;
use crosshandle_types::error::{Error, Result};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A piece, which is a part of an object that is shared by descriptor.
pub struct Piece {
    pub object: Arc<dyn BackendObject>,
    pub part: PiecePart,
}

/// The adjacent pieces of memory, in the order of their addresses. All belong to one backend and
/// have the same blob.
pub struct PieceSet {
    pieces: Vec<Piece>,
    len: usize,
    /// Whether the pieces are ready to be lent.
    is_prepared: AtomicBool,
}

impl PieceSet {
    /// Makes a set of at least one piece.
    ///
    /// # Errors
    /// Returns [`Error::LimitReached`] if there are more pieces than a handle supports.
    pub fn new(pieces: Vec<Piece>) -> Result<Self> {
        if pieces.len() > MAX_PIECES {
            return Err(Error::LimitReached {
                what: format!(
                    "the memory consists of {} pieces, and a handle is for {MAX_PIECES} at most",
                    pieces.len()
                ),
                remedy: "share parts of it, or map larger pieces".into(),
            });
        }
        let len = pieces.iter().map(|piece| piece.part.len as usize).sum();
        Ok(Self {
            pieces,
            len,
            is_prepared: AtomicBool::new(false),
        })
    }

    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Prepares all pieces to be lent.
    pub fn prepare(&self) -> Result<()> {
        // There may be thousands of pieces, and hundreds of handles to parts of them.
        if !self.is_prepared.load(Ordering::Relaxed) {
            let first = self.pieces.first();
            if first.is_some_and(|piece| piece.object.lends_by_driver()) {
                // This makes room for descriptors that are kept ahead.
                descriptor::make_room(self.pieces.len());
            }
            let mut pieces = self.pieces.iter();
            pieces.try_for_each(|piece| piece.object.prepare_to_lend())?;
            self.is_prepared.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns the pieces that one reply carries, or `None` after the last piece.
    fn batch(&self, span: PieceSpan) -> Option<&[Piece]> {
        let rest = self.pieces.get(span.first as usize..)?;
        let most = match usize::from(span.most) {
            0 => MAX_DESCRIPTORS,
            most => most.min(MAX_DESCRIPTORS),
        };
        (!rest.is_empty()).then(|| &rest[..rest.len().min(most)])
    }

    /// Returns whether [`lend`](Self::lend) calls a driver, or `None` if the span has no pieces.
    pub fn lends_by_driver(&self, span: PieceSpan) -> Option<bool> {
        let mut batch = self.batch(span)?.iter();
        Some(batch.any(|piece| piece.object.lends_by_driver()))
    }

    /// Returns the descriptors of a span of pieces, or `None` if the span has no pieces.
    pub fn lend(&self, span: PieceSpan, access: Access) -> Option<Result<PieceBatch>> {
        let batch = self.batch(span)?;
        let lend = |piece: &Piece| {
            Ok(PieceFile {
                file: piece.object.lend(access)?,
                part: piece.part,
                disposal: None,
            })
        };
        let files: Result<Vec<_>> = batch.iter().map(lend).collect();
        Some(files.map(|files| {
            PieceBatch {
                total: self.pieces.len() as u32,
                first: span.first,
                files,
                note: batch
                    .first()
                    .map_or(BackendBlob::NONE, |piece| piece.object.note()),
            }
        }))
    }
}

/// Exported memory in pieces, without addresses in this process.
pub struct PiecedMemory(pub PieceSet);

impl BackendObject for PiecedMemory {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn prepare(&self) -> Result<()> {
        self.0.prepare()
    }

    fn descriptor(&self, _access: Access) -> Result<Arc<OwnedFd>> {
        Err(Error::invalid("memory of many pieces has no descriptor"))
    }

    fn pieces(&self) -> Option<&PieceSet> {
        Some(&self.0)
    }
}
