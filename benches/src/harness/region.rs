//! Reads and writes of large shared memory.

/// Distance of two touches that reach every page, in bytes.
const PAGE: usize = 4096;

/// Mapped bytes that another process may change at any time, hence accessed by pointer and never by
/// reference.
#[derive(Clone, Copy)]
pub(crate) struct Region {
    start: *mut u64,
    words: usize,
}

impl Region {
    /// # Safety
    ///
    /// `start` is aligned to eight bytes. `length` bytes from there stay mapped and readable, and
    /// writable if anything is written, as long as the region is used.
    pub(crate) unsafe fn new(start: *mut u8, length: usize) -> Self {
        debug_assert!(start.cast::<u64>().is_aligned());
        Self {
            start: start.cast(),
            words: length / 8,
        }
    }

    /// Returns the `index`-th eight bytes.
    pub(crate) fn read(&self, index: usize) -> u64 {
        assert!(index < self.words, "word {index} of {}", self.words);
        // SAFETY: within the region, by the assertion; the caller of `new` keeps it mapped. A
        // volatile access may race with another process: it yields some value of eight bytes.
        unsafe { self.start.add(index).read_volatile() }
    }

    /// Sets the `index`-th eight bytes.
    pub(crate) fn write(&self, index: usize, value: u64) {
        assert!(index < self.words, "word {index} of {}", self.words);
        // SAFETY: as in `read`.
        unsafe { self.start.add(index).write_volatile(value) }
    }

    /// Writes a word to each page.
    pub(crate) fn touch_pages(&self, value: u64) {
        for index in (0..self.words).step_by(PAGE / 8) {
            self.write(index, value);
        }
    }

    /// Reads a word of each page, and returns their wrapping sum.
    pub(crate) fn read_pages(&self) -> u64 {
        (0..self.words)
            .step_by(PAGE / 8)
            .fold(0, |sum: u64, index| sum.wrapping_add(self.read(index)))
    }

    /// Writes its own number into each word.
    pub(crate) fn number_words(&self) {
        for index in 0..self.words {
            self.write(index, index as u64);
        }
    }

    /// Returns the result of `sum` after `number_words`.
    pub(crate) fn numbered_sum(&self) -> u64 {
        let words = self.words as u64;
        if words.is_multiple_of(2) {
            (words / 2).wrapping_mul(words.wrapping_sub(1))
        } else {
            words.wrapping_mul((words - 1) / 2)
        }
    }

    /// Reads all words, and returns their wrapping sum. No process may write to the region
    /// meanwhile.
    pub(crate) fn sum(&self) -> u64 {
        // SAFETY: within the region, which the caller of `new` keeps mapped, and no process writes
        // meanwhile. Plain loads, so that the compiler may use vectors as in any program that reads
        // memory.
        let words = unsafe { std::slice::from_raw_parts(self.start, self.words) };
        words
            .iter()
            .fold(0, |sum: u64, &word| sum.wrapping_add(word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums() {
        for words in [1, 2, 5, 512, 1025] {
            let mut memory = vec![0_u64; words];
            // SAFETY: the vector outlives the region and has this many bytes.
            let region = unsafe { Region::new(memory.as_mut_ptr().cast(), memory.len() * 8) };
            region.number_words();
            assert_eq!(region.sum(), region.numbered_sum());
            assert_eq!(region.sum(), (0..words as u64).sum::<u64>());
        }
    }

    #[test]
    fn pages() {
        let mut memory = vec![0_u64; 3 * 512];
        // SAFETY: the vector outlives the region and has this many bytes.
        let region = unsafe { Region::new(memory.as_mut_ptr().cast(), 3 * PAGE) };
        region.touch_pages(7);
        assert_eq!((region.read_pages(), region.sum()), (21, 21));
    }
}
