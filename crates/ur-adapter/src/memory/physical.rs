//! Physical memory: memory that has no address until it is mapped.

use crate::abi::boundary::{MaybeIn, Out, entry_points};
use crate::abi::failure::{Failure, Result};
use crate::abi::object::{Handle, Object, Ref, Shared, release, retain};
use crate::abi::query::{Answer, Plain, Query, plain};
use crate::context::Context;
use crate::discovery::Device;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use unified_runtime_sys::{
    UR_PHYSICAL_MEM_FLAG_ENABLE_IPC, UR_PHYSICAL_MEM_FLAGS_MASK, ur_physical_mem_dditable_t,
    ur_physical_mem_flags_t, ur_physical_mem_handle_t, ur_physical_mem_handle_t_,
    ur_physical_mem_info_t, ur_physical_mem_properties_t, ur_result_t, ur_structure_type_t,
};

/// A UR handle to physical memory, which was created in this process or opened from a handle.
pub(crate) struct PhysicalMemory {
    context: Ref<Context>,
    device: Ref<Device>,
    inner: crosshandle::virtual_memory::PhysicalMemory,
    origin: Origin,
}

/// How the physical memory was obtained.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// `urPhysicalMemCreate` created the memory with these flags.
    Created(ur_physical_mem_flags_t),
    /// `urIPCOpenPhysMemHandleExp` opened the memory from a handle.
    Opened,
}

impl Object for PhysicalMemory {
    type Opaque = ur_physical_mem_handle_t_;
}

impl PhysicalMemory {
    /// Creates a physical memory object, and returns its UR handle.
    pub(crate) fn hand_out(
        context: &Shared<Context>,
        device: &Shared<Device>,
        inner: crosshandle::virtual_memory::PhysicalMemory,
        origin: Origin,
    ) -> ur_physical_mem_handle_t {
        Shared::hand_out(Shared::new(Self {
            context: context.to_ref(),
            device: device.to_ref(),
            inner,
            origin,
        }))
    }

    /// Returns the physical memory in `crosshandle`.
    pub(crate) fn inner(&self) -> &crosshandle::virtual_memory::PhysicalMemory {
        &self.inner
    }

    /// Returns whether the memory was opened from a handle.
    pub(crate) fn is_opened(&self) -> bool {
        self.origin == Origin::Opened
    }

    /// Returns whether the memory was created with the flag for sharing.
    pub(crate) fn is_shareable(&self) -> bool {
        self.flags() & UR_PHYSICAL_MEM_FLAG_ENABLE_IPC != 0
    }

    /// Checks that the memory belongs to a context.
    ///
    /// # Errors
    /// Returns `INVALID_CONTEXT` if the memory belongs to another context.
    pub(crate) fn check_context(&self, context: &Context) -> Result<()> {
        if Arc::ptr_eq(self.context.state(), context.state()) {
            return Ok(());
        }
        Err(Failure::new(
            ur_result_t::UR_RESULT_ERROR_INVALID_CONTEXT,
            "this physical memory belongs to another context",
        ))
    }

    /// Returns the flags with which the memory was created. Opened memory has no flags, because it
    /// cannot be shared again.
    fn flags(&self) -> ur_physical_mem_flags_t {
        match self.origin {
            Origin::Created(flags) => flags,
            Origin::Opened => 0,
        }
    }
}

entry_points! {
    fn create(
        context: Handle<Context>,
        device: Handle<Device>,
        size: usize,
        properties: MaybeIn<ur_physical_mem_properties_t>,
        created: Out<ur_physical_mem_handle_t>,
    ) {
        let flags = properties.map_or(0, |properties| properties.flags);
        if flags & UR_PHYSICAL_MEM_FLAGS_MASK != 0 {
            return Err(Failure::ENUMERATION);
        }
        check_size(device, size)?;
        let inner = crosshandle::virtual_memory::PhysicalMemory::new(context.on(device)?, size)?;
        created.put(PhysicalMemory::hand_out(context, device, inner, Origin::Created(flags)))
    }

    fn get_info(
        memory: Handle<PhysicalMemory>,
        name: ur_physical_mem_info_t,
        query(size, value, size_ret): Answer,
    ) {
        answer(memory, name, query)
    }
}

/// Checks that a device can allocate physical memory of this size.
///
/// # Errors
/// Returns `INVALID_SIZE` if the size is 0, too large, or not a multiple of the device's
/// granularity.
fn check_size(device: &Device, size: usize) -> Result<()> {
    let info = device.inner().info();
    let granularity = info.granularity;
    let message = if size == 0 || !size.is_multiple_of(granularity) {
        format!("{size} is not a positive multiple of {granularity} bytes")
    } else if size as u64 > info.max_allocation {
        format!(
            "{size} is more than the {} bytes of an allocation",
            info.max_allocation
        )
    } else {
        return Ok(());
    };
    Err(Failure::new(
        ur_result_t::UR_RESULT_ERROR_INVALID_SIZE,
        message,
    ))
}

/// The structure `ur_physical_mem_properties_t`, with its padding as named fields, so that all
/// bytes are initialised.
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

/// Writes a property of physical memory to the caller's memory.
fn answer(
    memory: &Shared<PhysicalMemory>,
    name: ur_physical_mem_info_t,
    query: Query<'_>,
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

/// The entry points for physical memory.
pub(crate) const TABLE: ur_physical_mem_dditable_t = ur_physical_mem_dditable_t {
    pfnCreate: Some(create),
    pfnRetain: Some(retain::<PhysicalMemory>),
    pfnRelease: Some(release::<PhysicalMemory>),
    pfnGetInfo: Some(get_info),
};
