//! What the streams of this process wait for.
//!
//! A stream that waits gets in the way of others, by the driver's rules (measured, see
//! `docs/cuda.md`): it occupies one of a few connections to the device, and when all of those are
//! taken, streams that could run come behind ones that wait. And some calls of the driver return
//! only when no stream of the context waits; unregistering host memory is the one that this crate
//! makes. So it is known here what every stream waits for: only so many may at a time, the others
//! keep their commands back, and host memory is unregistered when none does.

use super::caretaker;
use super::words::Word;
use crate::os::process;
use crate::sharing::EventCore;
use std::any::Any;
use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Connections to a device that the driver makes unless told otherwise, by this variable.
const CONNECTIONS: usize = 8;
const VARIABLE: &str = "CUDA_DEVICE_MAX_CONNECTIONS";

/// Bytes that may wait to be unregistered before streams make room for it.
const PATIENCE: usize = 256 << 20;
/// How long an allocation that failed waits for what can be unregistered.
const ROOM: Duration = Duration::from_secs(1);

/// What a stream waits for.
#[derive(Clone)]
pub(super) enum Wait {
    /// A signal of an event.
    Event(Arc<EventCore>, u64),
    /// That a word of this process reaches a number: that a function of the user returns.
    Word(Arc<Word>, u32),
    #[cfg(test)]
    Flag(Arc<AtomicBool>),
}

impl Wait {
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        match self {
            Self::Event(event, number) => event.is_settled(*number),
            Self::Word(word, number) => word.has_reached(*number),
            #[cfg(test)]
            Self::Flag(flag) => flag.load(Ordering::Relaxed),
        }
    }
}

/// What one stream waits for, in order. What is taken out is dropped without a lock: it may be the
/// last that keeps a peer's memory.
#[derive(Default)]
pub(super) struct Waits {
    list: Mutex<VecDeque<Wait>>,
    /// Whether something is under way in the stream, as far as its queue knows.
    is_busy: AtomicBool,
}

/// Streams in which something is under way.
static BUSY: AtomicUsize = AtomicUsize::new(0);

impl Waits {
    fn list(&self) -> MutexGuard<'_, VecDeque<Wait>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note that something will be under way, if that gets behind no stream that waits.
    #[inline]
    pub(super) fn begin(&self) -> bool {
        self.is_busy.load(Ordering::Relaxed) || self.begin_first()
    }

    fn begin_first(&self) -> bool {
        if BUSY.fetch_add(1, Ordering::SeqCst) >= connections() && state().blocked() > 0 {
            BUSY.fetch_sub(1, Ordering::SeqCst);
            return false;
        }
        self.is_busy.store(true, Ordering::Relaxed);
        true
    }

    /// The same whatever that gets behind.
    #[inline]
    pub(super) fn begin_anyway(&self) {
        if !self.is_busy.load(Ordering::Relaxed) && !self.is_busy.swap(true, Ordering::Relaxed) {
            BUSY.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Takes note that nothing is under way.
    #[inline]
    pub(super) fn end(&self) {
        if self.is_busy.load(Ordering::Relaxed) && self.is_busy.swap(false, Ordering::Relaxed) {
            BUSY.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Whether the stream waits for something that has not happened.
    pub(super) fn is_blocked(&self) -> bool {
        self.list().iter().any(|wait| !wait.is_over())
    }

    /// All that it waits for.
    pub(super) fn pending(&self) -> Vec<Wait> {
        let list = self.list();
        list.iter()
            .filter(|wait| !wait.is_over())
            .cloned()
            .collect()
    }

    /// The signal that the stream waits for at the moment, if it does.
    pub(super) fn first_event(&self) -> Option<(Arc<EventCore>, u64)> {
        let list = self.list();
        match list.iter().find(|wait| !wait.is_over())? {
            Wait::Event(event, number) => Some((Arc::clone(event), *number)),
            _ => None,
        }
    }

    /// Takes note of waits that nobody has to admit.
    pub(super) fn add(&self, waits: impl IntoIterator<Item = Wait>) {
        // What is over goes, in the order in which streams wait.
        let mut over = Vec::new();
        let mut list = self.list();
        while let Some(wait) = list.pop_front_if(|wait| wait.is_over()) {
            over.push(wait);
        }
        list.extend(waits);
    }

    /// Nothing that the stream waits for will happen.
    pub(super) fn clear(&self) {
        let all = std::mem::take(&mut *self.list());
        drop(all);
    }

    /// Takes note that the stream shall wait, if there is no reason against it now. What is
    /// refused is to be kept back, and tried again.
    pub(super) fn admit(&self, waits: impl IntoIterator<Item = Wait>) -> bool {
        self.admit_among(most_blocked(), waits)
    }

    /// The same for a wait that follows, until a function of the user returns: nobody else can see
    /// to that, so one at a time may even where there is only one connection.
    pub(super) fn admit_function(&self) -> bool {
        self.admit_among(most_blocked().max(1), [])
    }

    fn admit_among(&self, most: usize, waits: impl IntoIterator<Item = Wait>) -> bool {
        // Before the locks, so that it is dropped after them.
        let mut over = Vec::new();
        let process = state();
        if process.releasing > 0 || process.is_pressed() {
            return false;
        }
        let mut list = self.list();
        while let Some(wait) = list.pop_front_if(|wait| wait.is_over()) {
            over.push(wait);
        }
        if list.is_empty() {
            drop(list);
            if process.blocked() >= most || is_overcrowded() {
                return false;
            }
            list = self.list();
        }
        // Under the lock, so that it is known before it is decided to release anything.
        list.extend(waits);
        true
    }
}

/// The waits of a stream, known to the process as long as this lives.
pub(super) struct Known(Arc<Waits>);

impl Known {
    pub(super) fn new() -> Self {
        let waits = Arc::default();
        state().streams.push(Arc::clone(&waits));
        Self(waits)
    }
}

impl Deref for Known {
    type Target = Waits;

    fn deref(&self) -> &Waits {
        &self.0
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        if process::is_forked() {
            return;
        }
        self.0.end();
        let mut process = state();
        let streams = &mut process.streams;
        let found = streams
            .iter()
            .position(|stream| Arc::ptr_eq(stream, &self.0));
        let found = found.map(|index| streams.swap_remove(index));
        drop(process);
        drop(found);
    }
}

/// The streams of this process, and what is to be released when none of them waits.
#[derive(Default)]
struct Process {
    streams: Vec<Arc<Waits>>,
    /// Threads that release something now.
    releasing: usize,
    /// With their sizes in bytes.
    kept: Vec<(usize, Box<dyn Any + Send>)>,
    kept_bytes: usize,
    /// Allocations that failed and wait for it.
    waiting: usize,
}

static PROCESS: Mutex<Process> = Mutex::new(Process {
    streams: Vec::new(),
    releasing: 0,
    kept: Vec::new(),
    kept_bytes: 0,
    waiting: 0,
});

/// Whether something is to be released.
static IS_KEPT: AtomicBool = AtomicBool::new(false);

fn state() -> MutexGuard<'static, Process> {
    PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Process {
    /// Streams that wait.
    fn blocked(&self) -> usize {
        let streams = self.streams.iter();
        streams.filter(|stream| stream.is_blocked()).count()
    }

    /// Whether something must be released before streams wait again.
    fn is_pressed(&self) -> bool {
        self.kept_bytes > PATIENCE || self.waiting > 0 && !self.kept.is_empty()
    }
}

/// Connections to a device.
fn connections() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| {
        let text = std::env::var(VARIABLE).ok();
        let count = text.and_then(|text| text.trim().parse().ok());
        count.unwrap_or(CONNECTIONS).clamp(1, 32)
    })
}

/// How many streams may wait at a time: half of the connections are for those that run. None if
/// there is only one.
fn most_blocked() -> usize {
    connections() / 2
}

/// How many streams of one queue should run at the same time.
pub(super) fn most_running() -> usize {
    (connections() - most_blocked())
        .saturating_sub(1)
        .clamp(1, 3)
}

/// Whether one more stream that begins would come behind another one.
pub(super) fn is_crowded() -> bool {
    BUSY.load(Ordering::SeqCst) >= connections()
}

/// Whether streams come behind others already.
fn is_overcrowded() -> bool {
    BUSY.load(Ordering::SeqCst) > connections()
}

/// Whether no stream waits.
pub(super) fn is_quiet() -> bool {
    state().blocked() == 0
}

/// Drops something of so many bytes when no stream waits, which may be now.
pub(super) fn release(bytes: usize, what: impl Any + Send) {
    if process::is_forked() {
        // Where the driver is not called, and locks may be held by threads that are not here.
        return;
    }
    let mut process = state();
    if process.blocked() > 0 {
        process.kept.push((bytes, Box::new(what)));
        process.kept_bytes += bytes;
        IS_KEPT.store(true, Ordering::Relaxed);
        drop(process);
        caretaker::hurry();
        return;
    }
    process.releasing += 1;
    drop(process);
    drop(what);
    state().releasing -= 1;
}

/// Drops what was kept, if no stream waits now. Whether something is left.
pub(super) fn release_kept() -> bool {
    if !IS_KEPT.load(Ordering::Relaxed) {
        return false;
    }
    let mut process = state();
    if process.blocked() > 0 {
        return true;
    }
    let kept = std::mem::take(&mut process.kept);
    process.kept_bytes = 0;
    IS_KEPT.store(false, Ordering::Relaxed);
    process.releasing += 1;
    drop(process);
    drop(kept);
    state().releasing -= 1;
    false
}

/// Waits a while until all that was kept is released, so that an allocation can be tried again.
#[cold]
pub(super) fn make_room() {
    state().waiting += 1;
    let start = Instant::now();
    while release_kept() && start.elapsed() < ROOM {
        std::thread::sleep(Duration::from_millis(1));
    }
    state().waiting -= 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Says that it was dropped.
    struct Thing(Arc<AtomicBool>);

    impl Drop for Thing {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    fn thing(bytes: usize) -> Arc<AtomicBool> {
        let is_gone = Arc::new(AtomicBool::new(false));
        release(bytes, Thing(Arc::clone(&is_gone)));
        is_gone
    }

    /// One test, since all of it is about the whole process.
    #[test]
    fn so_many_wait_and_nothing_is_released_meanwhile() {
        let most = most_blocked();
        let gate = || Arc::new(AtomicBool::new(false));
        let is_set = |flag: &Arc<AtomicBool>| flag.load(Ordering::Relaxed);
        let gates: Vec<_> = (0..=most).map(|_| gate()).collect();
        let wait = |index: usize| [Wait::Flag(Arc::clone(&gates[index]))];
        let streams: Vec<_> = (0..=most).map(|_| Known::new()).collect();
        assert!(is_set(&thing(1)), "nobody waits");

        for (index, stream) in streams.iter().enumerate() {
            assert_eq!(stream.admit(wait(index)), index < most, "{index}");
        }
        assert!(streams[0].admit(wait(0)), "who waits already may wait more");
        let [small, large] = [1, PATIENCE].map(thing);
        assert!(release_kept() && !is_set(&small) && !is_set(&large));
        gates[0].store(true, Ordering::Relaxed);
        assert!(!streams[0].is_blocked() && streams[1].is_blocked());
        assert!(!streams[most].admit(wait(most)), "much is to be released");

        for gate in &gates[..most] {
            gate.store(true, Ordering::Relaxed);
        }
        assert!(!release_kept() && is_set(&small) && is_set(&large));
        assert!(streams[most].admit(wait(most)));
        assert_eq!(streams[most].pending().len(), 1);

        let kept = thing(1);
        make_room();
        assert!(!is_set(&kept), "it waits only a while");
        drop(streams);
        assert!(!release_kept() && is_set(&kept));
    }
}
