//! Round trips by POSIX semaphores and by iceoryx2's events.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::AsFd;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::{Participant, Scenario, no_follower};
use crate::harness::timing::per_operation;
use crate::host::ours::{self, Waiters};
use crate::host::wake::{Arrangement, Notifier, PingPong, Raw, trips};
use crate::raw::memfd::{self, Mapping};
use crate::report::row::rows;

unsafe extern "C" {
    fn sem_init(semaphore: *mut c_void, is_shared: c_int, value: c_uint) -> c_int;
    fn sem_post(semaphore: *mut c_void) -> c_int;
    fn sem_wait(semaphore: *mut c_void) -> c_int;
}

const PAGE_BYTES: usize = 4096;
/// Offsets of the two semaphores, in bytes. Each has 32 bytes.
const OFFSETS: [usize; 2] = [0, 256];

/// Creates a scenario of round trips.
macro_rules! scenario {
    ($name:ident, $id:literal, $what:literal, $raw:literal, $target:expr, $cpu:literal, $waiters:expr,
     $singles:expr, $peer:ident) => {
        pub(super) static $name: Scenario = {
            static ARRANGEMENT: Arrangement = Arrangement {
                batched: None,
                single: $id,
                follower_cpu: $cpu,
                raw: Raw::Futex,
                waiters: $waiters,
                singles: $singles,
            };
            Scenario {
                name: $id,
                followers: 1,
                cores: 1 + $cpu,
                limit: Duration::from_secs(120),
                rows: rows! { $id => $what, $raw, $target; },
                leader: |participant| lead(participant, &ARRANGEMENT, $peer::create),
                follower: |participant| follow(participant, &ARRANGEMENT, $peer::open),
            }
        };
    };
}

scenario!(
    SEMAPHORE_SLEEP,
    "semaphore.sleep",
    "round trip, two cores, sleeping",
    "POSIX semaphores",
    AtMostTimesRaw(1.1),
    1,
    Waiters::LowPower,
    (1000, 200),
    semaphores
);
scenario!(
    SEMAPHORE_SHARED,
    "semaphore.shared-core",
    "round trip, one shared core",
    "POSIX semaphores",
    AtMostTimesRaw(1.15),
    0,
    Waiters::Default,
    (10_000, 2000),
    semaphores
);
#[cfg(feature = "iceoryx2")]
scenario!(
    ICEORYX_SLEEP,
    "iceoryx2.sleep",
    "round trip, two cores, sleeping",
    "iceoryx2's events",
    AtMostTimesRaw(1.0),
    1,
    Waiters::LowPower,
    (1000, 200),
    iceoryx
);
#[cfg(feature = "iceoryx2")]
scenario!(
    ICEORYX_SHARED,
    "iceoryx2.shared-core",
    "round trip, one shared core",
    "iceoryx2's events",
    AtMostTimesRaw(1.0),
    0,
    Waiters::Default,
    (10_000, 2000),
    iceoryx
);

const IDLE: &str = "semaphore.idle";

pub(super) static SEMAPHORE_IDLE: Scenario = Scenario {
    name: IDLE,
    followers: 0,
    cores: 1,
    limit: Duration::from_secs(60),
    rows: rows! {
        IDLE => "signal, and wait for it, one thread", "POSIX semaphore", AtMostTimesRaw(1.0);
    },
    leader: idle,
    follower: no_follower,
};

/// A semaphore in a word's cache line of shared memory.
struct Semaphore<'a>(&'a AtomicU64);

impl Semaphore<'_> {
    fn address(&self) -> *mut c_void {
        self.0.as_ptr().cast()
    }

    /// Creates the semaphore.
    fn init(&self) -> Result<()> {
        // SAFETY: the page has 32 bytes at this address, which nothing else uses.
        let code = unsafe { sem_init(self.address(), 1, 0) };
        ensure!(code == 0, "no semaphore");
        Ok(())
    }
}

impl Notifier for Semaphore<'_> {
    #[inline]
    fn notify(&self, _: u64) -> Result<()> {
        // SAFETY: the leader has created the semaphore.
        ensure!(unsafe { sem_post(self.address()) } == 0, "cannot post");
        Ok(())
    }

    #[inline]
    fn wait(&self, _: u64) -> Result<()> {
        // SAFETY: the leader has created the semaphore. A signal interrupts the wait.
        while unsafe { sem_wait(self.address()) } != 0 {}
        Ok(())
    }
}

type Pair = [Box<dyn Notifier>; 2];

mod semaphores {
    use super::*;

    fn pair(page: &'static Mapping) -> Result<[Semaphore<'static>; 2]> {
        let [ping, pong] = OFFSETS;
        Ok([Semaphore(page.word(ping)?), Semaphore(page.word(pong)?)])
    }

    fn boxed([ping, pong]: [Semaphore<'static>; 2]) -> Pair {
        [Box::new(ping), Box::new(pong)]
    }

    pub(super) fn create(participant: &Participant) -> Result<Pair> {
        let file = memfd::create(PAGE_BYTES)?;
        // The page lives until the process ends, which is soon.
        let page = pair(Box::leak(Box::new(Mapping::shared(&file, PAGE_BYTES)?)))?;
        for semaphore in &page {
            semaphore.init()?;
        }
        participant.peer()?.send_with(b"page", &[file.as_fd()])?;
        Ok(boxed(page))
    }

    pub(super) fn open(participant: &Participant) -> Result<Pair> {
        let file = participant.peer()?.receive()?.descriptor()?;
        let page = Mapping::shared(&file, PAGE_BYTES)?;
        Ok(boxed(pair(Box::leak(Box::new(page)))?))
    }
}

#[cfg(feature = "iceoryx2")]
mod iceoryx {
    use super::*;
    use crate::channel::iceoryx::IceoryxEvent;

    fn both(name: &str, leads: bool) -> Result<Pair> {
        Ok([
            Box::new(IceoryxEvent::open(&format!("{name}/ping"), leads)?),
            Box::new(IceoryxEvent::open(&format!("{name}/pong"), !leads)?),
        ])
    }

    pub(super) fn create(participant: &Participant) -> Result<Pair> {
        let name = format!("crosshandle-bench-{}", std::process::id());
        let pair = both(&name, true)?;
        participant.peer()?.send(name.as_bytes())?;
        Ok(pair)
    }

    pub(super) fn open(participant: &Participant) -> Result<Pair> {
        let name = String::from_utf8(participant.peer()?.receive()?.bytes)?;
        both(&name, false)
    }

    impl Notifier for IceoryxEvent {
        #[inline]
        fn notify(&self, _: u64) -> Result<()> {
            self.signal()
        }

        #[inline]
        fn wait(&self, _: u64) -> Result<()> {
            self.wait_for_signal()
        }
    }
}

impl Notifier for Box<dyn Notifier> {
    #[inline]
    fn notify(&self, number: u64) -> Result<()> {
        self.as_ref().notify(number)
    }

    #[inline]
    fn wait(&self, number: u64) -> Result<()> {
        self.as_ref().wait(number)
    }
}

fn lead(
    participant: &Participant,
    arrangement: &Arrangement,
    create: fn(&Participant) -> Result<Pair>,
) -> Result<Outcome> {
    participant.plan.pin(0)?;
    let context = ours::context()?;
    let event = || ours::create_event(&context, arrangement.waiters);
    let (ping, pong) = (event()?, event()?);
    let mut handles = ping.handle()?.as_bytes().to_vec();
    handles.extend_from_slice(pong.handle()?.as_bytes());
    participant.peer()?.send(&handles)?;
    let mut ours = PingPong::new(ping, pong);
    let [ping, pong] = create(participant)?;
    let mut theirs = PingPong::new(ping, pong);
    participant.peer()?.await_number(0)?;
    let mut recorder = Recorder::default();
    for round in 0..participant.plan.rounds() {
        for side in Side::order(round) {
            match side {
                Side::Ours => ours.measure(participant, arrangement, side, &mut recorder)?,
                Side::Raw => theirs.measure(participant, arrangement, side, &mut recorder)?,
            }
        }
    }
    Ok(recorder.finish())
}

fn follow(
    participant: &Participant,
    arrangement: &Arrangement,
    open: fn(&Participant) -> Result<Pair>,
) -> Result<Outcome> {
    participant.plan.pin(arrangement.follower_cpu)?;
    let context = ours::context()?;
    let message = participant.peer()?.receive()?;
    let mut events = ours::each_event(&message.bytes)
        .map(|bytes| ours::open_event(&context, bytes, arrangement.waiters));
    let mut event = || {
        events
            .next()
            .context("expected the handles of two events")?
    };
    let mut ours = PingPong::new(event()?, event()?);
    let [ping, pong] = open(participant)?;
    let mut theirs = PingPong::new(ping, pong);
    participant.peer()?.send_number(0)?;
    let count = trips(participant, arrangement);
    for round in 0..participant.plan.rounds() {
        for side in Side::order(round) {
            match side {
                Side::Ours => ours.answer(count)?,
                Side::Raw => theirs.answer(count)?,
            }
        }
    }
    Ok(Outcome::default())
}

fn idle(participant: &Participant) -> Result<Outcome> {
    participant.plan.pin(0)?;
    let context = ours::context()?;
    let event = ours::create_event(&context, Waiters::Default)?;
    // Exported events have the costs that a peer could cause.
    let _handle = event.handle()?;
    let file = memfd::create(PAGE_BYTES)?;
    let page = Mapping::shared(&file, PAGE_BYTES)?;
    let semaphore = Semaphore(page.word(0)?);
    semaphore.init()?;
    let (mut recorder, mut number) = (Recorder::default(), 0);
    for round in 0..participant.plan.rounds() {
        for side in Side::order(round) {
            for _ in 0..participant.plan.pick(20, 5) {
                let elapsed = per_operation(10_000, || match side {
                    Side::Ours => {
                        number += 1;
                        event.notify(number)?;
                        Notifier::wait(&event, number)
                    }
                    Side::Raw => {
                        semaphore.notify(0)?;
                        semaphore.wait(0)
                    }
                })?;
                recorder.push(IDLE, side, elapsed);
            }
        }
    }
    Ok(recorder.finish())
}
