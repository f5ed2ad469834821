//! Command queues, which execute recorded command lists.

use std::sync::Arc;

use level_zero_sys::*;

use crate::call::{INVALID_ARGUMENT, UNSUPPORTED_ENUMERATION, UNSUPPORTED_FEATURE};
use crate::call::{entry, present, read, read_all, write};
use crate::checks::{Check, misuse};
use crate::context::{Context, pair};
use crate::device::Device;
use crate::device_info::QUEUE_GROUPS;
use crate::engine::Engine;
use crate::event::code;
use crate::handles::{self, Object};
use crate::ledger::Resource;
use crate::list::List;
use crate::wait::Deadline;

pub(crate) struct CommandQueue {
    context: Arc<Context>,
    device: Arc<Device>,
    engine: Engine,
}

impl Object for CommandQueue {
    const NAME: &'static str = "command queue";

    fn resource(&self) -> Resource {
        Resource::Queue
    }

    fn context(&self) -> Option<&Arc<Context>> {
        Some(&self.context)
    }
}

entry! {
    fn zeCommandQueueCreate(
        context: ze_context_handle_t,
        device: ze_device_handle_t,
        desc: *const ze_command_queue_desc_t,
        queue: *mut ze_command_queue_handle_t,
    ) {
        let (context, device) = pair(context, device)?;
        let desc = read(desc)?;
        present(queue)?;
        QUEUE_GROUPS.get(desc.ordinal as usize).ok_or(INVALID_ARGUMENT)?;
        if desc.mode == ze_command_queue_mode_t::ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS {
            return Err(UNSUPPORTED_ENUMERATION);
        }
        let engine = Engine::new(device.clone())?;
        write(queue, handles::create(Arc::new(CommandQueue { context, device, engine }))?)
    }

    fn zeCommandQueueDestroy(queue: ze_command_queue_handle_t) {
        let queue = handles::take::<CommandQueue, _>(queue, |_| Ok(()))?;
        if !queue.engine.is_idle() {
            misuse(Check::DestroyInUse, "the queue still has commands to execute");
        }
        Ok(())
    }

    fn zeCommandQueueExecuteCommandLists(
        queue: ze_command_queue_handle_t,
        count: u32,
        lists: *mut ze_command_list_handle_t,
        fence: ze_fence_handle_t,
    ) {
        let queue = handles::get::<CommandQueue, _>(queue)?;
        // No client of this driver uses fences.
        if !fence.is_null() {
            return Err(UNSUPPORTED_FEATURE);
        }
        for list in read_all(lists.cast_const(), count)? {
            handles::get::<List, _>(list)?.execute(&queue.device, &queue.engine)?;
        }
        Ok(())
    }

    fn zeCommandQueueSynchronize(queue: ze_command_queue_handle_t, timeout: u64) {
        let queue = handles::get::<CommandQueue, _>(queue)?;
        code(queue.engine.wait(Deadline::after(timeout)))
    }
}
