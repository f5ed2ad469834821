//! Destinations of commands: submissions to queues, command buffers, and questions.

use super::Queue;
use crate::abi::object::{Ref, Shared};
use crate::context::Context;
use crate::discovery::Device;
use crate::memory::buffer::BufferUse;

/// A place that commands are made for.
pub(crate) trait Destination {
    /// Returns the context.
    fn context(&self) -> &Ref<Context>;

    /// Returns the device.
    fn device(&self) -> &Ref<Device>;

    /// Returns whether the command runs any number of times: then its memory is kept although nothing runs,
    /// and freeing it must not wait.
    fn is_recording(&self) -> bool;

    /// Notes that a command uses a buffer that wants to know of its queues.
    fn note(&self, buffer: BufferUse<'_>);
}

/// A question about commands that are never submitted: it is asked as if they were submitted to the queue, and leaves no
/// trace.
pub(crate) struct Question<'a>(pub(crate) &'a Queue);

impl Destination for Question<'_> {
    fn context(&self) -> &Ref<Context> {
        self.0.context()
    }

    fn device(&self) -> &Ref<Device> {
        self.0.device()
    }

    fn is_recording(&self) -> bool {
        false
    }

    fn note(&self, _buffer: BufferUse<'_>) {}
}

impl<T: Destination> Destination for Shared<T> {
    fn context(&self) -> &Ref<Context> {
        T::context(self)
    }

    fn device(&self) -> &Ref<Device> {
        T::device(self)
    }

    fn is_recording(&self) -> bool {
        T::is_recording(self)
    }

    fn note(&self, buffer: BufferUse<'_>) {
        T::note(self, buffer);
    }
}
