//! Tests with ten million random inputs. No input may cause a panic, and every accepted input must
//! be canonical.

use super::*;

/// Marsaglia's xorshift64* generator. It is fast and the same on every run, so a failure repeats.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 32) as usize % bound
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }
}

const ROUNDS: usize = 5_000_000;

/// Parses random bytes of random sizes around that of a handle. Some inputs get a valid start and
/// tag, because chance alone would never produce the magic number.
#[test]
fn random_bytes_never_panic() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut buffer = [0; 2 * MEMORY_HANDLE_SIZE];
    let mut refused = 0;
    for _ in 0..ROUNDS {
        let choice = random.next();
        let size = if choice & 3 == 0 {
            random.below(buffer.len())
        } else {
            [MEMORY_HANDLE_SIZE, EVENT_HANDLE_SIZE][random.below(2)]
        };
        let bytes = &mut buffer[..size];
        random.fill(bytes);
        let is_event = size == EVENT_HANDLE_SIZE;
        if choice & 4 != 0 && size >= 8 {
            bytes[..5].copy_from_slice(b"XHDL\x03");
            bytes[5] = match is_event {
                true => 3,
                false => bytes[5] & 7,
            };
            bytes[6] &= 3;
            bytes[7] &= 3;
        }
        if choice & 8 != 0 && (is_event || size == MEMORY_HANDLE_SIZE) {
            if !is_event {
                // A random `reserved` field would hide the checks that follow it.
                bytes[96..100].fill(0);
            }
            // A random kind in the generation would hide them too.
            bytes[48] = bytes[48] & !3 | if bytes[5] == 4 { 1 } else { bytes[5] & 3 };
            retag(bytes);
        }
        refused += usize::from(!judge(bytes));
    }
    assert!(
        refused > ROUNDS / 2 && refused < ROUNDS,
        "{refused}: one side was not exercised"
    );
}

/// Parses valid handles after changes of one to four bytes or of whole fields, with the tag fixed.
#[test]
fn random_mutations_never_panic() {
    const VALUES: [u64; 6] = [0, 1, u64::MAX, 1 << 63, 4096, 0x0101_0101_0101_0101];
    let mut random = Random(0xd1b5_4a32_d192_ed03);
    let samples = KINDS.map(|kind| sample(kind).as_bytes().to_vec());
    let mut refused = 0;
    for _ in 0..ROUNDS {
        let mut bytes = samples[random.below(samples.len())].clone();
        let size = bytes.len();
        for _ in 0..=random.below(4) {
            let choice = random.next();
            match choice & 3 {
                0 => bytes[random.below(size)] = (choice >> 8) as u8,
                1 => bytes[random.below(size)] ^= 1 << ((choice >> 8) & 7),
                2 => {
                    let at = 8 * random.below(size / 8);
                    let value = VALUES[random.below(VALUES.len())];
                    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
                }
                _ => bytes[4 + random.below(4)] = (choice >> 8) as u8 & 7,
            }
        }
        retag(&mut bytes);
        refused += usize::from(!judge(&bytes));
    }
    assert!(
        refused > ROUNDS / 4 && refused < ROUNDS,
        "{refused}: one side was not exercised"
    );
}

/// Parses the bytes in every way, and returns whether they are a valid handle.
fn judge(bytes: &[u8]) -> bool {
    let Ok(handle) = AnyHandle::from_bytes(bytes) else {
        return false;
    };
    let again = make(handle.kind(), &handle.fields());
    assert_eq!(again.as_bytes(), bytes, "accepted, but not canonical");
    assert_eq!(parse(handle.kind(), bytes), Ok(handle.as_bytes().to_vec()));
    true
}
