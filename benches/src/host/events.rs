//! Signals without waiters, and waits for completed signals.

use std::hint::black_box;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anyhow::Result;

use super::ours;
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::{Participant, Scenario, no_follower};
use crate::harness::timing::per_operation;
use crate::raw::counter::FutexCounter;
use crate::report::row::rows;

const SIGNAL: &str = "events.signal";
const WAIT: &str = "events.wait";

pub(crate) static SCENARIO: Scenario = Scenario {
    name: "events",
    followers: 0,
    cores: 1,
    limit: Duration::from_secs(60),
    rows: rows! {
        SIGNAL => "signal, no thread waiting",
            "atomic add, load of the count of sleepers", AtMost(10.0);
        WAIT => "wait on a signalled event", "atomic load", AtMost(4.0);
    },
    leader: run_leader,
    follower: no_follower,
};

const OPERATIONS_PER_BATCH: usize = 10_000;

fn run_leader(participant: &Participant) -> Result<Outcome> {
    participant.plan.pin(0)?;
    let context = ours::context()?;
    let event = context.create_event()?;
    // The event is exported, like events that processes share.
    event.handle()?;
    let word = AtomicU64::new(0);
    let counter = FutexCounter(&word);
    let mut recorder = Recorder::default();
    let batches = participant.plan.pick(20, 5);
    for round in 0..participant.plan.rounds() {
        for side in Side::order(round) {
            for batch in 0..=batches {
                let signal = per_operation(OPERATIONS_PER_BATCH, || match side {
                    Side::Ours => Ok(black_box(&event).signal().map(drop)?),
                    Side::Raw => black_box(&counter).signal(),
                })?;
                let wait = per_operation(OPERATIONS_PER_BATCH, || match side {
                    Side::Ours => Ok(black_box(&event).wait()?),
                    Side::Raw => black_box(&counter).wait(1),
                })?;
                // The first batch of a side finds the other side's data in the caches.
                if batch > 0 {
                    recorder.push(SIGNAL, side, signal);
                    recorder.push(WAIT, side, wait);
                }
            }
        }
    }
    Ok(recorder.finish())
}
