//! External memory from other graphics interfaces such as Vulkan, imported as file descriptors.
//!
//! External semaphores are not supported, because the adapter cannot distinguish a stream that
//! waits for a semaphore from a stream that hangs.

use super::image::{describe, refusal};
use crate::abi::boundary::{In, InMut, Out, entry_points, not_null};
use crate::abi::chain;
use crate::abi::failure::{Failure, Result};
use crate::abi::object::{Handle, Object, Ref, Shared, release_once};
use crate::abi::stub::{Reason, Stub};
use crate::context::Context;
use crate::context::bindless::Known;
use crate::discovery::Device;
use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use unified_runtime_sys::{
    ur_bool_t, ur_exp_external_mem_desc_t, ur_exp_external_mem_handle_t,
    ur_exp_external_mem_handle_t_, ur_exp_external_mem_type_t, ur_exp_file_descriptor_t,
    ur_exp_image_mem_native_handle_t, ur_image_desc_t, ur_image_format_t,
    ur_pfnBindlessImagesImportExternalSemaphoreExp_t,
    ur_pfnBindlessImagesReleaseExternalSemaphoreExp_t,
    ur_pfnBindlessImagesSignalExternalSemaphoreExp_t,
    ur_pfnBindlessImagesWaitExternalSemaphoreExp_t, ur_result_t, ur_structure_type_t,
};

/// The reason why external semaphores are not imported.
struct Semaphores;

impl Reason for Semaphores {
    const TEXT: &str = "this adapter imports no semaphores of other interfaces; events of other processes \
                        are opened by their handles";
}

pub(super) const SEMAPHORE_IMPORT: ur_pfnBindlessImagesImportExternalSemaphoreExp_t =
    Stub::<Semaphores>::STUB;
pub(super) const SEMAPHORE_RELEASE: ur_pfnBindlessImagesReleaseExternalSemaphoreExp_t =
    Stub::<Semaphores>::STUB;
pub(super) const SEMAPHORE_WAIT: ur_pfnBindlessImagesWaitExternalSemaphoreExp_t =
    Stub::<Semaphores>::STUB;
pub(super) const SEMAPHORE_SIGNAL: ur_pfnBindlessImagesSignalExternalSemaphoreExp_t =
    Stub::<Semaphores>::STUB;

/// A UR handle to external memory from another graphics interface.
pub(super) struct ExternalMemory {
    context: Ref<Context>,
    inner: crosshandle::image::ExternalMemory,
}

impl Object for ExternalMemory {
    type Opaque = ur_exp_external_mem_handle_t_;
}

impl ExternalMemory {
    /// Checks that the memory was imported into a context.
    ///
    /// # Errors
    /// Returns `INVALID_CONTEXT` if the memory belongs to another context.
    fn check_context(&self, context: &Context) -> Result<()> {
        match Arc::ptr_eq(self.context.state(), context.state()) {
            true => Ok(()),
            false => Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_CONTEXT,
                "this memory was imported into another context",
            )),
        }
    }
}

/// Returns whether a device can import external memory of this type. Only opaque file descriptors
/// are supported.
///
/// # Errors
/// Returns `INVALID_ENUMERATION` for an unknown type.
fn imports(device: &Device, kind: ur_exp_external_mem_type_t) -> Result<bool> {
    if kind.0 > ur_exp_external_mem_type_t::UR_EXP_EXTERNAL_MEM_TYPE_WIN32_NT_DX11_RESOURCE.0 {
        return Err(Failure::ENUMERATION);
    }
    Ok(device.views().is_some()
        && kind == ur_exp_external_mem_type_t::UR_EXP_EXTERNAL_MEM_TYPE_OPAQUE_FD)
}

/// Returns the file descriptor in a description. The caller retains the ownership of the
/// descriptor.
///
/// # Errors
/// Returns `INVALID_VALUE` if the description contains no file descriptor.
///
/// # Safety
/// The chain that starts at `desc.pNext` must satisfy the contract of [`chain::find`]. A file
/// descriptor in it must be open and belong to the caller.
unsafe fn descriptor(desc: &ur_exp_external_mem_desc_t) -> Result<BorrowedFd<'_>> {
    let kind = ur_structure_type_t::UR_STRUCTURE_TYPE_EXP_FILE_DESCRIPTOR;
    // SAFETY: the caller upholds this function's contract.
    let named = unsafe { chain::find::<ur_exp_file_descriptor_t>(desc.pNext, kind) };
    match named {
        // SAFETY: the caller ensures that the descriptor is open.
        Some(named) if named.fd >= 0 => Ok(unsafe { BorrowedFd::borrow_raw(named.fd) }),
        _ => Err(Failure::new(
            ur_result_t::UR_RESULT_ERROR_INVALID_VALUE,
            "the description contains no file descriptor",
        )),
    }
}

entry_points! {
    pub(super) fn supports_importing(
        device: Handle<Device>,
        kind: ur_exp_external_mem_type_t,
        supported: Out<ur_bool_t>,
    ) {
        supported.put(imports(device, kind)?.into())
    }

    /// Imports external memory. If the call succeeds, the adapter owns the file descriptor.
    pub(super) fn import(
        context: Handle<Context>,
        device: Handle<Device>,
        size: usize,
        kind: ur_exp_external_mem_type_t,
        desc: InMut<ur_exp_external_mem_desc_t>,
        imported: Out<ur_exp_external_mem_handle_t>,
    ) {
        let inner = context.on(device)?;
        if !imports(device, kind)? {
            return Err(Failure::unsupported(
                "this device imports no such memory of other interfaces; memory of other processes is opened by \
                 its handle",
            ));
        }
        if size == 0 {
            return Err(Failure::SIZE);
        }
        // SAFETY: the caller passes a valid chain, with an open file descriptor that it owns.
        let given = unsafe { descriptor(desc) }?;
        // The driver receives a duplicate. The caller therefore keeps its descriptor if the driver
        // refuses the memory.
        let own = given.try_clone_to_owned().map_err(|error| {
            Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_VALUE,
                format!("the descriptor {} cannot be used: {error}", given.as_raw_fd()),
            )
        })?;
        let inner = crosshandle::image::ExternalMemory::import(inner, own, size as u64)?;
        // SAFETY: the caller owned the descriptor, and transfers the ownership with this successful
        // call.
        drop(unsafe { OwnedFd::from_raw_fd(given.as_raw_fd()) });
        let context = context.to_ref();
        imported.put(Shared::hand_out(Shared::new(ExternalMemory { context, inner })))
    }

    /// Maps external memory as an image. The image keeps the memory alive, and is freed like any
    /// other image.
    pub(super) fn map_array(
        context: Handle<Context>,
        device: Handle<Device>,
        format: In<ur_image_format_t>,
        desc: In<ur_image_desc_t>,
        memory: Handle<ExternalMemory>,
        mapped: Out<ur_exp_image_mem_native_handle_t>,
    ) {
        context.on(device)?;
        memory.check_context(context)?;
        let (image, levels) = describe(format, desc)?;
        let whole = memory.inner.image(&image, levels).map_err(refusal)?;
        let known = match levels {
            1 => Known::Image(whole.level(0)?),
            _ => Known::Levels(whole),
        };
        mapped.put(context.state().bindless.add(known))
    }

    /// Maps external memory at an address. The mapping keeps the memory alive.
    pub(super) fn map_linear(
        context: Handle<Context>,
        device: Handle<Device>,
        offset: u64,
        size: u64,
        memory: Handle<ExternalMemory>,
        mapped: Out<*mut c_void>,
    ) {
        context.on(device)?;
        memory.check_context(context)?;
        let range = memory.inner.map(offset, size).map_err(|error| match error {
            crosshandle::Error::InvalidArgument(_) => {
                Failure::from(error).with_result(ur_result_t::UR_RESULT_ERROR_INVALID_SIZE)
            }
            error => error.into(),
        })?;
        mapped.put(context.state().bindless.add_mapping(range))
    }

    pub(super) fn free_linear(
        context: Handle<Context>,
        device: Handle<Device>,
        mapped: *mut c_void,
    ) {
        context.on(device)?;
        not_null(mapped)?;
        drop(context.state().bindless.remove_mapping(mapped)?);
        Ok(())
    }

    pub(super) fn release_memory(
        context: Handle<Context>,
        device: Handle<Device>,
        memory: ur_exp_external_mem_handle_t,
    ) {
        context.on(device)?;
        // SAFETY: the caller passes null, or a handle on which UR holds its only reference.
        unsafe { release_once::<ExternalMemory>(memory) }
    }
}
