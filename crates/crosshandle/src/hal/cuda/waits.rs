//! What streams wait for.
//!
//! A stream that waits gets in the way of others of its context, by the driver's rules (measured,
//! see `docs/cuda.md`): it occupies one of a few connections to the device, and when all of those
//! are taken, streams that could run come behind ones that wait. And some calls of the driver
//! return only when no stream of the context waits: unregistering host memory and unloading
//! programs, say. So it is known here what every stream waits for: only so many may at a time, the
//! others keep their commands back, and such calls are made when none does.

mod chore;
mod traffic;

use super::words::Word;
use crate::ipc::EventCore;
use crate::os::process;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use traffic::State;
pub(super) use traffic::Traffic;

/// Connections of a context to its device that the driver makes unless told otherwise, by this
/// variable.
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
            Self::Event(event, number) => event.releases_device(*number),
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
pub(super) struct Waits {
    traffic: Arc<Traffic>,
    list: Mutex<VecDeque<Wait>>,
    /// Whether something is under way in the stream, as far as its queue knows.
    is_busy: AtomicBool,
}

/// What is taken out.
type Over = SmallVec<[Wait; 4]>;

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
        let traffic = &self.traffic;
        if traffic.begin() >= connections() && traffic.state().blocked() > 0 {
            traffic.end();
            return false;
        }
        self.is_busy.store(true, Ordering::Relaxed);
        true
    }

    /// The same whatever that gets behind.
    #[inline]
    pub(super) fn begin_anyway(&self) {
        if !self.is_busy.load(Ordering::Relaxed) && !self.is_busy.swap(true, Ordering::Relaxed) {
            self.traffic.begin();
        }
    }

    /// Takes note that nothing is under way.
    #[inline]
    pub(super) fn end(&self) {
        if self.is_busy.load(Ordering::Relaxed) && self.is_busy.swap(false, Ordering::Relaxed) {
            self.traffic.end();
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

    /// Takes note of waits that nobody has to admit. They are for now, so this waits while something
    /// is done that they would get in the way of: the stream shall not wait before it returns.
    pub(super) fn add(&self, waits: impl IntoIterator<Item = Wait>) {
        let mut waits = waits.into_iter().peekable();
        if waits.peek().is_none() || self.extend(&mut waits).is_ok() {
            return;
        }
        let _state = self.traffic.state_between();
        self.list().extend(waits);
    }

    /// Takes note of more waits if there are some, and nobody needs quiet; otherwise whether there are
    /// none.
    fn extend(&self, waits: &mut impl Iterator<Item = Wait>) -> Result<(), bool> {
        // Before the lock, so that it is dropped after it.
        let mut over = Over::new();
        let mut list = self.list();
        // What is over goes, in the order in which streams wait.
        while let Some(wait) = list.pop_front_if(|wait| wait.is_over()) {
            over.push(wait);
        }
        // Whoever needs quiet has said so before it looks at this list: either that is seen here, or
        // these waits are seen there.
        if list.is_empty() || self.traffic.is_halted() {
            return Err(list.is_empty());
        }
        list.extend(waits);
        Ok(())
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
        self.admit_among(most_blocked(), Traffic::halts, waits)
    }

    /// The same for a wait that follows, until a function of the user returns: nobody else can see
    /// to that, so one at a time may even where there is only one connection, and after a second
    /// also while much memory waits to be released: what that waits for may be another function,
    /// which waits for this one.
    pub(super) fn admit_function(&self) -> bool {
        let halts = |_: &Traffic, state: &State| state.halts_functions();
        self.admit_among(most_blocked().max(1), halts, [])
    }

    /// The same as [`admit`](Self::admit) for one signal, if the stream waits already; otherwise
    /// nothing is said.
    #[inline]
    pub(super) fn admit_more(&self, event: &Arc<EventCore>, number: u64) -> bool {
        let mut list = self.list();
        let is_blocked = list.front().is_some_and(|wait| !wait.is_over());
        // As in `extend`.
        if !is_blocked || self.traffic.is_halted() {
            return false;
        }
        // Several commands may wait for one signal.
        if !list.back().is_some_and(|last| last.is(event, number)) {
            list.push_back(Wait::Event(Arc::clone(event), number));
        }
        true
    }

    fn admit_among(
        &self,
        most: usize,
        halts: impl FnOnce(&Traffic, &State) -> bool,
        waits: impl IntoIterator<Item = Wait>,
    ) -> bool {
        let mut waits = waits.into_iter();
        // One that waits already may wait more.
        let Err(is_free) = self.extend(&mut waits) else {
            return true;
        };
        let mut state = self.traffic.state();
        // Perhaps no longer.
        self.traffic.show(&mut state);
        let is_full = || state.blocked() >= most || self.traffic.is_overcrowded();
        if halts(&self.traffic, &state) || is_free && is_full() {
            return false;
        }
        // Under the lock, so that it is known before anybody finds the streams quiet.
        self.list().extend(waits);
        true
    }
}

/// The waits of a stream, known to its context as long as this lives.
pub(super) struct Known(Arc<Waits>);

impl Known {
    pub(super) fn new(traffic: &Arc<Traffic>) -> Self {
        let waits = Arc::new(Waits {
            traffic: Arc::clone(traffic),
            list: Mutex::default(),
            is_busy: AtomicBool::new(false),
        });
        traffic.state().streams.push(Arc::clone(&waits));
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
        let mut state = self.0.traffic.state();
        let streams = &mut state.streams;
        let found = streams
            .iter()
            .position(|stream| Arc::ptr_eq(stream, &self.0));
        let found = found.map(|index| streams.swap_remove(index));
        drop(state);
        drop(found);
    }
}

/// Connections of a context to its device.
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

#[cfg(test)]
mod tests;
