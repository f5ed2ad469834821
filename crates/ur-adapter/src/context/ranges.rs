//! The address ranges that a context has reserved.

use crate::abi::failure::{Failure, Result};
use crate::abi::lock::Lock;
use crosshandle::virtual_memory::VirtualRange;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;

/// The address ranges that a context has reserved, indexed by their start.
#[derive(Default)]
pub(crate) struct Ranges {
    reserved: Lock<BTreeMap<usize, Arc<VirtualRange>>>,
}

impl Ranges {
    /// Returns the range that contains `size` bytes at an address, and the offset of the address in
    /// it.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` if there is no such range.
    pub(crate) fn find(
        &self,
        start: *const c_void,
        size: usize,
    ) -> Result<(Arc<VirtualRange>, usize)> {
        let reserved = self.reserved.lock();
        let found = reserved.range(..=start.addr()).next_back();
        found
            .and_then(|(first, range)| {
                let offset = start.addr() - first;
                let is_inside = offset < range.len() && size <= range.len() - offset;
                is_inside.then(|| (Arc::clone(range), offset))
            })
            .ok_or_else(|| {
                Failure::argument(format!(
                    "the {size} bytes at {start:p} are not in one range that was reserved here"
                ))
            })
    }

    pub(crate) fn add(&self, range: VirtualRange) {
        let start = range.as_ptr().addr();
        self.reserved.lock().insert(start, Arc::new(range));
    }

    /// Removes the range with exactly this start and size. Returns it, so that the caller can drop
    /// it without the lock.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` if there is no such range.
    pub(crate) fn remove(&self, start: *const c_void, size: usize) -> Result<Arc<VirtualRange>> {
        let mut reserved = self.reserved.lock();
        let found = reserved.remove(&start.addr());
        match found {
            Some(range) if range.len() == size => Ok(range),
            other => {
                reserved.extend(other.map(|range| (start.addr(), range)));
                Err(Failure::argument(format!(
                    "no range of {size} bytes at {start:p} was reserved here"
                )))
            }
        }
    }
}
