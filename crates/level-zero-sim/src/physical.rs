//! Physical memory, which has no address until it is mapped.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use level_zero_sys::*;

use crate::call::{INVALID_ARGUMENT, Result, UNSUPPORTED_SIZE, entry, present, read, write};
use crate::checks::{Check, misuse};
use crate::context::{Context, pair};
use crate::device::Device;
use crate::external::{Extension, Given, export_to, physical_extension};
use crate::handles::{self, Object};
use crate::ipc::Exported;
use crate::ledger::Resource;
use crate::memory::{GRANULE, count_allocation};
use crate::os::Segment;
use crate::space::{self, UseCount};

pub(crate) struct Physical {
    context: Arc<Context>,
    pub(crate) device: Arc<Device>,
    pub(crate) segment: Segment,
    id: u64,
    /// Whether the memory was created to be exported.
    exportable: bool,
    exported: Mutex<Option<Exported>>,
    /// The descriptor that the memory was imported from. It is closed with the memory.
    given: Mutex<Option<Given>>,
    /// Whether another handle of this process to the same memory was destroyed.
    is_gone: AtomicBool,
    /// Counts the mappings of the memory.
    pub(crate) use_count: UseCount,
}

/// All physical memory of this process. Intel's driver identifies the same memory by one kernel
/// number for all its handles. The first handle that is destroyed ends that number for the others.
static ALL: Mutex<Vec<Weak<Physical>>> = Mutex::new(Vec::new());

impl Physical {
    /// Returns an error if the memory can no longer be used.
    pub(crate) fn check(&self) -> Result<()> {
        if !self.is_gone.load(Ordering::Acquire) {
            return Ok(());
        }
        let what = "the memory was destroyed by another handle of it";
        misuse(Check::UseAfterDestroy, what);
        Err(INVALID_ARGUMENT)
    }

    /// Ends the memory for all other handles of this process.
    fn end_others(&self) {
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| one.strong_count() > 0);
        let others = all.iter().filter_map(Weak::upgrade);
        for other in others.filter(|other| other.segment.inode() == self.segment.inode()) {
            other.is_gone.store(true, Ordering::Release);
        }
    }
}

impl Object for Physical {
    const NAME: &'static str = "physical memory";

    fn resource(&self) -> Resource {
        Resource::Physical
    }

    fn context(&self) -> Option<&Arc<Context>> {
        Some(&self.context)
    }
}

impl Physical {
    /// Fills the structures that are chained to the properties of the memory or of a mapping.
    pub(crate) fn export(&self, next: *mut c_void) -> Result<()> {
        self.check()?;
        match self.exportable {
            true => export_to(next, &self.segment, &self.exported),
            false => Err(INVALID_ARGUMENT),
        }
    }
}

entry! {
    fn zePhysicalMemCreate(
        context: ze_context_handle_t,
        device: ze_device_handle_t,
        desc: *mut ze_physical_mem_desc_t,
        memory: *mut ze_physical_mem_handle_t,
    ) {
        let (context, device) = pair(context, device)?;
        let desc = read(desc.cast_const())?;
        present(memory)?;
        if desc.size == 0 || !desc.size.is_multiple_of(GRANULE) {
            return Err(UNSUPPORTED_SIZE);
        }
        let extension = physical_extension(desc.pNext)?;
        count_allocation()?;
        let segment = extension.segment(desc.size)?;
        let given = Given::new(extension, &segment);
        let created = Arc::new(Physical {
            context,
            device,
            segment,
            id: space::next_id(),
            exportable: matches!(extension, Extension::Export),
            exported: Mutex::new(None),
            given: Mutex::new(given),
            is_gone: AtomicBool::new(false),
            use_count: UseCount::default(),
        });
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(Arc::downgrade(&created));
        drop(all);
        write(memory, handles::create(created)?)
    }

    fn zePhysicalMemDestroy(context: ze_context_handle_t, memory: ze_physical_mem_handle_t) {
        let context = handles::get::<Context, _>(context)?;
        let memory = handles::take::<Physical, _>(memory, |memory| {
            match Arc::ptr_eq(&memory.context, &context) {
                true => Ok(()),
                false => Err(INVALID_ARGUMENT),
            }
        })?;
        if memory.use_count.is_used() {
            misuse(Check::DestroyInUse, "the physical memory is mapped");
        }
        // Mappings keep the memory itself alive.
        *memory.exported.lock().unwrap_or_else(PoisonError::into_inner) = None;
        *memory.given.lock().unwrap_or_else(PoisonError::into_inner) = None;
        memory.end_others();
        Ok(())
    }

    fn zePhysicalMemGetProperties(
        context: ze_context_handle_t,
        memory: ze_physical_mem_handle_t,
        properties: *mut ze_physical_mem_properties_t,
    ) {
        handles::get::<Context, _>(context)?;
        let memory = handles::get::<Physical, _>(memory)?;
        let mut value = read(properties.cast_const())?;
        value.id = memory.id;
        value.size = memory.segment.size() as u64;
        write(properties, value)?;
        if value.pNext.is_null() {
            return Ok(());
        }
        memory.export(value.pNext)
    }
}
