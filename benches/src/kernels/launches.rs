//! Launches of a small kernel that depend on each other, compared with the same launches in an
//! in-order OpenCL queue. Both sides use the same runtime, whose threads run on all cores.

use std::ffi::CStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use crosshandle::{
    Command, Context, Event, Memory,
    kernel::{KernelArguments, LaunchShape, ProgramImage},
};
use opencl_cpu::{Argument, Code, Image, Program, Runtime, Shape};

use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::{Participant, Scenario, no_follower};
use crate::harness::timing::per_operation;
use crate::host::ours;
use crate::report::row::rows;

const CHAIN: &str = "launches.chain";
const EVENTS: &str = "launches.events";
const EACH: &str = "launches.each";

pub(crate) static SCENARIO: Scenario = Scenario {
    name: "launches",
    followers: 0,
    cores: 2,
    limit: Duration::from_secs(120),
    rows: rows! {
        CHAIN => "each of 1,000 launches in an in-order queue, until the last is done",
            "an in-order OpenCL queue, flushed after each, finished once", AtMostTimesRaw(1.15);
        EVENTS => "the same, each waiting for an event that the one before signals",
            "an in-order OpenCL queue, flushed after each, finished once", None;
        EACH => "a launch, until it is done",
            "an in-order OpenCL queue, each event waited for", None;
    },
    leader: run_leader,
    follower: no_follower,
};

const SOURCE: &str = "kernel void fill(global uint *to, uint value, uint count) {
    size_t i = get_global_id(0);
    if (i < count)
        to[i] = value;
}";
const KERNEL: &CStr = c"fill";
const LAUNCHES: usize = 1000;
const GROUPS: u32 = 2;
const GROUP_ITEMS: u32 = 128;
const WORDS: u32 = GROUPS * GROUP_ITEMS;

fn run_leader(participant: &Participant) -> Result<Outcome> {
    let (raw, ours) = (Raw::new()?, Ours::new()?);
    let mut recorder = Recorder::default();
    let batches = participant.plan.pick(20, 5);
    for round in 0..participant.plan.rounds() {
        for row in [CHAIN, EVENTS, EACH] {
            for side in Side::order(round) {
                for batch in 0..=batches {
                    let elapsed = match side {
                        Side::Ours => ours.batch(row)?,
                        Side::Raw => raw.batch(row)?,
                    };
                    if batch > 0 {
                        recorder.push(row, side, elapsed);
                    }
                }
            }
        }
    }
    Ok(recorder.finish())
}

/// Measures `LAUNCHES` calls and the wait for the last launch. Returns the nanoseconds per launch.
fn timed(mut launch: impl FnMut() -> Result<()>, finish: impl Fn() -> Result<()>) -> Result<f64> {
    let mut left = LAUNCHES;
    per_operation(LAUNCHES, || {
        launch()?;
        left -= 1;
        match left {
            0 => finish(),
            _ => Ok(()),
        }
    })
}

/// The library's objects.
struct Ours {
    kernel: crosshandle::kernel::Kernel,
    queue: crosshandle::Queue,
    event: Event,
    memory: Memory,
    _context: Context,
}

impl Ours {
    fn new() -> Result<Self> {
        let context = ours::context()?;
        let program = crosshandle::kernel::Program::new(&context, ProgramImage::text(SOURCE))?;
        Ok(Self {
            kernel: program.kernel(KERNEL.to_str()?)?,
            queue: context.create_queue()?,
            event: context.create_event()?,
            memory: context.allocate(4 * WORDS as usize)?,
            _context: context,
        })
    }

    fn batch(&self, row: &str) -> Result<f64> {
        let submit = |signals| {
            let arguments = KernelArguments::new()
                .with(&self.memory.all())
                .value(1_u32)
                .value(WORDS);
            let shape = LaunchShape::new([GROUPS, 1, 1], [GROUP_ITEMS, 1, 1]);
            // SAFETY: the kernel writes as many words as the memory has.
            let command = unsafe { Command::launch(&self.kernel, shape, arguments) }?;
            let command = match signals {
                true => command.after(&self.event).signal(&self.event),
                false => command,
            };
            Ok(self.queue.submit(command)?)
        };
        let finish = || Ok(self.queue.finish()?);
        match row {
            EACH => per_operation(LAUNCHES, || {
                submit(false)?;
                finish()
            }),
            row => timed(|| submit(row == EVENTS), finish),
        }
    }
}

/// The OpenCL runtime's own objects.
struct Raw {
    kernel: opencl_cpu::Kernel,
    queue: opencl_cpu::Queue,
    words: Vec<u32>,
}

impl Raw {
    fn new() -> Result<Self> {
        let runtime = Runtime::get().map_err(|reason| anyhow!("{reason}"))?;
        let device = runtime.device();
        let code = Code {
            image: Image::Source(SOURCE),
            options: "",
        };
        // SAFETY: the code is text. Only a binary could break the contract.
        let program = Arc::new(unsafe { Program::build(&device, &[code], "") }.map_err(said)?);
        Ok(Self {
            kernel: program.kernel(KERNEL).map_err(said)?,
            queue: opencl_cpu::Queue::new(&device).map_err(said)?,
            words: vec![0; WORDS as usize],
        })
    }

    fn batch(&self, row: &str) -> Result<f64> {
        let shape = Shape {
            offset: [0; 3],
            global: [WORDS as usize, 1, 1],
            local: Some([GROUP_ITEMS as usize, 1, 1]),
        };
        let (value, count) = (1_u32.to_ne_bytes(), WORDS.to_ne_bytes());
        let launch = || {
            let arguments = [
                Argument::Address(self.words.as_ptr().expose_provenance()),
                Argument::Value(&value),
                Argument::Value(&count),
            ];
            // SAFETY: the kernel writes only the words of this memory, which no other code uses.
            unsafe {
                self.queue
                    .launch(&self.kernel, &shape, arguments.into_iter())
            }
            .map_err(said)
        };
        match row {
            EACH => per_operation(LAUNCHES, || launch()?.wait().map_err(said)),
            _ => {
                let launch = || {
                    drop(launch()?);
                    // The library flushes too, because it must not leave a launch until the next
                    // call.
                    self.queue.flush().map_err(said)
                };
                timed(launch, || self.queue.finish().map_err(said))
            }
        }
    }
}

fn said(failure: opencl_cpu::Failure) -> anyhow::Error {
    anyhow!("{failure}")
}
