//! What the streams of this process wait for.
//!
//! A stream that waits gets in the way of others, by the driver's rules (measured, see
//! `docs/cuda.md`): it occupies one of a few connections to the device, and when all of those are
//! taken, streams that could run come behind ones that wait. And some calls of the driver return
//! only when no stream of the context waits; unregistering host memory is the one that this crate
//! makes. So it is known here what every stream waits for: only so many may at a time, the others
//! keep their commands back, and host memory is unregistered when none does.

mod streams;

use super::words::Word;
use crate::os::process;
use crate::sharing::EventCore;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use streams::{IS_HALTED, state};

pub(super) use streams::{if_quiet, make_room, release, release_kept};

/// Connections to a device that the driver makes unless told otherwise, by this variable.
const CONNECTIONS: usize = 8;
const VARIABLE: &str = "CUDA_DEVICE_MAX_CONNECTIONS";

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

    fn is(&self, event: &Arc<EventCore>, number: u64) -> bool {
        matches!(self, Self::Event(other, known) if Arc::ptr_eq(other, event) && *known == number)
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

/// What is taken out.
type Over = SmallVec<[Wait; 4]>;

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
        let mut over = Over::new();
        let mut list = self.list();
        while let Some(wait) = list.pop_front_if(|wait| wait.is_over()) {
            over.push(wait);
        }
        list.extend(waits);
    }

    /// Nothing that the stream waits for will happen.
    pub(super) fn clear(&self) {
        let mut list = self.list();
        let all: Over = list.drain(..).collect();
        drop(list);
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

    /// The same as [`admit`](Self::admit) for one signal, if the stream waits already; otherwise
    /// nothing is said.
    #[inline]
    pub(super) fn admit_more(&self, event: &Arc<EventCore>, number: u64) -> bool {
        let mut list = self.list();
        let is_blocked = list.front().is_some_and(|wait| !wait.is_over());
        // See below.
        if !is_blocked || IS_HALTED.load(Ordering::Relaxed) {
            return false;
        }
        // Several commands may wait for one signal.
        if !list.back().is_some_and(|last| last.is(event, number)) {
            list.push_back(Wait::Event(Arc::clone(event), number));
        }
        true
    }

    fn admit_among(&self, most: usize, waits: impl IntoIterator<Item = Wait>) -> bool {
        // Before the locks, so that it is dropped after them.
        let mut over = Over::new();
        let mut list = self.list();
        while let Some(wait) = list.pop_front_if(|wait| wait.is_over()) {
            over.push(wait);
        }
        // One that waits already may wait more. Whoever releases something has said so before it
        // looks at this list: either that is seen here, or these waits are seen there.
        if !list.is_empty() && !IS_HALTED.load(Ordering::Relaxed) {
            list.extend(waits);
            return true;
        }
        let is_free = list.is_empty();
        drop(list);
        let process = state();
        if process.is_halted() || is_free && (process.blocked() >= most || is_overcrowded()) {
            return false;
        }
        // Under the lock, so that it is known before it is decided to release anything.
        self.list().extend(waits);
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

#[cfg(test)]
mod tests {
    use super::streams::PATIENCE;
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
