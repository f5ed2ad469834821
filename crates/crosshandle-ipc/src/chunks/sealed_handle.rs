//! Sealed handles are drivers' handles of memory in the catalog. Every importer of the context can
//! read the catalog, but a sealed handle is useful only with the key of the memory's record.
//!
//! An attached importer thus finds the handle without a request. It maps the memory while its
//! request is in progress, and the exporter still decides whether the memory may be used. The
//! exporter makes a key for one use of a record and seals one handle with it, so the key stream is
//! never used twice. The sealed bytes begin with zeros and a checksum of the rest, which reveal a
//! wrong key, or a handle that is being overwritten. Only the exporter can write them.

use crate::broker::FetchedHandle;
use crate::broker::protocol::BackendBlob;
use chacha20::ChaCha20Rng;
use chacha20::rand_core::{Rng, SeedableRng};
use crosshandle_handle::Key;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Size of a sealed handle in bytes.
pub(super) const SEALED_BYTES: usize = size_of::<Plain>();
/// Maximum length of a handle that can be sealed, in bytes.
const MAX_HANDLE_BYTES: usize = 96;

/// The contents that are sealed.
#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Plain {
    zeros: U64,
    /// The [`sum`] of the words after it.
    sum: U64,
    len: U64,
    segment: U32,
    handle_len: U32,
    handle: [u8; MAX_HANDLE_BYTES],
}

/// Separates the use of keys here from other uses.
const PURPOSE: [u8; 16] = *b"xh sealed handle";

/// Returns a checksum of all words except the first two. It depends on their order.
fn sum(plain: &[U64; SEALED_BYTES / 8]) -> u64 {
    let rest = plain.iter().skip(2);
    rest.fold(0x9E37_79B9_7F4A_7C15, |sum: u64, word| {
        (sum.rotate_left(23) ^ word.get()).wrapping_mul(0xD6E8_FEB8_6659_FD93)
    })
}

/// Combines bytes with the key stream. Combining them twice restores the bytes.
fn combine(key: &Key, bytes: [u8; SEALED_BYTES]) -> [u8; SEALED_BYTES] {
    let seed: [[u8; 16]; 2] = [*key.as_bytes(), PURPOSE];
    let mut stream = [0; SEALED_BYTES];
    ChaCha20Rng::from_seed(zerocopy::transmute!(seed)).fill_bytes(&mut stream);
    std::array::from_fn(|index| bytes[index] ^ stream[index])
}

/// Seals a handle with the key of its record. A handle that is too long becomes one that no key
/// opens, and then importers send a request for it.
pub(crate) fn seal(key: &Key, found: &FetchedHandle) -> [u8; SEALED_BYTES] {
    let bytes = found.handle.as_bytes();
    let mut handle = [0; MAX_HANDLE_BYTES];
    let Some(room) = handle.get_mut(..bytes.len()) else {
        return [0; SEALED_BYTES];
    };
    room.copy_from_slice(bytes);
    let mut words: [U64; SEALED_BYTES / 8] = zerocopy::transmute!(Plain {
        zeros: 0.into(),
        sum: 0.into(),
        len: found.len.into(),
        segment: found.segment.into(),
        handle_len: (bytes.len() as u32).into(),
        handle,
    });
    words[1] = sum(&words).into();
    combine(key, zerocopy::transmute!(words))
}

/// Opens a sealed handle. Returns `None` if there is none, if it was sealed with another key, or if
/// parts of it were overwritten. A peer chose the contents.
pub fn open(key: &Key, sealed: [u8; SEALED_BYTES]) -> Option<FetchedHandle> {
    // Most records have none.
    if sealed == [0; SEALED_BYTES] {
        return None;
    }
    let words: [U64; SEALED_BYTES / 8] = zerocopy::transmute!(combine(key, sealed));
    let is_whole = words[0].get() == 0 && words[1].get() == sum(&words);
    let plain: Plain = zerocopy::transmute!(words);
    let handle = plain.handle.get(..plain.handle_len.get() as usize)?;
    is_whole.then(|| FetchedHandle {
        segment: plain.segment.get(),
        len: plain.len.get(),
        handle: BackendBlob::new(handle),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn found(handle: &[u8]) -> FetchedHandle {
        FetchedHandle {
            segment: 1 << 31 | 7,
            len: 3 << 40,
            handle: BackendBlob::new(handle),
        }
    }

    #[test]
    fn only_the_key_opens_what_it_has_sealed() {
        let key = Key::from_bytes([7; 16]);
        for len in [0, 1, 80, MAX_HANDLE_BYTES] {
            let found = found(&[9; MAX_HANDLE_BYTES][..len]);
            let sealed = seal(&key, &found);
            assert_eq!(open(&key, sealed), Some(found), "{len} bytes");
            for bit in 0..128 {
                let mut other = [7; 16];
                other[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(open(&Key::from_bytes(other), sealed), None, "bit {bit}");
            }
        }
    }

    #[test]
    fn what_is_sealed_shows_nothing_of_the_handle() {
        let handle = [0x5A; 80];
        let sealed = seal(&Key::from_bytes([3; 16]), &found(&handle));
        let longest_run = sealed.chunk_by(|a, b| a == b).map(<[u8]>::len).max();
        assert!(longest_run < Some(4), "{sealed:x?}");
        let other = seal(&Key::from_bytes([4; 16]), &found(&handle));
        let same = sealed.iter().zip(&other).filter(|(a, b)| a == b).count();
        assert!(same < 16, "{same} of {SEALED_BYTES} bytes are the same");
    }

    #[test]
    fn what_was_never_sealed_or_is_half_overwritten_is_not_opened() {
        let (key, other) = (Key::from_bytes([1; 16]), Key::from_bytes([2; 16]));
        assert_eq!(open(&key, [0; SEALED_BYTES]), None);
        let (old, new) = (seal(&other, &found(&[1; 80])), seal(&key, &found(&[2; 80])));
        // The exporter overwrites the words one by one, so an importer may read a mixture of old
        // and new words.
        for end in (8..SEALED_BYTES).step_by(8) {
            for rest in [[0; SEALED_BYTES], old] {
                let mut torn = new;
                torn[end..].copy_from_slice(&rest[end..]);
                assert_eq!(open(&key, torn), None, "from byte {end} on");
                let mut torn = rest;
                torn[end..].copy_from_slice(&new[end..]);
                assert_eq!(open(&key, torn), None, "up to byte {end}");
            }
        }
        // A hostile exporter sealed a handle with an impossible length.
        let mut plain: [U64; SEALED_BYTES / 8] = zerocopy::transmute!(combine(&key, new));
        plain[3] = (u64::from(plain[3].get() as u32) | 97 << 32).into();
        plain[1] = sum(&plain).into();
        assert_eq!(open(&key, combine(&key, zerocopy::transmute!(plain))), None);
        assert_eq!(
            open(&key, seal(&key, &found(&[1; MAX_HANDLE_BYTES + 1]))),
            None
        );
    }

    proptest! {
        /// A hostile exporter has the key, and can seal any contents.
        #[test]
        fn what_a_peer_has_sealed_is_a_handle_or_nothing(
            mut chosen: [u64; SEALED_BYTES / 8],
            handle_len in 0..200_u32,
            is_sum_right: bool,
        ) {
            let key = Key::from_bytes([1; 16]);
            chosen[0] = 0;
            chosen[3] = u64::from(chosen[3] as u32) | u64::from(handle_len) << 32;
            let mut words = chosen.map(U64::new);
            if is_sum_right {
                words[1] = sum(&words).into();
            }
            let plain: Plain = zerocopy::transmute!(words);
            let is_one = is_sum_right && handle_len as usize <= MAX_HANDLE_BYTES;
            let expected = is_one.then(|| FetchedHandle {
                segment: chosen[3] as u32,
                len: chosen[2],
                handle: BackendBlob::new(&plain.handle[..handle_len as usize]),
            });
            let sealed = combine(&key, zerocopy::transmute!(words));
            prop_assert_eq!(open(&key, sealed), expected);
        }
    }

    /// Checks the bytes that OpenSSL's ChaCha20 produces, with counter and nonce zero.
    #[test]
    fn the_bytes_that_cross_are_known() {
        let key = Key::from_bytes(std::array::from_fn(|index| index as u8));
        let sealed = seal(&key, &found(&[0x5A; 80]));
        let hex = |bytes: &[u8]| -> String { bytes.iter().map(|b| format!("{b:02x}")).collect() };
        assert_eq!(
            hex(&sealed[..32]),
            "7e266040d13cd9df4f8b9341c1d501cd86a5add0f3daf72ddcdd6a99439373f8"
        );
        assert_eq!(hex(&sealed[112..]), "7515702c3418da480aa36332573d64bf");
    }
}
