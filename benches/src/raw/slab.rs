//! Handles of memory in a segment that both processes have already mapped.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;

use super::memfd::Mapping;

/// A handle with the number of a segment, an offset and a length. It is enough for an importer that
/// trusts the exporter.
#[derive(Clone, Copy)]
pub(crate) struct SlabHandle {
    segment: u64,
    offset: u64,
    length: u64,
}

impl SlabHandle {
    /// Size of the handle in bytes.
    pub(crate) const SIZE: usize = 24;

    /// Returns the bytes of a handle to `length` bytes at `offset`.
    #[inline]
    pub(crate) fn get(segment: u64, offset: u64, length: u64) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..8].copy_from_slice(&segment.to_le_bytes());
        bytes[8..16].copy_from_slice(&offset.to_le_bytes());
        bytes[16..].copy_from_slice(&length.to_le_bytes());
        black_box(bytes)
    }

    fn parse(bytes: &[u8; Self::SIZE]) -> Self {
        let (numbers, _) = bytes.as_chunks();
        let number = |index: usize| u64::from_le_bytes(numbers[index]);
        Self {
            segment: number(0),
            offset: number(1),
            length: number(2),
        }
    }
}

/// The segments that an importer has mapped, by number, with their lengths in bytes.
pub(crate) struct MappedSegments(HashMap<u64, (Arc<Mapping>, u64)>);

/// Opened memory in a slab. It keeps the segment mapped.
pub(crate) struct SlabMemory {
    segment: Arc<Mapping>,
    offset: u64,
}

impl MappedSegments {
    /// Creates a set of one segment.
    pub(crate) fn one(number: u64, mapping: Mapping, length: u64) -> Self {
        Self(HashMap::from([(number, (Arc::new(mapping), length))]))
    }

    /// Opens a handle. Returns `None` if its bytes are not in a mapped segment.
    #[inline]
    pub(crate) fn open(&self, bytes: &[u8; SlabHandle::SIZE]) -> Option<SlabMemory> {
        let handle = SlabHandle::parse(bytes);
        let (segment, length) = self.0.get(&handle.segment)?;
        let end = handle.offset.checked_add(handle.length)?;
        (end <= *length).then(|| SlabMemory {
            segment: Arc::clone(segment),
            offset: handle.offset,
        })
    }
}

impl SlabMemory {
    /// Reads the first eight bytes.
    pub(crate) fn first_word(&self) -> u64 {
        self.segment.region().read(self.offset as usize / 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::memfd;

    #[test]
    fn only_handles_inside_a_segment_open() {
        let file = memfd::create(8192).unwrap();
        let mapping = Mapping::shared(&file, 8192).unwrap();
        mapping.region().write(512, 5);
        let segments = MappedSegments::one(9, mapping, 8192);
        let opened = segments.open(&SlabHandle::get(9, 4096, 4096)).unwrap();
        assert_eq!(opened.first_word(), 5);
        assert!(segments.open(&SlabHandle::get(9, 4096, 4097)).is_none());
        assert!(segments.open(&SlabHandle::get(8, 0, 1)).is_none());
    }
}
