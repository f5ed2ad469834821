//! Waits of the host for completed signals.

use std::hint::black_box;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::ours;
use super::rows::{CLOSE, row};
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::{Participant, Scenario, no_follower};
use crate::harness::timing::per_operation;
use crate::raw::level_zero::{CounterEvent, Gpu, List};

const WAIT: &str = "level-zero-wait.wait";
const QUERY: &str = "level-zero-wait.query";

pub(crate) static SCENARIO: Scenario = Scenario {
    name: "level-zero-wait",
    followers: 0,
    cores: 1,
    limit: Duration::from_secs(60),
    rows: &[
        row(
            WAIT,
            "wait of the host for what has happened",
            "zeEventHostSynchronize",
            CLOSE,
        ),
        row(QUERY, "ask whether it has", "zeEventQueryStatus", CLOSE),
    ],
    leader: run_leader,
    follower: no_follower,
};

const OPERATIONS_PER_BATCH: usize = 10_000;

fn run_leader(participant: &Participant) -> Result<Outcome> {
    let gpu = Gpu::first()?;
    let list = List::create(gpu)?;
    let raw = CounterEvent::create(gpu)?;
    list.signal(&raw)?;
    raw.synchronize()?;
    let context = ours::context()?;
    let queue = context.create_queue()?;
    let ours = context.create_event()?;
    ours.handle()?;
    queue.signal(&ours)?;
    queue.finish()?;
    participant.plan.pin(0)?;
    let mut recorder = Recorder::default();
    let batches = participant.plan.pick(20, 5);
    for round in 0..participant.plan.rounds() {
        for side in Side::order(round) {
            for batch in 0..=batches {
                let (wait, query) = match side {
                    Side::Ours => (
                        per_operation(OPERATIONS_PER_BATCH, || black_box(&ours).wait())?,
                        per_operation(OPERATIONS_PER_BATCH, || -> Result<()> {
                            ensure!(black_box(&ours).try_wait()?);
                            Ok(())
                        })?,
                    ),
                    Side::Raw => (
                        per_operation(OPERATIONS_PER_BATCH, || black_box(&raw).synchronize())?,
                        per_operation(OPERATIONS_PER_BATCH, || -> Result<()> {
                            ensure!(black_box(&raw).is_done()?);
                            Ok(())
                        })?,
                    ),
                };
                // The first batch of a side finds the other side's data in the caches.
                if batch > 0 {
                    recorder.push(WAIT, side, wait);
                    recorder.push(QUERY, side, query);
                }
            }
        }
    }
    Ok(recorder.finish())
}
