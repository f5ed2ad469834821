//! What it costs to submit a signal and a wait.

use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Result;
use crosshandle::Command;

use super::ours;
use super::rows::row;
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::{Participant, Scenario, no_follower};
use crate::harness::timing::per_operation;
use crate::raw::cuda::{Gpu, Page, Stream};
use crate::raw::memfd;
use crate::report::row::Target;

const SIGNAL: &str = "cuda-enqueue.signal";
const WAIT: &str = "cuda-enqueue.wait";
const BEHIND: &str = "cuda-enqueue.wait-behind";
const BOTH: &str = "cuda-enqueue.wait-signal";

const CLOSE: Target = Target::AtMostTimesRaw(1.2);

pub(crate) static SCENARIO: Scenario = Scenario {
    name: "cuda-enqueue",
    followers: 0,
    cores: 1,
    limit: Duration::from_secs(60),
    rows: &[
        row(SIGNAL, "submit a signal", "cuStreamWriteValue64", CLOSE),
        row(
            WAIT,
            "submit a wait, for what has not happened",
            "cuStreamWaitValue64",
            CLOSE,
        ),
        // The stream looks at another event meanwhile.
        row(
            BEHIND,
            "submit a wait behind that for another event",
            "cuStreamWaitValue64",
            Target::None,
        ),
        row(
            BOTH,
            "submit a wait and a signal in one command",
            "cuStreamWaitValue64, cuStreamWriteValue64",
            Target::None,
        ),
    ],
    leader: run_leader,
    follower: no_follower,
};

/// Operations between two times that the stream is empty, so that nothing of the driver's fills
/// up.
const BATCH: usize = 32;
/// Batches of each turn that nobody measures.
const WARM_UP: usize = 2;

/// Offsets on the page.
const GATE: usize = 0;
const WRITTEN: usize = 256;
const FIRST_GATE: usize = 512;

fn run_leader(participant: &Participant) -> Result<Outcome> {
    let gpu = Gpu::open(0)?;
    let page = Page::register(&gpu, memfd::create(Page::LENGTH)?)?;
    let (gate, host_gate) = (page.device_word(GATE)?, page.word(GATE)?);
    let written = page.device_word(WRITTEN)?;
    let (first_gate, host_first_gate) = (page.device_word(FIRST_GATE)?, page.word(FIRST_GATE)?);
    let stream = Stream::create(&gpu)?;
    let context = ours::context(0)?;
    let queue = context.create_queue()?;
    let (signalled, waited) = (context.create_event()?, context.create_event()?);
    let blocker = context.create_event()?;
    participant.plan.pin(0)?;

    let mut number = 0;
    let mut recorder = Recorder::default();
    let batches = participant.plan.pick(40, 20);
    for round in 0..participant.plan.rounds() {
        for row in [SIGNAL, WAIT, BEHIND, BOTH] {
            for side in Side::order(round) {
                for batch in 0..WARM_UP + batches {
                    number += 1;
                    if row == BEHIND {
                        match side {
                            Side::Ours => {
                                let value = blocker.submitted() + 1;
                                queue.submit(Command::barrier().after_value(&blocker, value))?;
                            }
                            Side::Raw => stream.wait(first_gate, number)?,
                        }
                    }
                    let elapsed = match (side, row) {
                        (Side::Ours, SIGNAL) => per_operation(BATCH, || queue.signal(&signalled))?,
                        (Side::Ours, WAIT | BEHIND) => {
                            let value = waited.submitted() + 1;
                            per_operation(BATCH, || {
                                queue.submit(Command::barrier().after_value(&waited, value))
                            })?
                        }
                        (Side::Ours, _) => {
                            let value = waited.submitted() + 1;
                            per_operation(BATCH, || {
                                let wait = Command::barrier().after_value(&waited, value);
                                queue.submit(wait.signal(&signalled))
                            })?
                        }
                        (Side::Raw, SIGNAL) => {
                            per_operation(BATCH, || stream.write(written, number))?
                        }
                        (Side::Raw, WAIT | BEHIND) => {
                            per_operation(BATCH, || stream.wait(gate, number))?
                        }
                        (Side::Raw, _) => per_operation(BATCH, || {
                            stream.wait(gate, number)?;
                            stream.write(written, number)
                        })?,
                    };
                    if row == BEHIND {
                        match side {
                            Side::Ours => drop(blocker.signal()?),
                            Side::Raw => host_first_gate.store(number, Ordering::Release),
                        }
                    }
                    match side {
                        Side::Ours if row != SIGNAL => drop(waited.signal()?),
                        Side::Ours => {}
                        Side::Raw => host_gate.store(number, Ordering::Release),
                    }
                    match side {
                        Side::Ours => queue.finish()?,
                        Side::Raw => stream.synchronize()?,
                    }
                    if batch >= WARM_UP {
                        recorder.push(row, side, elapsed);
                    }
                }
            }
        }
    }
    Ok(recorder.finish())
}
