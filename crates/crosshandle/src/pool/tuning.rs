//! Constants of pools.

/// Blocks of this size and more get huge pages when they are carved. At half of it, huge pages are
/// asked for on behalf of blocks that fill an eighth of one; at twice, blocks that are mostly used as a
/// whole fault in page by page, which is several times slower.
pub(super) const HUGE_PAGE_BLOCK_BYTES: usize = 256 << 10;

/// Freed large segments that a context's own pool keeps for reuse, in bytes. At half of it, programs
/// that free and allocate a few large buffers in turns go to the system each time; at twice, an idle
/// program holds more memory that others may need.
pub(super) const KEPT_TOTAL_BYTES: usize = 256 << 20;

/// The largest segment that a context's own pool keeps when it is freed: a quarter of what it keeps in
/// all, so that one does not displace all others. What applies to that holds here.
pub(super) const KEPT_EACH_BYTES: usize = 64 << 20;

/// The smallest block: a cache line, so that neighbours in different processes do not share one.
pub(super) const SMALLEST_BLOCK_BYTES: usize = 64;

/// From this size on there are four sizes of blocks for each doubling, so that at most a fifth is wasted.
/// At half of it there are four sizes more, of which hardly any memory is saved; at twice, blocks of a
/// page and a bit waste up to half.
pub(super) const FINE_BLOCK_BYTES: usize = 4 << 10;

/// The largest block: a huge page. Larger allocations get a segment of their own. At half of it, more
/// allocations cost a system call; at twice, a shared segment of 64 MiB holds few of the largest.
pub(super) const LARGEST_BLOCK_BYTES: usize = 2 << 20;

/// Blocks of one size that are taken from a shared segment at once. At half of it, threads that allocate
/// sizes in turns meet more often at the segment; at twice, rarely used sizes set more memory aside.
pub(super) const SPAN_BLOCKS: usize = 8;
