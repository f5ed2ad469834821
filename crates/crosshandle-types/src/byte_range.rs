//! Ranges of bytes inside memory.

use crate::error::{Error, Result};
use std::ops::{Bound, Range, RangeBounds};

/// Converts a range of bytes to its start and end. Rejects a range that is not inside `available`
/// bytes.
///
/// # Errors
/// [`Error::InvalidArgument`].
#[inline]
pub fn resolve(range: impl RangeBounds<usize>, available: usize) -> Result<Range<usize>> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(start) => start.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        // No memory is large enough to contain the index `usize::MAX`.
        Bound::Included(&usize::MAX) => return Err(outside(start, usize::MAX, available)),
        Bound::Included(end) => *end + 1,
        Bound::Excluded(end) => *end,
        Bound::Unbounded => available,
    };
    match start <= end && end <= available {
        true => Ok(start..end),
        false => Err(outside(start, end, available)),
    }
}

/// Rejects `len` bytes at `offset` that are not inside `available` bytes.
///
/// # Errors
/// [`Error::InvalidArgument`].
#[inline]
pub fn check(offset: usize, len: usize, available: usize) -> Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= available => Ok(()),
        _ => Err(outside(offset, offset.saturating_add(len), available)),
    }
}

#[cold]
fn outside(start: usize, end: usize, available: usize) -> Error {
    Error::invalid(match end.checked_sub(start) {
        Some(len) => {
            format!("{len} bytes at offset {start} are not inside {available} bytes of memory")
        }
        None => format!(
            "the range of bytes that starts at {start} ends at {end}, before its start or outside \
             the {available} bytes of memory"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_range_is_resolved() {
        assert_eq!(resolve(.., 9).unwrap(), 0..9);
        assert_eq!(resolve(2..5, 9).unwrap(), 2..5);
        assert_eq!(resolve(2..=5, 9).unwrap(), 2..6);
        assert_eq!(resolve(9.., 9).unwrap(), 9..9);
        assert_eq!(resolve(..0, 9).unwrap(), 0..0);
        assert_eq!(
            resolve((Bound::Excluded(3), Bound::Unbounded), 9).unwrap(),
            4..9
        );
    }

    #[test]
    fn what_is_not_inside_is_refused() {
        assert!(resolve(..10, 9).is_err());
        assert!(resolve(10.., 9).is_err());
        assert!(resolve(..=usize::MAX, usize::MAX).is_err());
        #[expect(clippy::reversed_empty_ranges)]
        let reversed = resolve(5..4, 9);
        assert!(reversed.is_err());
        assert!(check(usize::MAX, 2, 9).is_err() && check(8, 2, 9).is_err());
        assert!(check(8, 1, 9).is_ok());
    }
}
