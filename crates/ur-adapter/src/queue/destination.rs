//! Destinations of commands: submissions to queues, command buffers, and checks without a
//! submission.

use super::Queue;
use crate::abi::object::{Ref, Shared};
use crate::context::Context;
use crate::discovery::Device;
use crate::memory::buffer::BufferUse;

/// The destination for which a command is made.
pub(crate) trait Destination {
    /// Returns the context that the command is made in.
    fn context(&self) -> &Ref<Context>;

    /// Returns the device that the command is made for.
    fn device(&self) -> &Ref<Device>;

    /// Returns whether the command may run more than once. The command then keeps its memory alive
    /// even while it does not run, and freeing the memory must not wait for the command.
    fn is_recording(&self) -> bool;

    /// Records in a buffer that a command for this destination uses it.
    fn note(&self, buffer: BufferUse<'_>);
}

/// The destination of commands that are only checked and never submitted. They are checked as if
/// they were submitted to the queue, and have no side effects.
pub(crate) struct CheckOnly<'a>(pub(crate) &'a Queue);

impl Destination for CheckOnly<'_> {
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
