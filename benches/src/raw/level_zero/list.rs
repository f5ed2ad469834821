//! Immediate command lists.

use std::ffi::c_void;
use std::ptr;

use anyhow::Result;
use level_zero_sys::{
    ZE_COMMAND_QUEUE_FLAG_IN_ORDER, ze_command_list_handle_t, ze_command_queue_mode_t,
    ze_event_handle_t,
};

use super::event::Signalled;
use super::memory::Memory;
use super::{Gpu, check, description};

/// An immediate command list that runs its commands in order, destroyed when dropped.
pub(crate) struct List {
    gpu: &'static Gpu,
    handle: ze_command_list_handle_t,
}

/// Returns the driver's handle of the event that a command signals, or null for none.
fn event_of(event: Option<&dyn Signalled>) -> ze_event_handle_t {
    event.map_or(ptr::null_mut(), |event| event.handle())
}

impl List {
    /// Creates a list on the first group of queues.
    pub(crate) fn create(gpu: &'static Gpu) -> Result<Self> {
        let mut desc = description!(
            ze_command_queue_desc_t,
            ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC
        );
        desc.flags = ZE_COMMAND_QUEUE_FLAG_IN_ORDER;
        desc.mode = ze_command_queue_mode_t::ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS;
        let mut handle = ptr::null_mut();
        let create = gpu.loader.zeCommandListCreateImmediate;
        // SAFETY: context and device live as long as the process; `handle` is valid for the result.
        let code = unsafe { create(gpu.context, gpu.device, &desc, &mut handle) };
        check("zeCommandListCreateImmediate", code)?;
        Ok(Self { gpu, handle })
    }

    /// Appends a signal. The event must live until the list has executed the signal.
    #[inline]
    pub(crate) fn signal(&self, event: &dyn Signalled) -> Result<()> {
        let append = self.gpu.loader.zeCommandListAppendSignalEvent;
        // SAFETY: list and event live. The scenarios drop an event after they have waited for all
        // lists that use it.
        check("zeCommandListAppendSignalEvent", unsafe {
            append(self.handle, event.handle())
        })
    }

    /// Appends a wait. The event must live until the list has executed the wait.
    #[inline]
    pub(crate) fn wait(&self, event: &dyn Signalled) -> Result<()> {
        let append = self.gpu.loader.zeCommandListAppendWaitOnEvents;
        let mut events = [event.handle()];
        // SAFETY: as for `signal`; `events` has one element.
        check("zeCommandListAppendWaitOnEvents", unsafe {
            append(self.handle, 1, events.as_mut_ptr())
        })
    }

    /// Appends a copy of the first `length` bytes, which signals `event`.
    #[inline]
    pub(crate) fn copy(
        &self,
        to: &Memory,
        from: &Memory,
        length: usize,
        event: Option<&dyn Signalled>,
    ) -> Result<()> {
        assert!(length <= to.length() && length <= from.length());
        let append = self.gpu.loader.zeCommandListAppendMemoryCopy;
        let (to, from) = (to.address(), from.address().cast_const());
        let event = event_of(event);
        // SAFETY: both allocations have `length` bytes, by the assertion. The scenarios drop memory
        // and events after they have waited for all lists that use them.
        check("zeCommandListAppendMemoryCopy", unsafe {
            append(self.handle, to, from, length, event, 0, ptr::null_mut())
        })
    }

    /// Appends a fill of the first `length` bytes with a pattern, which signals `event`.
    #[inline]
    pub(crate) fn fill(
        &self,
        to: &Memory,
        pattern: &[u8],
        length: usize,
        event: Option<&dyn Signalled>,
    ) -> Result<()> {
        assert!(length <= to.length());
        let append = self.gpu.loader.zeCommandListAppendMemoryFill;
        let bytes: *const c_void = pattern.as_ptr().cast();
        let event = event_of(event);
        // SAFETY: as for `copy`. The driver copies the pattern during the call.
        check("zeCommandListAppendMemoryFill", unsafe {
            append(
                self.handle,
                to.address(),
                bytes,
                pattern.len(),
                length,
                event,
                0,
                ptr::null_mut(),
            )
        })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: this object owns the list and destroys it once. The scenarios drop a list after
        // they have waited for its commands.
        unsafe { (self.gpu.loader.zeCommandListDestroy)(self.handle) };
    }
}
