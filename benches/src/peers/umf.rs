//! The Unified Memory Framework (UMF): its provider of shared memory of the system, under its
//! scalable pool.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use libloading::Library;

use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::{Participant, Scenario, no_follower};
use crate::harness::timing::{collect_timed, drop_timed, per_operation};
use crate::host::ours;
use crate::report::row::{RowSpec, Target, rows};

const NAME: &str = "UMF, scalable pool of shared memory";
const CREATE: &str = "umf.create";
const OPEN: &str = "umf.open";
const CLOSE: &str = "umf.close";

pub(super) static HANDLES: Scenario = Scenario {
    name: "umf",
    followers: 1,
    cores: 1,
    limit: Duration::from_secs(120),
    rows: rows! {
        CREATE => "allocate 4 KiB and get a handle", NAME, AtMostTimesRaw(1.0);
        OPEN => "open memory, segment mapped", NAME, AtMostTimesRaw(1.2);
        CLOSE => "close memory", NAME, AtMostTimesRaw(1.2);
    },
    leader: export,
    follower: import,
};

static SIZES: [(usize, &str); 3] = [
    (4 << 10, "umf-recycle.4KiB"),
    (64 << 10, "umf-recycle.64KiB"),
    (2 << 20, "umf-recycle.2MiB"),
];

pub(super) static RECYCLE: Scenario = Scenario {
    name: "umf-recycle",
    followers: 0,
    cores: 1,
    limit: Duration::from_secs(60),
    rows: &[
        size(SIZES[0], "allocate and free 4 KiB"),
        size(SIZES[1], "allocate and free 64 KiB"),
        size(SIZES[2], "allocate and free 2 MiB"),
    ],
    leader: recycle,
    follower: no_follower,
};

const fn size((bytes, id): (usize, &'static str), what: &'static str) -> RowSpec {
    RowSpec::time(id, what, NAME, Target::AtMostTimesRaw(1.0)).bytes(bytes as u64)
}

/// Number of objects in one batch. The handles of both libraries fit into one message each.
const OBJECTS: usize = 250;
const BYTES: usize = 4096;
/// Number of batches before recording. They fill the pools and map the segments.
const WARM_UP: usize = 3;
const CYCLES: usize = 10_000;

/// UMF's functions that are measured. Each returns 0 if it succeeds.
#[derive(Clone, Copy)]
struct Functions {
    malloc: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int,
    get: unsafe extern "C" fn(*const c_void, *mut *mut c_void, *mut usize) -> c_int,
    put: unsafe extern "C" fn(*mut c_void) -> c_int,
    open: unsafe extern "C" fn(*mut c_void, *mut c_void, *mut *mut c_void) -> c_int,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

/// A pool of UMF. It lives until the process ends.
#[derive(Clone, Copy)]
struct Pool {
    functions: Functions,
    pool: *mut c_void,
    /// The object by which handles of such pools are opened.
    handler: *mut c_void,
}

fn load() -> Result<&'static Library> {
    // SAFETY: UMF's initialisers have no requirements.
    let library = unsafe { Library::new("libumf.so.1") };
    Ok(Box::leak(Box::new(library.context("no UMF")?)))
}

/// Returns UMF's version, or `None` if UMF is not installed.
pub(super) fn version() -> Option<String> {
    let library = load().ok()?;
    // SAFETY: this is the function's type in `umf.h`.
    let version =
        unsafe { library.get::<unsafe extern "C" fn() -> c_int>(b"umfGetCurrentVersion") };
    // SAFETY: the function has no requirements.
    let version = unsafe { version.ok()?() };
    Some(format!("{}.{}", version >> 16, version & 0xffff))
}

fn check(what: &str, code: c_int) -> Result<()> {
    ensure!(code == 0, "UMF's {what} returned {code}");
    Ok(())
}

impl Pool {
    fn new() -> Result<Self> {
        type Ops = unsafe extern "C" fn() -> *const c_void;
        type Make = unsafe extern "C" fn(*const c_void, *const c_void, *mut *mut c_void) -> c_int;
        type MakePool = unsafe extern "C" fn(
            *const c_void,
            *mut c_void,
            *const c_void,
            u32,
            *mut *mut c_void,
        ) -> c_int;
        type Out = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
        type Set = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;
        type Handler = unsafe extern "C" fn(*mut c_void, *mut *mut c_void) -> c_int;
        /// `UMF_MEM_MAP_SHARED`.
        const SHARED: c_int = 2;
        /// `UMF_POOL_CREATE_FLAG_OWN_PROVIDER`.
        const OWNS_PROVIDER: u32 = 1;

        let library = load()?;
        let (mut params, mut provider) = (ptr::null_mut(), ptr::null_mut());
        let (mut pool, mut handler) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the types are those of UMF's headers. Each call gets what an earlier call made,
        // and places for results.
        unsafe {
            let create = library.get::<Out>(b"umfOsMemoryProviderParamsCreate")?;
            check("parameters", create(&mut params))?;
            let visible = library.get::<Set>(b"umfOsMemoryProviderParamsSetVisibility")?;
            check("visibility", visible(params, SHARED))?;
            let ops = library.get::<Ops>(b"umfOsMemoryProviderOps")?();
            let make = library.get::<Make>(b"umfMemoryProviderCreate")?;
            check("provider", make(ops, params, &mut provider))?;
            let ops = library.get::<Ops>(b"umfScalablePoolOps")?();
            let make = library.get::<MakePool>(b"umfPoolCreate")?;
            let none = ptr::null();
            check("pool", make(ops, provider, none, OWNS_PROVIDER, &mut pool))?;
            let get = library.get::<Handler>(b"umfPoolGetIPCHandler")?;
            check("handler", get(pool, &mut handler))?;
            Ok(Self {
                functions: Functions {
                    malloc: *library.get(b"umfPoolMalloc")?,
                    free: *library.get(b"umfPoolFree")?,
                    get: *library.get(b"umfGetIPCHandle")?,
                    put: *library.get(b"umfPutIPCHandle")?,
                    open: *library.get(b"umfOpenIPCHandle")?,
                    close: *library.get(b"umfCloseIPCHandle")?,
                },
                pool,
                handler,
            })
        }
    }

    #[inline]
    fn allocate(self, bytes: usize) -> Result<Block> {
        // SAFETY: the pool exists.
        let address = unsafe { (self.functions.malloc)(self.pool, bytes) };
        let address = NonNull::new(address).context("UMF has no memory")?;
        Ok(Block {
            pool: self,
            address,
        })
    }

    #[inline]
    fn open(self, handle: &mut [u64]) -> Result<Opened> {
        let mut address = ptr::null_mut();
        // SAFETY: another process got the handle from UMF, and keeps its memory. The words are
        // aligned like UMF's own structure.
        let code = unsafe {
            (self.functions.open)(self.handler, handle.as_mut_ptr().cast(), &mut address)
        };
        check("open", code)?;
        let address = NonNull::new(address).context("UMF opened nothing")?;
        Ok(Opened {
            pool: self,
            address,
        })
    }
}

/// Memory of a pool.
struct Block {
    pool: Pool,
    address: NonNull<c_void>,
}

impl Block {
    /// Returns UMF's handle, which is released when dropped.
    #[inline]
    fn handle(&self) -> Result<BlockHandle> {
        let (mut handle, mut bytes) = (ptr::null_mut(), 0);
        // SAFETY: the address is that of an allocation of UMF.
        let code =
            unsafe { (self.pool.functions.get)(self.address.as_ptr(), &mut handle, &mut bytes) };
        check("handle", code)?;
        Ok(BlockHandle {
            pool: self.pool,
            handle,
            bytes,
        })
    }

    fn write(&self, token: u64) {
        // SAFETY: the memory has 4 KiB, is aligned to at least 16 bytes, and no other process
        // accesses it yet.
        unsafe { self.address.cast::<u64>().write(token) }
    }
}

impl Drop for Block {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the address is that of an allocation of this pool, which is freed once.
        unsafe { (self.pool.functions.free)(self.pool.pool, self.address.as_ptr()) };
    }
}

struct BlockHandle {
    pool: Pool,
    handle: *mut c_void,
    bytes: usize,
}

impl BlockHandle {
    fn to_bytes(&self) -> Vec<u8> {
        // SAFETY: UMF returned the size with the handle.
        let bytes = unsafe { std::slice::from_raw_parts(self.handle.cast::<u8>(), self.bytes) };
        bytes.to_vec()
    }
}

impl Drop for BlockHandle {
    fn drop(&mut self) {
        // SAFETY: UMF returned the handle, which is released once.
        unsafe { (self.pool.functions.put)(self.handle) };
    }
}

/// Opened memory of another process.
struct Opened {
    pool: Pool,
    address: NonNull<c_void>,
}

impl Opened {
    fn first_word(&self) -> u64 {
        // SAFETY: the memory has 4 KiB, and its exporter wrote the word before it sent the handle.
        unsafe { self.address.cast::<u64>().read() }
    }
}

impl Drop for Opened {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: UMF opened this address, which is closed once.
        unsafe { (self.pool.functions.close)(self.address.as_ptr()) };
    }
}

/// Returns the outcome of a machine without UMF.
fn absent(rows: &[RowSpec], error: &anyhow::Error) -> Outcome {
    let mut recorder = Recorder::default();
    for row in rows {
        recorder.absent(row.id, format!("{error:#}"));
    }
    recorder.finish()
}

fn batches(participant: &Participant) -> usize {
    WARM_UP + participant.plan.pick(200, 20)
}

fn token(batch: usize, index: usize) -> u64 {
    (batch * OBJECTS + index) as u64 + 1
}

fn export(participant: &Participant) -> Result<Outcome> {
    participant.plan.pin(0)?;
    let link = participant.peer()?;
    let pool = match Pool::new() {
        Ok(pool) => pool,
        Err(error) => {
            link.send(b"")?;
            return Ok(absent(HANDLES.rows, &error));
        }
    };
    link.send(b"UMF")?;
    let context = ours::context()?;
    let mut recorder = Recorder::default();
    for batch in 0..batches(participant) {
        let (mut memory, mut blocks) = (Vec::new(), Vec::new());
        for side in Side::order(batch) {
            let each = match side {
                Side::Ours => {
                    let made = (0..OBJECTS).map(|_| {
                        let memory = context.allocate(BYTES)?;
                        let handle = memory.handle()?;
                        Ok((memory, handle))
                    });
                    let (made, each) = collect_timed(made)?;
                    memory = made;
                    each
                }
                Side::Raw => {
                    let made = (0..OBJECTS).map(|_| {
                        let block = pool.allocate(BYTES)?;
                        let handle = block.handle()?;
                        Ok((block, handle))
                    });
                    let (made, each) = collect_timed(made)?;
                    blocks = made;
                    each
                }
            };
            if batch >= WARM_UP {
                recorder.push(CREATE, side, each);
            }
        }
        for (index, ((memory, _), (block, _))) in memory.iter().zip(&blocks).enumerate() {
            ours::region(memory).write(0, token(batch, index));
            block.write(token(batch, index));
        }
        let handles: Vec<_> = memory
            .iter()
            .flat_map(|(_, handle)| *handle.as_bytes())
            .collect();
        link.send(&handles)?;
        link.send(
            &blocks
                .iter()
                .flat_map(|(_, handle)| handle.to_bytes())
                .collect::<Vec<_>>(),
        )?;
        // The exporter frees nothing before the importer has closed it.
        link.await_number(batch as u64)?;
        // UMF requires that a handle is released before its memory is freed.
        for (block, handle) in blocks {
            drop(handle);
            drop(block);
        }
    }
    Ok(recorder.finish())
}

fn import(participant: &Participant) -> Result<Outcome> {
    participant.plan.pin(1)?;
    let link = participant.peer()?;
    if link.receive()?.bytes.is_empty() {
        return Ok(Outcome::default());
    }
    let (context, pool) = (ours::context()?, Pool::new()?);
    let mut recorder = Recorder::default();
    for batch in 0..batches(participant) {
        let (ours, theirs) = (link.receive()?.bytes, link.receive()?.bytes);
        let words = theirs
            .as_chunks()
            .0
            .iter()
            .map(|word| u64::from_ne_bytes(*word));
        let mut words: Vec<u64> = words.collect();
        let each = words.len() / OBJECTS;
        ensure!(
            each * 8 * OBJECTS == theirs.len(),
            "UMF's handles have odd sizes"
        );
        let mut push = |row, side, time| {
            if batch >= WARM_UP {
                recorder.push(row, side, time);
            }
        };
        for side in Side::order(batch) {
            let is_right = |index, word| word == token(batch, index);
            match side {
                Side::Ours => {
                    let handles = ours::each_memory(&ours);
                    let opened = handles.map(|bytes| ours::open_memory(&context, bytes));
                    let (opened, time) = collect_timed(opened)?;
                    push(OPEN, side, time);
                    for (index, memory) in opened.iter().enumerate() {
                        ensure!(is_right(index, ours::region(memory).read(0)), "wrong bytes");
                    }
                    push(CLOSE, side, drop_timed(opened));
                }
                Side::Raw => {
                    let opened = words.chunks_exact_mut(each).map(|handle| pool.open(handle));
                    let (opened, time) = collect_timed(opened)?;
                    push(OPEN, side, time);
                    for (index, memory) in opened.iter().enumerate() {
                        ensure!(is_right(index, memory.first_word()), "UMF has wrong bytes");
                    }
                    push(CLOSE, side, drop_timed(opened));
                }
            }
        }
        link.send_number(batch as u64)?;
    }
    Ok(recorder.finish())
}

fn recycle(participant: &Participant) -> Result<Outcome> {
    participant.plan.pin(0)?;
    let pool = match Pool::new() {
        Ok(pool) => pool,
        Err(error) => return Ok(absent(RECYCLE.rows, &error)),
    };
    let context = ours::context()?;
    let mut recorder = Recorder::default();
    for round in 0..participant.plan.rounds() {
        for (length, row) in SIZES {
            for side in Side::order(round) {
                // The first batch fills the pool.
                for batch in 0..=participant.plan.pick(10, 3) {
                    let elapsed = per_operation(CYCLES, || -> Result<()> {
                        match side {
                            Side::Ours => drop(context.allocate(length)?),
                            Side::Raw => drop(pool.allocate(length)?),
                        }
                        Ok(())
                    })?;
                    if batch > 0 {
                        recorder.push(row, side, elapsed);
                    }
                }
            }
        }
    }
    Ok(recorder.finish())
}
