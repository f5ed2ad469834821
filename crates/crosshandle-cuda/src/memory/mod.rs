//! Memory of devices and of the host, as segments.

mod device_memory;
pub(super) mod external;
mod pinned;
pub(super) mod process_word;
mod range;
mod staging;

#[cfg(test)]
pub(super) use device_memory::Reservation;
pub(super) use device_memory::{CudaPhysical, KeptRanges, NVIDIA_MAJOR};
pub(super) use range::CudaRange;
pub(super) use staging::Staging;

use super::context::CudaContext;
use super::device::Gpu;
use crosshandle_hal::common::host_memory::HostSegment;
use crosshandle_hal::{BackendBlob, BackendDriverHandles, BackendFabric, BackendSegment};
use crosshandle_handle::DRIVER_HANDLE_SIZE;
use crosshandle_os::descriptor;
use crosshandle_os::descriptor::FileKind;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{Access, MemoryKind};
use device_memory::CudaSegment;
use pinned::PinnedSegment;
pub(crate) use pinned::WordPinner;
use process_word::ProcessWord;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// Bytes of a page of process words, and number of words that are reserved before a queue is
/// locked.
const WORD_PAGE_BYTES: usize = 64 << 10;

const WORDS_RESERVED: usize = 16;

/// Allocates memory of a kind and maps it.
pub(super) fn create(
    gpu: &Arc<Gpu>,
    kind: MemoryKind,
    len: usize,
) -> Result<Arc<dyn BackendSegment>> {
    match kind {
        MemoryKind::Device => Ok(Arc::new(CudaSegment::create(gpu, len)?)),
        MemoryKind::Host | MemoryKind::Shared => {
            let memory = HostSegment::create(len)?;
            let access = Access::ReadWrite;
            Ok(Arc::new(PinnedSegment::register(gpu, memory, access)?))
        }
    }
}

/// Maps memory of another process, of any kind.
pub(super) fn import(
    gpu: &Arc<Gpu>,
    file: &OwnedFd,
    len: usize,
    access: Access,
) -> Result<Arc<dyn BackendSegment>> {
    let kind = descriptor::kind(file).map_err(Error::os("looking at imported memory"))?;
    if kind == FileKind::Regular {
        let memory = HostSegment::import(file, len, access)?;
        return Ok(Arc::new(PinnedSegment::register(gpu, memory, access)?));
    }
    let memory = CudaPhysical::import(gpu, file, len)?;
    Ok(Arc::new(CudaSegment::map(memory, access)?))
}

impl BackendDriverHandles for CudaContext {
    fn import_handle(&self, handle: &BackendBlob, len: usize) -> Result<Arc<dyn BackendSegment>> {
        external::open_legacy(self.gpu(), handle, len)
    }
}

impl BackendFabric for CudaContext {
    fn create_segment(
        &self,
        len: usize,
    ) -> Result<(Arc<dyn BackendSegment>, [u8; DRIVER_HANDLE_SIZE])> {
        let (memory, handle) = CudaPhysical::create_for_fabric(self.gpu(), len)?;
        Ok((Arc::new(CudaSegment::map_new(memory)?), handle))
    }

    fn import_segment(
        &self,
        handle: &[u8; DRIVER_HANDLE_SIZE],
        len: usize,
    ) -> Result<Arc<dyn BackendSegment>> {
        let memory = CudaPhysical::import_from_fabric(self.gpu(), handle, len)?;
        Ok(Arc::new(CudaSegment::map(memory, Access::ReadWrite)?))
    }
}

/// Distance between two words in bytes: a cache line.
const WORD_STEP: usize = 64;

/// Ensures that unused words of this process exist, so that none has to be created while a queue is
/// locked.
pub(super) fn reserve_words(gpu: &Arc<Gpu>) -> Result<()> {
    if ProcessWord::count_free() < WORDS_RESERVED {
        let page = create(gpu.primary(), MemoryKind::Host, WORD_PAGE_BYTES)?;
        let start = page.start();
        // The page is kept until the process ends.
        std::mem::forget(page);
        ProcessWord::add((0..WORD_PAGE_BYTES).step_by(WORD_STEP).map(|offset| {
            // SAFETY: the word lies in the page, is aligned and zeroed, is never unmapped, and is
            // only accessed with this type.
            unsafe { &*start.offset(offset).pointer().as_ptr().cast::<AtomicU32>() }
        }));
    }
    Ok(())
}

/// Takes a word of this process. After [`reserve_words`] there is one, unless other threads have
/// taken all words in the meantime. Then a page is registered, which waits for no stream
/// (measured).
pub(super) fn take_word(gpu: &Arc<Gpu>) -> Result<ProcessWord> {
    loop {
        if let Some(word) = ProcessWord::take() {
            return Ok(word);
        }
        reserve_words(gpu)?;
    }
}
