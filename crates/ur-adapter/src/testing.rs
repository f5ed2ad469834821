//! A context and a queue for unit tests. The test clients cover the behaviour that unit tests do
//! not.

use crate::abi::object::{Shared, release};
use crate::context::{Context, entry as contexts};
use crate::discovery::Device;
use crate::queue::{Queue, entry as queues};
use crosshandle::{Command, EventOptions};
use std::ptr::{null, null_mut};
use unified_runtime_sys::{ur_context_handle_t, ur_queue_handle_t, ur_result_t};

/// Panics if the result of a call is an error.
pub(crate) fn check(result: ur_result_t) {
    assert_eq!(result, ur_result_t::UR_RESULT_SUCCESS);
}

/// A context and an in-order queue on one device. Dropping the scene releases both.
pub(crate) struct Scene {
    pub(crate) context: ur_context_handle_t,
    pub(crate) queue: ur_queue_handle_t,
}

impl Scene {
    /// Creates a scene on the host device.
    pub(crate) fn new() -> Self {
        Self::on("host")
    }

    pub(crate) fn on(device: &str) -> Self {
        let device = Device::create(crosshandle::Device::find(device).expect("a device"));
        let (mut context, mut queue) = (null_mut(), null_mut());
        let handle = device.handle();
        let create_context = contexts::TABLE.pfnCreate.expect("filled");
        let create_queue = queues::TABLE.pfnCreate.expect("filled");
        // SAFETY: the handles are alive, and the pointers are valid.
        unsafe {
            check(create_context(1, &handle, null(), &mut context));
            check(create_queue(context, handle, null(), &mut queue));
        }
        Self { context, queue }
    }

    pub(crate) fn context(&self) -> &Shared<Context> {
        // SAFETY: the scene keeps the context alive.
        unsafe { Shared::from_handle(self.context) }.expect("a context")
    }

    pub(crate) fn queue(&self) -> &Shared<Queue> {
        // SAFETY: the scene keeps the queue alive.
        unsafe { Shared::from_handle(self.queue) }.expect("a queue")
    }

    /// Blocks the queue until the returned event is signalled.
    pub(crate) fn hold(&self) -> crosshandle::Event {
        let options = EventOptions::new().shareable(false);
        let event = self.context().first().1.create_event_with(options);
        let event = event.expect("an event");
        let hold = Command::barrier().after_value(&event, 1);
        self.queue().inner().submit(hold).expect("submitted");
        event
    }

    /// Waits until the queue has completed all commands.
    pub(crate) fn finish(&self) {
        self.queue().inner().finish().expect("finished");
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // SAFETY: the scene holds a reference to both handles, and does not use them afterwards.
        unsafe {
            check(release::<Queue>(self.queue));
            check(release::<Context>(self.context));
        }
    }
}
