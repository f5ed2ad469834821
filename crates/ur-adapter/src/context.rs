//! Contexts: memory, events and queues on a set of devices.

use crate::adapter::Adapter;
use crate::boundary::{enter, not_null, put};
use crate::device::Device;
use crate::failure::{Failure, Result};
use crate::ipc::HandleBuffers;
use crate::native::{NativeHandles, of_driver};
use crate::object::{Object, Ref, Shared, from_handles, release, retain};
use crate::platform::platform;
use crate::query::Query;
use crate::{usm, virtual_memory};
use crosshandle::NativeObject;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};
use unified_runtime_sys::{
    UR_CONTEXT_FLAGS_MASK, ur_adapter_handle_t, ur_context_dditable_t,
    ur_context_extended_deleter_t, ur_context_handle_t, ur_context_handle_t_, ur_context_info_t,
    ur_context_native_properties_t, ur_context_properties_t, ur_device_handle_t,
    ur_native_handle_t, ur_result_t,
};

/// A context. Several UR contexts share one [`ContextState`] if they were made from one native
/// handle.
pub(crate) struct Context {
    state: Arc<ContextState>,
    deleters: Mutex<Vec<Deleter>>,
}

/// What a context holds.
pub(crate) struct ContextState {
    /// The devices, each with the library's context on it.
    devices: Vec<(Ref<Device>, crosshandle::Context)>,
    /// USM allocations, and memory opened from handles.
    pub(crate) usm: usm::Allocations,
    /// Reserved address ranges.
    pub(crate) ranges: virtual_memory::Ranges,
    /// The bytes of handles that were got and not put yet.
    pub(crate) handles: HandleBuffers,
}

/// A function to be called when the context goes.
struct Deleter {
    function: ur_context_extended_deleter_t,
    user_data: *mut c_void,
}

// SAFETY: the user data is only passed to the function, once.
unsafe impl Send for Deleter {}

static NATIVE: NativeHandles<ContextState> = NativeHandles::new();

impl Object for Context {
    type Opaque = ur_context_handle_t_;
}

impl Context {
    fn create(devices: Vec<Ref<Device>>) -> Result<Self> {
        let devices = devices
            .into_iter()
            .map(|device| {
                let context = crosshandle::Context::new(device.inner())?;
                Ok((device, context))
            })
            .collect::<Result<_>>()?;
        Ok(Self::on_devices(devices))
    }

    fn on_devices(devices: Vec<(Ref<Device>, crosshandle::Context)>) -> Self {
        Self::with_state(Arc::new(ContextState {
            devices,
            usm: usm::Allocations::default(),
            ranges: virtual_memory::Ranges::default(),
            handles: HandleBuffers::default(),
        }))
    }

    fn with_state(state: Arc<ContextState>) -> Self {
        Self {
            state,
            deleters: Mutex::default(),
        }
    }

    pub(crate) fn state(&self) -> &Arc<ContextState> {
        &self.state
    }

    /// Its devices, in the order in which it was made with them.
    pub(crate) fn devices(&self) -> impl ExactSizeIterator<Item = &Ref<Device>> {
        self.state.devices.iter().map(|(device, _)| device)
    }

    /// The library's context on a device.
    ///
    /// # Errors
    /// `INVALID_DEVICE` for one that the context was not made with.
    #[inline]
    pub(crate) fn on(&self, device: &Shared<Device>) -> Result<&crosshandle::Context> {
        self.state
            .devices
            .iter()
            .find(|(own, _)| std::ptr::eq(&**own, device))
            .map(|(_, context)| context)
            .ok_or_else(|| {
                Failure::new(
                    ur_result_t::UR_RESULT_ERROR_INVALID_DEVICE,
                    "the context was not created with this device",
                )
            })
    }

    /// Its first device, and the library's context on it: where things go that no device was named
    /// for.
    #[inline]
    pub(crate) fn first(&self) -> (&Ref<Device>, &crosshandle::Context) {
        let (device, context) = &self.state.devices[0];
        (device, context)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let deleters = self
            .deleters
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        for deleter in deleters.drain(..) {
            if let Some(function) = deleter.function {
                // SAFETY: the caller of `urContextSetExtendedDeleter` vouches for the function.
                unsafe { function(deleter.user_data) };
            }
        }
    }
}

unsafe extern "C" fn create(
    count: u32,
    devices: *const ur_device_handle_t,
    properties: *const ur_context_properties_t,
    created: *mut ur_context_handle_t,
) -> ur_result_t {
    enter(|| {
        not_null(devices)?;
        not_null(created)?;
        // SAFETY: the caller passes null or properties.
        let flags = unsafe { properties.as_ref() }.map_or(0, |properties| properties.flags);
        if flags & UR_CONTEXT_FLAGS_MASK != 0 {
            return Err(Failure::ENUMERATION);
        }
        if count == 0 {
            return Err(Failure::SIZE);
        }
        // SAFETY: the caller passes this many devices' handles.
        let devices = unsafe { devices_of(count, devices) }?;
        let context = Shared::new(Context::create(devices)?);
        // SAFETY: the caller passes a valid pointer.
        unsafe { put(created, Shared::hand_out(context)) }
    })
}

/// # Safety
/// As [`from_handles`].
unsafe fn devices_of(count: u32, devices: *const ur_device_handle_t) -> Result<Vec<Ref<Device>>> {
    let missing = ur_result_t::UR_RESULT_ERROR_INVALID_NULL_HANDLE;
    // SAFETY: as promised to this function.
    let devices = unsafe { from_handles::<Device>(devices, count, missing) }?;
    Ok(devices.map(Shared::to_ref).collect())
}

unsafe extern "C" fn get_info(
    handle: ur_context_handle_t,
    name: ur_context_info_t,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a context's handle and a place for the answer.
        let (context, query) = unsafe {
            (
                Shared::<Context>::from_handle(handle)?,
                Query::new(size, value, size_ret)?,
            )
        };
        answer(context, name, query)
    })
}

fn answer(context: &Shared<Context>, name: ur_context_info_t, query: Query) -> Result<()> {
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

unsafe extern "C" fn get_native_handle(
    handle: ur_context_handle_t,
    native: *mut ur_native_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a context's handle and a valid pointer.
        unsafe {
            let context = Shared::<Context>::from_handle(handle)?;
            let (_, inner) = context.first();
            // The driver has a context for each device.
            let native_of_driver = inner.native().map(NativeObject::raw);
            put(
                native,
                native_of_driver.unwrap_or_else(|| NATIVE.of(&context.state)),
            )
        }
    })
}

unsafe extern "C" fn create_with_native_handle(
    native: ur_native_handle_t,
    adapter: ur_adapter_handle_t,
    count: u32,
    devices: *const ur_device_handle_t,
    _properties: *const ur_context_native_properties_t,
    created: *mut ur_context_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes an adapter's handle.
        unsafe { Shared::<Adapter>::from_handle(adapter) }?;
        not_null(created)?;
        let devices = if devices.is_null() {
            Vec::new()
        } else {
            // SAFETY: the caller passes this many devices' handles.
            unsafe { devices_of(count, devices) }?
        };
        let context = if platform()
            .devices()
            .iter()
            .any(|device| device.has_driver())
        {
            // SAFETY: the caller passes a context of the driver, and keeps it.
            unsafe { adopt(native, &devices) }?
        } else {
            let context = Context::with_state(NATIVE.find(native)?);
            for device in &devices {
                context.on(device)?;
            }
            context
        };
        let context = Shared::new(context);
        // SAFETY: the caller passes a valid pointer.
        unsafe { put(created, Shared::hand_out(context)) }
    })
}

/// A context in one of the driver's. It stays the program's, whatever the properties say: others
/// may use it by then, and it has to outlive what was submitted.
///
/// # Errors
/// `INVALID_DEVICE` for devices that it is not on.
///
/// # Safety
/// It is a context of the driver, and lives as long as whatever is made of it.
unsafe fn adopt(native: ur_native_handle_t, devices: &[Ref<Device>]) -> Result<Context> {
    let candidates = match devices {
        [] => platform().devices(),
        devices => devices,
    };
    let (mut adopted, mut refused) = (Vec::new(), None);
    for device in candidates {
        // SAFETY: as promised to this function.
        let context = unsafe {
            let options = crosshandle::ContextOptions::new();
            crosshandle::Context::adopt(device.inner(), of_driver(native), options)
        };
        match context {
            Ok(context) => adopted.push((Ref::clone(device), context)),
            Err(error) => refused = Some(error),
        }
    }
    match refused {
        // On all that were named, or on those of all that it is on.
        _ if !adopted.is_empty() && (devices.is_empty() || adopted.len() == devices.len()) => {
            Ok(Context::on_devices(adopted))
        }
        Some(error) if devices.is_empty() => Err(error.into()),
        _ => Err(Failure::new(
            ur_result_t::UR_RESULT_ERROR_INVALID_DEVICE,
            "this context of the driver is not on all of these devices",
        )),
    }
}

unsafe extern "C" fn set_extended_deleter(
    handle: ur_context_handle_t,
    function: ur_context_extended_deleter_t,
    user_data: *mut c_void,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a context's handle.
        let context = unsafe { Shared::<Context>::from_handle(handle) }?;
        if function.is_none() {
            return Err(Failure::NULL_POINTER);
        }
        let mut deleters = context
            .deleters
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        deleters.push(Deleter {
            function,
            user_data,
        });
        Ok(())
    })
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
