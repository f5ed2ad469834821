//! The thread that serves waiters, and the messages to it, as in
//! `crates/crosshandle-ipc/src/event/awaiting/`.

use super::sleeps::{Kind, Memory, WordSleeps};
use crate::event_protocol::{
    AwaitKey, AwaitSet, Liveness, Owner, Settled, Slot, Subject, Target, WaitError,
};
use crate::platform::{self, AtomicU64, Instant, Ordering, Shuttle};
use crate::world::World;
use crosshandle_events::platform::Moment;
use shuttle::sync::Mutex;
use shuttle::sync::atomic::AtomicBool;
use shuttle::thread::{JoinHandle, spawn};
use std::cell::Cell;
use std::mem;
use std::sync::Arc;
use std::sync::Mutex as PlainMutex;
use std::sync::atomic::{AtomicBool as Plain, AtomicU64 as PlainCount, Ordering::Relaxed};
use std::time::Duration;

/// Longer than any sleep that times out.
const FOR_EVER: Duration = Duration::from_secs(1 << 30);

/// A rule that the server thread, or a canceller, breaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    None,
    /// The thread forgets sleeps that have ended.
    ForgetsWoken,
    /// The thread reads its word after the messages.
    ReadsItsWordLate,
    /// The thread sleeps after it has notified a waiter.
    SleepsAfterTelling,
    /// The thread sleeps after it has dropped a cancelled waiter.
    SleepsAfterLettingGo,
    /// The thread does not check for cancellation.
    TellsTheCancelled,
    /// The thread does not check which sleeps have ended while there are messages.
    HasNoTimeForTheOthers,
    /// The thread looks at no word after an alarm.
    IgnoresAlarms,
}

shuttle::thread_local! {
    static IS_SERVER: Cell<bool> = Cell::new(false);
}

/// An event of the process. It keeps the event open.
#[derive(Clone)]
pub(super) struct Event {
    slot: Arc<Slot>,
    liveness: Arc<dyn Liveness + Send + Sync>,
    /// The sleeps that reports show.
    told: Arc<PlainCount>,
}

impl Event {
    pub(super) fn new(slot: &Arc<Slot>, liveness: Arc<dyn Liveness + Send + Sync>) -> Self {
        Self {
            slot: Arc::clone(slot),
            liveness,
            told: Arc::default(),
        }
    }

    /// Returns the event of a world whose exporter is alive.
    pub(super) fn of(world: &World) -> Self {
        Self::new(&world.slot, world.ledger.clone())
    }

    /// Checks that only the caller has the event open, and that reports show no sleep.
    pub(super) fn check_let_go(&self) {
        assert_eq!(Arc::strong_count(&self.told), 1, "the event is still open");
        assert_eq!(self.told.load(Relaxed), 0, "others see a sleep");
    }
}

impl Subject for Event {
    type Platform = Shuttle;

    fn target(&self, number: u64) -> Target<'_> {
        Target {
            slot: &self.slot,
            number,
            liveness: self,
        }
    }
}

impl Liveness for Event {
    fn is_dead(&self, owner: Owner) -> bool {
        self.liveness.is_dead(owner)
    }

    fn is_known_abandoned(&self) -> bool {
        self.liveness.is_known_abandoned()
    }

    fn begin_sleep(&self, number: u64) -> Option<usize> {
        self.told.fetch_add(1 + number, Relaxed);
        Some(number as usize)
    }

    fn end_sleep(&self, place: usize) {
        self.told.fetch_sub(1 + place as u64, Relaxed);
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// The result that a waiter was given.
#[derive(Clone)]
pub(super) struct Answer(Arc<Told>);

struct Told {
    result: PlainMutex<Option<Result<(), WaitError>>>,
    is_cancelled: Plain,
    /// A word whose upper half is raised when there is a result.
    word: AtomicU64,
}

impl Answer {
    fn new() -> Self {
        Self(Arc::new(Told {
            result: PlainMutex::default(),
            is_cancelled: Plain::new(false),
            word: AtomicU64::new(0),
        }))
    }

    /// Waits until the waiter is notified, and returns the result.
    pub(super) fn wait(&self) -> Result<(), WaitError> {
        while self.0.word.load(Ordering::SeqCst) == 0 {
            platform::sleep(&self.0.word, 0, FOR_EVER);
        }
        self.0.result.lock().unwrap().expect("a result")
    }

    fn give(&self, result: Result<(), WaitError>) {
        let is_cancelled = self.0.is_cancelled.load(Relaxed);
        assert!(!is_cancelled, "told after it was cancelled");
        let former = self.0.result.lock().unwrap().replace(result);
        assert_eq!(former, None, "told twice");
        self.0.word.store(1 << 32, Ordering::SeqCst);
        platform::wake_all(&self.0.word);
    }
}

/// A waiter that is notified of a signal.
pub(super) struct Waiter {
    answer: Answer,
    /// Called when the waiter is notified.
    when_told: Option<Job>,
    when_dropped: Option<Job>,
}

impl Waiter {
    pub(super) fn new() -> Self {
        Self {
            answer: Answer::new(),
            when_told: None,
            when_dropped: None,
        }
    }

    pub(super) fn when_told(mut self, job: impl FnOnce() + Send + 'static) -> Self {
        self.when_told = Some(Box::new(job));
        self
    }

    pub(super) fn when_dropped(mut self, job: impl FnOnce() + Send + 'static) -> Self {
        self.when_dropped = Some(Box::new(job));
        self
    }

    pub(super) fn answer(&self) -> Answer {
        self.answer.clone()
    }

    fn settle(&mut self, result: Result<(), WaitError>) {
        self.answer.give(result);
        if let Some(job) = self.when_told.take() {
            job();
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if let Some(job) = self.when_dropped.take() {
            job();
        }
    }
}

/// An awaited signal.
pub(super) struct Await {
    server: Arc<Mailbox>,
    key: AwaitKey,
    is_over: Arc<AtomicBool>,
    pub(super) answer: Answer,
}

impl Await {
    /// Cancels the wait. Returns whether the waiter is never notified.
    pub(super) fn cancel(self) -> bool {
        if self.is_over.swap(true, Ordering::SeqCst) {
            return false;
        }
        self.answer.0.is_cancelled.store(true, Relaxed);
        self.server.send(Message::Remove(self.key));
        true
    }
}

struct Entry {
    waiter: Waiter,
    is_over: Arc<AtomicBool>,
}

enum Message {
    Add {
        key: AwaitKey,
        event: Event,
        entry: Entry,
    },
    Remove(AwaitKey),
    /// Nothing is awaited, or soon nothing will be.
    End,
}

/// The mailbox in which other threads leave messages for the thread.
pub(super) struct Mailbox {
    messages: Mutex<Vec<Message>>,
    word: AtomicU64,
    alarms: AtomicU64,
    ids: PlainCount,
}

impl Mailbox {
    /// Arranges that a waiter is notified of a signal.
    pub(super) fn begin(self: &Arc<Self>, event: &Event, number: u64, waiter: Waiter) -> Await {
        let id = self.ids.fetch_add(1, Relaxed);
        let key = AwaitKey::new(&event.target(number), id);
        let is_over = Arc::new(AtomicBool::new(false));
        let begun = Await {
            server: Arc::clone(self),
            key,
            is_over: Arc::clone(&is_over),
            answer: waiter.answer(),
        };
        self.send(Message::Add {
            key,
            event: event.clone(),
            entry: Entry { waiter, is_over },
        });
        begun
    }

    fn send(&self, message: Message) {
        let mut messages = self.messages.lock().unwrap();
        let is_first = messages.is_empty();
        messages.push(message);
        drop(messages);
        if is_first && !IS_SERVER.with(Cell::get) {
            self.wake();
        }
    }

    fn wake(&self) {
        self.word.fetch_add(1 << 32, Ordering::SeqCst);
        platform::wake_all(&self.word);
    }

    /// Notifies the thread of something that changes no word.
    pub(super) fn alarm(&self) {
        self.alarms.fetch_add(1, Ordering::SeqCst);
        self.wake();
    }
}

/// The thread that serves waiters.
pub(super) struct Server {
    pub(super) mailbox: Arc<Mailbox>,
    thread: JoinHandle<()>,
}

impl Server {
    pub(super) fn start(kind: Kind, fault: Fault, memory: Vec<Memory>) -> Self {
        let mailbox = Arc::new(Mailbox {
            messages: Mutex::default(),
            word: AtomicU64::new(0),
            alarms: AtomicU64::new(0),
            ids: PlainCount::new(0),
        });
        let thread = {
            let mailbox = Arc::clone(&mailbox);
            spawn(move || {
                IS_SERVER.with(|is_server| is_server.set(true));
                serve(&mailbox, WordSleeps::new(kind, memory), fault);
            })
        };
        Self { mailbox, thread }
    }

    /// Waits until nothing is awaited, and ends the thread.
    pub(super) fn finish(self) {
        self.mailbox.send(Message::End);
        self.thread.join().unwrap();
    }
}

type Set = AwaitSet<Event, Entry>;

fn serve(mailbox: &Mailbox, mut sleeps: WordSleeps, fault: Fault) {
    let upper = || (mailbox.word.load(Ordering::SeqCst) >> 32) as u32;
    let mut set = Set::new();
    let mut woken = Vec::new();
    let mut is_ending = false;
    let mut seen_alarms = mailbox.alarms.load(Ordering::SeqCst);
    loop {
        let mut before = upper();
        let now = Instant::now();
        let messages = mem::take(&mut *mailbox.messages.lock().unwrap());
        if fault == Fault::ReadsItsWordLate {
            before = upper();
        }
        let has_messages = !messages.is_empty();
        for message in messages {
            match message {
                Message::Add { key, event, entry } => set.add(key, event, entry, &mut sleeps),
                Message::Remove(key) => drop(set.remove(key, &mut sleeps)),
                Message::End => is_ending = true,
            }
        }
        for token in woken.drain(..) {
            if fault != Fault::ForgetsWoken {
                set.woken(token, &mut sleeps);
            }
        }
        let alarms = mailbox.alarms.load(Ordering::SeqCst);
        if mem::replace(&mut seen_alarms, alarms) != alarms && fault != Fault::IgnoresAlarms {
            set.look_at_all(&mut sleeps);
        }
        set.look(now, &mut sleeps);
        let settled = set.take_settled();
        let has_settled = !settled.is_empty();
        settled.into_iter().for_each(|settled| tell(settled, fault));
        let sleeps_too_early = match fault {
            Fault::SleepsAfterTelling => true,
            Fault::SleepsAfterLettingGo => !has_settled,
            _ => false,
        };
        if (has_messages || has_settled) && !sleeps_too_early {
            if fault != Fault::HasNoTimeForTheOthers {
                sleeps.poll(&mut woken);
            }
            continue;
        }
        if is_ending && set.is_empty() {
            return;
        }
        let limit = match set.is_empty() {
            true => FOR_EVER,
            false => set.time_until_look(now),
        };
        sleeps.sleep((&mailbox.word, before), limit, &mut woken);
    }
}

fn tell(settled: Settled<Event, Entry>, fault: Fault) {
    let Entry {
        mut waiter,
        is_over,
    } = settled.waiter;
    if !is_over.swap(true, Ordering::SeqCst) || fault == Fault::TellsTheCancelled {
        waiter.settle(settled.result);
    }
}
