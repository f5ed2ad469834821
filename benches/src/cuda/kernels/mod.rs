//! Round trips of kernels and replayed graphs, with threads of the host and with each other. Also
//! the cost of events inside a replay.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{hint, mem};

use anyhow::{Context as _, Result, ensure};
use crosshandle::event::DeviceEvent;
use crosshandle::graph::ExecutableGraph;
use crosshandle::kernel::{Kernel, KernelArguments, LaunchShape, Program, ProgramImage};
use crosshandle::native::{NativeObject, Ownership};
use crosshandle::{
    AllocationOptions, Command, Context, Event, EventOptions, Memory, MemoryKind, Queue,
};

use super::ours;
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::{Participant, Scenario, no_follower};
use crate::harness::timing::{nanoseconds, per_operation};
use crate::raw::cuda::{Gpu, Graph, Memory as RawMemory, Stream};
use crate::report::row::rows;

const KERNEL: &str = "cuda-kernels.kernel";
const GRAPH: &str = "cuda-kernels.graph";
const KERNELS: &str = "cuda-kernels.kernels";
const TWO_GPUS: &str = "cuda-kernels.two-gpus";
const GRAPHS: &str = "cuda-kernels.graphs";
const SLEEPER: &str = "cuda-kernels.sleeper";
const LONG_SLEEPER: &str = "cuda-kernels.long-sleeper";
const EVENTS: &str = "cuda-kernels.events";
const PARTS: &str = "cuda-kernels.parts";

pub(crate) static SCENARIO: Scenario = Scenario {
    name: "cuda-kernels",
    followers: 0,
    cores: 1,
    limit: Duration::from_secs(60),
    rows: rows! {
        KERNEL => "host → kernel that runs → host",
            "words in a host page, polled by both", AtMostTimesRaw(1.1);
        GRAPH => "replay a graph, host → graph → host",
            "the same words, in two nodes that count", AtMostTimesRaw(1.1);
        KERNELS => "kernel → kernel on the same GPU → kernel",
            "the same words, polled by both kernels", AtMostTimesRaw(1.1);
        TWO_GPUS => "kernel → kernel on another GPU → kernel",
            "the same words, polled by both kernels", AtMostTimesRaw(1.5);
        GRAPHS => "replayed graph → replayed graph in another stream → graph",
            "the same words, in two nodes that count", AtMostTimesRaw(1.1);
        SLEEPER => "host → kernel for 300 µs → thread that waits",
            "a thread that polls a word", AtMostOverRaw(60_000.0);
        LONG_SLEEPER => "host → kernel for 10 ms → thread that waits",
            "a thread that polls a word", AtMostTimesRaw(1.12);
        EVENTS => "launch a captured graph that signals 8 shared events",
            "cuGraphLaunch of an empty kernel", AtMostOverRaw(2600.0);
        PARTS => "submit a run of a graph whose 8 copies each signal a shared event",
            "cuGraphLaunch of 8 copies", AtMostOverRaw(2600.0);
    },
    leader: run_leader,
    follower: no_follower,
};

/// The kernels, which are made from the CUDA source in the same folder.
const PTX: &str = include_str!("kernels.ptx");
/// Number of round trips of one launch, and of replays that one measurement covers.
const ROUNDS: u64 = 500;
const REPLAYS: u64 = 100;
/// Number of round trips between two kernels in one measurement.
const KERNEL_ROUNDS: u64 = 2000;
/// Number of replays of two graphs that are submitted at once. It is small enough that no queue of
/// the driver becomes full.
const GRAPH_ROUNDS: u64 = 100;
/// Nanoseconds that a kernel takes before it signals a sleeping thread, and the number of its round
/// trips.
const SLEEP: (u64, u64) = (300_000, 40);
const LONG_SLEEP: (u64, u64) = (10_000_000, 8);
/// Number of events that one replay signals, and of replays that are submitted at once.
const EVENT_COUNT: usize = 8;
const EVENT_REPLAYS: usize = 16;
/// Bytes that each copy of a graph moves.
const COPY_BYTES: usize = 64;
/// Bytes between the words, so that each is on a cache line of its own.
const WORD_STEP: usize = 256;
/// Time limit of one round trip, which turns a hang into an error.
const TRIP_TIMEOUT: Duration = Duration::from_secs(4);

/// The words of the raw technique, and the numbers that were used.
struct Words {
    memory: Arc<Memory>,
    count: Memory,
    number: u64,
}

impl Words {
    fn new(context: &Context, queue: &Queue) -> Result<Self> {
        let words = AllocationOptions::new(2 * WORD_STEP).kind(MemoryKind::Host);
        let words = Self {
            memory: Arc::new(context.allocate_with(words)?),
            count: context.allocate(8)?,
            number: 0,
        };
        words.memory.write(0, &[0; 2 * WORD_STEP])?;
        ours::set_first_word(queue, &words.count, 0)?;
        Ok(words)
    }

    /// Returns the other side's view of the words, with counts of its own.
    fn other_side(&self, context: &Context, queue: &Queue, is_same_context: bool) -> Result<Self> {
        let words = Self {
            memory: match is_same_context {
                true => Arc::clone(&self.memory),
                false => Arc::new(context.open_memory(&self.memory.handle()?)?),
            },
            count: context.allocate(8)?,
            number: 0,
        };
        ours::set_first_word(queue, &words.count, 0)?;
        Ok(words)
    }

    fn word(&self, index: usize) -> Result<&AtomicU64> {
        let atomics = self.memory.bytes()?.atomics()?;
        atomics.get(index * WORD_STEP / 8).context("a word")
    }

    fn arguments(&self, rounds: u64) -> Result<KernelArguments> {
        Ok(KernelArguments::new()
            .with(&self.memory.range(..WORD_STEP)?)
            .with(&self.memory.range(WORD_STEP..)?)
            .with(&self.count.all())
            .value(rounds))
    }

    /// Returns a launch of the raw kernel for `rounds` round trips of `delay` nanoseconds.
    fn command(&self, kernel: &Kernel, rounds: u64, delay: u64) -> Result<Command> {
        launch(kernel, self.arguments(rounds)?.value(delay))
    }

    /// Returns a launch of the raw kernel of the other side.
    fn first_command(&self, kernel: &Kernel, rounds: u64) -> Result<Command> {
        launch(kernel, self.arguments(rounds)?)
    }

    /// Returns the launches of two nodes of a graph, which make one half of a round trip each.
    fn nodes(&self, kernels: [&Kernel; 2]) -> Result<[Command; 2]> {
        let arguments = || -> Result<_> {
            Ok(KernelArguments::new()
                .with(&self.memory.range(..WORD_STEP)?)
                .with(&self.memory.range(WORD_STEP..)?)
                .with(&self.count.all()))
        };
        let [first, second] = kernels;
        Ok([launch(first, arguments()?)?, launch(second, arguments()?)?])
    }

    /// Makes one round trip from the host.
    fn trip(&mut self) -> Result<()> {
        self.number += 1;
        self.word(0)?.store(self.number, Ordering::Release);
        let pong = self.word(1)?;
        let start = Instant::now();
        let mut polls = 0_u32;
        while pong.load(Ordering::Acquire) < self.number {
            hint::spin_loop();
            polls = polls.wrapping_add(1);
            ensure!(polls != 0 || start.elapsed() < TRIP_TIMEOUT, "no reply");
        }
        Ok(())
    }
}

fn launch(kernel: &Kernel, arguments: KernelArguments) -> Result<Command> {
    let shape = LaunchShape::covering(1, 1)?;
    // SAFETY: the kernels access only the memory and the events of the arguments.
    Ok(unsafe { Command::launch(kernel, shape, arguments)? })
}

/// The kernels in one context.
struct Kernels {
    ours: Kernel,
    ours_first: Kernel,
    raw: Kernel,
    raw_first: Kernel,
    raw_nodes: [Kernel; 2],
    raw_first_nodes: [Kernel; 2],
}

impl Kernels {
    fn load(context: &Context) -> Result<Self> {
        let program = Program::new(context, ProgramImage::text(PTX))?;
        Ok(Self {
            ours: program.kernel("ours")?,
            ours_first: program.kernel("ours_first")?,
            raw: program.kernel("raw")?,
            raw_first: program.kernel("raw_first")?,
            raw_nodes: [program.kernel("raw_wait")?, program.kernel("raw_signal")?],
            raw_first_nodes: [
                program.kernel("raw_first_signal")?,
                program.kernel("raw_first_wait")?,
            ],
        })
    }
}

/// Creates an event that only code on the device signals.
fn device_signalled(context: &Context) -> Result<Event> {
    Ok(context.create_event_with(EventOptions::new().single_signaller(true))?)
}

/// Returns a queue of a stream that the program captures.
fn captured(context: &Context, stream: &Stream) -> Result<Queue> {
    // SAFETY: the stream lives as long as the process.
    unsafe {
        let native = NativeObject::new(context.device().info().backend, stream.number());
        Ok(Queue::adopt(context, native, Ownership::Borrowed)?)
    }
}

/// Captures the two nodes of one side. A graph of the library has a node for each wait and each
/// signal too, because the graph's own work is between them.
fn record_nodes(
    gpu: &Gpu,
    stream: &Stream,
    queue: &Queue,
    words: &Words,
    [first, second]: &[Kernel; 2],
) -> Result<Graph> {
    let commands = words.nodes([first, second])?;
    Graph::record(gpu, stream, || {
        for command in commands {
            queue.submit(command)?;
        }
        Ok(())
    })
}

/// Round trips between the host and one kernel, or one replayed graph.
struct WithHost {
    stream: Stream,
    queue: Queue,
    kernels: Kernels,
    words: Words,
    ping: Event,
    pong: Event,
    number: u64,
    device_ping: DeviceEvent,
    device_pong: DeviceEvent,
    our_graph: Graph,
    raw_graph: Graph,
}

impl WithHost {
    fn new(gpu: &Gpu, context: &Context) -> Result<Self> {
        let stream = Stream::create(gpu)?;
        let queue = context.create_queue()?;
        let kernels = Kernels::load(context)?;
        let words = Words::new(context, &queue)?;
        let ping = context.create_event()?;
        let pong = device_signalled(context)?;
        let adopted = captured(context, &stream)?;
        let device_ping = context.device_event(&ping)?;
        let device_pong = context.device_event(&pong)?;
        let our_graph = Graph::record(gpu, &stream, || {
            adopted.wait(&ping)?;
            Ok(adopted.signal(&pong)?)
        })?;
        let raw_graph = record_nodes(gpu, &stream, &adopted, &words, &kernels.raw_nodes)?;
        Ok(Self {
            stream,
            queue,
            kernels,
            words,
            ping,
            pong,
            number: 0,
            device_ping,
            device_pong,
            our_graph,
            raw_graph,
        })
    }

    fn trip(&mut self, side: Side) -> Result<()> {
        match side {
            Side::Raw => self.words.trip(),
            Side::Ours => {
                self.number += 1;
                self.ping.signal()?;
                Ok(self.pong.wait_value_timeout(self.number, TRIP_TIMEOUT)?)
            }
        }
    }

    /// Starts a kernel for this many round trips, and makes the first one. The kernel runs then.
    fn start(&mut self, side: Side, rounds: u64, delay: u64) -> Result<()> {
        self.queue.submit(match side {
            Side::Ours => {
                let arguments = KernelArguments::new()
                    .with(&self.device_ping)
                    .with(&self.device_pong)
                    .value(rounds + 1)
                    .value(delay);
                launch(&self.kernels.ours, arguments)?
            }
            Side::Raw => self.words.command(&self.kernels.raw, rounds + 1, delay)?,
        })?;
        self.trip(side)
    }

    fn kernel(&mut self, side: Side) -> Result<f64> {
        self.start(side, ROUNDS, 0)?;
        let time = per_operation(ROUNDS as usize, || self.trip(side))?;
        self.queue.finish_timeout(TRIP_TIMEOUT)?;
        Ok(time)
    }

    fn graph(&mut self, side: Side) -> Result<f64> {
        let time = per_operation(REPLAYS as usize, || {
            match side {
                Side::Ours => self.our_graph.launch(&self.stream)?,
                Side::Raw => self.raw_graph.launch(&self.stream)?,
            }
            self.trip(side)
        })?;
        self.stream.synchronize()?;
        Ok(time)
    }

    /// Returns the times of round trips to a kernel that takes a while before it signals.
    fn sleeper(&mut self, side: Side, (delay, rounds): (u64, u64)) -> Result<Vec<f64>> {
        self.start(side, rounds, delay)?;
        let times: Result<Vec<f64>> = (0..rounds)
            .map(|_| per_operation(1, || self.trip(side)))
            .collect();
        self.queue.finish_timeout(TRIP_TIMEOUT)?;
        times
    }
}

/// Round trips between two kernels, which may be on two GPUs.
struct BetweenKernels {
    queues: [Queue; 2],
    kernels: [Kernels; 2],
    words: [Words; 2],
    /// `ping` and `pong`, for each of the kernels.
    events: [[DeviceEvent; 2]; 2],
}

impl BetweenKernels {
    fn new(contexts: [&Context; 2]) -> Result<Self> {
        let [first, second] = contexts;
        let queues = [first.create_queue()?, second.create_queue()?];
        let words = Words::new(first, &queues[0])?;
        let other = words.other_side(second, &queues[1], std::ptr::eq(first, second))?;
        let (ping, pong) = (device_signalled(first)?, device_signalled(second)?);
        let of = |context: &Context| -> Result<_> {
            Ok([context.device_event(&ping)?, context.device_event(&pong)?])
        };
        Ok(Self {
            queues,
            kernels: [Kernels::load(first)?, Kernels::load(second)?],
            words: [words, other],
            events: [of(first)?, of(second)?],
        })
    }

    fn measure(&self, side: Side) -> Result<f64> {
        let begin = Instant::now();
        let (first, second) = (&self.kernels[0], &self.kernels[1]);
        let arguments = |index: usize| {
            let [ping, pong] = &self.events[index];
            KernelArguments::new()
                .with(ping)
                .with(pong)
                .value(KERNEL_ROUNDS)
        };
        let commands = match side {
            Side::Ours => [
                launch(&first.ours_first, arguments(0))?,
                launch(&second.ours, arguments(1).value(0_u64))?,
            ],
            Side::Raw => [
                self.words[0].first_command(&first.raw_first, KERNEL_ROUNDS)?,
                self.words[1].command(&second.raw, KERNEL_ROUNDS, 0)?,
            ],
        };
        for (queue, command) in self.queues.iter().zip(commands) {
            queue.submit(command)?;
        }
        for queue in &self.queues {
            queue.finish_timeout(TRIP_TIMEOUT)?;
        }
        Ok(nanoseconds(begin.elapsed()) / KERNEL_ROUNDS as f64)
    }
}

/// Round trips between two graphs in two streams, and the events that a replay signals.
struct Replays {
    streams: [Stream; 2],
    queue: Queue,
    our_graphs: [Graph; 2],
    raw_graphs: [Graph; 2],
    _words: [Words; 2],
    our_signals: Graph,
    raw_empty: Graph,
    our_parts: ExecutableGraph,
    raw_copies: Graph,
}

impl Replays {
    fn new(gpu: &Gpu, context: &Context) -> Result<Self> {
        let streams = [Stream::create(gpu)?, Stream::create(gpu)?];
        let queue = context.create_queue()?;
        let kernels = Kernels::load(context)?;
        let words = Words::new(context, &queue)?;
        let other = words.other_side(context, &queue, true)?;
        let (ping, pong) = (device_signalled(context)?, device_signalled(context)?);
        let [first, second] = &streams;
        let queues = [captured(context, first)?, captured(context, second)?];
        let our_graphs = [
            Graph::record(gpu, first, || {
                queues[0].signal(&ping)?;
                Ok(queues[0].wait(&pong)?)
            })?,
            Graph::record(gpu, second, || {
                queues[1].wait(&ping)?;
                Ok(queues[1].signal(&pong)?)
            })?,
        ];
        let raw_graphs = [
            record_nodes(gpu, first, &queues[0], &words, &kernels.raw_first_nodes)?,
            record_nodes(gpu, second, &queues[1], &other, &kernels.raw_nodes)?,
        ];
        let events: Result<Vec<Event>> = (0..EVENT_COUNT)
            .map(|_| device_signalled(context))
            .collect();
        let events = events?;
        let our_signals = Graph::record(gpu, first, || {
            Ok(events
                .iter()
                .try_for_each(|event| queues[0].signal(event))?)
        })?;
        let raw_empty = Graph::record(gpu, first, || {
            Ok(queues[0].submit(words.command(&kernels.raw, 0, 0)?)?)
        })?;
        let (from, to) = (context.allocate(COPY_BYTES)?, context.allocate(COPY_BYTES)?);
        let mut graph = crosshandle::graph::Graph::new(context);
        let mut last = None;
        for _ in 0..EVENT_COUNT {
            let copy = Command::copy(from.all(), to.all())?.signal(&context.create_event()?);
            last = Some(graph.add(copy, last.as_slice())?);
        }
        let our_parts = graph.instantiate()?;
        let raw = (
            RawMemory::allocate(gpu, COPY_BYTES)?,
            RawMemory::allocate(gpu, COPY_BYTES)?,
        );
        let raw_copies = Graph::record(gpu, first, || {
            (0..EVENT_COUNT).try_for_each(|_| first.copy(&raw.1, &raw.0, COPY_BYTES))
        })?;
        // The graph of copies is launched as long as the process lives.
        mem::forget(raw);
        Ok(Self {
            streams,
            queue,
            our_graphs,
            raw_graphs,
            _words: [words, other],
            our_signals,
            raw_empty,
            our_parts,
            raw_copies,
        })
    }

    fn turns(&self, side: Side) -> Result<f64> {
        let graphs = match side {
            Side::Ours => &self.our_graphs,
            Side::Raw => &self.raw_graphs,
        };
        let begin = Instant::now();
        for _ in 0..GRAPH_ROUNDS {
            for (graph, stream) in graphs.iter().zip(&self.streams) {
                graph.launch(stream)?;
            }
        }
        for stream in &self.streams {
            stream.synchronize()?;
        }
        Ok(nanoseconds(begin.elapsed()) / GRAPH_ROUNDS as f64)
    }

    fn events(&self, side: Side) -> Result<f64> {
        let graph = match side {
            Side::Ours => &self.our_signals,
            Side::Raw => &self.raw_empty,
        };
        let time = per_operation(EVENT_REPLAYS, || graph.launch(&self.streams[0]))?;
        self.streams[0].synchronize()?;
        Ok(time)
    }

    fn parts(&self, side: Side) -> Result<f64> {
        let time = per_operation(EVENT_REPLAYS, || match side {
            Side::Ours => Ok(self.queue.submit(self.our_parts.command())?),
            Side::Raw => self.raw_copies.launch(&self.streams[0]),
        })?;
        self.queue.finish_timeout(TRIP_TIMEOUT)?;
        self.streams[0].synchronize()?;
        Ok(time)
    }
}

fn run_leader(participant: &Participant) -> Result<Outcome> {
    let gpu = Gpu::open(0)?;
    let context = ours::context(0)?;
    let mut with_host = WithHost::new(&gpu, &context)?;
    let kernels = BetweenKernels::new([&context; 2])?;
    let replays = Replays::new(&gpu, &context)?;
    let mut recorder = Recorder::default();
    let count = Gpu::count()?;
    let two_gpus = match count {
        0 | 1 => {
            recorder.absent(TWO_GPUS, format!("needs 2 GPUs, and there is {count}"));
            None
        }
        _ => {
            let other = ours::context(1)?;
            Some(BetweenKernels::new([&context, &other])?)
        }
    };
    participant.plan.pin(0)?;

    let batches = participant.plan.pick(20, 8);
    for round in 0..participant.plan.rounds() {
        for side in Side::order(round) {
            for batch in 0..=batches {
                let mut samples = vec![
                    (KERNEL, with_host.kernel(side)?),
                    (GRAPH, with_host.graph(side)?),
                    (KERNELS, kernels.measure(side)?),
                    (GRAPHS, replays.turns(side)?),
                    (EVENTS, replays.events(side)?),
                    (PARTS, replays.parts(side)?),
                ];
                if let Some(two) = &two_gpus {
                    samples.push((TWO_GPUS, two.measure(side)?));
                }
                // The first batch warms up.
                for (row, sample) in samples.into_iter().filter(|_| batch > 0) {
                    recorder.push(row, side, sample);
                }
            }
            recorder.extend(SLEEPER, side, with_host.sleeper(side, SLEEP)?);
            recorder.extend(LONG_SLEEPER, side, with_host.sleeper(side, LONG_SLEEP)?);
        }
    }
    Ok(recorder.finish())
}
