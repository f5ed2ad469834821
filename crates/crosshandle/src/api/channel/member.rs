//! Members of a channel in this process, and how they leave.

use super::core::ChannelCore;
use super::events::MemberEvent;
use crate::api::event::Event;
use crate::api::queue::Queue;
use crosshandle_events::channel::MemberKey;
use crosshandle_ipc::channel::ChannelRole;
use crosshandle_types::error::Result;
use crosshandle_types::sync::Mutex;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// A producer or a consumer of this process. Dropping it makes it leave the channel, as soon as the
/// queues have ended the commands that use its slots.
pub(super) struct Member {
    pub(super) core: Arc<ChannelCore>,
    pub(super) role: ChannelRole,
    pub(super) key: MemberKey,
    /// Signalled by queues when items are complete or slots are free.
    work: OnceLock<Event>,
    /// Signalled by other members when this member may continue.
    wake: OnceLock<Event>,
    /// The signals of `work` that may not have ended.
    unfinished: Mutex<Unfinished>,
    /// Held while an event is created and the card is written.
    writing: Mutex<()>,
}

/// Numbers of signals that may not have ended. Signals of several queues end in any order.
#[derive(Default)]
struct Unfinished {
    numbers: Vec<u64>,
    /// Length of the list at which the member next removes the signals that have ended.
    limit: usize,
}

impl Unfinished {
    /// Shortest list from which the member removes signals.
    const LIMIT: usize = 16;
}

impl Member {
    /// Describes a member that has just joined, and writes its card.
    pub(super) fn new(core: &Arc<ChannelCore>, role: ChannelRole, key: MemberKey) -> Result<Self> {
        let member = Self {
            core: Arc::clone(core),
            role,
            key,
            work: OnceLock::new(),
            wake: OnceLock::new(),
            unfinished: Mutex::default(),
            writing: Mutex::default(),
        };
        core.begin_unarmed(role, key);
        member.write_card()?;
        Ok(member)
    }

    fn write_card(&self) -> Result<()> {
        let (work, wake) = (self.work.get(), self.wake.get());
        (self.core.events).write_card(self.role, self.key, work, wake)
    }

    fn event(&self, which: MemberEvent) -> Result<&Event> {
        let place = match which {
            MemberEvent::Work => &self.work,
            MemberEvent::Wake => &self.wake,
        };
        if let Some(event) = place.get() {
            return Ok(event);
        }
        let _writing = self.writing.lock();
        if let Some(event) = place.get() {
            return Ok(event);
        }
        let event = self.core.events.create(self.role, self.key, which)?;
        let event = place.get_or_init(|| event);
        self.write_card()?;
        Ok(event)
    }

    /// Returns the event that queues signal, if there is one.
    pub(super) fn work(&self) -> Option<&Event> {
        self.work.get()
    }

    /// Makes a queue signal this member after its earlier commands, and returns the signal's
    /// number.
    pub(super) fn signal_on(&self, queue: &Queue) -> Result<u64> {
        let number = queue.signal_numbered(self.event(MemberEvent::Work)?)?;
        let mut unfinished = self.unfinished.lock();
        if unfinished.numbers.len() >= unfinished.limit {
            unfinished.numbers.retain(|number| !self.has_ended(*number));
            // The list doubles first, so that each signal is checked a few times on average.
            unfinished.limit = Unfinished::LIMIT.max(2 * unfinished.numbers.len());
        }
        unfinished.numbers.push(number);
        Ok(number)
    }

    /// Returns whether a signal of this member has succeeded or failed.
    pub(super) fn has_ended(&self, number: u64) -> bool {
        let work = self.work.get();
        work.is_none_or(|event| !matches!(event.try_wait_value(number), Ok(false)))
    }

    /// Asks other members to signal this one, and returns the event and the number of the next
    /// signal.
    pub(super) fn arm(&self) -> Result<(Event, u64)> {
        let control = &self.core.control;
        if !control.watch_peers() {
            control.remove_dead();
        }
        let next = self.next_wake()?;
        control.arm(self.role, self.key);
        Ok(next)
    }

    /// Returns the event that wakes this member, and the number of the next signal.
    pub(super) fn next_wake(&self) -> Result<(Event, u64)> {
        let event = self.event(MemberEvent::Wake)?;
        Ok((event.clone(), event.submitted() + 1))
    }

    /// Wakes this member, if it has ever waited.
    pub(super) fn wake(&self) {
        if let Some(event) = self.wake.get() {
            let _ = event.signal();
        }
    }

    /// Reverts [`arm`](Self::arm).
    pub(super) fn disarm(&self) {
        self.core.control.disarm(self.role, self.key.index);
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let core = &self.core;
        if core.is_inherited() {
            return;
        }
        self.disarm();
        let (role, key) = (self.role, self.key);
        let Some(work) = self.work.get() else {
            return core.end(role, key, None);
        };
        let mut numbers = mem::take(&mut self.unfinished.lock().numbers);
        numbers.retain(|number| !self.has_ended(*number));
        if numbers.is_empty() {
            return core.end(role, key, Some(work));
        }
        // Queues still use slots, and other processes may not know the event yet.
        let remaining = Arc::new(AtomicUsize::new(numbers.len()));
        for number in numbers {
            let (leaving, event) = (Arc::clone(core), work.clone());
            let remaining = Arc::clone(&remaining);
            let awaited = work.on_signal(number, move |_| {
                if remaining.fetch_sub(1, Ordering::AcqRel) == 1 {
                    leaving.end(role, key, Some(&event));
                }
            });
            match awaited {
                Ok(subscription) => subscription.detach(),
                Err(error) => {
                    tracing::warn!(%error, "a member of a channel stays until this process ends");
                    mem::forget((Arc::clone(core), work.clone()));
                }
            }
        }
    }
}
