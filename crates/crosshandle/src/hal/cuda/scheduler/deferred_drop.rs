//! Deferred drops of objects that commands used. They may be the program's, and such a drop may do
//! anything, such as wait for a queue or for another process.
//!
//! The program's threads drop these objects themselves. Threads that queues depend on hand them to
//! the background service, where a drop that waits for another drop does not hold that one up.

use crate::hal::common::user_code;
use crate::hal::cuda::driver;
use crate::threads::driver_jobs;
use std::any::Any;
use std::cell::Cell;

thread_local! {
    /// Whether queues depend on this thread, so that it drops nothing of the program's.
    static HANDS_OVER: Cell<bool> = const { Cell::new(false) };
}

/// Runs a function on a thread that queues depend on: values that it drops or defers are dropped elsewhere.
pub(crate) fn handing_over<R>(function: impl FnOnce() -> R) -> R {
    let before = HANDS_OVER.replace(true);
    let result = function();
    HANDS_OVER.set(before);
    result
}

/// Drops values, here or in the background. The caller holds no lock.
pub(crate) fn drop_or_defer<T: Any + Send>(values: impl IntoIterator<Item = T>) {
    if !HANDS_OVER.get() {
        values.into_iter().for_each(user_code::drop_contained);
        return;
    }
    for value in values {
        // One job for each value, so that a drop which waits for another one gets it; a bounded number
        // of threads, since a whole queue's commands may end at once.
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

    /// Waits for another value to be dropped when it is dropped, and tells when it was.
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
            // Dropped after those that wait for it, and so to be dropped by another thread.
            drop_or_defer([Box::new(dropped) as Thing]);
        });
        assert_eq!(ends.recv_timeout(SOON / 2), Ok(true));
        drop(let_go);
        assert_eq!(ends.recv_timeout(SOON / 2), Ok(true));
    }
}
