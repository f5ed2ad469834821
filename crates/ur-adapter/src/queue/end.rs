//! Notification that all commands of a queue are complete.

use super::{Queue, QueueState};
use crate::abi::lock::Lock;
use crosshandle::{Command, Context, Event, EventOptions};
use std::sync::{Arc, Weak};

/// Value of the signal that follows a queue's commands. Each event in this module is signalled
/// once.
pub(crate) const ENDED: u64 = 1;

/// Reports when a queue's commands are complete, even after the queue was dropped.
pub(crate) struct QueueEnd {
    queue: Weak<QueueState>,
    /// The event that follows the last command of a dropped queue. `None` if the queue still exists
    /// or was idle when it was dropped.
    of_dropped: Lock<Option<Event>>,
}

impl QueueEnd {
    pub(super) fn new(queue: Weak<QueueState>) -> Arc<Self> {
        Arc::new(Self {
            queue,
            of_dropped: Lock::default(),
        })
    }

    /// Returns an event that is signalled when all submitted commands are complete. Returns `None`
    /// if the queue was dropped while it was idle.
    ///
    /// # Errors
    /// Returns an error if a system limit is reached. Also returns an error if the queue accepts no
    /// commands, for example because it is being captured.
    pub(crate) fn event(&self, context: &Context) -> crosshandle::Result<Option<Event>> {
        let Some(queue) = self.queue.upgrade() else {
            return Ok(self.of_dropped.lock().clone());
        };
        let event = new_event(context)?;
        let marker = Command::marker().after_earlier();
        queue.inner.submit(marker.signal(&event))?;
        Ok(Some(event))
    }

    /// Returns whether the queue was dropped and all its commands are complete.
    fn is_over(&self) -> bool {
        let is_signalled = |event: &Event| !matches!(event.try_wait_submitted(), Ok(false));
        self.queue.strong_count() == 0 && self.of_dropped.lock().as_ref().is_none_or(is_signalled)
    }
}

fn new_event(context: &Context) -> crosshandle::Result<Event> {
    context.create_event_with(EventOptions::new().shareable(false))
}

impl Queue {
    /// Submits the last command of a queue that is dropped while it is busy. The objects that watch
    /// the queue are notified when this command is complete.
    pub(super) fn submit_last(&self, last: Command) -> crosshandle::Result<()> {
        let end = &self.state.end;
        let last = last.after_earlier();
        let is_watched = Arc::strong_count(end) > 1;
        let context = self.context.on(self.device()).ok();
        // The command must be submitted even if the event cannot be created.
        let event = context
            .filter(|_| is_watched)
            .and_then(|context| new_event(context).ok());
        let Some(event) = event else {
            return self.inner().submit(last);
        };
        self.inner().submit(last.signal(&event))?;
        *end.of_dropped.lock() = Some(event);
        Ok(())
    }
}

/// The queues whose commands use an object.
#[derive(Default)]
pub(crate) struct Users(Lock<Vec<Arc<QueueEnd>>>);

impl Users {
    /// Records that commands on a queue use the object. Call this function before submitting such a
    /// command.
    pub(crate) fn note(&self, queue: &Queue) {
        let end = &queue.state.end;
        let mut ends = self.0.lock();
        if !ends.iter().any(|known| Arc::ptr_eq(known, end)) {
            ends.retain(|known| !known.is_over());
            ends.push(Arc::clone(end));
        }
    }

    /// Returns the completion notification for each queue that was recorded.
    pub(crate) fn ends(&self) -> Vec<Arc<QueueEnd>> {
        self.0.lock().clone()
    }
}
