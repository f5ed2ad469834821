//! The input of one run. Operations of the processes are read from its start, hostile writes from
//! its end.

/// Bytes that are read from both ends. Reads beyond the last byte return zeros.
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    pub(crate) fn word(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// Removes and returns up to `most` bytes at the end.
    pub(crate) fn split_end(&mut self, most: usize) -> &'a [u8] {
        let (rest, end) = self.0.split_at(self.0.len() - most.min(self.0.len()));
        self.0 = rest;
        end
    }

    /// Returns a number that is likely to reveal errors: near `near`, near a power of two, or any
    /// number.
    pub(crate) fn number(&mut self, near: u64) -> u64 {
        let (form, offset) = (self.byte(), u64::from(self.byte()));
        let by = |base: u64| base.wrapping_add(offset).wrapping_sub(16);
        match form % 8 {
            0..4 => by(near),
            4 => near.wrapping_add((1 << 29) - 8).wrapping_add(offset % 16),
            5 => by(1 << (form / 8)),
            6 => by(1 << (form / 8 + 32)),
            _ => self.word(),
        }
    }
}
