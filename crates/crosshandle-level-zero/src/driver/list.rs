//! Immediate command lists.

use super::{
    DeviceHandle, DriverContext, EventHandle, Handle, KernelHandle, ListHandle, check, description,
    is_device_lost,
};
use crosshandle_types::error::{Error, Result};
use level_zero_sys::{
    Loader, ZE_COMMAND_QUEUE_FLAG_IN_ORDER, ze_command_queue_mode_t, ze_copy_region_t,
    ze_event_handle_t, ze_group_count_t, ze_result_t,
};
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

/// Converts the event that an append signals to the form that the driver takes.
pub(super) fn raw(signal: Option<EventHandle>) -> ze_event_handle_t {
    signal.map_or(ptr::null_mut(), |event| event.0)
}

/// An immediate command list, which runs its commands one after the other as they are appended.
/// Callers append from one thread at a time.
pub(crate) struct List {
    context: Arc<DriverContext>,
    handle: ListHandle,
    /// Whether dropping this value destroys the list.
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
    /// `handle` is an immediate in-order list of the driver. It lives as long as the result and all
    /// appended commands. If `is_given` is true, no other code destroys the list.
    pub(crate) unsafe fn adopt(
        context: &Arc<DriverContext>,
        handle: ListHandle,
        is_given: bool,
    ) -> Result<Self> {
        let loader = &context.driver.loader;
        let (mut is_immediate, mut owner) = (1, context.handle.0);
        // Drivers before Level Zero 1.9 do not report these properties.
        if context.driver.api >= (1, 9)
            && let (Some(ask), Some(find)) = (
                loader.zeCommandListIsImmediate,
                loader.zeCommandListGetContextHandle,
            )
        {
            // SAFETY: promised by the caller. The results are live.
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

    /// Wraps any list, so that commands can be appended to it.
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

    /// Returns whether `error` says that the device is lost, and the driver confirms that it no
    /// longer executes any command of the list. Drivers before Level Zero 1.6 do not report this,
    /// so the result is `false`.
    pub(crate) fn is_lost(&self, error: &Error) -> bool {
        let wait = self.context.driver.loader.zeCommandListHostSynchronize;
        let Some(wait) = wait.filter(|_| is_device_lost(error)) else {
            return false;
        };
        // SAFETY: an immediate list, for which any thread may wait.
        let code = unsafe { wait(self.handle.0, 0) };
        matches!(
            code,
            ze_result_t::ZE_RESULT_SUCCESS | ze_result_t::ZE_RESULT_ERROR_DEVICE_LOST
        )
    }

    /// Makes later commands wait for events. For each event, they wait for its latest signal at
    /// this time. If `signal` is given, the list signals that event after the waits.
    ///
    /// # Safety
    /// The events live until the list has passed this command.
    pub(crate) unsafe fn wait(
        &self,
        events: &[EventHandle],
        signal: Option<EventHandle>,
    ) -> Result<()> {
        // A handle is just a pointer, and the driver only reads the handles.
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

    /// Signals an event when all earlier commands are complete.
    ///
    /// # Safety
    /// The event lives until the list has passed this command.
    pub(crate) unsafe fn signal(&self, event: EventHandle) -> Result<()> {
        let append = self.context.driver.loader.zeCommandListAppendSignalEvent;
        // SAFETY: promised by the caller.
        let code = unsafe { append(self.handle.0, event.0) };
        check("zeCommandListAppendSignalEvent", code)
    }

    /// Copies between ranges that do not overlap, and then signals an event.
    ///
    /// # Safety
    /// Both ranges are memory of the driver or of the host. They and the event live until the list
    /// has passed this command.
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

    /// Copies a region, and then signals an event. Each side has its own row pitch and slice pitch,
    /// in bytes.
    ///
    /// # Safety
    /// The requirements of `copy` apply.
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
        // SAFETY: promised by the caller. The regions are live during the call.
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

    /// Fills memory with a repeated pattern, and then signals an event. The device must support the
    /// length of the pattern.
    ///
    /// # Safety
    /// The requirements of `copy` apply. The pattern itself may be dropped after the call, because
    /// the driver copies it immediately.
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
    /// Launches a kernel with its current settings on the given number of groups, and then signals
    /// an event.
    ///
    /// # Safety
    /// The kernel and the event live until the list has passed this command. The kernel's accesses
    /// are sound.
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
        // SAFETY: promised by the caller. The number of groups is live during the call.
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
            // SAFETY: ours. Its owner has seen that its last command is complete.
            let code = unsafe { (context.driver.loader.zeCommandListDestroy)(self.handle.0) };
            check("zeCommandListDestroy", code)
        });
    }
}
