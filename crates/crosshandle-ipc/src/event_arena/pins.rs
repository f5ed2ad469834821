//! Pinned parts of an arena, which devices can access.

use crosshandle_handle::BackendKind;
use crosshandle_os::mapping::Mapping;
use crosshandle_types::error::Result;
use crosshandle_types::sync::{HashMap, Mutex};
use std::any::Any;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

/// Size in bytes of the first part of an arena's slots that is pinned for a device, and the minimum
/// size of a pinned part. A larger part delays the first event that a device needs, because
/// untouched pages are allocated first.
const MIN_PIN_BYTES: usize = 64 << 10;

/// Maximum number of bytes of an arena's slots that are pinned at a time. A larger part delays an
/// event that needs it, because untouched pages are allocated first.
const MAX_PIN_BYTES: usize = 2 << 20;

/// Gives the devices of a backend access to host memory, at its host address.
pub trait BackendPinner {
    /// Returns the backend whose devices get access.
    fn kind(&self) -> BackendKind;

    /// Pins whole pages of shared memory at least until the result is dropped.
    ///
    /// # Safety
    /// The pages must be part of `mapping`, which must allow reading and writing.
    unsafe fn pin(&self, start: NonNull<u8>, len: usize, mapping: &Arc<Mapping>) -> Result<Pin>;
}

/// An object that keeps memory pinned until it is dropped.
pub type Pin = Box<dyn Any + Send + Sync>;

/// The pinned parts of one mapping, until this is dropped.
#[derive(Default)]
pub(super) struct Pins(Mutex<HashMap<(BackendKind, usize), Arc<Part>>>);

/// A part, with its pin once it is pinned. The lock is held while the driver pins the part, so only
/// threads that need this part wait.
type Part = Mutex<Option<Pin>>;

impl Pins {
    /// Pins the part of a mapping that contains `offset`, unless it is pinned.
    ///
    /// # Safety
    /// The mapping must allow reading and writing, and `offset` must be less than its length.
    pub(super) unsafe fn pin(
        &self,
        pinner: &dyn BackendPinner,
        mapping: &Arc<Mapping>,
        offset: usize,
    ) -> Result<()> {
        let part = part_of(offset);
        let (first, end) = (part.start, mapping.len().min(part.end));
        let key = (pinner.kind(), first);
        let part = Arc::clone(self.0.lock().entry(key).or_default());
        let mut pin = part.lock();
        if pin.is_none() {
            // SAFETY: `first` ≤ `offset`, so both ends are in the mapping and `first` is before
            // `end`. The caller guarantees the rest.
            let made = unsafe { pinner.pin(mapping.start().add(first), end - first, mapping) };
            *pin = Some(made?);
        }
        Ok(())
    }
}

/// Returns the part that contains an offset. An arena may have hundreds of megabytes that are used
/// from the start on, and untouched pages take long to pin. So each part is as long as all parts
/// before it, within limits.
fn part_of(offset: usize) -> Range<usize> {
    if offset < MIN_PIN_BYTES {
        return 0..MIN_PIN_BYTES;
    }
    let len = (1 << offset.ilog2()).min(MAX_PIN_BYTES);
    let first = offset - offset % len;
    first..first + len
}

#[cfg(test)]
mod tests {
    use super::{MAX_PIN_BYTES, MIN_PIN_BYTES, part_of};

    /// Checks that every offset is in its part, and that parts neither overlap nor leave gaps.
    #[test]
    fn parts_follow_one_another_and_grow() {
        let (mut next, mut before) = (0, MIN_PIN_BYTES);
        while next < 10 * MAX_PIN_BYTES {
            let part = part_of(next);
            assert_eq!(part.start, next, "no gap and no overlap");
            let len = part.len();
            assert!(len == before || len == 2 * before && len <= MAX_PIN_BYTES);
            for offset in [next, next + 64, next + len / 2, part.end - 64] {
                assert_eq!(part_of(offset), part);
            }
            (next, before) = (part.end, len);
        }
        assert_eq!(before, MAX_PIN_BYTES);
    }
}
