//! All streams of this process, and what is released only while none of them waits.

use super::Waits;
use crate::backend::cuda::caretaker;
use crate::os::process;
use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes that may wait to be unregistered before streams make room for it.
pub(super) const PATIENCE: usize = 256 << 20;
/// How long an allocation that failed waits for what can be unregistered.
const ROOM: Duration = Duration::from_secs(1);

/// The streams of this process, and what is to be released when none of them waits.
#[derive(Default)]
pub(super) struct Process {
    pub(super) streams: Vec<Arc<Waits>>,
    /// Threads that release something now, or do something else of the kind.
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

/// Whether no stream may begin to wait: see `Process::is_halted`. Changed under its lock.
pub(super) static IS_HALTED: AtomicBool = AtomicBool::new(false);

/// Whether something is to be released.
static IS_KEPT: AtomicBool = AtomicBool::new(false);

pub(super) fn state() -> MutexGuard<'static, Process> {
    PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Process {
    /// Streams that wait.
    pub(super) fn blocked(&self) -> usize {
        let streams = self.streams.iter();
        streams.filter(|stream| stream.is_blocked()).count()
    }

    /// Whether something is released now, or must be before streams wait again.
    pub(super) fn is_halted(&self) -> bool {
        let is_pressed = self.kept_bytes > PATIENCE || self.waiting > 0 && !self.kept.is_empty();
        self.releasing > 0 || is_pressed
    }

    /// Lets those know who don't lock this.
    fn show(&self) {
        IS_HALTED.store(self.is_halted(), Ordering::Relaxed);
    }

    /// Begins to release something, which nobody must wait for, unless a stream waits already.
    fn begin_release(&mut self) -> bool {
        // Before the streams are looked at.
        self.releasing += 1;
        self.show();
        let may = self.blocked() == 0;
        if !may {
            self.end_release();
        }
        may
    }

    fn end_release(&mut self) {
        self.releasing -= 1;
        self.show();
    }
}

/// Does something that returns only when no stream waits: at once if none does, and then none
/// begins to meanwhile; otherwise not at all.
pub(in super::super) fn if_quiet<T>(act: impl FnOnce() -> T) -> Option<T> {
    let may = state().begin_release();
    may.then(|| {
        let done = act();
        state().end_release();
        done
    })
}

/// Drops something of so many bytes when no stream waits, which may be now.
pub(in super::super) fn release(bytes: usize, what: impl Any + Send) {
    if process::is_forked() {
        // Where the driver is not called, and locks may be held by threads that are not here.
        return;
    }
    let mut process = state();
    if !process.begin_release() {
        process.kept.push((bytes, Box::new(what)));
        process.kept_bytes += bytes;
        process.show();
        IS_KEPT.store(true, Ordering::Relaxed);
        drop(process);
        caretaker::hurry();
        return;
    }
    drop(process);
    drop(what);
    state().end_release();
}

/// Drops what was kept, if no stream waits now. Whether something is left.
pub(in super::super) fn release_kept() -> bool {
    if !IS_KEPT.load(Ordering::Relaxed) {
        return false;
    }
    let mut process = state();
    if !process.begin_release() {
        return true;
    }
    let kept = std::mem::take(&mut process.kept);
    process.kept_bytes = 0;
    IS_KEPT.store(false, Ordering::Relaxed);
    drop(process);
    drop(kept);
    state().end_release();
    false
}

/// Waits a while until all that was kept is released, so that an allocation can be tried again.
#[cold]
pub(in super::super) fn make_room() {
    set_waiting(|waiting| waiting + 1);
    let start = Instant::now();
    while release_kept() && start.elapsed() < ROOM {
        std::thread::sleep(Duration::from_millis(1));
    }
    set_waiting(|waiting| waiting - 1);
}

fn set_waiting(change: impl Fn(usize) -> usize) {
    let mut process = state();
    process.waiting = change(process.waiting);
    process.show();
}
