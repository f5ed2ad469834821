//! Round trips: a signal starts in the leader, passes through a stream of the follower, and
//! returns.

mod arrangements;
mod ours;
mod raw;

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result};

use super::rows::too_few_gpus;
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::Participant;
use crate::harness::timing::{clock_cost, once};
use crate::raw::cuda::{Gpu, Page};
use crate::raw::memfd;
use crate::report::row::RowSpec;
pub(crate) use arrangements::{ONE_GPU, ONE_GPU_NATIVE, TWO_GPUS, TWO_GPUS_NATIVE};

/// Number of reads of a word after which a spinning process yields its processor once.
///
/// The other process may need this processor. Fewer reads make each read slower. More reads delay
/// the other process if both share a processor.
const LOOKS_PER_YIELD: u32 = 1024;

/// The start and the end of a trip.
///
/// In between, a stream of the follower waits for the signal and signals back. Its commands are
/// submitted before the trip starts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Route {
    /// From a stream of the leader, back to that stream, and then to the host.
    Back,
    /// From a stream of the leader, back to the host.
    ToHost,
    /// From the host, back to the host.
    Echo,
}

/// The raw technique with which the library is compared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rival {
    /// Counters in a page of host memory that both processes have registered.
    Page,
    /// The driver's inter-process events, with a message after each record.
    Native,
}

/// The GPUs of the two processes, the raw technique, and the rows.
struct Arrangement {
    /// The follower's GPU. The leader uses GPU 0.
    gpu: usize,
    rival: Rival,
    routes: &'static [Route],
    /// The second part of a row's identifier names its route.
    rows: &'static [RowSpec],
}

impl Route {
    /// Returns the name of the route in the identifiers of rows.
    fn name(self) -> &'static str {
        match self {
            Self::Back => "back",
            Self::ToHost => "to-host",
            Self::Echo => "echo",
        }
    }
}

/// One technique's part in the process in which trips start and end.
trait TripStarter {
    /// Starts a trip and waits for its end.
    fn run_trip(&mut self, route: Route) -> Result<()>;
}

/// One technique's part in the process that signals back.
trait TripAnswerer {
    /// Replies to the next `count` trips of a route. Calls `ready` as soon as the trips may start.
    fn answer(&mut self, route: Route, count: usize, ready: &mut dyn FnMut()) -> Result<()>;
}

/// Number of trips whose commands the follower submits together. It is small enough that no queue
/// of the driver becomes full behind the wait.
const TRIPS_PER_BATCH: usize = 8;
/// Number of batches per side and round that are not recorded.
const WARM_UP_BATCHES: usize = 2;

impl Arrangement {
    /// Returns the number of pairs of words or events. Each route has its own pair.
    fn pairs(&self) -> usize {
        self.routes.len()
    }

    /// Returns the index of a route's pair.
    fn pair(&self, route: Route) -> Result<usize> {
        let mut routes = self.routes.iter();
        routes
            .position(|other| *other == route)
            .context("not a route of this scenario")
    }

    fn rows(&self, route: Route) -> impl Iterator<Item = &'static str> {
        let ids = self.rows.iter().map(|row| row.id);
        ids.filter(move |id| id.split('.').nth(1) == Some(route.name()))
    }

    /// Returns the number of batches of one side in one round.
    fn batches(&self, participant: &Participant, side: Side) -> usize {
        let batches = match (self.rival, side) {
            // The driver's own events are slow.
            (Rival::Native, Side::Raw) => participant.plan.pick(8, 4),
            _ => participant.plan.pick(40, 20),
        };
        WARM_UP_BATCHES + batches
    }
}

/// Offset on the page of the word with the latest batch that the follower is ready for, in bytes.
const READY_OFFSET: usize = 0;
/// Offset on the page of the word with the latest batch that the leader has finished, in bytes.
const FINISHED_OFFSET: usize = 256;
/// Offset on the page of the pairs' words, in bytes.
const PAIRS_OFFSET: usize = 512;
/// Distance between the words of two pairs, in bytes.
const WORD_STRIDE_BYTES: usize = 256;

/// The words that keep both processes in the same batch.
struct BatchBarrier {
    ready: &'static AtomicU64,
    finished: &'static AtomicU64,
    batch: u64,
}

impl BatchBarrier {
    fn on(page: &Page) -> Result<Self> {
        Ok(Self {
            ready: page.word(READY_OFFSET)?,
            finished: page.word(FINISHED_OFFSET)?,
            batch: 0,
        })
    }
}

fn spin_until(word: &AtomicU64, value: u64) {
    let mut looks = 0_u32;
    while word.load(Ordering::Acquire) < value {
        looks += 1;
        // The other process may need this CPU to make progress.
        if looks.is_multiple_of(LOOKS_PER_YIELD) {
            std::thread::yield_now();
        }
        std::hint::spin_loop();
    }
}

fn run_leader(participant: &Participant, arrangement: &'static Arrangement) -> Result<Outcome> {
    if let Some(outcome) = too_few_gpus(arrangement.gpu + 1, arrangement.rows)? {
        return Ok(outcome);
    }
    let link = participant.peer()?;
    let gpu = Gpu::open(0)?;
    let file = memfd::create(Page::LENGTH)?;
    link.send_with(b"page", &[file.as_fd()])?;
    let page = Page::register(&gpu, &file)?;
    let mut ours = ours::Leader::new(arrangement, link)?;
    let mut rival = raw::technique(arrangement, &gpu, &page, link, true)?;
    link.await_number(0)?;
    participant.plan.pin(0)?;

    let mut barrier = BatchBarrier::on(&page)?;
    let clock = clock_cost();
    let mut recorder = Recorder::default();
    for round in 0..participant.plan.rounds() {
        for route in arrangement.routes {
            for side in Side::order(round) {
                let starter: &mut dyn TripStarter = match side {
                    Side::Ours => &mut ours,
                    Side::Raw => &mut *rival,
                };
                for batch in 0..arrangement.batches(participant, side) {
                    barrier.batch += 1;
                    spin_until(barrier.ready, barrier.batch);
                    for _ in 0..TRIPS_PER_BATCH {
                        let ((), elapsed) = once(clock, || starter.run_trip(*route))?;
                        if batch >= WARM_UP_BATCHES {
                            for row in arrangement.rows(*route) {
                                recorder.push(row, side, elapsed);
                            }
                        }
                    }
                    barrier.finished.store(barrier.batch, Ordering::Release);
                }
            }
        }
    }
    Ok(recorder.finish())
}

fn run_follower(participant: &Participant, arrangement: &'static Arrangement) -> Result<Outcome> {
    if too_few_gpus(arrangement.gpu + 1, arrangement.rows)?.is_some() {
        return Ok(Outcome::default());
    }
    let link = participant.peer()?;
    let gpu = Gpu::open(arrangement.gpu)?;
    let page = Page::register(&gpu, link.receive()?.descriptor()?)?;
    let mut ours = ours::Follower::new(arrangement, link)?;
    let mut rival = raw::technique(arrangement, &gpu, &page, link, false)?;
    link.send_number(0)?;
    participant.plan.pin(1)?;

    let mut barrier = BatchBarrier::on(&page)?;
    for round in 0..participant.plan.rounds() {
        for route in arrangement.routes {
            for side in Side::order(round) {
                let answerer: &mut dyn TripAnswerer = match side {
                    Side::Ours => &mut ours,
                    Side::Raw => &mut *rival,
                };
                for _ in 0..arrangement.batches(participant, side) {
                    barrier.batch += 1;
                    let mut ready = || barrier.ready.store(barrier.batch, Ordering::Release);
                    answerer.answer(*route, TRIPS_PER_BATCH, &mut ready)?;
                    spin_until(barrier.finished, barrier.batch);
                }
            }
        }
    }
    Ok(Outcome::default())
}
