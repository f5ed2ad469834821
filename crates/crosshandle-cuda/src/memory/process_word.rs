//! Words of this process that its devices write and compare. No other process can access them.

use crate::driver::DeviceAddress;
use crosshandle_types::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// Words that are not in use.
static FREE: Mutex<Vec<&'static AtomicU32>> = Mutex::new(Vec::new());

/// A word through which a stream and this process signal each other. The writer writes increasing
/// numbers, each one more than the one before, and the reader waits for a number.
pub(crate) struct ProcessWord {
    word: &'static AtomicU32,
}

impl ProcessWord {
    /// Takes an unused word, if there is one.
    pub(super) fn take() -> Option<Self> {
        FREE.lock().pop().map(|word| Self { word })
    }

    /// Returns the number of unused words.
    pub(super) fn count_free() -> usize {
        FREE.lock().len()
    }

    /// Adds words that devices can access until the process ends.
    pub(super) fn add(words: impl IntoIterator<Item = &'static AtomicU32>) {
        FREE.lock().extend(words);
    }

    /// Returns the number that was written last. Everything that its writer did before the write is
    /// visible to the caller.
    #[inline]
    pub(crate) fn read(&self) -> u32 {
        self.word.load(Ordering::Acquire)
    }

    /// Returns whether this number or a later one was written.
    #[inline]
    pub(crate) fn has_reached(&self, number: u32) -> bool {
        self.read().wrapping_sub(number) as i32 >= 0
    }

    pub(crate) fn write(&self, number: u32) {
        self.word.store(number, Ordering::Release);
    }

    pub(crate) fn address(&self) -> DeviceAddress {
        std::ptr::from_ref(self.word).addr() as DeviceAddress
    }
}

impl Drop for ProcessWord {
    /// The stream has finished everything that uses the word.
    fn drop(&mut self) {
        FREE.lock().push(self.word);
    }
}
