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

/// The memory of a buffer. Commands keep it alive until they are done.
pub(super) struct Storage {
    context: Context,
    len: usize,
    backing: Backing,
    /// The queues whose commands use the memory, if it mirrors the user's memory.
    pub(super) users: Users,
    /// Whether the storage can be found by its native handle.
    pub(super) is_given: AtomicBool,
}

/// A use of a buffer whose contents are written back to the user's memory. The buffer must learn
/// which queues use it.
pub(crate) struct BufferUse<'a>(&'a Arc<Storage>);

/// A [`BufferUse`] in a recording. The buffer must learn which queues run the recording.
pub(crate) struct RecordedUse(Arc<Storage>);

impl BufferUse<'_> {
    /// Records that commands of a queue use the buffer.
    pub(crate) fn by(&self, queue: &Queue) {
        self.0.users.note(queue);
    }

    /// Converts the use to one that a recording can store.
    pub(crate) fn recorded(&self) -> RecordedUse {
        RecordedUse(Arc::clone(self.0))
    }
}

impl RecordedUse {
    /// Records that a run of the recording in a queue uses the buffer. Call it before the run is
    /// submitted.
    pub(crate) fn by(&self, destination: &dyn Destination) {
        destination.note(BufferUse(&self.0));
    }

    /// Returns whether both uses are of the same buffer.
    pub(crate) fn is_of(&self, buffer: &BufferUse<'_>) -> bool {
        Arc::ptr_eq(&self.0, buffer.0)
    }
}

enum Backing {
    Allocated {
        memory: Memory,
        /// Whether the host accesses the memory directly.
        is_direct: bool,
    },
    /// The user's memory, which the device accesses directly.
    User(User),
    /// An allocation of the context, and its address. The range keeps the allocation alive.
    Adopted {
        range: MemoryRange,
        start: User,
        is_direct: bool,
    },
    /// Memory that was allocated to mirror the user's memory. The contents are copied to the user's
    /// memory when the buffer is mapped, and when the storage ends.
    Mirror { memory: Arc<Memory>, user: User },
}

/// The address of memory that belongs to the user.
#[derive(Clone, Copy)]
struct User(NonNull<u8>);

// SAFETY: an address alone accesses nothing. The user must order the commands that access the
// memory.
unsafe impl Send for User {}
// SAFETY: an address alone accesses nothing. The user must order the commands that access the
// memory.
unsafe impl Sync for User {}

/// The way in which the host accesses a storage.
pub(super) enum View {
    /// The host accesses the memory directly, at this address.
    Direct(*mut u8),
    /// The host accesses the user's memory at this address. The contents are copied before and
    /// after the access.
    Mirror(*mut u8),
    /// The host accesses a copy in memory that is not allocated yet.
    None,
}

impl Storage {
    /// Creates a storage of new memory, or of the user's memory.
    ///
    /// `is_direct` says whether host and device access each other's memory directly.
    /// `takes_system_memory` says whether all devices of the context can access all host memory
    /// directly.
    ///
    /// # Safety
    /// A pointer must be valid for reads of `len` bytes. If the flags request the use of the user's
    /// memory, the pointer must also be valid for writes, and for as long as the storage lives.
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
                    // SAFETY: the caller ensures that the user's memory is readable.
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

    /// Creates a storage from memory of the context that starts at this address. `is_direct` says
    /// whether host and device access each other's memory directly.
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

    /// Returns whether only the context's own device can access the memory directly.
    pub(super) fn is_on_device(&self) -> bool {
        match &self.backing {
            Backing::Allocated { is_direct, .. } | Backing::Adopted { is_direct, .. } => !is_direct,
            Backing::Mirror { .. } => true,
            Backing::User(_) => false,
        }
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    pub(super) fn address(&self) -> usize {
        match &self.backing {
            Backing::Allocated { memory, .. } => memory.as_ptr().addr(),
            Backing::Mirror { memory, .. } => memory.as_ptr().addr(),
            Backing::User(start) | Backing::Adopted { start, .. } => start.0.addr().get(),
        }
    }

    /// Returns a range of the memory on the device, for a command. The caller has checked the
    /// bounds.
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
            // The range keeps the storage alive. Its contents are written back after the last
            // command.
            Backing::Mirror { memory, .. } => {
                destination.note(BufferUse(self));
                memory
                    .range(offset..offset + len)?
                    .keeping(Arc::clone(self))
            }
        })
    }

    /// Waits briefly until no command uses the memory, if the storage mirrors the user's memory.
    ///
    /// The user may free its memory after the release of the last buffer and the end of the last
    /// command. If a command is still running after the wait, the queues notify this adapter when
    /// it is done.
    fn finish_use(&self) {
        let Backing::Mirror { memory, .. } = &self.backing else {
            return;
        };
        let began = Instant::now();
        wait_while(|| memory.is_in_use() && began.elapsed() < BUFFER_RELEASE_GRACE);
        if memory.is_in_use() {
            // The background job must not keep the storage alive. Otherwise the storage could end
            // there, after the release of its last buffer has found it unused.
            let memory = Arc::downgrade(memory);
            late::call_at_ends(&self.users, &self.context, move || {
                if let Some(memory) = memory.upgrade() {
                    // The query makes the device drop finished commands, and with them the storage.
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
        // As in `range`, the returned range keeps the storage alive, so the memory stays in use.
        let kept = (Arc::clone(self), memory.all());
        Some(user.range(offset, len).keeping(Arc::new(kept)))
    }

    /// Returns how the host accesses the memory at an offset.
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
    fn range(self, offset: usize, len: usize) -> MemoryRange {
        // SAFETY: the offset is inside the memory of the buffer. The buffer's creator guarantees
        // that this memory is valid until the last command that uses it is done.
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

/// A buffer's reference to its storage. The drop first waits for the commands, and then releases
/// the storage.
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
/// The user's memory must be readable for as many bytes as `memory` has.
unsafe fn fill(context: &Context, memory: &Memory, is_direct: bool, user: User) -> Result<()> {
    if !is_direct {
        return copy(context, memory.all(), user.range(0, memory.len()));
    }
    let to = memory.bytes()?.as_ptr();
    // SAFETY: the caller ensures that the user's memory is readable. The destination is new, mapped
    // and equally long, and no command uses it yet.
    unsafe { ptr::copy_nonoverlapping(user.0.as_ptr(), to, memory.len()) };
    Ok(())
}

/// Copies with a queue of the device, and waits until the copy is done.
fn copy(context: &Context, to: MemoryRange, from: MemoryRange) -> Result<()> {
    let queue = context.create_queue()?;
    queue.submit(Command::copy(from, to)?)?;
    Ok(queue.finish()?)
}
