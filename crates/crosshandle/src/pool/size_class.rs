//! Sizes of blocks.

use crosshandle_os::mapping::HUGE_PAGE;

/// Smallest block, in bytes. It is a cache line, so that neighbouring blocks in different processes
/// do not share one.
const SMALLEST: usize = 64;

/// Block size, in bytes, from which there are four sizes for each doubling. At most a fifth of such
/// a block is wasted. Below it there is one size for each doubling, because more sizes would save
/// hardly any memory.
const FINE: usize = 4 << 10;

/// Largest block, in bytes. It is a huge page. Larger allocations get a segment of their own, which
/// costs a system call.
const LARGEST: usize = 2 << 20;

/// Number of blocks of one size that are taken from a shared segment at once. Larger values reduce
/// contention for the segment. Smaller values reserve less memory for rarely used sizes.
const SPAN_BLOCKS: usize = 8;

/// The number of sizes below [`FINE`]. Each size is twice the one before.
const COARSE_COUNT: usize = (FINE.ilog2() - SMALLEST.ilog2()) as usize;
const DEDICATED: u8 = u8::MAX;

/// A size of blocks, or the size of a dedicated segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SizeClass {
    index: u8,
    size: usize,
}

impl SizeClass {
    /// The number of block sizes.
    pub(crate) const COUNT: usize =
        COARSE_COUNT + 4 * (LARGEST.ilog2() - FINE.ilog2()) as usize + 1;

    /// Returns the smallest block size for `len` bytes at an alignment, if a block can be that
    /// large.
    #[inline]
    pub(crate) fn for_block(len: usize, align: usize) -> Option<Self> {
        let wanted = len.max(align).max(SMALLEST);
        if wanted > LARGEST {
            return None;
        }
        let mut index = Self::index_for(wanted);
        // A block is aligned to the largest power of two that divides its size, so the next power
        // of two always fits.
        // A mask, because the compiler does not know that the alignment is a power of two, and a
        // division takes longer than the rest of this function.
        while Self::size_of(index) & (align - 1) != 0 {
            index += 1;
        }
        Some(Self {
            index: index as u8,
            size: Self::size_of(index),
        })
    }

    /// Returns the class of a dedicated segment of `size` bytes.
    pub(crate) fn dedicated(size: usize) -> Self {
        Self {
            index: DEDICATED,
            size,
        }
    }

    fn index_for(len: usize) -> usize {
        if len <= FINE {
            let doublings = len.next_power_of_two().ilog2() - SMALLEST.ilog2();
            return doublings as usize;
        }
        let below = (len - 1).ilog2();
        let quarter = ((len - 1) >> (below - 2)) & 3;
        COARSE_COUNT + 4 * (below - FINE.ilog2()) as usize + quarter + 1
    }

    pub(super) fn size_of(index: usize) -> usize {
        if index <= COARSE_COUNT {
            return SMALLEST << index;
        }
        let fine = index - COARSE_COUNT;
        (FINE << (fine / 4)) / 4 * (4 + fine % 4)
    }

    /// Returns the index of the block size; `None` for a dedicated segment.
    #[inline]
    pub(crate) fn index(self) -> Option<usize> {
        (self.index != DEDICATED).then_some(usize::from(self.index))
    }

    /// Returns the size of a block in bytes.
    #[inline]
    pub(crate) fn size(self) -> usize {
        self.size
    }

    /// Returns the number of bytes that are taken from a shared segment at once.
    pub(crate) fn span(self) -> usize {
        (self.size * SPAN_BLOCKS)
            .next_multiple_of(HUGE_PAGE)
            .min(8 * LARGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_gets_the_smallest_block_that_holds_it() {
        let sizes: Vec<_> = (0..SizeClass::COUNT).map(SizeClass::size_of).collect();
        assert!(sizes.is_sorted());
        assert_eq!(sizes.first(), Some(&SMALLEST));
        assert_eq!(sizes.last(), Some(&LARGEST));
        for len in (1..20_000).chain((20_000..=LARGEST).step_by(997)) {
            let class = SizeClass::for_block(len, 1).expect("small enough");
            let best = sizes.iter().copied().find(|size| *size >= len);
            assert_eq!(Some(class.size()), best, "for {len} bytes");
        }
        assert_eq!(SizeClass::for_block(LARGEST + 1, 1), None);
    }

    #[test]
    fn blocks_have_the_alignment_asked_for() {
        for shift in 0..=21 {
            let align = 1 << shift;
            for len in [1, 65, 4097, 5 << 10, 700_000] {
                let class = SizeClass::for_block(len, align).expect("small enough");
                assert!(class.size().is_multiple_of(align) && class.size() >= len);
            }
        }
    }

    #[test]
    fn spans_hold_blocks_and_keep_huge_pages_whole() {
        for index in 0..SizeClass::COUNT {
            let size = SizeClass::size_of(index);
            let class = SizeClass::for_block(size, 1).expect("a block size");
            assert_eq!(class.index(), Some(index));
            assert!(class.span() >= size && class.span().is_multiple_of(HUGE_PAGE));
        }
    }
}
