//! The time to open the first event of each of several processes.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use crosshandle::Command;
use crosshandle::handle::HANDLE_SIZE;

use super::ours;
use super::rows::row;
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::{Participant, Scenario};
use crate::harness::timing::nanoseconds;
use crate::host::ours::{Waiters, open_event};
use crate::raw::cuda::{EVENT_HANDLE_SIZE, Event, Gpu, Stream};
use crate::report::row::Target;

const OPEN: &str = "cuda-first-event.open";
const WAIT: &str = "cuda-first-event.wait";

pub(crate) static SCENARIO: Scenario = Scenario {
    name: "cuda-first-event",
    followers: 8,
    cores: 1,
    limit: Duration::from_secs(60),
    rows: &[
        row(
            OPEN,
            "open the first event of a peer",
            "cuIpcOpenEventHandle",
            Target::None,
        ),
        row(
            WAIT,
            "the same, and let a stream wait for it",
            "cuIpcOpenEventHandle, cuStreamWaitEvent",
            Target::None,
        ),
    ],
    leader: run_leader,
    follower: run_follower,
};

/// Runs the importer.
fn run_leader(participant: &Participant) -> Result<Outcome> {
    let gpu = Gpu::open(0)?;
    let stream = Stream::create(&gpu)?;
    let context = ours::context(0)?;
    let queue = context.create_queue()?;
    let mut recorder = Recorder::default();
    let mut kept = (Vec::new(), Vec::new());
    for (index, link) in participant.links.iter().enumerate() {
        let handles = link.receive()?.bytes;
        ensure!(
            handles.len() == HANDLE_SIZE + EVENT_HANDLE_SIZE,
            "expected two handles"
        );
        let (handle, native) = handles.split_at(HANDLE_SIZE);
        for side in Side::order(index) {
            let start = Instant::now();
            let opened = match side {
                Side::Ours => {
                    let event = open_event(&context, handle, Waiters::Default)?;
                    let opened = start.elapsed();
                    queue.submit(Command::barrier().after_value(&event, 1))?;
                    kept.0.push(event);
                    opened
                }
                Side::Raw => {
                    let event = Event::open(&gpu, native.try_into()?)?;
                    let opened = start.elapsed();
                    stream.wait_event(&event)?;
                    kept.1.push(event);
                    opened
                }
            };
            recorder.push(WAIT, side, nanoseconds(start.elapsed()));
            recorder.push(OPEN, side, nanoseconds(opened));
        }
    }
    for link in &participant.links {
        link.send_number(0)?;
    }
    queue.finish()?;
    stream.synchronize()?;
    Ok(recorder.finish())
}

/// Runs an exporter, which signals at the importer's request.
fn run_follower(participant: &Participant) -> Result<Outcome> {
    let link = participant.peer()?;
    let gpu = Gpu::open(0)?;
    let stream = Stream::create(&gpu)?;
    let context = ours::context(0)?;
    let event = context.create_event()?;
    let native = Event::create(&gpu)?;
    stream.record(&native)?;
    let mut handles = event.handle()?.as_bytes().to_vec();
    handles.extend(native.export()?);
    link.send(&handles)?;
    ensure!(link.receive_number()? == 0, "the other process lost count");
    event.signal()?;
    Ok(Outcome::default())
}
