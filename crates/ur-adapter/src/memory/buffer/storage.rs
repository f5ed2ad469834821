//! The memory of a buffer and its parts.

use super::late;
use crate::abi::failure::Result;
use crate::queue::Queue;
use crate::queue::destination::Destination;
use crate::queue::end::Users;
use crate::queue::host_function::wait_while;
use crate::tuning::{BUFFER_RELEASE_GRACE, LARGEST_VECTOR_BYTES};
use crosshandle::{Access, AllocationOptions, Command, Context, Memory, MemoryKind, MemoryRange};
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use unified_runtime_sys::{
    UR_MEM_FLAG_ALLOC_HOST_POINTER, UR_MEM_FLAG_USE_HOST_POINTER, ur_mem_flags_t,
};

/// The memory of a buffer. Commands keep it until they are done.
pub(super) struct Storage {
    context: Context,
    len: usize,
    backing: Backing,
    /// The queues whose commands use memory that stands for the user's.
    pub(super) users: Users,
    /// Whether the storage can be found by its native handle.
    pub(super) is_given: AtomicBool,
}

/// A buffer whose contents go back to the user's memory, so that it wants to know the queues that use it.
pub(crate) struct BufferUse<'a>(&'a Arc<Storage>);

/// A buffer that a recording uses, to be told of the queues that run it.
pub(crate) struct RecordedUse(Arc<Storage>);

impl BufferUse<'_> {
    /// Notes a queue.
    pub(crate) fn by(&self, queue: &Queue) {
        self.0.users.note(queue);
    }

    /// Returns the use, for a recording.
    pub(crate) fn recorded(&self) -> RecordedUse {
        RecordedUse(Arc::clone(self.0))
    }
}

impl RecordedUse {
    /// Notes where the recording is submitted to, before it is.
    pub(crate) fn by(&self, destination: &dyn Destination) {
        destination.note(BufferUse(&self.0));
    }

    /// Returns whether both are of one buffer.
    pub(crate) fn is_of(&self, buffer: &BufferUse<'_>) -> bool {
        Arc::ptr_eq(&self.0, buffer.0)
    }
}

/// The memory of a storage.
enum Backing {
    /// Allocated for the buffer.
    Allocated {
        memory: Memory,
        /// Whether the host uses the memory in place.
        is_direct: bool,
    },
    /// The user's memory, which the device uses in place.
    User(User),
    /// An allocation of the context, which the range keeps, and its start.
    Adopted {
        range: MemoryRange,
        start: User,
        is_direct: bool,
    },
    /// Allocated for the buffer, to stand for the user's memory, which gets the same contents when the
    /// buffer is mapped and when the storage goes.
    Mirror { memory: Arc<Memory>, user: User },
}

/// The start of memory that the user has a pointer to.
#[derive(Clone, Copy)]
struct User(NonNull<u8>);

// SAFETY: an address alone accesses nothing; the commands that do are the user's to order.
unsafe impl Send for User {}
// SAFETY: an address alone accesses nothing; the commands that do are the user's to order.
unsafe impl Sync for User {}

/// The way in which the host reaches a storage.
pub(super) enum View {
    /// At this address.
    Direct(*mut u8),
    /// At this address, after and before a copy.
    Mirror(*mut u8),
    /// Through a copy that is yet to be allocated.
    None,
}

impl Storage {
    /// Returns new memory, or the user's. `is_direct` says whether host and device use each other's memory
    /// in place, `takes_system_memory` whether all devices of the context do so with all of the host's.
    ///
    /// # Safety
    /// A pointer must be valid for reads of `len` bytes, and where the flags say that it is to be
    /// used also for writes and as long as the storage lives.
    pub(super) unsafe fn create(
        context: &Context,
        len: usize,
        flags: ur_mem_flags_t,
        pointer: Option<NonNull<u8>>,
        (is_direct, takes_system_memory): (bool, bool),
    ) -> Result<Arc<Self>> {
        let is_user = flags & UR_MEM_FLAG_USE_HOST_POINTER != 0;
        let backing = match pointer.map(User) {
            Some(user) if is_user && (is_direct || takes_system_memory) => Backing::User(user),
            pointer => {
                let is_host = flags & UR_MEM_FLAG_ALLOC_HOST_POINTER != 0;
                let kind = if is_host {
                    MemoryKind::Host
                } else {
                    MemoryKind::Device
                };
                let options = AllocationOptions::new(len)
                    .kind(kind)
                    .align(LARGEST_VECTOR_BYTES);
                let memory = context.allocate_with(options)?;
                let is_direct = is_host || is_direct;
                if let Some(user) = pointer {
                    // SAFETY: readable by the caller's promise.
                    unsafe { fill(context, &memory, is_direct, user) }?;
                }
                match pointer {
                    Some(user) if is_user => Backing::Mirror {
                        memory: Arc::new(memory),
                        user,
                    },
                    _ => Backing::Allocated { memory, is_direct },
                }
            }
        };
        Ok(Arc::new(Self {
            context: context.clone(),
            len,
            backing,
            users: Users::default(),
            is_given: AtomicBool::new(false),
        }))
    }

    /// Returns a storage of a part of the context's memory, which starts at this address. `is_direct` as in
    /// [`create`](Self::create).
    pub(super) fn adopt(
        context: &Context,
        start: NonNull<u8>,
        range: MemoryRange,
        is_direct: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            context: context.clone(),
            len: range.len(),
            backing: Backing::Adopted {
                range,
                start: User(start),
                is_direct,
            },
            users: Users::default(),
            is_given: AtomicBool::new(false),
        })
    }

    /// Returns the length in bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns whether only the context's own device can use the memory in place.
    pub(super) fn is_on_device(&self) -> bool {
        match &self.backing {
            Backing::Allocated { is_direct, .. } | Backing::Adopted { is_direct, .. } => !is_direct,
            Backing::Mirror { .. } => true,
            Backing::User(_) => false,
        }
    }

    /// Returns the context that the memory is in.
    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    /// Returns the address on the device.
    pub(super) fn address(&self) -> usize {
        match &self.backing {
            Backing::Allocated { memory, .. } => memory.as_ptr().addr(),
            Backing::Mirror { memory, .. } => memory.as_ptr().addr(),
            Backing::User(start) | Backing::Adopted { start, .. } => start.0.addr().get(),
        }
    }

    /// Returns a range of the memory on the device, for a command. The caller checked that it
    /// is inside.
    pub(super) fn range(
        self: &Arc<Self>,
        destination: &dyn Destination,
        offset: usize,
        len: usize,
    ) -> Result<MemoryRange> {
        Ok(match &self.backing {
            Backing::Allocated { memory, .. } => memory.range(offset..offset + len)?,
            Backing::Adopted { range, .. } => range.range(offset..offset + len)?,
            Backing::User(user) => user.range(offset, len),
            // The storage is kept, since its contents go back after the last command.
            Backing::Mirror { memory, .. } => {
                destination.note(BufferUse(self));
                memory
                    .range(offset..offset + len)?
                    .keeping(Arc::clone(self))
            }
        })
    }

    /// Waits a moment until no command uses the memory, if the storage's end means anything to the user:
    /// he may free his memory when the last buffer of it was released and the last command is done. If
    /// some command is not done then, has the queues tell when they are.
    fn finish_use(&self) {
        let Backing::Mirror { memory, .. } = &self.backing else {
            return;
        };
        let began = Instant::now();
        wait_while(|| memory.is_in_use() && began.elapsed() < BUFFER_RELEASE_GRACE);
        if memory.is_in_use() {
            // The storage itself must not be kept: its end would be here, after the release of its last
            // buffer has found it out of use.
            let memory = Arc::downgrade(memory);
            late::call_at_ends(&self.users, &self.context, move || {
                if let Some(memory) = memory.upgrade() {
                    // Asking lets commands that are done drop the storage.
                    memory.is_in_use();
                }
            });
        }
    }

    /// Returns a range of the user's memory that this storage mirrors.
    pub(super) fn mirrored(self: &Arc<Self>, offset: usize, len: usize) -> Option<MemoryRange> {
        let Backing::Mirror { memory, user } = &self.backing else {
            return None;
        };
        // As in `range`, the memory is in use until the storage is let go.
        let kept = (Arc::clone(self), memory.all());
        Some(user.range(offset, len).keeping(Arc::new(kept)))
    }

    /// Returns how the host reaches the memory that starts at an offset.
    pub(super) fn view(&self, offset: usize) -> Result<View> {
        Ok(match &self.backing {
            Backing::Allocated {
                memory,
                is_direct: true,
            } => View::Direct(memory.bytes()?.as_ptr().wrapping_add(offset)),
            Backing::User(start)
            | Backing::Adopted {
                start,
                is_direct: true,
                ..
            } => View::Direct(start.0.as_ptr().wrapping_add(offset)),
            Backing::Allocated { .. } | Backing::Adopted { .. } => View::None,
            Backing::Mirror { user, .. } => View::Mirror(user.0.as_ptr().wrapping_add(offset)),
        })
    }
}

impl User {
    /// Returns a range from an offset on.
    fn range(self, offset: usize, len: usize) -> MemoryRange {
        // SAFETY: the offset is inside the memory of the buffer, and the buffer's creator vouched for
        // that memory until the last command that uses it is done.
        unsafe { MemoryRange::from_raw_parts(self.0.add(offset), len, Access::ReadWrite) }
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        let Backing::Mirror { memory, user } = &self.backing else {
            return;
        };
        let written = copy(&self.context, user.range(0, self.len), memory.all());
        if let Err(failure) = written {
            tracing::error!(
                ?failure,
                "a buffer's contents did not reach the user's memory"
            );
        }
    }
}

/// A buffer's use of its storage, which ends in an orderly way.
pub(super) struct StorageUser(pub(super) Arc<Storage>);

impl Drop for StorageUser {
    fn drop(&mut self) {
        self.0.finish_use();
    }
}

impl Deref for StorageUser {
    type Target = Arc<Storage>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// Copies the user's bytes into new memory.
///
/// # Safety
/// The user's memory must be readable.
unsafe fn fill(context: &Context, memory: &Memory, is_direct: bool, user: User) -> Result<()> {
    if !is_direct {
        return copy(context, memory.all(), user.range(0, memory.len()));
    }
    let to = memory.bytes()?.as_ptr();
    // SAFETY: readable by the caller's promise; the destination is new, mapped and as long, and no
    // command uses it yet.
    unsafe { ptr::copy_nonoverlapping(user.0.as_ptr(), to, memory.len()) };
    Ok(())
}

/// Copies through the device, and waits for that.
fn copy(context: &Context, to: MemoryRange, from: MemoryRange) -> Result<()> {
    let queue = context.create_queue()?;
    queue.submit(Command::copy(from, to)?)?;
    Ok(queue.finish()?)
}
