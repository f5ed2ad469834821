//! Round trips: something starts in one process, passes a stream of another one, and comes back.

mod arrangements;
mod ours;
pub(super) mod peer;
mod raw;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result, ensure};

use super::rows::too_few_gpus;
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::Participant;
use crate::harness::timing::{clock_cost, once};
use crate::raw::cuda::{Gpu, Page};
use crate::raw::memfd;
use crate::report::row::RowSpec;
pub(crate) use arrangements::{
    ONE_GPU, ONE_GPU_BATCHES, ONE_GPU_NATIVE, TWO_GPUS, TWO_GPUS_DEVICE_WORDS, TWO_GPUS_NATIVE,
};

/// The way of one trip. The other process's stream always waits for it and sends it back, with
/// commands that were submitted before the trip starts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Route {
    /// From a stream of this process, back to that stream, and then to the host.
    Back,
    /// From a stream of this process, back to the host.
    ToHost,
    /// From the host, back to the host.
    Echo,
}

/// What the library is compared with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rival {
    /// Counters in a page of host memory that both processes have registered.
    Page,
    /// The same, with all operations of one end in one call.
    Batches,
    /// Counters in device memory: each GPU waits for a word in its own memory.
    DeviceWords,
    /// The driver's inter-process events, with a message to say that one was recorded.
    Native,
}

/// One arrangement.
struct Arrangement {
    /// The GPU of the answering process; the other has 0.
    gpu: usize,
    rival: Rival,
    /// Each route with its rows.
    routes: &'static [(Route, &'static [&'static str])],
    rows: &'static [RowSpec],
}

/// The process where trips start.
trait TripStarter {
    fn run_trip(&mut self, route: Route) -> Result<()>;
}

/// The process that sends them back.
trait TripAnswerer {
    /// Sees to the next `count` trips of a route; calls `ready` as soon as they may start.
    fn answer(&mut self, route: Route, count: usize, ready: &mut dyn FnMut()) -> Result<()>;
}

/// Trips that the answering process submits its commands for at once. Few, so that nothing of the
/// driver fills up behind the wait.
pub(super) const BATCH: usize = 8;
/// Batches of each turn that nobody measures.
const WARM_UP: usize = 2;

impl Arrangement {
    /// The pairs of words or events that the routes use: each its own.
    fn pairs(&self) -> usize {
        self.routes.len()
    }

    /// Which of them a route uses.
    fn pair(&self, route: Route) -> Result<usize> {
        let mut routes = self.routes.iter();
        routes
            .position(|(other, _)| *other == route)
            .context("not a route of this scenario")
    }

    fn batches(&self, participant: &Participant, side: Side) -> usize {
        let batches = match (self.rival, side) {
            // Slow.
            (Rival::Native, Side::Raw) => participant.plan.pick(8, 4),
            _ => participant.plan.pick(40, 20),
        };
        WARM_UP + batches
    }
}

/// Where on the page the two words are that keep both processes in step.
const READY: usize = 0;
const TAKEN: usize = 256;
/// Where those of the first pair are, and from one word to the next.
const PAIRS: usize = 512;
const STEP: usize = 256;

/// Lets both processes take turns: the hand is ready for a batch of trips, the lead has taken it.
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

/// Looks at a word until it has reached a value.
fn watch(word: &AtomicU64, value: u64) {
    let mut looks = 0_u32;
    while word.load(Ordering::Acquire) < value {
        looks += 1;
        // The other process may need this CPU to get there.
        if looks.is_multiple_of(1024) {
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
    let mut rival = raw::leader(arrangement, &gpu, &page, link)?;
    ensure!(
        link.receive_number()? == 0,
        "the other process is not ready"
    );
    participant.plan.pin(0)?;

    let mut step = Step::on(&page)?;
    let clock = clock_cost();
    let mut recorder = Recorder::default();
    for round in 0..participant.plan.rounds() {
        for (route, rows) in arrangement.routes {
            for side in Side::order(round) {
                let starter: &mut dyn TripStarter = match side {
                    Side::Ours => &mut ours,
                    Side::Raw => &mut *rival,
                };
                for batch in 0..arrangement.batches(participant, side) {
                    step.batch += 1;
                    watch(step.ready, step.batch);
                    for _ in 0..BATCH {
                        let ((), elapsed) = once(clock, || starter.run_trip(*route))?;
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

fn run_follower(participant: &Participant, arrangement: &'static Arrangement) -> Result<Outcome> {
    if too_few_gpus(arrangement.gpu + 1, arrangement.rows)?.is_some() {
        return Ok(Outcome::default());
    }
    let link = participant.peer()?;
    let gpu = Gpu::open(arrangement.gpu)?;
    let message = link.receive()?;
    let file: &OwnedFd = message
        .descriptors
        .first()
        .context("expected a descriptor")?;
    let page = Page::register(&gpu, file)?;
    let mut ours = ours::Follower::new(arrangement, link)?;
    let mut rival = raw::follower(arrangement, &gpu, &page, link)?;
    link.send_number(0)?;
    participant.plan.pin(1)?;

    let mut step = Step::on(&page)?;
    for round in 0..participant.plan.rounds() {
        for (route, _) in arrangement.routes {
            for side in Side::order(round) {
                let answerer: &mut dyn TripAnswerer = match side {
                    Side::Ours => &mut ours,
                    Side::Raw => &mut *rival,
                };
                for _ in 0..arrangement.batches(participant, side) {
                    step.batch += 1;
                    let mut ready = || step.ready.store(step.batch, Ordering::Release);
                    answerer.answer(*route, BATCH, &mut ready)?;
                    watch(step.taken, step.batch);
                }
            }
        }
    }
    Ok(Outcome::default())
}
