//! What threads of ours do in a context of the program's without being waited for: it may end when
//! nothing is left that was made in it.
//!
//! They go through a gate. It is shut when the last of those things goes, and who is inside comes
//! out first.

use super::device::Gpu;
use super::driver::Driver;
use crate::error::Result;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How long others wait for a thread of ours. It takes that long only where the driver waits for a
/// stream of the program's, in a context that must not end then.
const PATIENCE: Duration = Duration::from_secs(1);
const NAP: Duration = Duration::from_micros(20);

/// Waits for a thread of ours until something is so, but not for ever. Whether it is.
pub(super) fn await_thread(is_so: impl Fn() -> bool) -> bool {
    let began = Instant::now();
    while !is_so() {
        if began.elapsed() > PATIENCE {
            return false;
        }
        std::thread::sleep(NAP);
    }
    true
}

/// Open until [`shut`](Self::shut).
#[derive(Default)]
pub(super) struct Gate {
    inside: Mutex<()>,
    is_shut: AtomicBool,
}

impl Gate {
    /// Does something, if it is open.
    fn pass(&self, act: impl FnOnce()) {
        let _inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_shut.load(Ordering::SeqCst) {
            act();
        }
    }

    /// Waits for who is inside; nobody comes any more.
    pub(super) fn shut(&self) {
        self.is_shut.store(true, Ordering::SeqCst);
        let is_empty = || !matches!(self.inside.try_lock(), Err(TryLockError::WouldBlock));
        if !await_thread(is_empty) {
            tracing::warn!("the driver still waits for a stream in a context that is let go of");
        }
    }
}

impl Gpu {
    /// Something to be done later with this context current, on whichever thread, or to hear why it
    /// can't be: not at all once nothing is left in a context of the program's, of which it keeps
    /// nothing.
    pub(super) fn later(
        &self,
        what: &'static str,
        act: impl FnOnce(Result<&'static Driver>) -> Result<()> + Send + 'static,
    ) -> impl FnOnce() + Send + 'static {
        let gate = Arc::clone(self.gate());
        let driver = self.driver();
        let context = self.context();
        move || {
            gate.pass(|| {
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
        let gate = Gate::default();
        let is_done = AtomicBool::new(false);
        let (enter, entered) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                gate.pass(|| {
                    enter.send(()).unwrap();
                    std::thread::sleep(Duration::from_millis(50));
                    is_done.store(true, Ordering::SeqCst);
                });
            });
            entered.recv().unwrap();
            gate.shut();
            assert!(is_done.load(Ordering::SeqCst));
        });
        gate.pass(|| panic!("it is shut"));
    }

    #[test]
    fn who_never_comes_out_is_not_waited_for_long() {
        let gate = Gate::default();
        let (let_go, waits) = mpsc::channel::<()>();
        let (enter, entered) = mpsc::channel();
        std::thread::scope(|scope| {
            let gate = &gate;
            scope.spawn(move || {
                gate.pass(|| {
                    enter.send(()).unwrap();
                    let _ = waits.recv_timeout(20 * PATIENCE);
                });
            });
            entered.recv().unwrap();
            let began = Instant::now();
            gate.shut();
            assert!(began.elapsed() < 10 * PATIENCE);
            let_go.send(()).unwrap();
        });
    }
}
