//! Reads and writes of mapped memory that processes share.

use std::marker::PhantomData;

/// Size of the smallest page, in bytes. An access at each multiple reaches every page, huge or not.
const PAGE_BYTES: usize = 4096;
/// Size of a word, in bytes.
const WORD_BYTES: usize = 8;

/// Mapped memory, as words of eight bytes, for the lifetime `'a`.
///
/// Another process may change the words at any time, so the region never creates a reference to
/// them.
#[derive(Clone, Copy)]
pub(crate) struct Region<'a> {
    start: *mut u64,
    words: usize,
    mapping: PhantomData<&'a ()>,
}

impl Region<'_> {
    /// Creates a region of mapped memory.
    ///
    /// # Safety
    ///
    /// - `start` must be aligned to eight bytes.
    /// - `length` bytes from `start` must stay mapped, readable and writable for the region's
    ///   lifetime.
    /// - During that time, this process may access these bytes only through regions and atomics.
    pub(crate) unsafe fn new(start: *mut u8, length: usize) -> Self {
        debug_assert!(start.cast::<u64>().is_aligned());
        Self {
            start: start.cast(),
            words: length / WORD_BYTES,
            mapping: PhantomData,
        }
    }

    /// Reads the word at `index`.
    pub(crate) fn read(&self, index: usize) -> u64 {
        assert!(index < self.words, "word {index} of {}", self.words);
        // SAFETY: the assertion checks that the word is inside the region. The caller of `new`
        // guarantees that the region is aligned and stays mapped and readable. A volatile read of
        // eight bytes yields a valid `u64` even if another process writes the word.
        unsafe { self.start.add(index).read_volatile() }
    }

    /// Writes the word at `index`.
    pub(crate) fn write(&self, index: usize, value: u64) {
        assert!(index < self.words, "word {index} of {}", self.words);
        // SAFETY: the assertion checks that the word is inside the region. The caller of `new`
        // guarantees that the region is aligned and stays mapped and writable, and that this
        // process has only references to atomics in it.
        unsafe { self.start.add(index).write_volatile(value) }
    }

    /// Writes a word to each page.
    pub(crate) fn touch_pages(&self, value: u64) {
        for index in (0..self.words).step_by(PAGE_BYTES / WORD_BYTES) {
            self.write(index, value);
        }
    }

    /// Reads a word of each page, and returns the wrapping sum of these words.
    pub(crate) fn read_pages(&self) -> u64 {
        (0..self.words)
            .step_by(PAGE_BYTES / WORD_BYTES)
            .fold(0, |sum: u64, index| sum.wrapping_add(self.read(index)))
    }

    /// Reads all words with plain loads, and returns their wrapping sum.
    ///
    /// The compiler may use vectors, as in any program that reads memory.
    ///
    /// # Safety
    ///
    /// No thread of any process may write to the region during the call.
    pub(crate) unsafe fn sum(&self) -> u64 {
        // SAFETY: the caller of `new` guarantees that these words are aligned and stay mapped and
        // readable. The caller of this function guarantees that they do not change.
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
    fn pages() {
        let mut memory = vec![0_u64; 3 * 512];
        // SAFETY: the vector outlives the region, has this many bytes, and is not used in any other
        // way.
        let region = unsafe { Region::new(memory.as_mut_ptr().cast(), 3 * PAGE_BYTES) };
        region.touch_pages(7);
        // SAFETY: no other thread has access to the vector.
        let sum = unsafe { region.sum() };
        assert_eq!((region.read_pages(), sum), (21, 21));
    }
}
