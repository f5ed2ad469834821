//! Signals as futures and streams.

use super::Event;
use crosshandle_ipc::awaiting::{Await, Waiter};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::observe::waited;
use crosshandle_types::sync::Mutex;
use futures_core::Stream;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A future that completes when a signal has completed. If the signal fails or can never come, it
/// returns the error that a [wait](Event::wait_value) would return.
///
/// The future works with every runtime, or without one, and does nothing before its first poll.
/// Dropping the future cancels the wait at any time and does not affect the event. Wakers are
/// called on the library's thread `xh-await`, without a lock. A waker that blocks delays everything
/// that the process awaits.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Reached {
    event: Event,
    value: u64,
    awaited: Option<(Arc<Outlet>, Await)>,
}

/// The place where the `xh-await` thread leaves the result of a future.
#[derive(Debug, Default)]
struct Outlet(Mutex<Arrival>);

#[derive(Debug, Default)]
struct Arrival {
    result: Option<Result<()>>,
    waker: Option<Waker>,
}

impl Waiter for Outlet {
    fn tell(&self, result: Result<()>) {
        let mut arrival = self.0.lock();
        arrival.result = Some(result);
        let waker = arrival.waker.take();
        // The lock is released first, because a waker runs the program's code.
        drop(arrival);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Outlet {
    /// Takes the result, or registers the task, which is then woken when there is a result.
    fn poll(&self, task: &Context<'_>) -> Option<Result<()>> {
        let waker = task.waker().clone();
        let mut arrival = self.0.lock();
        if let Some(result) = arrival.result.take() {
            return Some(result);
        }
        let former = arrival.waker.replace(waker);
        drop(arrival);
        drop(former);
        None
    }
}

impl Reached {
    pub(super) fn new(event: Event, value: u64) -> Self {
        Self {
            event,
            value,
            awaited: None,
        }
    }
}

impl Future for Reached {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Result<()>> {
        if let Some((outlet, _)) = &self.awaited {
            let Some(result) = outlet.poll(task) else {
                return Poll::Pending;
            };
            self.awaited = None;
            return Poll::Ready(waited(result));
        }
        if let Some(result) = self.event.core.result(self.value) {
            return Poll::Ready(waited(result));
        }
        let outlet = Arc::<Outlet>::default();
        outlet.0.lock().waker = Some(task.waker().clone());
        let waiter = Arc::clone(&outlet);
        match Await::begin(&self.event.core, self.value, waiter) {
            Ok(begun) => {
                self.awaited = Some((outlet, begun));
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

/// A stream of the values that an event reaches, returned by [`Event::values`].
///
/// Each item is the latest value at the time of the poll, so a task that is slower than the signals
/// skips some values. An item is an error if the signal of that value failed. The stream continues
/// after such an error. The stream ends after an error that means that no further value can come.
#[derive(Debug)]
#[must_use = "streams do nothing unless polled"]
pub struct Values {
    next: Reached,
    has_ended: bool,
}

impl Values {
    pub(super) fn new(event: Event, after: u64) -> Self {
        Self {
            next: Reached::new(event, after.saturating_add(1)),
            has_ended: false,
        }
    }
}

impl Stream for Values {
    type Item = Result<u64>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<Result<u64>>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        let Poll::Ready(result) = Pin::new(&mut self.next).poll(task) else {
            return Poll::Pending;
        };
        let event = self.next.event.clone();
        let reached = event.completed().max(self.next.value);
        let result = match reached == self.next.value {
            true => result,
            false => event.core.result(reached).unwrap_or(result),
        };
        // The stream ends at an error for a value that was never submitted, and at an error that
        // prevents further waiting.
        self.has_ended = match &result {
            Err(Error::PeerDied(_) | Error::CommandFailed(_)) => reached > event.submitted(),
            Err(_) => true,
            Ok(()) => false,
        };
        let next = Reached::new(event, reached.saturating_add(1));
        drop(mem::replace(&mut self.next, next));
        Poll::Ready(Some(result.map(|()| reached)))
    }
}
