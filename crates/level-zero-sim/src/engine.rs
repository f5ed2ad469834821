//! A thread that executes commands one after the other.

use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use crate::call::{Few, OUT_OF_DEVICE_MEMORY, Result};
use crate::device::Device;
use crate::event::{Signal, Wait};
use crate::space::{Region, Use};
use crate::switches::switches;
use crate::wait::{Bell, Deadline, Waited};
use crate::work::Work;

pub(crate) struct Submitted {
    pub(crate) waits: Few<Wait>,
    pub(crate) work: Work,
    pub(crate) signal: Option<Signal>,
    /// Marks objects as used until the command is complete.
    pub(crate) uses: Few<Use>,
    /// The memory that the command uses. It stays mapped even if the program frees it too early.
    pub(crate) regions: Few<Arc<Region>>,
}

#[derive(Default)]
struct Pending {
    commands: VecDeque<Submitted>,
    /// Whether the thread waits for a command and was not woken yet. While it is set, there are no
    /// commands and the thread executes none.
    is_waiting: bool,
}

struct Shared {
    device: Arc<Device>,
    queue: Mutex<Pending>,
    more: Condvar,
    submitted: AtomicU64,
    /// The number of commands that no longer use any object. Their signals may still be pending.
    executed: AtomicU64,
    done: AtomicU64,
    /// Rings whenever `done` changes.
    changes: Bell,
    /// Whether the engine executes no further commands.
    stopped: AtomicBool,
}

pub(crate) struct Engine {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    pub(crate) fn new(device: Arc<Device>) -> Result<Self> {
        let shared = Arc::new(Shared {
            device,
            queue: Mutex::default(),
            more: Condvar::new(),
            submitted: AtomicU64::new(0),
            executed: AtomicU64::new(0),
            done: AtomicU64::new(0),
            changes: Bell::default(),
            stopped: AtomicBool::new(false),
        });
        let worker = shared.clone();
        let thread = thread::Builder::new()
            .name("ze_sim engine".into())
            .spawn(move || worker.run())
            .map_err(|_| OUT_OF_DEVICE_MEMORY)?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    pub(crate) fn submit(&self, command: Submitted) {
        self.shared.submitted.fetch_add(1, Ordering::AcqRel);
        let mut queue = self
            .shared
            .queue
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        queue.commands.push_back(command);
        // Wakes the thread only once until it is awake, because each wake-up is a system call.
        if mem::take(&mut queue.is_waiting) {
            self.shared.more.notify_one();
        }
    }

    /// Waits for all commands that were submitted so far.
    pub(crate) fn wait(&self, deadline: Deadline) -> Waited {
        let shared = &self.shared;
        let last = shared.submitted.load(Ordering::Acquire);
        let gone = || shared.device.is_lost();
        shared.changes.wait(deadline, gone, || {
            shared.done.load(Ordering::Acquire) >= last
        })
    }

    /// Returns whether all commands are complete, or the engine has stopped.
    pub(crate) fn is_idle(&self) -> bool {
        let shared = &self.shared;
        let submitted = shared.submitted.load(Ordering::Acquire);
        shared.executed.load(Ordering::Acquire) >= submitted || shared.device.is_lost()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Release);
        // Taking the lock ensures that the thread either still has to check `stopped` or already
        // sleeps.
        drop(self.shared.queue.lock());
        self.shared.more.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        while let Some(command) = self.next() {
            self.execute(command);
            self.end_one();
        }
    }

    fn end_one(&self) {
        self.done.fetch_add(1, Ordering::AcqRel);
        self.changes.ring();
    }

    fn next(&self) -> Option<Submitted> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if self.stopped.load(Ordering::Acquire) {
                return None;
            }
            if let Some(command) = queue.commands.pop_front() {
                return Some(command);
            }
            queue.is_waiting = true;
            queue = self
                .more
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
            queue.is_waiting = false;
        }
    }

    /// Executes a command's work. Returns `false` if it failed, after which the device is lost.
    fn work(&self, work: &Work) -> bool {
        if !switches().command_delay.is_zero() {
            thread::sleep(switches().command_delay);
        }
        let is_done = work.execute();
        if !is_done {
            self.device.lose();
        }
        is_done
    }

    fn execute(&self, command: Submitted) {
        let gone = || self.stopped.load(Ordering::Acquire) || self.device.is_lost();
        let arrived = |wait: &Wait| wait.block(Deadline::NEVER, gone) == Waited::Done;
        let is_done =
            command.waits.iter().all(arrived) && self.device.works_on() && self.work(&command.work);
        // Releases these before the signal, because a waiter may destroy the objects as soon as it
        // wakes.
        drop(command.uses);
        drop(command.work);
        drop(command.regions);
        self.executed.fetch_add(1, Ordering::AcqRel);
        if let (Some(signal), true) = (command.signal, is_done) {
            signal.complete(gone);
        }
    }
}
