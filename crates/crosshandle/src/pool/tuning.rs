//! Constants of pools.

use std::time::Duration;

/// Smallest block, in bytes, for which huge pages are requested when it is carved. Programs mostly
/// use blocks of this size as a whole, and populating them page by page is several times slower.
pub(super) const HUGE_PAGE_BLOCK_BYTES: usize = 256 << 10;

/// Maximum number of bytes of freed large segments that a context's own pool keeps for reuse.
/// Larger values save system calls. Smaller values leave more memory to other programs.
pub(super) const KEPT_TOTAL_BYTES: usize = 256 << 20;

/// Largest freed segment, in bytes, that a context's own pool keeps. It is a quarter of
/// [`KEPT_TOTAL_BYTES`], so that one segment does not displace all others.
pub(super) const KEPT_EACH_BYTES: usize = 64 << 20;

/// Smallest block, in bytes. It is a cache line, so that neighbouring blocks in different processes
/// do not share one.
pub(super) const SMALLEST_BLOCK_BYTES: usize = 64;

/// Block size, in bytes, from which there are four sizes for each doubling. At most a fifth of such
/// a block is wasted. Below it there is one size for each doubling, because more sizes would save
/// hardly any memory.
pub(super) const FINE_BLOCK_BYTES: usize = 4 << 10;

/// Largest block, in bytes. It is a huge page. Larger allocations get a segment of their own, which
/// costs a system call.
pub(super) const LARGEST_BLOCK_BYTES: usize = 2 << 20;

/// Number of blocks of one size that are taken from a shared segment at once. Larger values reduce
/// contention for the segment. Smaller values reserve less memory for rarely used sizes.
pub(super) const SPAN_BLOCKS: usize = 8;

/// Interval at which pools with much free memory are checked. Free blocks that were not used for a
/// whole interval lose their pages. A program that reuses blocks more slowly than that touches
/// fresh pages each time.
pub(super) const AGEING_INTERVAL: Duration = Duration::from_millis(500);

/// Free bytes of one block size up to which a pool is not checked. Larger values spare more
/// programs the thread that checks. Smaller values keep less memory in programs that use many
/// sizes.
pub(super) const UNWATCHED_BYTES: usize = 512 << 10;

/// Smallest block, in bytes, whose pages are returned to the system while its segment is in use.
/// Smaller blocks are too many to sort, and rarely cover whole pages.
pub(super) const SMALLEST_RELEASED_BYTES: usize = 1 << 10;

/// Number of bytes freed before the pool searches for an empty segment again. A search looks at all
/// free blocks.
pub(super) const SEARCH_STEP_BYTES: usize = 4 << 20;

/// Smallest allocation of the host, in bytes, that is compared with the memory that the machine has
/// left. The comparison takes about 50 µs.
pub(super) const CHECKED_BYTES: usize = 32 << 20;
