//! Memory pools keep their memory separate, stay within their limits, and report their use
//! correctly.

use crate::failure::Verdict;
use crate::harness::Harness;
use crate::suite::PASSED;
use crate::{Transfer, pattern};
use crosshandle::memory::MemoryPool;
use crosshandle::{AllocationOptions, Error, MemoryKind, memory::MemoryPoolOptions};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// A pool's memory of all kinds can be shared like any other memory.
pub(crate) fn their_memory_is_shared(harness: &Harness) -> Verdict {
    let (context, transfer) = harness.transfer()?;
    let peer = harness.peer()?;
    let pool = MemoryPool::new(&context, MemoryPoolOptions::new());
    let kinds = [MemoryKind::Device, MemoryKind::Host, MemoryKind::Shared];
    for (seed, kind) in (1..).zip(kinds) {
        let memory = pool.allocate_with(AllocationOptions::new(10_000).kind(kind))?;
        assert_eq!(memory.kind(), Some(kind));
        transfer.write(&memory, 0, &pattern(seed, 10_000))?;
        peer.ask(format!("open-memory m {}", memory.handle()?))?;
        peer.ask(format!("check m 0 {seed} 10000"))?;
        // The importer keeps the memory after the exporter frees it.
        drop(memory);
        drop(pool.allocate(10_000)?);
        peer.ask(format!("check m 0 {seed} 10000"))?;
        peer.ask("close m")?;
    }
    PASSED
}

/// A pool shares no page with other memory of the context.
pub(crate) fn they_share_no_page(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let unit = context.device().info().granularity;
    let pools = [(); 2].map(|()| MemoryPool::new(&context, MemoryPoolOptions::new()));
    let mut pages = [Vec::new(), Vec::new(), Vec::new()];
    let mut all = Vec::new();
    for _ in 0..100 {
        all.push(context.allocate(100)?);
        pages[2].push(all.last().expect("just added").as_ptr().addr() / unit);
        for (pool, pages) in pools.iter().zip(&mut pages) {
            all.push(pool.allocate(100)?);
            pages.push(all.last().expect("just added").as_ptr().addr() / unit);
        }
    }
    for (place, own) in pages.iter().enumerate() {
        let others = pages[place + 1..].iter().flatten();
        assert!(others.into_iter().all(|page| !own.contains(page)));
    }
    PASSED
}

/// The reported bytes, reserved and used, current and peak, match the allocations.
pub(crate) fn their_books_are_true(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let pool = MemoryPool::new(&context, MemoryPoolOptions::new());
    let usage = pool.usage();
    assert_eq!((usage.reserved, usage.used), (0, 0));
    let small = pool.allocate(4 * KIB)?;
    let large = pool.allocate(8 * MIB)?;
    let both = pool.usage();
    assert_eq!(both.used, 4 * KIB + 8 * MIB);
    assert!(both.reserved >= both.used);
    drop(large);
    let usage = pool.usage();
    assert_eq!((usage.used, usage.used_peak), (4 * KIB, both.used));
    // Freed memory is kept until the pool is trimmed.
    assert_eq!(usage.reserved, both.reserved);
    drop(pool.allocate(8 * MIB)?);
    assert_eq!(pool.usage().reserved_peak, both.reserved);
    pool.trim_to(0);
    let usage = pool.usage();
    assert!(usage.reserved >= 4 * KIB && usage.reserved <= both.reserved - 8 * MIB);
    assert_eq!(usage.reserved_peak, both.reserved);
    pool.reset_reserved_peak();
    pool.reset_used_peak();
    assert_eq!(pool.usage().reserved_peak, usage.reserved);
    assert_eq!(pool.usage().used_peak, 4 * KIB);
    drop(small);
    pool.trim_to(0);
    let usage = pool.usage();
    assert_eq!((usage.reserved, usage.used), (0, 0));
    // A trimmed pool works as before.
    let sizes = [100, 5 * KIB, 300 * KIB, 3 * MIB];
    let some = sizes.map(|len| pool.allocate(len));
    assert!(some.iter().all(Result::is_ok) && pool.usage().used > 3 * MIB);
    drop(some);
    pool.trim_to(0);
    assert_eq!(pool.usage().reserved, 0);
    PASSED
}

/// A pool never reserves more than its limit. It releases unused memory to stay below the limit.
pub(crate) fn their_limits_hold(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let limit = 16 * MIB;
    let pool = MemoryPool::new(&context, MemoryPoolOptions::new().limit(limit));
    assert_eq!(pool.limit(), limit);
    let large = pool.allocate(10 * MIB)?;
    let refused = pool.allocate(10 * MIB);
    assert!(
        matches!(refused, Err(Error::OutOfMemory { .. })),
        "{refused:?}"
    );
    drop(large);
    // The pool releases unused memory to make room for other sizes.
    drop(pool.allocate(12 * MIB)?);
    let mut small = Vec::new();
    let end = loop {
        match pool.allocate(100 * KIB) {
            Ok(memory) => small.push(memory),
            Err(error) => break error,
        }
        assert!(pool.usage().reserved <= limit, "{:?}", pool.usage());
    };
    assert!(matches!(end, Error::OutOfMemory { .. }), "{end}");
    assert!(small.len() * 100 * KIB > limit / 2, "{}", small.len());
    // This limit is below the usual size of a segment.
    let limit = (300 * KIB).max(context.device().info().granularity);
    let tiny = MemoryPool::new(&context, MemoryPoolOptions::new().limit(limit));
    drop(tiny.allocate(200 * KIB)?);
    assert!(tiny.usage().reserved <= limit);
    PASSED
}

/// A pool releases unused memory when it is told to keep less, and all memory when it is dropped.
pub(crate) fn they_keep_what_they_may(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let pool = MemoryPool::new(&context, MemoryPoolOptions::new().keep(0));
    drop(pool.allocate(8 * MIB)?);
    assert_eq!(pool.usage().reserved, 0);
    pool.set_kept(64 * MIB);
    drop(pool.allocate(8 * MIB)?);
    assert_eq!((pool.kept(), pool.usage().reserved), (64 * MIB, 8 * MIB));
    let each = MemoryPool::new(&context, MemoryPoolOptions::new().keep_each(4 * MIB));
    drop((each.allocate(8 * MIB)?, each.allocate(4 * MIB)?));
    assert_eq!(each.usage().reserved, 4 * MIB);
    // Allocations outlive their pool.
    let transfer = Transfer::new(&context)?;
    let memory = pool.allocate(10_000)?;
    drop((pool, each));
    transfer.write(&memory, 0, &pattern(1, 10_000))?;
    transfer.check(&memory, 0, 1, 10_000)?;
    PASSED
}
