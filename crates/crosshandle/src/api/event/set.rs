//! Sets of events, for waits for several events at once.

use super::Event;
use crosshandle_events::WaitMode;
use crosshandle_ipc::awaiting::{Await, Waiter};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::observe::{trace, waited};
use crosshandle_types::sync::{Condvar, Deadline, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of events for which the calling thread itself sleeps. The kernel watches at most
/// 128 words at once.
const MAX_OWN: usize = 127;

/// Events to wait for together, each up to a signal. The number of events is not limited.
///
/// ```
/// use crosshandle::{Context, Device, event::EventSet};
///
/// # fn main() -> crosshandle::Result<()> {
/// let context = Context::new(&Device::find("host")?)?;
/// let (first, second) = (context.create_event()?, context.create_event()?);
/// let both = EventSet::latest([&first, &second]);
/// second.signal()?;
/// assert_eq!(both.wait_any()?, 1);
/// assert!(!both.try_wait_all()?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct EventSet<'a> {
    /// The events, each with the number of the awaited signal.
    events: Vec<(&'a Event, u64)>,
}

impl<'a> EventSet<'a> {
    /// Returns a set that waits for the signal of each event that is the latest one now. For an
    /// event without a signal, the set waits for the first signal.
    pub fn latest(events: impl IntoIterator<Item = &'a Event>) -> Self {
        let latest = |event: &'a Event| (event, event.latest_or_first());
        Self::values(events.into_iter().map(latest))
    }

    /// Returns a set that waits until each event has reached the value next to it.
    pub fn values(events: impl IntoIterator<Item = (&'a Event, u64)>) -> Self {
        Self {
            events: events.into_iter().collect(),
        }
    }

    /// Waits until the signals of all events have completed.
    ///
    /// # Errors
    /// As soon as one of the signals fails, its error.
    pub fn wait_all(&self) -> Result<()> {
        self.all(Deadline::NEVER)
    }

    /// Waits until the signals of all events have completed, for at most `timeout`.
    ///
    /// # Errors
    /// As [`wait_all`](Self::wait_all). Also [`Error::TimedOut`].
    pub fn wait_all_timeout(&self, timeout: Duration) -> Result<()> {
        self.all(Deadline::after(timeout))
    }

    /// Returns whether the signals of all events have completed.
    ///
    /// # Errors
    /// As [`wait_all`](Self::wait_all).
    pub fn try_wait_all(&self) -> Result<bool> {
        // All events are checked, because an event after an unfinished event may have failed.
        let check = |all, (event, value): &(&Event, u64)| Ok(event.try_wait_value(*value)? && all);
        self.events.iter().try_fold(true, check)
    }

    /// Waits until the signal of one of the events has completed, and returns the index of that
    /// event.
    ///
    /// # Errors
    /// - The error of the signal that finished first, if it failed.
    /// - [`Error::InvalidArgument`] for an empty set.
    pub fn wait_any(&self) -> Result<usize> {
        self.any(Deadline::NEVER)
    }

    /// Waits until the signal of one of the events has completed, for at most `timeout`, and
    /// returns the index of that event.
    ///
    /// # Errors
    /// As [`wait_any`](Self::wait_any). Also [`Error::TimedOut`].
    pub fn wait_any_timeout(&self, timeout: Duration) -> Result<usize> {
        self.any(Deadline::after(timeout))
    }

    /// Returns the index of an event whose signal has completed, or `None` if there is none.
    ///
    /// # Errors
    /// The error of a signal that has failed, if no event before it has completed.
    pub fn try_wait_any(&self) -> Result<Option<usize>> {
        for (index, (event, value)) in self.events.iter().enumerate() {
            if event.try_wait_value(*value)? {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    fn any(&self, deadline: Deadline) -> Result<usize> {
        if self.events.is_empty() {
            return Err(Error::invalid(
                "a wait for any of no events would never end",
            ));
        }
        let (index, result) = any_of(&self.events, deadline);
        waited(result.map(|()| index))
    }

    fn all(&self, deadline: Deadline) -> Result<()> {
        waited(match self.events.len() > MAX_OWN {
            true => all_of_many(&self.events, deadline),
            false => all_of(self.events.clone(), deadline),
        })
    }
}

fn all_of(mut events: Vec<(&Event, u64)>, deadline: Deadline) -> Result<()> {
    loop {
        match events[..] {
            [] => return Ok(()),
            [(event, value)] => return event.core.wait(value, deadline),
            _ => {
                let (index, result) = any_of(&events, deadline);
                result?;
                events.remove(index);
            }
        }
    }
}

/// Waits until one of the events has reached its value or failed. The list is not empty.
fn any_of(events: &[(&Event, u64)], deadline: Deadline) -> (usize, Result<()>) {
    if events.len() > MAX_OWN {
        return any_of_many(events, deadline);
    }
    let targets: Vec<_> = events
        .iter()
        .map(|(event, value)| event.core.target(*value))
        .collect();
    let mode = WaitMode::for_all(events.iter().map(|(event, _)| event.core.mode()));
    let begun = trace::begin();
    match crosshandle_ipc::wait_any(&targets, None, mode, deadline.instant()) {
        None => (0, Err(timed_out())),
        Some((index, result)) => {
            let (event, value) = events[index];
            let result = result.map_err(|error| event.core.error_of(value, error));
            event.core.trace_wait(begun, value, result.as_ref().err());
            (index, result)
        }
    }
}

fn timed_out() -> Error {
    Error::TimedOut("waiting for events")
}

/// Waits for one of the events, if there are more than the calling thread can sleep for.
fn any_of_many(events: &[(&Event, u64)], deadline: Deadline) -> (usize, Result<()>) {
    match Gathering::begin(events) {
        Ok(gathering) => gathering.next(deadline),
        Err(error) => (0, Err(error)),
    }
}

/// Waits for all events, if there are more than the calling thread can sleep for.
fn all_of_many(events: &[(&Event, u64)], deadline: Deadline) -> Result<()> {
    let gathering = Gathering::begin(events)?;
    events.iter().try_for_each(|_| gathering.next(deadline).1)
}

/// Events for which the `xh-await` thread sleeps.
struct Gathering {
    results: Arc<Results>,
    _awaited: Vec<Await>,
}

/// The results so far, each with the index of its event.
#[derive(Default)]
struct Results {
    queue: Mutex<VecDeque<(usize, Result<()>)>>,
    added: Condvar,
}

/// One event of a [`Gathering`].
struct Member {
    index: usize,
    results: Arc<Results>,
}

impl Waiter for Member {
    fn tell(&self, result: Result<()>) {
        let mut queue = self.results.queue.lock();
        queue.push_back((self.index, result));
        drop(queue);
        self.results.added.notify_all();
    }
}

impl Gathering {
    fn begin(events: &[(&Event, u64)]) -> Result<Self> {
        let results = Arc::<Results>::default();
        let begin = |(index, (event, value)): (usize, &(&Event, u64))| {
            let results = Arc::clone(&results);
            Await::begin(&event.core, *value, Arc::new(Member { index, results }))
        };
        let awaited = events
            .iter()
            .enumerate()
            .map(begin)
            .collect::<Result<_>>()?;
        Ok(Self {
            results,
            _awaited: awaited,
        })
    }

    /// Waits for the next result.
    fn next(&self, deadline: Deadline) -> (usize, Result<()>) {
        let is_empty = |queue: &mut VecDeque<_>| queue.is_empty();
        let queue = self.results.queue.lock();
        let added = &self.results.added;
        let (mut queue, _) = added.wait_until_while(queue, deadline, is_empty);
        queue.pop_front().unwrap_or_else(|| (0, Err(timed_out())))
    }
}
