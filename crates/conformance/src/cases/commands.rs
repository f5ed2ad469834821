//! Cases about the objects that commands keep alive, and about when they are dropped.

use crate::failure::Verdict;
use crate::harness::{Harness, deadline};
use crate::suite::PASSED;
use crosshandle::{Command, Error, Queue, QueueOrder};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

/// Lengths in bytes. The host copies the first one at once, and the second one is too long for
/// that.
const LENS: [usize; 2] = [100, 200_000];

/// An object that uses a queue when it is dropped, and reports that.
struct UsesQueueOnDrop {
    queue: Arc<Queue>,
    said: Sender<()>,
}

impl Drop for UsesQueueOnDrop {
    fn drop(&mut self) {
        self.queue.is_idle();
        self.queue
            .submit(Command::barrier())
            .expect("a queue that works");
        self.said.send(()).ok();
    }
}

/// An object that a command keeps is dropped when the command completes or is skipped. It may use
/// the queue in its drop.
pub(crate) fn what_they_keep_may_use_their_queue(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    for order in [QueueOrder::InOrder, QueueOrder::OutOfOrder] {
        let queue = Arc::new(context.create_queue_with(order)?);
        let (said, dropped) = mpsc::channel();
        let [done, failed] = [context.create_event()?, context.create_event()?];
        queue.submit(Command::call(|| Err("as asked")).signal(&failed))?;
        fails!(failed.wait_timeout(deadline()), CommandFailed);
        for len in LENS {
            let memory = context.allocate(len)?;
            for is_skipped in [false, true] {
                let last = UsesQueueOnDrop {
                    queue: Arc::clone(&queue),
                    said: said.clone(),
                };
                let command = Command::fill(memory.all().keeping(Arc::new(last)), &[1])?;
                let command = command.signal(&done);
                if is_skipped {
                    queue.submit(command.after(&failed))?;
                    let skipped = done.wait_timeout(deadline());
                    assert!(
                        matches!(skipped, Err(Error::CommandFailed(_))),
                        "{skipped:?}"
                    );
                } else {
                    queue.submit(command)?;
                    done.wait_timeout(deadline())?;
                }
                queue.finish_timeout(deadline())?;
                dropped.recv_timeout(deadline())?;
            }
        }
    }
    PASSED
}

/// A command that is refused at submission does not let later commands overtake commands that it
/// would have waited for.
pub(crate) fn refused_ones_let_nothing_pass(harness: &Harness) -> Verdict {
    /// The greatest signal number of an event. `STEP` is the greatest increase of its value at
    /// once.
    const LAST: u64 = (1 << 50) - 1;
    const STEP: u64 = 1 << 29;
    let context = harness.context()?;
    let [spent, first, after] = [(); 3].map(|()| context.create_event());
    let (spent, first, after) = (spent?, first?, after?);
    while spent.submitted() < LAST {
        spent.signal_value(LAST.min(spent.submitted() + STEP))?;
    }
    let queue = context.create_queue()?;
    let (release, released) = mpsc::channel();
    let waiting = Command::call(move || released.recv_timeout(deadline()));
    queue.submit(waiting.signal(&first))?;
    let refused = queue.submit(Command::call(|| Ok::<_, Infallible>(())).signal(&spent));
    assert!(
        matches!(refused, Err(Error::LimitReached { .. })),
        "{refused:?}"
    );
    queue.signal(&after)?;
    std::thread::sleep(Duration::from_millis(100));
    assert!(!first.try_wait()? && !after.try_wait()?);
    release.send(())?;
    after.wait_timeout(deadline())?;
    assert!(first.try_wait()?);
    PASSED
}

/// A command keeps the event that it signals and everything that the event needs, even after the
/// context is dropped.
pub(crate) fn they_keep_their_event(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let [calls, waits] = [context.create_queue()?, context.create_queue()?];
    let gate = context.create_event()?;
    for _ in 0..10 {
        let other = harness.context()?;
        let done = other.create_event()?;
        waits.signal(&done)?;
        waits.finish_timeout(deadline())?;
        let (release, released) = mpsc::channel();
        let waiting = Command::call(move || released.recv_timeout(deadline()));
        calls.submit(waiting.signal(&gate))?;
        waits.submit(Command::barrier().after(&gate).signal(&done))?;
        drop((done, other));
        release.send(())?;
        waits.finish_timeout(deadline())?;
        calls.finish_timeout(deadline())?;
    }
    PASSED
}
