//! The time to replay a graph of many small commands.

use std::time::Duration;

use anyhow::Result;
use crosshandle::Command;

use super::ours;
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::{Participant, Scenario, no_follower};
use crate::harness::timing::per_operation;
use crate::raw::cuda::{Gpu, Graph, Memory, Stream};
use crate::report::row::rows;

const SUBMIT: &str = "cuda-graphs.submit";
const DONE: &str = "cuda-graphs.done";

pub(crate) static SCENARIO: Scenario = Scenario {
    name: "cuda-graphs",
    followers: 0,
    cores: 1,
    limit: Duration::from_secs(60),
    rows: rows! {
        SUBMIT => "submit a run of a graph of 100 copies of 64 bytes",
            "cuGraphLaunch", AtMostTimesRaw(1.1);
        DONE => "the same, until it is done",
            "cuGraphLaunch, cuStreamSynchronize", AtMostTimesRaw(1.1);
    },
    leader: run_leader,
    follower: no_follower,
};

/// Number of commands in the graph. `LENGTH` is the number of bytes that each command copies.
const COMMANDS: usize = 100;
const LENGTH: usize = 64;
/// Number of runs that are submitted before the stream is emptied. It is small enough that no queue
/// of the driver becomes full.
const RUNS_PER_BATCH: usize = 8;

fn run_leader(participant: &Participant) -> Result<Outcome> {
    let gpu = Gpu::open(0)?;
    let stream = Stream::create(&gpu)?;
    let (from, to) = (
        Memory::allocate(&gpu, LENGTH)?,
        Memory::allocate(&gpu, LENGTH)?,
    );
    let raw = Graph::record(&gpu, &stream, || {
        (0..COMMANDS).try_for_each(|_| stream.copy(&to, &from, LENGTH))
    })?;
    let context = ours::context(0)?;
    let queue = context.create_queue()?;
    let (source, destination) = (context.allocate(LENGTH)?, context.allocate(LENGTH)?);
    let mut graph = crosshandle::graph::Graph::new(&context);
    let mut last = None;
    for _ in 0..COMMANDS {
        let copy = Command::copy(source.all(), destination.all())?;
        last = Some(graph.add(copy, last.as_slice())?);
    }
    let graph = graph.instantiate()?;
    participant.plan.pin(0)?;

    let mut recorder = Recorder::default();
    let batches = participant.plan.pick(40, 20);
    for round in 0..participant.plan.rounds() {
        for side in Side::order(round) {
            for batch in 0..=batches {
                let submitted = per_operation(RUNS_PER_BATCH, || match side {
                    Side::Ours => Ok(queue.submit(graph.command())?),
                    Side::Raw => raw.launch(&stream),
                })?;
                match side {
                    Side::Ours => queue.finish()?,
                    Side::Raw => stream.synchronize()?,
                }
                let done = per_operation(1, || match side {
                    Side::Ours => {
                        queue.submit(graph.command())?;
                        Ok(queue.finish()?)
                    }
                    Side::Raw => {
                        raw.launch(&stream)?;
                        stream.synchronize()
                    }
                })?;
                if batch > 0 {
                    recorder.push(SUBMIT, side, submitted);
                    recorder.push(DONE, side, done);
                }
            }
        }
    }
    Ok(recorder.finish())
}
