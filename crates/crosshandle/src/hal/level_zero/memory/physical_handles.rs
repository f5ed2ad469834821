//! The driver's handles to one piece of physical memory.
//!
//! Each is mapped at one place at a time, and the first that is destroyed ends the memory for all of
//! this process: Intel's driver has one number of the kernel's for them, which it closes with each.
//! So they are kept for reuse as long as any is used, and go together.

use crate::error::Result;
use crate::hal::level_zero::driver::{DriverContext, PhysicalHandle, VirtualMemory};
use crate::hal::level_zero::gpu::Gpu;
use crate::hal::level_zero::ipc_handle::{LoanedDescriptor, identity};
use crate::os::process;
use crate::sync::{Mutex, MutexGuard};
use level_zero_sys::ze_external_memory_type_flags_t;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

/// All handles of this process to one piece of memory on one device. It ends with the last that is
/// put back.
pub(super) struct PhysicalHandles {
    context: Arc<DriverContext>,
    handles: Mutex<Handles>,
    /// Under which it is found, once there is a descriptor of the memory.
    key: OnceLock<Key>,
}

#[derive(Default)]
struct Handles {
    /// With the descriptors that they were imported by.
    all: Vec<(PhysicalHandle, Option<LoanedDescriptor>)>,
    /// Those of them that nobody uses.
    free: Vec<PhysicalHandle>,
}

/// Device and inode of a descriptor of the memory, and the address of what the driver has for the
/// GPU.
type Key = (u64, u64, usize);

/// Those of which there are descriptors, so that they can be opened in this process again. The lock
/// is held while one ends, so that nobody opens what is about to go.
static SHARED_HANDLES: Mutex<BTreeMap<Key, Arc<PhysicalHandles>>> = Mutex::new(BTreeMap::new());

fn families() -> MutexGuard<'static, BTreeMap<Key, Arc<PhysicalHandles>>> {
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

    /// Of memory that was just made.
    pub(super) fn new(context: &Arc<DriverContext>, handle: PhysicalHandle) -> Arc<Self> {
        let handles = Handles {
            all: vec![(handle, None)],
            free: Vec::new(),
        };
        Self::with(context, handles)
    }

    /// What a descriptor leads to, and a handle to it that nobody uses.
    pub(super) fn import(
        gpu: &Gpu,
        context: &Arc<DriverContext>,
        len: usize,
        kind: ze_external_memory_type_flags_t,
        file: &OwnedFd,
    ) -> Result<(Arc<Self>, PhysicalHandle)> {
        let key = key(gpu, file)?;
        let mut families = families();
        if let Some(known) = families.get(&key)
            && known.is_of(context)
        {
            return Ok((Arc::clone(known), known.take(gpu, len, kind, file)?));
        }
        let family = Self::with(context, Handles::default());
        let handle = family.take(gpu, len, kind, file)?;
        family.add_to(&mut families, key);
        Ok((family, handle))
    }

    /// Lets whoever opens the memory in this process find it.
    pub(super) fn publish(self: &Arc<Self>, gpu: &Gpu, file: &OwnedFd) -> Result<()> {
        let key = key(gpu, file)?;
        self.add_to(&mut families(), key);
        Ok(())
    }

    fn add_to(self: &Arc<Self>, families: &mut BTreeMap<Key, Arc<Self>>, key: Key) {
        families.insert(key, Arc::clone(self));
        let _ = self.key.set(key);
    }

    /// A handle that nobody uses, made from a descriptor of the memory if there is none.
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
        let (handle, lent) = LoanedDescriptor::for_longer(file, import)?;
        handles.all.push((handle, Some(lent)));
        Ok(handle)
    }

    /// Takes a handle back, which is mapped nowhere.
    pub(super) fn put(&self, handle: PhysicalHandle) {
        if process::is_forked() {
            return;
        }
        let mut families = families();
        let mut handles = self.handles();
        handles.free.push(handle);
        if handles.free.len() < handles.all.len() {
            return;
        }
        let all = std::mem::take(&mut *handles).all;
        drop(handles);
        for (handle, lent) in all {
            self.context.release("physical memory", |context| {
                // SAFETY: ours, and whoever maps it keeps it.
                let destroy = || unsafe { VirtualMemory(context).destroy(handle) };
                match lent {
                    Some(lent) => lent.end(destroy),
                    None => destroy(),
                }
            });
        }
        if let Some(key) = self.key.get()
            && families
                .get(key)
                .is_some_and(|found| std::ptr::eq(&**found, self))
        {
            families.remove(key);
        }
    }

    pub(super) fn is_of(&self, context: &Arc<DriverContext>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    fn handles(&self) -> MutexGuard<'_, Handles> {
        self.handles.lock()
    }
}
