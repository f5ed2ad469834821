//! Kernels compute on shared memory, in the order of events.

use crate::failure::{Failure, Verdict};
use crate::harness::{Harness, deadline};
use crate::kernels::Kernels;
use crate::suite::PASSED;
use crate::{Peer, Transfer, Usage};
use crosshandle::{
    Command, Error, Memory, QueueOrder,
    kernel::{Program, ProgramImage},
};

const COUNT: usize = 100_000;
const ROUNDS: u32 = 20;
/// One in this many rounds compiles the programs. The other rounds use a binary.
const ROUNDS_TO_COMPILE: usize = 10;

/// Returns an error unless all words have this value.
fn check(transfer: &Transfer, memory: &Memory, value: u32) -> Result<(), Failure> {
    let bytes = transfer.read(memory, 0, memory.len())?;
    let words = bytes.as_chunks::<4>().0.iter();
    let mut words = words.map(|word| u32::from_ne_bytes(*word)).enumerate();
    match words.find(|(_, word)| *word != value) {
        None => Ok(()),
        Some((at, word)) => Err(Failure::new(format!("word {at} is {word}, not {value}"))),
    }
}

/// Starts a peer with loaded kernels and a queue, which opens this memory as `memory`.
fn consumer(harness: &Harness, memory: &Memory) -> Result<Peer, Failure> {
    let peer = harness.peer()?;
    peer.ask("load-kernels kernels")?;
    peer.ask("queue q")?;
    peer.ask(format!("open-memory memory {}", memory.handle()?))?;
    Ok(peer)
}

/// In each round, a producer's kernel runs, then a consumer's kernel, then the producer's copy.
/// Only events order them.
pub(crate) fn processes_compute_in_turns(harness: &Harness) -> Verdict {
    let (context, transfer) = harness.transfer()?;
    let kernels = Kernels::load(&context)?;
    let memory = context.allocate(4 * COUNT)?;
    let peer = consumer(harness, &memory)?;
    let (filled, scaled) = (context.create_event()?, context.create_event()?);
    peer.ask(format!("open-event filled {}", filled.handle()?))?;
    peer.ask(format!("open-event scaled {}", scaled.handle()?))?;
    let own = context.allocate(4 * COUNT)?;
    for order in [QueueOrder::InOrder, QueueOrder::OutOfOrder] {
        let queue = context.create_queue_with(order)?;
        for round in 0..ROUNDS {
            // The consumer's launch may be submitted first.
            let later = peer.begin(format!(
                "submit q scale kernels memory {round} after-value=filled:{} signal=scaled",
                filled.submitted() + 1
            ));
            let fill = kernels.fill(&memory.all(), 7 * round)?;
            queue.submit(fill.signal(&filled))?;
            later.reply(deadline())?;
            let copy = Command::copy(memory.all(), own.all())?;
            queue.submit(copy.after_value(&scaled, filled.submitted()))?;
            queue.finish_timeout(deadline())?;
            check(&transfer, &own, 3 * 7 * round + round)?;
        }
    }
    PASSED
}

/// A kernel writes to memory that a peer allocated, and the peer reads it.
pub(crate) fn kernels_write_opened_memory(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let kernels = Kernels::load(&context)?;
    let peer = harness.peer()?;
    peer.ask(format!("allocate theirs {}", 4 * COUNT))?;
    let handle = peer.ask("memory-handle theirs")?.remove(0).parse()?;
    let theirs = context.open_memory(&handle)?;
    let queue = context.create_queue()?;
    let done = context.create_event()?;
    peer.ask(format!("open-event done {}", done.handle()?))?;
    peer.ask(format!("write theirs 0 1 {}", 4 * COUNT))?;
    queue.submit(kernels.fill(&theirs.all(), 0)?.signal(&done))?;
    peer.ask("wait-value done 1 10000")?;
    let zeros = peer.ask(format!("zeros theirs 0 {}", 4 * COUNT))?;
    assert_eq!(zeros, ["true"]);
    PASSED
}

/// A waiting launch keeps its program and its memory alive, whatever its process drops.
pub(crate) fn launches_outlive_what_they_use(harness: &Harness) -> Verdict {
    let (context, transfer) = harness.transfer()?;
    let memory = context.allocate(4 * COUNT)?;
    let peer = consumer(harness, &memory)?;
    let (gate, done) = (context.create_event()?, context.create_event()?);
    peer.ask(format!("open-event gate {}", gate.handle()?))?;
    peer.ask(format!("open-event done {}", done.handle()?))?;
    peer.ask("submit q fill-words kernels memory 9 after-value=gate:1 signal=done")?;
    peer.ask("close kernels")?;
    peer.ask("close memory")?;
    gate.signal()?;
    done.wait_value_timeout(1, deadline())?;
    check(&transfer, &memory, 9)?;
    PASSED
}

/// A kernel that faults stops the device only for its own process. That process's signals fail, and
/// other processes still compute, even on the same memory.
pub(crate) fn faults_stay_in_their_process(harness: &Harness) -> Verdict {
    let (context, transfer) = harness.transfer()?;
    let kernels = Kernels::load(&context)?;
    let memory = context.allocate(4 * COUNT)?;
    let peer = consumer(harness, &memory)?;
    let (before, failed) = (context.create_event()?, context.create_event()?);
    let gate = context.create_event()?;
    peer.ask(format!("open-event gate {}", gate.handle()?))?;
    peer.ask(format!("open-event before {}", before.handle()?))?;
    peer.ask(format!("open-event failed {}", failed.handle()?))?;
    peer.ask("submit q fill-words kernels memory 5 signal=before")?;
    before.wait_value_timeout(1, deadline())?;
    // The launch is submitted before the fault, because the fault may end the process.
    peer.ask("submit q fault kernels after-value=gate:1 signal=failed")?;
    gate.signal()?;
    let result = failed.wait_value_timeout(1, deadline());
    assert!(
        matches!(result, Err(Error::CommandFailed(_) | Error::PeerDied(_))),
        "{result:?}"
    );
    let queue = context.create_queue()?;
    queue.submit(kernels.scale(&memory.all(), 1)?)?;
    queue.finish_timeout(deadline())?;
    check(&transfer, &memory, 16)?;
    PASSED
}

/// Loading and dropping programs leaves no resources behind.
pub(crate) fn programs_come_and_go(harness: &Harness) -> Verdict {
    const KIB: usize = 1024;
    let context = harness.context()?;
    let queue = context.create_queue()?;
    let memory = context.allocate(4 * COUNT)?;
    let run = |program: Program| -> Result<(), Failure> {
        let kernels = Kernels::of(&program)?;
        drop(program);
        queue.submit(kernels.fill(&memory.all(), 1)?)?;
        drop(kernels);
        Ok(queue.finish_timeout(deadline())?)
    };
    // Compiling on the host takes most of the time, so only a few rounds compile.
    let compiled = Kernels::program(&context)?;
    let binary = compiled.binary()?;
    drop(compiled);
    let round = |number: usize| match &binary {
        Some(binary) if !number.is_multiple_of(ROUNDS_TO_COMPILE) => {
            // SAFETY: the same driver made this binary from the kernels.
            run(Program::new(&context, unsafe {
                ProgramImage::binary(binary)
            })?)
        }
        _ => run(Kernels::program(&context)?),
    };
    (0..20).try_for_each(round)?;
    // A leak would grow in every round, but a thread for queues starts only once.
    let mut seen = Vec::new();
    for _ in 0..3 {
        let before = Usage::of_self()?;
        (0..200).try_for_each(round)?;
        let after = Usage::of_self()?;
        if after.descriptors <= before.descriptors + 2
            && after.mappings <= before.mappings + 4
            && after.resident <= before.resident + 8 * KIB
        {
            return PASSED;
        }
        seen.push((before, after));
    }
    Err(Failure::new(format!(
        "before and after two hundred rounds, three times: {seen:?}"
    )))
}
