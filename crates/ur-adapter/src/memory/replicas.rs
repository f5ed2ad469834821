//! Memory objects in contexts whose devices have separate memories.
//!
//! Such an object has one *replica* on each device that uses it. A replica is allocated when the
//! first command for its device is created. The object remembers which replicas have its current
//! contents. If a command uses the object on a device whose replica is out of date, the contents
//! are copied there first.
//!
//! - The copy starts when all commands that used the object before are complete, in any queue of
//!   the context. The command starts after the copy. Programs therefore order only their commands,
//!   as on one device.
//! - The copy runs in a queue of the context, not in the program's queue. It goes directly from
//!   device to device if the driver allows it, and through host memory otherwise.
//! - A thread that submits a command holds a lock of the context from the first use of a replica
//!   until the command is submitted. Without the lock, another thread could move the contents
//!   between the two steps.
//! - Commands in a recording use the replica of their device. Each run of the recording moves the
//!   contents there.
//! - A program that has a driver's handle of a replica may use the replica at any time. The object
//!   is then *pinned*: its contents stay in this replica.

use crate::abi::failure::{Failure, Result};
use crate::abi::lock::Lock;
use crate::context::ContextState;
use crate::discovery::Device;
use crate::queue::Queue;
use crosshandle::{AllocationOptions, Command, Event, EventOptions, MemoryKind, MemoryRange};
use std::collections::VecDeque;
use std::sync::Arc;
use unified_runtime_sys::ur_result_t;

/// A memory object that must know which commands use it.
pub(crate) trait Tracked: Send + Sync {
    /// Prepares the object for a command that is about to be submitted to a queue. Returns the
    /// events that the command must wait for.
    fn prepare(&self, queue: &Queue, used: &MemoryUse) -> Result<Vec<Event>>;

    /// Returns whether the object must know the events of its commands. If so, the caller holds the
    /// context's lock for moves from the call of [`prepare`](Self::prepare) to the call of
    /// [`used`](Self::used).
    fn is_moving(&self) -> bool;

    /// Records that a command uses the object. The command has been submitted and signals `event`.
    fn used(&self, event: &Event);
}

/// The use of a memory object by a command.
#[derive(Clone)]
pub(crate) struct MemoryUse {
    pub(crate) object: Arc<dyn Tracked>,
    /// Whether the command may write to the object.
    pub(crate) is_written: bool,
    /// The index of the replica that the command uses. 0 if the object has no replicas.
    pub(crate) replica: usize,
}

impl MemoryUse {
    /// Returns whether both values describe the same use of the same object.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.object), Arc::as_ptr(&other.object))
            && self.is_written == other.is_written
            && self.replica == other.replica
    }
}

/// The memory of an object on one device.
pub(crate) trait Replica: Sized + Send + Sync + 'static {
    /// The properties that all replicas of an object share.
    type Layout: Send + Sync;

    /// Whether other devices can use a replica if the driver lets them access its device's memory.
    const SERVES_PEERS: bool;

    /// Allocates a replica on a device.
    fn create(context: &crosshandle::Context, layout: &Self::Layout) -> Result<Self>;

    /// Returns the size of the contents in bytes.
    fn len(layout: &Self::Layout) -> usize;

    /// Creates a command that copies the contents to host memory.
    fn read(&self, to: MemoryRange) -> Result<Command>;

    /// Creates a command that copies the contents from host memory.
    fn write(&self, from: MemoryRange) -> Result<Command>;

    /// Creates a command that copies the contents to a replica on another device, which can access
    /// the memory of this replica's device. Returns `None` if only copies through host memory are
    /// possible.
    fn copy_to(&self, to: &Self) -> Option<Result<Command>>;
}

/// The replicas of a memory object.
pub(crate) struct Replicas<T: Replica> {
    context: Arc<ContextState>,
    layout: T::Layout,
    state: Lock<State<T>>,
}

struct State<T> {
    /// The replicas, by the index of their memory in the context.
    replicas: Vec<Option<Arc<T>>>,
    /// Whether each replica has the current contents, or will have them after its pending move. All
    /// are false until a command writes the object.
    is_current: Vec<bool>,
    /// The events of commands and moves that may still use a replica.
    uses: Vec<Event>,
    /// The moves that may be pending, in the order of their submission.
    moves: VecDeque<Move>,
    /// The index of the only replica that commands use, if the object is pinned.
    pinned: Option<usize>,
}

/// A copy of the contents from one replica to another.
struct Move {
    from: usize,
    to: usize,
    done: Event,
}

impl<T: Replica> Replicas<T> {
    /// Creates an object without replicas.
    pub(crate) fn new(context: &Arc<ContextState>, layout: T::Layout) -> Arc<Self> {
        let count = context.device_count();
        Arc::new(Self {
            context: Arc::clone(context),
            layout,
            state: Lock::new(State {
                replicas: (0..count).map(|_| None).collect(),
                is_current: vec![false; count],
                uses: Vec::new(),
                moves: VecDeque::new(),
                pinned: None,
            }),
        })
    }

    /// Creates an object with a replica on the context's first device. `is_current` says whether
    /// the replica has contents.
    pub(crate) fn starting_with(
        context: &Arc<ContextState>,
        layout: T::Layout,
        first: T,
        is_current: bool,
    ) -> Arc<Self> {
        let this = Self::new(context, layout);
        {
            let state = &mut *this.state.lock();
            state.replicas[0] = Some(Arc::new(first));
            state.is_current[0] = is_current;
        }
        this
    }

    /// Returns the properties that all replicas share.
    pub(crate) fn layout(&self) -> &T::Layout {
        &self.layout
    }

    /// Returns the replica for commands on a device, and its index. Allocates the replica if it
    /// does not exist.
    ///
    /// # Errors
    /// Returns `INVALID_DEVICE` for a device that is not in the context. Returns
    /// `INVALID_MEM_OBJECT` if the object is pinned to another device whose memory this device
    /// cannot access.
    pub(crate) fn on(&self, device: &Device) -> Result<(usize, Arc<T>)> {
        let mut state = self.state.lock();
        let index = self.index(&state, device)?;
        Ok((index, self.replica(&mut state, index)?))
    }

    /// Copies host memory to a new object, and waits until the copy is complete.
    pub(crate) fn fill(&self, from: MemoryRange) -> Result<()> {
        let replica = self.replica(&mut self.state.lock(), 0)?;
        let done = self.event(0)?;
        self.context
            .copies(0)?
            .submit(replica.write(from)?.signal(&done))?;
        done.wait()?;
        self.state.lock().is_current[0] = true;
        Ok(())
    }

    /// Pins the object to a device, because the program receives a driver's handle of the replica.
    /// Waits until the replica has the current contents. If the object is already pinned, returns
    /// the pinned replica.
    ///
    /// # Errors
    /// Returns the same errors as [`on`](Self::on).
    pub(crate) fn pin(&self, device: &Device) -> Result<Arc<T>> {
        let (replica, waits) = {
            let _moving = self.context.moving.lock();
            let state = &mut *self.state.lock();
            let index = match state.pinned {
                Some(index) => index,
                None => self.index(state, device)?,
            };
            let waits = self.bring(state, index, true)?;
            state.pinned = Some(index);
            (self.replica(state, index)?, waits)
        };
        waits.iter().try_for_each(Event::wait)?;
        Ok(replica)
    }

    /// Returns the replica to which the object is pinned. Returns `None` if the object is not
    /// pinned.
    pub(crate) fn pinned(&self) -> Option<Arc<T>> {
        let state = self.state.lock();
        state.pinned.and_then(|index| state.replicas[index].clone())
    }

    /// Returns the index of the replica for commands on a device.
    fn index(&self, state: &State<T>, device: &Device) -> Result<usize> {
        let own = self.context.memory_of(device).ok_or_else(|| {
            Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_DEVICE,
                "the memory object's context was not created with this device",
            )
        })?;
        match state.pinned {
            Some(pinned) if pinned != own => {
                let home = self.context.device(pinned).0.inner();
                if T::SERVES_PEERS && device.inner().reaches(home) {
                    return Ok(pinned);
                }
                Err(pinned_elsewhere())
            }
            _ => Ok(own),
        }
    }

    fn replica(&self, state: &mut State<T>, index: usize) -> Result<Arc<T>> {
        if let Some(replica) = &state.replicas[index] {
            return Ok(Arc::clone(replica));
        }
        let replica = Arc::new(T::create(self.context.device(index).1, &self.layout)?);
        Ok(Arc::clone(state.replicas[index].insert(replica)))
    }

    fn event(&self, index: usize) -> Result<Event> {
        let options = EventOptions::new().shareable(false);
        Ok(self.context.device(index).1.create_event_with(options)?)
    }

    /// Makes a replica current for a command that is submitted next. Returns the events of the
    /// moves that the command must wait for: the latest move to this replica, and, if the command
    /// may write, the moves from it.
    fn bring(&self, state: &mut State<T>, index: usize, is_written: bool) -> Result<Vec<Event>> {
        state.settle_moves();
        let replica = self.replica(state, index)?;
        if !state.is_current[index]
            && let Some(from) = state.is_current.iter().position(|is_current| *is_current)
        {
            let source = self.replica(state, from)?;
            state.forget_ended();
            let done = self.copy((&source, from), (&replica, index), &state.uses)?;
            // The move waits for all earlier uses, so later moves need to wait only for this one.
            state.uses = vec![done.clone()];
            let to = index;
            state.moves.push_back(Move { from, to, done });
        }
        if is_written {
            state.is_current.fill(false);
        }
        state.is_current[index] = true;
        let to_it = state.moves.iter().rfind(|it| it.to == index);
        let from_it = state
            .moves
            .iter()
            .filter(|it| is_written && it.from == index);
        Ok(to_it
            .into_iter()
            .chain(from_it)
            .map(|it| it.done.clone())
            .collect())
    }

    /// Submits a copy of the contents that follows the events in `after`. Returns the event of the
    /// copy.
    fn copy(
        &self,
        (source, from): (&T, usize),
        (target, to): (&T, usize),
        after: &[Event],
    ) -> Result<Event> {
        let follow = |command: Command| after.iter().fold(command, Command::after_submitted);
        let done = self.event(to)?;
        let (near, far) = (self.context.device(from), self.context.device(to));
        if far.0.inner().reaches(near.0.inner())
            && let Some(command) = source.copy_to(target)
        {
            self.context
                .copies(to)?
                .submit(follow(command?).signal(&done))?;
            return Ok(done);
        }
        let options = AllocationOptions::new(T::len(&self.layout)).kind(MemoryKind::Host);
        let staging = near.1.allocate_with(options)?;
        let read = self.event(from)?;
        let command = source.read(staging.all())?;
        self.context
            .copies(from)?
            .submit(follow(command).signal(&read))?;
        let command = target.write(staging.all())?.after_submitted(&read);
        self.context.copies(to)?.submit(command.signal(&done))?;
        Ok(done)
    }
}

impl<T> State<T> {
    /// Forgets the uses that are complete.
    fn forget_ended(&mut self) {
        self.uses
            .retain(|event| matches!(event.try_wait_submitted(), Ok(false)));
    }

    /// Forgets the moves that are complete.
    ///
    /// If a move has failed, the contents are still in the replica from which it started, because
    /// the commands that waited for the move have failed too.
    fn settle_moves(&mut self) {
        while let Some(first) = self.moves.front() {
            match first.done.try_wait_submitted() {
                Ok(false) => return,
                Ok(true) => drop(self.moves.pop_front()),
                Err(error) => {
                    tracing::warn!(%error, "the contents of a memory object were not copied to another device");
                    self.is_current.fill(false);
                    self.is_current[first.from] = true;
                    self.moves.clear();
                }
            }
        }
    }
}

fn pinned_elsewhere() -> Failure {
    Failure::new(
        ur_result_t::UR_RESULT_ERROR_INVALID_MEM_OBJECT,
        "the program has a native handle of this memory object, which therefore stays on another device",
    )
}

impl<T: Replica> Tracked for Replicas<T> {
    fn prepare(&self, _queue: &Queue, used: &MemoryUse) -> Result<Vec<Event>> {
        let state = &mut *self.state.lock();
        // A command may have been recorded before the object was pinned.
        match state.pinned {
            Some(pinned) if pinned != used.replica => Err(pinned_elsewhere()),
            _ => self.bring(state, used.replica, used.is_written),
        }
    }

    fn is_moving(&self) -> bool {
        true
    }

    fn used(&self, event: &Event) {
        let state = &mut *self.state.lock();
        if state.uses.len() == state.uses.capacity() {
            state.forget_ended();
        }
        state.uses.push(event.clone());
    }
}
