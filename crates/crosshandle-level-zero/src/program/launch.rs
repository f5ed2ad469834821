//! Launches, in the form that a list receives.

use super::kernel::LevelZeroKernel;
use crate::device::Gpu;
use crate::driver::{EventHandle, List};
use crosshandle_hal::Launch;
use crosshandle_types::error::{Error, Result};
use std::any::Any;
use std::sync::Arc;

/// Appends a launch to a list of a GPU, and sets `has_begun` when the list may have received the
/// launch. The list then signals an event.
///
/// # Safety
/// The launch and the event live until the list has run the launch, and the kernel's accesses are
/// sound.
pub(crate) unsafe fn launch(
    gpu: &Gpu,
    list: &List,
    launch: &Launch,
    signal: Option<EventHandle>,
    has_begun: &mut bool,
) -> Result<()> {
    let kernel: &dyn Any = &*launch.kernel;
    let kernel = kernel.downcast_ref::<LevelZeroKernel>();
    let kernel = kernel.filter(|kernel| std::ptr::eq(&*kernel.gpu, gpu));
    let kernel = kernel.ok_or_else(|| Error::invalid("this kernel is not this device's"))?;
    let shape = &launch.shape;
    let mut inner = kernel.lock();
    if !Arc::ptr_eq(inner.kernel.module().context(), list.context()) {
        return Err(Error::invalid(
            "this kernel is loaded in another of the driver's contexts",
        ));
    }
    let (groups, size) = match shape.threads {
        None => (shape.grid, shape.block),
        Some(threads) => kernel.groups(&inner, threads)?,
    };
    let mut offset = [0; 3];
    for (to, from) in offset.iter_mut().zip(shape.offset) {
        *to = u32::try_from(from)
            .map_err(|_| Error::invalid(format!("an offset of {from} has more than 32 bits")))?;
    }
    if offset != inner.offset {
        inner.kernel.set_offset(offset)?;
        inner.offset = offset;
    }
    inner.kernel.set_group_size(size)?;
    inner.kernel.set_arguments(&mut launch.arguments.kinds())?;
    *has_begun = true;
    let handle = inner.kernel.handle();
    // SAFETY: promised by the caller. The launch keeps the kernel.
    unsafe { list.launch(handle, groups, shape.is_cooperative, signal) }
}
