//! Constants of pools.

use std::time::Duration;

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

/// Time between two looks at pools that have much that is free. At half of it, programs that free and allocate
/// in turns more slowly than that touch fresh pages each time; at twice, free memory goes back that much later.
pub(super) const AGEING_INTERVAL: Duration = Duration::from_millis(500);

/// Free blocks of one size, in bytes, for which nothing looks at a pool. At half of it, more programs have a thread
/// look; at twice, a program with many sizes keeps that much more.
pub(super) const UNWATCHED_BYTES: usize = 512 << 10;

/// The smallest blocks whose pages go back one by one. At half of it, the thread that looks has twice the blocks to
/// sort, and hardly finds whole pages; at twice, pages of small blocks stay until their segment is empty.
pub(super) const SMALLEST_RELEASED_BYTES: usize = 1 << 10;

/// Bytes that are freed until an empty segment is looked for once more. At half of it, carving looks at all free
/// blocks more often; at twice, a segment that is empty is found later.
pub(super) const SEARCH_STEP_BYTES: usize = 4 << 20;

/// From this size on, an allocation of the host is compared with what the machine has left, which takes some
/// 50 µs. At half of it, more allocations take that long; at twice, larger ones succeed that cannot be used.
pub(super) const CHECKED_BYTES: usize = 32 << 20;
