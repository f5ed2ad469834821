//! Queues run commands concurrently with the host, in the requested order.

use super::faults::failed_late;
use crate::failure::{Failure, Verdict};
use crate::harness::{Harness, deadline};
use crate::suite::PASSED;
use crate::{Transfer, pattern};
use crosshandle::{
    Access, AllocationOptions, Command, Context, Error, Event, Memory, MemoryKind, MemoryRange,
    Queue, QueueOrder,
};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const ORDERS: [QueueOrder; 2] = [QueueOrder::InOrder, QueueOrder::OutOfOrder];
const LEN: usize = 200_000;

fn memory(context: &Context, transfer: &Transfer, seed: u64) -> Result<Memory, Failure> {
    let memory = context.allocate(LEN)?;
    transfer.write(&memory, 0, &pattern(seed, LEN))?;
    Ok(memory)
}

/// Blocks a queue until an event is signalled.
fn hold(queue: &Queue, gate: &Event) -> Result<(), Failure> {
    queue.submit(Command::barrier().after_value(gate, gate.submitted() + 1))?;
    Ok(())
}

/// Copies between this process's and another process's memory are visible in both.
pub(crate) fn copies_cross(harness: &Harness) -> Verdict {
    let (context, transfer) = harness.transfer()?;
    let peer = harness.peer()?;
    for order in ORDERS {
        let queue = context.create_queue_with(order)?;
        assert_eq!(queue.order(), order);
        let (mine, done) = (memory(&context, &transfer, 1)?, context.create_event()?);
        peer.ask(format!("allocate theirs {LEN}"))?;
        let handle = peer.ask("memory-handle theirs")?.remove(0).parse()?;
        let theirs = context.open_memory(&handle)?;
        peer.ask(format!("open-event done {}", done.handle()?))?;
        queue.submit(Command::copy(mine.all(), theirs.all())?.signal(&done))?;
        peer.ask("wait-value done 1 10000")?;
        peer.ask(format!("check theirs 0 1 {LEN}"))?;
        // Copies a small part.
        peer.ask("write theirs 0 2 1000")?;
        let (to, from) = (mine.range(77..1_077)?, theirs.range(..1_000)?);
        queue.submit(Command::copy(from, to)?.signal(&done))?;
        done.wait_timeout(deadline())?;
        transfer.check(&mine, 77, 2, 1_000)?;
        // The peer's queue copies into memory of this process.
        peer.ask(format!("open-memory mine {}", mine.handle()?))?;
        peer.ask("queue q")?;
        peer.ask(format!("write theirs 0 3 {LEN}"))?;
        peer.ask("submit q copy mine theirs signal=done")?;
        done.wait_value_timeout(3, deadline())?;
        transfer.check(&mine, 0, 3, LEN)?;
    }
    PASSED
}

/// Device, host and shared memory, and ordinary memory of the process, can be source and
/// destination.
pub(crate) fn copies_between_all_kinds(harness: &Harness) -> Verdict {
    let (context, transfer) = harness.transfer()?;
    let queue = context.create_queue()?;
    let kinds = [MemoryKind::Device, MemoryKind::Host, MemoryKind::Shared];
    for (seed, (to, from)) in (1..).zip(kinds.iter().flat_map(|to| kinds.map(|from| (*to, from)))) {
        let (to, from) = (
            context.allocate_with(AllocationOptions::new(LEN).kind(to))?,
            context.allocate_with(AllocationOptions::new(LEN).kind(from))?,
        );
        transfer.write(&from, 0, &pattern(seed, LEN))?;
        queue.submit(Command::copy(from.all(), to.all())?)?;
        queue.finish_timeout(deadline())?;
        transfer.check(&to, 0, seed, LEN)?;
        let mut own = vec![0_u8; LEN];
        let place = NonNull::from(own.as_mut_slice()).cast();
        // SAFETY: `own` lives until the queue has finished, and is not accessed before that.
        let range = unsafe { MemoryRange::from_raw_parts(place, LEN, Access::ReadWrite) };
        queue.submit(Command::copy(to.all(), range.clone())?)?;
        queue.submit(Command::fill(to.all(), &[0xAA])?)?;
        queue.submit(Command::copy(range.range(..100)?, to.range(..100)?)?)?;
        queue.finish()?;
        assert!(own == pattern(seed, LEN));
        transfer.check(&to, 0, seed, 100)?;
        assert_eq!(transfer.read(&to, 100, 1)?, [0xAA]);
    }
    PASSED
}

/// Source and destination may overlap, in both directions, for short and long copies.
pub(crate) fn overlapping_copies(harness: &Harness) -> Verdict {
    let (context, transfer) = harness.transfer()?;
    let queue = context.create_queue()?;
    for (to, from, len) in [
        (10, 0, 1_000),
        (0, 10, 1_000),
        (10, 0, LEN - 10),
        (0, 10, LEN - 10),
        (5, 5, 100),
        (0, 0, 0),
    ] {
        let memory = memory(&context, &transfer, 4)?;
        let mut wanted = pattern(4, LEN);
        wanted.copy_within(from..from + len, to);
        queue.submit(Command::copy(
            memory.range(from..from + len)?,
            memory.range(to..to + len)?,
        )?)?;
        queue.finish_timeout(deadline())?;
        assert!(
            transfer.read(&memory, 0, LEN)? == wanted,
            "{len} bytes from {from} to {to}"
        );
    }
    PASSED
}

/// Fills take patterns of 1 to 17 bytes, over short and long ranges at unaligned places.
pub(crate) fn fills_with_any_pattern(harness: &Harness) -> Verdict {
    let (context, transfer) = harness.transfer()?;
    let queue = context.create_queue()?;
    let memory = memory(&context, &transfer, 5)?;
    for size in 1..=17 {
        let repeated = pattern(size as u64, size);
        for times in [0, 1, 2, 3, 100, 10_000] {
            let len = size * times;
            let wanted: Vec<u8> = repeated.iter().copied().cycle().take(len).collect();
            let before = transfer.read(&memory, 0, LEN)?;
            queue.submit(Command::fill(memory.range(3..3 + len)?, &repeated)?)?;
            queue.finish_timeout(deadline())?;
            let after = transfer.read(&memory, 0, LEN)?;
            assert!(after[3..3 + len] == wanted, "{times} times {size} bytes");
            assert!(after[..3] == before[..3] && after[3 + len..] == before[3 + len..]);
        }
    }
    for (len, bytes) in [(10, &[1, 2, 3][..]), (10, &[])] {
        fails!(
            Command::fill(memory.range(..len)?, bytes).map(drop),
            InvalidArgument
        );
    }
    fails!(
        Command::copy(memory.range(..11)?, memory.range(..10)?).map(drop),
        InvalidArgument
    );
    PASSED
}

/// An in-order queue runs commands one after the other, whatever they wait for.
pub(crate) fn keeps_order(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let queue = context.create_queue()?;
    let gate = context.create_event()?;
    let seen = Arc::new(Mutex::new(Vec::new()));
    hold(&queue, &gate)?;
    for number in 0..100 {
        let seen = Arc::clone(&seen);
        queue.submit(Command::call(move || {
            seen.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(number);
            Ok::<_, Error>(())
        }))?;
    }
    assert!(!queue.is_idle());
    fails!(queue.finish_timeout(Duration::from_millis(20)), TimedOut);
    gate.signal()?;
    queue.flush()?;
    queue.finish_timeout(deadline())?;
    assert!(queue.is_idle());
    let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(seen.iter().copied().eq(0..100), "{seen:?}");
    PASSED
}

/// Any number of commands, of all kinds, can be submitted behind one that waits.
pub(crate) fn takes_any_number(harness: &Harness) -> Verdict {
    const COUNT: u64 = 3_000;
    let (context, transfer) = harness.transfer()?;
    let memory = context.allocate(64)?;
    let queue = context.create_queue()?;
    let (gate, done) = (context.create_event()?, context.create_event()?);
    let called = Arc::new(Mutex::new(0));
    hold(&queue, &gate)?;
    for number in 0..COUNT {
        queue.submit(match number % 5 {
            0 => Command::fill(memory.range(..8)?, &number.to_le_bytes())?,
            1 => Command::copy(memory.range(..8)?, memory.range(8..16)?)?,
            2 => Command::barrier().signal(&done),
            3 => Command::barrier().after(&done),
            _ => {
                let called = Arc::clone(&called);
                Command::call(move || {
                    *called.lock().unwrap_or_else(PoisonError::into_inner) += 1;
                    Ok::<_, Error>(())
                })
            }
        })?;
    }
    assert_eq!(done.submitted(), COUNT / 5, "numbers are taken at once");
    assert!(!queue.is_idle() && !done.try_wait()?);
    gate.signal()?;
    done.wait_timeout(deadline())?;
    queue.finish_timeout(deadline())?;
    let last = (COUNT - 5).to_le_bytes();
    assert_eq!(transfer.read(&memory, 0, 16)?, [last, last].concat());
    let called = *called.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(called, COUNT / 5);
    PASSED
}

/// In an out-of-order queue, a waiting command delays only commands after a barrier.
pub(crate) fn free_order_overtakes(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let queue = context.create_queue_with(QueueOrder::OutOfOrder)?;
    let peer = harness.peer()?;
    let (gate, first, second, third) = (
        context.create_event()?,
        context.create_event()?,
        context.create_event()?,
        context.create_event()?,
    );
    peer.ask(format!("open-event gate {}", gate.handle()?))?;
    let call = || Command::call(|| Ok::<_, Error>(()));
    queue.submit(call().after_value(&gate, 1).signal(&first))?;
    queue.submit(call().signal(&second))?;
    second.wait_timeout(deadline())?;
    assert!(!first.try_wait()?);
    queue.submit(Command::barrier())?;
    queue.submit(call().signal(&third))?;
    let late = third.wait_timeout(Duration::from_millis(20));
    assert!(matches!(late, Err(Error::TimedOut(_))), "past a barrier");
    peer.ask("signal gate")?;
    third.wait_timeout(deadline())?;
    assert!(
        first.try_wait()?,
        "a barrier comes after what was before it"
    );
    queue.finish_timeout(deadline())?;
    PASSED
}

/// The two halves of a barrier in an out-of-order queue. One half waits for all earlier commands
/// and delays nothing. The other half delays all later commands and waits only for its events.
pub(crate) fn halves_of_a_barrier(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let queue = context.create_queue_with(QueueOrder::OutOfOrder)?;
    let peer = harness.peer()?;
    let event = || context.create_event();
    let (early, gate, marked) = (event()?, event()?, event()?);
    peer.ask(format!("open-event early {}", early.handle()?))?;
    peer.ask(format!("open-event gate {}", gate.handle()?))?;
    queue.submit(Command::marker().after_value(&early, 1))?;
    let marker = Command::marker().after_earlier();
    queue.submit(marker.signal(&marked))?;
    let (free, held) = (event()?, event()?);
    queue.submit(Command::marker().signal(&free))?;
    free.wait_timeout(deadline())?;
    queue.submit(Command::marker().before_later().after_value(&gate, 1))?;
    queue.submit(Command::marker().signal(&held))?;
    let late = held.wait_timeout(Duration::from_millis(20));
    assert!(matches!(late, Err(Error::TimedOut(_))), "not held");
    peer.ask("signal gate")?;
    held.wait_timeout(deadline())?;
    assert!(!marked.try_wait()?, "it did not wait for what was before");
    peer.ask("signal early")?;
    marked.wait_timeout(deadline())?;
    queue.finish_timeout(deadline())?;
    PASSED
}

/// A wait list may name several events of other queues and processes. Its values are fixed at
/// submission.
pub(crate) fn waits_across_queues_and_processes(harness: &Harness) -> Verdict {
    let (context, peer) = harness.with_peer()?;
    for order in ORDERS {
        let (one, two) = (context.create_queue_with(order)?, context.create_queue()?);
        let events: Result<Vec<Event>, _> = (0..4).map(|_| context.create_event()).collect();
        let events = events?;
        let [a, b, c, done] = &events[..] else {
            return Err(Failure::new("four events"));
        };
        peer.ask(format!("open-event a {}", a.handle()?))?;
        peer.ask(format!("open-event c {}", c.handle()?))?;
        peer.ask("queue q")?;
        // `a` is a future value, `b` is signalled by the other queue after `a`, and `c` is
        // signalled by the peer after `a`.
        two.submit(Command::barrier().after_value(a, 1).signal(b))?;
        peer.ask("submit q barrier after-value=a:1 signal=c")?;
        let seen = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&seen);
        let call = Command::call(move || {
            counter.fetch_add(1, Ordering::SeqCst);
            Ok::<_, Error>(())
        });
        one.submit(
            call.after(a)
                .after_value(a, 1)
                .after(b)
                .after(c)
                .signal(done),
        )?;
        // This signal is submitted later, so the wait does not include it.
        fails!(done.wait_timeout(Duration::from_millis(20)), TimedOut);
        assert_eq!(seen.load(Ordering::SeqCst), 0);
        peer.ask("signal a")?;
        done.wait_timeout(deadline())?;
        assert_eq!(seen.load(Ordering::SeqCst), 1);
        assert!(b.try_wait()? && c.try_wait()?);
        one.signal(done)?;
        two.wait(done)?;
        two.finish_timeout(deadline())?;
        assert_eq!(done.submitted(), 2);
    }
    PASSED
}

/// An error or a panic of a command reaches its event in every process, and all commands that
/// depend on it.
pub(crate) fn errors_reach_events(harness: &Harness) -> Verdict {
    let (context, peer) = harness.with_peer()?;
    for order in ORDERS {
        let queue = context.create_queue_with(order)?;
        let (event, next) = (context.create_event()?, context.create_event()?);
        peer.ask(format!("open-event e {}", event.handle()?))?;
        peer.ask("queue q")?;
        // The command fails in this process, and the peer sees it.
        queue.submit(Command::call(|| Err::<(), _>("no paper")).signal(&event))?;
        queue.submit(Command::barrier().after(&event).signal(&next))?;
        let failed = event.wait_timeout(deadline()).expect_err("it failed");
        assert!(failed.to_string().contains("no paper"), "{failed}");
        failed_late(harness.device(), "", next.wait_timeout(deadline()))?;
        // A signal that has already failed fails commands that wait for it in any process.
        queue.submit(Command::barrier().after(&event).signal(&next))?;
        fails!(next.wait_timeout(deadline()), CommandFailed);
        peer.refused("wait e 10000", "CommandFailed")?;
        assert_eq!(peer.ask("status e")?[2], "CommandFailed");
        // The command fails in the peer, and this process sees it.
        for work in ["fail paper", "panic"] {
            peer.ask(format!("submit q {work} signal=e"))?;
            fails!(event.wait_timeout(deadline()), CommandFailed);
        }
        let panics = Command::call(|| -> Result<(), Error> { panic!("as asked") });
        queue.submit(panics.signal(&next))?;
        fails!(next.wait_timeout(deadline()), CommandFailed);
        // Later commands are not affected.
        event.signal()?;
        event.wait_timeout(deadline())?;
        peer.ask("wait e 1000")?;
        queue.finish_timeout(deadline())?;
        peer.ask("finish q 10000")?;
    }
    PASSED
}

/// `finish` returns the error of a command without an event, once.
pub(crate) fn finish_tells_errors_once(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let queue = context.create_queue()?;
    queue.submit(Command::call(|| Err::<(), _>("first")))?;
    queue.submit(Command::call(|| Err::<(), _>("second")))?;
    let told = queue.finish_timeout(deadline()).expect_err("two failed");
    assert!(told.to_string().contains("first"), "{told}");
    queue.finish_timeout(deadline())?;
    PASSED
}

/// Submitted commands still run when their queue is dropped, and keep their memory and events.
pub(crate) fn commands_outlive_what_they_use(harness: &Harness) -> Verdict {
    let (context, transfer) = harness.transfer()?;
    let peer = harness.peer()?;
    let (gate, done) = (context.create_event()?, context.create_event()?);
    peer.ask(format!("allocate theirs {LEN}"))?;
    let handle = peer.ask("memory-handle theirs")?.remove(0).parse()?;
    let queue = context.create_queue()?;
    hold(&queue, &gate)?;
    {
        let source = memory(&context, &transfer, 9)?;
        let target = context.open_memory(&handle)?;
        queue.submit(Command::copy(source.all(), target.all())?.signal(&done))?;
    }
    drop(queue);
    // The freed source is not reused while the command still needs it.
    for _ in 0..10 {
        memory(&context, &transfer, 10)?;
    }
    assert!(!done.try_wait()?);
    gate.signal()?;
    done.wait_timeout(deadline())?;
    peer.ask(format!("check theirs 0 9 {LEN}"))?;
    PASSED
}
