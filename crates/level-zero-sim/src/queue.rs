//! Command queues, which execute regular lists.

use std::sync::Arc;

use level_zero_sys::*;

use crate::call::{Few, INVALID_SIZE, Result, entry, present, read, read_all, write};
use crate::checks::{Check, misuse};
use crate::context::{Context, pair};
use crate::device::Device;
use crate::engine::{Engine, Submitted};
use crate::event::code;
use crate::fence::Fence;
use crate::handles::{self, Object};
use crate::ledger::Resource;
use crate::list::{List, check_group};
use crate::wait::Deadline;
use crate::work::Work;

pub(crate) struct Queue {
    context: Arc<Context>,
    device: Arc<Device>,
    engine: Engine,
    synchronous: bool,
}

impl Object for Queue {
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
        check_group(desc.ordinal)?;
        write(queue, handles::create(Arc::new(Queue {
            context,
            engine: Engine::new(device.clone())?,
            device,
            synchronous: desc.mode == ze_command_queue_mode_t::ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS,
        }))?)
    }

    fn zeCommandQueueDestroy(queue: ze_command_queue_handle_t) {
        let queue = handles::take::<Queue, _>(queue, |_| Ok(()))?;
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
        let queue = handles::get::<Queue, _>(queue)?;
        queue.device.check()?;
        if count == 0 {
            return Err(INVALID_SIZE);
        }
        let fence = handles::get_optional::<Fence, _>(fence)?;
        let lists = read_all(lists.cast_const(), count)?;
        let lists = lists.into_iter().map(handles::get::<List, _>).collect::<Result<Few<_>>>()?;
        let all = lists.iter().map(|list| list.commands()).collect::<Result<Few<_>>>()?;
        for command in all.into_iter().flatten() {
            queue.engine.submit(command.submit());
        }
        let mut uses: Few<_> = lists.iter().map(|list| list.use_count.take()).collect();
        uses.extend(fence.iter().map(|fence| fence.use_count.take()));
        queue.engine.submit(Submitted {
            waits: Few::new(),
            work: Work::Nothing,
            signal: fence.map(|fence| fence.signal()),
            uses,
            regions: Few::new(),
        });
        match queue.synchronous {
            true => code(queue.engine.wait(Deadline::NEVER)),
            false => Ok(()),
        }
    }

    fn zeCommandQueueSynchronize(queue: ze_command_queue_handle_t, timeout: u64) {
        let queue = handles::get::<Queue, _>(queue)?;
        code(queue.engine.wait(Deadline::after(timeout)))
    }
}

impl Queue {
    pub(crate) fn owner(&self) -> (&Arc<Context>, &Arc<Device>) {
        (&self.context, &self.device)
    }
}
