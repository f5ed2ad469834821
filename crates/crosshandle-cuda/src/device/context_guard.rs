//! The context guard, which lets threads of this library use a context of the program later. Such a
//! context may end as soon as every object that was created in it has been dropped.
//!
//! The threads pass the guard. The drop of the last such object shuts the guard and waits for the
//! threads inside.

use super::Gpu;
use crate::driver::Driver;
use crate::tuning::{CONTEXT_END_WAIT, FINISH_SLEEP_LONGEST, FINISH_SLEEP_SHORTEST};
use crosshandle_os::threads::backoff::Backoff;
use crosshandle_types::error::Result;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Waits for at most `longest` until another thread has made a condition true. Returns whether the
/// condition is true.
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

/// Lets threads in until [`shut`](Self::shut) is called.
#[derive(Default)]
pub(super) struct ContextGuard {
    inside: AtomicUsize,
    is_shut: AtomicBool,
}

impl ContextGuard {
    /// Calls a function, unless the guard is shut.
    fn pass(&self, act: impl FnOnce()) {
        // Either the thread that shuts the guard sees this thread inside, or this thread sees that
        // the guard is shut.
        self.inside.fetch_add(1, Ordering::SeqCst);
        if !self.is_shut.load(Ordering::SeqCst) {
            act();
        }
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }

    /// Lets no more threads in, and waits for the threads inside. The wait is long only if the
    /// driver waits for a stream of the program, and then the context must not end.
    pub(super) fn shut(&self) {
        self.is_shut.store(true, Ordering::SeqCst);
        let is_empty = || self.inside.load(Ordering::SeqCst) == 0;
        if !await_condition(CONTEXT_END_WAIT, is_empty) {
            tracing::warn!(
                "the driver still waits for a stream in a context that is being released"
            );
        }
    }
}

impl Gpu {
    /// Returns a function that any thread may call. The function calls `act` with this context
    /// current, or with the error if the context cannot be made current. In a context of the
    /// program, the function keeps nothing alive, and does nothing once the guard is shut.
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
