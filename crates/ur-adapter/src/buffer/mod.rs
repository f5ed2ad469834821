//! Buffers: memory that commands name by handle and offset.

mod late;
mod mapping;
mod native;
mod storage;
#[cfg(test)]
mod tests;

use crate::boundary::{enter, not_null, put};
use crate::context::Context;
use crate::device::Device;
use crate::failure::{Failure, Result};
use crate::object::{Object, Ref, Shared, release, retain};
use crate::query::Query;
use crate::stub::{Reason, Stub};
use crosshandle::MemoryRange;
use mapping::Mappings;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use storage::{Held, Storage};
use unified_runtime_sys::{
    UR_MEM_FLAG_ALLOC_COPY_HOST_POINTER, UR_MEM_FLAG_ALLOC_HOST_POINTER, UR_MEM_FLAG_READ_ONLY,
    UR_MEM_FLAG_READ_WRITE, UR_MEM_FLAG_USE_HOST_POINTER, UR_MEM_FLAG_WRITE_ONLY,
    UR_MEM_FLAGS_MASK, ur_buffer_create_type_t, ur_buffer_properties_t, ur_buffer_region_t,
    ur_context_handle_t, ur_device_handle_t, ur_image_info_t, ur_mem_dditable_t, ur_mem_flags_t,
    ur_mem_handle_t, ur_mem_handle_t_, ur_mem_info_t, ur_mem_native_properties_t,
    ur_native_handle_t, ur_result_t,
};

/// What kernels may do with a buffer; at most one of them.
const KERNEL_ACCESS: ur_mem_flags_t =
    UR_MEM_FLAG_READ_WRITE | UR_MEM_FLAG_WRITE_ONLY | UR_MEM_FLAG_READ_ONLY;
/// Flags that come with a host pointer.
const WITH_POINTER: ur_mem_flags_t =
    UR_MEM_FLAG_USE_HOST_POINTER | UR_MEM_FLAG_ALLOC_COPY_HOST_POINTER;
/// Flags that say where a buffer's memory is.
const PLACE: ur_mem_flags_t = WITH_POINTER | UR_MEM_FLAG_ALLOC_HOST_POINTER;

/// A buffer, or a part of one.
pub(crate) struct Buffer {
    context: Ref<Context>,
    storage: Held,
    /// Where in the storage it starts, and how many bytes it has.
    offset: usize,
    len: usize,
    /// How kernels may access it; 0 if its creator didn't say.
    kernel_access: ur_mem_flags_t,
    is_part: bool,
    mappings: Mappings,
}

impl Object for Buffer {
    type Opaque = ur_mem_handle_t_;
}

impl Buffer {
    fn new(context: Ref<Context>, storage: Arc<Storage>, kernel_access: ur_mem_flags_t) -> Self {
        Self {
            context,
            offset: 0,
            len: storage.len(),
            storage: Held(storage),
            kernel_access,
            is_part: false,
            mappings: Mappings::default(),
        }
    }

    /// A range of it, which keeps the memory.
    ///
    /// # Errors
    /// `INVALID_SIZE` for one that is not inside.
    pub(crate) fn range(&self, offset: usize, len: usize) -> Result<MemoryRange> {
        let offset = self.place(offset, len)?;
        self.storage.range(offset, len)
    }

    /// All of it, for a kernel on a device.
    ///
    /// # Errors
    /// `INVALID_MEM_OBJECT` for a buffer of another context, or on another device.
    pub(crate) fn on(
        &self,
        context: &Shared<Context>,
        device: &Shared<Device>,
    ) -> Result<MemoryRange> {
        let (own, _) = self.context.first();
        let is_near = std::ptr::eq(&**own, device) || !self.storage.is_on_device();
        if !Arc::ptr_eq(self.context.state(), context.state()) || !is_near {
            return Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_MEM_OBJECT,
                "a kernel takes buffers of its queue's context, which lie on its first device",
            ));
        }
        self.range(0, self.len)
    }

    /// Where in the storage a range of the buffer starts.
    fn place(&self, offset: usize, len: usize) -> Result<usize> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.offset + offset),
            _ => Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_SIZE,
                format!(
                    "{len} bytes at {offset} are not inside a buffer of {} bytes",
                    self.len
                ),
            )),
        }
    }
}

unsafe extern "C" fn create(
    context: ur_context_handle_t,
    flags: ur_mem_flags_t,
    size: usize,
    properties: *const ur_buffer_properties_t,
    created: *mut ur_mem_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a context's handle, and null or properties.
        let (context, properties) = unsafe {
            (
                Shared::<Context>::from_handle(context)?,
                properties.as_ref(),
            )
        };
        not_null(created)?;
        // What may be chained to the properties (a location, a channel) is a hint.
        let pointer = properties.and_then(|properties| NonNull::new(properties.pHost.cast()));
        check_flags(flags, pointer.is_some())?;
        if size == 0 {
            return Err(Failure::of(
                ur_result_t::UR_RESULT_ERROR_INVALID_BUFFER_SIZE,
            ));
        }
        let (device, inner) = context.first();
        let is_direct = device.inner().info().capabilities.host_accessible_memory;
        // SAFETY: the caller keeps the memory behind the pointer valid as its flags demand.
        let storage = unsafe { Storage::create(inner, size, flags, pointer, is_direct) }?;
        let buffer = Buffer::new(context.to_ref(), storage, flags & KERNEL_ACCESS);
        // SAFETY: the caller passes a valid pointer.
        unsafe { put(created, Shared::hand_out(Shared::new(buffer))) }
    })
}

fn check_flags(flags: ur_mem_flags_t, has_pointer: bool) -> Result<()> {
    if flags & UR_MEM_FLAGS_MASK != 0 {
        return Err(Failure::ENUMERATION);
    }
    if has_pointer != (flags & WITH_POINTER != 0) {
        return Err(Failure::of(ur_result_t::UR_RESULT_ERROR_INVALID_HOST_PTR));
    }
    let uses_pointer = flags & UR_MEM_FLAG_USE_HOST_POINTER != 0;
    if (uses_pointer && flags & PLACE != UR_MEM_FLAG_USE_HOST_POINTER)
        || (flags & KERNEL_ACCESS).count_ones() > 1
    {
        return Err(Failure::new(
            ur_result_t::UR_RESULT_ERROR_INVALID_VALUE,
            "these flags exclude each other",
        ));
    }
    Ok(())
}

unsafe extern "C" fn partition(
    parent: ur_mem_handle_t,
    flags: ur_mem_flags_t,
    kind: ur_buffer_create_type_t,
    region: *const ur_buffer_region_t,
    created: *mut ur_mem_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a buffer's handle, and null or a region.
        let (parent, region) = unsafe { (Shared::<Buffer>::from_handle(parent)?, region.as_ref()) };
        let region = region.ok_or(Failure::NULL_POINTER)?;
        not_null(created)?;
        if kind != ur_buffer_create_type_t::UR_BUFFER_CREATE_TYPE_REGION {
            return Err(Failure::ENUMERATION);
        }
        let part = parent.part(flags, region)?;
        // SAFETY: the caller passes a valid pointer.
        unsafe { put(created, Shared::hand_out(Shared::new(part))) }
    })
}

impl Buffer {
    fn part(&self, flags: ur_mem_flags_t, region: &ur_buffer_region_t) -> Result<Self> {
        if self.is_part {
            return Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_MEM_OBJECT,
                "a part of a buffer has no parts",
            ));
        }
        if flags & UR_MEM_FLAGS_MASK != 0 {
            return Err(Failure::ENUMERATION);
        }
        let (own, wanted) = (self.kernel_access, flags & KERNEL_ACCESS);
        let is_wider =
            wanted != own && matches!(own, UR_MEM_FLAG_READ_ONLY | UR_MEM_FLAG_WRITE_ONLY);
        if flags & PLACE != 0 || wanted.count_ones() > 1 || (wanted != 0 && is_wider) {
            return Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_VALUE,
                "a part lies where its buffer does, and allows kernels no more than that",
            ));
        }
        let too_large = |failure: Failure| {
            failure.with_result(ur_result_t::UR_RESULT_ERROR_INVALID_BUFFER_SIZE)
        };
        if region.size == 0 {
            return Err(too_large(Failure::SIZE));
        }
        let offset = self.place(region.origin, region.size).map_err(too_large)?;
        Ok(Self {
            offset,
            len: region.size,
            is_part: true,
            ..Self::new(
                self.context.clone(),
                Arc::clone(&self.storage),
                if wanted == 0 { own } else { wanted },
            )
        })
    }
}

unsafe extern "C" fn get_info(
    handle: ur_mem_handle_t,
    name: ur_mem_info_t,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a buffer's handle and a place for the answer.
        let (buffer, query) = unsafe {
            (
                Shared::<Buffer>::from_handle(handle)?,
                Query::new(size, value, size_ret)?,
            )
        };
        match name {
            ur_mem_info_t::UR_MEM_INFO_SIZE => query.value(buffer.len),
            ur_mem_info_t::UR_MEM_INFO_CONTEXT => query.value(buffer.context.handle()),
            ur_mem_info_t::UR_MEM_INFO_REFERENCE_COUNT => query.value(buffer.references()),
            _ => Err(Failure::ENUMERATION),
        }
    })
}

unsafe extern "C" fn get_image_info(
    handle: ur_mem_handle_t,
    _name: ur_image_info_t,
    _size: usize,
    _value: *mut c_void,
    _size_ret: *mut usize,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a buffer's handle; there are no images.
        unsafe { Shared::<Buffer>::from_handle(handle) }?;
        Err(Failure::new(
            ur_result_t::UR_RESULT_ERROR_INVALID_MEM_OBJECT,
            "this memory object is a buffer, not an image",
        ))
    })
}

unsafe extern "C" fn get_native_handle(
    handle: ur_mem_handle_t,
    device: ur_device_handle_t,
    native: *mut ur_native_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a buffer's handle.
        let buffer = unsafe { Shared::<Buffer>::from_handle(handle) }?;
        if !device.is_null() {
            // SAFETY: not null, so a device's handle.
            let device = unsafe { Shared::<Device>::from_handle(device) }?;
            buffer.context.on(device)?;
        }
        not_null(native)?;
        // SAFETY: the caller passes a valid pointer.
        unsafe { put(native, native::handle(&buffer.storage, buffer.offset)) }
    })
}

unsafe extern "C" fn create_with_native_handle(
    native: ur_native_handle_t,
    context: ur_context_handle_t,
    properties: *const ur_mem_native_properties_t,
    created: *mut ur_mem_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a context's handle, and null or properties.
        let (context, properties) = unsafe {
            (
                Shared::<Context>::from_handle(context)?,
                properties.as_ref(),
            )
        };
        not_null(created)?;
        let is_owned = properties.is_some_and(|properties| properties.isNativeHandleOwned != 0);
        let (storage, offset) = native::find(context, native, is_owned)?;
        let buffer = Buffer {
            offset,
            len: storage.len() - offset,
            ..Buffer::new(context.to_ref(), storage, 0)
        };
        // SAFETY: the caller passes a valid pointer.
        unsafe { put(created, Shared::hand_out(Shared::new(buffer))) }
    })
}

/// Why there is nothing about images.
pub(crate) struct NoImages;

impl Reason for NoImages {
    const TEXT: &str = "this adapter's devices have no images";
}

pub(crate) const TABLE: ur_mem_dditable_t = ur_mem_dditable_t {
    pfnImageCreate: Stub::<NoImages>::STUB,
    pfnBufferCreate: Some(create),
    pfnRetain: Some(retain::<Buffer>),
    pfnRelease: Some(release::<Buffer>),
    pfnBufferPartition: Some(partition),
    pfnGetNativeHandle: Some(get_native_handle),
    pfnBufferCreateWithNativeHandle: Some(create_with_native_handle),
    pfnImageCreateWithNativeHandle: Stub::<NoImages>::STUB,
    pfnGetInfo: Some(get_info),
    pfnImageGetInfo: Some(get_image_info),
};
