//! The address ranges that a context reserves.

use crate::abi::failure::{Failure, Result};
use crate::abi::lock::Lock;
use crosshandle::virtual_memory::VirtualRange;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;

/// The reserved address ranges of a context, indexed by their start addresses.
#[derive(Default)]
pub(crate) struct Ranges {
    reserved: Lock<BTreeMap<usize, Arc<VirtualRange>>>,
}

impl Ranges {
    /// Returns the reserved range that contains the `size` bytes at `start`. Also returns the
    /// offset of `start` in that range.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` if no single reserved range contains the bytes.
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
                    "no single reserved range of this context contains the {size} bytes at {start:p}"
                ))
            })
    }

    pub(crate) fn add(&self, range: VirtualRange) {
        let start = range.as_ptr().addr();
        self.reserved.lock().insert(start, Arc::new(range));
    }

    /// Removes the reserved range with exactly this start and size. The caller receives the range,
    /// so that it is dropped after the lock is released.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` if no reserved range has this start and size.
    pub(crate) fn remove(&self, start: *const c_void, size: usize) -> Result<Arc<VirtualRange>> {
        let mut reserved = self.reserved.lock();
        let found = reserved.remove(&start.addr());
        match found {
            Some(range) if range.len() == size => Ok(range),
            other => {
                reserved.extend(other.map(|range| (start.addr(), range)));
                Err(Failure::argument(format!(
                    "this context has not reserved a range of {size} bytes at {start:p}"
                )))
            }
        }
    }
}
