//! The contents of a model's memory, written and read in pieces by several threads, and their hash.

use crate::error::Result;
use crate::hash::{self, PIECE_BYTES, PieceHash, PieceHasher};
use crate::source::Source;
use crate::transfer::Transfer;
use crate::{Error, Hash};
use crosshandle::{Context, Memory};
use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// Bytes that a thread reads before it takes their hash and passes them on: they are in its processor's
/// cache still.
const PART_BYTES: usize = 512 << 10;
/// Threads that are started at most, unless the program asks for more: memory is not faster for more.
const MAX_THREADS: usize = 16;

/// Returns the number of threads that is used if the program does not choose.
pub(crate) fn usual_threads() -> usize {
    thread::available_parallelism()
        .map_or(1, NonZeroUsize::get)
        .min(MAX_THREADS)
}

/// Fills memory from a source, and returns the hash of its contents. `progress` is called with each piece's
/// bytes, by several threads.
pub(crate) fn fill(
    context: &Context,
    memory: &Memory,
    source: &Source<'_>,
    threads: usize,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Hash> {
    in_pieces(source.bytes, threads, |pieces| {
        let mut transfer = Transfer::new(context, memory, piece_bytes(source.bytes))?;
        let mut buffer = vec![0; PART_BYTES.min(source.bytes as usize)];
        for piece in pieces {
            let (offset, len) = place_of(piece, source.bytes);
            let mut hasher = PieceHasher::new(piece, source.bytes);
            transfer.write(offset as usize, len, &mut buffer, |at, part| {
                source.read(offset + at as u64, part)?;
                hasher.update(part);
                Ok(())
            })?;
            pieces.done(piece, hasher.finish());
            progress(len as u64);
        }
        transfer.finish()
    })
}

/// Returns the hash of memory's contents.
pub(crate) fn hash(
    context: &Context,
    memory: &Memory,
    threads: usize,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Hash> {
    let bytes = memory.len() as u64;
    in_pieces(bytes, threads, |pieces| {
        let mut transfer = Transfer::new(context, memory, piece_bytes(bytes))?;
        let mut buffer = vec![0; PART_BYTES.min(memory.len())];
        for piece in pieces {
            let (offset, len) = place_of(piece, bytes);
            let mut hasher = PieceHasher::new(piece, bytes);
            transfer.read(offset as usize, len, &mut buffer, |part| {
                hasher.update(part)
            })?;
            pieces.done(piece, hasher.finish());
            progress(len as u64);
        }
        Ok(())
    })
}

fn piece_bytes(bytes: u64) -> usize {
    PIECE_BYTES.min(bytes) as usize
}

fn place_of(piece: u64, bytes: u64) -> (u64, usize) {
    let offset = piece * PIECE_BYTES;
    (offset, (bytes - offset).min(PIECE_BYTES) as usize)
}

/// The pieces that threads share: each takes the next one that nobody has taken.
struct Pieces {
    next: AtomicU64,
    count: u64,
    has_failed: AtomicBool,
    done: Mutex<Vec<Option<PieceHash>>>,
}

impl Pieces {
    fn done(&self, piece: u64, hash: PieceHash) {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        done[piece as usize] = Some(hash);
    }
}

impl Iterator for &Pieces {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let piece = self.next.fetch_add(1, Ordering::Relaxed);
        (piece < self.count && !self.has_failed.load(Ordering::Relaxed)).then_some(piece)
    }
}

/// Has several threads do all pieces of `bytes` bytes, and returns the hash of the whole.
fn in_pieces(
    bytes: u64,
    threads: usize,
    work: impl Fn(&Pieces) -> Result<()> + Sync,
) -> Result<Hash> {
    let count = hash::pieces(bytes);
    let pieces = Pieces {
        next: AtomicU64::new(0),
        count,
        has_failed: AtomicBool::new(false),
        done: Mutex::new((0..count).map(|_| None).collect()),
    };
    let run = || work(&pieces).inspect_err(|_| pieces.has_failed.store(true, Ordering::Relaxed));
    thread::scope(|scope| {
        let others = threads.min(count as usize).saturating_sub(1);
        let others: Vec<_> = (0..others)
            // With fewer threads than wanted it takes longer.
            .filter_map(|_| thread::Builder::new().spawn_scoped(scope, run).ok())
            .collect();
        let own = run();
        let panicked = || Error::Invalid("a thread that copies has panicked".into());
        let all = others
            .into_iter()
            .map(|other| other.join().unwrap_or_else(|_| Err(panicked())));
        all.fold(own, Result::and)
    })?;
    let done = pieces
        .done
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    let done: Vec<_> = done.into_iter().flatten().collect();
    Ok(hash::combine(&done, bytes))
}
