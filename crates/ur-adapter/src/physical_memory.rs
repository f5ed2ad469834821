//! Physical memory: memory without an address.

use crate::boundary::{enter, not_null, put};
use crate::context::Context;
use crate::device::Device;
use crate::failure::{Failure, Result};
use crate::object::{Object, Ref, Shared, release, retain};
use crate::query::{Plain, Query, plain};
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use unified_runtime_sys::{
    UR_PHYSICAL_MEM_FLAG_ENABLE_IPC, UR_PHYSICAL_MEM_FLAGS_MASK, ur_context_handle_t,
    ur_device_handle_t, ur_physical_mem_dditable_t, ur_physical_mem_flags_t,
    ur_physical_mem_handle_t, ur_physical_mem_handle_t_, ur_physical_mem_info_t,
    ur_physical_mem_properties_t, ur_result_t, ur_structure_type_t,
};

/// Physical memory, created here or opened from a handle.
pub(crate) struct PhysicalMemory {
    context: Ref<Context>,
    device: Ref<Device>,
    inner: crosshandle::PhysicalMemory,
    origin: Origin,
}

/// Where physical memory comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    Created(ur_physical_mem_flags_t),
    Opened,
}

impl Object for PhysicalMemory {
    type Opaque = ur_physical_mem_handle_t_;
}

impl PhysicalMemory {
    /// A handle for memory that is new to UR.
    pub(crate) fn hand_out(
        context: &Shared<Context>,
        device: &Shared<Device>,
        inner: crosshandle::PhysicalMemory,
        origin: Origin,
    ) -> ur_physical_mem_handle_t {
        Shared::hand_out(Shared::new(Self {
            context: context.to_ref(),
            device: device.to_ref(),
            inner,
            origin,
        }))
    }

    /// The library's physical memory.
    pub(crate) fn inner(&self) -> &crosshandle::PhysicalMemory {
        &self.inner
    }

    pub(crate) fn is_opened(&self) -> bool {
        self.origin == Origin::Opened
    }

    /// Whether it was created to be shared.
    pub(crate) fn is_shareable(&self) -> bool {
        self.flags() & UR_PHYSICAL_MEM_FLAG_ENABLE_IPC != 0
    }

    /// # Errors
    /// `INVALID_CONTEXT` for memory of another context.
    pub(crate) fn check_context(&self, context: &Context) -> Result<()> {
        if Arc::ptr_eq(self.context.state(), context.state()) {
            return Ok(());
        }
        Err(Failure::new(
            ur_result_t::UR_RESULT_ERROR_INVALID_CONTEXT,
            "this physical memory belongs to another context",
        ))
    }

    /// What it was created with. What was opened cannot be shared again.
    fn flags(&self) -> ur_physical_mem_flags_t {
        match self.origin {
            Origin::Created(flags) => flags,
            Origin::Opened => 0,
        }
    }
}

unsafe extern "C" fn create(
    context: ur_context_handle_t,
    device: ur_device_handle_t,
    size: usize,
    properties: *const ur_physical_mem_properties_t,
    created: *mut ur_physical_mem_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes handles, and null or properties.
        let (context, device, properties) = unsafe {
            (
                Shared::<Context>::from_handle(context)?,
                Shared::<Device>::from_handle(device)?,
                properties.as_ref(),
            )
        };
        not_null(created)?;
        let flags = properties.map_or(0, |properties| properties.flags);
        if flags & UR_PHYSICAL_MEM_FLAGS_MASK != 0 {
            return Err(Failure::ENUMERATION);
        }
        let info = device.inner().info();
        let granularity = info.granularity;
        if size == 0 || !size.is_multiple_of(granularity) {
            return Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_SIZE,
                format!("{size} is not a positive multiple of {granularity} bytes"),
            ));
        }
        if size as u64 > info.max_allocation {
            return Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_SIZE,
                format!(
                    "{size} is more than the {} bytes of an allocation",
                    info.max_allocation
                ),
            ));
        }
        let inner = context.on(device)?.create_physical_memory(size)?;
        let memory = PhysicalMemory::hand_out(context, device, inner, Origin::Created(flags));
        // SAFETY: the caller passes a valid pointer.
        unsafe { put(created, memory) }
    })
}

/// `ur_physical_mem_properties_t` with names for its padding, so that all of its bytes are set.
#[derive(Clone, Copy)]
#[repr(C)]
struct Properties {
    stype: u32,
    padding: u32,
    next: *const c_void,
    flags: ur_physical_mem_flags_t,
    more_padding: u32,
}

const _: () = assert!(size_of::<Properties>() == size_of::<ur_physical_mem_properties_t>());

plain!(Properties);

unsafe extern "C" fn get_info(
    handle: ur_physical_mem_handle_t,
    name: ur_physical_mem_info_t,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes such a handle and a place for the answer.
        let (memory, query) = unsafe {
            (
                Shared::<PhysicalMemory>::from_handle(handle)?,
                Query::new(size, value, size_ret)?,
            )
        };
        answer(memory, name, query)
    })
}

fn answer(
    memory: &Shared<PhysicalMemory>,
    name: ur_physical_mem_info_t,
    query: Query,
) -> Result<()> {
    match name {
        ur_physical_mem_info_t::UR_PHYSICAL_MEM_INFO_CONTEXT => {
            query.value(memory.context.handle())
        }
        ur_physical_mem_info_t::UR_PHYSICAL_MEM_INFO_DEVICE => query.value(memory.device.handle()),
        ur_physical_mem_info_t::UR_PHYSICAL_MEM_INFO_SIZE => query.value(memory.inner.len()),
        ur_physical_mem_info_t::UR_PHYSICAL_MEM_INFO_PROPERTIES => query.value(Properties {
            stype: ur_structure_type_t::UR_STRUCTURE_TYPE_PHYSICAL_MEM_PROPERTIES.0,
            padding: 0,
            next: ptr::null(),
            flags: memory.flags(),
            more_padding: 0,
        }),
        ur_physical_mem_info_t::UR_PHYSICAL_MEM_INFO_REFERENCE_COUNT => {
            query.value(memory.references())
        }
        _ => Err(Failure::ENUMERATION),
    }
}

pub(crate) const TABLE: ur_physical_mem_dditable_t = ur_physical_mem_dditable_t {
    pfnCreate: Some(create),
    pfnRetain: Some(retain::<PhysicalMemory>),
    pfnRelease: Some(release::<PhysicalMemory>),
    pfnGetInfo: Some(get_info),
};
