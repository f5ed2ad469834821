//! Graphs are recorded once and run many times. Only whole runs wait for events and signal them.

use crate::failure::{Failure, Verdict};
use crate::harness::{Harness, deadline};
use crate::kernels::Kernels;
use crate::pattern::{Random, pattern};
use crate::suite::{Outcome, PASSED};
use crate::{Transfer, Usage};
use crosshandle::graph::Graph;
use crosshandle::{
    Command, Context, Error, Memory, Queue, QueueOrder, Result,
    graph::ExecutableGraph,
    memory::{Pitches, Region},
};

/// The memory of most cases consists of blocks, and of one spare block for temporary contents.
const BLOCKS: usize = 8;
const BLOCK: usize = 1 << 12;
const LEN: usize = (BLOCKS + 1) * BLOCK;
const ROUNDS: u64 = 12;

fn block(memory: &Memory, index: usize) -> Result<crosshandle::MemoryRange> {
    memory.range(index * BLOCK..(index + 1) * BLOCK)
}

/// Creates a graph that moves every block one place down, and the first one to the end.
fn rotation(context: &Context, memory: &Memory) -> Result<ExecutableGraph> {
    let mut graph = Graph::new(context);
    let copy = |from, to| Command::copy(block(memory, from)?, block(memory, to)?);
    let mut last = graph.add(copy(0, BLOCKS)?, &[])?;
    for index in 0..BLOCKS {
        last = graph.add(copy(index + 1, index)?, &[last])?;
    }
    graph.instantiate()
}

/// Returns the steps of a peer's graph that swaps the first two blocks. A swap and a rotation do
/// not commute.
fn swap() -> String {
    let spare = BLOCKS * BLOCK;
    format!("copy,{spare},0,{BLOCK} copy,0,{BLOCK},{BLOCK} copy,{BLOCK},{spare},{BLOCK}")
}

fn write_blocks(transfer: &Transfer, memory: &Memory) -> Result<Vec<u64>> {
    for index in 0..BLOCKS {
        transfer.write(memory, index * BLOCK, &pattern(index as u64, BLOCK))?;
    }
    Ok((0..BLOCKS as u64).collect())
}

/// Returns an error unless the blocks have the patterns of these seeds, in this order.
fn check_blocks(transfer: &Transfer, memory: &Memory, order: &[u64]) -> Result<(), Failure> {
    let bytes = transfer.read(memory, 0, BLOCKS * BLOCK)?;
    let seeds = bytes.chunks(BLOCK).map(|bytes| {
        let is_it = |seed: &u64| bytes == pattern(*seed, BLOCK);
        (0..BLOCKS as u64).find(is_it)
    });
    let seeds: Vec<_> = seeds.collect();
    match seeds.iter().copied().eq(order.iter().copied().map(Some)) {
        true => Ok(()),
        false => Err(Failure::new(format!("{seeds:?} instead of {order:?}"))),
    }
}

/// Two processes alternately run a graph each on one memory. Events of the runs order them.
pub(crate) fn processes_compute_in_turns(harness: &Harness) -> Verdict {
    let (context, transfer) = harness.transfer()?;
    let memory = context.allocate(LEN)?;
    let mut order = write_blocks(&transfer, &memory)?;
    let rotate = rotation(&context, &memory)?;
    assert_eq!(rotate.is_native(), harness.capabilities().native_graphs);
    let peer = harness.peer()?;
    peer.ask(format!("open-memory memory {}", memory.handle()?))?;
    peer.ask(format!("graph swap memory {}", swap()))?;
    let (rotated, swapped) = (context.create_event()?, context.create_event()?);
    peer.ask(format!("open-event rotated {}", rotated.handle()?))?;
    peer.ask(format!("open-event swapped {}", swapped.handle()?))?;
    for (name, kind) in [("q", QueueOrder::InOrder), ("f", QueueOrder::OutOfOrder)] {
        let queue = context.create_queue_with(kind)?;
        let free = if name == "f" { "order=free" } else { "" };
        peer.ask(format!("queue {name} {free}"))?;
        for _ in 0..ROUNDS {
            // The peer's run is submitted first and waits for this process's run.
            let turn = rotated.submitted() + 1;
            peer.ask(format!(
                "submit {name} run swap after-value=rotated:{turn} signal=swapped"
            ))?;
            let run = rotate.command().after_value(&swapped, turn - 1);
            queue.submit(run.signal(&rotated))?;
            order.rotate_left(1);
            order.swap(0, 1);
        }
        swapped.wait_value_timeout(rotated.submitted(), deadline())?;
        queue.finish_timeout(deadline())?;
        check_blocks(&transfer, &memory, &order)?;
    }
    PASSED
}

fn words(transfer: &Transfer, memory: &Memory) -> Result<Vec<u32>> {
    let bytes = transfer.read(memory, 0, memory.len())?;
    let words = bytes.as_chunks::<4>().0.iter();
    Ok(words.map(|word| u32::from_ne_bytes(*word)).collect())
}

/// Graphs of kernels run alternately, and get other arguments between their runs.
pub(crate) fn kernels_compute_in_turns(harness: &Harness) -> Verdict {
    const COUNT: usize = 10_000;
    if ![harness.device(), harness.peer_device()]
        .into_iter()
        .all(Kernels::run_on)
    {
        return Ok(Outcome::Skipped("kernels"));
    }
    let (context, transfer) = harness.transfer()?;
    let kernels = Kernels::load(&context)?;
    let memory = context.allocate(4 * COUNT)?;
    let own = context.allocate(4 * COUNT)?;
    let mut graph = Graph::new(&context);
    let first = graph.add(kernels.fill(&memory.all(), 0)?, &[])?;
    let second = graph.add(kernels.scale(&memory.all(), 1)?, &[first])?;
    graph.add(Command::copy(memory.all(), own.all())?, &[second])?;
    let executable = graph.instantiate()?;
    let peer = harness.peer()?;
    peer.ask("load-kernels kernels")?;
    peer.ask("queue q")?;
    peer.ask(format!("open-memory memory {}", memory.handle()?))?;
    peer.ask("graph scale memory scale,kernels,5 scale,kernels,7")?;
    let (here, there) = (context.create_event()?, context.create_event()?);
    peer.ask(format!("open-event here {}", here.handle()?))?;
    peer.ask(format!("open-event there {}", there.handle()?))?;
    let queue = context.create_queue()?;
    for round in 1..=ROUNDS as u32 {
        executable.update_all([
            (first, kernels.fill(&memory.all(), round)?),
            (second, kernels.scale(&memory.all(), 2 * round)?),
        ])?;
        peer.ask(format!("update-graph scale 0 memory scale,kernels,{round}"))?;
        peer.ask(format!(
            "submit q run scale after-value=here:{round} signal=there"
        ))?;
        let run = executable.command();
        queue.submit(run.after_value(&there, u64::from(round - 1)).signal(&here))?;
        there.wait_value_timeout(u64::from(round), deadline())?;
        let ours = 3 * round + 2 * round;
        let theirs = 3 * (3 * ours + round) + 7;
        for (memory, wanted) in [(&own, ours), (&memory, theirs)] {
            let words = words(&transfer, memory)?;
            let wrong = words.iter().find(|word| **word != wanted);
            assert_eq!(wrong, None, "instead of {wanted}");
        }
    }
    PASSED
}

/// An update changes only runs that are submitted later, even if earlier runs are still queued.
pub(crate) fn updates_change_later_runs(harness: &Harness) -> Verdict {
    let (context, transfer) = harness.transfer()?;
    let (memory, results) = (context.allocate(LEN)?, context.allocate(LEN)?);
    let gate = context.create_event()?;
    let mut graph = Graph::new(&context);
    let fill = |pattern: &[u8]| Command::fill(memory.range(..240)?, pattern);
    let first = graph.add(fill(&[0])?, &[])?;
    let second = graph.add(
        Command::copy(memory.range(..240)?, memory.range(240..480)?)?,
        &[first],
    )?;
    let executable = graph.instantiate()?;
    let queue = context.create_queue()?;
    queue.submit(Command::barrier().after_value(&gate, 1))?;
    // The patterns have several lengths, which drivers handle differently.
    let long: Vec<u8> = (0..120).collect();
    let patterns: [&[u8]; 6] = [&[1], &[1, 2], &[3], &[1, 2, 3], &long, &[9, 8, 7, 6]];
    let mut wanted = Vec::new();
    for (index, pattern) in patterns.iter().enumerate() {
        executable.update(first, fill(pattern)?)?;
        if index == 3 {
            // The first update sets another copy, and the next one another kind of command.
            let to = memory.range(250..490)?;
            executable.update(second, Command::copy(memory.range(..240)?, to)?)?;
        }
        if index == 5 {
            executable.update(second, Command::fill(memory.range(240..248)?, &[5])?)?;
        }
        queue.submit(executable.command())?;
        let to = results.range(index * 512..(index + 1) * 512)?;
        queue.submit(Command::copy(memory.range(..512)?, to)?)?;
        let mut bytes = wanted.last().cloned().unwrap_or(vec![0; 512]);
        for (at, byte) in bytes[..240].iter_mut().enumerate() {
            *byte = pattern[at % pattern.len()];
        }
        match index {
            0..3 => bytes.copy_within(..240, 240),
            3..5 => bytes.copy_within(..240, 250),
            _ => bytes[240..248].fill(5),
        }
        wanted.push(bytes);
    }
    fails!(
        executable.update(first, Command::call(|| Ok::<_, Error>(()))),
        Unsupported
    );
    // Memory that was never written has arbitrary contents on some devices.
    transfer_zeros(&transfer, &memory)?;
    gate.signal()?;
    queue.finish_timeout(deadline())?;
    for (index, wanted) in wanted.iter().enumerate() {
        let bytes = transfer.read(&results, index * 512, 512)?;
        assert!(bytes == *wanted, "run {index}: {bytes:?}");
    }
    PASSED
}

fn transfer_zeros(transfer: &Transfer, memory: &Memory) -> Result<()> {
    transfer.write(memory, 0, &vec![0; memory.len()])
}

/// A waiting run keeps the graph, its memory, its kernels and everything else that it uses,
/// whatever its process drops.
pub(crate) fn runs_outlive_what_they_use(harness: &Harness) -> Verdict {
    let (context, transfer) = harness.transfer()?;
    let memory = context.allocate(LEN)?;
    let peer = harness.peer()?;
    peer.ask(format!("open-memory memory {}", memory.handle()?))?;
    peer.ask("queue q")?;
    let (gate, done) = (context.create_event()?, context.create_event()?);
    peer.ask(format!("open-event gate {}", gate.handle()?))?;
    peer.ask(format!("open-event done {}", done.handle()?))?;
    let has_kernels = Kernels::run_on(harness.peer_device());
    let steps = match has_kernels {
        true => {
            peer.ask("load-kernels kernels")?;
            "fill-words,kernels,151587081"
        }
        false => "fill,0,36864,9",
    };
    peer.ask(format!("graph g memory {steps} fill,16,16,7"))?;
    peer.ask("submit q run g after-value=gate:1 signal=done")?;
    let names = ["g", "memory", "q", "kernels"];
    for name in &names[..names.len() - usize::from(!has_kernels)] {
        peer.ask(format!("close {name}"))?;
    }
    gate.signal()?;
    done.wait_value_timeout(1, deadline())?;
    let bytes = transfer.read(&memory, 0, LEN)?;
    assert!(bytes[..16].iter().all(|byte| *byte == 9));
    assert!(bytes[16..32].iter().all(|byte| *byte == 7));
    assert!(bytes[32..].iter().all(|byte| *byte == 9));
    PASSED
}

/// A run waits for the signal of a process that dies. The run fails, or continues if the device
/// cannot notice the failure. It does not hang, and neither do later runs.
pub(crate) fn deaths_hold_up_no_run(harness: &Harness) -> Verdict {
    let (context, transfer) = harness.transfer()?;
    let memory = context.allocate(LEN)?;
    let mut order = write_blocks(&transfer, &memory)?;
    let rotate = rotation(&context, &memory)?;
    let peer = harness.peer()?;
    let (never, done) = (context.create_event()?, context.create_event()?);
    let closed = context.create_event()?;
    peer.ask(format!("open-event never {}", never.handle()?))?;
    peer.ask(format!("open-event closed {}", closed.handle()?))?;
    peer.ask(format!("open-memory memory {}", memory.handle()?))?;
    peer.ask(format!("graph swap memory {}", swap()))?;
    peer.ask("queue q")?;
    // The peer's run is submitted and waits for a signal that no process submits.
    peer.ask("submit q run swap after-value=closed:1 signal=never")?;
    let queue = context.create_queue()?;
    queue.submit(rotate.command().after(&never).signal(&done))?;
    assert!(!done.try_wait_value(1)?);
    peer.kill();
    let waited = done.wait_value_timeout(1, deadline());
    let runs_on = !harness.capabilities().late_failures;
    match waited {
        Ok(()) if runs_on => order.rotate_left(1),
        // A command that was still pending when the process died learns of the failure.
        Err(Error::CommandFailed(_) | Error::PeerDied(_)) => {}
        other => {
            return Err(Failure::new(format!(
                "late failures: {}; {other:?}",
                !runs_on
            )));
        }
    }
    queue.submit(rotate.command())?;
    queue.finish_timeout(deadline())?;
    order.rotate_left(1);
    check_blocks(&transfer, &memory, &order)?;
    PASSED
}

/// Many runs of one graph are queued behind a wait, and each signals in order.
pub(crate) fn many_runs_are_queued(harness: &Harness) -> Verdict {
    const RUNS: u64 = 300;
    let (context, transfer) = harness.transfer()?;
    let memory = context.allocate(LEN)?;
    let mut order = write_blocks(&transfer, &memory)?;
    let rotate = rotation(&context, &memory)?;
    let (gate, done) = (context.create_event()?, context.create_event()?);
    let peer = harness.peer()?;
    peer.ask(format!("open-event done {}", done.handle()?))?;
    let queue = context.create_queue()?;
    queue.submit(rotate.command().after_value(&gate, 1).signal(&done))?;
    for _ in 1..RUNS {
        queue.submit(rotate.command().signal(&done))?;
    }
    assert!(!done.try_wait_value(1)?);
    let waiter = peer.begin_and_sleep(format!("wait-value done {RUNS}"))?;
    gate.signal()?;
    waiter.reply(deadline())?;
    queue.finish_timeout(deadline())?;
    order.rotate_left(RUNS as usize % BLOCKS);
    check_blocks(&transfer, &memory, &order)?;
    PASSED
}

/// Creates a command of a random kind that accesses only this memory.
fn any_command(random: &mut Random, memory: &Memory) -> Result<Command> {
    let len = 1 + random.below(2 * BLOCK);
    let to = random.below(LEN - len);
    let rows = 1 + random.below(20);
    let width = 1 + random.below(60);
    match random.below(5) {
        // Source and destination may overlap.
        0 | 1 => {
            let from = random.below(LEN - len);
            Command::copy(memory.range(from..from + len)?, memory.range(to..to + len)?)
        }
        2 => {
            let pattern = pattern(random.next(), 1 + random.below(70));
            let count = 1 + random.below(len / pattern.len() + 1);
            let len = (count * pattern.len()).min(LEN / pattern.len() * pattern.len());
            let to = to.min(LEN - len);
            Command::fill(memory.range(to..to + len)?, &pattern)
        }
        3 => {
            let pattern = pattern(random.next(), width);
            let to = random.below(LEN / 2);
            Command::fill_2d(memory.range(to..)?, width + 40, width, rows, &pattern)
        }
        // The two halves do not overlap.
        _ => Command::copy_rect(
            memory.range(..LEN / 2)?,
            Pitches::new_2d(width + 3),
            memory.range(LEN / 2..)?,
            Pitches::new_2d(width + 40),
            Region::new_2d(width, rows),
        ),
    }
}

/// A graph of commands of all kinds has the same effect as the single commands.
pub(crate) fn nodes_do_what_commands_do(harness: &Harness) -> Verdict {
    let (context, transfer) = harness.transfer()?;
    let queue = context.create_queue()?;
    for seed in 0..8 {
        let (eager, recorded) = (context.allocate(LEN)?, context.allocate(LEN)?);
        let bytes = pattern(seed, LEN);
        transfer.write(&eager, 0, &bytes)?;
        transfer.write(&recorded, 0, &bytes)?;
        let mut graph = Graph::new(&context);
        let mut nodes = Vec::new();
        let (mut one, mut two) = (Random(seed), Random(seed));
        for number in 0..40 {
            queue.submit(any_command(&mut one, &eager)?)?;
            let command = any_command(&mut two, &recorded)?;
            // Each of these three ways orders the command after all earlier ones.
            let node = match number % 3 {
                0 => graph.add(command, &nodes)?,
                1 => graph.add(command.after_earlier(), &[])?,
                _ => {
                    let barrier = graph.add(Command::barrier(), &[])?;
                    nodes.push(barrier);
                    graph.add(command, &[])?
                }
            };
            nodes.push(node);
        }
        let executable = graph.instantiate()?;
        assert_eq!((executable.len(), graph.len()), (nodes.len(), nodes.len()));
        drop(graph);
        queue.submit(executable.command())?;
        queue.finish_timeout(deadline())?;
        let (one, two) = (
            transfer.read(&eager, 0, LEN)?,
            transfer.read(&recorded, 0, LEN)?,
        );
        let differs = one.iter().zip(&two).position(|(one, two)| one != two);
        assert_eq!(differs, None, "seed {seed}");
    }
    PASSED
}

/// A node runs after the nodes that it depends on, and a run ends when all nodes have completed.
pub(crate) fn dependencies_are_kept(harness: &Harness) -> Verdict {
    const WIDTH: usize = 6;
    let (context, transfer) = harness.transfer()?;
    let memory = context.allocate(LEN)?;
    let mut graph = Graph::new(&context);
    // The graph has a source, several branches of several steps, and nodes that depend on all of
    // them.
    let source = graph.add(Command::fill(block(&memory, 0)?, &[1])?, &[])?;
    let mut ends = Vec::new();
    for branch in 1..=WIDTH {
        let copied = Command::copy(block(&memory, 0)?, block(&memory, branch)?)?;
        let copied = graph.add(copied, &[source])?;
        let start = branch * BLOCK;
        let fill = Command::fill(memory.range(start..start + branch)?, &[branch as u8])?;
        ends.push(graph.add(fill, &[copied])?);
    }
    let joined = graph.add(Command::marker(), &ends)?;
    let gathered = Command::copy_2d(
        memory.range(BLOCK..)?,
        BLOCK,
        block(&memory, BLOCKS)?,
        16,
        16,
        WIDTH,
    )?;
    let gathered = graph.add(gathered, &[joined])?;
    // At the next run, the source must not write before this node.
    graph.add(Command::fill(block(&memory, 0)?, &[0])?, &[gathered])?;
    let executable = graph.instantiate()?;
    let queue = context.create_queue()?;
    for _ in 0..30 {
        queue.submit(executable.command())?;
    }
    queue.finish_timeout(deadline())?;
    let rows = transfer.read(&memory, BLOCKS * BLOCK, 16 * WIDTH)?;
    for (index, row) in rows.chunks(16).enumerate() {
        let branch = index + 1;
        let mut wanted = vec![1; 16];
        wanted[..branch].fill(branch as u8);
        assert_eq!(row, wanted, "branch {branch}");
    }
    PASSED
}

fn is_invalid<T>(result: Result<T>) -> bool {
    matches!(result, Err(Error::InvalidArgument(_)))
}

fn is_unsupported<T>(result: Result<T>) -> bool {
    matches!(result, Err(Error::Unsupported(_)))
}

/// Invalid recordings, updates and runs are refused and change nothing.
pub(crate) fn what_is_wrong_is_refused(harness: &Harness) -> Verdict {
    let (context, transfer) = harness.transfer()?;
    let memory = context.allocate(LEN)?;
    let event = context.create_event()?;
    let queue = context.create_queue()?;
    let fill = || Command::fill(memory.all(), &[3]);
    let (mut graph, mut other) = (Graph::new(&context), Graph::new(&context));
    let foreign = other.add(fill()?, &[])?;
    let other = other.instantiate()?;
    assert!(is_invalid(graph.add(fill()?, &[foreign])));
    let call = || Command::call(|| Ok::<_, Error>(()));
    assert!(is_unsupported(graph.add(call(), &[])));
    drop(other);
    assert!(graph.is_empty());
    let node = graph.add(fill()?, &[])?;
    let executable = graph.instantiate()?;
    // The node is recorded later, so it is in the graph but not in the executable graph.
    let late = graph.add(Command::fill(memory.all(), &[4])?, &[node])?;
    for update in [
        executable.update(late, fill()?),
        executable.update(foreign, fill()?),
    ] {
        assert!(is_invalid(update));
    }
    assert!(is_unsupported(executable.update(node, call())));
    let again = Command::call_repeatedly(|| Ok::<_, Error>(()));
    for update in [fill()?.signal(&event), fill()?.after(&event), again] {
        assert!(is_unsupported(executable.update(node, update)));
    }
    let some = executable.update_all([(node, Command::fill(memory.all(), &[5])?), (node, call())]);
    assert!(is_unsupported(some));
    // Only a queue of the same context can run the graph.
    let second = harness.context()?;
    assert!(is_invalid(
        second.create_queue()?.submit(executable.command())
    ));
    // A peer's read-only memory cannot be a destination.
    let peer = harness.peer()?;
    peer.ask(format!("allocate theirs {LEN}"))?;
    let handle = peer.ask("memory-handle theirs")?.remove(0).parse()?;
    let theirs = context.open_memory_read_only(&handle)?;
    fails!(Command::copy(memory.all(), theirs.all()), ReadOnly);
    queue.submit(executable.command())?;
    queue.finish_timeout(deadline())?;
    let bytes = transfer.read(&memory, 0, LEN)?;
    assert!(
        bytes.iter().all(|byte| *byte == 3),
        "an update was kept in part"
    );
    PASSED
}

/// A graph without nodes waits and signals as a marker does.
pub(crate) fn empty_graphs_wait_and_signal(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let executable = Graph::new(&context).instantiate()?;
    assert!(executable.is_empty());
    let (gate, done) = (context.create_event()?, context.create_event()?);
    let peer = harness.peer()?;
    peer.ask(format!("open-event done {}", done.handle()?))?;
    let queue: Queue = context.create_queue()?;
    queue.submit(executable.command().after_value(&gate, 1).signal(&done))?;
    assert!(!done.try_wait_value(1)?);
    let waiter = peer.begin_and_sleep("wait-value done 1")?;
    gate.signal()?;
    waiter.reply(deadline())?;
    queue.finish_timeout(deadline())?;
    PASSED
}

/// Creating, updating, running and dropping graphs leaves no resources behind.
pub(crate) fn graphs_come_and_go(harness: &Harness) -> Verdict {
    const KIB: usize = 1024;
    let context = harness.context()?;
    let queue = context.create_queue()?;
    let memory = context.allocate(LEN)?;
    let round = |_| -> Result<(), Failure> {
        let mut graph = Graph::new(&context);
        let node = graph.add(Command::fill(memory.all(), &[1])?, &[])?;
        let copy = Command::copy(block(&memory, 0)?, block(&memory, 1)?)?;
        graph.add(copy, &[node])?;
        let executable = graph.instantiate()?;
        queue.submit(executable.command())?;
        executable.update(node, Command::fill(memory.all(), &[1, 2, 3])?)?;
        queue.submit(executable.command())?;
        drop(executable);
        Ok(queue.finish_timeout(deadline())?)
    };
    (0..20).try_for_each(round)?;
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
