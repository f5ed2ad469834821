//! Writes, reads and hashes the contents of a model's memory, in pieces and with several threads.

mod device_hash;
pub(crate) mod hash;
mod transfer;

use self::device_hash::DeviceHasher;
use self::hash::{PIECE_BYTES, PieceHash, PieceHasher};
use self::transfer::Transfer;
use crate::error::Result;
use crate::source::Source;
use crate::tuning::HASH_BYTES;
use crate::{Error, LoadOptions};
use crosshandle::{Command, Context, Memory, MemoryRange, SharedBytes};
use std::iter;
use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// Number of pieces that a resumable load copies before it waits for the device and records their
/// hashes. With fewer, the device waits for the thread more often. With more, more bytes are read
/// again after a kill.
const NOTED_PIECES: usize = 8;

/// Minimum number of pieces that a device hashes. For fewer, loading its kernels takes longer than
/// hashing on the host.
const DEVICE_PIECES: usize = 4;

/// Maximum number of threads by default. With fewer, hashing takes longer than copying to a fast
/// GPU. More threads do not increase the memory bandwidth.
const MAX_THREADS: usize = 16;

/// Returns the number of threads that is used by default.
pub(crate) fn usual_threads() -> usize {
    thread::available_parallelism()
        .map_or(1, NonZeroUsize::get)
        .min(MAX_THREADS)
}

/// A job that writes or reads memory with several threads. Each thread calls `progress` with the
/// number of bytes that it has finished.
pub(crate) struct Work<'a> {
    context: &'a Context,
    memory: &'a Memory,
    options: &'a LoadOptions,
    progress: &'a (dyn Fn(u64) + Sync),
    /// Longest time in nanoseconds that a thread took to allocate its staging buffers.
    staging_ns: AtomicU64,
}

/// A callback for each piece that is complete in the memory. It gets the number and the hash of the
/// piece.
pub(crate) type Note<'a> = &'a (dyn Fn(u64, &PieceHash) -> Result<()> + Sync);

impl<'a> Work<'a> {
    pub(crate) fn new(
        context: &'a Context,
        memory: &'a Memory,
        options: &'a LoadOptions,
        progress: &'a (dyn Fn(u64) + Sync),
    ) -> Self {
        Self {
            context,
            memory,
            options,
            progress,
            staging_ns: AtomicU64::new(0),
        }
    }

    /// Returns the longest time that a thread took to allocate its staging buffers.
    pub(crate) fn staging_time(&self) -> Duration {
        Duration::from_nanos(self.staging_ns.load(Ordering::Relaxed))
    }

    fn transfer(&self) -> Result<Transfer<'a>> {
        let begin = Instant::now();
        let transfer = Transfer::new(self.context, self.memory, self.options.staging());
        let took = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.staging_ns.fetch_max(took, Ordering::Relaxed);
        transfer
    }

    /// Returns the hasher of the device, if the device hashes so many pieces of the memory.
    fn device_hasher(&self, pieces: &[u64]) -> Option<DeviceHasher<'a>> {
        let is_for_device = pieces.len() >= DEVICE_PIECES
            && self.memory.bytes().is_err()
            && DeviceHasher::is_for(self.context);
        if !is_for_device {
            return None;
        }
        // If the driver refuses the kernels, the host hashes.
        DeviceHasher::new(self.context, self.memory)
            .inspect_err(|error| tracing::debug!(%error, "the device cannot hash this memory"))
            .ok()
    }

    /// Fills pieces of the memory from a source, and returns their hashes. Calls `note` for each
    /// piece that is complete in the memory.
    pub(crate) fn fill(
        &self,
        source: &Source<'_>,
        pieces: &[u64],
        note: Option<Note<'_>>,
    ) -> Result<Vec<PieceHash>> {
        match self.device_hasher(pieces) {
            Some(hasher) => self.fill_then_hash(source, pieces, note, &hasher),
            None => self.hash_then_fill(source, pieces, note),
        }
    }

    /// Fills pieces with several threads. Another thread makes the device hash each piece that is
    /// complete in the memory. The kernels are loaded before the copies start, because the driver
    /// may let loading wait for copies.
    fn fill_then_hash(
        &self,
        source: &Source<'_>,
        pieces: &[u64],
        note: Option<Note<'_>>,
        hasher: &DeviceHasher<'_>,
    ) -> Result<Vec<PieceHash>> {
        let found = Found::new(pieces.len());
        let put = |at: usize, hash: &PieceHash| {
            found.put(at, hash.clone());
            note.map_or(Ok(()), |note| note(pieces[at], hash))
        };
        thread::scope(|scope| {
            let (filled, to_hash) = mpsc::channel();
            let hash = move || hash_filled(hasher, &to_hash, pieces, put);
            let hashing = start(scope, hash).ok_or_else(no_thread)?;
            self.on_threads(pieces, |items| {
                let mut transfer = self.transfer()?;
                let mut previous = None;
                for (at, piece) in items {
                    let (offset, len) = place_of(*piece, source.bytes);
                    transfer.write(offset as usize, len, self.options.part(), |at, part| {
                        source.read(offset + at as u64, part)
                    })?;
                    if len <= transfer.stage_bytes() {
                        transfer.finish()?;
                    }
                    // The copies of the previous piece are complete, because this piece has used
                    // both staging buffers again. Sending fails only after an error, which `join`
                    // returns.
                    if let Some(at) = previous.replace(at)
                        && filled.send(at).is_err()
                    {
                        return Ok(());
                    }
                    (self.progress)(len as u64);
                }
                transfer.finish()?;
                previous.map(|at| filled.send(at));
                Ok(())
            })?;
            drop(filled);
            join(hashing)
        })?;
        Ok(found.all())
    }

    /// Fills pieces with several threads, which hash the bytes before the device copies them.
    fn hash_then_fill(
        &self,
        source: &Source<'_>,
        pieces: &[u64],
        note: Option<Note<'_>>,
    ) -> Result<Vec<PieceHash>> {
        let bytes = source.bytes;
        let found = Found::new(pieces.len());
        self.on_threads(pieces, |items| {
            let mut transfer = self.transfer()?;
            let mut buffer = vec![0; HASH_BYTES];
            let mut unnoted = Vec::new();
            for (at, piece) in items {
                let (offset, len) = place_of(*piece, bytes);
                let mut hasher = PieceHasher::new(*piece, bytes);
                transfer.write(offset as usize, len, self.options.part(), |at, part| {
                    source.read(offset + at as u64, part)?;
                    for at in (0..part.len()).step_by(buffer.len()) {
                        let taken = &mut buffer[..(part.len() - at).min(HASH_BYTES)];
                        part.read(at, taken)?;
                        hasher.update(taken);
                    }
                    Ok(())
                })?;
                let hash = hasher.finish();
                if let Some(note) = note {
                    unnoted.push((*piece, hash.clone()));
                    if unnoted.len() >= NOTED_PIECES {
                        transfer.finish()?;
                        unnoted
                            .drain(..)
                            .try_for_each(|(piece, hash)| note(piece, &hash))?;
                    }
                }
                found.put(at, hash);
                (self.progress)(len as u64);
            }
            transfer.finish()?;
            match note {
                Some(note) => unnoted
                    .iter()
                    .try_for_each(|(piece, hash)| note(*piece, hash)),
                None => Ok(()),
            }
        })?;
        Ok(found.all())
    }

    /// Makes the device copy other memory to places in this memory, and write zeros to other
    /// places. Waits until the device has finished.
    pub(crate) fn copy(&self, copies: &[(u64, MemoryRange)], zeros: &[(u64, u64)]) -> Result<()> {
        let queue = self.context.create_queue()?;
        let place = |start: u64, len: usize| {
            let start = start as usize;
            self.memory.range(start..start + len)
        };
        let submitted = (|| -> Result<()> {
            for (start, len) in zeros {
                queue.submit(Command::fill(place(*start, *len as usize)?, &[0])?)?;
            }
            for (start, from) in copies {
                let to = place(*start, from.len())?;
                queue.submit(Command::copy(from.clone(), to)?)?;
            }
            Ok(())
        })();
        // Wait even after a failure, because the caller may free the ranges after this call.
        let finished = queue.finish();
        submitted?;
        Ok(finished?)
    }

    /// Writes all runs of a source, and leaves the gaps between them unchanged.
    pub(crate) fn write(&self, source: &Source<'_>) -> Result<()> {
        let parts = source.parts(PIECE_BYTES);
        self.on_threads(&parts, |items| {
            let mut transfer = self.transfer()?;
            for (_, (offset, len)) in items {
                transfer.write(
                    *offset as usize,
                    *len as usize,
                    self.options.part(),
                    |at, part| source.read(offset + at as u64, part),
                )?;
                (self.progress)(*len);
            }
            transfer.finish()
        })
    }

    /// Writes pieces of the memory from host memory of the same length.
    pub(crate) fn write_from(&self, from: SharedBytes<'_>, pieces: &[u64]) -> Result<()> {
        self.on_threads(pieces, |items| {
            let mut transfer = self.transfer()?;
            let mut buffer = vec![0; HASH_BYTES];
            for (_, piece) in items {
                let (offset, len) = place_of(*piece, from.len() as u64);
                let offset = offset as usize;
                transfer.write(offset, len, self.options.part(), |at, part| {
                    for within in (0..part.len()).step_by(buffer.len()) {
                        let taken = &mut buffer[..(part.len() - within).min(HASH_BYTES)];
                        from.read(offset + at + within, taken)?;
                        part.write(within, taken)?;
                    }
                    Ok(())
                })?;
                (self.progress)(len as u64);
            }
            transfer.finish()
        })
    }

    /// Reads pieces of the memory into host memory of the same length.
    pub(crate) fn read_into(&self, into: SharedBytes<'_>, pieces: &[u64]) -> Result<()> {
        self.on_threads(pieces, |items| {
            let mut transfer = self.transfer()?;
            let mut buffer = vec![0; HASH_BYTES];
            for (_, piece) in items {
                let (offset, len) = place_of(*piece, into.len() as u64);
                let (mut at, mut written) = (offset as usize, Ok(()));
                transfer.read(at, len, &mut buffer, |part| {
                    if written.is_ok() {
                        written = into.write(at, part);
                    }
                    at += part.len();
                })?;
                written?;
                (self.progress)(len as u64);
            }
            Ok(())
        })
    }

    /// Returns the hashes of the given pieces of the memory, in the order of the pieces.
    pub(crate) fn hash(&self, pieces: &[u64]) -> Result<Vec<PieceHash>> {
        let found = Found::new(pieces.len());
        let put = |at: usize, hash: &PieceHash| {
            found.put(at, hash.clone());
            (self.progress)(place_of(pieces[at], self.memory.len() as u64).1 as u64);
            Ok(())
        };
        match self.device_hasher(pieces) {
            Some(hasher) => hasher.hash(pieces, put)?,
            None => self.hash_on_host(pieces, put)?,
        }
        Ok(found.all())
    }

    /// Hashes pieces of the memory with several threads, and calls `put` with the index of each
    /// piece in `pieces` and with its hash.
    fn hash_on_host(
        &self,
        pieces: &[u64],
        put: impl Fn(usize, &PieceHash) -> Result<()> + Sync,
    ) -> Result<()> {
        let bytes = self.memory.len() as u64;
        self.on_threads(pieces, |items| {
            let mut transfer = self.transfer()?;
            let mut buffer = vec![0; HASH_BYTES];
            for (at, piece) in items {
                let (offset, len) = place_of(*piece, bytes);
                let mut hasher = PieceHasher::new(*piece, bytes);
                transfer.read(offset as usize, len, &mut buffer, |part| {
                    hasher.update(part);
                })?;
                put(at, &hasher.finish())?;
            }
            Ok(())
        })
    }

    /// Processes all items with several threads. Each thread repeatedly takes the next free item.
    fn on_threads<T: Sync>(
        &self,
        items: &[T],
        work: impl Fn(&mut Items<'_, T>) -> Result<()> + Sync,
    ) -> Result<()> {
        let next = AtomicUsize::new(0);
        let has_failed = AtomicBool::new(false);
        let run = || {
            let mut items = Items {
                items,
                next: &next,
                has_failed: &has_failed,
            };
            work(&mut items).inspect_err(|_| has_failed.store(true, Ordering::Relaxed))
        };
        thread::scope(|scope| {
            let others = self
                .options
                .thread_count()
                .min(items.len())
                .saturating_sub(1);
            let others: Vec<_> = (0..others)
                // If the system starts fewer threads, the work only takes longer.
                .filter_map(|_| start(scope, run))
                .collect();
            let own = run();
            let all = others.into_iter().map(join);
            all.fold(own, Result::and)
        })
    }
}

/// Makes the device hash pieces, whose indices arrive when they are complete in the memory.
fn hash_filled(
    hasher: &DeviceHasher<'_>,
    filled: &Receiver<usize>,
    pieces: &[u64],
    put: impl Fn(usize, &PieceHash) -> Result<()>,
) -> Result<()> {
    while let Ok(first) = filled.recv() {
        let mut batch: Vec<_> = iter::once(first).chain(filled.try_iter()).collect();
        batch.sort_unstable();
        let numbers: Vec<_> = batch.iter().map(|at| pieces[*at]).collect();
        hasher.hash(&numbers, |at, hash| put(batch[at], hash))?;
    }
    Ok(())
}

fn no_thread() -> Error {
    Error::Invalid("the system starts no thread, which a load needs".into())
}

/// Starts a thread. Returns `None` if the system starts no more threads.
#[expect(
    clippy::disallowed_methods,
    reason = "all threads of the store start here"
)]
fn start<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    run: impl FnOnce() -> T + Send + 'scope,
) -> Option<ScopedJoinHandle<'scope, T>> {
    thread::Builder::new().spawn_scoped(scope, run).ok()
}

/// Waits for the end of a thread, and returns its result.
fn join<T>(thread: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    let panicked = || Error::Invalid("a thread that copies has panicked".into());
    thread.join().unwrap_or_else(|_| Err(panicked()))
}

fn place_of(piece: u64, bytes: u64) -> (u64, usize) {
    let offset = piece * PIECE_BYTES;
    (offset, (bytes - offset).min(PIECE_BYTES) as usize)
}

/// The items that threads share.
struct Items<'a, T> {
    items: &'a [T],
    next: &'a AtomicUsize,
    has_failed: &'a AtomicBool,
}

impl<'a, T> Iterator for Items<'a, T> {
    type Item = (usize, &'a T);

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_failed.load(Ordering::Relaxed) {
            return None;
        }
        let at = self.next.fetch_add(1, Ordering::Relaxed);
        Some((at, self.items.get(at)?))
    }
}

/// The hashes that threads have computed so far.
struct Found(Mutex<Vec<Option<PieceHash>>>);

impl Found {
    fn new(count: usize) -> Self {
        Self(Mutex::new(vec![None; count]))
    }

    fn put(&self, at: usize, hash: PieceHash) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)[at] = Some(hash);
    }

    fn all(self) -> Vec<PieceHash> {
        let all = self.0.into_inner();
        let all = all.unwrap_or_else(PoisonError::into_inner);
        all.into_iter().flatten().collect()
    }
}
