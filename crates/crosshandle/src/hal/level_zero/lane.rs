//! One list of a queue, its commands, and who submits them.
//!
//! What waits for nothing but the list itself, or for what the driver's own events tell, is appended
//! when it is submitted. What waits for the host is *held*, and all behind it: a thread waits,
//! and then appends as much as it can, or calls the function. The thread also looks how far the list
//! is, to signal events of commands and to let go of what they used: at once if somebody may wait
//! for that, and after a while if not, so that most submissions wake nobody.
//!
//! Who submits has the *front* of the lane, under its lock. What is in the list is *handed over* to
//! the thread, which takes that lock only to rest, where the list is to have something of it, and if
//! there is very much.

mod append;
mod end;
mod front;
mod handover;
mod held;
mod marks;
mod running;
mod thread;
mod waiting;

use super::device::Gpu;
use super::driver::{Core, List};
use super::ended::Ended;
use super::entry::{Entry, Over, Rare, is_settled, needs_host};
use super::leaving;
use super::pooled::Pooled;
use super::queue::Notes;
use crate::error::{Error, Result};
use crate::hal::{Submission, Work};
use crate::ipc::{EventCore, Profile};
use crate::os::process;
use front::{Front, Rest};
use running::Running;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How often the thread tries to lock before it sleeps until it can.
const TRIES: u32 = 1000;

/// After so many commands that nobody is known to wait for, the thread is woken to let go of what they
/// used. That takes the one who submits some 10 µs.
const BACKLOG: u64 = 1024;

/// So many commands, and marks, the thread takes without asking: 36 KiB. With fewer, their places
/// come round while its CPU has them in its caches still, and submitting takes up to 20 ns longer.
const RING: usize = 256;

/// How long a queue that is dropped waits for what is as good as done.
const LOOK: Duration = Duration::from_millis(5);

/// A lane, until its queue is dropped; its thread goes on until it has nothing to do.
pub(super) struct Lane(Arc<Inner>);

struct Inner {
    gpu: Arc<Gpu>,
    core: Arc<Core>,
    notes: Arc<Notes>,
    front: Apart<Mutex<Front>>,
    /// Notified when the thread has something to do.
    added: Condvar,
    submitted: Apart<Submitted>,
    /// Locked before the front, if both are. Who submits doesn't.
    running: Apart<Mutex<Running>>,
    /// Written by the thread.
    ended: Apart<Ended>,
}

/// What those who submit tell the thread. They write it with the front's lock.
#[derive(Default)]
struct Submitted {
    /// Commands that were submitted.
    count: AtomicU64,
    /// Up to here, the thread is to look at commands now.
    pressing: AtomicU64,
    /// Its queue was dropped.
    is_closed: AtomicBool,
}

/// On cache lines of its own: one side writes it while the other is busy with its own.
#[repr(align(128))]
struct Apart<T>(T);

impl Lane {
    pub(super) fn new(gpu: &Arc<Gpu>, core: &Arc<Core>, notes: &Arc<Notes>) -> Self {
        let (to_list, in_list) = handover::create(RING);
        let (to_marks, marks) = handover::create(RING);
        Self(Arc::new(Inner {
            gpu: Arc::clone(gpu),
            core: Arc::clone(core),
            notes: Arc::clone(notes),
            front: Apart(Mutex::new(Front::new(to_list, to_marks))),
            added: Condvar::new(),
            submitted: Apart(Submitted::default()),
            running: Apart(Mutex::new(Running::new(in_list, marks))),
            ended: Apart(Ended::default()),
        }))
    }

    /// Whether nothing is left to do, as far as is known.
    pub(super) fn is_idle(&self) -> bool {
        self.0.is_idle()
    }

    /// Finds out soon whether something is left to do.
    pub(super) fn look(&self) {
        self.0.press(self.0.front());
    }

    /// Whether something waits for the host, so that more would come late.
    pub(super) fn is_held(&self) -> bool {
        self.0.front().is_held()
    }

    /// How many commands there were.
    pub(super) fn submitted(&self) -> u64 {
        self.0.submitted()
    }

    /// Waits until so many commands are over; `false` at the deadline.
    pub(super) fn finish(&self, count: u64, deadline: Option<Instant>) -> bool {
        if self.0.ended() >= count {
            return true;
        }
        self.look();
        self.0.ended.0.wait(count, deadline)
    }

    /// Takes a command of a queue that has no other lane; `false` if it is shut. What is refused
    /// stays where it was: it may be the user's, which is dropped without locks.
    #[inline]
    pub(super) fn submit(&self, given: &mut Submission) -> Result<bool> {
        let is_bare = matches!(given.work, Work::Marker) && given.waits.is_empty();
        if is_bare && given.signal.is_none() {
            return Ok(true);
        }
        let front = self.0.front();
        if front.is_shut {
            return Ok(false);
        }
        match &given.signal {
            // With nothing before it, it is over.
            Some(event) if is_bare && self.0.is_idle() => signal_now(event)?,
            _ => self.0.add(front, given, None)?,
        }
        Ok(true)
    }

    /// Takes no more commands. What comes after those that it has waits for the one that comes back.
    pub(super) fn shut(&self) -> Result<Option<Arc<Over>>> {
        let mut front = self.0.front();
        front.is_shut = true;
        if self.0.is_idle() {
            return Ok(None);
        }
        let (over, rare) = Rare::after(Vec::new());
        self.0
            .add(front, &mut Submission::new(Work::Marker), rare)?;
        Ok(Some(over))
    }

    /// Takes commands again.
    pub(super) fn open(&self) {
        self.0.front().is_shut = false;
    }

    /// The same for one that comes after some of other lanes.
    pub(super) fn submit_after(
        &self,
        given: &mut Submission,
        after: Vec<Arc<Over>>,
    ) -> Result<Arc<Over>> {
        let (over, rare) = Rare::after(after);
        self.0.add(self.0.front(), given, rare)?;
        Ok(over)
    }
}

/// Signals an event of a command that is over as soon as it is submitted.
fn signal_now(event: &Arc<EventCore>) -> Result<()> {
    let profile = event.profile();
    if let Some(profile) = profile {
        profile.restart();
        Profile::stamp(&profile.started);
        Profile::stamp(&profile.ended);
    }
    event.signal().map(drop)
}

impl Drop for Lane {
    fn drop(&mut self) {
        if process::is_forked() {
            // Its lock may be held by a thread that is not in the child.
            mem::forget(Arc::clone(&self.0));
            return;
        }
        let mut front = self.0.front();
        self.0.submitted.0.is_closed.store(true, Ordering::Release);
        let thread = front.thread.take();
        self.0.press(front);
        // The list may be past all of it, and nobody has looked.
        let is_own = thread.as_ref().is_some_and(leaving::is_own);
        let is_idle = !is_own && self.0.become_idle(Instant::now() + LOOK);
        // What was submitted still runs. If nothing is left, all of the driver's is gone after this.
        match thread {
            Some(thread) if is_idle => leaving::join(thread),
            Some(thread) => {
                let lane = Arc::downgrade(&self.0);
                let leaving = &self.0.notes.leaving;
                leaving.add(thread, move |end| {
                    lane.upgrade().is_none_or(|lane| lane.become_idle(end))
                });
            }
            None => {}
        }
    }
}

impl Inner {
    fn front(&self) -> MutexGuard<'_, Front> {
        self.front.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same for the thread: nobody who submits shall have to wake it when he unlocks.
    fn front_in_turn(&self) -> MutexGuard<'_, Front> {
        for tries in 0.. {
            match self.front.0.try_lock() {
                Ok(front) => return front,
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Err(TryLockError::WouldBlock) if tries < TRIES => std::hint::spin_loop(),
                Err(TryLockError::WouldBlock) if tries < 2 * TRIES => std::thread::yield_now(),
                // The driver takes its time.
                Err(TryLockError::WouldBlock) => break,
            }
        }
        self.front()
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        let running = self.running.0.lock();
        running.unwrap_or_else(PoisonError::into_inner)
    }

    /// How many commands were submitted.
    fn submitted(&self) -> u64 {
        self.submitted.0.count.load(Ordering::Acquire)
    }

    /// Whether its queue was dropped.
    fn is_closed(&self) -> bool {
        self.submitted.0.is_closed.load(Ordering::Acquire)
    }

    /// How many commands are over.
    fn ended(&self) -> u64 {
        self.ended.0.count()
    }

    /// Whether all commands are over.
    fn is_idle(&self) -> bool {
        self.ended() == self.submitted()
    }

    /// Waits until all commands are over, unless one waits for somebody: whether they are.
    fn become_idle(&self, end: Instant) -> bool {
        if self.is_idle() {
            return true;
        }
        let mut running = self.running();
        let mut front = self.front();
        running.receive_all(&mut front);
        let mut waits = running.entries.iter().flat_map(|entry| entry.waits.iter());
        if front.is_held() || !waits.all(is_settled) {
            return false;
        }
        drop((front, running));
        self.ended.0.wait(self.submitted(), Some(end))
    }

    /// Lets the thread look at all commands now.
    fn press(&self, mut front: MutexGuard<'_, Front>) {
        // What others submit meanwhile is not waited for.
        front.tip.is_awaited |= front.tip.unmarked > 0;
        let Submitted {
            count, pressing, ..
        } = &self.submitted.0;
        pressing.store(count.load(Ordering::Relaxed), Ordering::Release);
        self.wake(front, true);
    }

    /// Wakes the thread if it sleeps, or also if it naps.
    #[inline]
    fn wake(&self, mut front: MutexGuard<'_, Front>, from_nap: bool) {
        // Notifying costs as much as the driver's call, also if nobody is there.
        if front.rest == Rest::Sleep || from_nap && front.rest == Rest::Nap {
            front.rest = Rest::None;
            // It shall not find the lock taken.
            drop(front);
            self.added.notify_one();
        }
    }

    /// Takes a command.
    #[inline(always)] // Into `submit`.
    fn add(
        self: &Arc<Self>,
        mut front: MutexGuard<'_, Front>,
        given: &mut Submission,
        rare: Option<Box<Rare>>,
    ) -> Result<()> {
        if front.thread.is_none() {
            self.start(&mut front)?;
        }
        // Under the lock, so that numbers follow the order of the queue.
        let number = match &given.signal {
            Some(event) => {
                if let Some(profile) = event.profile() {
                    profile.restart();
                }
                Some(event.issue()?.number)
            }
            None => None,
        };
        if front.is_held() {
            // What that waited for may be there by now.
            self.append_more(&mut front);
        }
        let Front {
            tip,
            held,
            commands,
            ..
        } = &mut *front;
        let is_awaited = number.is_some() || rare.is_some();
        let (mut is_pressing, left);
        if !held.is_empty() || needs_host(&given.work, rare.as_deref()) {
            (is_pressing, left) = (false, Some(Entry::new(given, number, rare)));
        } else {
            let mut entry = commands.place().put(Entry::new(given, number, rare));
            // What takes a while has a mark: then the thread sleeps better in the driver.
            is_pressing = is_awaited || entry.item().is_long;
            left = self.append_from(tip, entry);
        }
        if let Some(entry) = left {
            held.push_back(entry);
            is_pressing = true;
        }
        let Submitted {
            count, pressing, ..
        } = &self.submitted.0;
        let submitted = count.load(Ordering::Relaxed) + 1;
        count.store(submitted, Ordering::Release);
        is_pressing |= submitted - pressing.load(Ordering::Relaxed) >= BACKLOG;
        if is_pressing {
            pressing.store(submitted, Ordering::Release);
        }
        self.wake(front, is_pressing);
        Ok(())
    }

    /// Makes a list, a mark and the thread.
    #[cold]
    fn start(self: &Arc<Self>, front: &mut Front) -> Result<()> {
        if front.tip.list.is_none() {
            let (device, group) = (self.gpu.handle(), self.gpu.group());
            front.tip.list = Some(List::create(&self.core, device, group)?);
        }
        // If there can be none, this is where to say so.
        let mark = Pooled::take_handle(&self.core)?;
        Pooled::return_to_pool(&self.core, mark);
        let inner = Arc::clone(self);
        let thread = std::thread::Builder::new()
            .name("crosshandle-lane".into())
            .spawn(move || inner.run())
            .map_err(|error| Error::LimitReached {
                what: format!("a queue's thread cannot be started: {error}"),
                remedy: "raise RLIMIT_NPROC (ulimit -u)".into(),
            })?;
        front.thread = Some(thread);
        Ok(())
    }

    /// Appends commands to the list until one needs the host.
    fn append_more(&self, front: &mut Front) {
        while let Some(entry) = front.held.front() {
            if entry.needs_host() || !self.append_held(front) {
                return;
            }
        }
    }
}
