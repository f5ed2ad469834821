//! Physical memory: without an address until it is mapped.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use level_zero_sys::*;

use crate::call::{
    INVALID_ARGUMENT, OUT_OF_DEVICE_MEMORY, Result, UNSUPPORTED_ENUMERATION, UNSUPPORTED_SIZE,
    entry, present, read, write,
};
use crate::checks::{Check, misuse};
use crate::context::{Context, pair};
use crate::device::Device;
use crate::handles::{self, Object};
use crate::ipc::{Exported, duplicate};
use crate::ledger::Resource;
use crate::memory::{GRANULE, count_allocation};
use crate::os::Segment;
use crate::space::{self, UseCount};
use crate::switches::switches;

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

/// What is chained to a description of physical memory.
enum Extension {
    None,
    Export,
    Import(i32),
}

fn extension(next: *const c_void) -> Result<Extension> {
    if next.is_null() {
        return Ok(Extension::None);
    }
    let known = ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF | ZE_EXTERNAL_MEMORY_TYPE_FLAG_OPAQUE_FD;
    let (flags, extension) = match read(next.cast::<ze_base_desc_t>())?.stype {
        ze_structure_type_t::ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_DESC => {
            let desc = read(next.cast::<ze_external_memory_export_desc_t>())?;
            (desc.flags, Extension::Export)
        }
        ze_structure_type_t::ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_IMPORT_FD => {
            let desc = read(next.cast::<ze_external_memory_import_fd_t>())?;
            (desc.flags, Extension::Import(desc.fd))
        }
        _ => return Err(UNSUPPORTED_ENUMERATION),
    };
    match flags & known != 0 && !switches().missing("external_memory") {
        true => Ok(extension),
        false => Err(UNSUPPORTED_ENUMERATION),
    }
}

/// The memory that a descriptor of this process leads to; it stays the caller's.
fn import(number: i32, size: usize) -> Result<Segment> {
    if switches().refuse_descriptors {
        return Err(OUT_OF_DEVICE_MEMORY);
    }
    let segment = duplicate(number).and_then(Segment::from_file);
    match segment {
        Some(segment) if segment.size() >= size => Ok(segment),
        found => {
            let what = match found {
                Some(_) => "leads to less memory",
                None => "is not open in this process, or not the driver's",
            };
            misuse(
                Check::ForeignDescriptor,
                &format!("descriptor {number} {what}"),
            );
            Err(OUT_OF_DEVICE_MEMORY)
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
        let extension = extension(desc.pNext)?;
        count_allocation()?;
        let segment = match extension {
            Extension::Import(number) => import(number, desc.size)?,
            _ => Segment::new(desc.size)?,
        };
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
        let chained = value.pNext.cast::<ze_external_memory_export_fd_t>();
        let mut export = read(chained.cast_const())?;
        if export.stype != ze_structure_type_t::ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_FD {
            return Err(UNSUPPORTED_ENUMERATION);
        }
        if !memory.exportable {
            return Err(INVALID_ARGUMENT);
        }
        let mut exported = memory.exported.lock().unwrap_or_else(PoisonError::into_inner);
        if exported.is_none() {
            *exported = Some(Exported::new(&memory.segment)?);
        }
        let exported = exported.as_ref().ok_or(INVALID_ARGUMENT)?;
        exported.check()?;
        export.fd = exported.number();
        write(chained, export)
    }
}
