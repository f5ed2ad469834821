//! The life of a large segment whose pages were never touched before.

use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Result, ensure};
use crosshandle::Context;

use super::ours;
use crate::harness::link::Link;
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::procfs::{machine_available_memory, machine_shared_memory};
use crate::harness::region::Region;
use crate::harness::scenario::{Participant, Scenario};
use crate::harness::timing::{drop_once, once};
use crate::raw::memfd::{self, Mapping, Pages};
use crate::report::row::{RowSpec, Target};

/// Maximum change of the machine's shared memory by other programs during a round, in bytes.
///
/// A round frees 1 GiB, so a quarter of that separates a failure to free from noise.
const SHARED_MEMORY_NOISE_BYTES: u64 = 256 << 20;

const CREATE: &str = "cold.create";
const READ: &str = "cold.read";
const CLOSE: &str = "cold.close";
const FREE: &str = "cold.free";
const TOTAL: &str = "cold.total";
const READ_ALL: &str = "cold.read-all";

pub(crate) static SCENARIO: Scenario = Scenario {
    name: "cold",
    followers: 1,
    cores: 1,
    limit: Duration::from_secs(180),
    rows: &[
        row(
            CREATE,
            "1 GiB, cold: create, write to each page",
            Target::AtMostTimesRaw(0.3),
        ),
        row(
            READ,
            "1 GiB, cold: importer reads a word of each page",
            Target::AtMostTimesRaw(0.3),
        ),
        row(
            CLOSE,
            "1 GiB, cold: importer closes",
            Target::AtMostTimesRaw(0.3),
        ),
        row(
            FREE,
            "1 GiB, cold: exporter frees",
            Target::AtMostTimesRaw(0.3),
        ),
        row(
            TOTAL,
            "1 GiB, cold: sum of the four",
            Target::AtMostTimesRaw(0.3),
        ),
        row(
            READ_ALL,
            "1 GiB, cold: importer reads every byte",
            Target::None,
        ),
    ],
    leader: run_leader,
    follower: run_follower,
};

const fn row(id: &'static str, what: &'static str, target: Target) -> RowSpec {
    RowSpec::time(id, what, "memfd with 4 KiB pages", target)
}

const SEGMENT_BYTES: usize = 1 << 30;
/// Number of rounds that are not recorded. A virtual machine may receive its own memory at the
/// first touch.
const WARM_UP_ROUNDS: usize = 1;

fn rounds(participant: &Participant) -> usize {
    WARM_UP_ROUNDS + participant.plan.rounds()
}

/// Touches and frees more memory than a round needs.
///
/// A virtual machine may have returned free memory to its host. The next process that touches such
/// memory waits for the host, for tenths of a second. After this call the machine has the memory,
/// so a round measures only this system.
fn claim_free_memory() -> Result<()> {
    // The kernel keeps small and huge pages in different lists.
    for pages in [Pages::Small, Pages::Huge] {
        let memory = Mapping::private(SEGMENT_BYTES + SEGMENT_BYTES / 2, pages)?;
        memory.region().touch_pages(1);
    }
    Ok(())
}

/// Returns the value of each page's first word.
fn token(round: usize) -> u64 {
    round as u64 + 1
}

/// Times that the importer measured, in nanoseconds.
struct ImporterTimes {
    /// Reading a word of each page.
    read: f64,
    /// Reading a word of each page, and then all words.
    read_all: f64,
    close: f64,
}

impl ImporterTimes {
    fn send(&self, link: &Link) -> Result<()> {
        let numbers = [self.read, self.read_all, self.close].map(f64::to_le_bytes);
        link.send(numbers.as_flattened())
    }

    fn receive(link: &Link) -> Result<Self> {
        let bytes: [u8; 24] = link.receive_array()?;
        let (numbers, _) = bytes.as_chunks();
        let number = |index: usize| f64::from_le_bytes(numbers[index]);
        Ok(Self {
            read: number(0),
            read_all: number(1),
            close: number(2),
        })
    }
}

fn run_leader(participant: &Participant) -> Result<Outcome> {
    participant.plan.pin(0)?;
    let available = machine_available_memory()?;
    ensure!(
        available > 2 * SEGMENT_BYTES as u64,
        "needs 2 GiB of free memory, and {} MiB are available",
        available >> 20
    );
    let link = participant.peer()?;
    let context = ours::unpooled_context()?;
    let mut recorder = Recorder::default();
    for round in 0..rounds(participant) {
        for side in Side::order(round) {
            claim_free_memory()?;
            let before = machine_shared_memory()?;
            let (create, importer, free) = match side {
                Side::Ours => export_ours(&context, link, round)?,
                Side::Raw => export_raw(link, round)?,
            };
            // Remaining memory would mean that freeing was incomplete, and that the next round is
            // not cold.
            let after = machine_shared_memory()?;
            ensure!(
                after < before + SHARED_MEMORY_NOISE_BYTES,
                "{} MiB of shared memory are left after freeing 1 GiB",
                after.saturating_sub(before) >> 20
            );
            if round < WARM_UP_ROUNDS {
                continue;
            }
            recorder.push(CREATE, side, create);
            recorder.push(READ, side, importer.read);
            recorder.push(READ_ALL, side, importer.read_all);
            recorder.push(CLOSE, side, importer.close);
            recorder.push(FREE, side, free);
            recorder.push(TOTAL, side, create + importer.read + importer.close + free);
        }
    }
    Ok(recorder.finish())
}

fn export_ours(context: &Context, link: &Link, round: usize) -> Result<(f64, ImporterTimes, f64)> {
    let (memory, create) = once(0.0, || -> Result<_> {
        let memory = context.allocate(SEGMENT_BYTES)?;
        ours::region(&memory).touch_pages(token(round));
        Ok(memory)
    })?;
    link.send(memory.handle()?.as_bytes())?;
    let importer = ImporterTimes::receive(link)?;
    Ok((create, importer, drop_once(0.0, memory)))
}

fn export_raw(link: &Link, round: usize) -> Result<(f64, ImporterTimes, f64)> {
    let ((file, mapping), create) = once(0.0, || -> Result<_> {
        let file = memfd::create(SEGMENT_BYTES)?;
        let mapping = Mapping::shared_small_pages(&file, SEGMENT_BYTES)?;
        mapping.region().touch_pages(token(round));
        Ok((file, mapping))
    })?;
    link.send_with(b"raw", &[file.as_fd()])?;
    let importer = ImporterTimes::receive(link)?;
    // The fields of a tuple are dropped in their order.
    Ok((create, importer, drop_once(0.0, (mapping, file))))
}

fn run_follower(participant: &Participant) -> Result<Outcome> {
    participant.plan.pin(1)?;
    let link = participant.peer()?;
    let context = ours::context()?;
    for round in 0..rounds(participant) {
        for side in Side::order(round) {
            let message = link.receive()?;
            let importer = match side {
                Side::Ours => {
                    let memory = ours::open_memory(&context, &message.bytes)?;
                    measure(memory, ours::region, round)?
                }
                Side::Raw => {
                    let mapping =
                        Mapping::shared_small_pages(message.descriptor()?, SEGMENT_BYTES)?;
                    measure(mapping, Mapping::region, round)?
                }
            };
            importer.send(link)?;
        }
    }
    Ok(Outcome::default())
}

/// Reads the region of `memory`, and closes `memory`.
fn measure<T>(memory: T, region: impl Fn(&T) -> Region<'_>, round: usize) -> Result<ImporterTimes> {
    let words = region(&memory);
    let expected = token(round).wrapping_mul(SEGMENT_BYTES as u64 / 4096);
    let read_pages = || -> Result<u64> { Ok(words.read_pages()) };
    let (pages, read) = once(0.0, read_pages)?;
    // SAFETY: the exporter does not write until it has received the times.
    let read_every_byte = || -> Result<u64> { Ok(unsafe { words.sum() }) };
    let (sum, rest) = once(0.0, read_every_byte)?;
    ensure!(
        pages == expected && sum == expected,
        "the importer does not read what the exporter wrote"
    );
    // The time of reading everything includes the first pass, because the second pass finds the
    // pages mapped.
    Ok(ImporterTimes {
        read,
        read_all: read + rest,
        close: drop_once(0.0, memory),
    })
}
