//! Copies between memory and files, with several threads.

use super::Memory;
use crate::api::command::Command;
use crate::api::context::Context;
use crate::api::queue::Queue;
use crosshandle_os::threads::ThreadKind;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::Mutex;
use crosshandle_types::{Access, AllocationOptions, MemoryKind, SharedBytes, byte_range};
use std::fs::File;
use std::ops::{Range, RangeBounds};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Maximum number of threads that copy between a file and memory, including the caller. One thread
/// reads a cached file at a tenth of the bandwidth of a GPU's bus, so many threads are needed to
/// fill it. Each one registers more memory with the driver.
const FILE_THREADS: usize = 16;

/// Size of the parts in which a thread copies between a file and memory, in bytes. Smaller parts
/// make more driver calls on a GPU. Larger parts register more memory with the driver, which slows
/// down short copies.
const FILE_PART_BYTES: usize = 4 << 20;

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
    /// The first byte of the range that no thread has taken yet.
    next: AtomicUsize,
    /// The first failure, which stops all threads.
    failure: Mutex<Option<Error>>,
    /// The reason why a thread cannot access the memory. Other threads then copy its share.
    no_path: Mutex<Option<Error>>,
}

/// One thread's access to the memory.
enum Path<'a> {
    /// The kernel copies between the file and the memory.
    Direct(SharedBytes<'a>),
    /// The kernel copies between the file and host memory, and the device between host memory and
    /// the memory.
    Staged { staging: Memory, queue: Queue },
}

impl Memory {
    /// Fills a range of the memory with the bytes of a file, starting at byte `position` of the
    /// file. Several threads read the file, and the device copies at the same time. Any of these
    /// threads calls `progress` after each part, with the number of bytes in it. If the host cannot
    /// access the memory, queues of `context` copy between it and temporary host memory.
    ///
    /// The call returns when all bytes are in the memory. It does not wait for commands that were
    /// submitted earlier.
    ///
    /// # Errors
    /// - [`Error::ReadOnly`] for memory that was opened read-only.
    /// - [`Error::InvalidArgument`] for a range outside the memory, for memory of another context's
    ///   device, and for a file that is too short.
    /// - [`Error::Os`] if the file cannot be read at a given position, for example because it is a
    ///   pipe.
    ///
    /// After an error, part of the range may have been filled.
    pub fn read_file(
        &self,
        context: &Context,
        range: impl RangeBounds<usize>,
        file: &File,
        position: u64,
        progress: impl Fn(usize) + Sync,
    ) -> Result<()> {
        if self.access() == Access::ReadOnly {
            return Err(Error::ReadOnly);
        }
        let range = byte_range::resolve(range, self.len())?;
        self.copy_file(
            context,
            range,
            file,
            position,
            Direction::FromFile,
            &progress,
        )
    }

    /// Writes a range of the memory to a file, starting at byte `position` of the file. In all
    /// other respects this method works like [`read_file`](Self::read_file).
    ///
    /// # Errors
    /// - The errors of [`read_file`](Self::read_file), except [`Error::ReadOnly`].
    /// - [`Error::Os`] if the file cannot be written.
    ///
    /// After an error, part of the file may have been written.
    pub fn write_file(
        &self,
        context: &Context,
        range: impl RangeBounds<usize>,
        file: &File,
        position: u64,
        progress: impl Fn(usize) + Sync,
    ) -> Result<()> {
        let range = byte_range::resolve(range, self.len())?;
        self.copy_file(context, range, file, position, Direction::ToFile, &progress)
    }

    fn copy_file(
        &self,
        context: &Context,
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
            context,
            memory: self,
            next: AtomicUsize::new(range.start),
            range,
            file,
            position,
            direction,
            progress,
            failure: Mutex::new(None),
            no_path: Mutex::new(None),
        };
        ThreadKind::FileCopy.run_beside(helpers, || copy.run());
        if let Some(error) = copy.failure.lock().take() {
            return Err(error);
        }
        // If any thread could access the memory, it has continued until all parts were taken.
        match copy.no_path.lock().take() {
            Some(error) if copy.take().is_some() => Err(error),
            _ => Ok(()),
        }
    }
}

impl Copy<'_> {
    /// Copies parts until no part is left or one has failed.
    fn run(&self) {
        let path = match self.path() {
            Ok(path) => path,
            Err(error) => {
                self.no_path.lock().get_or_insert(error);
                return;
            }
        };
        while let Some(part) = self.take() {
            let len = part.len();
            match self.copy_part(&path, part) {
                Ok(()) => (self.progress)(len),
                Err(error) => {
                    self.failure.lock().get_or_insert(error);
                }
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
