//! Queues whose list a program may append to as well.
//!
//! Until somebody asks for the list, and as long as there are no commands of the program's own, a
//! queue is nothing more than what `queue` makes. Then those commands get lists of their own. What
//! is submitted to a queue in order goes to one such list from then on, of a queue whose order is
//! free its barriers; functions of the host keep the order between the two.

use super::device::Gpu;
use super::direct::Direct;
use super::driver::{Core, List};
use super::entry::Over;
use super::queue::{self, Notes, check_fork, timed_out};
use crate::backend::{BackendQueue, NativeQueue, QueueOrder, Submission, Work};
use crate::error::Result;
use crate::os::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Lists for commands of the program's own whose order is free. With more that wait at the same
/// time, some come after others.
const MOST_LISTS: usize = 32;
/// How long a list that has nothing to do may take to say so.
const MOMENT: Duration = Duration::from_millis(100);

/// A new queue on a device.
pub(super) fn create(gpu: &Arc<Gpu>, core: &Arc<Core>, order: QueueOrder) -> Box<dyn BackendQueue> {
    Box::new(Shareable {
        gpu: Arc::clone(gpu),
        core: Arc::clone(core),
        order,
        inner: Some(queue::create(gpu, core, order)),
        is_shared: AtomicBool::new(false),
        notes: Arc::default(),
        state: Mutex::default(),
    })
}

/// A queue on a list of the program's.
pub(super) fn adopt(gpu: &Arc<Gpu>, core: &Arc<Core>, list: List) -> Box<dyn BackendQueue> {
    let notes = Arc::default();
    let direct = Direct::new(gpu, core, &notes, list);
    Box::new(Shareable {
        gpu: Arc::clone(gpu),
        core: Arc::clone(core),
        order: QueueOrder::InOrder,
        inner: None,
        is_shared: AtomicBool::new(true),
        notes,
        state: Mutex::new(State {
            direct: Some(direct),
            ..State::default()
        }),
    })
}

struct Shareable {
    gpu: Arc<Gpu>,
    core: Arc<Core>,
    order: QueueOrder,
    /// None for a list of the program's.
    inner: Option<Box<dyn BackendQueue>>,
    /// Whether there are lists beside it.
    is_shared: AtomicBool,
    notes: Arc<Notes>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// What the program appends to as well.
    direct: Option<Direct>,
    /// For commands of the program's own whose order is free.
    others: Vec<Direct>,
    /// Their latest commands that are not over.
    latest: Vec<Arc<Over>>,
    /// The latest barrier: what all later commands come after.
    barrier: Option<Arc<Over>>,
    /// Where the search for a list begins.
    next: usize,
}

/// Says that a function's turn has come, also if it is not called.
struct Turn(Arc<Over>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.set();
    }
}

impl Shareable {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Submits a function to the queue without the program.
    fn call(
        &self,
        function: impl FnOnce() + Send + 'static,
        set: fn(&mut Submission),
    ) -> Result<()> {
        let Some(inner) = &self.inner else {
            return Ok(());
        };
        let mut submission = Submission::new(Work::Call(Box::new(move || {
            function();
            Ok(())
        })));
        set(&mut submission);
        inner.submit(&mut submission)
    }

    /// When the queue without the program is so far; `None` if it has nothing to do.
    fn turn(&self, set: fn(&mut Submission)) -> Result<Option<Arc<Over>>> {
        if self.inner.as_ref().is_none_or(|inner| inner.is_idle()) {
            return Ok(None);
        }
        let over = Arc::default();
        let turn = Turn(Arc::clone(&over));
        self.call(move || drop(turn), set)?;
        Ok(Some(over))
    }

    /// The list that the program may append to. What was submitted before comes before what is
    /// appended to it: of a queue whose order is free, as far as barriers say so.
    fn direct<'a>(&self, state: &'a mut State) -> Result<&'a Direct> {
        if state.direct.is_none() {
            let direct = self.new_list()?;
            self.is_shared.store(true, Ordering::Release);
            if let Some(turn) = self.turn(|_| {})? {
                direct.submit(&mut Submission::new(Work::Nothing), vec![turn])?;
            }
            state.direct = Some(direct);
        }
        Ok(state.direct.as_ref().expect("made above"))
    }

    fn new_list(&self) -> Result<Direct> {
        let (device, group) = (self.gpu.handle(), self.gpu.group());
        let list = List::create(&self.core, device, group)?;
        Ok(Direct::new(&self.gpu, &self.core, &self.notes, list))
    }

    /// A list where nothing holds up a command of the program's, if possible: what that waits for
    /// may be behind others.
    fn other<'a>(&self, state: &'a mut State) -> Result<&'a Direct> {
        let count = state.others.len();
        let index = match state.others.iter().position(Direct::is_idle) {
            Some(idle) => idle,
            None if count < MOST_LISTS => {
                state.others.push(self.new_list()?);
                count
            }
            None => (state.next + 1) % count,
        };
        state.next = index;
        Ok(&state.others[index])
    }

    #[cold]
    fn submit_shared(&self, submission: &mut Submission) -> Result<()> {
        check_fork()?;
        let (after_earlier, before_later) = (submission.after_earlier, submission.before_later);
        let is_native = matches!(submission.work, Work::Native(_));
        let mut state = self.state();
        let state = &mut *state;
        if self.order == QueueOrder::InOrder {
            let direct = self.direct(state)?;
            return direct.submit(submission, Vec::new()).map(drop);
        }
        let is_barrier = after_earlier || before_later;
        if !is_barrier && !is_native {
            return match &self.inner {
                Some(inner) => inner.submit(submission),
                None => Ok(()),
            };
        }
        state.latest.retain(|over| !over.is_over());
        let mut after = Vec::new();
        if after_earlier {
            after.clone_from(&state.latest);
            after.extend(self.turn(|submission| submission.after_earlier = true)?);
        } else {
            // What it comes after may be a barrier.
            after.extend(self.turn(|_| {})?);
        }
        after.extend(state.barrier.clone().filter(|barrier| !barrier.is_over()));
        self.is_shared.store(true, Ordering::Release);
        let list = match is_barrier {
            true => self.direct(state)?,
            false => self.other(state)?,
        };
        let over = list.submit(submission, after)?;
        if before_later {
            state.barrier = Some(Arc::clone(&over));
            let barrier = Arc::clone(&over);
            self.call(
                move || barrier.wait(),
                |submission| submission.before_later = true,
            )?;
        }
        state.latest.push(over);
        Ok(())
    }

    /// Waits for everything; `false` at the deadline.
    fn finish_lists(&self, deadline: Option<Instant>) -> Result<bool> {
        let state = self.state();
        let lists = state.direct.iter().chain(&state.others);
        let waiting: Vec<_> = lists.map(Direct::mark).collect::<Result<_>>()?;
        drop(state);
        Ok(waiting.into_iter().all(|mark| mark.wait(deadline)))
    }
}

impl BackendQueue for Shareable {
    #[inline]
    fn submit(&self, submission: &mut Submission) -> Result<()> {
        match &self.inner {
            Some(inner)
                if !self.is_shared.load(Ordering::Acquire)
                    && !matches!(submission.work, Work::Native(_)) =>
            {
                inner.submit(submission)
            }
            _ => self.submit_shared(submission),
        }
    }

    fn flush(&self) -> Result<()> {
        // Immediate lists run whatever there is.
        Ok(())
    }

    fn finish(&self, deadline: Option<Instant>) -> Result<()> {
        check_fork()?;
        if self.is_shared.load(Ordering::Acquire) && !self.finish_lists(deadline)? {
            return Err(timed_out());
        }
        let finished = self.inner.as_ref().map(|inner| inner.finish(deadline));
        self.notes.take().and(finished.unwrap_or(Ok(())))
    }

    fn is_idle(&self) -> bool {
        if process::is_forked() {
            return true;
        }
        if self.inner.as_ref().is_some_and(|inner| !inner.is_idle()) {
            return false;
        }
        if !self.is_shared.load(Ordering::Acquire) {
            return true;
        }
        let state = self.state();
        let mut lists = state.direct.iter().chain(&state.others);
        let are_idle = lists.all(Direct::is_idle);
        drop(state);
        // What the program has appended only shows in what comes after it.
        are_idle
            && self
                .finish_lists(Some(Instant::now() + MOMENT))
                .unwrap_or(true)
    }

    fn native(&self) -> Option<&dyn NativeQueue> {
        Some(self)
    }
}

impl NativeQueue for Shareable {
    fn share(&self) -> usize {
        let mut state = self.state();
        match self.direct(&mut state) {
            Ok(direct) => direct.handle(),
            Err(error) => {
                tracing::error!(%error, "there is no command list to show");
                0
            }
        }
    }
}
