//! The time of one message from one process to others.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use crosshandle::channel::Channel;

use super::iceoryx::IceoryxService;
use super::ours::{self, OurReceiver, OurSender};
use super::{Messages, Receiver, Sender};
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::{Participant, Scenario};
use crate::harness::timing::monotonic_ns;
use crate::host::ours::context;
use crate::raw::memfd::{self, Mapping};
use crate::report::row::rows;

const COPIED_ROW: &str = "channel.spin";
const IN_PLACE_ROW: &str = "channel.large";
const SLEEPING_ROW: &str = "channel.sleep";
const BROADCAST_ROW: &str = "channel.broadcast";

pub(crate) static COPIED: Scenario = Scenario {
    name: COPIED_ROW,
    followers: 1,
    cores: 2,
    limit: Duration::from_secs(120),
    rows: rows! {
        COPIED_ROW => "4 KiB from one process to another, spinning",
            "iceoryx2", AtMostTimesRaw(0.7);
    },
    leader: |participant| lead(participant, COPIED_ROW),
    follower: |participant| follow(participant, COPIED_ROW),
};

pub(crate) static IN_PLACE: Scenario = Scenario {
    name: IN_PLACE_ROW,
    followers: 1,
    cores: 2,
    limit: Duration::from_secs(120),
    rows: rows! {
        IN_PLACE_ROW => "1 MiB in place, spinning",
            "iceoryx2", AtMostTimesRaw(0.9);
    },
    leader: |participant| lead(participant, IN_PLACE_ROW),
    follower: |participant| follow(participant, IN_PLACE_ROW),
};

pub(crate) static SLEEPING: Scenario = Scenario {
    name: SLEEPING_ROW,
    followers: 1,
    cores: 2,
    limit: Duration::from_secs(120),
    rows: rows! {
        SLEEPING_ROW => "4 KiB to a process that sleeps",
            "iceoryx2 with an event service", AtMostTimesRaw(0.9);
    },
    leader: |participant| lead(participant, SLEEPING_ROW),
    follower: |participant| follow(participant, SLEEPING_ROW),
};

/// Number of receivers of a broadcast.
const RECEIVERS: usize = 8;

pub(crate) static BROADCAST: Scenario = Scenario {
    name: BROADCAST_ROW,
    followers: RECEIVERS,
    cores: 2,
    limit: Duration::from_secs(120),
    rows: rows! {
        BROADCAST_ROW => "4 KiB to 8 processes that sleep, until the last has it",
            "iceoryx2 with an event service", AtMostTimesRaw(0.9);
    },
    leader: |participant| lead(participant, BROADCAST_ROW),
    follower: |participant| follow(participant, BROADCAST_ROW),
};

fn messages(row: &str) -> Messages {
    Messages {
        bytes: if row == IN_PLACE_ROW { 1 << 20 } else { 4096 },
        is_copied: row != IN_PLACE_ROW,
        sleeps: row == SLEEPING_ROW || row == BROADCAST_ROW,
        depth: 8,
        receivers: if row == BROADCAST_ROW { RECEIVERS } else { 1 },
    }
}

/// Number of messages of each side in a round.
fn count(participant: &Participant, messages: Messages) -> u64 {
    match messages.sleeps {
        true => participant.plan.pick(300, 100),
        false => participant.plan.pick(20_000, 5_000),
    }
}

/// Time after which the receivers of the next message sleep. It is longer than they spin.
const UNTIL_ASLEEP: Duration = Duration::from_micros(300);

/// Size of the shared words, in bytes.
const WORDS_BYTES: usize = 4096;
/// Offset of the word with the time at which the last receiver got the message, in bytes.
const TIME_AT: usize = 256;

/// The words by which the receivers report.
struct Report<'a> {
    /// Number of messages that were received, by all receivers together.
    received: &'a AtomicU64,
    /// Time at which the latest message was received, in nanoseconds.
    time: &'a AtomicU64,
}

impl<'a> Report<'a> {
    fn new(page: &'a Mapping) -> Result<Self> {
        Ok(Self {
            received: page.word(0)?,
            time: page.word(TIME_AT)?,
        })
    }
}

fn lead(participant: &Participant, row: &'static str) -> Result<Outcome> {
    let messages = messages(row);
    participant.plan.pin(0)?;
    let context = context()?;
    let channel = ours::create(&context, messages)?;
    let name = format!("crosshandle-bench-{row}-{}", std::process::id());
    let file = memfd::create(WORDS_BYTES)?;
    let page = Mapping::shared(&file, WORDS_BYTES)?;
    let report = Report::new(&page)?;
    for link in &participant.links {
        link.send_with(channel.consumer_handle()?.as_bytes(), &[file.as_fd()])?;
        link.send(name.as_bytes())?;
    }
    let mut ours = OurSender {
        producer: channel.producer()?,
        messages,
        buffer: vec![0; messages.bytes],
    };
    let service = IceoryxService::open(&name, messages)?;
    let mut theirs = service.sender()?;
    for link in &participant.links {
        link.await_number(0)?;
    }
    let count = count(participant, messages);
    let mut recorder = Recorder::default();
    let mut total = 0;
    for round in 0..participant.plan.rounds() {
        for side in Side::order(round) {
            for _ in 0..count {
                if messages.sleeps {
                    thread::sleep(UNTIL_ASLEEP);
                }
                let sent = monotonic_ns();
                match side {
                    Side::Ours => ours.send(total)?,
                    Side::Raw => theirs.send(total)?,
                }
                total += 1;
                let expected = total * messages.receivers as u64;
                while report.received.load(Ordering::Acquire) < expected {
                    match messages.sleeps {
                        true => thread::yield_now(),
                        false => std::hint::spin_loop(),
                    }
                }
                let received = report.time.load(Ordering::Acquire);
                recorder.push(row, side, received.saturating_sub(sent) as f64);
            }
        }
    }
    Ok(recorder.finish())
}

fn follow(participant: &Participant, row: &'static str) -> Result<Outcome> {
    let messages = messages(row);
    if !messages.sleeps {
        participant.plan.pin(1)?;
    }
    let context = context()?;
    let link = participant.peer()?;
    let message = link.receive()?;
    let channel = Channel::open(&context, &message.bytes.as_slice().try_into()?)?;
    let file = message.descriptors.first().context("a descriptor")?;
    let page = Mapping::shared(file, WORDS_BYTES)?;
    let report = Report::new(&page)?;
    let name = String::from_utf8(link.receive()?.bytes)?;
    let mut ours = OurReceiver {
        consumer: channel.consumer()?,
        messages,
        buffer: vec![0; messages.bytes],
    };
    let service = IceoryxService::open(&name, messages)?;
    let mut theirs = service.receiver()?;
    link.send_number(0)?;
    let count = count(participant, messages);
    let mut total = 0;
    for round in 0..participant.plan.rounds() {
        for side in Side::order(round) {
            for _ in 0..count {
                let number = match side {
                    Side::Ours => ours.receive()?,
                    Side::Raw => theirs.receive()?,
                };
                report.time.fetch_max(monotonic_ns(), Ordering::AcqRel);
                report.received.fetch_add(1, Ordering::AcqRel);
                ensure!(number == total, "message {number} instead of {total}");
                total += 1;
            }
        }
    }
    Ok(Outcome::default())
}
