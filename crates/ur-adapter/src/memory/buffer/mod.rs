//! Buffers: memory that commands refer to by handle and offset.

mod late;
mod mapping;
mod native;
mod storage;
#[cfg(test)]
mod tests;

use super::object::MemoryObject;
use crate::abi::boundary::{In, MaybeIn, Out, entry_points};
use crate::abi::failure::{Failure, Result};
use crate::abi::object::{Handle, Ref};
use crate::context::Context;
use crate::queue::destination::Destination;
use crosshandle::MemoryRange;
use mapping::Mappings;
use std::ptr::NonNull;
use std::sync::Arc;
pub(crate) use storage::{BufferUse, RecordedUse};
use storage::{Storage, StorageUser};
use unified_runtime_sys::{
    UR_MEM_FLAG_ALLOC_COPY_HOST_POINTER, UR_MEM_FLAG_ALLOC_HOST_POINTER, UR_MEM_FLAG_READ_ONLY,
    UR_MEM_FLAG_READ_WRITE, UR_MEM_FLAG_USE_HOST_POINTER, UR_MEM_FLAG_WRITE_ONLY,
    UR_MEM_FLAGS_MASK, ur_buffer_create_type_t, ur_buffer_properties_t, ur_buffer_region_t,
    ur_mem_flags_t, ur_mem_handle_t, ur_mem_native_properties_t, ur_native_handle_t, ur_result_t,
};

/// Flags for the kernels' access to a buffer. A buffer has at most one of these flags.
const KERNEL_ACCESS: ur_mem_flags_t =
    UR_MEM_FLAG_READ_WRITE | UR_MEM_FLAG_WRITE_ONLY | UR_MEM_FLAG_READ_ONLY;
/// Flags that require a host pointer.
const WITH_POINTER: ur_mem_flags_t =
    UR_MEM_FLAG_USE_HOST_POINTER | UR_MEM_FLAG_ALLOC_COPY_HOST_POINTER;
/// Flags for the location of a buffer's memory.
const PLACE: ur_mem_flags_t = WITH_POINTER | UR_MEM_FLAG_ALLOC_HOST_POINTER;

/// A buffer, or a part of a buffer.
pub(crate) struct Buffer {
    context: Ref<Context>,
    storage: StorageUser,
    /// The offset of the buffer in the storage, and its length, in bytes.
    offset: usize,
    len: usize,
    /// The kernels' access, or 0 if the creator specified none.
    kernel_access: ur_mem_flags_t,
    is_part: bool,
    mappings: Mappings,
}

impl Buffer {
    /// Creates a buffer that consists of a whole storage.
    fn new(context: Ref<Context>, storage: Arc<Storage>, kernel_access: ur_mem_flags_t) -> Self {
        Self {
            context,
            offset: 0,
            len: storage.len(),
            storage: StorageUser(storage),
            kernel_access,
            is_part: false,
            mappings: Mappings::default(),
        }
    }

    pub(super) fn context(&self) -> &Ref<Context> {
        &self.context
    }

    /// Returns the length in bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn native_handle(&self) -> ur_native_handle_t {
        native::handle(&self.storage, self.offset)
    }

    /// Returns a range of the buffer for a command. The range keeps the memory alive.
    ///
    /// # Errors
    /// Returns `INVALID_SIZE` if the range exceeds the buffer.
    pub(crate) fn range(
        &self,
        destination: &dyn Destination,
        offset: usize,
        len: usize,
    ) -> Result<MemoryRange> {
        let offset = self.place(offset, len)?;
        self.storage.range(destination, offset, len)
    }

    /// Returns the range of the whole buffer for a kernel.
    ///
    /// # Errors
    /// Returns `INVALID_MEM_OBJECT` for a buffer of another context or device.
    pub(crate) fn for_kernel(&self, destination: &dyn Destination) -> Result<MemoryRange> {
        let (own, _) = self.context.first();
        let is_near = own.shares_memory_with(destination.device()) || !self.storage.is_on_device();
        if !Arc::ptr_eq(self.context.state(), destination.context().state()) || !is_near {
            return Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_MEM_OBJECT,
                "a kernel takes buffers of its queue's context, which lie on its first device",
            ));
        }
        self.range(destination, 0, self.len)
    }

    /// Checks a range of the buffer, and returns its offset in the storage.
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

entry_points! {
    pub(super) fn create(
        context: Handle<Context>,
        flags: ur_mem_flags_t,
        size: usize,
        properties: MaybeIn<ur_buffer_properties_t>,
        created: Out<ur_mem_handle_t>,
    ) {
        // Structures that are chained to the properties (a location, a channel) are only hints.
        let pointer = properties.and_then(|properties| NonNull::new(properties.pHost.cast()));
        check_flags(flags, pointer.is_some())?;
        if size == 0 {
            return Err(Failure::of(ur_result_t::UR_RESULT_ERROR_INVALID_BUFFER_SIZE));
        }
        let (device, inner) = context.first();
        let is_direct = device.inner().info().capabilities.host_accessible_memory;
        // Kernels on any device of the context may use the user's address.
        let mut devices = context.devices();
        let sides = (
            is_direct,
            devices.all(|device| device.inner().info().capabilities.system_memory),
        );
        // SAFETY: the caller keeps the memory of the pointer valid, as its flags require.
        let storage = unsafe { Storage::create(inner, size, flags, pointer, sides) }?;
        let buffer = Buffer::new(context.to_ref(), storage, flags & KERNEL_ACCESS);
        created.put(MemoryObject::Buffer(buffer).hand_out())
    }

    pub(super) fn partition(
        parent: Handle<Buffer>,
        flags: ur_mem_flags_t,
        kind: ur_buffer_create_type_t,
        region: In<ur_buffer_region_t>,
        created: Out<ur_mem_handle_t>,
    ) {
        if kind != ur_buffer_create_type_t::UR_BUFFER_CREATE_TYPE_REGION {
            return Err(Failure::ENUMERATION);
        }
        let part = parent.part(flags, region)?;
        created.put(MemoryObject::Buffer(part).hand_out())
    }

    pub(super) fn create_with_native_handle(
        native: ur_native_handle_t,
        context: Handle<Context>,
        properties: MaybeIn<ur_mem_native_properties_t>,
        created: Out<ur_mem_handle_t>,
    ) {
        let is_owned = properties.is_some_and(|properties| properties.isNativeHandleOwned != 0);
        // SAFETY: the caller passes a native handle, and the owner keeps its memory alive.
        let (storage, offset) = unsafe { native::find(context, native, is_owned) }?;
        let buffer = Buffer {
            offset,
            len: storage.len() - offset,
            ..Buffer::new(context.to_ref(), storage, 0)
        };
        created.put(MemoryObject::Buffer(buffer).hand_out())
    }
}

/// Fails for unknown flags, for flags that exclude each other, and for a missing pointer.
///
/// # Errors
/// Returns `INVALID_ENUMERATION`, `INVALID_HOST_PTR`, or `INVALID_VALUE`.
pub(super) fn check_flags(flags: ur_mem_flags_t, has_pointer: bool) -> Result<()> {
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

impl Buffer {
    /// Creates a buffer over a region of this buffer's memory.
    ///
    /// # Errors
    /// Returns `INVALID_MEM_OBJECT` for a part of a part, `INVALID_ENUMERATION`, `INVALID_VALUE`
    /// for flags that conflict with the buffer's, and `INVALID_BUFFER_SIZE`.
    fn part(&self, flags: ur_mem_flags_t, region: &ur_buffer_region_t) -> Result<Self> {
        if self.is_part {
            return Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_MEM_OBJECT,
                "a part of a buffer cannot be divided",
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
                "a part of a buffer has the buffer's location, and does not extend the kernels' access",
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
