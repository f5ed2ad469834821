//! Cases about copies between files and memory that is open in several processes.

use crate::failure::{Failure, Verdict};
use crate::harness::Harness;
use crate::suite::PASSED;
use crate::{Transfer, pattern};
use crosshandle::{AllocationOptions, Error, MemoryKind};
use std::fs::{self, File};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Length in bytes of several parts, of which the last one is short.
const LEN: usize = 9_000_003;

/// Bytes that one process reads from a file into memory are visible to another process, and the
/// reverse.
pub(crate) fn memory_goes_to_files_and_back(harness: &Harness) -> Verdict {
    let (context, peer) = harness.with_peer()?;
    let path = harness.directory().join("bytes");
    fs::write(&path, [vec![7; 100], pattern(1, LEN)].concat())?;
    for (kind, name) in super::memory::KINDS {
        let memory = context.allocate_with(AllocationOptions::new(LEN).kind(kind))?;
        peer.ask(format!("open-memory m {}", memory.handle()?))?;
        let done = AtomicUsize::new(0);
        memory.read_file(&context, .., &File::open(&path)?, 100, |bytes| {
            done.fetch_add(bytes, Ordering::Relaxed);
        })?;
        assert_eq!(done.into_inner(), LEN);
        peer.ask(format!("check m 0 1 {LEN}"))?;

        peer.ask(format!("allocate n {LEN} kind={name}"))?;
        peer.ask(format!("write n 0 2 {LEN}"))?;
        let handle = peer.ask("memory-handle n")?.remove(0).parse()?;
        let opened = context.open_memory_read_only(&handle)?;
        let copy = harness.directory().join("copy");
        fs::write(&copy, "head")?;
        let file = File::options().write(true).open(&copy)?;
        opened.write_file(&context, 1_000.., &file, 4, |_| {})?;
        let copied = fs::read(&copy)?;
        assert!(copied[..4] == *b"head" && copied[4..] == pattern(2, LEN)[1_000..]);
        // Reads a part of the file into a part of the memory.
        memory.read_file(
            &context,
            5_000_000..5_000_007,
            &File::open(&copy)?,
            4,
            |_| {},
        )?;
        let found = Transfer::new(&context)?.read(&memory, 4_999_999, 9)?;
        let (first, last) = (pattern(1, LEN), pattern(2, LEN));
        let around = (found[0], found[8]) == (first[4_999_999], first[5_000_007]);
        assert!(around && found[1..8] == last[1_000..1_007]);
        peer.ask("close m n")?;
    }
    PASSED
}

/// A file or a range that does not fit results in a clear error, and changes nothing.
pub(crate) fn what_does_not_fit_is_refused(harness: &Harness) -> Verdict {
    let (context, peer) = harness.with_peer()?;
    let memory = context.allocate_with(AllocationOptions::new(LEN).kind(MemoryKind::Device))?;
    let path = harness.directory().join("short");
    fs::write(&path, pattern(1, LEN - 1))?;
    let file = File::open(&path)?;
    let refused = |result: crosshandle::Result<()>, what: &str| match result {
        Err(Error::InvalidArgument(text)) if text.contains(what) => Ok(()),
        other => Err(Failure::new(format!("{what}: {other:?}"))),
    };
    refused(
        memory.read_file(&context, .., &file, 0, |_| {}),
        "1 bytes too early",
    )?;
    refused(
        memory.read_file(&context, ..LEN + 1, &file, 0, |_| {}),
        "not inside",
    )?;
    refused(
        memory.write_file(&context, LEN + 1.., &file, 0, |_| {}),
        "before its start or outside",
    )?;
    // A copy of no bytes succeeds.
    memory.read_file(&context, ..0, &file, u64::MAX, |_| {})?;
    // The file is open for reading only.
    fails!(memory.write_file(&context, .., &file, 0, |_| {}), Os);

    peer.ask(format!("open-memory m {}", memory.handle()?))?;
    peer.ask("write m 0 3 100")?;
    Transfer::new(&context)?.check(&memory, 0, 3, 100)?;
    peer.ask("allocate n 5000")?;
    let handle = peer.ask("memory-handle n")?.remove(0).parse()?;
    let opened = context.open_memory_read_only(&handle)?;
    fails!(opened.read_file(&context, .., &file, 0, |_| {}), ReadOnly);
    PASSED
}
