//! The Python class `DeviceEvent`.

use pyo3::prelude::*;

/// An event for kernels on a device: addresses that kernels take as arguments.
///
/// `crosshandle.kernels` has the functions for kernels of CuPy, and `crosshandle.triton` those for
/// Triton. The object must exist until the kernels have ended.
///
/// >>> context = crosshandle.Context("host")
/// >>> device_event = context.device_event(context.event(single_signaller=True))
/// >>> len(bytes(device_event))
/// 32
#[pyclass(frozen, module = "crosshandle")]
pub(crate) struct DeviceEvent(crosshandle::event::DeviceEvent);

impl DeviceEvent {
    pub(crate) fn new(event: crosshandle::event::DeviceEvent) -> Self {
        Self(event)
    }
}

#[pymethods]
impl DeviceEvent {
    /// The address of the event's words.
    #[getter]
    fn words(&self) -> usize {
        self.0.addresses().words
    }

    /// The address of the number of signals by code on the device. It is 0 if the code may only
    /// wait.
    #[getter]
    fn signalled(&self) -> usize {
        self.0.addresses().signalled
    }

    /// The address of the number of calls of `wait_next`.
    #[getter]
    fn awaited(&self) -> usize {
        self.0.addresses().awaited
    }

    /// The address of the word that tells kernels to stop.
    #[getter]
    fn abort(&self) -> usize {
        self.0.addresses().abort
    }

    /// The four addresses as the 32 bytes of `crosshandle_device_event`.
    fn __bytes__(&self) -> Vec<u8> {
        let own = self.0.addresses();
        [own.words, own.signalled, own.awaited, own.abort]
            .map(usize::to_ne_bytes)
            .concat()
    }
}

/// Returns the text of `crosshandle.cuh`.
#[pyfunction]
pub(crate) fn device_header() -> &'static str {
    include_str!("../../../crosshandle-c/include/crosshandle.cuh")
}
