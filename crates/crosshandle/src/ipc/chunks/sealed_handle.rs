//! Sealed handles: a driver's handle to memory, in the catalog that every importer of the context can read, but of
//! use only to those who have the key of the memory's record.
//!
//! An importer that is attached so finds the handle without asking: it maps the memory while its question is under
//! way, and the exporter still says whether it may. The exporter makes a key for one use of a record, and seals one
//! handle with it, so a stream of bytes that the key yields is combined with nothing else. The sealed bytes begin with
//! zeros, by which a wrong key shows, or a handle that is being replaced. Nobody but the exporter can write them.

use crate::handle::Key;
use crate::ipc::broker::FetchedHandle;
use crate::ipc::broker::protocol::BackendBlob;
use chacha20::ChaCha20Rng;
use chacha20::rand_core::{Rng, SeedableRng};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Bytes of a sealed handle.
pub(super) const SEALED_BYTES: usize = size_of::<Plain>();
/// Bytes of the longest handle that can be sealed.
const MAX_HANDLE_BYTES: usize = 96;

/// What is sealed.
#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Plain {
    zeros: [u8; 16],
    len: U64,
    segment: U32,
    handle_len: U32,
    handle: [u8; MAX_HANDLE_BYTES],
}

/// Sets what keys are used for here apart from other uses.
const PURPOSE: [u8; 16] = *b"xh sealed handle";

/// Combines bytes with the stream that a key yields. Twice is nothing.
fn combine(key: &Key, bytes: [u8; SEALED_BYTES]) -> [u8; SEALED_BYTES] {
    let seed: [[u8; 16]; 2] = [*key.as_bytes(), PURPOSE];
    let mut stream = [0; SEALED_BYTES];
    ChaCha20Rng::from_seed(zerocopy::transmute!(seed)).fill_bytes(&mut stream);
    std::array::from_fn(|index| bytes[index] ^ stream[index])
}

/// Seals a handle with the key of its record. A handle that is too long becomes one that nobody opens: importers
/// ask for it then.
pub(crate) fn seal(key: &Key, found: &FetchedHandle) -> [u8; SEALED_BYTES] {
    let bytes = found.handle.as_bytes();
    let mut handle = [0; MAX_HANDLE_BYTES];
    let Some(room) = handle.get_mut(..bytes.len()) else {
        return [0; SEALED_BYTES];
    };
    room.copy_from_slice(bytes);
    let plain = Plain {
        zeros: [0; 16],
        len: found.len.into(),
        segment: found.segment.into(),
        handle_len: (bytes.len() as u32).into(),
        handle,
    };
    combine(key, zerocopy::transmute!(plain))
}

/// Opens a sealed handle; `None` if it was sealed with another key. A peer has chosen what is in it.
pub(crate) fn open(key: &Key, sealed: [u8; SEALED_BYTES]) -> Option<FetchedHandle> {
    let plain: Plain = zerocopy::transmute!(combine(key, sealed));
    let handle = plain.handle.get(..plain.handle_len.get() as usize)?;
    (plain.zeros == [0; 16]).then(|| FetchedHandle {
        segment: plain.segment.get(),
        len: plain.len.get(),
        handle: BackendBlob::new(handle),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn what_was_never_sealed_or_is_half_replaced_is_not_opened() {
        let (key, other) = (Key::from_bytes([1; 16]), Key::from_bytes([2; 16]));
        assert_eq!(open(&key, [0; SEALED_BYTES]), None);
        let (old, new) = (seal(&other, &found(&[1; 80])), seal(&key, &found(&[2; 80])));
        let mut torn = old;
        torn[16..].copy_from_slice(&new[16..]);
        assert_eq!(open(&key, torn), None, "its beginning is the old one's");
        // A handle whose length cannot be, of a hostile exporter.
        let mut plain = combine(&key, new);
        plain[28..32].copy_from_slice(&97_u32.to_le_bytes());
        assert_eq!(open(&key, combine(&key, plain)), None);
        assert_eq!(
            open(&key, seal(&key, &found(&[1; MAX_HANDLE_BYTES + 1]))),
            None
        );
    }
}
