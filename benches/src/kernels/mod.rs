//! Kernels of the host device, compared with the OpenCL runtime that runs them.

mod launches;

use crosshandle::Device;

use crate::harness::scenario::Scenario;

/// The scenarios of kernels, in the order of the table.
pub(crate) static SCENARIOS: &[&Scenario] = &[&launches::SCENARIO];

/// Returns the reason why this machine cannot measure kernels, if there is one.
pub(crate) fn unavailable() -> Option<String> {
    let host = match Device::find("host") {
        Ok(host) => host,
        Err(error) => return Some(error.to_string()),
    };
    host.kernels().err().map(|error| error.to_string())
}
