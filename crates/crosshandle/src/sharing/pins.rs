//! Parts of an arena that devices were given access to.

use crate::error::Result;
use crate::handle::BackendKind;
use crate::os::mapping::Mapping;
use std::any::Any;
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// Pinned at once, and where such a part starts: an arena has hundreds of megabytes, most of
/// which are never touched.
const PART: usize = 2 << 20;

/// Gives the devices of a backend access to memory of the host, at the address where the host
/// sees it.
pub(crate) trait Pinner {
    /// Whose devices.
    fn kind(&self) -> BackendKind;

    /// Pins whole pages of shared memory until the result is dropped, or a while longer.
    ///
    /// # Safety
    /// They are of this mapping, for reading and writing, which keeps them as long as it lives.
    unsafe fn pin(&self, start: NonNull<u8>, len: usize, mapping: &Arc<Mapping>) -> Result<Pin>;
}

/// Keeps memory pinned.
pub(crate) type Pin = Box<dyn Any + Send + Sync>;

/// What of one mapping is pinned, until this is dropped.
#[derive(Default)]
pub(super) struct Pins(Mutex<HashMap<(BackendKind, usize), Pin>>);

impl Pins {
    /// Pins the part of a mapping that an offset is in, unless it is.
    ///
    /// # Safety
    /// The mapping is there for reading and writing.
    pub(super) unsafe fn pin(
        &self,
        pinner: &dyn Pinner,
        mapping: &Arc<Mapping>,
        offset: usize,
    ) -> Result<()> {
        let (start, len) = (mapping.start(), mapping.len());
        let (first, end) = part_of(start.addr().get(), len, offset);
        let mut pins = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (pinner.kind(), first);
        if pins.contains_key(&key) {
            return Ok(());
        }
        // SAFETY: inside the mapping; the rest is promised by the caller.
        let pin = unsafe { pinner.pin(start.add(first), end - first, mapping)? };
        pins.insert(key, pin);
        Ok(())
    }
}

/// The part that an offset is in, cut at addresses that are multiples of its size: from where to
/// where in the mapping.
fn part_of(start: usize, len: usize, offset: usize) -> (usize, usize) {
    let address = start + offset;
    let first = (address - address % PART).max(start) - start;
    let end = (address - address % PART + PART).min(start + len) - start;
    (first, end)
}

#[cfg(test)]
mod tests {
    use super::{PART, part_of};

    /// Every offset is in its part, parts don't overlap, and they cover the mapping.
    #[test]
    fn parts_cover_a_mapping_that_starts_anywhere() {
        for start in [PART, PART + 4096, 2 * PART - 4096, 7 * PART / 2] {
            let len = 3 * PART + 8192;
            let mut next = 0;
            while next < len {
                let (first, end) = part_of(start, len, next);
                assert_eq!(first, next, "no gap and no overlap");
                assert!(end <= len && (start + end).is_multiple_of(PART) || end == len);
                for offset in [first, first + 64, end - 64] {
                    assert_eq!(part_of(start, len, offset), (first, end));
                }
                next = end;
            }
        }
    }
}
