//! Memory objects: buffers and images, which have the same type of UR handle.

use super::buffer::{self, Buffer};
use super::image::{self, Image};
use crate::abi::boundary::{Out, entry_points};
use crate::abi::failure::{Failure, Result};
use crate::abi::object::{Handle, MaybeHandle, Object, Ref, Referent, Shared, release, retain};
use crate::abi::query::{Answer, LateAnswer};
use crate::context::Context;
use crate::discovery::Device;
use unified_runtime_sys::{
    ur_image_info_t, ur_mem_dditable_t, ur_mem_handle_t, ur_mem_handle_t_, ur_mem_info_t,
    ur_native_handle_t, ur_result_t,
};

/// The object behind a UR memory handle: a buffer or an image.
pub(crate) enum MemoryObject {
    Buffer(Buffer),
    Image(Image),
}

impl Object for MemoryObject {
    type Opaque = ur_mem_handle_t_;
}

impl MemoryObject {
    /// Creates the memory object, and returns its UR handle.
    pub(super) fn hand_out(self) -> ur_mem_handle_t {
        Shared::hand_out(Shared::new(self))
    }

    fn context(&self) -> &Ref<Context> {
        match self {
            Self::Buffer(buffer) => buffer.context(),
            Self::Image(image) => image.context(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Buffer(buffer) => buffer.len(),
            Self::Image(image) => image.len(),
        }
    }
}

fn wrong_kind(message: &'static str) -> Failure {
    Failure::new(ur_result_t::UR_RESULT_ERROR_INVALID_MEM_OBJECT, message)
}

/// An argument of an entry point that must be the handle of a buffer. An image gives an error.
impl Referent for Buffer {
    type Handle = ur_mem_handle_t_;
    type Reference<'a> = &'a Self;

    unsafe fn behind<'a>(handle: ur_mem_handle_t) -> Result<&'a Self> {
        // SAFETY: the caller upholds this function's contract.
        match &**unsafe { Shared::<MemoryObject>::from_handle(handle) }? {
            MemoryObject::Buffer(buffer) => Ok(buffer),
            MemoryObject::Image(_) => {
                Err(wrong_kind("this memory object is an image, not a buffer"))
            }
        }
    }
}

/// An argument of an entry point that must be the handle of an image. A buffer gives an error.
impl Referent for Image {
    type Handle = ur_mem_handle_t_;
    type Reference<'a> = &'a Self;

    unsafe fn behind<'a>(handle: ur_mem_handle_t) -> Result<&'a Self> {
        // SAFETY: the caller upholds this function's contract.
        match &**unsafe { Shared::<MemoryObject>::from_handle(handle) }? {
            MemoryObject::Image(image) => Ok(image),
            MemoryObject::Buffer(_) => {
                Err(wrong_kind("this memory object is a buffer, not an image"))
            }
        }
    }
}

entry_points! {
    fn get_info(
        object: Handle<MemoryObject>,
        name: ur_mem_info_t,
        query(size, value, size_ret): Answer,
    ) {
        match name {
            ur_mem_info_t::UR_MEM_INFO_SIZE => query.value(object.len()),
            ur_mem_info_t::UR_MEM_INFO_CONTEXT => query.value(object.context().handle()),
            ur_mem_info_t::UR_MEM_INFO_REFERENCE_COUNT => query.value(object.references()),
            _ => Err(Failure::ENUMERATION),
        }
    }

    fn get_image_info(
        object: Handle<MemoryObject>,
        name: ur_image_info_t,
        place(size, value, size_ret): LateAnswer,
    ) {
        match &**object {
            MemoryObject::Image(image) => image.answer(name, place.query(Failure::SIZE)?),
            // The call fails, so the caller's memory for the result is not checked.
            MemoryObject::Buffer(_) => {
                Err(wrong_kind("this memory object is a buffer, not an image"))
            }
        }
    }

    fn get_native_handle(
        object: Handle<MemoryObject>,
        device: MaybeHandle<Device>,
        native: Out<ur_native_handle_t>,
    ) {
        let context = object.context();
        let device = match device {
            Some(device) => {
                context.on(device)?;
                device
            }
            None => context.first().0,
        };
        native.put(match &**object {
            MemoryObject::Buffer(buffer) => buffer.native_handle(device)?,
            MemoryObject::Image(image) => image.native_handle(device)?,
        })
    }
}

/// The entry points for memory objects.
pub(crate) const TABLE: ur_mem_dditable_t = ur_mem_dditable_t {
    pfnImageCreate: Some(image::create),
    pfnBufferCreate: Some(buffer::create),
    pfnRetain: Some(retain::<MemoryObject>),
    pfnRelease: Some(release::<MemoryObject>),
    pfnBufferPartition: Some(buffer::partition),
    pfnGetNativeHandle: Some(get_native_handle),
    pfnBufferCreateWithNativeHandle: Some(buffer::create_with_native_handle),
    pfnImageCreateWithNativeHandle: Some(image::create_with_native_handle),
    pfnGetInfo: Some(get_info),
    pfnImageGetInfo: Some(get_image_info),
};
