//! Storages: the memory behind buffers and their sub-buffers.

use super::late;
use crate::abi::failure::Result;
use crate::abi::lock::Lock;
use crate::context::ContextState;
use crate::discovery::Device;
use crate::memory::replicas::{MemoryUse, Replica, Replicas, Tracked};
use crate::queue::Queue;
use crate::queue::destination::Destination;
use crate::queue::end::Users;
use crate::queue::host_function::wait_while;
use crate::tuning::LARGEST_VECTOR_BYTES;
use crosshandle::{
    Access, AllocationOptions, Command, Context, Event, Memory, MemoryKind, MemoryRange,
};
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use unified_runtime_sys::{
    UR_MEM_FLAG_ALLOC_HOST_POINTER, UR_MEM_FLAG_USE_HOST_POINTER, ur_mem_flags_t,
};

/// Time for which releasing a buffer over the user's memory waits for the commands that use the
/// buffer.
///
/// Users free their memory after the release. Most submitted commands complete within this time. If
/// a command takes longer, the contents are written back after the release.
const BUFFER_RELEASE_GRACE: Duration = Duration::from_millis(200);

/// The memory behind a buffer and its sub-buffers. Commands keep the storage alive until they are
/// complete.
pub(super) struct Storage {
    context: Context,
    len: usize,
    backing: Backing,
    /// The queues whose commands use the memory. They are recorded only if the memory mirrors the
    /// user's memory.
    pub(super) users: Users,
    /// Whether the adapter has returned a native handle for this storage.
    pub(super) is_given: AtomicBool,
}

/// A storage that mirrors the user's memory writes its contents back, so it must record which
/// queues use it.
impl Tracked for Storage {
    fn prepare(&self, queue: &Queue, _used: &MemoryUse) -> Result<Vec<Event>> {
        self.fill_mirror()?;
        self.users.note(queue);
        Ok(Vec::new())
    }

    fn is_moving(&self) -> bool {
        false
    }

    fn used(&self, _event: &Event) {}
}

/// The memory of a buffer on one of several devices.
impl Replica for Memory {
    type Layout = usize;

    const SERVES_PEERS: bool = true;

    fn create(context: &Context, len: &usize) -> Result<Self> {
        let options = AllocationOptions::new(*len).align(LARGEST_VECTOR_BYTES);
        Ok(context.allocate_with(options)?)
    }

    fn len(len: &usize) -> usize {
        *len
    }

    fn read(&self, to: MemoryRange) -> Result<Command> {
        Ok(Command::copy(self.all(), to)?)
    }

    fn write(&self, from: MemoryRange) -> Result<Command> {
        Ok(Command::copy(from, self.all())?)
    }

    fn copy_to(&self, to: &Self) -> Option<Result<Command>> {
        Some(Command::copy(self.all(), to.all()).map_err(Into::into))
    }
}

/// The kind of memory that a storage consists of.
enum Backing {
    Allocated {
        memory: Memory,
        /// Whether the host can access the memory directly.
        is_direct: bool,
    },
    /// Memory on each device that uses the buffer.
    Replicated(Arc<Replicas<Memory>>),
    /// The user's memory, which the device can access directly.
    User(User),
    /// An allocation in the context, and its address. `range` keeps the allocation alive.
    Adopted {
        range: MemoryRange,
        start: User,
        is_direct: bool,
    },
    /// Memory that was allocated to mirror the user's memory. The contents are copied from the
    /// user's memory before the first command. They are copied to the user's memory when the buffer
    /// is mapped, and when the storage is dropped.
    Mirror {
        memory: Arc<Memory>,
        user: User,
        /// Whether the contents have been copied from the user's memory.
        is_filled: Lock<bool>,
    },
}

/// The address of memory that the storage does not own.
#[derive(Clone, Copy)]
struct User(NonNull<u8>);

// SAFETY: holding an address accesses no memory. The user must order the commands that access the
// memory.
unsafe impl Send for User {}
// SAFETY: holding an address accesses no memory. The user must order the commands that access the
// memory.
unsafe impl Sync for User {}

/// The host's access path to a storage.
pub(super) enum View {
    /// The host accesses the memory directly, at this address.
    Direct(*mut u8),
    /// The host accesses the user's memory at this address. Commands copy the contents between the
    /// user's memory and the storage, before and after the access.
    Mirror(*mut u8),
    /// The host can access only a copy of the contents, for which the caller must allocate memory.
    None,
}

impl Storage {
    /// Creates a storage from new memory or from the user's memory.
    ///
    /// `is_direct` specifies whether the host and the device can access each other's memory
    /// directly. `takes_system_memory` specifies whether all devices in the context can access all
    /// host memory directly. If `is_shared` is true, the memory is host memory, which all devices
    /// of the context can access.
    ///
    /// # Safety
    /// `pointer` must be valid for reads of `len` bytes. If the flags request use of the user's
    /// memory, `pointer` must also be valid for writes, and must stay valid as long as the storage
    /// exists.
    pub(super) unsafe fn create(
        context: &Context,
        len: usize,
        flags: ur_mem_flags_t,
        pointer: Option<NonNull<u8>>,
        (is_direct, takes_system_memory): (bool, bool),
        is_shared: bool,
    ) -> Result<Arc<Self>> {
        let is_user = flags & UR_MEM_FLAG_USE_HOST_POINTER != 0;
        let backing = match pointer.map(User) {
            Some(user) if is_user && (is_direct || takes_system_memory) => Backing::User(user),
            pointer => {
                let is_host = is_shared || flags & UR_MEM_FLAG_ALLOC_HOST_POINTER != 0;
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
                if let Some(user) = pointer
                    && !is_user
                {
                    // SAFETY: the caller ensures that the user's memory is valid for reads of `len`
                    // bytes.
                    unsafe { fill(context, &memory, is_direct, user) }?;
                }
                match pointer {
                    Some(user) if is_user => Backing::Mirror {
                        memory: Arc::new(memory),
                        user,
                        is_filled: Lock::default(),
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

    /// Creates a storage with memory on each device that uses it. Copies the contents from
    /// `pointer`, if there is one.
    ///
    /// # Safety
    /// `pointer` must be valid for reads of `len` bytes.
    pub(super) unsafe fn replicated(
        context: &Arc<ContextState>,
        len: usize,
        pointer: Option<NonNull<u8>>,
    ) -> Result<Arc<Self>> {
        let replicas = Replicas::new(context, len);
        if let Some(user) = pointer.map(User) {
            replicas.fill(user.range(0, len))?;
        }
        Ok(Arc::new(Self {
            context: context.device(0).1.clone(),
            len,
            backing: Backing::Replicated(replicas),
            users: Users::default(),
            is_given: AtomicBool::new(false),
        }))
    }

    /// Creates a storage from the context's memory that starts at `start`. `is_direct` specifies
    /// whether the host and the device can access each other's memory directly.
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

    /// Returns the length of the storage in bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns whether only the device of [`context`](Self::context), its parts and its peers can
    /// access the memory directly.
    pub(super) fn is_on_device(&self) -> bool {
        matches!(
            &self.backing,
            Backing::Adopted {
                is_direct: false,
                ..
            }
        )
    }

    /// Returns the context in which the memory was allocated.
    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    /// Returns the device address of the memory for a native handle. If each device has its own
    /// memory, pins the storage to a device first.
    pub(super) fn native_address(&self, device: &Device) -> Result<usize> {
        if let Backing::Replicated(replicas) = &self.backing {
            return Ok(replicas.pin(device)?.as_ptr().addr());
        }
        self.fill_mirror()?;
        Ok(self.address().unwrap_or_default())
    }

    /// Returns the device address of the memory. Returns `None` if each device has its own memory.
    pub(super) fn address(&self) -> Option<usize> {
        Some(match &self.backing {
            Backing::Replicated(replicas) => replicas.pinned()?.as_ptr().addr(),
            Backing::Allocated { memory, .. } => memory.as_ptr().addr(),
            Backing::Mirror { memory, .. } => memory.as_ptr().addr(),
            Backing::User(start) | Backing::Adopted { start, .. } => start.0.addr().get(),
        })
    }

    /// Returns part of the storage as a memory range for a command with this access. The caller
    /// must have checked the bounds.
    pub(super) fn range(
        self: &Arc<Self>,
        destination: &dyn Destination,
        offset: usize,
        len: usize,
        access: Access,
    ) -> Result<MemoryRange> {
        let is_written = access == Access::ReadWrite;
        Ok(match &self.backing {
            Backing::Replicated(replicas) => {
                let (replica, memory) = replicas.on(destination.device())?;
                destination.note(MemoryUse {
                    object: Arc::clone(replicas) as _,
                    is_written,
                    replica,
                })?;
                memory.range(offset..offset + len)?
            }
            Backing::Allocated { memory, .. } => memory.range(offset..offset + len)?,
            Backing::Adopted { range, .. } => range.range(offset..offset + len)?,
            Backing::User(user) => user.range(offset, len),
            // The returned range keeps the storage alive. The storage is dropped after the last
            // command, and then writes its contents back.
            Backing::Mirror { memory, .. } => {
                destination.note(MemoryUse {
                    object: Arc::clone(self) as _,
                    is_written,
                    replica: 0,
                })?;
                memory
                    .range(offset..offset + len)?
                    .keeping(Arc::clone(self))
            }
        })
    }

    /// Copies the contents from the mirrored user's memory, if they have not been copied yet. Until
    /// then, the user may change them.
    fn fill_mirror(&self) -> Result<()> {
        if let Backing::Mirror {
            memory,
            user,
            is_filled,
        } = &self.backing
        {
            let mut is_filled = is_filled.lock();
            if !*is_filled {
                copy(&self.context, memory.all(), user.range(0, self.len))?;
                *is_filled = true;
            }
        }
        Ok(())
    }

    /// Waits until no command uses the memory, for at most [`BUFFER_RELEASE_GRACE`]. Only waits if
    /// the storage mirrors the user's memory.
    ///
    /// The user may free its memory when the last buffer has been released and the last command is
    /// complete. If a command is still running after the wait, the write-back happens when the
    /// queues have completed their commands.
    fn finish_use(&self) {
        let Backing::Mirror { memory, .. } = &self.backing else {
            return;
        };
        let began = Instant::now();
        wait_while(|| memory.is_in_use() && began.elapsed() < BUFFER_RELEASE_GRACE);
        if memory.is_in_use() {
            // The background job must not keep the storage alive. Otherwise the job could drop the
            // storage, and write the contents back, after a release has found the memory unused.
            let memory = Arc::downgrade(memory);
            late::call_at_ends(&self.users, &self.context, move || {
                if let Some(memory) = memory.upgrade() {
                    // The query makes the device drop completed commands, and with them the
                    // storage.
                    memory.is_in_use();
                }
            });
        }
    }

    /// Returns a range of the user's memory that this storage mirrors. Returns `None` if the
    /// storage does not mirror the user's memory.
    pub(super) fn mirrored(self: &Arc<Self>, offset: usize, len: usize) -> Option<MemoryRange> {
        let Backing::Mirror { memory, user, .. } = &self.backing else {
            return None;
        };
        // The returned range keeps the storage alive and its memory in use, like the result of
        // `range`.
        let kept = (Arc::clone(self), memory.all());
        Some(user.range(offset, len).keeping(Arc::new(kept)))
    }

    /// Returns the host's access path at an offset: a direct pointer, the mirrored user memory, or
    /// a copy that must be allocated.
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
            Backing::Allocated { .. } | Backing::Adopted { .. } | Backing::Replicated(_) => {
                View::None
            }
            Backing::Mirror { user, .. } => View::Mirror(user.0.as_ptr().wrapping_add(offset)),
        })
    }
}

impl User {
    /// Returns a memory range of `len` bytes that starts at an offset from this address.
    fn range(self, offset: usize, len: usize) -> MemoryRange {
        // SAFETY: the range is inside the buffer's memory. The creator of the buffer guarantees
        // that this memory is valid until the last command that uses it is complete.
        unsafe { MemoryRange::from_raw_parts(self.0.add(offset), len, Access::ReadWrite) }
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        let Backing::Mirror {
            memory,
            user,
            is_filled,
        } = &mut self.backing
        else {
            return;
        };
        if !*is_filled.get_mut() {
            // No command has used the buffer, so the user's memory has the contents.
            return;
        }
        let written = copy(&self.context, user.range(0, self.len), memory.all());
        if let Err(failure) = written {
            tracing::error!(
                ?failure,
                "a buffer's contents did not reach the user's memory"
            );
        }
    }
}

/// A buffer's reference to its storage. Dropping it waits for the commands first, and then releases
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

/// Copies the user's bytes to new memory.
///
/// # Safety
/// The user's memory must be valid for reads of `memory.len()` bytes.
unsafe fn fill(context: &Context, memory: &Memory, is_direct: bool, user: User) -> Result<()> {
    if !is_direct {
        return copy(context, memory.all(), user.range(0, memory.len()));
    }
    let to = memory.bytes()?.as_ptr();
    // SAFETY: the caller ensures that the user's memory is readable. The destination is new, mapped
    // and of the same length, and no command uses it yet.
    unsafe { ptr::copy_nonoverlapping(user.0.as_ptr(), to, memory.len()) };
    Ok(())
}

/// Copies memory on a new queue of the device, and waits until the copy is complete.
fn copy(context: &Context, to: MemoryRange, from: MemoryRange) -> Result<()> {
    let queue = context.create_queue()?;
    queue.submit(Command::copy(from, to)?)?;
    Ok(queue.finish()?)
}
