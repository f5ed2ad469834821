//! Dropping what may be the user's: it may do anything then, wait for a queue or for another
//! process included.
//!
//! Threads of the user do it themselves. The threads that queues depend on leave it to another one.

use super::driver::Driver;
use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long the thread stays with nothing to do.
const IDLE: Duration = Duration::from_secs(2);

type Thing = Box<dyn Any + Send>;

struct Discarded {
    things: Vec<Thing>,
    has_thread: bool,
}

static DISCARDED: Mutex<Discarded> = Mutex::new(Discarded {
    things: Vec::new(),
    has_thread: false,
});

/// Something was discarded.
static ADDED: Condvar = Condvar::new();

thread_local! {
    /// Whether queues depend on this thread.
    static IS_NEEDED: Cell<bool> = const { Cell::new(false) };
}

fn discarded() -> MutexGuard<'static, Discarded> {
    DISCARDED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on this thread drops nothing itself.
pub(super) fn leave_to_others() {
    IS_NEEDED.set(true);
}

/// Runs a function that must drop nothing on this thread, which has locked something.
pub(super) fn leaving_to_others<R>(function: impl FnOnce() -> R) -> R {
    let before = IS_NEEDED.replace(true);
    let result = function();
    IS_NEEDED.set(before);
    result
}

/// Drops things, here or elsewhere. Here no lock is held.
pub(super) fn discard<T: Any + Send>(things: impl IntoIterator<Item = T>) {
    if !IS_NEEDED.get() {
        things.into_iter().for_each(end);
        return;
    }
    let things = things.into_iter().map(|thing| Box::new(thing) as Thing);
    let mut discarded = discarded();
    discarded.things.extend(things);
    if !discarded.has_thread && !discarded.things.is_empty() {
        let thread = std::thread::Builder::new().name("crosshandle-drop".into());
        match thread.spawn(run) {
            Ok(_) => discarded.has_thread = true,
            // The next time.
            Err(error) => tracing::warn!(%error, "what commands used is not dropped"),
        }
    }
    ADDED.notify_one();
}

/// Drops something. A panic must not take its thread down.
fn end<T>(thing: T) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(thing))) {
        std::mem::forget(panic);
    }
}

fn run() {
    if let Ok(driver) = Driver::get() {
        driver.ignore_captures();
    }
    let mut discarded = discarded();
    loop {
        let things = std::mem::take(&mut discarded.things);
        if things.is_empty() {
            let waited = ADDED.wait_timeout(discarded, IDLE);
            let (locked, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            discarded = locked;
            if timeout.timed_out() && discarded.things.is_empty() {
                discarded.has_thread = false;
                return;
            }
            continue;
        }
        drop(discarded);
        things.into_iter().for_each(end);
        discarded = self::discarded();
    }
}
