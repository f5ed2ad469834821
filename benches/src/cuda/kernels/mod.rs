//! The time of a round trip between a thread of the host and a kernel, or a replayed graph.

use std::hint;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use crosshandle::kernel::{Kernel, KernelArguments, LaunchShape, Program, ProgramImage};
use crosshandle::native::{NativeObject, Ownership};
use crosshandle::{AllocationOptions, Command, EventOptions, Memory, MemoryKind, Queue};

use super::ours;
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::{Participant, Scenario, no_follower};
use crate::harness::timing::per_operation;
use crate::raw::cuda::{Gpu, Graph, Stream};
use crate::report::row::rows;

const KERNEL: &str = "cuda-kernels.kernel";
const GRAPH: &str = "cuda-kernels.graph";

pub(crate) static SCENARIO: Scenario = Scenario {
    name: "cuda-kernels",
    followers: 0,
    cores: 1,
    limit: Duration::from_secs(60),
    rows: rows! {
        KERNEL => "host → kernel that runs → host",
            "words in a host page, polled by both", AtMostTimesRaw(1.1);
        GRAPH => "replay a graph, host → graph → host",
            "the same words, in kernels that count", AtMostTimesRaw(1.1);
    },
    leader: run_leader,
    follower: no_follower,
};

/// The kernels, which are made from the CUDA source in the same folder.
const PTX: &str = include_str!("kernels.ptx");
/// Number of round trips of one launch, and of replays that one measurement covers.
const ROUNDS: u64 = 500;
const REPLAYS: u64 = 100;
/// Bytes between the words, so that each is on a cache line of its own.
const WORD_STEP: usize = 256;
/// Time limit of one round trip, which turns a hang into an error.
const TRIP_TIMEOUT: Duration = Duration::from_secs(4);

/// The words of the raw technique, and the numbers that were used.
struct Words {
    memory: Memory,
    count: Memory,
    number: u64,
}

impl Words {
    fn word(&self, index: usize) -> Result<&AtomicU64> {
        let atomics = self.memory.bytes()?.atomics()?;
        atomics.get(index * WORD_STEP / 8).context("a word")
    }

    /// Returns a launch of the raw kernel for `rounds` round trips.
    fn command(&self, kernel: &Kernel, rounds: u64) -> Result<Command> {
        let arguments = KernelArguments::new()
            .with(&self.memory.range(..WORD_STEP)?)
            .with(&self.memory.range(WORD_STEP..)?)
            .with(&self.count.all())
            .value(rounds);
        launch(kernel, arguments)
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

fn run_leader(participant: &Participant) -> Result<Outcome> {
    let gpu = Gpu::open(0)?;
    let stream = Stream::create(&gpu)?;
    let context = ours::context(0)?;
    let program = Program::new(&context, ProgramImage::text(PTX))?;
    let (our_kernel, raw_kernel) = (program.kernel("ours")?, program.kernel("raw")?);
    let queue = context.create_queue()?;
    let words = AllocationOptions::new(2 * WORD_STEP).kind(MemoryKind::Host);
    let mut words = Words {
        memory: context.allocate_with(words)?,
        count: context.allocate(8)?,
        number: 0,
    };
    words.memory.write(0, &[0; 2 * WORD_STEP])?;
    ours::set_first_word(&queue, &words.count, 0)?;
    let ping = context.create_event()?;
    let pong = context.create_event_with(EventOptions::new().single_signaller(true))?;
    let (device_ping, device_pong) = (context.device_event(&ping)?, context.device_event(&pong)?);
    let mut number = 0;
    let mut trip = || -> Result<()> {
        number += 1;
        ping.signal()?;
        Ok(pong.wait_value_timeout(number, TRIP_TIMEOUT)?)
    };
    // SAFETY: the stream lives as long as the process.
    let captured = unsafe {
        let native = NativeObject::new(context.device().info().backend, stream.number());
        Queue::adopt(&context, native, Ownership::Borrowed)?
    };
    let our_graph = Graph::record(&gpu, &stream, || {
        captured.wait(&ping)?;
        Ok(captured.signal(&pong)?)
    })?;
    let raw_graph = Graph::record(&gpu, &stream, || {
        Ok(captured.submit(words.command(&raw_kernel, 1)?)?)
    })?;
    participant.plan.pin(0)?;

    let mut recorder = Recorder::default();
    let batches = participant.plan.pick(20, 8);
    for round in 0..participant.plan.rounds() {
        for side in Side::order(round) {
            for batch in 0..=batches {
                queue.submit(match side {
                    Side::Ours => {
                        let arguments = KernelArguments::new()
                            .with(&device_ping)
                            .with(&device_pong)
                            .value(ROUNDS + 1);
                        launch(&our_kernel, arguments)?
                    }
                    Side::Raw => words.command(&raw_kernel, ROUNDS + 1)?,
                })?;
                let mut one = || match side {
                    Side::Ours => trip(),
                    Side::Raw => words.trip(),
                };
                // The kernel runs after the first round trip.
                one()?;
                let kernel = per_operation(ROUNDS as usize, &mut one)?;
                queue.finish_timeout(TRIP_TIMEOUT)?;
                let graph = per_operation(REPLAYS as usize, || {
                    match side {
                        Side::Ours => our_graph.launch(&stream)?,
                        Side::Raw => raw_graph.launch(&stream)?,
                    }
                    one()
                })?;
                stream.synchronize()?;
                if batch > 0 {
                    recorder.push(KERNEL, side, kernel);
                    recorder.push(GRAPH, side, graph);
                }
            }
        }
    }
    Ok(recorder.finish())
}
