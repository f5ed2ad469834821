//! Buffers: memory that callers identify by a handle and an offset.

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
use crate::discovery::Device;
use crate::queue::destination::Destination;
use crosshandle::{Access, MemoryRange};
use mapping::Mappings;
use std::ptr::NonNull;
use std::sync::Arc;
use storage::{Storage, StorageUser};
use unified_runtime_sys::{
    UR_MEM_FLAG_ALLOC_COPY_HOST_POINTER, UR_MEM_FLAG_ALLOC_HOST_POINTER, UR_MEM_FLAG_READ_ONLY,
    UR_MEM_FLAG_READ_WRITE, UR_MEM_FLAG_USE_HOST_POINTER, UR_MEM_FLAG_WRITE_ONLY,
    UR_MEM_FLAGS_MASK, ur_buffer_create_type_t, ur_buffer_properties_t, ur_buffer_region_t,
    ur_mem_flags_t, ur_mem_handle_t, ur_mem_native_properties_t, ur_native_handle_t, ur_result_t,
};

/// Flags that specify how kernels access a buffer. A buffer has at most one of these flags.
pub(super) const KERNEL_ACCESS: ur_mem_flags_t =
    UR_MEM_FLAG_READ_WRITE | UR_MEM_FLAG_WRITE_ONLY | UR_MEM_FLAG_READ_ONLY;
/// Flags for which the caller must pass a host pointer.
const WITH_POINTER: ur_mem_flags_t =
    UR_MEM_FLAG_USE_HOST_POINTER | UR_MEM_FLAG_ALLOC_COPY_HOST_POINTER;
/// Flags that specify the location of a buffer's memory.
const PLACE: ur_mem_flags_t = WITH_POINTER | UR_MEM_FLAG_ALLOC_HOST_POINTER;

/// A UR buffer, or a sub-buffer of another buffer.
pub(crate) struct Buffer {
    context: Ref<Context>,
    /// The OpenCL object of the buffer, if a client has asked for it. It is dropped before the
    /// storage.
    object: native::Object,
    storage: StorageUser,
    /// The offset of the buffer in the storage, in bytes.
    offset: usize,
    len: usize,
    /// How kernels access the buffer. 0 if the creator of the buffer specified no access.
    kernel_access: ur_mem_flags_t,
    is_part: bool,
    mappings: Mappings,
}

impl Buffer {
    /// Creates a buffer that covers a whole storage.
    fn new(context: Ref<Context>, storage: Arc<Storage>, kernel_access: ur_mem_flags_t) -> Self {
        Self {
            context,
            object: native::Object::default(),
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

    /// Returns the length of the buffer in bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the native handle of the buffer on a device.
    pub(super) fn native_handle(&self, device: &Device) -> Result<ur_native_handle_t> {
        native::handle(
            &self.storage,
            device,
            self.offset..self.offset + self.len,
            &self.object,
        )
    }

    /// Returns part of the buffer as a memory range for a command with this access. The memory
    /// range keeps the memory alive.
    ///
    /// # Errors
    /// Returns `INVALID_SIZE` if the part exceeds the buffer.
    pub(crate) fn range(
        &self,
        destination: &dyn Destination,
        offset: usize,
        len: usize,
        access: Access,
    ) -> Result<MemoryRange> {
        let offset = self.place(offset, len)?;
        self.storage.range(destination, offset, len, access)
    }

    /// Returns the whole buffer as a memory range for a kernel argument. `flags` say how the kernel
    /// accesses the buffer. Without such flags, the kernel has the access that the creator of the
    /// buffer specified.
    ///
    /// # Errors
    /// Returns `INVALID_MEM_OBJECT` if the buffer belongs to another context, or if the kernel's
    /// device cannot access the buffer.
    pub(crate) fn for_kernel(
        &self,
        destination: &dyn Destination,
        flags: ur_mem_flags_t,
    ) -> Result<MemoryRange> {
        let (own, _) = self.context.first();
        let device = destination.device();
        let is_near = !self.storage.is_on_device()
            || own.shares_memory_with(device)
            || device.inner().reaches(self.storage.context().device());
        if !Arc::ptr_eq(self.context.state(), destination.context().state()) || !is_near {
            return Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_MEM_OBJECT,
                "the buffer must belong to the queue's context, and the queue's device must be able to access it",
            ));
        }
        let access = match flags & KERNEL_ACCESS {
            0 => self.kernel_access,
            access => access,
        };
        let access = match access {
            UR_MEM_FLAG_READ_ONLY => Access::ReadOnly,
            _ => Access::ReadWrite,
        };
        self.range(destination, 0, self.len, access)
    }

    /// Checks that a part is inside the buffer, and returns the part's offset in the storage.
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
        // The structures that can be chained to the properties, such as a location or a channel,
        // are only hints.
        let pointer = properties.and_then(|properties| NonNull::new(properties.pHost.cast()));
        check_flags(flags, pointer.is_some())?;
        if size == 0 {
            return Err(Failure::of(ur_result_t::UR_RESULT_ERROR_INVALID_BUFFER_SIZE));
        }
        let capabilities = |device: &Device| device.inner().info().capabilities;
        // Kernels on each device of the context may access the memory at the user's address.
        let sides = (
            context.devices().all(|device| capabilities(device).host_accessible_memory),
            context.devices().all(|device| capabilities(device).system_memory),
        );
        let has_several_memories = context.state().has_several_memories();
        let is_host = flags & (UR_MEM_FLAG_USE_HOST_POINTER | UR_MEM_FLAG_ALLOC_HOST_POINTER) != 0;
        let storage = if has_several_memories && !is_host {
            // SAFETY: the caller guarantees that the host pointer is readable.
            unsafe { Storage::replicated(context.state(), size, pointer) }?
        } else {
            let (_, inner) = context.first();
            // SAFETY: the caller guarantees that the host pointer is valid for as long as the flags
            // require.
            unsafe { Storage::create(inner, size, flags, pointer, sides, has_several_memories) }?
        };
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
        // SAFETY: the caller passes a native handle. The owner of its memory keeps the memory
        // alive.
        let (storage, offset) = unsafe { native::find(context, native, is_owned) }?;
        let buffer = Buffer {
            offset,
            len: storage.len() - offset,
            ..Buffer::new(context.to_ref(), storage, 0)
        };
        created.put(MemoryObject::Buffer(buffer).hand_out())
    }
}

/// Checks the flags for a buffer or an image.
///
/// # Errors
/// Returns `INVALID_ENUMERATION` for unknown flags, and `INVALID_VALUE` for flags that exclude each
/// other. Returns `INVALID_HOST_PTR` if a host pointer is missing or not allowed.
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
    /// Creates a sub-buffer that covers a region of this buffer.
    ///
    /// # Errors
    /// - `INVALID_MEM_OBJECT` if this buffer is itself a sub-buffer.
    /// - `INVALID_ENUMERATION` for unknown flags.
    /// - `INVALID_VALUE` if the flags conflict with those of this buffer.
    /// - `INVALID_BUFFER_SIZE` if the region is empty or exceeds this buffer.
    fn part(&self, flags: ur_mem_flags_t, region: &ur_buffer_region_t) -> Result<Self> {
        if self.is_part {
            return Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_MEM_OBJECT,
                "a sub-buffer cannot have sub-buffers",
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
                "a sub-buffer has the location of its buffer, and cannot extend the access of kernels",
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
