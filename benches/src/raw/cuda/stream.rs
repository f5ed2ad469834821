//! Streams and the operations that are queued in them.

use std::ffi::c_uint;
use std::ptr;

use anyhow::{Result, ensure};
use cudarc::driver::sys::{CUevent, CUstream, CUstream_flags, CUstreamWaitValue_flags};

use super::{Event, Gpu, Memory};

/// The address of a word that streams write and wait for. It stays mapped until the process ends.
#[derive(Clone, Copy)]
pub(crate) struct Word(u64);

impl Word {
    /// Creates a word. Eight aligned bytes at `address` must stay mapped until the process ends.
    pub(super) fn new(address: u64) -> Self {
        Self(address)
    }
}

/// A stream that does not wait for the default stream, and that lives as long as the process.
#[derive(Clone, Copy)]
pub(crate) struct Stream {
    gpu: Gpu,
    handle: CUstream,
}

const WAIT: c_uint = CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as c_uint;

impl Stream {
    /// Creates a stream in the current context, which is that of `gpu`.
    pub(crate) fn create(gpu: &Gpu) -> Result<Self> {
        let mut handle = ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint;
        // SAFETY: `handle` is valid for the result.
        gpu.library.check("cuStreamCreate", unsafe {
            (gpu.library.stream_create)(&mut handle, flags)
        })?;
        Ok(Self { gpu: *gpu, handle })
    }

    /// Returns the stream as a number, for other libraries.
    pub(crate) fn number(&self) -> usize {
        self.handle.expose_provenance()
    }

    pub(super) fn handle(&self) -> CUstream {
        self.handle
    }

    /// Queues a write of all 64 bits of a word.
    #[inline]
    pub(crate) fn write(&self, word: Word, value: u64) -> Result<()> {
        let library = self.gpu.library;
        // SAFETY: the stream and the word stay until the process ends.
        library.check("cuStreamWriteValue64", unsafe {
            (library.stream_write_64)(self.handle, word.0, value, 0)
        })
    }

    /// Queues a wait until a word, compared as 64 bits, has reached `value`.
    #[inline]
    pub(crate) fn wait(&self, word: Word, value: u64) -> Result<()> {
        let library = self.gpu.library;
        // SAFETY: the stream and the word stay until the process ends.
        library.check("cuStreamWaitValue64", unsafe {
            (library.stream_wait_64)(self.handle, word.0, value, WAIT)
        })
    }

    /// Queues a copy of the first `length` bytes.
    pub(crate) fn copy(&self, to: &Memory, from: &Memory, length: usize) -> Result<()> {
        ensure!(to.length().min(from.length()) >= length, "copy too long");
        let library = self.gpu.library;
        // SAFETY: both allocations have at least `length` bytes, by the check above. Freeing them
        // waits for the copy.
        library.check("cuMemcpyAsync", unsafe {
            (library.memcpy)(to.address(), from.address(), length, self.handle)
        })
    }

    #[inline]
    pub(crate) fn record(&self, event: &Event) -> Result<()> {
        let library = self.gpu.library;
        // SAFETY: the stream is alive, and so is the event, which the caller borrows.
        library.check("cuEventRecord", unsafe {
            (library.event_record)(event.handle(), self.handle)
        })
    }

    /// Queues a wait for an event's latest record.
    #[inline]
    pub(crate) fn wait_event(&self, event: &Event) -> Result<()> {
        let library = self.gpu.library;
        let event: CUevent = event.handle();
        // SAFETY: the stream is alive, and so is the event, which the caller borrows. The flags
        // have their default value.
        library.check("cuStreamWaitEvent", unsafe {
            (library.stream_wait_event)(self.handle, event, 0)
        })
    }

    /// Waits until the stream has completed all its work.
    #[inline]
    pub(crate) fn synchronize(&self) -> Result<()> {
        let library = self.gpu.library;
        // SAFETY: the stream lives as long as the process.
        library.check("cuStreamSynchronize", unsafe {
            (library.stream_synchronize)(self.handle)
        })
    }
}
