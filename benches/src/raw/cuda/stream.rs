//! Streams, and the operations in them.

use std::ffi::c_uint;
use std::mem;
use std::ptr;

use anyhow::{Result, ensure};
use cudarc::driver::sys::{
    CUevent, CUstream, CUstream_flags, CUstreamBatchMemOpParams, CUstreamBatchMemOpType,
    CUstreamWaitValue_flags,
};

use super::{Event, Gpu, Memory};

/// A word that streams write and wait for. It is never unmapped.
#[derive(Clone, Copy)]
pub(crate) struct Word(u64);

/// One of several operations that are queued at once.
#[derive(Clone, Copy)]
pub(crate) enum Operation {
    Wait(Word, u64),
    Write(Word, u64),
}

impl Word {
    /// Returns the word at an address where eight aligned bytes stay as long as the process lives.
    pub(super) fn new(address: u64) -> Self {
        Self(address)
    }
}

/// A stream that does not wait for the default one; it lives as long as the process.
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
        // SAFETY: the result is live.
        gpu.library.check("cuStreamCreate", unsafe {
            (gpu.library.stream_create)(&mut handle, flags)
        })?;
        Ok(Self { gpu: *gpu, handle })
    }

    pub(super) fn handle(&self) -> CUstream {
        self.handle
    }

    #[inline]
    pub(crate) fn write(&self, word: Word, value: u64) -> Result<()> {
        let library = self.gpu.library;
        // SAFETY: a stream and a word that stay.
        library.check("cuStreamWriteValue64", unsafe {
            (library.stream_write_64)(self.handle, word.0, value, 0)
        })
    }

    #[inline]
    pub(crate) fn wait(&self, word: Word, value: u64) -> Result<()> {
        let library = self.gpu.library;
        // SAFETY: a stream and a word that stay.
        library.check("cuStreamWaitValue64", unsafe {
            (library.stream_wait_64)(self.handle, word.0, value, WAIT)
        })
    }

    /// Uses the lower half of a word alone.
    #[inline]
    pub(crate) fn write_32(&self, word: Word, value: u32) -> Result<()> {
        let library = self.gpu.library;
        // SAFETY: a stream and a word that stay.
        library.check("cuStreamWriteValue32", unsafe {
            (library.stream_write_32)(self.handle, word.0, value, 0)
        })
    }

    /// Uses the lower half of a word alone.
    #[inline]
    pub(crate) fn wait_32(&self, word: Word, value: u32) -> Result<()> {
        let library = self.gpu.library;
        // SAFETY: a stream and a word that stay.
        library.check("cuStreamWaitValue32", unsafe {
            (library.stream_wait_32)(self.handle, word.0, value, WAIT)
        })
    }

    /// Submits several operations with one call.
    #[inline]
    pub(crate) fn batch<const N: usize>(&self, operations: [Operation; N]) -> Result<()> {
        let library = self.gpu.library;
        let mut parameters = operations.map(Operation::parameters);
        // SAFETY: a stream and words that stay; as many parameters as said.
        library.check("cuStreamBatchMemOp", unsafe {
            (library.stream_batch)(self.handle, N as c_uint, parameters.as_mut_ptr(), 0)
        })
    }

    /// Copies the first `length` bytes.
    pub(crate) fn copy(&self, to: &Memory, from: &Memory, length: usize) -> Result<()> {
        ensure!(to.length().min(from.length()) >= length, "copy too long");
        let library = self.gpu.library;
        // SAFETY: device memory of at least that length. Freeing it waits for the copy.
        library.check("cuMemcpyAsync", unsafe {
            (library.memcpy)(to.address(), from.address(), length, self.handle)
        })
    }

    /// Copies the first `length` bytes from one GPU to another.
    pub(crate) fn copy_peer(&self, to: &Memory, from: &Memory, length: usize) -> Result<()> {
        ensure!(to.length().min(from.length()) >= length, "copy too long");
        let library = self.gpu.library;
        let (to_context, from_context) = (to.gpu().context, from.gpu().context);
        // SAFETY: device memory of at least that length, of these contexts. Freeing it waits.
        library.check("cuMemcpyPeerAsync", unsafe {
            (library.memcpy_peer)(
                to.address(),
                to_context,
                from.address(),
                from_context,
                length,
                self.handle,
            )
        })
    }

    #[inline]
    pub(crate) fn record(&self, event: &Event) -> Result<()> {
        let library = self.gpu.library;
        // SAFETY: both are live.
        library.check("cuEventRecord", unsafe {
            (library.event_record)(event.handle(), self.handle)
        })
    }

    #[inline]
    pub(crate) fn wait_event(&self, event: &Event) -> Result<()> {
        let library = self.gpu.library;
        let event: CUevent = event.handle();
        // SAFETY: both are live; there are no flags.
        library.check("cuStreamWaitEvent", unsafe {
            (library.stream_wait_event)(self.handle, event, 0)
        })
    }

    /// Waits until all operations are done.
    #[inline]
    pub(crate) fn synchronize(&self) -> Result<()> {
        let library = self.gpu.library;
        // SAFETY: a stream that stays.
        library.check("cuStreamSynchronize", unsafe {
            (library.stream_synchronize)(self.handle)
        })
    }

    /// Asks whether all operations are done, and ignores the answer: the cost of asking.
    #[inline]
    pub(crate) fn query(&self) {
        // SAFETY: a stream that stays.
        unsafe { (self.gpu.library.stream_query)(self.handle) };
    }
}

impl Operation {
    fn parameters(self) -> CUstreamBatchMemOpParams {
        // SAFETY: for this union of plain numbers, all zeros are a value.
        let mut parameters: CUstreamBatchMemOpParams = unsafe { mem::zeroed() };
        match self {
            Self::Wait(word, value) => {
                // SAFETY: plain numbers, in each view of the union.
                let wait = unsafe { &mut parameters.waitValue };
                wait.operation = CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WAIT_VALUE_64;
                wait.address = word.0;
                wait.__bindgen_anon_1.value64 = value;
                wait.flags = WAIT;
            }
            Self::Write(word, value) => {
                // SAFETY: plain numbers, in each view of the union.
                let write = unsafe { &mut parameters.writeValue };
                write.operation = CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_64;
                write.address = word.0;
                write.__bindgen_anon_1.value64 = value;
            }
        }
        parameters
    }
}
