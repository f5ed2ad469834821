//! Command lists that are recorded once and executed any number of times.

use super::{DeviceHandle, DriverContext, Handle, ListHandle, QueueHandle, check, description};
use crosshandle_hal::{HostFunction, NativeRecording, Work};
use crosshandle_types::error::Result;
use crosshandle_types::sync::Mutex;
use level_zero_sys::ze_command_queue_mode_t;
use std::ptr;
use std::sync::Arc;

/// A command list to which the program appends commands, and a command queue that executes it.
pub(crate) struct RecordedList {
    context: Arc<DriverContext>,
    list: ListHandle,
    /// Locked during an execution, because the driver executes a list once at a time.
    queue: Mutex<QueueHandle>,
}

impl RecordedList {
    /// Creates an empty list for a group of the device's queues.
    pub(crate) fn create(
        context: &Arc<DriverContext>,
        device: DeviceHandle,
        group: u32,
    ) -> Result<Self> {
        let loader = &context.driver.loader;
        let mut desc = description!(
            ze_command_queue_desc_t,
            ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC
        );
        desc.ordinal = group;
        desc.mode = ze_command_queue_mode_t::ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS;
        let mut queue = ptr::null_mut();
        // SAFETY: our context, one of its devices, and a live result.
        let code =
            unsafe { (loader.zeCommandQueueCreate)(context.handle.0, device.0, &desc, &mut queue) };
        check("zeCommandQueueCreate", code)?;
        let mut created = Self {
            context: Arc::clone(context),
            list: Handle(ptr::null_mut()),
            queue: Mutex::new(Handle(queue)),
        };
        let mut desc = description!(ze_command_list_desc_t, ZE_STRUCTURE_TYPE_COMMAND_LIST_DESC);
        desc.commandQueueGroupOrdinal = group;
        // SAFETY: as above.
        let code = unsafe {
            (loader.zeCommandListCreate)(context.handle.0, device.0, &desc, &mut created.list.0)
        };
        check("zeCommandListCreate", code)?;
        Ok(created)
    }

    /// Executes the list, and waits until all of its commands are complete.
    fn execute(&self) -> Result<()> {
        let queue = self.queue.lock();
        let loader = &self.context.driver.loader;
        let mut list = self.list.0;
        // SAFETY: our queue and our list, which is closed and not being executed. The program
        // promised that the memory and the kernels of its commands are valid.
        let code = unsafe {
            (loader.zeCommandQueueExecuteCommandLists)(queue.0, 1, &mut list, ptr::null_mut())
        };
        check("zeCommandQueueExecuteCommandLists", code)?;
        // SAFETY: our queue.
        let code = unsafe { (loader.zeCommandQueueSynchronize)(queue.0, u64::MAX) };
        check("zeCommandQueueSynchronize", code)
    }
}

impl NativeRecording for RecordedList {
    fn raw(&self) -> usize {
        self.list.0.expose_provenance()
    }

    fn finish(self: Arc<Self>) -> Result<Work> {
        // SAFETY: our list. The program appends nothing any more.
        let code = unsafe { (self.context.driver.loader.zeCommandListClose)(self.list.0) };
        check("zeCommandListClose", code)?;
        let execute = move || self.execute().map_err(Into::into);
        Ok(Work::Call(HostFunction::Repeatable(Arc::new(execute))))
    }
}

impl Drop for RecordedList {
    fn drop(&mut self) {
        let (list, queue) = (self.list, *self.queue.lock());
        self.context.release("a recorded command list", |context| {
            let loader = &context.driver.loader;
            if !list.0.is_null() {
                // SAFETY: ours. Each execution has ended before its call returned.
                let code = unsafe { (loader.zeCommandListDestroy)(list.0) };
                check("zeCommandListDestroy", code)?;
            }
            // SAFETY: as above.
            let code = unsafe { (loader.zeCommandQueueDestroy)(queue.0) };
            check("zeCommandQueueDestroy", code)
        });
    }
}
