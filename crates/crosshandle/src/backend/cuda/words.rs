//! Words in host memory that devices write and compare: those of events, and a few of our own.

use super::device::Gpu;
use super::driver::DeviceAddress;
use super::memory;
use crate::backend::MemoryKind;
use crate::error::{Error, Result};
use crate::handle::BackendKind;
use crate::os::address::Address;
use crate::os::mapping::Access;
use crate::sharing::{Pin, Pinner};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

impl Pinner for Arc<Gpu> {
    fn kind(&self) -> BackendKind {
        BackendKind::Cuda
    }

    unsafe fn pin(&self, start: NonNull<u8>, len: usize) -> Result<Pin> {
        // One registration serves all contexts, whichever of them go.
        let gpu = self.lasting();
        let _current = gpu.enter()?;
        // SAFETY: the caller promises that the pages stay until the result is dropped.
        let address = unsafe { self.driver().register_host(start, len, Access::ReadWrite)? };
        let registered = Registered {
            gpu: Arc::clone(gpu),
            start: Address::new(start),
        };
        if address != start.addr().get() as DeviceAddress {
            return Err(Error::Unsupported(format!(
                "{} sees host memory at other addresses than the host does",
                self.info().name
            )));
        }
        Ok(Box::new(registered))
    }
}

/// Host memory that devices can access.
struct Registered {
    gpu: Arc<Gpu>,
    start: Address,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.gpu.release("pinned events", |driver| {
            // SAFETY: registered when this was made. Events are open until the device is past
            // them, and an open one keeps its arena.
            unsafe { driver.unregister_host(self.start.pointer()) };
            Ok(())
        });
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
                unsafe { &*start.as_ptr().add(offset).cast::<AtomicU32>() }
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
