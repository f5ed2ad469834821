//! Contexts, their devices, and the objects that they contain.
//!
//! - `allocations`, `spans`: memory to which users have pointers.
//! - `pools`: memory pools, and the default pools of devices.
//! - `ranges`: reserved address ranges.
//! - `bindless`: images that users identify by numeric handles.
//! - `handle_buffers`: the bytes of handles that users hold.
//! - `entry`: the entry points.

pub(crate) mod allocations;
pub(crate) mod bindless;
pub(crate) mod entry;
pub(crate) mod handle_buffers;
pub(crate) mod pools;
pub(crate) mod ranges;
mod spans;

use crate::abi::failure::{Failure, Result};
use crate::abi::lock::Lock;
use crate::abi::native::NativeHandles;
use crate::abi::object::{Object, Ref, Shared};
use crate::discovery::device::opencl_of;
use crate::discovery::{Device, platform};
use allocations::Allocations;
use bindless::BindlessImages;
use crosshandle::QueueOrder;
use handle_buffers::HandleBuffers;
use ranges::Ranges;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use unified_runtime_sys::{
    ur_context_handle_t_, ur_device_handle_t, ur_native_handle_t, ur_result_t,
};

/// A UR context handle. Contexts created from one native handle share a [`ContextState`].
pub(crate) struct Context {
    state: Arc<ContextState>,
    deleters: Lock<Vec<Deleter>>,
}

/// The devices of a context, and the objects that it contains.
pub(crate) struct ContextState {
    /// The number of this state. It is unique in the process and never reused.
    pub(crate) number: u64,
    /// The devices, each with its context in `crosshandle`.
    devices: Vec<(Ref<Device>, crosshandle::Context)>,
    /// For each device, the queue for the adapter's own copies.
    copies: Vec<OnceLock<crosshandle::Queue>>,
    /// Held while the contents of [replicas](crate::memory::replicas) are moved for a command,
    /// until the command is submitted.
    pub(crate) moving: Lock<()>,
    /// USM allocations, and memory that was opened from handles.
    pub(crate) usm: Allocations,
    /// Reserved address ranges.
    pub(crate) ranges: Ranges,
    /// Buffers with encoded handles that programs have not given back yet.
    pub(crate) handles: HandleBuffers,
    /// Images and views that users identify by numeric handles.
    pub(crate) bindless: BindlessImages,
}

/// A function that is called when the context is destroyed.
struct Deleter {
    function: unsafe extern "C" fn(*mut c_void),
    user_data: *mut c_void,
}

// SAFETY: the adapter only passes the user data to the function, and calls the function once. The
// caller of `urContextSetExtendedDeleter` allows this call from any thread.
unsafe impl Send for Deleter {}

static NATIVE: NativeHandles<ContextState> = NativeHandles::new();

/// The living context states by number. Calls that receive a pointer but no context search them.
static STATES: Lock<BTreeMap<u64, Weak<ContextState>>> = Lock::new(BTreeMap::new());

impl ContextState {
    fn new(devices: Vec<(Ref<Device>, crosshandle::Context)>) -> Arc<Self> {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let state = Arc::new(Self {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            copies: devices.iter().map(|_| OnceLock::new()).collect(),
            moving: Lock::default(),
            devices,
            usm: Allocations::default(),
            ranges: Ranges::default(),
            handles: HandleBuffers::default(),
            bindless: BindlessImages::default(),
        });
        let weak = Arc::downgrade(&state);
        STATES.lock().insert(state.number, weak);
        state
    }

    /// Returns the living context states in the order of their creation.
    pub(crate) fn all() -> Vec<Arc<Self>> {
        // The states are collected while the lock is held, and dropped by the caller after its
        // release. Dropping the last reference to a state acquires the lock.
        STATES.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// Returns the context state with this number. Returns `None` if it no longer exists.
    pub(crate) fn find(number: u64) -> Option<Arc<Self>> {
        STATES.lock().get(&number).and_then(Weak::upgrade)
    }

    /// Returns the number of devices.
    pub(crate) fn device_count(&self) -> usize {
        self.devices.len()
    }

    /// Returns the device at an index, and its context in `crosshandle`.
    pub(crate) fn device(&self, index: usize) -> (&Ref<Device>, &crosshandle::Context) {
        let (device, context) = &self.devices[index];
        (device, context)
    }

    /// Returns the index of the memory that a device uses: the index of the first device that
    /// shares this memory. Returns `None` for a device that does not share memory with a device of
    /// this context.
    pub(crate) fn memory_of(&self, device: &Device) -> Option<usize> {
        let mut devices = self.devices.iter();
        devices.position(|(own, _)| own.shares_memory_with(device))
    }

    /// Returns whether the devices have separate memories.
    pub(crate) fn has_several_memories(&self) -> bool {
        let mut devices = self.devices.iter();
        devices.any(|(device, _)| self.memory_of(device) != Some(0))
    }

    /// Returns a device's queue for the adapter's own copies. The queue is out-of-order, so the
    /// copies do not wait for each other.
    pub(crate) fn copies(&self, index: usize) -> Result<&crosshandle::Queue> {
        let place = &self.copies[index];
        if let Some(queue) = place.get() {
            return Ok(queue);
        }
        let queue = self
            .device(index)
            .1
            .create_queue_with(QueueOrder::OutOfOrder)?;
        Ok(place.get_or_init(|| queue))
    }

    /// Returns the device with this handle, and its context in `crosshandle`. If this context does
    /// not have the device, returns its first device.
    pub(crate) fn on_or_first(
        &self,
        handle: ur_device_handle_t,
    ) -> (&Ref<Device>, &crosshandle::Context) {
        let is_it = |(device, _): &&(Ref<Device>, _)| device.handle() == handle;
        let (device, context) = self.devices.iter().find(is_it).unwrap_or(&self.devices[0]);
        (device, context)
    }
}

impl Drop for ContextState {
    fn drop(&mut self) {
        STATES.lock().remove(&self.number);
    }
}

impl Object for Context {
    type Opaque = ur_context_handle_t_;
}

impl Context {
    fn create(devices: impl Iterator<Item = Ref<Device>>) -> Result<Self> {
        let devices = devices.map(|device| {
            let context = crosshandle::Context::new(device.inner())?;
            Ok((device, context))
        });
        Ok(Self::on_devices(devices.collect::<Result<_>>()?))
    }

    fn on_devices(devices: Vec<(Ref<Device>, crosshandle::Context)>) -> Self {
        Self::with_state(ContextState::new(devices))
    }

    fn with_state(state: Arc<ContextState>) -> Self {
        Self {
            state,
            deleters: Lock::default(),
        }
    }

    /// Creates a context from a native OpenCL context. Returns `None` if no device uses that OpenCL
    /// context, or if clients do not expect OpenCL objects. The new context has the devices in
    /// `named` that use the OpenCL context. If `named` is empty, it has all devices that do.
    fn of_opencl(native: ur_native_handle_t, named: &[Ref<Device>]) -> Result<Option<Self>> {
        let is_its = |device: &Ref<Device>| {
            let runtime = opencl_of(device.inner());
            runtime.is_some_and(|runtime| runtime.context == native)
        };
        let mut devices = match named {
            [] => platform().all_devices(),
            named => named.to_vec(),
        };
        devices.retain(is_its);
        if devices.is_empty() {
            return Ok(None);
        }
        Self::create(devices.into_iter()).map(Some)
    }

    /// Creates a context that shares the state behind a native handle.
    ///
    /// # Errors
    /// Returns the same errors as [`NativeHandles::find`].
    fn of_native(native: ur_native_handle_t) -> Result<Self> {
        NATIVE.find(native).map(Self::with_state)
    }

    /// Returns the native handle for the state, which is used if the device has no driver.
    fn native_of_state(&self) -> ur_native_handle_t {
        NATIVE.of(&self.state)
    }

    fn add_deleter(&self, deleter: Deleter) {
        self.deleters.lock().push(deleter);
    }

    /// Returns the state, which has the devices and the contained objects.
    pub(crate) fn state(&self) -> &Arc<ContextState> {
        &self.state
    }

    /// Returns the devices in the order in which the creator of the context passed them.
    pub(crate) fn devices(&self) -> impl ExactSizeIterator<Item = &Ref<Device>> {
        self.state.devices.iter().map(|(device, _)| device)
    }

    /// Returns the context in `crosshandle` for a device.
    ///
    /// # Errors
    /// Returns `INVALID_DEVICE` for a device that is not in this context.
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

    /// Returns the first device and its context in `crosshandle`. It is used by calls that name no
    /// device.
    #[inline]
    pub(crate) fn first(&self) -> (&Ref<Device>, &crosshandle::Context) {
        let (device, context) = &self.state.devices[0];
        (device, context)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        for deleter in self.deleters.get_mut().drain(..) {
            // SAFETY: the caller of `urContextSetExtendedDeleter` allows one call of the function
            // with this user data when the context is destroyed.
            unsafe { (deleter.function)(deleter.user_data) };
        }
    }
}
