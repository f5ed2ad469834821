//! Lengths that a peer, a message or a file claims.

/// A length that a peer, a message or a file claims, and that is at most `MAX`.
///
/// Parsers allocate only through this type. `cargo xtask style` finds other allocations whose
/// length is not a constant. A failed allocation is an error and never aborts the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounded<const MAX: usize>(usize);

impl<const MAX: usize> Bounded<MAX> {
    /// Checks a claimed length. Returns `None` if it is larger than `MAX`.
    pub fn new(claimed: impl TryInto<usize>) -> Option<Self> {
        let len = claimed.try_into().ok()?;
        (len <= MAX).then_some(Self(len))
    }

    /// Returns the length.
    pub fn get(self) -> usize {
        self.0
    }

    /// Returns an empty vector with room for this many elements, or `None` if memory is short.
    pub fn room<T>(self) -> Option<Vec<T>> {
        let mut room = Vec::new();
        room.try_reserve_exact(self.0).ok()?;
        Some(room)
    }

    /// Returns a vector of this many zeros, or `None` if memory is short.
    pub fn zeros(self) -> Option<Vec<u8>> {
        let mut zeros = self.room()?;
        zeros.resize(self.0, 0);
        Some(zeros)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_beyond_the_limit_are_refused() {
        for claimed in [5, 1 << 40, 1 << 62, 1 << 63, u64::MAX] {
            assert_eq!(Bounded::<4>::new(claimed), None, "{claimed}");
        }
        assert_eq!(Bounded::<4>::new(-1i32), None);
        let fits = Bounded::<4>::new(4u64).expect("it fits");
        assert_eq!((fits.get(), fits.zeros()), (4, Some(vec![0; 4])));
        // The limit of an allocation is an error.
        let huge = Bounded::<{ usize::MAX }>::new(1u64 << 62).expect("within this limit");
        assert_eq!((huge.zeros(), huge.room::<u64>()), (None, None));
    }
}
