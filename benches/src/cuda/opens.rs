//! The time to open device memory of another process.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use crosshandle::handle::MEMORY_HANDLE_SIZE;

use super::ours;
use super::rows::too_few_gpus;
use crate::harness::link::Link;
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::{Participant, Scenario};
use crate::harness::timing::{clock_cost, drop_once, once, per_operation};
use crate::host::ours::open_memory;
use crate::raw::cuda::{
    Gpu, IPC_MEMORY_SIZE, LegacyMemory, Mapped, Memory, POOL_POINTER_SIZE, Physical, Pool, Stream,
};
use crate::raw::descriptor::{self, OfferedDescriptors};
use crate::report::row::{RowSpec, Target, rows};

const MEMORY_BYTES: usize = 64 << 20;

/// The GPUs of the two processes, and the rows.
struct Arrangement {
    /// The importer's GPU. The exporter uses GPU 0.
    gpu: usize,
    rows: &'static [RowSpec],
    first: &'static str,
    first_legacy: &'static str,
    first_pool: &'static str,
    again: &'static str,
    close: &'static str,
    close_legacy: &'static str,
}

const RAW: &str = "descriptor requested over a socket, cuMemImportFromShareableHandle, \
                   cuMemAddressReserve, cuMemMap, cuMemSetAccess";
const RAW_CLOSE: &str = "cuMemUnmap, cuMemAddressFree, cuMemRelease";
const POOL: &str = "cuMemPoolImportPointer, as cuda.core does; its pool is imported";
const LEGACY: &str = "cuIpcOpenMemHandle";
const LEGACY_CLOSE: &str = "cuIpcCloseMemHandle";

/// Creates the scenario of an arrangement.
macro_rules! opens {
    (
        $scenario:ident, $name:literal, $gpus:literal, gpu: $gpu:literal,
        first: $first:expr, pool: $pool:expr, again: $again:expr
    ) => {
        pub(crate) static $scenario: Scenario = {
            static OPENS: Arrangement = Arrangement {
                gpu: $gpu,
                rows: rows! {
                    concat!($name, ".first") => concat!("first open of 64 MiB, ", $gpus),
                        RAW, $first;
                    concat!($name, ".first-legacy") =>
                        concat!("first open of 64 MiB, ", $gpus, ", compared with legacy handles"),
                        LEGACY, None;
                    concat!($name, ".first-pool") =>
                        concat!("first open of 64 MiB, ", $gpus, ", compared with a pool"),
                        POOL, $pool;
                    concat!($name, ".again") => concat!("open 64 MiB again, ", $gpus),
                        "none", $again;
                    concat!($name, ".close") => concat!("close 64 MiB, ", $gpus), RAW_CLOSE, None;
                    concat!($name, ".close-legacy") =>
                        concat!("close 64 MiB, ", $gpus, ", compared with legacy handles"),
                        LEGACY_CLOSE, None;
                },
                first: concat!($name, ".first"),
                first_legacy: concat!($name, ".first-legacy"),
                first_pool: concat!($name, ".first-pool"),
                again: concat!($name, ".again"),
                close: concat!($name, ".close"),
                close_legacy: concat!($name, ".close-legacy"),
            };
            Scenario {
                name: $name,
                followers: 1,
                cores: 2,
                limit: Duration::from_secs(60),
                rows: OPENS.rows,
                leader: |participant| run_leader(participant, &OPENS),
                follower: |participant| run_follower(participant, &OPENS),
            }
        };
    };
}

opens!(
    ONE_GPU, "cuda-open", "one GPU", gpu: 0,
    first: Target::AtMostTimesRaw(1.0), pool: Target::AtMostTimesRaw(1.0),
    again: Target::AtMost(1000.0)
);
opens!(
    TWO_GPUS, "cuda-open2", "two GPUs", gpu: 1,
    first: Target::AtMostTimesRaw(1.0), pool: Target::None, again: Target::None
);

/// Number of allocations that are not recorded. The first one also connects.
const WARM_UP_ALLOCATIONS: usize = 2;
/// How often memory that is already open is opened again, for each allocation.
const REPEATED_OPENS: usize = 100;
/// Number under which the raw exporter offers the memory that is measured.
const MEASURED: u64 = 0;
/// Number under which the raw exporter offers the memory that wakes its thread.
///
/// Each side opens such memory directly before the measured memory, and keeps it open during the
/// measurement. Otherwise the exporter's threads would sleep, and the first mapping of another
/// GPU's memory takes a millisecond.
const WARMING: u64 = 1;
const WARMING_BYTES: usize = 2 << 20;

fn objects(participant: &Participant) -> usize {
    WARM_UP_ALLOCATIONS + participant.plan.pick(41, 15)
}

/// Returns the first eight bytes of allocation `index`, which contain a four-byte number twice.
fn token(index: usize) -> u64 {
    let word = index as u64 + 1;
    word << 32 | word
}

fn run_leader(participant: &Participant, arrangement: &Arrangement) -> Result<Outcome> {
    if let Some(outcome) = too_few_gpus(arrangement.gpu + 1, arrangement.rows)? {
        return Ok(outcome);
    }
    let link = participant.peer()?;
    let gpu = Gpu::open(0)?;
    let stream = Stream::create(&gpu)?;
    let context = ours::unpooled_context(0)?;
    let queue = context.create_queue()?;
    let (exporter, importer) = Link::pair()?;
    let pool = Pool::create(&gpu)?;
    link.send_with(b"raw", &[importer.as_fd(), pool.export()?.as_fd()])?;
    drop(importer);
    // The pool's memory is kept, so that no address of the importer is opened twice.
    let mut pooled = Vec::new();
    let offers = OfferedDescriptors::default();
    offers.serve(exporter.into())?;
    for index in 0..objects(participant) {
        let word = u32::try_from(token(index) & 0xffff_ffff)?;
        let physical = Physical::create(&gpu, MEMORY_BYTES)?;
        offers.add(MEASURED, physical.export()?);
        let mapped = physical.map(MEMORY_BYTES)?;
        mapped.set_first_word(&stream, word)?;
        let legacy = Memory::allocate(&gpu, MEMORY_BYTES)?;
        legacy.fill(&stream, word)?;
        let memory = context.allocate(MEMORY_BYTES)?;
        ours::set_first_word(&queue, &memory, token(index))?;
        let warming = context.allocate(WARMING_BYTES)?;
        let raw_warming = Physical::create(&gpu, WARMING_BYTES)?;
        offers.add(WARMING, raw_warming.export()?);
        let mut message = memory.handle()?.as_bytes().to_vec();
        message.extend(warming.handle()?.as_bytes());
        message.extend(legacy.export()?);
        let of_pool = pool.allocate(&stream, MEMORY_BYTES, word)?;
        message.extend(of_pool.export()?);
        pooled.push(of_pool);
        link.send(&message)?;
        link.await_number(index as u64)?;
        drop(mapped);
    }
    Ok(Outcome::default())
}

fn run_follower(participant: &Participant, arrangement: &Arrangement) -> Result<Outcome> {
    if too_few_gpus(arrangement.gpu + 1, arrangement.rows)?.is_some() {
        return Ok(Outcome::default());
    }
    let link = participant.peer()?;
    let gpu = Gpu::open(arrangement.gpu)?;
    let context = ours::context(arrangement.gpu)?;
    let queue = context.create_queue()?;
    let [socket, pool]: [OwnedFd; 2] = (link.receive()?.descriptors)
        .try_into()
        .map_err(|_| anyhow!("expected a socket and a pool"))?;
    let stream = Stream::create(&gpu)?;
    let pool = Pool::import(&gpu, pool)?;
    let clock = clock_cost();
    let mut recorder = Recorder::default();
    for index in 0..objects(participant) {
        let message = link.receive()?.bytes;
        ensure!(
            message.len() == 2 * MEMORY_HANDLE_SIZE + IPC_MEMORY_SIZE + POOL_POINTER_SIZE,
            "expected four handles"
        );
        let (handle, others) = message.split_at(MEMORY_HANDLE_SIZE);
        let (warming, others) = others.split_at(MEMORY_HANDLE_SIZE);
        let (legacy, of_pool) = others.split_at(IPC_MEMORY_SIZE);
        let legacy: [u8; IPC_MEMORY_SIZE] = legacy.try_into()?;
        let of_pool: [u8; POOL_POINTER_SIZE] = of_pool.try_into()?;
        let mut figures = Recorder::default();
        for side in Side::order(index) {
            match side {
                Side::Ours => {
                    let _warming = open_memory(&context, warming)?;
                    let (memory, opened) = once(clock, || open_memory(&context, handle))?;
                    ours::check(ours::first_word(&context, &queue, &memory)?, token(index))?;
                    let mut again = Vec::with_capacity(REPEATED_OPENS);
                    let each = per_operation(REPEATED_OPENS, || {
                        again.push(open_memory(&context, handle)?);
                        anyhow::Ok(())
                    })?;
                    drop(again);
                    let closed = drop_once(clock, memory);
                    for row in [
                        arrangement.first,
                        arrangement.first_legacy,
                        arrangement.first_pool,
                    ] {
                        figures.push(row, side, opened);
                    }
                    for row in [arrangement.close, arrangement.close_legacy] {
                        figures.push(row, side, closed);
                    }
                    figures.push(arrangement.again, side, each);
                }
                Side::Raw => {
                    let _warming = open_raw(&gpu, socket.as_fd(), WARMING, WARMING_BYTES)?;
                    let open = || open_raw(&gpu, socket.as_fd(), MEASURED, MEMORY_BYTES);
                    let (memory, opened) = once(clock, open)?;
                    ours::check(memory.first_word()?, token(index))?;
                    let closed = drop_once(clock, memory);
                    figures.push(arrangement.first, side, opened);
                    figures.push(arrangement.close, side, closed);
                    let (memory, opened) = once(clock, || LegacyMemory::open(&gpu, legacy))?;
                    ours::check(memory.first_word()?, token(index))?;
                    let closed = drop_once(clock, memory);
                    figures.push(arrangement.first_legacy, side, opened);
                    figures.push(arrangement.close_legacy, side, closed);
                    let (memory, opened) = once(clock, || pool.open(&stream, of_pool))?;
                    ours::check(memory.first_word()?, token(index))?;
                    figures.push(arrangement.first_pool, side, opened);
                }
            }
        }
        if index >= WARM_UP_ALLOCATIONS {
            recorder.absorb(figures);
        }
        link.send_number(index as u64)?;
    }
    Ok(recorder.finish())
}

/// Opens memory that the raw exporter offers under `number`.
fn open_raw(gpu: &Gpu, socket: BorrowedFd<'_>, number: u64, length: usize) -> Result<Mapped> {
    let descriptor = descriptor::request(socket, number)?;
    Physical::import(gpu, descriptor)?.map(length)
}
