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
use std::sync::atomic::{AtomicBool, Ordering};
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
}

impl Wait {
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        match self {
            Self::Event(event, number) => event.is_settled(*number),
            Self::Word(word, number) => word.has_reached(*number),
        }
    }
}

/// What one stream waits for, in order. What is taken out is dropped without a lock: it may be the
/// last that keeps a peer's memory.
#[derive(Default)]
pub(super) struct Waits(Mutex<VecDeque<Wait>>);

impl Waits {
    fn list(&self) -> MutexGuard<'_, VecDeque<Wait>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
            Wait::Word(..) => None,
        }
    }

    /// Takes note of waits that nobody has to admit.
    pub(super) fn add(&self, waits: impl IntoIterator<Item = Wait>) {
        // What is over goes, in the order in which streams wait.
        while let Some(wait) = self.take_over() {
            drop(wait);
        }
        self.list().extend(waits);
    }

    fn take_over(&self) -> Option<Wait> {
        self.list().pop_front_if(|wait| wait.is_over())
    }

    /// Nothing that the stream waits for will happen.
    pub(super) fn clear(&self) {
        let all = std::mem::take(&mut *self.list());
        drop(all);
    }

    /// Takes note that the stream shall wait, if there is no reason against it now. What is
    /// refused is to be kept back, and tried again.
    pub(super) fn admit(&self, waits: impl IntoIterator<Item = Wait>) -> bool {
        while let Some(wait) = self.take_over() {
            drop(wait);
        }
        let process = state();
        if process.releasing > 0 || process.is_pressed() {
            return false;
        }
        if !self.is_blocked() && process.blocked() >= most_blocked() {
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

/// How many streams may wait at a time: half of the connections are for those that run.
fn most_blocked() -> usize {
    static MOST: OnceLock<usize> = OnceLock::new();
    *MOST.get_or_init(|| {
        let connections = std::env::var(VARIABLE).ok();
        let connections = connections.and_then(|text| text.trim().parse().ok());
        (connections.unwrap_or(CONNECTIONS).clamp(1, 32) / 2).max(1)
    })
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
