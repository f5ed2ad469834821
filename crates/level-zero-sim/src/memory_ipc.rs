//! Memory that is shared with other processes.

use std::ffi::c_void;
use std::sync::PoisonError;

use level_zero_sys::*;

use crate::call::{
    INVALID_ARGUMENT, INVALID_ENUMERATION, INVALID_NULL_POINTER, Result, UNSUPPORTED_FEATURE,
    entry, present, write,
};
use crate::checks::{Check, misuse};
use crate::context::{Context, pair};
use crate::handles;
use crate::ipc::{Exported, Kind, Wire};
use crate::ledger::Resource;
use crate::space::{self, Origin, Region, UseCount};
use crate::switches::switches;

const FLAGS: ze_ipc_memory_flags_t =
    ZE_IPC_MEMORY_FLAG_BIAS_CACHED | ZE_IPC_MEMORY_FLAG_BIAS_UNCACHED;

fn supported() -> Result<()> {
    match switches().missing("ipc_memory") {
        true => Err(UNSUPPORTED_FEATURE),
        false => Ok(()),
    }
}

/// In Intel's driver, allocations up to this size share memory unless they are made to be exported.
/// The unit is bytes.
const POOLED: usize = 2 << 20;

entry! {
    fn zeMemGetIpcHandle(
        context: ze_context_handle_t,
        address: *const c_void,
        handle: *mut ze_ipc_mem_handle_t,
    ) {
        supported()?;
        let context = handles::get::<Context, _>(context)?;
        if address.is_null() {
            return Err(INVALID_NULL_POINTER);
        }
        present(handle)?;
        let region = space::starting(address.addr(), &context).ok_or(INVALID_ARGUMENT)?;
        let Origin::Allocated { segment, exported, exportable, .. } = &region.origin else {
            return Err(INVALID_ARGUMENT);
        };
        if !exportable && region.size <= POOLED && switches().missing("pooled_exports") {
            return Err(INVALID_ARGUMENT);
        }
        let mut exported = exported.lock().unwrap_or_else(PoisonError::into_inner);
        if exported.is_none() {
            *exported = Some(Exported::new(segment)?);
        }
        let exported = exported.as_ref().ok_or(INVALID_ARGUMENT)?;
        exported.check()?;
        let wire = Wire::new(Kind::Memory, exported, region.size as u64, region.kind.0);
        write(handle, ze_ipc_mem_handle_t { data: wire.into_bytes() })
    }

    fn zeMemOpenIpcHandle(
        context: ze_context_handle_t,
        device: ze_device_handle_t,
        handle: ze_ipc_mem_handle_t,
        flags: ze_ipc_memory_flags_t,
        to: *mut *mut c_void,
    ) {
        supported()?;
        let (context, device) = pair(context, device)?;
        present(to)?;
        if flags & !FLAGS != 0 {
            return Err(INVALID_ENUMERATION);
        }
        let wire = Wire::read(handle.data, Kind::Memory)?;
        let segment = wire.open(Kind::Memory)?;
        let mapping = segment.map_aligned(crate::memory::GRANULE)?;
        let base = mapping.base().as_ptr();
        space::insert(Region {
            base: base.expose_provenance(),
            size: segment.size(),
            kind: ze_memory_type_t(wire.flags),
            id: space::next_id(),
            context,
            device: Some(device),
            origin: Origin::Opened { _mapping: mapping },
            use_count: UseCount::default(),
        });
        write(to, base.cast())
    }

    fn zeMemCloseIpcHandle(context: ze_context_handle_t, address: *const c_void) {
        let context = handles::get::<Context, _>(context)?;
        if address.is_null() {
            return Err(INVALID_NULL_POINTER);
        }
        let Some(region) = space::starting(address.addr(), &context) else {
            if space::gone(address.addr()) == Some(Resource::OpenedMemory) {
                misuse(Check::DoubleClose, &format!("{address:p} is closed already"));
            } else {
                misuse(Check::WrongClose, &format!("{address:p} was not opened"));
            }
            return Err(INVALID_ARGUMENT);
        };
        if !matches!(region.origin, Origin::Opened { .. }) {
            misuse(Check::WrongClose, &format!("{address:p} was allocated, not opened"));
            return Err(INVALID_ARGUMENT);
        }
        region.use_count.check("the memory");
        space::remove(&region);
        Ok(())
    }
}
