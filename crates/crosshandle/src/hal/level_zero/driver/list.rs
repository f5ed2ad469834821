//! Immediate command lists.

use super::{
    DeviceHandle, DriverContext, EventHandle, Handle, KernelHandle, ListHandle, check, description,
    is_device_lost,
};
use crate::error::{Error, Result};
use level_zero_sys::{
    Loader, ZE_COMMAND_QUEUE_FLAG_IN_ORDER, ze_command_queue_mode_t, ze_copy_region_t,
    ze_event_handle_t, ze_group_count_t, ze_result_t,
};
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

/// Returns the event that an append signals, as the driver takes it.
pub(super) fn raw(signal: Option<EventHandle>) -> ze_event_handle_t {
    signal.map_or(ptr::null_mut(), |event| event.0)
}

/// An immediate list: its commands run one after the other as they are appended. Callers append from
/// one thread at a time.
pub(crate) struct List {
    context: Arc<DriverContext>,
    handle: ListHandle,
    /// Dropping this value destroys it.
    is_ours: bool,
}

impl List {
    /// Creates a list on a group of the device's queues.
    pub(crate) fn create(
        context: &Arc<DriverContext>,
        device: DeviceHandle,
        group: u32,
    ) -> Result<Self> {
        let mut desc = description!(
            ze_command_queue_desc_t,
            ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC
        );
        desc.ordinal = group;
        desc.flags = ZE_COMMAND_QUEUE_FLAG_IN_ORDER;
        desc.mode = ze_command_queue_mode_t::ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS;
        let mut handle = ptr::null_mut();
        let create = context.driver.loader.zeCommandListCreateImmediate;
        // SAFETY: our context, one of its devices, and a live result.
        let code = unsafe { create(context.handle.0, device.0, &desc, &mut handle) };
        check("zeCommandListCreateImmediate", code)?;
        Ok(Self {
            context: Arc::clone(context),
            handle: Handle(handle),
            is_ours: true,
        })
    }

    /// Adopts a list that the program created.
    ///
    /// # Safety
    /// `handle` is an immediate in-order list of the driver, and lives as long as the result and
    /// all that was appended; no other code destroys a list that `is_given`.
    pub(crate) unsafe fn adopt(
        context: &Arc<DriverContext>,
        handle: ListHandle,
        is_given: bool,
    ) -> Result<Self> {
        let loader = &context.driver.loader;
        let (mut is_immediate, mut owner) = (1, context.handle.0);
        // Drivers before Level Zero 1.9 don't tell.
        if context.driver.api >= (1, 9)
            && let (Some(ask), Some(find)) = (
                loader.zeCommandListIsImmediate,
                loader.zeCommandListGetContextHandle,
            )
        {
            // SAFETY: promised by the caller, and live results.
            unsafe {
                let code = ask(handle.0, &mut is_immediate);
                check("zeCommandListIsImmediate", code)?;
                let code = find(handle.0, &mut owner);
                check("zeCommandListGetContextHandle", code)?;
            }
        }
        if is_immediate == 0 {
            return Err(Error::Unsupported(
                "a command list that has to be closed and executed is no queue; create an \
                 immediate one, in order"
                    .into(),
            ));
        }
        if owner != context.handle.0 {
            return Err(Error::invalid(
                "this command list belongs to another context; adopt that one first",
            ));
        }
        let mut list = Self::borrow(context, handle);
        list.is_ours = is_given;
        Ok(list)
    }

    /// Makes a value for any list, to append to it.
    pub(crate) fn borrow(context: &Arc<DriverContext>, handle: ListHandle) -> Self {
        Self {
            context: Arc::clone(context),
            handle,
            is_ours: false,
        }
    }

    pub(super) fn loader(&self) -> &Loader {
        &self.context.driver.loader
    }

    pub(crate) fn handle(&self) -> ListHandle {
        self.handle
    }

    /// Returns whether an error says that the device has stopped, and the driver confirms that it
    /// executes nothing of the list any more. Drivers before Level Zero 1.6 don't tell.
    pub(crate) fn is_lost(&self, error: &Error) -> bool {
        let wait = self.context.driver.loader.zeCommandListHostSynchronize;
        let Some(wait) = wait.filter(|_| is_device_lost(error)) else {
            return false;
        };
        // SAFETY: an immediate list, which any thread may wait for.
        let code = unsafe { wait(self.handle.0, 0) };
        matches!(
            code,
            ze_result_t::ZE_RESULT_SUCCESS | ze_result_t::ZE_RESULT_ERROR_DEVICE_LOST
        )
    }

    /// Lets what is appended later wait for events, each for the signal that is its latest now. With
    /// `signal`, signals that event after the waits.
    ///
    /// # Safety
    /// The events stay until the list is past this.
    pub(crate) unsafe fn wait(
        &self,
        events: &[EventHandle],
        signal: Option<EventHandle>,
    ) -> Result<()> {
        // A handle is a pointer and nothing else; the driver only reads them.
        let (count, events) = (events.len() as u32, events.as_ptr().cast_mut().cast());
        let Some(signal) = signal else {
            let append = self.context.driver.loader.zeCommandListAppendWaitOnEvents;
            // SAFETY: promised by the caller.
            let code = unsafe { append(self.handle.0, count, events) };
            return check("zeCommandListAppendWaitOnEvents", code);
        };
        let append = self.context.driver.loader.zeCommandListAppendBarrier;
        // SAFETY: promised by the caller.
        let code = unsafe { append(self.handle.0, signal.0, count, events) };
        check("zeCommandListAppendBarrier", code)
    }

    /// Signals an event once everything before is done.
    ///
    /// # Safety
    /// The event stays until the list is past this.
    pub(crate) unsafe fn signal(&self, event: EventHandle) -> Result<()> {
        let append = self.context.driver.loader.zeCommandListAppendSignalEvent;
        // SAFETY: promised by the caller.
        let code = unsafe { append(self.handle.0, event.0) };
        check("zeCommandListAppendSignalEvent", code)
    }

    /// Copies between ranges that don't overlap, and signals an event then.
    ///
    /// # Safety
    /// Both are memory of the driver's or of the host, and stay until the list is past this, as the
    /// event does.
    pub(crate) unsafe fn copy(
        &self,
        to: *mut c_void,
        from: *const c_void,
        len: usize,
        signal: Option<EventHandle>,
    ) -> Result<()> {
        let append = self.context.driver.loader.zeCommandListAppendMemoryCopy;
        let (list, signal) = (self.handle.0, raw(signal));
        // SAFETY: promised by the caller.
        let code = unsafe { append(list, to, from, len, signal, 0, ptr::null_mut()) };
        check("zeCommandListAppendMemoryCopy", code)
    }

    /// Copies a region, with the bytes from one row and slice to the next on each side.
    ///
    /// # Safety
    /// As for `copy`.
    pub(crate) unsafe fn copy_region(
        &self,
        (to, to_pitch, to_slice_pitch): (*mut c_void, u32, u32),
        (from, from_pitch, from_slice_pitch): (*const c_void, u32, u32),
        [width, height, depth]: [u32; 3],
        signal: Option<EventHandle>,
    ) -> Result<()> {
        let region = ze_copy_region_t {
            originX: 0,
            originY: 0,
            originZ: 0,
            width,
            height,
            depth,
        };
        let append = self
            .context
            .driver
            .loader
            .zeCommandListAppendMemoryCopyRegion;
        // SAFETY: promised by the caller; the regions are live for the call.
        let code = unsafe {
            append(
                self.handle.0,
                to,
                &region,
                to_pitch,
                to_slice_pitch,
                from,
                &region,
                from_pitch,
                from_slice_pitch,
                raw(signal),
                0,
                ptr::null_mut(),
            )
        };
        check("zeCommandListAppendMemoryCopyRegion", code)
    }

    /// Repeats a pattern of a length that the device takes.
    ///
    /// # Safety
    /// As for `copy`. The driver copies the pattern at once.
    pub(crate) unsafe fn fill(
        &self,
        to: *mut c_void,
        pattern: &[u8],
        len: usize,
        signal: Option<EventHandle>,
    ) -> Result<()> {
        let append = self.context.driver.loader.zeCommandListAppendMemoryFill;
        // SAFETY: promised by the caller.
        let code = unsafe {
            append(
                self.handle.0,
                to,
                pattern.as_ptr().cast(),
                pattern.len(),
                len,
                raw(signal),
                0,
                ptr::null_mut(),
            )
        };
        check("zeCommandListAppendMemoryFill", code)
    }
}

impl List {
    /// Runs a kernel, with all that was set in it, on so many groups, and signals an event then.
    ///
    /// # Safety
    /// The kernel stays until the list is past this, as the event does, and what it does is sound.
    pub(crate) unsafe fn launch(
        &self,
        kernel: KernelHandle,
        groups: [u32; 3],
        is_cooperative: bool,
        signal: Option<EventHandle>,
    ) -> Result<()> {
        let loader = &self.context.driver.loader;
        let [x, y, z] = groups;
        let groups = ze_group_count_t {
            groupCountX: x,
            groupCountY: y,
            groupCountZ: z,
        };
        let (list, kernel, signal) = (self.handle.0, kernel.0, raw(signal));
        let (operation, append) = match is_cooperative {
            false => (
                "zeCommandListAppendLaunchKernel",
                loader.zeCommandListAppendLaunchKernel,
            ),
            true => (
                "zeCommandListAppendLaunchCooperativeKernel",
                loader.zeCommandListAppendLaunchCooperativeKernel,
            ),
        };
        // SAFETY: promised by the caller; the number of groups is live for the call.
        let code = unsafe { append(list, kernel, &groups, signal, 0, ptr::null_mut()) };
        check(operation, code)
    }

    pub(crate) fn context(&self) -> &Arc<DriverContext> {
        &self.context
    }
}

impl Drop for List {
    fn drop(&mut self) {
        if !self.is_ours {
            return;
        }
        self.context.release("a command list", |context| {
            // SAFETY: ours; its owner has seen its last command done.
            let code = unsafe { (context.driver.loader.zeCommandListDestroy)(self.handle.0) };
            check("zeCommandListDestroy", code)
        });
    }
}
