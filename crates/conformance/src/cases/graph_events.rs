//! Nodes of a graph wait for events and signal them at each run, also across processes.

use crate::failure::{Failure, Verdict};
use crate::harness::{Harness, deadline};
use crate::suite::{Outcome, PASSED};
use crosshandle::graph::{Graph, SignalCursor};
use crosshandle::{AllocationOptions, Command, Error, Memory, MemoryKind, QueueOrder, Result};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

const BLOCK: usize = 1 << 12;
const ORDERS: [(&str, QueueOrder); 2] = [("q", QueueOrder::InOrder), ("f", QueueOrder::OutOfOrder)];

fn fill(memory: &Memory, byte: u8) -> Result<Command> {
    Command::fill(memory.range(..BLOCK)?, &[byte])
}

fn copy(memory: &Memory, from: usize, to: usize) -> Result<Command> {
    let block = |index: usize| memory.range(index * BLOCK..(index + 1) * BLOCK);
    Command::copy(block(from)?, block(to)?)
}

/// Two processes run a graph each. Inside their runs, they take turns on one memory. All runs are
/// submitted before the first turn, so no host orders the turns.
pub(crate) fn runs_alternate_inside(harness: &Harness) -> Verdict {
    const TURNS: usize = 3;
    // Processes that share a GPU take turns, so each turn of a run may take as long as the turns of
    // all other processes of the suite.
    const RUNS: usize = 6;
    let (context, transfer) = harness.transfer()?;
    for (name, order) in ORDERS {
        // Each process appends the first block to a list, after it has written its mark there.
        let blocks = 1 + 2 * TURNS * RUNS;
        let memory = context.allocate((blocks + 1) * BLOCK)?;
        let (ping, pong) = (context.create_event()?, context.create_event()?);
        let peer = harness.peer()?;
        peer.ask(format!("open-memory memory {}", memory.handle()?))?;
        peer.ask(format!("open-event ping {}", ping.handle()?))?;
        peer.ask(format!("open-event pong {}", pong.handle()?))?;
        let free = if name == "f" { "order=free" } else { "" };
        peer.ask(format!("queue {name} {free}"))?;
        // Each turn shifts the list by one block, so that every run does the same.
        let shift = |steps: &mut Vec<String>| {
            steps.push(format!("copy,{BLOCK},0,{}", blocks * BLOCK));
        };
        let mut steps = Vec::new();
        for turn in 1..=TURNS {
            steps.push(format!("fill,0,{BLOCK},{}@ping:{turn}", 100 + turn));
            shift(&mut steps);
            steps.push("marker>pong".into());
        }
        peer.ask(format!("graph theirs memory {}", steps.join(" ")))?;
        let mut graph = Graph::new(&context);
        let mut last = Vec::new();
        for turn in 1..=TURNS {
            let mark = fill(&memory, turn as u8)?;
            last = vec![graph.add(mark, &last)?];
            let shift = Command::copy(
                memory.range(..blocks * BLOCK)?,
                memory.range(BLOCK..(blocks + 1) * BLOCK)?,
            )?;
            last = vec![graph.add(shift.signal(&ping), &last)?];
            let reply = Command::marker().after_value(&pong, turn as u64);
            last = vec![graph.add(reply, &last)?];
        }
        let executable = graph.instantiate()?;
        let gate = context.create_event()?;
        let queue = context.create_queue_with(order)?;
        queue.submit(Command::barrier().after_value(&gate, 1))?;
        for _ in 0..RUNS {
            peer.ask(format!("submit {name} run theirs"))?;
            queue.submit(executable.command().after_earlier().before_later())?;
        }
        assert_eq!(ping.submitted(), (TURNS * RUNS) as u64);
        gate.signal()?;
        queue.finish_timeout(deadline())?;
        pong.wait_value_timeout((TURNS * RUNS) as u64, deadline())?;
        let bytes = transfer.read(&memory, BLOCK, (blocks - 1) * BLOCK)?;
        let marks: Vec<u8> = bytes.chunks(BLOCK).map(|block| block[0]).rev().collect();
        let turns = (1..=TURNS as u8).flat_map(|turn| [turn, 100 + turn]);
        let wanted: Vec<u8> = turns.cycle().take(2 * TURNS * RUNS).collect();
        if marks != wanted {
            return Err(Failure::new(format!("{name}: {marks:?}")));
        }
    }
    PASSED
}

/// Signals of runs take the next numbers, while hosts and queues of both processes signal the same
/// event without a graph. No signal is lost, and none is counted twice.
pub(crate) fn runs_mix_with_other_signals(harness: &Harness) -> Verdict {
    const RUNS: u64 = 100;
    const THREADS: u64 = 2;
    const AHEAD: u64 = 4;
    let context = harness.context()?;
    let memory = context.allocate(3 * BLOCK)?;
    let event = context.create_event()?;
    let mut graph = Graph::new(&context);
    let first = graph.add(fill(&memory, 1)?.signal(&event), &[])?;
    let second = graph.add(copy(&memory, 0, 1)?.after_submitted(&event), &[first])?;
    graph.add(copy(&memory, 1, 2)?.signal(&event), &[second])?;
    let executable = graph.instantiate()?;
    let peer = harness.peer()?;
    peer.ask(format!("open-event event {}", event.handle()?))?;
    peer.ask("queue q")?;
    thread::scope(|scope| -> Result<(), Failure> {
        let run = || -> Result<()> {
            let queue = context.create_queue()?;
            for run in 1..=RUNS {
                queue.submit(executable.command())?;
                queue.signal(&event)?;
                // The number of unfinished signals of several processes in turns is limited.
                if run % AHEAD == 0 {
                    queue.finish_timeout(deadline())?;
                }
            }
            queue.finish_timeout(deadline())
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(run)).collect();
        for _ in 0..RUNS {
            peer.ask("submit q barrier signal=event")?;
            event.signal()?;
            event.wait_value_timeout(event.submitted(), deadline())?;
        }
        for thread in threads {
            thread.join().expect("a thread that runs graphs")?;
        }
        Ok(())
    })?;
    let all = THREADS * RUNS * 3 + 2 * RUNS;
    assert_eq!(event.submitted(), all);
    // The peer's last signals may complete after later signals of this process.
    for number in 1..=all {
        event.wait_value_timeout(number, deadline())?;
    }
    PASSED
}

/// No replay runs before the signal that it waits for (it would be stale), and no signal is lost,
/// while hosts and queues of both processes signal the same events without a graph.
pub(crate) fn replays_are_neither_stale_nor_lost(harness: &Harness) -> Verdict {
    replay(harness, 400)
}

/// Makes this many replays (see [`replays_are_neither_stale_nor_lost`]).
pub(crate) fn replay(harness: &Harness, replays: u64) -> Verdict {
    /// Replays that are submitted before the first of their signals.
    const AHEAD: u64 = 8;
    let (context, peer) = harness.with_peer()?;
    let word = || context.allocate_with(AllocationOptions::new(8).kind(MemoryKind::Host));
    let (input, seen) = (word()?, word()?);
    let (given, mixed) = (context.create_event()?, context.create_event()?);
    let done = context.create_event()?;
    peer.ask(format!("open-event given {}", given.handle()?))?;
    peer.ask(format!("open-event mixed {}", mixed.handle()?))?;
    peer.ask("queue q")?;
    // A signal may wait until the signal 7 numbers before it has finished, which may be the signal
    // of a replay. So the signals that replays wait for must not follow such a signal in a queue.
    peer.ask("queue giver")?;
    let mut graph = Graph::new(&context);
    let cursor = SignalCursor::new(&given);
    let copy = Command::copy(input.all(), seen.all())?.signal(&mixed);
    graph.add_after_next(copy, &[], &[&cursor])?;
    let executable = graph.instantiate()?;
    let is_over = AtomicBool::new(false);
    let begin = Instant::now();
    // Signals the mixed event without a graph, and returns how often.
    let signal = || -> Result<u64> {
        let queue = context.create_queue()?;
        let mut signals = 0;
        while !is_over.load(Ordering::Relaxed) {
            match signals % 2 {
                0 => drop(mixed.signal()?),
                _ => queue.signal(&mixed)?,
            }
            signals += 1;
            // The number of unfinished signals of several processes in turns is limited.
            mixed.wait_value_timeout(mixed.submitted(), deadline())?;
        }
        queue.finish_timeout(deadline())?;
        Ok(signals)
    };
    let run = || -> Result<u64, Failure> {
        let queue = context.create_queue()?;
        let mut of_peer = 0;
        for replay in 0..replays {
            if replay % AHEAD == 0 {
                for _ in 0..AHEAD.min(replays - replay) {
                    queue.submit(executable.command().signal(&done))?;
                }
                peer.ask("submit q barrier signal=mixed")?;
                of_peer += 1;
            }
            let number = replay + 1;
            assert!(!done.try_wait_value(number)?, "replay {number} is stale");
            input.write(0, &number.to_le_bytes())?;
            match replay % 3 {
                0 => drop(given.signal()?),
                1 => drop(peer.ask("signal given")?),
                _ => drop(peer.ask("submit giver barrier signal=given")?),
            }
            done.wait_value_timeout(number, deadline())?;
            let mut bytes = [0; 8];
            seen.read(0, &mut bytes)?;
            if u64::from_le_bytes(bytes) != number {
                let text = format!("replay {number} is stale: {bytes:?}");
                return Err(Failure::new(text));
            }
        }
        queue.finish_timeout(deadline())?;
        Ok(of_peer)
    };
    let (eager, of_peer) = thread::scope(|scope| {
        let eager = scope.spawn(signal);
        // The other thread also ends if this one panics.
        let ran = catch_unwind(AssertUnwindSafe(run));
        is_over.store(true, Ordering::Relaxed);
        let eager = eager.join().expect("a thread that signals");
        (eager, ran.unwrap_or_else(|panic| resume_unwind(panic)))
    });
    let (of_peer, eager) = (of_peer?, eager?);
    let all = replays + eager + of_peer;
    assert_eq!((given.submitted(), mixed.submitted()), (replays, all));
    for number in all.saturating_sub(AHEAD).max(1)..=all {
        mixed.wait_value_timeout(number, deadline())?;
    }
    assert_eq!(mixed.completed(), all);
    Ok(Outcome::Passed(format!(
        "{replays} replays next to {} other signals in {:.1?}",
        eager + of_peer,
        begin.elapsed()
    )))
}

/// A graph calls functions in each run, in its order. A function that fails makes the run fail, and
/// its later nodes do not hang.
pub(crate) fn functions_run_each_time(harness: &Harness) -> Verdict {
    const RUNS: u64 = 10;
    let (context, transfer) = harness.transfer()?;
    let memory = context.allocate(3 * BLOCK)?;
    let calls = Arc::new(AtomicU64::new(0));
    for (_, order) in ORDERS {
        calls.store(0, Ordering::SeqCst);
        let (begun, ended) = (context.create_event()?, context.create_event()?);
        let mut graph = Graph::new(&context);
        let before = graph.add(fill(&memory, 7)?.signal(&begun), &[])?;
        let function = {
            let (calls, begun, ended) = (Arc::clone(&calls), begun.clone(), ended.clone());
            Command::call_repeatedly(move || {
                let call = calls.fetch_add(1, Ordering::SeqCst);
                match (
                    begun.try_wait_value(call + 1),
                    ended.try_wait_value(call + 1),
                ) {
                    (Ok(true), Ok(false)) if call + 1 == RUNS => Err("of the program".into()),
                    (Ok(true), Ok(false)) => Ok(()),
                    other => Err(format!("call {call} is out of order: {other:?}")),
                }
            })
        };
        let called = graph.add(function, &[before])?;
        graph.add(copy(&memory, 0, 1)?.signal(&ended), &[called])?;
        let executable = graph.instantiate()?;
        let queue = context.create_queue_with(order)?;
        let done = context.create_event()?;
        for _ in 0..RUNS {
            let run = executable.command().after_earlier().before_later();
            queue.submit(run.signal(&done))?;
        }
        for run in 1..=RUNS {
            let result = done.wait_value_timeout(run, deadline());
            match (run == RUNS, &result) {
                (false, Ok(())) => {}
                (true, Err(Error::CommandFailed(text))) if text.contains("of the program") => {}
                _ => return Err(Failure::new(format!("run {run}: {result:?}"))),
            }
        }
        assert_eq!(calls.load(Ordering::SeqCst), RUNS);
        // The failure has reached the run's event, so the queue has none left.
        queue.finish_timeout(deadline())?;
        let bytes = transfer.read(&memory, BLOCK, BLOCK)?;
        assert!(bytes.iter().all(|byte| *byte == 7));
    }
    PASSED
}

/// A node waits for a signal of a process that dies. The run does not hang, and neither do later
/// ones. Its signals fail, or come if the device cannot notice the failure. A device that cannot
/// notice it still fails commands that were pending when the process died.
pub(crate) fn deaths_hold_up_no_node(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let memory = context.allocate(3 * BLOCK)?;
    let (never, closed) = (context.create_event()?, context.create_event()?);
    let (inner, done) = (context.create_event()?, context.create_event()?);
    let peer = harness.peer()?;
    peer.ask(format!("open-event never {}", never.handle()?))?;
    peer.ask(format!("open-event closed {}", closed.handle()?))?;
    peer.ask("queue q")?;
    peer.ask("submit q barrier after-value=closed:1 signal=never")?;
    let mut graph = Graph::new(&context);
    let first = graph.add(fill(&memory, 1)?, &[])?;
    let waits = graph.add(copy(&memory, 0, 1)?.after_value(&never, 1), &[first])?;
    graph.add(copy(&memory, 1, 2)?.signal(&inner), &[waits])?;
    let executable = graph.instantiate()?;
    let queue = context.create_queue()?;
    queue.submit(executable.command().signal(&done))?;
    assert!(!done.try_wait_value(1)?);
    peer.kill();
    let runs_on = !harness.capabilities().late_failures;
    for event in [&inner, &done] {
        match event.wait_value_timeout(1, deadline()) {
            Ok(()) if runs_on => {}
            // A command that was still pending when the process died learns of the failure.
            Err(Error::CommandFailed(_) | Error::PeerDied(_)) => {}
            other => {
                return Err(Failure::new(format!(
                    "late failures: {}; {other:?}",
                    !runs_on
                )));
            }
        }
    }
    // The next run waits for the number that follows. This process signals it.
    never.signal()?;
    queue.submit(executable.command().signal(&done))?;
    done.wait_value_timeout(2, deadline())?;
    inner.wait_value_timeout(2, deadline())?;
    queue.finish_timeout(deadline())?;
    PASSED
}

/// Graphs with events inside can be updated, and can be nodes of other graphs.
pub(crate) fn they_are_nested_and_updated(harness: &Harness) -> Verdict {
    const RUNS: u64 = 5;
    let (context, transfer) = harness.transfer()?;
    let memory = context.allocate(4 * BLOCK)?;
    let (gate, inner) = (context.create_event()?, context.create_event()?);
    let (outer, done) = (context.create_event()?, context.create_event()?);
    let calls = Arc::new(AtomicU64::new(0));
    let mut graph = Graph::new(&context);
    let filled = graph.add(fill(&memory, 1)?, &[])?;
    let waits = graph.add(copy(&memory, 0, 1)?.after_value(&gate, 1), &[filled])?;
    let count = Arc::clone(&calls);
    let function = Command::call_repeatedly(move || {
        count.fetch_add(1, Ordering::SeqCst);
        Ok::<_, Error>(())
    });
    let called = graph.add(function, &[waits])?;
    let copied = graph.add(copy(&memory, 1, 2)?.signal(&inner), &[called])?;
    let executable = graph.instantiate()?;
    executable.update(filled, fill(&memory, 5)?)?;
    executable.update(copied, copy(&memory, 1, 2)?)?;
    let function = Command::call_repeatedly(|| Ok::<_, Error>(()));
    assert!(matches!(
        executable.update(called, copy(&memory, 1, 2)?),
        Err(Error::Unsupported(_))
    ));
    assert!(matches!(
        executable.update(copied, function),
        Err(Error::Unsupported(_))
    ));
    let mut around = Graph::new(&context);
    let nested = executable.command().after_value(&outer, 1).signal(&outer);
    let nested = around.add(nested, &[])?;
    around.add(copy(&memory, 2, 3)?, &[nested])?;
    let around = around.instantiate()?;
    assert!(matches!(
        around.update(nested, fill(&memory, 1)?),
        Err(Error::Unsupported(_))
    ));
    let queue = context.create_queue()?;
    // Each run waits for the signal of the previous one, and the first run for this signal.
    outer.signal()?;
    for run in 1..=RUNS {
        queue.submit(around.command().signal(&done))?;
        assert!(!done.try_wait_value(run)?, "the gate was not opened");
        gate.signal()?;
        done.wait_value_timeout(run, deadline())?;
        inner.wait_value_timeout(run, deadline())?;
    }
    assert_eq!(outer.submitted(), RUNS + 1);
    assert_eq!(calls.load(Ordering::SeqCst), RUNS);
    queue.finish_timeout(deadline())?;
    let bytes = transfer.read(&memory, 3 * BLOCK, BLOCK)?;
    assert!(bytes.iter().all(|byte| *byte == 5));
    PASSED
}

/// Runs that wait with a cursor take the next signals, in several graphs, nested graphs and other
/// commands. All runs are submitted before the first signal. A graph that would both signal an
/// event and wait for its next signal is refused.
pub(crate) fn cursors_take_the_next_signals(harness: &Harness) -> Verdict {
    const RUNS: u64 = 6;
    let context = harness.context()?;
    let memory = context.allocate(2 * BLOCK)?;
    let (event, done) = (context.create_event()?, context.create_event()?);
    let peer = harness.peer()?;
    peer.ask(format!("open-event event {}", event.handle()?))?;
    peer.ask("queue q")?;
    let cursor = SignalCursor::new(&event);
    // The first two signals have another purpose.
    event.signal_value(2)?;
    cursor.skip_to(2);
    cursor.skip_to(1);
    let mut graph = Graph::new(&context);
    let twice = [&cursor, &cursor];
    let waits = graph.add_after_next(fill(&memory, 3)?, &[], &twice)?;
    graph.add(copy(&memory, 0, 1)?, &[waits])?;
    let single = graph.instantiate()?;
    let mut around = Graph::new(&context);
    let nested = around.add(single.command(), &[])?;
    around.add_after_next(Command::marker(), &[nested], &[&cursor])?;
    let double = around.instantiate()?;
    let queue = context.create_queue()?;
    for _ in 0..RUNS {
        queue.submit(single.command().signal(&done))?;
        queue.submit(double.command().signal(&done))?;
        let next = Command::marker().after_value(&event, cursor.take());
        queue.submit(next.signal(&done))?;
    }
    assert_eq!(cursor.position(), 2 + 4 * RUNS);
    let mut complete = 0;
    for signals in (0..RUNS).flat_map(|_| [1, 2, 1]) {
        assert!(
            !done.try_wait_value(complete + 1)?,
            "run {complete} did not wait"
        );
        for _ in 0..signals {
            peer.ask("submit q barrier signal=event")?;
        }
        complete += 1;
        done.wait_value_timeout(complete, deadline())?;
    }
    queue.finish_timeout(deadline())?;
    let refused = |result: Result<_>| matches!(result, Err(Error::Unsupported(_)));
    let signal = || Command::marker().signal(&event);
    let mut graph = Graph::new(&context);
    graph.add(signal(), &[])?;
    assert!(refused(graph.add_after_next(
        Command::marker(),
        &[],
        &[&cursor]
    )));
    assert!(refused(graph.add(double.command(), &[])));
    let mut graph = Graph::new(&context);
    assert!(refused(graph.add_after_next(signal(), &[], &[&cursor])));
    graph.add_after_next(Command::marker(), &[], &[&cursor])?;
    assert!(refused(graph.add(signal(), &[])));
    // The refused nodes are not part of the graph.
    assert_eq!(graph.len(), 1);
    PASSED
}
