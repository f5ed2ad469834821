//! The driver's handles to one piece of physical memory.
//!
//! Each handle can be mapped at one address at a time. Intel's driver has one kernel handle behind
//! all handles of this process to the same memory, and closes it with each of them. The first
//! handle that is destroyed therefore frees the memory for all. For this reason, handles are kept
//! for reuse as long as any of them is in use, and are then destroyed together.

use crate::device::Gpu;
use crate::driver::{DriverContext, PhysicalHandle, VirtualMemory};
use crate::ipc_handle::{LoanedDescriptor, identity};
use crosshandle_os::process;
use crosshandle_types::error::Result;
use crosshandle_types::sync::{Mutex, MutexGuard};
use level_zero_sys::ze_external_memory_type_flags_t;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

/// All handles of this process to one piece of memory on one device. They are destroyed when the
/// last handle is returned.
pub(super) struct PhysicalHandles {
    context: Arc<DriverContext>,
    handles: Mutex<Handles>,
    /// The key in the table of shared handles, once the memory has a descriptor.
    key: OnceLock<Key>,
}

#[derive(Default)]
struct Handles {
    /// All handles, with the descriptors by which they were imported.
    all: Vec<(PhysicalHandle, Option<LoanedDescriptor>)>,
    /// The handles that are not in use.
    free: Vec<PhysicalHandle>,
}

/// The device and inode numbers of the memory's descriptor, and the driver's handle of the GPU.
type Key = (u64, u64, usize);

/// Memory that has descriptors, so that this process may open it again. The lock is held while
/// handles are imported and destroyed, so that no thread opens memory that is about to be freed.
/// These calls wait for no command, because the memory is not mapped anywhere. This lock is taken
/// before the lock of a memory's handles.
static SHARED_HANDLES: Mutex<BTreeMap<Key, Arc<PhysicalHandles>>> = Mutex::new(BTreeMap::new());

fn shared_handles() -> MutexGuard<'static, BTreeMap<Key, Arc<PhysicalHandles>>> {
    SHARED_HANDLES.lock()
}

fn key(gpu: &Gpu, file: &OwnedFd) -> Result<Key> {
    let (device, inode) = identity(file)?;
    Ok((device, inode, gpu.handle().0.addr()))
}

impl PhysicalHandles {
    fn with(context: &Arc<DriverContext>, handles: Handles) -> Arc<Self> {
        Arc::new(Self {
            context: Arc::clone(context),
            handles: Mutex::new(handles),
            key: OnceLock::new(),
        })
    }

    /// Creates the set of handles for new memory.
    pub(super) fn new(context: &Arc<DriverContext>, handle: PhysicalHandle) -> Arc<Self> {
        let handles = Handles {
            all: vec![(handle, None)],
            free: Vec::new(),
        };
        Self::with(context, handles)
    }

    /// Returns the set of handles for the memory behind a descriptor, and a handle that is not in
    /// use.
    pub(super) fn import(
        gpu: &Gpu,
        context: &Arc<DriverContext>,
        len: usize,
        kind: ze_external_memory_type_flags_t,
        file: &OwnedFd,
    ) -> Result<(Arc<Self>, PhysicalHandle)> {
        let key = key(gpu, file)?;
        let mut shared = shared_handles();
        if let Some(known) = shared.get(&key)
            && known.is_of(context)
        {
            return Ok((Arc::clone(known), known.take(gpu, len, kind, file)?));
        }
        let handles = Self::with(context, Handles::default());
        let handle = handles.take(gpu, len, kind, file)?;
        handles.add_to(&mut shared, key);
        Ok((handles, handle))
    }

    /// Publishes the set, so that this process finds it when it opens the memory.
    pub(super) fn publish(self: &Arc<Self>, gpu: &Gpu, file: &OwnedFd) -> Result<()> {
        let key = key(gpu, file)?;
        self.add_to(&mut shared_handles(), key);
        Ok(())
    }

    fn add_to(self: &Arc<Self>, shared: &mut BTreeMap<Key, Arc<Self>>, key: Key) {
        shared.insert(key, Arc::clone(self));
        let _ = self.key.set(key);
    }

    /// Returns a handle that is not in use. If there is none, imports one by a descriptor of the
    /// memory.
    pub(super) fn take(
        &self,
        gpu: &Gpu,
        len: usize,
        kind: ze_external_memory_type_flags_t,
        file: &OwnedFd,
    ) -> Result<PhysicalHandle> {
        let mut handles = self.handles();
        if let Some(free) = handles.free.pop() {
            return Ok(free);
        }
        let import = |number| VirtualMemory(&self.context).import(gpu.handle(), len, kind, number);
        let (handle, loaned) = LoanedDescriptor::for_longer(file, import)?;
        handles.all.push((handle, Some(loaned)));
        Ok(handle)
    }

    /// Returns a handle to the set. The handle is not mapped anywhere.
    pub(super) fn put(&self, handle: PhysicalHandle) {
        if process::is_forked() {
            return;
        }
        let mut shared = shared_handles();
        let mut handles = self.handles();
        handles.free.push(handle);
        if handles.free.len() < handles.all.len() {
            return;
        }
        let all = std::mem::take(&mut *handles).all;
        drop(handles);
        for (handle, loaned) in all {
            self.context.release("physical memory", |context| {
                // SAFETY: the handle belongs to this set and is not mapped anywhere, because each
                // mapping keeps its handle.
                let destroy = || unsafe { VirtualMemory(context).destroy(handle) };
                match loaned {
                    Some(loaned) => loaned.end(destroy),
                    None => destroy(),
                }
            });
        }
        if let Some(key) = self.key.get()
            && shared
                .get(key)
                .is_some_and(|found| std::ptr::eq(&**found, self))
        {
            shared.remove(key);
        }
    }

    pub(super) fn is_of(&self, context: &Arc<DriverContext>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    fn handles(&self) -> MutexGuard<'_, Handles> {
        self.handles.lock()
    }
}
