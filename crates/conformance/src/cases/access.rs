//! Cases about access rights to memory, and about the host's views of it.

use super::memory::KINDS;
use crate::failure::Verdict;
use crate::harness::{Harness, deadline};
use crate::pattern;
use crate::procfs;
use crate::suite::PASSED;
use crosshandle::{AllocationOptions, Error};
use std::sync::atomic::Ordering;

/// The number of the signal SIGSEGV.
const FAULT: i32 = 11;

/// A read-only handle opens read-only, and any other handle can be opened read-only.
pub(crate) fn read_only_is_enforced(harness: &Harness) -> Verdict {
    if !harness.capabilities().read_only_memory {
        return Ok(crate::Outcome::Skipped("read_only_memory"));
    }
    let (context, transfer) = harness.transfer()?;
    let peer = harness.peer()?;
    for len in [10_000, 5_000_000] {
        let memory = context.allocate(len)?;
        transfer.write(&memory, 0, &pattern(1, 10_000))?;
        let handle = memory.handle_read_only()?;
        assert!(handle.is_read_only());
        peer.refused(format!("open-memory m {handle}"), "ReadOnly")?;
        for handle in [handle, memory.handle()?] {
            let words = peer.ask(format!("open-memory m {handle} read-only=yes"))?;
            assert_eq!(words[2], "read-only");
            peer.ask("check m 0 1 10000")?;
            peer.refused("try-write m", "ReadOnly")?;
            peer.ask("allocate own 10000")?;
            peer.ask("queue q")?;
            peer.refused("submit q fill m 7", "ReadOnly")?;
            // The opened memory is the exporter's memory, not a copy.
            transfer.write(&memory, 0, &pattern(2, 10_000))?;
            peer.ask("check m 0 2 10000")?;
            transfer.write(&memory, 0, &pattern(1, 10_000))?;
        }
        // A read-only open does not prevent a later writable open.
        peer.ask(format!("open-memory w {}", memory.handle()?))?;
        peer.ask("write w 0 3 100")?;
        peer.ask("check m 0 3 100")?;
    }
    PASSED
}

/// Memory that is open read-only is mapped read-only: a write to it faults.
pub(crate) fn read_only_mapping_cannot_be_written(harness: &Harness) -> Verdict {
    if !harness.capabilities().read_only_memory {
        return Ok(crate::Outcome::Skipped("read_only_memory"));
    }
    let (context, transfer) = harness.transfer()?;
    for (kind, _) in KINDS {
        for len in [1_000, 5_000_000] {
            let memory = context.allocate_with(AllocationOptions::new(len).kind(kind))?;
            let faults = memory.bytes().is_ok();
            transfer.write(&memory, 0, &pattern(1, 1_000))?;
            for handle in [memory.handle_read_only()?, memory.handle()?] {
                let peer = harness.peer()?;
                let words = peer.ask(format!("open-memory m {handle} read-only=yes"))?;
                if faults {
                    let protection = procfs::protection(peer.pid(), words[0].parse()?)?;
                    assert_eq!(protection.as_deref(), Some("r--s"));
                }
                let refused = peer.ask("poke m 0").expect_err("it wrote");
                if faults {
                    assert_eq!(refused.kind, "Ended", "{refused}");
                    assert_eq!(peer.ended_by_signal()?, FAULT);
                } else {
                    assert_ne!(refused.kind, "Late", "{refused}");
                }
            }
            transfer.check(&memory, 0, 1, 1_000)?;
            // The same write succeeds on memory that is open for writing.
            let peer = harness.peer()?;
            peer.ask(format!("open-memory m {}", memory.handle()?))?;
            peer.ask("poke m 0")?;
            assert_eq!(transfer.read(&memory, 0, 1)?, [0x5A]);
        }
    }
    PASSED
}

/// Memory has views of typed elements, and of words that several processes change atomically.
pub(crate) fn typed_and_atomic_views(harness: &Harness) -> Verdict {
    const EACH: u64 = 200_000;
    let context = harness.context()?;
    let (one, two) = (harness.peer()?, harness.peer()?);
    let memory = context.allocate_with(AllocationOptions::new(64).kind(harness.host_kind()))?;
    memory.typed::<u32>()?.write(0, &[0; 16])?;
    let handle = memory.handle()?;
    let mut adding = Vec::new();
    for peer in [&one, &two] {
        peer.ask(format!("open-memory m {handle}"))?;
        adding.push(peer.begin(format!("add m {EACH}")));
    }
    let words = memory.bytes()?.atomics()?;
    for _ in 0..EACH {
        words[0].fetch_add(1, Ordering::Relaxed);
    }
    for peer in adding {
        peer.reply(deadline())?;
    }
    assert_eq!(words[0].load(Ordering::Relaxed), 3 * EACH);
    let typed = memory.typed::<u64>()?;
    assert_eq!(
        (typed.len(), typed.get(0), typed.get(8)),
        (8, Some(3 * EACH), None)
    );
    typed.set(7, u64::MAX)?;
    assert!(typed.set(8, 0).is_err());
    let view = context.open_memory_read_only(&handle)?;
    assert_eq!(view.typed::<u64>()?.get(7), Some(u64::MAX));
    assert!(matches!(view.bytes()?.atomics(), Err(Error::ReadOnly)));
    assert!(matches!(
        view.typed::<u64>()?.set(0, 1),
        Err(Error::ReadOnly)
    ));
    // An unaligned part, and a part whose size is not a multiple of the element's size.
    let odd = context.open_memory(&memory.handle_at(4)?)?;
    assert!(matches!(odd.typed::<u64>(), Err(Error::InvalidArgument(_))));
    assert_eq!(odd.typed::<u32>()?.len(), 15);
    PASSED
}
