//! Words in host memory that devices write and compare: those of events, and a few of our own.

use super::device::Gpu;
use super::driver::DeviceAddress;
use super::memory;
use super::pinned::Registered;
use crate::error::Result;
use crate::handle::BackendKind;
use crate::ipc::{Pin, Pinner};
use crate::os::mapping::Mapping;
use crate::types::Access;
use crate::types::MemoryKind;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

impl Pinner for Arc<Gpu> {
    fn kind(&self) -> BackendKind {
        BackendKind::Cuda
    }

    unsafe fn pin(&self, start: NonNull<u8>, len: usize, mapping: &Arc<Mapping>) -> Result<Pin> {
        let mapping = Arc::clone(mapping);
        // One registration serves all contexts, whichever of them go.
        let gpu = self.lasting();
        // SAFETY: the caller promises that these are pages of the mapping.
        let registered = unsafe { Registered::new(gpu, start, len, Access::ReadWrite, mapping)? };
        Ok(Box::new(Pinned(Some(registered), len)))
    }
}

/// Words of events that devices can access, and their size in bytes.
struct Pinned(Option<Registered<Arc<Mapping>>>, usize);

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(registered) = self.0.take() {
            registered.release(self.1);
        }
    }
}

/// Bytes of a page of words of our own, and from one to the next: a cache line.
const PAGE: usize = 64 << 10;
const STEP: usize = 64;

/// Words that nobody uses.
static FREE: Mutex<Vec<&'static AtomicU32>> = Mutex::new(Vec::new());

/// A word between a stream and this process, which no other process sees. One of them writes it,
/// the other one waits for what is written, each number one more than the one before.
pub(super) struct Word {
    word: &'static AtomicU32,
}

impl Word {
    pub(super) fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        if free.is_empty() {
            let page = memory::create(gpu.lasting(), MemoryKind::Host, PAGE)?;
            let start = page.start();
            // For as long as the process lives.
            std::mem::forget(page);
            free.extend((0..PAGE).step_by(STEP).map(|offset| {
                // SAFETY: in the page, aligned, zeroed, never unmapped, and only ever accessed as
                // this.
                unsafe { &*start.pointer().as_ptr().add(offset).cast::<AtomicU32>() }
            }));
        }
        let word = free.pop().expect("added above");
        Ok(Self { word })
    }

    /// What was written last. Everything that its writer did before that is visible then.
    #[inline]
    pub(super) fn read(&self) -> u32 {
        self.word.load(Ordering::Acquire)
    }

    /// Whether this number was written, or a later one.
    #[inline]
    pub(super) fn has_reached(&self, number: u32) -> bool {
        self.read().wrapping_sub(number) as i32 >= 0
    }

    pub(super) fn write(&self, number: u32) {
        self.word.store(number, Ordering::Release);
    }

    pub(super) fn address(&self) -> DeviceAddress {
        std::ptr::from_ref(self.word).addr() as DeviceAddress
    }
}

impl Drop for Word {
    /// By now the stream is past all that uses it.
    fn drop(&mut self) {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        free.push(self.word);
    }
}
