//! Waits for several events at once.

use super::Event;
use crosshandle_events::WaitMode;
use crosshandle_ipc::awaiting::{Await, Waiter};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::{Condvar, Deadline, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of events for which the calling thread itself sleeps. The kernel watches at most
/// 128 words at once.
const MAX_OWN: usize = 127;

/// Waits until one of the events has reached the value next to it, and returns its index.
pub(super) fn wait_any(events: &[(&Event, u64)], timeout: Option<Duration>) -> Result<usize> {
    if events.is_empty() {
        return Err(Error::invalid(
            "a wait for any of no events would never end",
        ));
    }
    let deadline = Deadline::after_optional(timeout);
    let (index, result) = any_of(events, deadline);
    result.map(|()| index)
}

/// Waits until all events have reached the values next to them, or one of them has failed.
pub(super) fn wait_all(mut events: Vec<(&Event, u64)>, timeout: Option<Duration>) -> Result<()> {
    let deadline = Deadline::after_optional(timeout);
    if events.len() > MAX_OWN {
        return all_of_many(&events, deadline);
    }
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
    match crosshandle_ipc::wait_any(&targets, None, mode, deadline.instant()) {
        None => (0, Err(timed_out())),
        Some((index, result)) => {
            let (event, value) = events[index];
            let result = result.map_err(|error| event.core.error_of(value, error));
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
