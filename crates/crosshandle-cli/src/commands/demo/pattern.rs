//! Test patterns. Each byte depends on the process that writes it, on the round, and on the offset.

use crate::failure::{Failure, Result};
use crate::transfer::Transfer;
use crate::tuning::COPY_CHUNK_BYTES;
use std::ops::Range;

/// One of the two processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    First,
    Second,
}

impl Side {
    /// Returns the half of the memory that this process writes to.
    pub(super) fn half(self, len: usize) -> Range<usize> {
        // The middle is a multiple of 8, so that the words of the ping-pong are aligned.
        let middle = len / 2 / 8 * 8;
        match self {
            Self::First => 0..middle,
            Self::Second => middle..len,
        }
    }
}

/// The bytes that one process writes in one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pattern {
    pub(super) side: Side,
    pub(super) round: u32,
}

impl Pattern {
    /// Generates the pattern's bytes from `offset` on, which must be a multiple of 8.
    fn generate(self, offset: usize, into: &mut [u8]) {
        let seed = u64::from(self.round) << 1 | u64::from(self.side == Side::Second);
        let seed = mix(seed.wrapping_add(0x5EED));
        for (index, word) in into.chunks_mut(8).enumerate() {
            let bytes = mix(seed ^ (offset / 8 + index) as u64).to_le_bytes();
            word.copy_from_slice(&bytes[..word.len()]);
        }
    }

    /// Writes the pattern to a range of the memory.
    pub(super) fn fill(self, memory: &Transfer<'_>, range: Range<usize>) -> Result<()> {
        let mut chunk = vec![0; COPY_CHUNK_BYTES];
        each_chunk(range, |offset, len| {
            self.generate(offset, &mut chunk[..len]);
            memory.write(offset, &chunk[..len])
        })
    }

    /// Compares a range of the memory with the pattern, byte by byte. Returns the number of bytes.
    pub(super) fn verify(self, memory: &Transfer<'_>, range: Range<usize>) -> Result<u64> {
        let mut expected = vec![0; COPY_CHUNK_BYTES];
        let mut found = vec![0; COPY_CHUNK_BYTES];
        let total = range.len() as u64;
        each_chunk(range, |offset, len| {
            self.generate(offset, &mut expected[..len]);
            memory.read(offset, &mut found[..len])?;
            if expected[..len] == found[..len] {
                return Ok(());
            }
            let wrong = (0..len).find(|index| expected[*index] != found[*index]);
            match wrong {
                None => Ok(()),
                Some(index) => Err(Failure::error(format!(
                    "verification failed: byte {} in round {} of the {:?} process is {:#04x}, \
                     not {:#04x}",
                    offset + index,
                    self.round,
                    self.side,
                    found[index],
                    expected[index]
                ))),
            }
        })?;
        Ok(total)
    }
}

/// Calls `f` with the offset and length of each part of the range.
pub(super) fn each_chunk(
    range: Range<usize>,
    mut f: impl FnMut(usize, usize) -> Result<()>,
) -> Result<()> {
    let mut offset = range.start;
    while offset < range.end {
        let len = COPY_CHUNK_BYTES.min(range.end - offset);
        f(offset, len)?;
        offset += len;
    }
    Ok(())
}

/// Mixes a value with the finaliser of `SplitMix64`: every bit of the input changes about half of
/// the output bits.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ value >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ value >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ value >> 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use crosshandle::{Context, Device};

    const LEN: usize = 2 * COPY_CHUNK_BYTES + 4096 + 3;

    fn with_memory(f: impl FnOnce(&Transfer<'_>)) {
        let device = Device::find("host").expect("the host is always there");
        let context = Context::new(&device).expect("a context");
        let memory = context.allocate(LEN).expect("memory");
        f(&Transfer::new(&context, &memory).expect("access"));
    }

    #[test]
    fn halves_cover_everything_once() {
        let (first, second) = (Side::First.half(LEN), Side::Second.half(LEN));
        assert_eq!(first.start, 0);
        assert_eq!(first.end, second.start);
        assert_eq!(second.end, LEN);
        assert_eq!(second.start % 8, 0);
    }

    #[test]
    fn every_wrong_byte_is_found() {
        with_memory(|memory| {
            let pattern = Pattern {
                side: Side::First,
                round: 3,
            };
            pattern.fill(memory, 0..LEN).expect("written");
            assert_eq!(pattern.verify(memory, 0..LEN).expect("right"), LEN as u64);
            for at in [0, 1, COPY_CHUNK_BYTES - 1, COPY_CHUNK_BYTES, LEN - 1] {
                let mut byte = [0];
                memory.read(at, &mut byte).expect("read");
                memory.write(at, &[byte[0] ^ 1]).expect("written");
                let error = pattern.verify(memory, 0..LEN).expect_err("wrong");
                assert!(format!("{error:?}").contains(&format!("byte {at} ")));
                memory.write(at, &byte).expect("written");
            }
            for (side, round) in [(Side::Second, 3), (Side::First, 4)] {
                let other = Pattern { side, round };
                assert!(other.verify(memory, 0..LEN).is_err(), "{other:?}");
            }
        });
    }
}
