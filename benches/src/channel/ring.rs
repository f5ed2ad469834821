//! A raw ring in a memfd, for one sender and one receiver that both spin.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;

use super::{Receiver, Sender};
use crate::raw::memfd::Mapping;

/// Size of a message in bytes.
pub(super) const BYTES: usize = 64;
/// Number of words of a message.
const WORDS: usize = BYTES / 8;
/// Offset of the receiver's counter, in bytes.
const HEAD: usize = 128;
/// Offset of the messages, in bytes.
const MESSAGES: usize = 256;

/// Returns the size of a ring of `depth` messages, in bytes.
pub(super) const fn len(depth: u32) -> usize {
    MESSAGES + depth as usize * BYTES
}

/// One end of a ring. Each end caches the counter of the other end.
pub(super) struct RingEnd<'a> {
    page: &'a Mapping,
    depth: u64,
    own: u64,
    other: u64,
    buffer: [u64; WORDS],
}

impl<'a> RingEnd<'a> {
    pub(super) fn new(page: &'a Mapping, depth: u32) -> Self {
        Self {
            page,
            depth: depth.into(),
            own: 0,
            other: 0,
            buffer: [0; WORDS],
        }
    }

    fn word(&self, index: usize) -> Result<&'a AtomicU64> {
        self.page.word(index)
    }

    #[inline]
    fn message(&self) -> usize {
        MESSAGES + (self.own % self.depth) as usize * BYTES
    }
}

impl Sender for RingEnd<'_> {
    #[inline]
    fn send(&mut self, number: u64) -> Result<()> {
        let head = self.word(HEAD)?;
        while self.own - self.other == self.depth {
            self.other = head.load(Ordering::Acquire);
            std::hint::spin_loop();
        }
        self.buffer[0] = number;
        let start = self.message();
        for (index, word) in self.buffer.iter().enumerate() {
            self.word(start + 8 * index)?
                .store(*word, Ordering::Relaxed);
        }
        self.own += 1;
        self.word(0)?.store(self.own, Ordering::Release);
        Ok(())
    }
}

impl Receiver for RingEnd<'_> {
    #[inline]
    fn receive(&mut self) -> Result<u64> {
        let tail = self.word(0)?;
        while self.own == self.other {
            self.other = tail.load(Ordering::Acquire);
            std::hint::spin_loop();
        }
        let start = self.message();
        for index in 0..WORDS {
            self.buffer[index] = self.word(start + 8 * index)?.load(Ordering::Relaxed);
        }
        self.own += 1;
        self.word(HEAD)?.store(self.own, Ordering::Release);
        Ok(self.buffer[0])
    }
}
