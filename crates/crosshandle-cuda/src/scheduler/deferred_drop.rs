//! Deferred drops of objects that commands used. An object may belong to the program, and its drop
//! may then do anything, such as wait for a queue or for another process.
//!
//! The program's threads drop these objects themselves. Threads that queues depend on hand the
//! objects to the background service. There, a drop that waits for another drop does not delay that
//! drop.

use crate::driver;
use crosshandle_hal::common::user_code;
use crosshandle_os::threads::driver_jobs;
use std::any::Any;
use std::cell::Cell;

thread_local! {
    /// Whether queues depend on this thread, so that it must not drop objects of the program.
    static HANDS_OVER: Cell<bool> = const { Cell::new(false) };
}

/// Runs a function on a thread that queues depend on. Values that the function passes to
/// [`drop_or_defer`] are dropped on another thread.
pub(crate) fn handing_over<R>(function: impl FnOnce() -> R) -> R {
    let before = HANDS_OVER.replace(true);
    let result = function();
    HANDS_OVER.set(before);
    result
}

/// Drops values on this thread or in the background. The caller holds no lock.
pub(crate) fn drop_or_defer<T: Any + Send>(values: impl IntoIterator<Item = T>) {
    if !HANDS_OVER.get() {
        values.into_iter().for_each(user_code::drop_contained);
        return;
    }
    for value in values {
        // Each value gets its own job, so that a drop can wait for another drop. The number of
        // threads is limited, because all commands of a queue may end at the same time.
        driver_jobs::run(move || {
            driver::ignore_captures();
            user_code::drop_contained(value);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
    use std::time::Duration;

    const SOON: Duration = Duration::from_secs(20);

    /// Its drop waits until another value is dropped, and then reports whether that happened.
    struct Waits(Receiver<()>, Sender<bool>);

    impl Drop for Waits {
        fn drop(&mut self) {
            let waited = self.0.recv_timeout(SOON);
            let _ = self.1.send(waited == Err(RecvTimeoutError::Disconnected));
        }
    }

    #[test]
    fn what_waits_for_something_else_to_be_dropped_gets_it() {
        type Thing = Box<dyn Any + Send>;
        let (dropped, waits) = channel();
        let (let_go, others) = channel();
        let (ended, ends) = channel();
        handing_over(|| {
            let one = Waits(waits, ended.clone());
            drop_or_defer([Box::new(one) as Thing, Box::new(Waits(others, ended))]);
            // This value is dropped after those that wait for it, so another thread must drop it.
            drop_or_defer([Box::new(dropped) as Thing]);
        });
        assert_eq!(ends.recv_timeout(SOON / 2), Ok(true));
        drop(let_go);
        assert_eq!(ends.recv_timeout(SOON / 2), Ok(true));
    }
}
