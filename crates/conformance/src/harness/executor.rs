//! Runs futures and streams without an async runtime, each with a time limit.

use futures_core::Stream;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread, which sleeps until the future is woken. Returns `None` if the
/// future has not completed within `limit`.
pub fn block_on<T>(future: impl Future<Output = T>, limit: Duration) -> Option<T> {
    let end = Instant::now() + limit;
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut task = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut task) {
            return Some(value);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        thread::park_timeout(left);
    }
}

/// Polls a future once, and returns whether it is still pending. The poll registers no waker.
pub fn is_pending(future: &mut (impl Future + Unpin)) -> bool {
    let mut task = Context::from_waker(Waker::noop());
    Pin::new(future).poll(&mut task).is_pending()
}

/// Returns the next item of a stream, as [`block_on`] does for a future. Returns `None` if no item
/// arrived within `limit`, and `Some(None)` if the stream has ended.
pub fn next<S: Stream + Unpin>(stream: &mut S, limit: Duration) -> Option<Option<S::Item>> {
    let next = std::future::poll_fn(|task| Pin::new(&mut *stream).poll_next(task));
    block_on(next, limit)
}
