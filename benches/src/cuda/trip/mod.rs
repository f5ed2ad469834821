//! Round trips: a signal starts in one process, passes a stream of another one, and comes back.

mod kinds;
mod ours;
pub(super) mod peer;
mod raw;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result, ensure};

use super::too_few_gpus;
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::Seat;
use crate::harness::timing::{clock_cost, once};
use crate::raw::cuda::{Gpu, Page};
use crate::raw::memfd;
use crate::report::row::RowSpec;
pub(crate) use kinds::{
    ONE_GPU, ONE_GPU_BATCHES, ONE_GPU_NATIVE, TWO_GPUS, TWO_GPUS_DEVICE_WORDS, TWO_GPUS_NATIVE,
};

/// The route of one trip. The other process's stream always waits for the signal and sends it back,
/// with commands that were submitted before the trip starts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Route {
    /// From a stream of this process, back to that stream, and then to the host.
    Back,
    /// From a stream of this process, back to the host.
    ToHost,
    /// From the host, back to the host.
    Echo,
}

/// The technique with which the library is compared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rival {
    /// Counters in a page of host memory that both processes have registered.
    Page,
    /// Counters in such a page, with all operations of one end in one call.
    Batches,
    /// Counters in device memory: each GPU waits for a word in its own memory.
    DeviceWords,
    /// The driver's inter-process events, with a message that an event was recorded.
    Native,
}

/// One arrangement of GPUs, technique and routes.
struct Kind {
    /// Index of the answering process's GPU. The other process uses GPU 0.
    gpu: usize,
    rival: Rival,
    /// Each route with its rows.
    routes: &'static [(Route, &'static [&'static str])],
    rows: &'static [RowSpec],
}

/// The side of the process where trips start.
trait Lead {
    fn go(&mut self, route: Route) -> Result<()>;
}

/// The side of the process that sends signals back.
trait Hand {
    /// Answers the next `count` trips of a route, and calls `ready` as soon as they may start.
    fn answer(&mut self, route: Route, count: usize, ready: &mut dyn FnMut()) -> Result<()>;
}

/// Number of trips for which the answering process submits its commands at once. Few, so that no
/// buffer of the driver fills up behind the wait.
pub(super) const BATCH: usize = 8;
/// Number of unmeasured batches of each turn.
const WARM_UP: usize = 2;

impl Kind {
    /// Returns the number of pairs of words or events: one for each route.
    fn pairs(&self) -> usize {
        self.routes.len()
    }

    /// Returns the index of a route's pair.
    fn pair(&self, route: Route) -> Result<usize> {
        let mut routes = self.routes.iter();
        routes
            .position(|(other, _)| *other == route)
            .context("not a route of this scenario")
    }

    fn batches(&self, seat: &Seat, side: Side) -> usize {
        let batches = match (self.rival, side) {
            // The raw technique is slow.
            (Rival::Native, Side::Raw) => seat.plan.pick(8, 4),
            _ => seat.plan.pick(40, 20),
        };
        WARM_UP + batches
    }
}

/// Offsets on the page of the two words that keep both processes in step, in bytes.
const READY: usize = 0;
const TAKEN: usize = 256;
/// Offset of the first pair's words, and distance of one word from the next, in bytes.
const PAIRS: usize = 512;
const STEP: usize = 256;

/// The words that keep both processes in step: the hand is ready for a batch of trips, the lead has
/// taken it.
struct Step {
    ready: &'static AtomicU64,
    taken: &'static AtomicU64,
    batch: u64,
}

impl Step {
    fn on(page: &Page) -> Result<Self> {
        Ok(Self {
            ready: page.word(READY)?,
            taken: page.word(TAKEN)?,
            batch: 0,
        })
    }
}

/// Polls a word until it has reached a value.
fn watch(word: &AtomicU64, value: u64) {
    let mut looks = 0_u32;
    while word.load(Ordering::Acquire) < value {
        looks += 1;
        // The other process may need this CPU to make progress.
        if looks.is_multiple_of(1024) {
            std::thread::yield_now();
        }
        std::hint::spin_loop();
    }
}

fn lead(seat: &Seat, kind: &'static Kind) -> Result<Outcome> {
    if let Some(outcome) = too_few_gpus(kind.gpu + 1, kind.rows)? {
        return Ok(outcome);
    }
    let link = seat.peer()?;
    let gpu = Gpu::open(0)?;
    let file = memfd::create(Page::LENGTH)?;
    link.send_with(b"page", &[file.as_fd()])?;
    let page = Page::register(&gpu, &file)?;
    let mut ours = ours::Lead::new(kind, link)?;
    let mut rival = raw::lead(kind, &gpu, &page, link)?;
    ensure!(
        link.receive_number()? == 0,
        "the other process is not ready"
    );
    seat.plan.pin(0)?;

    let mut step = Step::on(&page)?;
    let clock = clock_cost();
    let mut recorder = Recorder::default();
    for round in 0..seat.plan.rounds() {
        for (route, rows) in kind.routes {
            for side in Side::turns(round) {
                let track: &mut dyn Lead = match side {
                    Side::Ours => &mut ours,
                    Side::Raw => &mut *rival,
                };
                for batch in 0..kind.batches(seat, side) {
                    step.batch += 1;
                    watch(step.ready, step.batch);
                    for _ in 0..BATCH {
                        let ((), elapsed) = once(clock, || track.go(*route))?;
                        if batch >= WARM_UP {
                            for row in *rows {
                                recorder.push(row, side, elapsed);
                            }
                        }
                    }
                    step.taken.store(step.batch, Ordering::Release);
                }
            }
        }
    }
    Ok(recorder.finish())
}

fn hand(seat: &Seat, kind: &'static Kind) -> Result<Outcome> {
    if too_few_gpus(kind.gpu + 1, kind.rows)?.is_some() {
        return Ok(Outcome::default());
    }
    let link = seat.peer()?;
    let gpu = Gpu::open(kind.gpu)?;
    let message = link.receive()?;
    let file: &OwnedFd = message
        .descriptors
        .first()
        .context("expected a descriptor")?;
    let page = Page::register(&gpu, file)?;
    let mut ours = ours::Hand::new(kind, link)?;
    let mut rival = raw::hand(kind, &gpu, &page, link)?;
    link.send_number(0)?;
    seat.plan.pin(1)?;

    let mut step = Step::on(&page)?;
    for round in 0..seat.plan.rounds() {
        for (route, _) in kind.routes {
            for side in Side::turns(round) {
                let track: &mut dyn Hand = match side {
                    Side::Ours => &mut ours,
                    Side::Raw => &mut *rival,
                };
                for _ in 0..kind.batches(seat, side) {
                    step.batch += 1;
                    let mut ready = || step.ready.store(step.batch, Ordering::Release);
                    track.answer(*route, BATCH, &mut ready)?;
                    watch(step.taken, step.batch);
                }
            }
        }
    }
    Ok(Outcome::default())
}
