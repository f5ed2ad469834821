//! Queues: one list, or several if order is free.

use super::device::Gpu;
use super::direct::{Direct, Mark};
use super::driver::{Core, List};
use super::entry::Over;
use super::lane::Lane;
use super::leaving::Leaving;
use crate::error::{Error, Result};
use crate::hal::{BackendQueue, NativeQueue, Submission, Work};
use crate::os::process;
use crate::types::QueueOrder;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Lists of a queue whose order is free, as long as none of them is held up.
const LANES: usize = 4;
/// The same if some are. With more commands that wait at the same time, some come after others.
const MOST_LANES: usize = 32;

/// How long a list that has nothing to do may take to say so.
const MOMENT: Duration = Duration::from_millis(100);

/// A new queue on a device.
pub(super) fn create(
    gpu: &Arc<Gpu>,
    core: &Arc<Core>,
    leaving: &Arc<Leaving>,
    order: QueueOrder,
) -> Box<dyn BackendQueue> {
    let common = Common::new(gpu, core, leaving);
    match order {
        QueueOrder::InOrder => Box::new(OrderedQueue {
            lane: common.new_lane(),
            direct: OnceLock::new(),
            sharing: Mutex::default(),
            common,
        }),
        QueueOrder::OutOfOrder => Box::new(FreeQueue {
            state: Mutex::new(State {
                lanes: vec![Arc::new(common.new_lane())],
                ..State::default()
            }),
            common,
        }),
    }
}

/// A queue on a list of the program's.
pub(super) fn adopt(
    gpu: &Arc<Gpu>,
    core: &Arc<Core>,
    leaving: &Arc<Leaving>,
    list: List,
) -> Result<Box<dyn BackendQueue>> {
    let common = Common::new(gpu, core, leaving);
    let lane = common.new_lane();
    lane.shut()?;
    Ok(Box::new(OrderedQueue {
        lane,
        direct: OnceLock::from(Direct::new(gpu, core, &common.notes, list)),
        sharing: Mutex::default(),
        common,
    }))
}

/// What all lists of a queue are made with.
struct Common {
    gpu: Arc<Gpu>,
    core: Arc<Core>,
    notes: Arc<Notes>,
}

impl Common {
    fn new(gpu: &Arc<Gpu>, core: &Arc<Core>, leaving: &Arc<Leaving>) -> Self {
        Self {
            gpu: Arc::clone(gpu),
            core: Arc::clone(core),
            notes: Arc::new(Notes {
                error: Mutex::default(),
                leaving: Arc::clone(leaving),
            }),
        }
    }

    fn new_lane(&self) -> Lane {
        Lane::new(&self.gpu, &self.core, &self.notes)
    }

    fn new_direct(&self) -> Result<Direct> {
        let list = List::create(&self.core, self.gpu.handle(), self.gpu.group())?;
        Ok(Direct::new(&self.gpu, &self.core, &self.notes, list))
    }
}

/// What a queue's lists tell others.
pub(super) struct Notes {
    /// The first error of a command that signals no event, for whoever finishes the queue.
    error: Mutex<Option<Error>>,
    pub(super) leaving: Arc<Leaving>,
}

impl Notes {
    fn error(&self) -> MutexGuard<'_, Option<Error>> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps an error, if it is the first.
    pub(super) fn add(&self, error: Error) {
        self.error().get_or_insert(error);
    }

    fn take(&self) -> Result<()> {
        self.error().take().map_or(Ok(()), Err)
    }
}

/// Refuses a forked child, where the threads are missing and locks may be held for ever.
fn check_fork() -> Result<()> {
    if process::is_forked() {
        return Err(Error::forked());
    }
    Ok(())
}

fn timed_out() -> Error {
    Error::TimedOut("waiting for a queue")
}

/// The list for the program to append to.
fn handle_of(direct: Result<&Direct>) -> usize {
    match direct {
        Ok(direct) => direct.handle(),
        Err(error) => {
            tracing::error!(%error, "there is no command list to show");
            0
        }
    }
}

/// The program's commands can't be counted: they are done when what comes after them is.
fn is_past(mark: Result<Mark>) -> bool {
    mark.is_ok_and(|mark| mark.wait(Some(Instant::now() + MOMENT)))
}

/// A queue that runs commands one after the other.
struct OrderedQueue {
    lane: Lane,
    /// What the program appends to as well, once it may: all later commands go there, and the lane
    /// is shut.
    direct: OnceLock<Direct>,
    /// Held by who makes that.
    sharing: Mutex<()>,
    common: Common,
}

impl OrderedQueue {
    /// The list that the program may append to. What was submitted before comes before what is
    /// appended to it.
    #[cold]
    fn direct(&self) -> Result<&Direct> {
        let _one = self.sharing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(direct) = self.direct.get() {
            return Ok(direct);
        }
        let direct = self.common.new_direct()?;
        let placed = self.lane.shut().and_then(|before| match before {
            Some(before) => direct.come_after(before),
            None => Ok(()),
        });
        if let Err(error) = placed {
            self.lane.open();
            return Err(error);
        }
        Ok(self.direct.get_or_init(|| direct))
    }
}

impl BackendQueue for OrderedQueue {
    #[inline]
    fn submit(&self, submission: &mut Submission) -> Result<()> {
        check_fork()?;
        let is_native = matches!(submission.work, Work::Native(_));
        if !is_native && self.lane.submit(submission)? {
            return Ok(());
        }
        self.direct()?.submit(submission, Vec::new()).map(drop)
    }

    fn flush(&self) -> Result<()> {
        // Immediate lists run whatever there is.
        Ok(())
    }

    fn finish(&self, deadline: Option<Instant>) -> Result<()> {
        check_fork()?;
        // What others submit meanwhile is not waited for.
        let count = self.lane.submitted();
        let mark = self.direct.get().map(Direct::mark).transpose()?;
        let is_done =
            self.lane.finish(count, deadline) && mark.is_none_or(|mark| mark.wait(deadline));
        if !is_done {
            return Err(timed_out());
        }
        self.common.notes.take()
    }

    fn is_idle(&self) -> bool {
        if process::is_forked() {
            return true;
        }
        if !self.lane.is_idle() {
            self.lane.look();
            return false;
        }
        let is_past_all = |direct: &Direct| direct.is_idle() && is_past(direct.mark());
        self.direct.get().is_none_or(is_past_all)
    }

    fn native(&self) -> Option<&dyn NativeQueue> {
        Some(self)
    }
}

impl NativeQueue for OrderedQueue {
    fn share(&self) -> usize {
        handle_of(self.direct())
    }
}

/// A queue that runs commands as soon as it can.
struct FreeQueue {
    common: Common,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    lanes: Vec<Arc<Lane>>,
    /// What the program appends to as well, once it may: barriers go there.
    direct: Option<Direct>,
    /// For commands of the program's own.
    natives: Vec<Direct>,
    /// The latest commands of the lists that are not over.
    latest: Vec<Arc<Over>>,
    /// The latest barrier: what all later commands come after.
    barrier: Option<Arc<Over>>,
    /// Where the search for a list begins.
    next: usize,
}

impl FreeQueue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lane for a command: one where nothing holds it up, if possible.
    fn choose(&self, state: &mut State) -> usize {
        let count = state.lanes.len();
        if let Some(idle) = state.lanes.iter().position(|lane| lane.is_idle()) {
            return idle;
        }
        let mut order = (1..=count).map(|step| (state.next + step) % count);
        let free = order.find(|index| !state.lanes[*index].is_held());
        state.next = match free {
            Some(free) if count >= LANES => free,
            None if count >= MOST_LANES => (state.next + 1) % count,
            _ => {
                state.lanes.push(Arc::new(self.common.new_lane()));
                count
            }
        };
        state.next
    }

    /// The list that the program may append to. The latest barrier comes before what is appended to
    /// it.
    fn direct<'a>(&self, state: &'a mut State) -> Result<&'a Direct> {
        if state.direct.is_none() {
            let direct = self.common.new_direct()?;
            if let Some(before) = state.barrier.clone().filter(|before| !before.is_over()) {
                direct.come_after(before)?;
            }
            state.direct = Some(direct);
        }
        Ok(state.direct.as_ref().expect("made above"))
    }

    /// A list where nothing holds up a command of the program's, if possible: what that waits for
    /// may be behind others.
    fn choose_native<'a>(&self, state: &'a mut State) -> Result<&'a Direct> {
        let natives = &mut state.natives;
        let count = natives.len();
        let index = match natives.iter().position(Direct::is_idle) {
            Some(idle) => idle,
            None if count >= MOST_LANES => (state.next + 1) % count,
            None => {
                natives.push(self.common.new_direct()?);
                count
            }
        };
        state.next = index;
        Ok(&natives[index])
    }
}

impl BackendQueue for FreeQueue {
    fn submit(&self, submission: &mut Submission) -> Result<()> {
        check_fork()?;
        let (after_earlier, before_later) = (submission.after_earlier, submission.before_later);
        let is_native = matches!(submission.work, Work::Native(_));
        let mut state = self.state();
        state.latest.retain(|over| !over.is_over());
        let mut after: Vec<_> = match after_earlier {
            true => state.latest.clone(),
            false => Vec::new(),
        };
        after.extend(state.barrier.clone().filter(|barrier| !barrier.is_over()));
        let is_barrier = after_earlier || before_later;
        let over = if is_barrier && (is_native || state.direct.is_some()) {
            self.direct(&mut state)?.submit(submission, after)?
        } else if is_native {
            self.choose_native(&mut state)?.submit(submission, after)?
        } else {
            let index = self.choose(&mut state);
            state.lanes[index].submit_after(submission, after)?
        };
        if before_later {
            state.barrier = Some(Arc::clone(&over));
        }
        state.latest.push(over);
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        // Immediate lists run whatever there is.
        Ok(())
    }

    fn finish(&self, deadline: Option<Instant>) -> Result<()> {
        check_fork()?;
        let state = self.state();
        // What others submit meanwhile is not waited for.
        let lanes = state.lanes.iter();
        let counts: Vec<_> = lanes
            .map(|lane| (Arc::clone(lane), lane.submitted()))
            .collect();
        let directs = state.natives.iter().chain(&state.direct);
        let marks: Vec<_> = directs.map(Direct::mark).collect::<Result<_>>()?;
        drop(state);
        let is_done = |(lane, count): &(Arc<Lane>, u64)| lane.finish(*count, deadline);
        if !counts.iter().all(is_done) || !marks.iter().all(|mark| mark.wait(deadline)) {
            return Err(timed_out());
        }
        self.common.notes.take()
    }

    fn is_idle(&self) -> bool {
        if process::is_forked() {
            return true;
        }
        let state = self.state();
        let busy = state.lanes.iter().filter(|lane| !lane.is_idle());
        let mut directs = state.natives.iter().chain(&state.direct);
        if busy.map(|lane| lane.look()).count() > 0 || !directs.all(Direct::is_idle) {
            return false;
        }
        let mark = state.direct.as_ref().map(Direct::mark);
        drop(state);
        mark.is_none_or(is_past)
    }

    fn native(&self) -> Option<&dyn NativeQueue> {
        Some(self)
    }
}

impl NativeQueue for FreeQueue {
    fn share(&self) -> usize {
        handle_of(self.direct(&mut self.state()))
    }
}
