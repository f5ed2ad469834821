//! Decides which GPU memory UCX accesses directly, and registers it.

use super::{DataPath, Endpoint};
use crate::error::Result;
use crate::options::Staging;
use crate::ucx::worker::Registration;
use crosshandle::Context;
use crosshandle::device::dlpack;

/// Name prefixes of transports with which network cards access GPU memory directly. With other
/// transports, UCX copies GPU memory in small pieces (8 KiB over TCP), even if it also uses
/// `cuda_ipc`.
const REACH_GPUS: [&str; 2] = ["rc", "dc"];

impl DataPath {
    /// Returns `true` if UCX should directly access memory on the context's device. The host cannot
    /// access such memory.
    pub(crate) fn moves_memory_of(&self, context: &Context) -> bool {
        let is_cuda = context.device().info().dlpack_type == dlpack::CUDA;
        if !is_cuda || self.staging == Staging::Always {
            return false;
        }
        let knows_cuda = self.shared().worker.knows_cuda().unwrap_or(false);
        let reaches = |name: &String| REACH_GPUS.iter().any(|begin| name.starts_with(begin));
        knows_cuda
            && (self.staging == Staging::WhereNeeded || self.transports().iter().any(reaches))
    }

    /// Returns the names of the transports that the endpoint uses. The list is empty if no endpoint
    /// exists.
    pub(crate) fn transports(&self) -> Vec<String> {
        let shared = self.shared();
        match shared.endpoint {
            Endpoint::Made => shared.worker.transports().unwrap_or_default(),
            _ => Vec::new(),
        }
    }

    /// Registers memory on a CUDA GPU, so that the peer's UCX can access it.
    ///
    /// # Errors
    /// Returns an error if UCX cannot register the memory.
    ///
    /// # Safety
    /// The caller must uphold the contract of
    /// [`Worker::register`](crate::ucx::worker::Worker::register).
    pub(crate) unsafe fn register_cuda(
        &self,
        start: *mut u8,
        len: usize,
        is_writable: bool,
    ) -> Result<Registration> {
        // SAFETY: the caller's promise.
        unsafe { self.shared().worker.register_cuda(start, len, is_writable) }
    }
}
