//! Kills of members of a channel after every instruction.
//!
//! A victim joins a channel, sends, receives or leaves. The supervisor traces the victim's thread
//! by ptrace(2) through one of these operations, one instruction at a time, and kills the process
//! after a number of instructions. No published item may be lost to the survivors, none may be
//! delivered twice, every slot must return, and no survivor may hang.

use crate::failure::Failure;
use crate::harness::{Harness, deadline};
use crate::pattern::pattern;
use crate::{Devices, Peer};
use crosshandle::channel::{Channel, ChannelOptions, Consumer, Delivery, Item, Producer, WhenFull};
use std::path::Path;
use std::time::{Duration, Instant};

/// Size of the items in bytes.
const LEN: usize = 64;
/// Number of items that can wait to be received.
const DEPTH: u32 = 8;
/// Number of slots that a producer may have reserved, and that a consumer may hold.
const EACH: u8 = 2;
/// The seed of the item that a survivor sends last.
const LAST: u64 = 999;
/// Maximum number of instructions of an operation that is waited for.
const MOST_STEPS: u64 = 5_000_000;
/// Number of cases in the fixed sample.
const SAMPLE: usize = 14;

/// The options of `conformance channel-kills`.
#[derive(clap::Args)]
pub struct Options {
    /// Number of kills
    #[arg(long, value_name = "N", default_value_t = 2000)]
    cases: usize,
    /// Device of the channels' slots
    #[arg(long, default_value = "host")]
    device: String,
}

/// The operation during which the victim dies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Story {
    JoinProducer,
    JoinConsumer,
    Send,
    Receive,
    Release,
    LeaveProducer,
    LeaveConsumer,
}

const STORIES: [Story; 7] = [
    Story::JoinProducer,
    Story::JoinConsumer,
    Story::Send,
    Story::Receive,
    Story::Release,
    Story::LeaveProducer,
    Story::LeaveConsumer,
];

impl Story {
    /// Returns whether the victim is a producer.
    fn is_of_producer(self) -> bool {
        matches!(self, Self::JoinProducer | Self::Send | Self::LeaveProducer)
    }

    /// Returns the command that the victim runs, and those that come before it.
    fn commands(self) -> (Vec<String>, String) {
        let producer = || "producer p c".to_owned();
        let consumer = || "consumer q c".to_owned();
        let send = |seed: u64| format!("send p {seed} {LEN} 10000");
        let receive = |seed: u64| format!("receive q {seed} {LEN} 10000");
        match self {
            Self::JoinProducer => (vec![], producer()),
            Self::JoinConsumer => (vec![], consumer()),
            Self::Send => (vec![producer(), send(0), send(1)], send(2)),
            Self::Receive => (vec![consumer(), "fill".into(), receive(0)], receive(1)),
            Self::Release => (
                vec![
                    consumer(),
                    "fill".into(),
                    format!("{} keep=yes", receive(0)),
                ],
                "drop-items q".into(),
            ),
            Self::LeaveProducer => (vec![producer(), send(0), send(1)], "close p".into()),
            Self::LeaveConsumer => (
                vec![
                    consumer(),
                    "fill".into(),
                    format!("{} keep=yes", receive(0)),
                ],
                "close q".into(),
            ),
        }
    }

    /// Returns the seeds that the surviving consumer must receive before [`LAST`], and a seed that
    /// it may receive in addition, at its place in the order.
    fn due(self, delivery: Delivery) -> (&'static [u64], Option<u64>) {
        let is_queue = delivery == Delivery::Queue;
        match self {
            Self::JoinProducer | Self::JoinConsumer => (&[], None),
            Self::Send => (&[0, 1], Some(2)),
            Self::LeaveProducer => (&[0, 1], None),
            Self::Receive if is_queue => (&[2], Some(1)),
            Self::Release | Self::LeaveConsumer if is_queue => (&[1, 2], None),
            Self::Receive | Self::Release | Self::LeaveConsumer => (&[0, 1, 2], None),
        }
    }
}

/// The properties of the channel of a case.
#[derive(Clone, Copy, Debug)]
struct Kind {
    delivery: Delivery,
    when_full: WhenFull,
    /// Maximum number of members in each role. If it is 1, the survivor takes the victim's place.
    members: u8,
}

const KINDS: [Kind; 4] = [
    Kind {
        delivery: Delivery::Queue,
        when_full: WhenFull::Wait,
        members: 1,
    },
    Kind {
        delivery: Delivery::Queue,
        when_full: WhenFull::Wait,
        members: 2,
    },
    Kind {
        delivery: Delivery::Broadcast,
        when_full: WhenFull::Wait,
        members: 2,
    },
    Kind {
        delivery: Delivery::Broadcast,
        when_full: WhenFull::DropOldest,
        members: 2,
    },
];

/// Runs kills, and prints a line for each operation. Returns whether all cases passed.
///
/// # Errors
/// Fails if a precondition is missing.
pub fn run_channel_kills(options: &Options, program: &Path) -> Result<bool, Failure> {
    let devices = Devices {
        own: options.device.clone(),
        peer: options.device.clone(),
    };
    let harness = Harness::new(&devices, program)?;
    let began = Instant::now();
    let mut slowest = Duration::ZERO;
    let report = kills(&harness, &KINDS, options.cases, &mut slowest)?;
    for line in &report.failures {
        println!("FAILED {line}");
    }
    println!(
        "{} kills during {} instructions of {} operations in {:.1} s; {} failed; the slowest \
         check took {slowest:?}",
        report.cases,
        report.steps,
        STORIES.len() * KINDS.len(),
        began.elapsed().as_secs_f64(),
        report.failures.len()
    );
    Ok(report.failures.is_empty())
}

/// The result of a number of kills.
pub(crate) struct Report {
    pub(crate) cases: usize,
    /// Number of instructions of all operations together.
    pub(crate) steps: u64,
    pub(crate) failures: Vec<String>,
}

/// Runs the fixed sample. Returns `None` if the system does not let this process trace others.
pub(crate) fn sample(harness: &Harness) -> Result<Option<Report>, Failure> {
    let peer = harness.peer()?;
    let may_trace = Traced::seize(peer.pid()).is_ok();
    drop(peer);
    let mut slowest = Duration::ZERO;
    match may_trace {
        true => kills(harness, &KINDS[..2], SAMPLE, &mut slowest).map(Some),
        false => Ok(None),
    }
}

fn kills(
    harness: &Harness,
    kinds: &[Kind],
    cases: usize,
    slowest: &mut Duration,
) -> Result<Report, Failure> {
    let operations: Vec<_> = kinds
        .iter()
        .flat_map(|kind| STORIES.into_iter().map(move |story| (*kind, story)))
        .collect();
    let mut report = Report {
        cases: 0,
        steps: 0,
        failures: Vec::new(),
    };
    for (index, (kind, story)) in operations.iter().enumerate() {
        let share = cases * (index + 1) / operations.len() - cases * index / operations.len();
        let all = play(harness, *kind, *story, None)?;
        report.steps += all;
        for case in 0..share as u64 {
            // The steps of a sample differ from operation to operation.
            let step = (2 * case + 1) * all / (2 * share as u64);
            let began = Instant::now();
            let played = play(harness, *kind, *story, Some(step));
            *slowest = (*slowest).max(began.elapsed());
            report.cases += 1;
            if let Err(error) = played {
                report.failures.push(format!(
                    "{kind:?} {story:?} after step {step} of {all}: {error}"
                ));
            }
        }
    }
    Ok(report)
}

/// Plays one operation, and kills the victim after `steps` instructions, or at the end of the
/// operation. Returns the number of instructions.
fn play(harness: &Harness, kind: Kind, story: Story, steps: Option<u64>) -> Result<u64, Failure> {
    let context = harness.context()?;
    let options = ChannelOptions::new(LEN)
        .depth(DEPTH)
        .delivery(kind.delivery)
        .when_full(kind.when_full)
        .producers(kind.members)
        .consumers(kind.members)
        .reserved(EACH)
        .held(EACH);
    let channel = Channel::create(&context, options)?;
    // Members that survive the victim. A sole victim has a successor instead.
    let is_producer = story.is_of_producer();
    let survives = |is_role: bool| kind.members > 1 || !is_role;
    let mut producer = survives(is_producer)
        .then(|| channel.producer())
        .transpose()?;
    let consumer = survives(!is_producer)
        .then(|| channel.consumer())
        .transpose()?;
    let victim = harness.peer()?;
    victim.ask(format!("open-channel c {}", channel.handle()?))?;
    let (before, operation) = story.commands();
    for command in before {
        match command.as_str() {
            "fill" => {
                let producer = producer.as_mut().expect("the victim is a consumer");
                for seed in 0..3 {
                    producer.send_timeout(&pattern(seed, LEN), deadline())?;
                }
            }
            command => drop(victim.ask(command)?),
        }
    }
    let done = trace(&victim, &operation, steps)?;
    victim.kill();
    let mut producer = producer.map_or_else(|| channel.producer(), Ok)?;
    let mut consumer = consumer.map_or_else(|| channel.consumer(), Ok)?;
    check(&channel, kind, story, &mut producer, &mut consumer)?;
    Ok(done)
}

/// Checks what the survivors find.
fn check(
    channel: &Channel,
    kind: Kind,
    story: Story,
    producer: &mut Producer,
    consumer: &mut Consumer,
) -> Result<(), Failure> {
    producer.send_timeout(&pattern(LAST, LEN), deadline())?;
    let (due, possible) = story.due(kind.delivery);
    let mut expected: Vec<u64> = due.iter().copied().chain(possible).collect();
    expected.sort_unstable();
    loop {
        let item = consumer.receive_timeout(deadline())?;
        if contains(&item, LAST)? {
            break;
        }
        let place = expected
            .iter()
            .position(|seed| contains(&item, *seed).unwrap_or(false));
        let place = place.ok_or_else(|| {
            Failure::new(format!("item {} is not one of {expected:?}", item.number()))
        })?;
        let skipped: Vec<u64> = expected.drain(..=place).collect();
        let lost = skipped[..place]
            .iter()
            .find(|seed| Some(**seed) != possible);
        if let Some(lost) = lost {
            return Err(Failure::new(format!("item {lost} was lost")));
        }
    }
    if let Some(lost) = expected.iter().find(|seed| Some(**seed) != possible) {
        return Err(Failure::new(format!("item {lost} was lost")));
    }
    let (mut producers, mut consumers) = (vec![producer], vec![consumer]);
    let mut seconds = match kind.members {
        1 => None,
        _ => Some((channel.producer()?, channel.consumer()?)),
    };
    if let Some((producer, consumer)) = &mut seconds {
        producers.push(producer);
        consumers.push(consumer);
    }
    all_slots_return(channel, &mut producers, &mut consumers)
}

fn contains(item: &Item, seed: u64) -> Result<bool, Failure> {
    Ok(item.to_vec()? == pattern(seed, LEN))
}

/// Uses every slot of the channel at the same time.
fn all_slots_return(
    channel: &Channel,
    producers: &mut [&mut Producer],
    consumers: &mut [&mut Consumer],
) -> Result<(), Failure> {
    let mut kept = Vec::new();
    for _ in 0..EACH {
        // In a queue, each item goes to one of the consumers.
        for _ in 0..consumers.len() {
            producers[0].send_timeout(&pattern(1, LEN), deadline())?;
        }
        for consumer in &mut *consumers {
            kept.push(consumer.receive_timeout(deadline())?);
        }
    }
    let last = producers.last_mut().expect("at least one");
    while last.try_send(&pattern(2, LEN)).is_ok() {
        // A channel that drops the oldest item is never full.
        if channel.when_full() == WhenFull::DropOldest && channel.published() > 100 {
            break;
        }
    }
    let mut slots = Vec::new();
    for producer in producers {
        for _ in 0..EACH {
            slots.push(producer.reserve()?);
        }
    }
    for item in kept {
        if !contains(&item, 1)? {
            return Err(Failure::new("a slot was reused while a consumer held it"));
        }
    }
    Ok(())
}

/// Traces the victim through an operation. Returns the number of instructions.
fn trace(victim: &Peer, operation: &str, steps: Option<u64>) -> Result<u64, Failure> {
    let pending = victim.begin(format!("{operation} trap=yes"));
    let thread = pending.begun()?;
    let mut traced = Traced::seize(thread)?;
    // The thread traps itself before and after the operation.
    traced.wait()?;
    let most = steps.unwrap_or(MOST_STEPS);
    let mut done = 0;
    while done < most {
        // A kill comes before the end of the operation, so its steps need no closer look.
        let continues = match steps {
            Some(_) => traced.step()?,
            None => traced.step()? && !traced.has_trapped()?,
        };
        if !continues {
            break;
        }
        done += 1;
    }
    if steps.is_none() && done == MOST_STEPS {
        return Err(Failure::new(format!("{operation} does not end")));
    }
    Ok(done)
}

/// A traced thread, which runs only when it is told to.
struct Traced(libc::pid_t);

impl Traced {
    fn seize(thread: u32) -> Result<Self, Failure> {
        let thread = thread as libc::pid_t;
        // SAFETY: this request has no address, and no options.
        let result = unsafe { libc::ptrace(libc::PTRACE_SEIZE, thread, 0, 0) };
        match result {
            0 => Ok(Self(thread)),
            _ => Err(failed("PTRACE_SEIZE")),
        }
    }

    /// Waits until the thread stops for a signal. Returns `false` if it has ended instead.
    fn wait(&mut self) -> Result<bool, Failure> {
        let mut status = 0;
        loop {
            // SAFETY: `status` is valid for writes.
            let waited = unsafe { libc::waitpid(self.0, &mut status, libc::__WALL) };
            if waited == self.0 {
                break;
            }
            let error = std::io::Error::last_os_error();
            if error.kind() != std::io::ErrorKind::Interrupted {
                return Err(failed("waitpid"));
            }
        }
        Ok(libc::WIFSTOPPED(status))
    }

    /// Lets the thread execute one instruction. Returns `false` if it has ended.
    fn step(&mut self) -> Result<bool, Failure> {
        // SAFETY: this request has no address, and delivers no signal.
        let result = unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, self.0, 0, 0) };
        if result != 0 {
            return Err(failed("PTRACE_SINGLESTEP"));
        }
        self.wait()
    }

    /// Returns whether the thread has trapped itself, which ends the operation.
    fn has_trapped(&self) -> Result<bool, Failure> {
        // SAFETY: any bytes are a siginfo.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: `info` is valid for writes of the structure that this request returns.
        let result = unsafe { libc::ptrace(libc::PTRACE_GETSIGINFO, self.0, 0, &raw mut info) };
        if result != 0 {
            return Err(failed("PTRACE_GETSIGINFO"));
        }
        const SI_TKILL: i32 = -6;
        Ok(info.si_signo == libc::SIGTRAP && info.si_code == SI_TKILL)
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        // The process is killed afterwards. A thread that has ended is no longer traced.
        // SAFETY: this request has no address, and delivers no signal.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.0, 0, libc::SIGSTOP) };
    }
}

fn failed(call: &str) -> Failure {
    Failure::new(format!("{call}: {}", std::io::Error::last_os_error()))
}
