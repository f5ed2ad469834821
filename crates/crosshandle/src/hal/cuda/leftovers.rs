//! Dropping what may be the user's: it may do anything then, wait for a queue or for another
//! process included.
//!
//! Threads of the user do it themselves. The threads that queues depend on leave it to another one:
//! to one more if that is held up, so that what waits for something else to be dropped gets it.

use super::driver::Driver;
use super::gate::await_thread;
use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long the thread stays with nothing to do.
const IDLE: Duration = Duration::from_secs(2);
/// How long it may be at one thing before another one does the rest.
const LONGEST: Duration = Duration::from_millis(20);
/// So many of them at most: the rest waits.
const MOST: usize = 16;

type Thing = Box<dyn Any + Send>;

struct Discarded {
    things: VecDeque<Thing>,
    /// How many are not dropped yet, with those that threads are at.
    left: usize,
    /// The number of the thread that takes the next one; others end with what they are at.
    latest: u64,
    has_thread: bool,
    threads: usize,
    /// Since when it is at one.
    since: Option<Instant>,
}

static DISCARDED: Mutex<Discarded> = Mutex::new(Discarded {
    things: VecDeque::new(),
    left: 0,
    latest: 0,
    has_thread: false,
    threads: 0,
    since: None,
});

/// Something was discarded.
static ADDED: Condvar = Condvar::new();

thread_local! {
    /// Whether queues depend on this thread.
    static IS_NEEDED: Cell<bool> = const { Cell::new(false) };
    /// Whether others do who leave things to it.
    static IS_DROPPING: Cell<bool> = const { Cell::new(false) };
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
    let mut discarded = discarded();
    for thing in things {
        discarded.things.push_back(Box::new(thing));
        discarded.left += 1;
    }
    discarded.see_to();
}

/// Makes sure that what was discarded is dropped. To be called now and then while something is left
/// for that, which comes back.
pub(super) fn look() -> bool {
    let mut discarded = discarded();
    discarded.see_to();
    !discarded.things.is_empty()
}

/// Waits for what others are dropping, but not for ever: it may do anything.
pub(super) fn await_drops() {
    if !IS_DROPPING.get() {
        await_thread(|| discarded().left == 0);
    }
}

/// Drops something. A panic must not take its thread down.
fn end<T>(thing: T) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(thing))) {
        std::mem::forget(panic);
    }
}

impl Discarded {
    fn see_to(&mut self) {
        if self.things.is_empty() {
            return;
        }
        let is_held_up = self.since.is_some_and(|since| since.elapsed() > LONGEST);
        if is_held_up && self.threads < MOST || !self.has_thread {
            match self.start() {
                Ok(()) => {}
                // The next time that somebody looks.
                Err(error) => tracing::warn!(%error, "what commands used is not dropped"),
            }
        }
        ADDED.notify_one();
    }

    fn start(&mut self) -> io::Result<()> {
        let number = self.latest + 1;
        let thread = std::thread::Builder::new().name("crosshandle-drop".into());
        thread.spawn(move || run(number))?;
        self.latest = number;
        self.has_thread = true;
        self.threads += 1;
        self.since = None;
        Ok(())
    }
}

fn run(number: u64) {
    IS_DROPPING.set(true);
    if let Ok(driver) = Driver::get() {
        driver.ignore_captures();
    }
    let mut discarded = discarded();
    while discarded.latest == number {
        if let Some(thing) = discarded.things.pop_front() {
            discarded.since = Some(Instant::now());
            drop(discarded);
            end(thing);
            discarded = self::discarded();
            discarded.left -= 1;
            if discarded.latest == number {
                discarded.since = None;
            }
            continue;
        }
        let waited = ADDED.wait_timeout(discarded, IDLE);
        let (locked, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        discarded = locked;
        let is_over = timeout.timed_out() && discarded.things.is_empty();
        if is_over && discarded.latest == number {
            discarded.has_thread = false;
            break;
        }
    }
    discarded.threads -= 1;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};

    const SOON: Duration = Duration::from_secs(20);

    /// Waits for somebody when it is dropped.
    struct Waits(Receiver<()>);

    impl Drop for Waits {
        fn drop(&mut self) {
            let _ = self.0.recv_timeout(SOON);
        }
    }

    #[test]
    fn what_waits_for_something_else_to_be_dropped_gets_it() {
        let (dropped, waits) = channel();
        let (let_go, others) = channel();
        leaving_to_others(|| {
            discard([Box::new(Waits(waits)) as Thing, Box::new(Waits(others))]);
            // Dropped after those that wait for it, and so to be dropped by another thread.
            discard([Box::new(dropped) as Thing]);
        });
        let began = Instant::now();
        drop(let_go);
        while discarded().left > 0 {
            assert!(began.elapsed() < SOON / 2);
            look();
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
