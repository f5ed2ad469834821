//! Positions in the signals of events, for waits that each take the next signal.

use crate::api::event::Event;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A position in the signals of an event. Each wait that uses the cursor takes the next signal.
///
/// Graphs of several processes can signal each other without numbers: a recorded wait takes one
/// signal in each run ([`Graph::add_after_next`](super::Graph::add_after_next)). A command outside
/// of graphs can take the next signal too. Pass the number that [`take`](Self::take) returns to
/// [`Command::after_value`](crate::Command::after_value).
///
/// Clones share one position. Cursors of other processes, and other cursors of this process, have
/// positions of their own.
///
/// ```
/// # use crosshandle::{Command, Context, Device, graph::{Graph, SignalCursor}};
/// # fn main() -> crosshandle::Result<()> {
/// # let context = Context::new(&Device::find("host")?)?;
/// # let (ping, pong) = (context.create_event()?, context.create_event()?);
/// # let queue = context.create_queue()?;
/// let pings = SignalCursor::new(&ping);
/// let mut graph = Graph::new(&context);
/// graph.add_after_next(Command::marker().signal(&pong), &[], &[&pings])?;
/// let reply = graph.instantiate()?;
/// queue.submit(reply.command())?; // waits for the next signal of `ping`
/// queue.submit(reply.command())?; // waits for the signal after that one
/// ping.signal_value(2)?;
/// pong.wait_value(2)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SignalCursor {
    event: Event,
    taken: Arc<AtomicU64>,
}

impl SignalCursor {
    /// Creates a cursor before the first signal of `event`. If earlier signals had another purpose,
    /// [skip](Self::skip_to) them.
    pub fn new(event: &Event) -> Self {
        Self {
            event: event.clone(),
            taken: Arc::default(),
        }
    }

    /// Returns the event.
    pub fn event(&self) -> &Event {
        &self.event
    }

    /// Returns the number of the latest signal that was taken or skipped.
    pub fn position(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Takes the next signal, and returns its number. The signal need not have been submitted yet.
    pub fn take(&self) -> u64 {
        self.taken.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Skips all signals up to `value`. Does nothing if these signals were already taken.
    #[inline]
    pub fn skip_to(&self, value: u64) {
        // The position is read first, because waits usually repeat a value.
        if self.position() < value {
            self.taken.fetch_max(value, Ordering::Relaxed);
        }
    }

    /// Returns whether both share one position.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.taken, &other.taken)
    }
}
