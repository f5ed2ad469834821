//! The events of a channel's members, by which members in different processes wait for each other
//! and for queues.
//!
//! A member's card has the handles of its events. Another process opens an event when it needs it
//! for the first time. The member's process has to answer that, and may be stopped. A background
//! thread therefore opens the events, and no call of the channel waits longer than its deadline.

use super::layout::CORRUPT;
use crate::api::context::Context;
use crate::api::event::{Event, EventOptions};
use crosshandle_events::channel::{LIVENESS_INTERVAL, MemberKey};
use crosshandle_handle::EventHandle;
use crosshandle_ipc::channel::{CARD_WORDS, ChannelControl, ChannelRole};
use crosshandle_os::socket::interrupt;
use crosshandle_os::threads::background;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::{Condvar, Deadline, HashMap, Mutex};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

/// The events of a member, as an index of its card's halves.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum MemberEvent {
    /// Signalled by queues: an item is complete, or a slot is free.
    Work,
    /// Signalled by other members: this member may continue.
    Wake,
}

/// Number of words of a card that contain the handle of one event.
const EVENT_WORDS: usize = CARD_WORDS / 2;
/// Longest time that a background thread waits for a member's answer before it checks whether the
/// event is still needed.
const ATTEMPT: Duration = Duration::from_secs(10);
/// Time after which a background thread retries to open an event after an error of this process.
const RETRY: Duration = Duration::from_millis(100);
const OPENING: &str = "opening an event of another member of a channel";

/// The place of a member's event.
type Place = (bool, u8, MemberEvent);

/// The events of a channel's members that this process uses.
pub(super) struct MemberEvents {
    context: Context,
    control: Arc<ChannelControl>,
    /// The events, with the generations of their members.
    states: Mutex<HashMap<Place, (u32, State)>>,
    /// Notified when a background thread has opened an event, or failed to open it.
    changed: Condvar,
}

enum State {
    /// A member of this process has created the event.
    Own(Event),
    Open(Event),
    /// A background thread is opening the event that has this handle. If a later member takes the
    /// place, the thread opens that member's event next.
    Opening(EventHandle),
    /// The next call that needs the event gets the error. Events for waking never fail so, because
    /// no call would retry.
    Failed(Error),
}

fn place(role: ChannelRole, key: MemberKey, which: MemberEvent) -> Place {
    (role == ChannelRole::Producer, key.index, which)
}

impl MemberEvents {
    pub(super) fn new(context: &Context, control: &Arc<ChannelControl>) -> Arc<Self> {
        Arc::new(Self {
            context: context.clone(),
            control: Arc::clone(control),
            states: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// Creates an event of a member of this process.
    pub(super) fn create(
        &self,
        role: ChannelRole,
        key: MemberKey,
        which: MemberEvent,
    ) -> Result<Event> {
        let options = EventOptions::new().isolated(true);
        let event = self.context.create_event_with(options)?;
        let own = (key.generation, State::Own(event.clone()));
        let former = self.states.lock().insert(place(role, key, which), own);
        drop(former);
        Ok(event)
    }

    /// Drops the events of a member of this process.
    pub(super) fn forget(&self, role: ChannelRole, key: MemberKey) {
        for which in [MemberEvent::Work, MemberEvent::Wake] {
            let mut states = self.states.lock();
            let place = place(role, key, which);
            let is_own = (states.get(&place)).is_some_and(|(generation, state)| {
                *generation == key.generation && matches!(state, State::Own(_))
            });
            let former = is_own.then(|| states.remove(&place));
            drop(states);
            drop(former);
        }
    }

    /// Writes the handles of a member's events for other processes.
    pub(super) fn write_card(
        &self,
        role: ChannelRole,
        key: MemberKey,
        work: Option<&Event>,
        wake: Option<&Event>,
    ) -> Result<()> {
        let mut words = [0; CARD_WORDS];
        for (words, event) in words.chunks_mut(EVENT_WORDS).zip([work, wake]) {
            let Some(event) = event else { continue };
            let handle = event.handle()?;
            for (word, bytes) in words.iter_mut().zip(handle.as_bytes().chunks(8)) {
                let mut padded = [0; 8];
                padded[..bytes.len()].copy_from_slice(bytes);
                *word = u64::from_ne_bytes(padded);
            }
        }
        self.control.write_card(role, key, &words);
        Ok(())
    }

    fn handle(&self, role: ChannelRole, key: MemberKey, which: MemberEvent) -> Result<EventHandle> {
        let card = self.control.read_card(role, key).ok_or(CORRUPT)?;
        let half = match which {
            MemberEvent::Work => &card[..EVENT_WORDS],
            MemberEvent::Wake => &card[EVENT_WORDS..],
        };
        let bytes: Vec<u8> = half.iter().flat_map(|word| word.to_ne_bytes()).collect();
        Ok(EventHandle::from_bytes(&bytes[..size_of::<EventHandle>()])?)
    }

    /// Returns an event of a member. Returns `None` while a background thread opens it, which the
    /// first call starts. Never waits.
    ///
    /// # Errors
    /// The errors of [`Context::open_event`], after which the next call retries. Also
    /// [`ChannelFault::Corrupt`](super::ChannelFault::Corrupt) if the member has no such event.
    pub(super) fn get(
        self: &Arc<Self>,
        role: ChannelRole,
        key: MemberKey,
        which: MemberEvent,
    ) -> Result<Option<Event>> {
        let place = place(role, key, which);
        let mut states = self.states.lock();
        let mut is_opening = false;
        if let Some((generation, state)) = states.get(&place) {
            let is_same = *generation == key.generation;
            match state {
                State::Opening(_) if !is_same => is_opening = true,
                _ if !is_same => {}
                State::Own(event) | State::Open(event) => return Ok(Some(event.clone())),
                State::Opening(_) => {
                    drop(states);
                    // The system may have refused to start the thread before.
                    background::start_missing_threads();
                    return Ok(None);
                }
                State::Failed(error) => {
                    let error = error.clone();
                    states.remove(&place);
                    // The call of the background thread has timed out, and not this one.
                    if !error.is_timeout() {
                        return Err(error);
                    }
                }
            }
        }
        let handle = self.handle(role, key, which)?;
        let former = states.insert(place, (key.generation, State::Opening(handle)));
        drop(states);
        drop(former);
        // One thread for each place, however often a hostile member joins and leaves.
        if is_opening {
            background::start_missing_threads();
            return Ok(None);
        }
        let (events, context) = (Arc::downgrade(self), self.context.clone());
        background::run_blocking(
            move || {
                while !Self::open(&events, &context, role, key, which) {}
            },
        );
        Ok(None)
    }

    /// Returns an event of a member, and waits until it is open.
    ///
    /// # Errors
    /// As [`get`](Self::get). Also [`Error::TimedOut`] and [`Error::Interrupted`].
    pub(super) fn get_by(
        self: &Arc<Self>,
        role: ChannelRole,
        key: MemberKey,
        which: MemberEvent,
        deadline: Deadline,
    ) -> Result<Event> {
        loop {
            if let Some(event) = self.get(role, key, which)? {
                return Ok(event);
            }
            if deadline.is_over() {
                return Err(Error::TimedOut(OPENING));
            }
            check_interrupt()?;
            let states = self.states.lock();
            let is_opening = (states.get(&place(role, key, which)))
                .is_some_and(|(_, state)| matches!(state, State::Opening(_)));
            if is_opening {
                let limit = deadline.remaining_within(LIVENESS_INTERVAL);
                drop(self.changed.wait_timeout(states, limit));
            }
        }
    }

    /// Tries to open an event on a background thread. Returns whether the attempt was the last.
    fn open(
        events: &Weak<Self>,
        context: &Context,
        role: ChannelRole,
        key: MemberKey,
        which: MemberEvent,
    ) -> bool {
        let place = place(role, key, which);
        let wanted = events.upgrade().and_then(|events| {
            let states = events.states.lock();
            match states.get(&place) {
                Some((generation, State::Opening(handle))) => Some((*generation, *handle)),
                _ => None,
            }
        });
        let Some((generation, handle)) = wanted else {
            return true;
        };
        let key = MemberKey { generation, ..key };
        // The channel may be closed meanwhile.
        let opened = context.open_event_timeout(&handle, ATTEMPT);
        let Some(events) = events.upgrade() else {
            return true;
        };
        if let Err(error) = &opened
            && events.is_needed(role, key, which, error)
        {
            drop(events);
            if !error.is_timeout() {
                thread::sleep(RETRY);
            }
            return false;
        }
        let event = opened.as_ref().ok().cloned();
        let is_gone = opened.as_ref().is_err_and(is_gone);
        if !events.put(place, generation, opened) {
            return false;
        }
        match (which, event) {
            // The words have changed for the member before this process needed its event. Calls
            // that found it unopened rely on this signal, so it comes after the event is put.
            (MemberEvent::Wake, Some(event)) => {
                let _ = event.signal();
            }
            // The member may have asked for a signal after the check above, and a call may have
            // relied on this thread.
            (MemberEvent::Wake, None) => {
                let armed = events.control.armed_members(role) & (1 << key.index);
                if armed != 0 && !is_gone {
                    events.wake_each(role, armed);
                }
            }
            // Tasks of this process may wait for the event.
            (MemberEvent::Work, _) => events.wake_own(),
        }
        true
    }

    /// Returns whether another attempt to open an event is worthwhile.
    fn is_needed(
        &self,
        role: ChannelRole,
        key: MemberKey,
        which: MemberEvent,
        error: &Error,
    ) -> bool {
        let is_alive = is_same(self.control.member(role, key.index), key);
        // No other call retries to wake a member. Calls that need a signal get the error.
        let retries = match which {
            MemberEvent::Wake => {
                !is_gone(error) && self.control.armed_members(role) & (1 << key.index) != 0
            }
            MemberEvent::Work => error.is_timeout(),
        };
        is_alive && retries
    }

    /// Records the result of opening an event. Returns `false` if a later member has taken the
    /// place, and the caller has to open its event.
    fn put(&self, place: Place, generation: u32, opened: Result<Event>) -> bool {
        let mut states = self.states.lock();
        if let Some((present, State::Opening(_))) = states.get(&place) {
            if *present != generation {
                return false;
            }
            match (opened, place.2) {
                (Ok(event), _) => states.insert(place, (generation, State::Open(event))),
                (Err(_), MemberEvent::Wake) => states.remove(&place),
                (Err(error), MemberEvent::Work) => {
                    states.insert(place, (generation, State::Failed(error)))
                }
            };
        }
        self.changed.notify_all();
        true
    }

    /// Signals the members of a role that are armed, one bit for each.
    #[cold]
    pub(super) fn wake_each(self: &Arc<Self>, role: ChannelRole, mut armed: u64) {
        while armed != 0 {
            let index = armed.trailing_zeros() as u8;
            armed &= armed - 1;
            let mut member = self.control.member(role, index);
            if member.is_none() {
                self.control.disarm(role, index);
                // A member that has joined in the meantime may have set the bit.
                member = self.control.member(role, index);
                if let Some(key) = member {
                    self.control.arm(role, key);
                }
            }
            let Some(key) = member else { continue };
            // The bit stays set until the member itself clears it. If this process dies before it
            // signals, the next one that changes the words signals.
            let woken = match self.get(role, key, MemberEvent::Wake) {
                Ok(Some(event)) => event.signal().map(drop),
                // The background thread signals.
                Ok(None) => Ok(()),
                Err(error) => Err(error),
            };
            if let Err(error) = woken {
                tracing::debug!(%error, "a member of a channel cannot be woken");
            }
        }
    }

    /// Wakes the tasks of this process's members.
    pub(super) fn wake_own(&self) {
        let states = self.states.lock();
        let wakes = states
            .iter()
            .filter_map(|((_, _, which), (_, state))| match (which, state) {
                (MemberEvent::Wake, State::Own(event)) => Some(event.clone()),
                _ => None,
            });
        let wakes: Vec<_> = wakes.collect();
        drop(states);
        for wake in wakes {
            let _ = wake.signal();
        }
    }
}

/// Returns whether a living member is the one with this index and generation.
pub(super) fn is_same(living: Option<MemberKey>, key: MemberKey) -> bool {
    living.is_some_and(|living| living.index == key.index && living.generation == key.generation)
}

/// Returns whether an event can never be opened.
fn is_gone(error: &Error) -> bool {
    matches!(
        error,
        Error::ExporterGone { .. } | Error::Stale | Error::Handle(_)
    )
}

/// Returns an error if the program has interrupted the calling thread.
pub(super) fn check_interrupt() -> Result<()> {
    interrupt::check().map_err(|_| Error::Interrupted)
}
