//! Memory that other hosts of an NVLink fabric open directly.

use super::Memory;
use crate::api::context::Context;
use crate::api::program::kernel::check_fork;
use crosshandle_hal::BackendFabric;
use crosshandle_handle::FabricHandle;
use crosshandle_os::process;
use crosshandle_types::error::{Error, Result};

fn fabric(context: &Context) -> Result<&dyn BackendFabric> {
    check_fork()?;
    context.core().backend().fabric().ok_or_else(|| {
        Error::Unsupported(format!(
            "{} has no memory that other hosts open directly (Capabilities::fabric_memory): use a link \
             (crosshandle-link)",
            context.device().info().name
        ))
    })
}

impl Memory {
    /// Allocates at least `len` bytes of device memory that other hosts of the same NVLink fabric
    /// can open directly. Returns the memory, and the handle for those hosts.
    ///
    /// Processes of this host open it by its ordinary [handle](Self::handle). The driver keeps
    /// the memory while any process of any host has it open.
    ///
    /// # Errors
    /// - [`Error::Unsupported`] for devices without a fabric.
    /// - [`Error::Driver`] with CUDA's `NOT_PERMITTED` if this process may not use an IMEX channel.
    pub fn allocate_fabric(context: &Context, len: usize) -> Result<(Self, FabricHandle)> {
        if len == 0 {
            return Err(Error::invalid("no bytes are no memory"));
        }
        let (segment, driver) = fabric(context)?.create_segment(len)?;
        let whole = segment.len();
        let (device, host) = (context.device().info(), process::host_identity());
        let handle = FabricHandle::new(device.backend, host, device.uuid, whole as u64, driver);
        Ok((Self::adopted(context.core(), segment, 0, whole), handle))
    }

    /// Opens fabric memory of this host or of another host of the same NVLink fabric. This call
    /// needs no link, and contacts no process of the other host.
    ///
    /// The opened memory has no ordinary handle. Other processes open it by the same fabric handle.
    ///
    /// # Errors
    /// - The errors of [`allocate_fabric`](Self::allocate_fabric).
    /// - [`Error::WrongBackend`] for memory of another backend's fabric.
    /// - [`Error::Driver`] if the memory no longer exists or cannot be reached.
    pub fn open_fabric(context: &Context, handle: &FabricHandle) -> Result<Self> {
        let len = usize::try_from(handle.len()).map_err(|_| Error::invalid("it is too long"))?;
        let fabric = fabric(context)?;
        let backend = context.device().info().backend;
        if handle.backend() != backend {
            return Err(Error::WrongBackend {
                handle: handle.backend(),
                context: backend,
            });
        }
        let segment = fabric.import_segment(&handle.driver_handle(), len)?;
        Ok(Self::adopted(context.core(), segment, 0, len))
    }
}
