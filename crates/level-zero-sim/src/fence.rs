//! Fences, which a queue signals after it has executed lists.

use std::sync::Arc;

use level_zero_sys::*;

use crate::call::{INVALID_ENUMERATION, Result, entry, present, read, write};
use crate::context::Context;
use crate::device::Device;
use crate::event::{Signal, State, code};
use crate::handles::{self, Object};
use crate::ledger::Resource;
use crate::queue::Queue;
use crate::slot::{Slot, Slots};
use crate::space::UseCount;
use crate::wait::Deadline;

pub(crate) struct Fence {
    context: Arc<Context>,
    device: Arc<Device>,
    state: Arc<State>,
    /// Counts the queues that use the fence.
    pub(crate) use_count: UseCount,
}

impl Object for Fence {
    const NAME: &'static str = "fence";

    fn resource(&self) -> Resource {
        Resource::Fence
    }

    fn context(&self) -> Option<&Arc<Context>> {
        Some(&self.context)
    }
}

impl Fence {
    pub(crate) fn signal(&self) -> Signal {
        Signal::of(self.state.clone())
    }

    fn slot(&self) -> &Slot {
        match &*self.state {
            State::Slot(slot) => slot,
            State::Counter(_) => unreachable!("a fence is made of a slot"),
        }
    }

    fn wait(&self, timeout: u64) -> Result<()> {
        code(
            self.slot()
                .wait(Deadline::after(timeout), || self.device.is_lost()),
        )
    }
}

entry! {
    fn zeFenceCreate(
        queue: ze_command_queue_handle_t,
        desc: *const ze_fence_desc_t,
        fence: *mut ze_fence_handle_t,
    ) {
        let queue = handles::get::<Queue, _>(queue)?;
        let desc = read(desc)?;
        present(fence)?;
        if desc.flags & !ZE_FENCE_FLAG_SIGNALED != 0 {
            return Err(INVALID_ENUMERATION);
        }
        let slot = Slot { slots: Slots::new(1, false)?, index: 0 };
        if desc.flags != 0 {
            slot.complete((0, 0));
        }
        let (context, device) = queue.owner();
        write(fence, handles::create(Arc::new(Fence {
            context: context.clone(),
            device: device.clone(),
            state: Arc::new(State::Slot(slot)),
            use_count: UseCount::default(),
        }))?)
    }

    fn zeFenceDestroy(fence: ze_fence_handle_t) {
        let fence = handles::take::<Fence, _>(fence, |_| Ok(()))?;
        fence.use_count.check("the fence");
        Ok(())
    }

    fn zeFenceHostSynchronize(fence: ze_fence_handle_t, timeout: u64) {
        handles::get::<Fence, _>(fence)?.wait(timeout)
    }

    fn zeFenceQueryStatus(fence: ze_fence_handle_t) {
        handles::get::<Fence, _>(fence)?.wait(0)
    }

    fn zeFenceReset(fence: ze_fence_handle_t) {
        handles::get::<Fence, _>(fence)?.slot().reset();
        Ok(())
    }
}
