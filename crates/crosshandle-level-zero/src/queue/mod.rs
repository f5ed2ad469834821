//! Queues: one command list, or several if commands may run in any order.

mod append;
mod command;
mod command_list;
mod completion;
mod drain;
mod fences;
mod in_flight;
mod list_thread;
mod shared_list;
mod work;

pub(super) use drain::Drain;

use super::device::Gpu;
use super::driver::{DriverContext, EventHandle, List};
use super::tuning::FENCE_WAIT_SLICE;
use command_list::CommandList;
use completion::CompletionFlag;
use crosshandle_hal::{BackendQueue, NativeQueue, Submission, Work};
use crosshandle_os::process;
use crosshandle_types::QueueOrder;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::{Deadline, Mutex};
use shared_list::{SharedList, SharedPosition};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use work::Staging;

/// Maximum number of lists of an out-of-order queue while no command waits for the host. Intel's
/// GPUs have at most four compute engines.
const MAX_UNBLOCKED_LISTS: usize = 4;

/// Maximum number of lists of an out-of-order queue. Once this many commands wait for the host,
/// later commands are held up.
const MAX_LISTS: usize = 32;

/// Time that a list without commands may take to signal a fence before the queue is reported as
/// busy. A list takes microseconds if the program's own commands have finished. On a loaded
/// machine, a short timeout reports an idle queue as busy.
const IDLE_CHECK_TIMEOUT: Duration = Duration::from_millis(100);

/// The state that all lists of a queue share.
pub(super) struct QueueCommon {
    gpu: Arc<Gpu>,
    context: Arc<DriverContext>,
    drain: Arc<Drain>,
    /// The first error of a command without an event. The next caller of `finish` takes it.
    first_error: Mutex<Option<Error>>,
}

impl QueueCommon {
    pub(super) fn new(
        gpu: &Arc<Gpu>,
        context: &Arc<DriverContext>,
        drain: &Arc<Drain>,
    ) -> Arc<Self> {
        Arc::new(Self {
            gpu: Arc::clone(gpu),
            context: Arc::clone(context),
            drain: Arc::clone(drain),
            first_error: Mutex::default(),
        })
    }

    fn keep_error(&self, error: Error) {
        self.first_error.lock().get_or_insert(error);
    }

    fn take_error(&self) -> Result<()> {
        self.first_error.lock().take().map_or(Ok(()), Err)
    }

    /// Allocates the resources that a command may need, so that nothing is allocated under a lock.
    /// Stocks fences, and returns the command's staging memory.
    #[inline]
    fn prepare(&self, work: &Work) -> Result<Staging> {
        self.context.stock_fences();
        work::staging(&self.gpu, &self.context, work)
    }

    /// Waits until a list signals a fence.
    fn wait_for_fence(&self, fence: EventHandle) -> Result<()> {
        while !self.context.wait_for_fence(fence, FENCE_WAIT_SLICE)? {}
        Ok(())
    }
}

/// Creates a queue.
pub(super) fn create(common: Arc<QueueCommon>, order: QueueOrder) -> Box<dyn BackendQueue> {
    let list = CommandList::new(&common);
    match order {
        QueueOrder::InOrder => Box::new(OrderedQueue {
            list,
            shared: OnceLock::new(),
            sharing: Mutex::default(),
            common,
        }),
        QueueOrder::OutOfOrder => Box::new(UnorderedQueue {
            state: Mutex::new(UnorderedState {
                lists: vec![Arc::new(list)],
                ..UnorderedState::default()
            }),
            common,
        }),
    }
}

/// Creates a queue on a list of the program.
pub(super) fn adopt(common: Arc<QueueCommon>, list: List) -> Result<Box<dyn BackendQueue>> {
    let own_list = CommandList::new(&common);
    own_list.shut()?;
    Ok(Box::new(OrderedQueue {
        list: own_list,
        shared: OnceLock::from(SharedList::new(&common, list)),
        sharing: Mutex::default(),
        common,
    }))
}

/// Returns an error in a forked child. The child has no threads, and its copies of locks may be
/// held forever.
fn check_fork() -> Result<()> {
    match process::is_forked() {
        true => Err(Error::forked()),
        false => Ok(()),
    }
}

fn timed_out() -> Error {
    Error::TimedOut("waiting for a queue")
}

/// Returns the driver's handle of a shared list, or 0 if the list could not be created.
fn handle_of(list: Result<&SharedList>) -> usize {
    match list {
        Ok(list) => list.handle(),
        Err(error) => {
            tracing::error!(%error, "there is no command list to show");
            0
        }
    }
}

/// Returns whether a list has passed a position. A list without commands of the program soon has,
/// so this waits briefly.
fn is_past(position: Result<SharedPosition>) -> bool {
    position.is_ok_and(|position| position.wait(Deadline::after(IDLE_CHECK_TIMEOUT)))
}

/// A queue that runs commands one after the other.
struct OrderedQueue {
    list: CommandList,
    /// The list that the program appends to as well. It is created when the program first asks for
    /// it. From then on, all commands go to this list, and `list` is shut.
    shared: OnceLock<SharedList>,
    /// Held while `shared` is created, so that only one list is created.
    sharing: Mutex<()>,
    common: Arc<QueueCommon>,
}

impl OrderedQueue {
    /// Returns the list that the program may append to. All earlier submissions run before the
    /// commands that are appended to it.
    #[cold]
    fn shared_list(&self) -> Result<&SharedList> {
        if let Some(shared) = self.shared.get() {
            return Ok(shared);
        }
        let shared = SharedList::create(&self.common)?;
        let _sharing = self.sharing.lock();
        if let Some(shared) = self.shared.get() {
            return Ok(shared);
        }
        let placed = self.list.shut().and_then(|before| match before {
            Some(before) => shared.come_after(before),
            None => Ok(()),
        });
        if let Err(error) = placed {
            self.list.reopen();
            return Err(error);
        }
        Ok(self.shared.get_or_init(|| shared))
    }
}

impl BackendQueue for OrderedQueue {
    #[inline]
    fn submit(&self, submission: &mut Submission) -> Result<()> {
        check_fork()?;
        let is_native = matches!(submission.work, Work::Native(_));
        if self.shared.get().is_none() && !is_native && self.list.submit(submission)? {
            return Ok(());
        }
        let shared = self.shared_list()?;
        let staging = self.common.prepare(&submission.work);
        shared.submit(submission, staging, Vec::new()).map(drop)
    }

    fn flush(&self) -> Result<()> {
        // Immediate lists run all their commands without a flush.
        Ok(())
    }

    fn finish(&self, deadline: Deadline) -> Result<()> {
        check_fork()?;
        // This call does not wait for commands that other threads submit meanwhile.
        let count = self.list.submitted();
        let position = self.shared.get().map(SharedList::position).transpose()?;
        let is_done = self.list.finish(count, deadline)
            && position.is_none_or(|position| position.wait(deadline));
        match is_done {
            true => self.common.take_error(),
            false => Err(timed_out()),
        }
    }

    fn is_idle(&self) -> bool {
        if process::is_forked() {
            return true;
        }
        if !self.list.is_idle() {
            self.list.look();
            return false;
        }
        let is_idle = |shared: &SharedList| shared.is_idle() && is_past(shared.position());
        self.shared.get().is_none_or(is_idle)
    }

    fn native(&self) -> Option<&dyn NativeQueue> {
        Some(self)
    }
}

impl NativeQueue for OrderedQueue {
    fn share(&self) -> usize {
        handle_of(self.shared_list())
    }
}

/// A queue that runs each command as soon as its waits and the barriers allow.
struct UnorderedQueue {
    common: Arc<QueueCommon>,
    /// Held during a submission, from the search for the commands that come before it until it has
    /// its place in a list. Appending waits for nothing. Only the first command of a list creates
    /// the driver's list under this lock. This lock is taken before a list's locks.
    state: Mutex<UnorderedState>,
}

#[derive(Default)]
struct UnorderedState {
    lists: Vec<Arc<CommandList>>,
    /// The list that the program appends to as well. It is created when the program first asks for
    /// it. From then on, barriers go to this list.
    shared: Option<SharedList>,
    /// Lists for native commands.
    native: Vec<SharedList>,
    /// The completion flags of commands that have not ended.
    unfinished: Vec<Arc<CompletionFlag>>,
    /// The completion flag of the latest barrier. All later commands run after it.
    barrier: Option<Arc<CompletionFlag>>,
    /// The index from which the search for the next list starts.
    next: usize,
}

impl UnorderedQueue {
    /// Chooses the list for a command. It prefers a list that no command blocks.
    fn choose_list(&self, state: &mut UnorderedState) -> usize {
        let count = state.lists.len();
        if let Some(idle) = state.lists.iter().position(|list| list.is_idle()) {
            return idle;
        }
        let mut order = (1..=count).map(|step| (state.next + step) % count);
        let unblocked = order.find(|index| !state.lists[*index].is_blocked());
        state.next = match unblocked {
            Some(unblocked) if count >= MAX_UNBLOCKED_LISTS => unblocked,
            None if count >= MAX_LISTS => (state.next + 1) % count,
            _ => {
                state.lists.push(Arc::new(CommandList::new(&self.common)));
                count
            }
        };
        state.next
    }

    /// Returns the list that the program may append to. The latest barrier runs before the commands
    /// that are appended to it.
    fn shared_list<'a>(&self, state: &'a mut UnorderedState) -> Result<&'a SharedList> {
        if state.shared.is_none() {
            let shared = SharedList::create(&self.common)?;
            if let Some(before) = state.barrier.clone().filter(|before| !before.is_raised()) {
                shared.come_after(before)?;
            }
            state.shared = Some(shared);
        }
        Ok(state.shared.as_ref().expect("made above"))
    }

    /// Chooses the list for a native command. It prefers an idle list, because a command that
    /// blocks a list may wait for work behind this command.
    fn choose_native_list<'a>(&self, state: &'a mut UnorderedState) -> Result<&'a SharedList> {
        let native = &mut state.native;
        let count = native.len();
        let index = match native.iter().position(SharedList::is_idle) {
            Some(idle) => idle,
            None if count >= MAX_LISTS => (state.next + 1) % count,
            None => {
                native.push(SharedList::create(&self.common)?);
                count
            }
        };
        state.next = index;
        Ok(&native[index])
    }
}

impl BackendQueue for UnorderedQueue {
    fn submit(&self, submission: &mut Submission) -> Result<()> {
        check_fork()?;
        let (after_earlier, before_later) = (submission.after_earlier, submission.before_later);
        let is_barrier = after_earlier || before_later;
        let is_native = matches!(submission.work, Work::Native(_));
        let staging = self.common.prepare(&submission.work);
        let mut state = self.state.lock();
        state.unfinished.retain(|flag| !flag.is_raised());
        let mut after = match after_earlier {
            true => state.unfinished.clone(),
            false => Vec::new(),
        };
        let barrier = state.barrier.as_ref().filter(|flag| !flag.is_raised());
        after.extend(barrier.cloned());
        let completion = if is_barrier && (is_native || state.shared.is_some()) {
            self.shared_list(&mut state)?
                .submit(submission, staging, after)?
        } else if is_native {
            let list = self.choose_native_list(&mut state)?;
            list.submit(submission, staging, after)?
        } else {
            let index = self.choose_list(&mut state);
            state.lists[index].submit_after(submission, staging, after)?
        };
        if before_later {
            state.barrier = Some(Arc::clone(&completion));
        }
        state.unfinished.push(completion);
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        // Immediate lists run all their commands without a flush.
        Ok(())
    }

    fn finish(&self, deadline: Deadline) -> Result<()> {
        check_fork()?;
        let state = self.state.lock();
        // This call does not wait for commands that other threads submit meanwhile.
        let lists = state.lists.iter();
        let counts: Vec<_> = lists
            .map(|list| (Arc::clone(list), list.submitted()))
            .collect();
        let shared = state.native.iter().chain(&state.shared);
        let positions: Vec<_> = shared.map(SharedList::position).collect::<Result<_>>()?;
        drop(state);
        let is_done = counts
            .iter()
            .all(|(list, count)| list.finish(*count, deadline))
            && positions.iter().all(|position| position.wait(deadline));
        match is_done {
            true => self.common.take_error(),
            false => Err(timed_out()),
        }
    }

    fn is_idle(&self) -> bool {
        if process::is_forked() {
            return true;
        }
        let state = self.state.lock();
        let busy = state.lists.iter().filter(|list| !list.is_idle());
        let mut shared = state.native.iter().chain(&state.shared);
        if busy.map(|list| list.look()).count() > 0 || !shared.all(SharedList::is_idle) {
            return false;
        }
        let position = state.shared.as_ref().map(SharedList::position);
        drop(state);
        position.is_none_or(is_past)
    }

    fn native(&self) -> Option<&dyn NativeQueue> {
        Some(self)
    }
}

impl NativeQueue for UnorderedQueue {
    fn share(&self) -> usize {
        handle_of(self.shared_list(&mut self.state.lock()))
    }
}
