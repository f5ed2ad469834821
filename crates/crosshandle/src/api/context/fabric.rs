//! Memory that other hosts of an NVLink fabric open directly.

use super::Context;
use crate::api::memory::Memory;
use crate::api::program::kernel::check_fork;
use crosshandle_hal::BackendFabric;
use crosshandle_handle::FabricHandle;
use crosshandle_os::process;
use crosshandle_types::error::{Error, Result};

impl Context {
    fn fabric(&self) -> Result<&dyn BackendFabric> {
        check_fork()?;
        self.core().backend().fabric().ok_or_else(|| {
            Error::Unsupported(format!(
                "{} has no memory that other hosts open directly (Capabilities::fabric_memory): use a link \
                 (crosshandle-link)",
                self.device().info().name
            ))
        })
    }

    /// Allocates at least `len` bytes of device memory that other hosts of the same NVLink fabric
    /// can open directly. Returns the memory, and the handle for those hosts.
    ///
    /// Processes of this host open it by its ordinary [handle](Memory::handle). The driver keeps
    /// the memory while any process of any host has it open.
    ///
    /// # Errors
    /// - [`Error::Unsupported`] for devices without a fabric.
    /// - [`Error::Driver`] with CUDA's `NOT_PERMITTED` if this process may not use an IMEX channel.
    pub fn allocate_fabric_memory(&self, len: usize) -> Result<(Memory, FabricHandle)> {
        if len == 0 {
            return Err(Error::invalid("no bytes are no memory"));
        }
        let (segment, driver) = self.fabric()?.create_segment(len)?;
        let whole = segment.len();
        let device = self.device().info().uuid;
        let handle = FabricHandle::new(process::host_identity(), device, whole as u64, driver);
        Ok((Memory::adopted(self.core(), segment, 0, whole), handle))
    }

    /// Opens fabric memory of this host or of another host of the same NVLink fabric. It needs no
    /// link, and contacts no process of the other host.
    ///
    /// The opened memory has no ordinary handle. Other processes open it by the same fabric handle.
    ///
    /// # Errors
    /// - The errors of [`allocate_fabric_memory`](Self::allocate_fabric_memory).
    /// - [`Error::Driver`] if the memory no longer exists or cannot be reached.
    pub fn open_fabric_memory(&self, handle: &FabricHandle) -> Result<Memory> {
        let len = usize::try_from(handle.len()).map_err(|_| Error::invalid("it is too long"))?;
        let segment = self
            .fabric()?
            .import_segment(&handle.driver_handle(), len)?;
        Ok(Memory::adopted(self.core(), segment, 0, len))
    }
}
