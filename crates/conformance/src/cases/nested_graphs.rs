//! Graphs inside graphs are recorded as their nodes at that time.

use crate::Transfer;
use crate::failure::Verdict;
use crate::harness::{Harness, deadline};
use crate::suite::PASSED;
use crosshandle::graph::Graph;
use crosshandle::{Command, Context, Error, Memory, Result};

const BLOCK: usize = 1 << 10;

fn block(memory: &Memory, index: usize) -> Result<crosshandle::MemoryRange> {
    memory.range(index * BLOCK..(index + 1) * BLOCK)
}

fn copy(memory: &Memory, from: usize, to: usize) -> Result<Command> {
    Command::copy(block(memory, from)?, block(memory, to)?)
}

fn fill(memory: &Memory, index: usize, byte: u8) -> Result<Command> {
    Command::fill(block(memory, index)?, &[byte])
}

/// Returns the first byte of each block. All bytes of a block are the same.
fn bytes(transfer: &Transfer, memory: &Memory, blocks: usize) -> Result<Vec<u8>> {
    let bytes = transfer.read(memory, 0, blocks * BLOCK)?;
    let blocks = bytes.chunks(BLOCK);
    let first = blocks.map(|block| {
        assert!(block.iter().all(|byte| *byte == block[0]), "a torn block");
        block[0]
    });
    Ok(first.collect())
}

/// The nodes of a nested graph run after what the graph depends on, and before what depends on the
/// graph. This also holds for nodes without order among themselves, and for graphs nested more
/// deeply.
pub(crate) fn they_keep_their_place(harness: &Harness) -> Verdict {
    const BLOCKS: usize = 6;
    let (context, transfer) = harness.transfer()?;
    let memory = context.allocate(BLOCKS * BLOCK)?;
    let mut innermost = Graph::new(&context);
    innermost.add(copy(&memory, 0, 1)?, &[])?;
    innermost.add(copy(&memory, 0, 2)?, &[])?;
    let mut inner = Graph::new(&context);
    let run = innermost.instantiate()?;
    let both = inner.add(run.command(), &[])?;
    inner.add(copy(&memory, 2, 3)?, &[both])?;
    let run = inner.instantiate()?;
    assert_eq!((run.len(), inner.len()), (4, 4));
    let mut graph = Graph::new(&context);
    let first = graph.add(fill(&memory, 0, 7)?, &[])?;
    let nested = graph.add(run.command(), &[first])?;
    let changed = graph.add(fill(&memory, 0, 9)?, &[nested])?;
    // An empty graph still keeps the order.
    let nothing = Graph::new(&context).instantiate()?;
    let nothing = graph.add(nothing.command(), &[changed])?;
    graph.add(copy(&memory, 0, 4)?, &[nothing])?;
    // The same graph is added again, with a barrier on each side.
    graph.add(Command::barrier(), &[])?;
    graph.add(run.command().after_earlier().before_later(), &[])?;
    graph.add(copy(&memory, 3, 5)?, &[])?;
    let executable = graph.instantiate()?;
    // The executable graph no longer needs these objects.
    drop((innermost, inner, run, graph));
    let queue = context.create_queue()?;
    let peer = harness.peer()?;
    peer.ask(format!("open-memory memory {}", memory.handle()?))?;
    let done = context.create_event()?;
    peer.ask(format!("open-event done {}", done.handle()?))?;
    for round in 1..=10 {
        queue.submit(Command::fill(memory.all(), &[0])?)?;
        queue.submit(executable.command().signal(&done))?;
        peer.ask(format!("wait-value done {round}"))?;
        let found = bytes(&transfer, &memory, BLOCKS)?;
        assert_eq!(found, [9, 9, 9, 9, 9, 9], "round {round}");
        queue.finish_timeout(deadline())?;
    }
    // The source of the first copy changes before the graph runs a second time.
    let mut graph = Graph::new(&context);
    let mut once = Graph::new(&context);
    once.add(copy(&memory, 0, 1)?, &[])?;
    let once = once.instantiate()?;
    let first = graph.add(fill(&memory, 0, 3)?, &[])?;
    let run = graph.add(once.command(), &[first])?;
    let kept = graph.add(copy(&memory, 1, 2)?, &[run])?;
    let changed = graph.add(fill(&memory, 0, 4)?, &[kept])?;
    let run = graph.add(once.command(), &[changed])?;
    graph.add(copy(&memory, 1, 3)?, &[run])?;
    queue.submit(graph.instantiate()?.command())?;
    queue.finish_timeout(deadline())?;
    assert_eq!(bytes(&transfer, &memory, 4)?, [4, 4, 3, 4]);
    PASSED
}

/// Updates of a graph do not change graphs that recorded it, and another command cannot replace it
/// there.
pub(crate) fn they_stay_as_they_were(harness: &Harness) -> Verdict {
    let context: Context = harness.context()?;
    let transfer = Transfer::new(&context)?;
    let memory = context.allocate(2 * BLOCK)?;
    let mut inner = Graph::new(&context);
    let node = inner.add(fill(&memory, 0, 1)?, &[])?;
    let inner = inner.instantiate()?;
    let mut graph = Graph::new(&context);
    let nested = graph.add(inner.command(), &[])?;
    let last = graph.add(copy(&memory, 0, 1)?, &[nested])?;
    inner.update(node, fill(&memory, 0, 2)?)?;
    let executable = graph.instantiate()?;
    let is_unsupported = |result| matches!(result, Err(Error::Unsupported(_)));
    assert!(is_unsupported(
        executable.update(nested, fill(&memory, 0, 3)?)
    ));
    assert!(is_unsupported(executable.update(last, inner.command())));
    // This graph belongs to another context, whose graphs no queue of this context runs.
    let stranger = Graph::new(&harness.context()?).instantiate()?;
    let refused = graph.add(stranger.command(), &[]);
    assert!(
        matches!(refused, Err(Error::InvalidArgument(_))),
        "{refused:?}"
    );
    assert_eq!(graph.len(), executable.len());
    let queue = context.create_queue()?;
    queue.submit(executable.command())?;
    queue.finish_timeout(deadline())?;
    assert_eq!(bytes(&transfer, &memory, 2)?, [1, 1]);
    queue.submit(inner.command())?;
    queue.finish_timeout(deadline())?;
    assert_eq!(bytes(&transfer, &memory, 2)?, [2, 1]);
    PASSED
}
