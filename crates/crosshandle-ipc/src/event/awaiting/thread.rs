//! The thread that sleeps on all awaited signals.

use super::{Entry, EventCore, Message, receive};
use crate::platform::{AtomicU64, Instant, Ordering, Os};
use crosshandle_events::{AwaitSet, Settled, Sleeps};
use crosshandle_os::futex::SleepSet;
use crosshandle_os::sleepers::{SERVER_WORD, alarms};
use crosshandle_os::threads::background::{self, contain};
use crosshandle_os::threads::{START_RETRY, driver_jobs};
use crosshandle_types::observe::trace;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

/// Time after which the thread of awaited signals ends if it has none. Starting it again takes
/// about 100 µs.
const AWAIT_IDLE: Duration = Duration::from_secs(2);

thread_local! {
    static IS_OWN: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether the calling thread is the thread of awaited signals.
pub(super) fn is_own() -> bool {
    IS_OWN.get()
}

type Set = AwaitSet<Arc<EventCore>, Entry>;

/// The thread's sleeps on words of events.
struct WordSleeps(SleepSet);

impl Sleeps<Os> for WordSleeps {
    fn begin(&mut self, token: u64, word: &AtomicU64, expected: u32) {
        self.0.begin(token, std_word(word), expected);
    }

    fn end(&mut self, token: u64) {
        self.0.end(token);
    }
}

#[cfg(fault_steps)]
fn std_word(word: &AtomicU64) -> &std::sync::atomic::AtomicU64 {
    word.word()
}

#[cfg(not(fault_steps))]
fn std_word(word: &AtomicU64) -> &AtomicU64 {
    word
}

/// Serves waiters until there have been none for a certain time.
pub(super) fn run() {
    IS_OWN.set(true);
    let mut sleeps = WordSleeps(SleepSet::new(&SERVER_WORD));
    let mut set = Set::new();
    let mut woken = Vec::new();
    let mut idle_since = None;
    let mut seen_alarms = alarms();
    loop {
        // This value is read before the messages, so that any later message ends the sleep.
        let before = (SERVER_WORD.load(Ordering::SeqCst) >> 32) as u32;
        let now = Instant::now();
        let is_idle_time_over = idle_since.is_some_and(|since| now - since >= AWAIT_IDLE);
        let Some(messages) = receive(is_idle_time_over) else {
            return;
        };
        let has_messages = !messages.is_empty();
        {
            // The last reference to an event may be dropped here, and then a job drops it.
            let _announced = driver_jobs::announce();
            for message in messages {
                attend(message, &mut set, &mut sleeps);
            }
            for token in woken.drain(..) {
                set.woken(token, &mut sleeps);
            }
            let alarmed = alarms();
            if std::mem::replace(&mut seen_alarms, alarmed) != alarmed {
                // Something happened that changes no word, such as a death.
                set.look_at_all(&mut sleeps);
            }
            set.look(now, &mut sleeps);
            let settled = set.take_settled();
            let has_settled = !settled.is_empty();
            settled.into_iter().for_each(tell);
            if has_messages || has_settled {
                idle_since = None;
                // Notified or dropped waiters may have left messages, which do not wake this
                // thread. However many messages arrive, the signals that are already awaited are
                // also served.
                sleeps.0.poll(&mut woken);
                continue;
            }
        }
        let mut limit = match set.is_empty() {
            true => {
                idle_since.get_or_insert(now);
                AWAIT_IDLE
            }
            false => set.time_until_look(now),
        };
        // A callback may wait for a missing thread, and no other thread would start it.
        if background::start_missing_threads() {
            idle_since = None;
            limit = limit.min(START_RETRY);
        }
        sleeps.0.sleep(before, limit, &mut woken);
    }
}

fn attend(message: Message, set: &mut Set, sleeps: &mut WordSleeps) {
    match message {
        Message::Add { key, core, entry } => set.add(key, core, entry, sleeps),
        Message::Remove(key) => {
            if let Some((core, entry)) = set.remove(key, sleeps) {
                drop_contained(entry);
                let_go(core);
            }
        }
    }
}

/// Notifies a waiter of the result of its signal.
fn tell(settled: Settled<Arc<EventCore>, Entry>) {
    let Settled {
        subject: core,
        number,
        waiter: Entry { waiter, is_over },
        result,
    } = settled;
    if !is_over.swap(true, Ordering::SeqCst) {
        let result = result.map_err(|error| core.error_of(number, error));
        core.trace_wait(trace::begin(), number, result.as_ref().err());
        // A panic of the program's code affects only this waiter, and not the thread that serves
        // all waiters.
        contain(move || waiter.tell(result));
    } else {
        drop_contained(waiter);
    }
    let_go(core);
}

/// Drops a waiter or its entry. Waiters hold values of the program, whose drops may panic.
fn drop_contained<T>(value: T) {
    contain(move || drop(value));
}

fn let_go(core: Arc<EventCore>) {
    if let Some(last) = Arc::into_inner(core) {
        driver_jobs::drop_later(last);
    }
}
