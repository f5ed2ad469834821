//! Parts of an arena that devices were given access to.

use crate::error::Result;
use crate::handle::BackendKind;
use crate::os::mapping::Mapping;
use std::any::Any;
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// The first part, and how long parts are at most. An arena has hundreds of megabytes, used from the
/// start, and pages that nobody has touched take long to pin: so the parts grow with the distance.
const FIRST: usize = 64 << 10;
const MOST: usize = 2 << 20;

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
    /// Pins the part of a mapping that an offset behind `from`, where a page starts, is in, unless
    /// it is.
    ///
    /// # Safety
    /// The mapping is there for reading and writing, and both are in it.
    pub(super) unsafe fn pin(
        &self,
        pinner: &dyn Pinner,
        mapping: &Arc<Mapping>,
        from: usize,
        offset: usize,
    ) -> Result<()> {
        let (first, end) = part_of(offset);
        let (first, end) = (from + first, mapping.len().min(from + end));
        let mut pins = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (pinner.kind(), first);
        if pins.contains_key(&key) {
            return Ok(());
        }
        // SAFETY: inside the mapping; the rest is promised by the caller.
        let pin = unsafe { pinner.pin(mapping.start().add(first), end - first, mapping)? };
        pins.insert(key, pin);
        Ok(())
    }
}

/// The part that an offset is in: from where to where. As long as all before it, within bounds.
fn part_of(offset: usize) -> (usize, usize) {
    if offset < FIRST {
        return (0, FIRST);
    }
    let len = (1 << offset.ilog2()).min(MOST);
    let first = offset - offset % len;
    (first, first + len)
}

#[cfg(test)]
mod tests {
    use super::{FIRST, MOST, part_of};

    /// Every offset is in its part, and parts neither overlap nor leave gaps.
    #[test]
    fn parts_follow_one_another_and_grow() {
        let (mut next, mut before) = (0, FIRST);
        while next < 10 * MOST {
            let (first, end) = part_of(next);
            assert_eq!(first, next, "no gap and no overlap");
            let len = end - first;
            assert!(len == before || len == 2 * before && len <= MOST);
            for offset in [first, first + 64, first + len / 2, end - 64] {
                assert_eq!(part_of(offset), (first, end));
            }
            (next, before) = (end, len);
        }
        assert_eq!(before, MOST);
    }
}
