//! Allocates and frees memory.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use level_zero_sys::*;

use crate::call::{
    INVALID_ARGUMENT, INVALID_NULL_POINTER, OUT_OF_DEVICE_MEMORY, Result, UNSUPPORTED_ALIGNMENT,
    UNSUPPORTED_ENUMERATION, UNSUPPORTED_SIZE, entry, present, read, write,
};
use crate::checks::{Check, misuse};
use crate::context::{Context, pair};
use crate::device::Device;
use crate::device_info::MAX_ALLOCATION;
use crate::external::{Extension, extension};
use crate::handles;
use crate::os::{Mapping, PAGE, Segment};
use crate::space::{self, Origin, Region, UseCount};
use crate::switches::switches;

/// Allocation unit of device memory, in bytes.
pub(crate) const GRANULE: usize = 64 << 10;

/// Counts an allocation, and fails it if the switch `FAIL_ALLOCATIONS_AFTER` says so.
pub(crate) fn count_allocation() -> Result<()> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let before = COUNT.fetch_add(1, Ordering::Relaxed);
    match switches().fail_allocations_after {
        Some(limit) if before >= limit => Err(OUT_OF_DEVICE_MEMORY),
        _ => Ok(()),
    }
}

fn allocate(
    kind: ze_memory_type_t,
    context: Arc<Context>,
    device: Option<Arc<Device>>,
    size: usize,
    alignment: usize,
    exportable: bool,
    to: *mut *mut c_void,
) -> Result<()> {
    present(to)?;
    if size == 0 || size as u64 > MAX_ALLOCATION {
        return Err(UNSUPPORTED_SIZE);
    }
    if alignment != 0 && !alignment.is_power_of_two() || alignment > 1 << 30 {
        return Err(UNSUPPORTED_ALIGNMENT);
    }
    count_allocation()?;
    let unit = match kind {
        ze_memory_type_t::ZE_MEMORY_TYPE_DEVICE => GRANULE,
        _ => PAGE,
    };
    let size = size.next_multiple_of(unit);
    let (segment, mapping) = match reused(kind, size, alignment) {
        Some(reused) => reused,
        None => {
            let segment = Segment::new(size)?;
            let mapping = segment.map_aligned(alignment.max(unit))?;
            (segment, mapping)
        }
    };
    let base = mapping.base().as_ptr();
    space::insert(Region {
        base: base.expose_provenance(),
        size: segment.size(),
        kind,
        id: space::next_id(),
        context,
        device,
        origin: Origin::Allocated {
            mapping,
            segment,
            exportable,
            exported: Mutex::new(None),
        },
        use_count: UseCount::default(),
    });
    write(to, base.cast())
}

/// Freed memory that is kept for the next allocation of its size.
struct Freed {
    kind: ze_memory_type_t,
    segment: Segment,
    mapping: Mapping,
}

static FREED: Mutex<Vec<Freed>> = Mutex::new(Vec::new());

fn reused(kind: ze_memory_type_t, size: usize, alignment: usize) -> Option<(Segment, Mapping)> {
    let mut freed = FREED.lock().unwrap_or_else(PoisonError::into_inner);
    let fits = |one: &Freed| {
        let is_aligned = one.mapping.address().is_multiple_of(alignment.max(1));
        one.kind == kind && one.segment.size() == size && is_aligned
    };
    let found = freed.iter().position(fits)?;
    let Freed {
        segment, mapping, ..
    } = freed.swap_remove(found);
    Some((segment, mapping))
}

/// Keeps freed memory for the next allocation, even if it was exported.
fn keep(region: Arc<Region>) {
    if !switches().reuse {
        return;
    }
    let Ok(Region { kind, origin, .. }) = Arc::try_unwrap(region) else {
        // Commands still use the memory.
        return;
    };
    if let Origin::Allocated {
        segment, mapping, ..
    } = origin
    {
        let mut freed = FREED.lock().unwrap_or_else(PoisonError::into_inner);
        freed.push(Freed {
            kind,
            segment,
            mapping,
        });
    }
}

/// Returns the region that begins at `address`. It must be allocated by this process in `context`.
pub(crate) fn allocated(context: &Arc<Context>, address: *const c_void) -> Result<Arc<Region>> {
    if address.is_null() {
        return Err(INVALID_NULL_POINTER);
    }
    let Some(region) = space::starting(address.addr(), context) else {
        let what = match space::gone(address.addr()) {
            Some(_) => "is free already",
            None => "is no allocation of the context",
        };
        misuse(Check::DoubleFree, &format!("{address:p} {what}"));
        return Err(INVALID_ARGUMENT);
    };
    let ends = match region.origin {
        Origin::Allocated { .. } => return Ok(region),
        Origin::Opened { .. } => "was opened from a handle, and is to be closed",
        Origin::Mapped { .. } => "is mapped, and is to be unmapped",
    };
    misuse(Check::WrongClose, &format!("{address:p} {ends}"));
    Err(INVALID_ARGUMENT)
}

entry! {
    fn zeMemAllocDevice(
        context: ze_context_handle_t,
        desc: *const ze_device_mem_alloc_desc_t,
        size: usize,
        alignment: usize,
        device: ze_device_handle_t,
        to: *mut *mut c_void,
    ) {
        let (context, device) = pair(context, device)?;
        let exportable = match extension(read(desc)?.pNext)? {
            Extension::None => false,
            Extension::Export => true,
            Extension::Import(_) => return Err(UNSUPPORTED_ENUMERATION),
        };
        let kind = ze_memory_type_t::ZE_MEMORY_TYPE_DEVICE;
        allocate(kind, context, Some(device), size, alignment, exportable, to)
    }

    fn zeMemAllocHost(
        context: ze_context_handle_t,
        desc: *const ze_host_mem_alloc_desc_t,
        size: usize,
        alignment: usize,
        to: *mut *mut c_void,
    ) {
        let context = handles::get::<Context, _>(context)?;
        read(desc)?;
        let kind = ze_memory_type_t::ZE_MEMORY_TYPE_HOST;
        allocate(kind, context, None, size, alignment, false, to)
    }

    fn zeMemFree(context: ze_context_handle_t, address: *mut c_void) {
        let context = handles::get::<Context, _>(context)?;
        let region = allocated(&context, address)?;
        region.use_count.check("the memory");
        space::remove(&region);
        keep(region);
        Ok(())
    }
}
