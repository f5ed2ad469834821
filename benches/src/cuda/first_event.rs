//! The time to open the first event of a peer, and until a stream waits for it. Each peer has a
//! process of its own.

use std::time::Duration;

use anyhow::{Result, ensure};
use crosshandle::Command;
use crosshandle::handle::EVENT_HANDLE_SIZE;

use super::ours;
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::{Participant, Scenario};
use crate::harness::timing::{clock_cost, once};
use crate::host::ours::{Waiters, open_event};
use crate::raw::cuda::{Event, Gpu, IPC_EVENT_SIZE, Stream};
use crate::report::row::rows;

const OPEN: &str = "cuda-first-event.open";
const WAIT: &str = "cuda-first-event.wait";

pub(crate) static SCENARIO: Scenario = Scenario {
    name: "cuda-first-event",
    followers: PEERS,
    cores: 2,
    limit: Duration::from_secs(120),
    rows: rows! {
        OPEN => "open the first event of a peer", "cuIpcOpenEventHandle", AtMostTimesRaw(1.0);
        WAIT => "open the first event of a peer, and make a stream wait for it",
            "cuIpcOpenEventHandle, cuStreamWaitEvent", AtMostTimesRaw(1.0);
    },
    leader: run_leader,
    follower: run_follower,
};

/// Number of peers. The first one is not recorded.
const PEERS: usize = 9;
/// Time limit of a stream that waits for a peer's signal.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Runs the importer.
fn run_leader(participant: &Participant) -> Result<Outcome> {
    let gpu = Gpu::open(0)?;
    let stream = Stream::create(&gpu)?;
    let context = ours::context(0)?;
    let queue = context.create_queue()?;
    let clock = clock_cost();
    let mut recorder = Recorder::default();
    for (number, link) in participant.links.iter().enumerate() {
        let message = link.receive()?.bytes;
        ensure!(
            message.len() == EVENT_HANDLE_SIZE + IPC_EVENT_SIZE,
            "expected two handles"
        );
        let (handle, native) = message.split_at(EVENT_HANDLE_SIZE);
        let native: [u8; IPC_EVENT_SIZE] = native.try_into()?;
        for side in Side::order(number) {
            let (opened, waited) = match side {
                Side::Ours => {
                    let open = || open_event(&context, handle, Waiters::Default);
                    let (event, opened) = once(clock, open)?;
                    let wait = || queue.submit(Command::barrier().after_value(&event, 1));
                    let (_, waited) = once(clock, wait)?;
                    // The peer signals now, and the stream continues.
                    link.send_number(1)?;
                    queue.finish_timeout(TIMEOUT)?;
                    (opened, waited)
                }
                Side::Raw => {
                    let (event, opened) = once(clock, || Event::open(&gpu, native))?;
                    let ((), waited) = once(clock, || stream.wait_event(&event))?;
                    stream.synchronize()?;
                    (opened, waited)
                }
            };
            if number > 0 {
                recorder.push(OPEN, side, opened);
                recorder.push(WAIT, side, opened + waited);
            }
        }
        link.send_number(0)?;
    }
    Ok(recorder.finish())
}

/// Runs a peer, which has one event of each kind.
fn run_follower(participant: &Participant) -> Result<Outcome> {
    let link = participant.peer()?;
    let gpu = Gpu::open(0)?;
    let stream = Stream::create(&gpu)?;
    let context = ours::context(0)?;
    let event = context.create_event()?;
    let native = Event::create(&gpu)?;
    stream.record(&native)?;
    stream.synchronize()?;
    let mut message = event.handle()?.as_bytes().to_vec();
    message.extend(native.export()?);
    link.send(&message)?;
    while link.receive_number()? != 0 {
        event.signal()?;
    }
    Ok(Outcome::default())
}
