//! Copies between memory and files, by several threads at a time.

use super::Context;
use super::tuning::{FILE_PART_BYTES, FILE_THREADS};
use crate::api::command::Command;
use crate::api::memory::Memory;
use crate::api::queue::Queue;
use crate::error::{Error, Result};
use crate::sync::Mutex;
use crate::threads::ThreadKind;
use crate::types::{Access, AllocationOptions, MemoryKind, SharedBytes, byte_range};
use std::fs::File;
use std::ops::{Range, RangeBounds};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// The direction of a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    FromFile,
    ToFile,
}

/// A copy that several threads share.
struct Copy<'a> {
    context: &'a Context,
    memory: &'a Memory,
    range: Range<usize>,
    file: &'a File,
    position: u64,
    direction: Direction,
    progress: &'a (dyn Fn(usize) + Sync),
    /// The first byte of the range that no thread has taken.
    next: AtomicUsize,
    /// The first failure. It ends all threads.
    failure: Mutex<Option<Error>>,
}

/// One thread's access to the memory.
enum Path<'a> {
    /// The kernel copies between the file and the memory.
    Direct(SharedBytes<'a>),
    /// The kernel copies between the file and host memory, the device between that and the memory.
    Staged { staging: Memory, queue: Queue },
}

impl Context {
    /// Fills a range of memory with a file's bytes, from byte `position` of the file on. Several threads
    /// read the file at a time, and the device copies meanwhile. `progress` is called after each
    /// part, by any of them, with the number of bytes that it had.
    ///
    /// Returns when all bytes are there. Commands that were submitted before are not waited for.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] for memory opened read-only; [`Error::InvalidArgument`] for a range that is not
    /// inside, memory of another context's device, or a file that is too short; [`Error::Os`] if the file cannot be read by
    /// position, as a pipe cannot. Part of the range may have been filled then.
    pub fn read_file(
        &self,
        memory: &Memory,
        range: impl RangeBounds<usize>,
        file: &File,
        position: u64,
        progress: impl Fn(usize) + Sync,
    ) -> Result<()> {
        if memory.access() == Access::ReadOnly {
            return Err(Error::ReadOnly);
        }
        let range = byte_range::resolve(range, memory.len())?;
        self.copy(
            memory,
            range,
            file,
            position,
            Direction::FromFile,
            &progress,
        )
    }

    /// Writes a range of memory to a file, from byte `position` of the file on. Otherwise as
    /// [`read_file`](Self::read_file).
    ///
    /// # Errors
    /// As there; [`Error::Os`] if the file cannot be written. Part of the file may have been written then.
    pub fn write_file(
        &self,
        memory: &Memory,
        range: impl RangeBounds<usize>,
        file: &File,
        position: u64,
        progress: impl Fn(usize) + Sync,
    ) -> Result<()> {
        let range = byte_range::resolve(range, memory.len())?;
        self.copy(memory, range, file, position, Direction::ToFile, &progress)
    }

    fn copy(
        &self,
        memory: &Memory,
        range: Range<usize>,
        file: &File,
        position: u64,
        direction: Direction,
        progress: &(dyn Fn(usize) + Sync),
    ) -> Result<()> {
        let parts = range.len().div_ceil(FILE_PART_BYTES);
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let helpers = parts.min(processors).min(FILE_THREADS).saturating_sub(1);
        let copy = Copy {
            context: self,
            memory,
            next: AtomicUsize::new(range.start),
            range,
            file,
            position,
            direction,
            progress,
            failure: Mutex::new(None),
        };
        ThreadKind::FileCopy.run_beside(helpers, || copy.run());
        let failure = copy.failure.lock().take();
        failure.map_or(Ok(()), Err)
    }
}

impl Copy<'_> {
    /// Copies parts until none is left, or one has failed.
    fn run(&self) {
        if let Err(error) = self.copy_parts() {
            self.failure.lock().get_or_insert(error);
        }
    }

    fn copy_parts(&self) -> Result<()> {
        // The first part is taken before anything is made for it.
        let Some(mut part) = self.take() else {
            return Ok(());
        };
        let path = self.path()?;
        loop {
            self.copy_part(&path, part.clone())?;
            (self.progress)(part.len());
            match self.take() {
                Some(next) => part = next,
                None => return Ok(()),
            }
        }
    }

    /// Takes the next part, unless another thread has failed.
    fn take(&self) -> Option<Range<usize>> {
        if self.failure.lock().is_some() {
            return None;
        }
        let start = self.next.fetch_add(FILE_PART_BYTES, Ordering::Relaxed);
        let end = start.saturating_add(FILE_PART_BYTES).min(self.range.end);
        (start < end).then_some(start..end)
    }

    fn path(&self) -> Result<Path<'_>> {
        match self.memory.bytes() {
            Ok(bytes) => Ok(Path::Direct(bytes)),
            Err(Error::Unsupported(_)) => {
                let len = FILE_PART_BYTES.min(self.range.len());
                let options = AllocationOptions::new(len).kind(MemoryKind::Host);
                Ok(Path::Staged {
                    staging: self.context.allocate_with(options)?,
                    queue: self.context.create_queue()?,
                })
            }
            Err(error) => Err(error),
        }
    }

    fn copy_part(&self, path: &Path<'_>, part: Range<usize>) -> Result<()> {
        let position = self
            .position
            .saturating_add((part.start - self.range.start) as u64);
        match (path, self.direction) {
            (Path::Direct(bytes), Direction::FromFile) => {
                bytes.slice(part)?.read_file(self.file, position)
            }
            (Path::Direct(bytes), Direction::ToFile) => {
                bytes.slice(part)?.write_file(self.file, position)
            }
            (Path::Staged { staging, queue }, direction) => {
                let staged = ..part.len();
                if direction == Direction::FromFile {
                    staging
                        .bytes()?
                        .slice(staged)?
                        .read_file(self.file, position)?;
                    queue.submit(Command::copy(
                        staging.range(staged)?,
                        self.memory.range(part)?,
                    )?)?;
                    return queue.finish();
                }
                queue.submit(Command::copy(
                    self.memory.range(part)?,
                    staging.range(staged)?,
                )?)?;
                queue.finish()?;
                staging
                    .bytes()?
                    .slice(staged)?
                    .write_file(self.file, position)
            }
        }
    }
}
