//! Host memory for short-lived data that devices copy from.

use crate::device::Gpu;
use crate::driver::DeviceAddress;
use crosshandle_hal::BackendSegment;
use crosshandle_os::mapping::page_size;
use crosshandle_types::MemoryKind;
use crosshandle_types::error::Result;
use crosshandle_types::sync::Mutex;
use std::sync::Arc;

/// Bytes of a piece of pinned memory that is kept for long patterns, and maximum number of such
/// pieces. They are kept because pinning takes several times as long as a command.
const STAGING_BYTES: usize = 64 << 10;

const STAGING_KEPT: usize = 16;

static FREE: Mutex<Vec<Arc<dyn BackendSegment>>> = Mutex::new(Vec::new());

/// A copy of some bytes. When it is dropped, the device has read it.
pub(crate) struct Staging {
    segment: Option<Arc<dyn BackendSegment>>,
}

impl Staging {
    pub(crate) fn new(gpu: &Arc<Gpu>, bytes: &[u8]) -> Result<Self> {
        let kept = match bytes.len() <= STAGING_BYTES {
            true => FREE.lock().pop(),
            false => None,
        };
        let segment = match kept {
            Some(segment) => segment,
            None => {
                let len = bytes.len().next_multiple_of(page_size());
                super::create(gpu.primary(), MemoryKind::Host, len.max(STAGING_BYTES))?
            }
        };
        if let Some(place) = segment.host_bytes() {
            place.write(0, bytes)?;
        }
        let segment = Some(segment);
        Ok(Self { segment })
    }

    pub(crate) fn address(&self) -> DeviceAddress {
        let segment = self.segment.as_ref().expect("present until drop");
        segment.start().get() as DeviceAddress
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let segment = self.segment.take();
        let Some(segment) = segment.filter(|segment| segment.len() == STAGING_BYTES) else {
            return;
        };
        let mut free = FREE.lock();
        if free.len() < STAGING_KEPT {
            free.push(segment);
        }
    }
}
