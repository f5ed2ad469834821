//! The context guard: what threads of this library do later in a context of the program, which may
//! end as soon as nothing is left that was made in it.
//!
//! They pass the guard. It is shut when the last of those things goes, and the threads inside come
//! out first.

use super::Gpu;
use crate::error::Result;
use crate::hal::cuda::driver::Driver;
use crate::hal::cuda::tuning::{CONTEXT_END_WAIT, FINISH_SLEEP_LONGEST, FINISH_SLEEP_SHORTEST};
use crate::threads::backoff::Backoff;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Waits until something is so that another thread brings about, but not for ever. Returns whether it
/// is.
pub(crate) fn await_condition(longest: Duration, is_so: impl Fn() -> bool) -> bool {
    let began = Instant::now();
    let backoff = Backoff::new(FINISH_SLEEP_SHORTEST, FINISH_SLEEP_LONGEST);
    while !is_so() {
        if began.elapsed() > longest {
            return false;
        }
        std::thread::sleep(backoff.delay());
    }
    true
}

/// Lets threads in until [`shut`](Self::shut).
#[derive(Default)]
pub(super) struct ContextGuard {
    inside: AtomicUsize,
    is_shut: AtomicBool,
}

impl ContextGuard {
    /// Does something, unless the guard is shut.
    fn pass(&self, act: impl FnOnce()) {
        // Either the thread that shuts the guard sees this one inside, or this one sees it shut.
        self.inside.fetch_add(1, Ordering::SeqCst);
        if !self.is_shut.load(Ordering::SeqCst) {
            act();
        }
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }

    /// Lets nobody in any more, and waits for the threads inside. It takes long only where the driver
    /// waits for a stream of the program, in a context that must not end then.
    pub(super) fn shut(&self) {
        self.is_shut.store(true, Ordering::SeqCst);
        let is_empty = || self.inside.load(Ordering::SeqCst) == 0;
        if !await_condition(CONTEXT_END_WAIT, is_empty) {
            tracing::warn!("the driver still waits for a stream in a context that is let go of");
        }
    }
}

impl Gpu {
    /// Returns a function that does something with this context current, on any thread, or hears why
    /// it can't be. It does nothing once nothing is left in a context of the program, of which it
    /// keeps nothing.
    pub(crate) fn later(
        &self,
        what: &'static str,
        act: impl FnOnce(Result<&'static Driver>) -> Result<()> + Send + 'static,
    ) -> impl FnOnce() + Send + 'static {
        let guard = Arc::clone(&self.guard);
        let driver = self.driver();
        let context = self.context();
        move || {
            guard.pass(|| {
                let current = context.and_then(|context| driver.enter(context));
                let done = match current {
                    Ok(_current) => act(Ok(driver)),
                    Err(error) => act(Err(error)),
                };
                if let Err(error) = done {
                    tracing::warn!(%error, what, "failed");
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn who_is_inside_comes_out_before_it_is_shut_and_nobody_comes_in_after() {
        let guard = ContextGuard::default();
        let is_done = AtomicBool::new(false);
        let (enter, entered) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                guard.pass(|| {
                    enter.send(()).unwrap();
                    std::thread::sleep(Duration::from_millis(50));
                    is_done.store(true, Ordering::SeqCst);
                });
            });
            entered.recv().unwrap();
            guard.shut();
            assert!(is_done.load(Ordering::SeqCst));
        });
        guard.pass(|| panic!("it is shut"));
    }

    #[test]
    fn who_never_comes_out_is_not_waited_for_long() {
        let guard = ContextGuard::default();
        let (let_go, waits) = mpsc::channel::<()>();
        let (enter, entered) = mpsc::channel();
        std::thread::scope(|scope| {
            let guard = &guard;
            scope.spawn(move || {
                guard.pass(|| {
                    enter.send(()).unwrap();
                    let _ = waits.recv_timeout(20 * CONTEXT_END_WAIT);
                });
            });
            entered.recv().unwrap();
            let began = Instant::now();
            guard.shut();
            assert!(began.elapsed() < 10 * CONTEXT_END_WAIT);
            let_go.send(()).unwrap();
        });
    }
}
