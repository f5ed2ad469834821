//! Reads the files of hostile peers. A hostile exporter sends the catalog, the ledger and the event
//! arena, and a hostile importer writes to its ledger. Descriptors have any kind, size and seals,
//! and files have any contents.
//!
//! The descriptors are created for each input, which is slow. The contents are written to files
//! that stay open.

#![no_main]

use crosshandle_fuzz::{Catalog, Ledger, arena_len, open_arena};
use libfuzzer_sys::fuzz_target;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{
    MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create, open,
};
use rustix::io::pwrite;
use rustix::pipe::pipe;
use std::os::fd::{AsRawFd, OwnedFd};

/// Number of chunks of a context.
const CHUNKS: usize = 6;
/// Number of chunks whose contents are tested. The first one has a header, and all others are
/// alike.
const TRIED: usize = 2;
/// The first record of each tested chunk, and the first record after them.
const FIRST: [u32; TRIED + 1] = [0, 1 << 10, 1 << 12];
/// Maximum number of sleepers that a ledger lists.
const SLEEPERS: usize = 126;
/// The word at the start of a chunk's catalog that identifies the file.
const MAGIC: &[u8; 8] = b"XHCATLG3";

/// The files of one chunk. The hostile side writes them, and the honest side maps them.
struct Files {
    catalog: OwnedFd,
    ledger: OwnedFd,
    catalog_view: Catalog,
    ledger_view: Ledger,
}

impl Files {
    fn new(chunk: usize) -> Self {
        let catalog = memory(Catalog::file_len(chunk), SEALS);
        let ledger = memory(Ledger::file_len(chunk), SEALS);
        write(&catalog, 0, MAGIC);
        Self {
            catalog_view: Catalog::open(&catalog, chunk).expect("a good file"),
            ledger_view: Ledger::open(&ledger, chunk).expect("a good file"),
            catalog,
            ledger,
        }
    }
}

thread_local! {
    static FILES: [Files; TRIED] = std::array::from_fn(Files::new);
}

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

fn memory(len: u64, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("fuzz", flags).expect("memory");
    // The system's limits may refuse the size.
    let _ = ftruncate(&file, len);
    fcntl_add_seals(&file, seals).expect("sealed");
    file
}

fn write(file: &OwnedFd, at: u64, bytes: &[u8]) {
    assert_eq!(pwrite(file, bytes, at), Ok(bytes.len()));
}

fuzz_target!(|data: &[u8]| {
    let Some((mode, data)) = data.split_first() else {
        return;
    };
    if mode % 4 == 0 {
        descriptor(data);
    } else {
        let chunk = usize::from(mode / 4) % TRIED;
        FILES.with(|files| contents(&files[chunk], chunk, data));
    }
});

/// Opens a descriptor as each kind of file. Only the correct kind may succeed.
fn descriptor(data: &[u8]) {
    let Some(([kind, seals, shape, rest @ ..], bytes)) = data.split_first_chunk::<12>() else {
        return;
    };
    let chunk = usize::from(*shape) % CHUNKS;
    let slots = match shape / 8 {
        0 => 1,
        more => usize::from(more) * 64,
    };
    let lens = [
        Catalog::file_len(chunk),
        Ledger::file_len(chunk),
        arena_len(slots),
    ];
    let near = lens[usize::from(*kind / 64) % lens.len()];
    let word = u64::from_le_bytes(rest[..8].try_into().expect("eight bytes"));
    let len = match kind / 16 % 4 {
        0..2 => near,
        2 => near.wrapping_add(word % 8192).wrapping_sub(4096),
        _ => word >> 1,
    };
    let seals = SealFlags::from_bits_truncate(u32::from(*seals) & 0x1f);
    let file = match kind % 16 {
        0 => open("/dev/zero", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).expect("/dev/zero"),
        1 => eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor"),
        2 => pipe().expect("a pipe").0,
        3 => open("/", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).expect("a directory"),
        4 => memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("memory"),
        form => {
            let file = memory(len, SealFlags::empty());
            let magic = if form % 2 == 0 { &MAGIC[..] } else { bytes };
            let _ = pwrite(&file, &magic[..magic.len().min(4096)], 0);
            fcntl_add_seals(&file, seals).expect("sealed");
            match form {
                5 | 6 => {
                    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
                    open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).expect("its own")
                }
                _ => file,
            }
        }
    };
    let is_memory = *kind % 16 > 4 && seals.contains(SealFlags::SHRINK);
    let may_be = |wanted: u64| is_memory && len == wanted;
    if let Ok(catalog) = Catalog::open(&file, chunk) {
        assert!(may_be(lens[0]), "no catalog");
        let (record, owner) = (word as u32, (word >> 32) as u16);
        check_text(&catalog.name(record), 32);
        let _ = (
            catalog.generation(record),
            catalog.peer(if chunk == 0 { owner } else { 0 }),
        );
    }
    if let Ok(ledger) = Ledger::open(&file, chunk) {
        assert!(may_be(lens[1]), "no ledger");
        let _ = ledger.is_open(word as u32);
        if chunk == 0 {
            assert!(ledger.sleepers() <= SLEEPERS);
        }
    }
    if open_arena(&file, slots).is_ok() {
        assert!(may_be(lens[2]), "no arena");
    }
}

/// Writes to the files of one chunk, and reads them as the honest side does.
fn contents(files: &Files, chunk: usize, mut data: &[u8]) {
    let mut written = Vec::new();
    while let Some(([which, offset @ .., len, act], rest)) = data.split_first_chunk::<6>() {
        let (bytes, rest) = rest.split_at(rest.len().min(usize::from(*len)));
        data = rest;
        let offset = u64::from(u32::from_le_bytes([offset[0], offset[1], offset[2], 0]));
        let (file, file_len) = match which % 2 {
            0 => (&files.catalog, Catalog::file_len(chunk)),
            _ => (&files.ledger, Ledger::file_len(chunk)),
        };
        let at = offset % (file_len - bytes.len() as u64);
        write(file, at, bytes);
        written.push((file, at, bytes.len()));
        read(files, chunk, *act, (which / 2, offset as u32));
    }
    // Clears the written bytes, so that the next input starts from the same contents.
    for (file, at, len) in written {
        write(file, at, &[0; 256][..len]);
    }
    write(&files.ledger, 0, &[0; 4096]);
    write(&files.catalog, 0, MAGIC);
}

fn read(files: &Files, chunk: usize, act: u8, (small, large): (u8, u32)) {
    let (catalog, ledger) = (&files.catalog_view, &files.ledger_view);
    let record = match act & 0x80 {
        0 => FIRST[chunk] + large % (FIRST[chunk + 1] - FIRST[chunk]),
        _ => large.wrapping_mul(0x9e37_79b9),
    };
    let is_here = (FIRST[chunk]..FIRST[chunk + 1]).contains(&record);
    match act % 8 {
        0 => {
            let name = catalog.name(record);
            assert!(is_here || name.is_empty(), "{name:?} is not in this chunk");
            check_text(&name, 32);
        }
        1 if chunk == 0 => {
            let owner = (large % 4096) as u16;
            if let Some((_, program, _)) = catalog.peer(owner) {
                check_text(&program, 16);
            }
        }
        2 => {
            let now = catalog.generation(record);
            assert_eq!(now.is_some(), is_here);
            let before = ledger.count(record);
            let wanted = now.unwrap_or(0);
            assert_eq!(
                ledger.open_and_close(catalog, record, wanted),
                now.map(|_| true)
            );
            let stale = wanted.wrapping_add(4);
            assert_eq!(
                ledger.open_and_close(catalog, record, stale),
                now.map(|_| false)
            );
            assert_eq!(ledger.count(record), before);
            assert_eq!(
                ledger.is_open(record),
                before.is_some_and(|count| count != 0)
            );
        }
        3 if chunk == 0 => assert!(ledger.sleepers() <= SLEEPERS),
        4 if chunk == 0 => {
            let since = u64::from(large) + 1;
            if let Some(index) = ledger.enter(record, large, u64::from(small), since) {
                assert!(index < SLEEPERS && ledger.sleepers() >= 1);
                if small % 2 == 0 {
                    ledger.leave(index);
                }
            }
        }
        5 => ledger.leave(large as usize),
        6 if chunk == 0 => {
            let _ = ledger.add_copied(u64::MAX - u64::from(small));
        }
        7 => {
            let found = catalog.sealed_handle(record, [small; 16]);
            assert!(is_here || found.is_none(), "{found:?} is not in this chunk");
            assert!(found.is_none_or(|(_, _, handle)| handle.len() <= 96));
        }
        _ => {}
    }
}

/// Checks a text that a peer may have chosen, of at most `most` bytes. Each replaced byte becomes
/// three bytes.
fn check_text(text: &str, most: usize) {
    assert!(text.len() <= 3 * most, "{text:?}");
    assert!(!text.chars().any(char::is_control), "{text:?}");
}
