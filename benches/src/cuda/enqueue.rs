//! The cost of submitting a signal and a wait.

use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Result;
use crosshandle::Command;

use super::ours;
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::{Participant, Scenario, no_follower};
use crate::harness::timing::per_operation;
use crate::raw::cuda::{Gpu, Page, Stream};
use crate::raw::memfd;
use crate::report::row::{RowSpec, Target};

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
        RowSpec::time(SIGNAL, "submit a signal", "cuStreamWriteValue64", CLOSE),
        RowSpec::time(
            WAIT,
            "submit a wait for a signal that has not happened",
            "cuStreamWaitValue64",
            CLOSE,
        ),
        // The stream still waits for another event at that time.
        RowSpec::time(
            BEHIND,
            "submit a wait after a wait for another event",
            "cuStreamWaitValue64",
            Target::None,
        ),
        RowSpec::time(
            BOTH,
            "submit a wait and a signal in one command",
            "cuStreamWaitValue64, cuStreamWriteValue64",
            Target::None,
        ),
    ],
    leader: run_leader,
    follower: no_follower,
};

/// Number of operations that are submitted before the stream is emptied. It is small enough that no
/// queue of the driver becomes full.
const OPERATIONS_PER_BATCH: usize = 32;
/// Number of batches per side and round that are not recorded.
const WARM_UP_BATCHES: usize = 2;

/// Offset on the page of the word for which streams wait, in bytes.
const RELEASE_OFFSET: usize = 0;
/// Offset on the page of the word that streams write, in bytes.
const WRITTEN_OFFSET: usize = 256;
/// Offset on the page of the word that a stream awaits before the measured waits, in bytes.
const BLOCKER_OFFSET: usize = 512;

fn run_leader(participant: &Participant) -> Result<Outcome> {
    let gpu = Gpu::open(0)?;
    let page = Page::register(&gpu, memfd::create(Page::LENGTH)?)?;
    let (release, host_release) = (
        page.device_word(RELEASE_OFFSET)?,
        page.word(RELEASE_OFFSET)?,
    );
    let written = page.device_word(WRITTEN_OFFSET)?;
    let (raw_blocker, host_blocker) = (
        page.device_word(BLOCKER_OFFSET)?,
        page.word(BLOCKER_OFFSET)?,
    );
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
                for batch in 0..WARM_UP_BATCHES + batches {
                    number += 1;
                    if row == BEHIND {
                        match side {
                            Side::Ours => {
                                let value = blocker.submitted() + 1;
                                queue.submit(Command::barrier().after_value(&blocker, value))?;
                            }
                            Side::Raw => stream.wait(raw_blocker, number)?,
                        }
                    }
                    let elapsed = match (side, row) {
                        (Side::Ours, SIGNAL) => {
                            per_operation(OPERATIONS_PER_BATCH, || queue.signal(&signalled))?
                        }
                        (Side::Ours, WAIT | BEHIND) => {
                            let value = waited.submitted() + 1;
                            per_operation(OPERATIONS_PER_BATCH, || {
                                queue.submit(Command::barrier().after_value(&waited, value))
                            })?
                        }
                        (Side::Ours, _) => {
                            let value = waited.submitted() + 1;
                            per_operation(OPERATIONS_PER_BATCH, || {
                                let wait = Command::barrier().after_value(&waited, value);
                                queue.submit(wait.signal(&signalled))
                            })?
                        }
                        (Side::Raw, SIGNAL) => {
                            per_operation(OPERATIONS_PER_BATCH, || stream.write(written, number))?
                        }
                        (Side::Raw, WAIT | BEHIND) => {
                            per_operation(OPERATIONS_PER_BATCH, || stream.wait(release, number))?
                        }
                        (Side::Raw, _) => per_operation(OPERATIONS_PER_BATCH, || {
                            stream.wait(release, number)?;
                            stream.write(written, number)
                        })?,
                    };
                    if row == BEHIND {
                        match side {
                            Side::Ours => drop(blocker.signal()?),
                            Side::Raw => host_blocker.store(number, Ordering::Release),
                        }
                    }
                    match side {
                        Side::Ours if row != SIGNAL => drop(waited.signal()?),
                        Side::Ours => {}
                        Side::Raw => host_release.store(number, Ordering::Release),
                    }
                    match side {
                        Side::Ours => queue.finish()?,
                        Side::Raw => stream.synchronize()?,
                    }
                    if batch >= WARM_UP_BATCHES {
                        recorder.push(row, side, elapsed);
                    }
                }
            }
        }
    }
    Ok(recorder.finish())
}
