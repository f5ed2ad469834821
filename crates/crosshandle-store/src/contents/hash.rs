//! The BLAKE3 hash of contents that several threads read in pieces. The result is the ordinary
//! BLAKE3 hash of all bytes in order.

use blake3::hazmat::{self, ChainingValue, HasherExt, Mode};
use blake3::{Hash, Hasher};

/// Size of a piece in bytes. It is a power of two, so that each piece except the last is a complete
/// subtree of the hash.
pub(crate) const PIECE_BYTES: u64 = 16 << 20;

/// Returns the number of pieces in `len` bytes.
pub(crate) fn pieces(len: u64) -> u64 {
    len.div_ceil(PIECE_BYTES)
}

#[derive(Clone)]
pub(crate) enum PieceHash {
    /// The hash of a piece, if there are several pieces.
    Part(ChainingValue),
    /// The hash of the only piece, which is the hash of the whole contents.
    Whole(Hash),
}

impl PieceHash {
    /// Returns the hash in the form that is stored in the model's state.
    pub(crate) fn to_bytes(&self) -> [u8; 32] {
        match self {
            Self::Part(value) => *value,
            Self::Whole(hash) => *hash.as_bytes(),
        }
    }

    /// Converts a stored hash of a piece of contents of `len` bytes.
    pub(crate) fn of_bytes(bytes: [u8; 32], len: u64) -> Self {
        match len <= PIECE_BYTES {
            true => Self::Whole(Hash::from_bytes(bytes)),
            false => Self::Part(bytes),
        }
    }
}

/// Computes the hash of one piece, part by part.
pub(crate) struct PieceHasher {
    hasher: Hasher,
    is_only: bool,
}

impl PieceHasher {
    /// Starts a piece of contents of `len` bytes.
    pub(crate) fn new(piece: u64, len: u64) -> Self {
        let mut hasher = Hasher::new();
        hasher.set_input_offset(piece * PIECE_BYTES);
        Self {
            hasher,
            is_only: len <= PIECE_BYTES,
        }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
    }

    pub(crate) fn finish(self) -> PieceHash {
        match self.is_only {
            true => PieceHash::Whole(self.hasher.finalize()),
            false => PieceHash::Part(self.hasher.finalize_non_root()),
        }
    }
}

/// Returns the hash of contents of `len` bytes with these pieces.
pub(crate) fn combine(pieces: &[PieceHash], len: u64) -> Hash {
    match pieces {
        [PieceHash::Whole(hash)] => *hash,
        [] => blake3::hash(b""),
        _ => {
            let (left, right) = halves(pieces, len);
            hazmat::merge_subtrees_root(&left, &right, Mode::Hash)
        }
    }
}

fn halves(pieces: &[PieceHash], len: u64) -> (ChainingValue, ChainingValue) {
    let left_len = hazmat::left_subtree_len(len);
    let (left, right) = pieces.split_at((left_len / PIECE_BYTES) as usize);
    (value_of(left, left_len), value_of(right, len - left_len))
}

fn value_of(pieces: &[PieceHash], len: u64) -> ChainingValue {
    match pieces {
        [PieceHash::Part(value)] => *value,
        _ => {
            let (left, right) = halves(pieces, len);
            hazmat::merge_subtrees_non_root(&left, &right, Mode::Hash)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_have_the_hash_of_the_whole() {
        const PIECE: usize = PIECE_BYTES as usize;
        let bytes: Vec<u8> = (0..5 * PIECE + 77_777)
            .map(|i| ((i * i) >> 3) as u8)
            .collect();
        for len in [
            1,
            PIECE - 1,
            PIECE,
            PIECE + 1,
            2 * PIECE,
            3 * PIECE,
            bytes.len(),
        ] {
            let bytes = &bytes[..len];
            let hashes: Vec<_> = (0_u64..)
                .zip(bytes.chunks(PIECE))
                .map(|(piece, bytes)| {
                    let mut hasher = PieceHasher::new(piece, len as u64);
                    bytes.chunks(1_000_003).for_each(|part| hasher.update(part));
                    hasher.finish()
                })
                .collect();
            assert_eq!(hashes.len() as u64, pieces(len as u64));
            assert_eq!(combine(&hashes, len as u64), blake3::hash(bytes), "{len}");
            let kept = hashes
                .iter()
                .map(|hash| PieceHash::of_bytes(hash.to_bytes(), len as u64));
            let kept: Vec<_> = kept.collect();
            assert_eq!(combine(&kept, len as u64), blake3::hash(bytes), "{len}");
        }
    }
}
