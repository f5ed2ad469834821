//! The time to replay a graph of many small commands, compared with submitting them one by one.

use std::time::Duration;

use anyhow::Result;
use crosshandle::graph::Graph;
use crosshandle::{Command, Memory, Queue};

use super::ours;
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::{Participant, Scenario, no_follower};
use crate::harness::timing::per_operation;
use crate::report::row::rows;

const REPLAY: &str = "graphs.replay";

pub(crate) static SCENARIO: Scenario = Scenario {
    name: "graphs",
    followers: 0,
    cores: 1,
    limit: Duration::from_secs(60),
    rows: rows! {
        REPLAY => "run a graph of 100 copies of 64 bytes, until it is done",
            "100 commands of this library", AtMostTimesRaw(1.0);
    },
    leader: run_leader,
    follower: no_follower,
};

const COMMANDS: usize = 100;
const LENGTH: usize = 64;
const RUNS_PER_BATCH: usize = 100;

fn run_leader(participant: &Participant) -> Result<Outcome> {
    let context = ours::context()?;
    let (from, to) = (context.allocate(LENGTH)?, context.allocate(LENGTH)?);
    let queue = context.create_queue()?;
    let mut graph = Graph::new(&context);
    let mut last = None;
    for _ in 0..COMMANDS {
        last = Some(graph.add(Command::copy(from.all(), to.all())?, last.as_slice())?);
    }
    let graph = graph.instantiate()?;
    participant.plan.pin(0)?;
    let mut recorder = Recorder::default();
    let batches = participant.plan.pick(40, 10);
    for round in 0..participant.plan.rounds() {
        for side in Side::order(round) {
            for batch in 0..=batches {
                let elapsed = per_operation(RUNS_PER_BATCH, || match side {
                    Side::Ours => {
                        queue.submit(graph.command())?;
                        Ok::<_, anyhow::Error>(queue.finish()?)
                    }
                    Side::Raw => submit_all(&queue, &from, &to),
                })?;
                if batch > 0 {
                    recorder.push(REPLAY, side, elapsed);
                }
            }
        }
    }
    Ok(recorder.finish())
}

fn submit_all(queue: &Queue, from: &Memory, to: &Memory) -> Result<()> {
    for _ in 0..COMMANDS {
        queue.submit(Command::copy(from.all(), to.all())?)?;
    }
    Ok(queue.finish()?)
}
