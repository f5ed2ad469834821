//! Host memory that devices copy from, for a moment.

use super::device::Gpu;
use super::driver::DeviceAddress;
use super::memory;
use crate::error::Result;
use crate::hal::Segment;
use crate::os::mapping::page_size;
use crate::types::MemoryKind;
use std::sync::{Arc, Mutex, PoisonError};

/// What is kept for reuse: pinning takes a multiple of what a command takes.
const KEPT: usize = 64 << 10;
const MOST: usize = 16;

static FREE: Mutex<Vec<Arc<dyn Segment>>> = Mutex::new(Vec::new());

/// A copy of some bytes, until it is dropped: by then the device has read it.
pub(super) struct Staging {
    segment: Option<Arc<dyn Segment>>,
}

impl Staging {
    pub(super) fn new(gpu: &Arc<Gpu>, bytes: &[u8]) -> Result<Self> {
        let kept = if bytes.len() <= KEPT {
            FREE.lock().unwrap_or_else(PoisonError::into_inner).pop()
        } else {
            None
        };
        let segment = match kept {
            Some(segment) => segment,
            None => {
                let len = bytes.len().next_multiple_of(page_size()).max(KEPT);
                memory::create(gpu.lasting(), MemoryKind::Host, len)?
            }
        };
        if let Some(place) = segment.host_bytes() {
            place.write(0, bytes)?;
        }
        Ok(Self {
            segment: Some(segment),
        })
    }

    pub(super) fn address(&self) -> DeviceAddress {
        let segment = self.segment.as_ref().expect("present until drop");
        segment.start().get() as DeviceAddress
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let Some(segment) = self.segment.take().filter(|segment| segment.len() == KEPT) else {
            return;
        };
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < MOST {
            free.push(segment);
        }
    }
}
