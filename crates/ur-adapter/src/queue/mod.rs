//! Queues, which run commands in order, or as soon as the events that they wait for have happened.

pub(crate) mod destination;
pub(crate) mod end;
pub(crate) mod entry;
pub(crate) mod host_function;

use crate::abi::native::NativeHandles;
use crate::abi::object::{Object, Ref, Shared};
use crate::context::Context;
use crate::discovery::{Device, Finish};
use crate::enqueue::graph::slot::CaptureSlot;
use crosshandle::Command;
use end::QueueEnd;
use std::convert::Infallible;
use std::sync::{Arc, Weak};
use unified_runtime_sys::{
    UR_QUEUE_FLAG_LOW_POWER_EVENTS_SUPPORT_EXP, UR_QUEUE_FLAG_OUT_OF_ORDER_EXEC_MODE_ENABLE,
    UR_QUEUE_FLAG_PROFILING_ENABLE, ur_queue_flags_t, ur_queue_handle_t, ur_queue_handle_t_,
};

/// A queue. Several UR queues share one [`QueueState`] if they were made from one native handle.
pub(crate) struct Queue {
    context: Ref<Context>,
    state: Arc<QueueState>,
}

/// A queue of the library, with its device and flags.
pub(crate) struct QueueState {
    device: Ref<Device>,
    inner: crosshandle::Queue,
    flags: ur_queue_flags_t,
    end: Arc<QueueEnd>,
    capture: Arc<CaptureSlot>,
}

static NATIVE: NativeHandles<QueueState> = NativeHandles::new();

impl Object for Queue {
    type Opaque = ur_queue_handle_t_;
}

impl Finish for QueueState {
    fn finish(&self) -> crosshandle::Result<()> {
        self.inner.finish()
    }
}

impl Queue {
    fn create(
        context: &Shared<Context>,
        device: &Shared<Device>,
        inner: crosshandle::Queue,
        flags: ur_queue_flags_t,
    ) -> ur_queue_handle_t {
        let state = Arc::new_cyclic(|state| QueueState {
            device: device.to_ref(),
            inner,
            flags,
            end: QueueEnd::new(Weak::clone(state)),
            capture: Arc::default(),
        });
        let registered = Arc::downgrade(&state);
        device.register_queue(registered);
        let context = context.to_ref();
        Shared::hand_out(Shared::new(Self { context, state }))
    }

    /// Returns the context that the queue was made in.
    pub(crate) fn context(&self) -> &Ref<Context> {
        &self.context
    }

    pub(crate) fn device(&self) -> &Ref<Device> {
        &self.state.device
    }

    /// Returns the library's queue.
    #[inline]
    pub(crate) fn inner(&self) -> &crosshandle::Queue {
        &self.state.inner
    }

    #[inline]
    pub(crate) fn capture_slot(&self) -> &Arc<CaptureSlot> {
        &self.state.capture
    }

    /// Returns whether commands run in order.
    pub(crate) fn is_in_order(&self) -> bool {
        self.state.flags & UR_QUEUE_FLAG_OUT_OF_ORDER_EXEC_MODE_ENABLE == 0
    }

    /// Returns whether the queue's events record timestamps.
    #[inline]
    pub(crate) fn is_profiling(&self) -> bool {
        self.state.flags & UR_QUEUE_FLAG_PROFILING_ENABLE != 0
    }

    /// Returns whether threads that wait for the queue's events should sleep at once.
    #[inline]
    pub(crate) fn is_low_power(&self) -> bool {
        self.state.flags & UR_QUEUE_FLAG_LOW_POWER_EVENTS_SUPPORT_EXP != 0
    }
}

impl Drop for Queue {
    /// Keeps the context alive until the last command is done. Running commands may use objects
    /// that only the context keeps alive, such as addresses with physical memory.
    fn drop(&mut self) {
        if self.inner().is_idle() {
            return;
        }
        let context = Ref::clone(&self.context);
        let release = Command::call(move || {
            drop(context);
            Ok::<_, Infallible>(())
        });
        if let Err(error) = self.submit_last(release) {
            tracing::error!(%error, "a context may end before the commands that use it");
        }
    }
}
