//! Queues, which run commands in order or out of order. An out-of-order command starts as soon as
//! the events that it waits for are signalled.

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

/// A UR queue handle. Queues created from one native handle share a [`QueueState`].
pub(crate) struct Queue {
    context: Ref<Context>,
    state: Arc<QueueState>,
}

/// A queue in `crosshandle`, with its device, its UR flags, and the state of its capture.
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

    /// Returns the context in which the queue was created.
    pub(crate) fn context(&self) -> &Ref<Context> {
        &self.context
    }

    /// Returns the device of the queue.
    pub(crate) fn device(&self) -> &Ref<Device> {
        &self.state.device
    }

    /// Returns the queue in `crosshandle`.
    #[inline]
    pub(crate) fn inner(&self) -> &crosshandle::Queue {
        &self.state.inner
    }

    /// Returns the slot that contains the queue's active capture, if any.
    #[inline]
    pub(crate) fn capture_slot(&self) -> &Arc<CaptureSlot> {
        &self.state.capture
    }

    /// Returns whether the queue runs its commands in order.
    pub(crate) fn is_in_order(&self) -> bool {
        self.state.flags & UR_QUEUE_FLAG_OUT_OF_ORDER_EXEC_MODE_ENABLE == 0
    }

    /// Returns whether events that this queue signals record timestamps.
    #[inline]
    pub(crate) fn is_profiling(&self) -> bool {
        self.state.flags & UR_QUEUE_FLAG_PROFILING_ENABLE != 0
    }

    /// Returns whether threads that wait for the queue's events should sleep immediately instead of
    /// spinning.
    #[inline]
    pub(crate) fn is_low_power(&self) -> bool {
        self.state.flags & UR_QUEUE_FLAG_LOW_POWER_EVENTS_SUPPORT_EXP != 0
    }
}

impl Drop for Queue {
    /// Keeps the context alive until the last command is complete. Running commands may use objects
    /// that only the context keeps alive, such as mapped address ranges.
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
            tracing::error!(%error, "a context may be destroyed before the commands that use it are complete");
        }
    }
}
