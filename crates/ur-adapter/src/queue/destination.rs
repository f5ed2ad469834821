//! Destinations of commands: a queue, a command buffer, or a check that submits nothing.

use super::Queue;
use crate::abi::failure::Result;
use crate::abi::object::{Ref, Shared};
use crate::context::Context;
use crate::discovery::Device;
use crate::memory::replicas::MemoryUse;

/// The destination for which a command is created.
pub(crate) trait Destination {
    /// Returns the context in which the command is created.
    fn context(&self) -> &Ref<Context>;

    /// Returns the device for which the command is created.
    fn device(&self) -> &Ref<Device>;

    /// Returns whether the destination records commands that may run more than once. A recorded
    /// command keeps its memory alive even while it does not run, so freeing the memory must not
    /// wait for the command.
    fn is_recording(&self) -> bool;

    /// Notes that a command for this destination uses a memory object, and prepares the object for
    /// the command.
    ///
    /// # Errors
    /// Returns an error if the object's contents cannot be moved to the destination's device.
    fn note(&self, used: MemoryUse) -> Result<()>;
}

/// A destination for commands that are only checked and never submitted. The checks are those for a
/// submission to the queue, and they have no side effects.
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

    fn note(&self, _used: MemoryUse) -> Result<()> {
        Ok(())
    }
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

    fn note(&self, used: MemoryUse) -> Result<()> {
        T::note(self, used)
    }
}
