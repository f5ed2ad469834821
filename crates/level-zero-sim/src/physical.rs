//! Physical memory: without an address until it is mapped.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use level_zero_sys::*;

use crate::call::{INVALID_ARGUMENT, Result, UNSUPPORTED_SIZE, entry, present, read, write};
use crate::checks::{Check, misuse};
use crate::context::{Context, pair};
use crate::device::Device;
use crate::external::{Extension, export_to, physical_extension};
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
    /// Whether it was created to be exported.
    exportable: bool,
    exported: Mutex<Option<Exported>>,
    /// By mappings.
    pub(crate) use_count: UseCount,
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
    /// Answers what is chained to the properties of the memory, or of where it is mapped.
    pub(crate) fn export(&self, next: *mut c_void) -> Result<()> {
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
        write(memory, handles::create(Arc::new(Physical {
            context,
            device,
            segment,
            id: space::next_id(),
            exportable: matches!(extension, Extension::Export),
            exported: Mutex::new(None),
            use_count: UseCount::default(),
        }))?)
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
        // Mappings keep the memory itself.
        *memory.exported.lock().unwrap_or_else(PoisonError::into_inner) = None;
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
