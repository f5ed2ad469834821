//! The entry points for contexts.

use super::{Context, Deleter};
use crate::abi::boundary::{Argument2, Call, MaybeIn, Out, entry_points};
use crate::abi::failure::{Failure, Result};
use crate::abi::native::of_driver;
use crate::abi::object::{Handle, HandleList, Handles, Ref, Shared, release, retain};
use crate::abi::query::{Answer, Query};
use crate::discovery::device::opencl_of;
use crate::discovery::{Adapter, Device, platform};
use crosshandle::native::NativeObject;
use std::ffi::c_void;
use unified_runtime_sys::{
    UR_CONTEXT_FLAGS_MASK, ur_context_dditable_t, ur_context_extended_deleter_t,
    ur_context_handle_t, ur_context_info_t, ur_context_native_properties_t,
    ur_context_properties_t, ur_device_handle_t, ur_native_handle_t, ur_result_t,
};

entry_points! {
    fn create(
        devices(count, first): Handles<Device>,
        properties: MaybeIn<ur_context_properties_t>,
        created: Out<ur_context_handle_t>,
    ) {
        let flags = properties.map_or(0, |properties| properties.flags);
        if flags & UR_CONTEXT_FLAGS_MASK != 0 {
            return Err(Failure::ENUMERATION);
        }
        if devices.is_empty() {
            return Err(Failure::SIZE);
        }
        let context = Context::create(devices.iter().map(Shared::to_ref))?;
        created.put(Shared::hand_out(Shared::new(context)))
    }

    fn get_info(
        context: Handle<Context>,
        name: ur_context_info_t,
        query(size, value, size_ret): Answer,
    ) {
        answer(context, name, query)
    }

    /// Returns the native context on the first device. The driver has a separate context for each
    /// device.
    fn get_native_handle(context: Handle<Context>, native: Out<ur_native_handle_t>) {
        let (_, inner) = context.first();
        if let Some(runtime) = opencl_of(inner.device()) {
            return native.put(runtime.context);
        }
        let of_driver = inner.native().map(NativeObject::raw);
        native.put(of_driver.unwrap_or_else(|| context.native_of_state()))
    }

    fn create_with_native_handle(
        native: ur_native_handle_t,
        adapter: Handle<Adapter>,
        devices(count, first): NativeDevices,
        properties: *const ur_context_native_properties_t,
        created: Out<ur_context_handle_t>,
    ) {
        let devices: Vec<_> = devices.iter().map(Shared::to_ref).collect();
        let context = if platform().devices().iter().any(|device| device.has_driver()) {
            // SAFETY: the caller passes a native context of the driver, and keeps that context
            // alive.
            unsafe { adopt(native, &devices) }?
        } else {
            let context = match Context::of_opencl(native, &devices)? {
                Some(context) => context,
                None => Context::of_native(native)?,
            };
            devices.iter().try_for_each(|device| context.on(device).map(drop))?;
            context
        };
        created.put(Shared::hand_out(Shared::new(context)))
    }

    fn set_extended_deleter(
        context: Handle<Context>,
        function: ur_context_extended_deleter_t,
        user_data: *mut c_void,
    ) {
        let function = function.ok_or(Failure::NULL_POINTER)?;
        context.add_deleter(Deleter { function, user_data });
        Ok(())
    }
}

/// An argument of an entry point that lists the devices of a native context. If the address is
/// null, the list is empty and the count is ignored.
struct NativeDevices;

impl Argument2 for NativeDevices {
    type A = u32;
    type B = *const ur_device_handle_t;
    type Value<'a> = HandleList<'a, Device>;

    unsafe fn read<'a>(
        count: u32,
        first: Self::B,
        call: &'a Call,
    ) -> Result<HandleList<'a, Device>> {
        if first.is_null() {
            return Ok(HandleList::empty());
        }
        // SAFETY: the caller upholds this function's contract.
        unsafe { Handles::<Device>::read(count, first, call) }
    }
}

/// Writes a property of a context to the caller's memory.
fn answer(context: &Shared<Context>, name: ur_context_info_t, query: Query<'_>) -> Result<()> {
    match name {
        ur_context_info_t::UR_CONTEXT_INFO_NUM_DEVICES => {
            query.value(context.devices().len() as u32)
        }
        ur_context_info_t::UR_CONTEXT_INFO_DEVICES => {
            let devices: Vec<_> = context.devices().map(|device| device.handle()).collect();
            query.list(&devices)
        }
        ur_context_info_t::UR_CONTEXT_INFO_REFERENCE_COUNT => query.value(context.references()),
        ur_context_info_t::UR_CONTEXT_INFO_USM_MEMCPY2D_SUPPORT
        | ur_context_info_t::UR_CONTEXT_INFO_USM_FILL2D_SUPPORT => query.truth(true),
        _ => Err(Failure::ENUMERATION),
    }
}

/// Creates a context from one of the driver's native contexts.
///
/// The program always keeps the ownership of the native context, even if the call requests a
/// transfer. Other objects may use the native context, and it must outlive all submitted work.
///
/// # Errors
/// Returns `INVALID_DEVICE` if the native context is not on all of `devices`.
///
/// # Safety
/// The caller must ensure that `native` is a context of the driver, and that it outlives all
/// objects that are created from it.
unsafe fn adopt(native: ur_native_handle_t, devices: &[Ref<Device>]) -> Result<Context> {
    let candidates = match devices {
        [] => platform().devices(),
        devices => devices,
    };
    let (mut adopted, mut refused) = (Vec::new(), None);
    for device in candidates {
        let options = crosshandle::ContextOptions::new();
        // SAFETY: the caller ensures that `native` is a context of the driver and outlives this
        // context.
        let context =
            unsafe { crosshandle::Context::adopt(device.inner(), of_driver(native), options) };
        match context {
            Ok(context) => adopted.push((Ref::clone(device), context)),
            Err(error) => refused = Some(error),
        }
    }
    match refused {
        // If the caller named devices, the native context must be on all of them. Otherwise it must
        // be on at least one device.
        _ if !adopted.is_empty() && (devices.is_empty() || adopted.len() == devices.len()) => {
            Ok(Context::on_devices(adopted))
        }
        Some(error) if devices.is_empty() => Err(error.into()),
        _ => Err(Failure::new(
            ur_result_t::UR_RESULT_ERROR_INVALID_DEVICE,
            "the native context does not have all of these devices",
        )),
    }
}

pub(crate) const TABLE: ur_context_dditable_t = ur_context_dditable_t {
    pfnCreate: Some(create),
    pfnRetain: Some(retain::<Context>),
    pfnRelease: Some(release::<Context>),
    pfnGetInfo: Some(get_info),
    pfnGetNativeHandle: Some(get_native_handle),
    pfnCreateWithNativeHandle: Some(create_with_native_handle),
    pfnSetExtendedDeleter: Some(set_extended_deleter),
};
