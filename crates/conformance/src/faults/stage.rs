//! The supervisor. Only the thread that holds the baton runs between two steps.
//!
//! A thread that is about to make a step waits for the supervisor. The supervisor grants one step
//! at a time. It grants the next step only when that thread has reached its next step or sleeps in
//! the kernel. After a step that may have woken other threads, the supervisor waits until every
//! thread has reached a step or sleeps. It then uses the seed to choose among the waiting threads.

use super::calls::{self, Call};
use super::filter::{self, Notification};
use super::step::{Fault, Step};
use super::worker::Worker;
use crate::failure::Failure;
use crate::pattern::Random;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Interval at which the supervisor checks whether the thread with the baton sleeps.
const LOOK: Duration = Duration::from_micros(40);
/// Interval at which the supervisor checks the workers when there is no step to grant.
const IDLE_LOOK: Duration = Duration::from_millis(1);
/// Maximum time that one thread has the baton, because some loops make no step.
const LONGEST_RUN: Duration = Duration::from_millis(20);
/// Maximum time to wait until all threads have reached a step or sleep.
const LONGEST_SETTLING: Duration = Duration::from_millis(50);

/// A step that a thread is waiting to make.
struct Waiting {
    worker: usize,
    thread: i32,
    id: u64,
    call: &'static Call,
}

/// The thread that has the baton.
struct Holder {
    worker: usize,
    thread: i32,
    since: Instant,
}

/// The moment at which the fault happens.
#[derive(Clone)]
pub(super) enum Plan {
    /// Before the supervisor grants a step.
    AtStep { step: Step, fault: Fault },
    /// At a given time, while all workers run freely.
    AtTime {
        victim: usize,
        fault: Fault,
        after: Duration,
    },
}

impl Plan {
    pub(super) fn fault(&self) -> Fault {
        match self {
            Self::AtStep { fault, .. } | Self::AtTime { fault, .. } => *fault,
        }
    }
}

/// The workers of a workload, and the thread that may run.
pub(super) struct Stage {
    pub(super) workers: Vec<Worker>,
    waiting: Vec<Waiting>,
    holder: Option<Holder>,
    is_unsettled: bool,
    random: Random,
    /// Number of the workload's current line.
    pub(super) line: usize,
    counts: BTreeMap<(char, String, &'static str), u32>,
    /// Steps that were granted so far, in order.
    pub(super) trace: Vec<Step>,
    plan: Option<Plan>,
    began: Instant,
    /// Whether the fault is cancelled if it has not happened yet.
    pub(super) is_called_off: bool,
    /// Time at which the fault happened.
    pub(super) injected: Option<Instant>,
    /// Index of the worker that the plan has killed or stopped.
    pub(super) victim: Option<usize>,
}

impl Stage {
    pub(super) fn new(workers: Vec<Worker>, seed: u64, plan: Option<Plan>) -> Self {
        Self {
            workers,
            waiting: Vec::new(),
            holder: None,
            is_unsettled: true,
            random: Random(seed),
            line: 0,
            counts: BTreeMap::new(),
            trace: Vec::new(),
            plan,
            began: Instant::now(),
            is_called_off: false,
            injected: None,
            victim: None,
        }
    }

    /// Begins a line of the workload, and resets the counts of steps.
    pub(super) fn begin_line(&mut self, line: usize) {
        self.line = line;
        self.counts.clear();
    }

    /// Lets the workers run until `holds` returns `true`. Returns whether this happened within the
    /// limit.
    pub(super) fn run_until(
        &mut self,
        limit: Duration,
        mut holds: impl FnMut(&mut Self) -> bool,
    ) -> Result<bool, Failure> {
        let end = Instant::now() + limit;
        loop {
            if holds(self) {
                return Ok(true);
            }
            if Instant::now() >= end {
                return Ok(false);
            }
            self.turn(end)?;
        }
    }

    /// Lets the workers run until all threads sleep, but not longer than the limit.
    pub(super) fn run_until_quiet(&mut self, limit: Duration) -> Result<bool, Failure> {
        if self.is_free() {
            return Ok(true);
        }
        let end = Instant::now() + limit;
        let mut was_quiet = false;
        loop {
            let is_quiet = self.waiting.is_empty() && self.holder.is_none() && self.is_settled();
            // A thread that waits for the supervisor also sleeps, so a second check is needed.
            if std::mem::replace(&mut was_quiet, is_quiet) && is_quiet {
                return Ok(true);
            }
            if Instant::now() >= end {
                return Ok(false);
            }
            match is_quiet {
                true => self.look(LOOK)?,
                false => self.turn(end)?,
            }
        }
    }

    /// Returns whether the workers run freely, without a baton.
    fn is_free(&self) -> bool {
        matches!(self.plan, Some(Plan::AtTime { .. }))
    }

    fn turn(&mut self, end: Instant) -> Result<(), Failure> {
        self.strike();
        let is_busy = self.holder.is_some() || !self.waiting.is_empty();
        let look = match is_busy {
            true => LOOK,
            false => IDLE_LOOK.min(end.saturating_duration_since(Instant::now())),
        };
        self.look(look)?;
        if let Some(holder) = &self.holder {
            let runs = holder.since.elapsed() < LONGEST_RUN
                && matches!(self.workers[holder.worker].state(holder.thread), Some(b'R'));
            if runs {
                return Ok(());
            }
            self.holder = None;
            // The thread's step may have arrived during the check.
            self.look(Duration::ZERO)?;
        }
        if self.waiting.is_empty() {
            return Ok(());
        }
        if self.is_unsettled {
            let end = Instant::now() + LONGEST_SETTLING;
            while !self.is_settled() && Instant::now() < end {
                self.look(LOOK)?;
            }
            self.look(Duration::ZERO)?;
            self.is_unsettled = false;
        }
        self.waiting
            .sort_by_key(|waiting| (waiting.worker, waiting.thread));
        let chosen = self.random.below(self.waiting.len());
        let chosen = self.waiting.swap_remove(chosen);
        self.grant(chosen);
        Ok(())
    }

    /// Returns whether every thread that the supervisor does not hold back sleeps.
    fn is_settled(&self) -> bool {
        let mut workers = self.workers.iter();
        workers.all(|worker| {
            let mut threads = worker.threads().into_iter();
            worker.has_ended
                || worker.is_stopped
                || threads.all(|thread| {
                    self.waiting.iter().any(|waiting| waiting.thread == thread)
                        || !matches!(worker.state(thread), Some(b'R' | b'D'))
                })
        })
    }

    /// Receives the notifications and output of the workers, or waits until some arrive.
    fn look(&mut self, limit: Duration) -> Result<(), Failure> {
        let mut sources = Vec::new();
        let mut fds = Vec::new();
        for (index, worker) in self.workers.iter().enumerate() {
            if worker.has_ended {
                continue;
            }
            sources.push((index, false));
            fds.push(PollFd::from_borrowed_fd(worker.socket(), PollFlags::IN));
            if let Some(listener) = worker.listener() {
                sources.push((index, true));
                fds.push(PollFd::from_borrowed_fd(listener, PollFlags::IN));
            }
        }
        let limit = Timespec::try_from(limit)?;
        match poll(&mut fds, Some(&limit)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<_> = fds
            .iter()
            .zip(sources)
            .filter(|(fd, _)| !fd.revents().is_empty())
            .map(|(fd, (index, is_listener))| (index, is_listener, fd.revents()))
            .collect();
        for (index, is_listener, events) in ready {
            if !is_listener {
                self.workers[index].read();
            } else if events.contains(PollFlags::IN)
                && let Some(listener) = self.workers[index].listener()
                && let Some(notification) = filter::receive(listener)?
            {
                self.take(index, &notification);
            }
        }
        Ok(())
    }

    fn take(&mut self, worker: usize, notification: &Notification) {
        let Notification {
            id,
            thread,
            number,
            arguments,
        } = notification;
        if let Some(holder) = &self.holder
            && (holder.worker, holder.thread) == (worker, *thread)
        {
            self.holder = None;
        }
        let Some(call) = calls::find(*number, arguments) else {
            if let Some(listener) = self.workers[worker].listener() {
                filter::respond(listener, *id, None);
            }
            return;
        };
        // A step that a signal has interrupted is reported again.
        self.waiting.retain(|waiting| waiting.thread != *thread);
        self.waiting.push(Waiting {
            worker,
            thread: *thread,
            id: *id,
            call,
        });
    }

    fn grant(&mut self, waiting: Waiting) {
        let Waiting {
            worker: index,
            thread,
            id,
            call,
        } = waiting;
        let worker = &mut self.workers[index];
        let role = worker.role(thread);
        let key = (worker.name, role, call.name);
        let occurrence = 1 + self.counts.get(&key).copied().unwrap_or(0);
        let step = Step {
            line: self.line,
            worker: worker.name,
            role: key.1.clone(),
            call: call.name,
            occurrence,
        };
        let mut error = None;
        if let Some(Plan::AtStep {
            step: wanted,
            fault,
        }) = &self.plan
            && self.injected.is_none()
            && *wanted == step
        {
            self.victim = Some(index);
            match *fault {
                Fault::Kill => {
                    self.injected = Some(Instant::now());
                    self.counts.insert(key, occurrence);
                    self.trace.push(step);
                    self.kill(index);
                    return;
                }
                Fault::Stop => {
                    self.injected = Some(Instant::now());
                    // The step is reported again, and counted then, when the worker continues.
                    self.stop(index);
                    return;
                }
                Fault::Error(_, number) => error = Some(number),
            }
        }
        let Some(listener) = worker.listener() else {
            return;
        };
        if !filter::respond(listener, id, error) {
            // The thread has ended or was interrupted. If it was interrupted, the step is reported
            // again.
            return;
        }
        if error.is_some() {
            self.injected = Some(Instant::now());
        }
        if call.name == "exit" {
            worker.forget_thread(thread);
        }
        self.counts.insert(key, occurrence);
        self.trace.push(step);
        self.is_unsettled |= call.wakes;
        self.holder = Some(Holder {
            worker: index,
            thread,
            since: Instant::now(),
        });
    }

    /// Injects the fault if its time has come.
    fn strike(&mut self) {
        let Some(Plan::AtTime {
            victim,
            fault,
            after,
        }) = self.plan
        else {
            return;
        };
        if self.injected.is_some()
            || self.is_called_off
            || self.began.elapsed() < after
            || self.workers[victim].has_ended
        {
            return;
        }
        self.victim = Some(victim);
        self.injected = Some(Instant::now());
        match fault {
            Fault::Stop => self.stop(victim),
            _ => self.kill(victim),
        }
    }

    fn forget(&mut self, index: usize) {
        self.waiting.retain(|waiting| waiting.worker != index);
        if self
            .holder
            .as_ref()
            .is_some_and(|holder| holder.worker == index)
        {
            self.holder = None;
        }
        self.is_unsettled = true;
    }

    fn kill(&mut self, index: usize) {
        self.workers[index].kill();
        self.forget(index);
    }

    fn stop(&mut self, index: usize) {
        let worker = &mut self.workers[index];
        worker.signal(Signal::STOP);
        let end = Instant::now() + LONGEST_SETTLING;
        let is_stopped = |worker: &Worker| {
            let mut threads = worker.threads().into_iter();
            threads.all(|thread| !matches!(worker.state(thread), Some(b'R' | b'S' | b'D')))
        };
        while !is_stopped(worker) && Instant::now() < end {
            std::thread::sleep(LOOK);
        }
        worker.is_stopped = true;
        self.forget(index);
    }

    /// Continues a stopped worker.
    pub(super) fn go_on(&mut self, index: usize) {
        let worker = &mut self.workers[index];
        if worker.is_stopped {
            worker.is_stopped = false;
            worker.signal(Signal::CONT);
            self.is_unsettled = true;
        }
    }

    pub(super) fn index(&self, name: char) -> Result<usize, Failure> {
        let found = self.workers.iter().position(|worker| worker.name == name);
        found.ok_or_else(|| Failure::new(format!("there is no worker {name}")))
    }
}
