//! The rate of small messages from one process to another, each on a core of its own.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use crosshandle::channel::Channel;

use super::iceoryx::IceoryxService;
use super::ours::{self, OurReceiver, OurSender};
use super::ring::{self, RingEnd};
use super::{Messages, Receiver, Sender};
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::{Participant, Scenario};
use crate::harness::timing::nanoseconds;
use crate::host::ours::context;
use crate::raw::memfd::{self, Mapping};
use crate::report::row::rows;

const BY_ICEORYX: &str = "channel.rate";
const BY_RING: &str = "channel.rate-ring";

pub(crate) static ICEORYX: Scenario = Scenario {
    name: BY_ICEORYX,
    followers: 1,
    cores: 2,
    limit: Duration::from_secs(120),
    rows: rows! {
        BY_ICEORYX => "time of a 64-byte message, one core each",
            "iceoryx2", AtMostTimesRaw(0.77);
    },
    leader: |participant| lead(participant, Peer::Iceoryx),
    follower: |participant| follow(participant, Peer::Iceoryx),
};

pub(crate) static RING: Scenario = Scenario {
    name: BY_RING,
    followers: 1,
    cores: 2,
    limit: Duration::from_secs(120),
    rows: rows! {
        BY_RING => "time of a 64-byte message, one core each",
            "ring in a memfd, both sides spin", AtMostTimesRaw(1.67);
    },
    leader: |participant| lead(participant, Peer::Ring),
    follower: |participant| follow(participant, Peer::Ring),
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Peer {
    Iceoryx,
    Ring,
}

impl Peer {
    fn row(self) -> &'static str {
        match self {
            Self::Iceoryx => BY_ICEORYX,
            Self::Ring => BY_RING,
        }
    }
}

const MESSAGES: Messages = Messages {
    bytes: ring::BYTES,
    is_copied: true,
    sleeps: false,
    depth: 256,
    receivers: 1,
};

/// Number of messages of each side in a round.
fn count(participant: &Participant) -> u64 {
    participant.plan.pick(300_000, 50_000)
}

fn lead(participant: &Participant, peer: Peer) -> Result<Outcome> {
    participant.plan.pin(0)?;
    let context = context()?;
    let channel = ours::create(&context, MESSAGES)?;
    let name = format!("crosshandle-bench-rate-{}", std::process::id());
    let file = memfd::create(ring::len(MESSAGES.depth))?;
    let link = participant.peer()?;
    link.send_with(channel.handle()?.as_bytes(), &[file.as_fd()])?;
    link.send(name.as_bytes())?;
    let page = Mapping::shared(&file, ring::len(MESSAGES.depth))?;
    let mut ours = OurSender {
        producer: channel.producer()?,
        messages: MESSAGES,
        buffer: vec![0; MESSAGES.bytes],
    };
    let service = IceoryxService::open(&name, MESSAGES)?;
    let mut theirs: Box<dyn FnMut(u64) -> Result<()> + '_> = match peer {
        Peer::Iceoryx => {
            let mut sender = service.sender()?;
            Box::new(move |count| burst(&mut sender, count))
        }
        Peer::Ring => {
            let mut sender = RingEnd::new(&page, MESSAGES.depth);
            Box::new(move |count| burst(&mut sender, count))
        }
    };
    link.await_number(0)?;
    let count = count(participant);
    let mut recorder = Recorder::default();
    for round in 0..participant.plan.rounds() {
        for side in Side::order(round) {
            link.await_number(1)?;
            let began = Instant::now();
            match side {
                Side::Ours => burst(&mut ours, count)?,
                Side::Raw => theirs(count)?,
            }
            link.await_number(count)?;
            let each = nanoseconds(began.elapsed()) / count as f64;
            recorder.push(peer.row(), side, each);
        }
    }
    Ok(recorder.finish())
}

fn burst(sender: &mut impl Sender, count: u64) -> Result<()> {
    (0..count).try_for_each(|number| sender.send(number))
}

fn follow(participant: &Participant, peer: Peer) -> Result<Outcome> {
    participant.plan.pin(1)?;
    let context = context()?;
    let link = participant.peer()?;
    let message = link.receive()?;
    let channel = Channel::open(&context, &message.bytes.as_slice().try_into()?)?;
    let file = message.descriptors.first().context("a descriptor")?;
    let page = Mapping::shared(file, ring::len(MESSAGES.depth))?;
    let name = String::from_utf8(link.receive()?.bytes)?;
    let mut ours = OurReceiver {
        consumer: channel.consumer()?,
        messages: MESSAGES,
        buffer: vec![0; MESSAGES.bytes],
    };
    let service = IceoryxService::open(&name, MESSAGES)?;
    let mut theirs: Box<dyn FnMut(u64) -> Result<()> + '_> = match peer {
        Peer::Iceoryx => {
            let mut receiver = service.receiver()?;
            Box::new(move |count| drain(&mut receiver, count))
        }
        Peer::Ring => {
            let mut receiver = RingEnd::new(&page, MESSAGES.depth);
            Box::new(move |count| drain(&mut receiver, count))
        }
    };
    link.send_number(0)?;
    let count = count(participant);
    for round in 0..participant.plan.rounds() {
        for side in Side::order(round) {
            link.send_number(1)?;
            match side {
                Side::Ours => drain(&mut ours, count)?,
                Side::Raw => theirs(count)?,
            }
            link.send_number(count)?;
        }
    }
    Ok(Outcome::default())
}

fn drain(receiver: &mut impl Receiver, count: u64) -> Result<()> {
    (0..count).try_for_each(|expected| {
        let number = receiver.receive()?;
        ensure!(number == expected, "message {number} instead of {expected}");
        Ok(())
    })
}
