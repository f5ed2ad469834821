//! Checks of the backends' drivers, and of the libraries that links use.

use super::check::Check;
use crosshandle::{Device, device::BackendStatus};

/// Checks the runtime that runs kernels on the host. Loads the runtime.
pub(super) fn host_kernels() -> Check {
    let name = "kernels on the host";
    let found = Device::find("host").and_then(|host| {
        host.kernels()?;
        Ok(host.kernel_runtime().unwrap_or_default())
    });
    match found {
        Ok(runtime) => Check::ok(name, runtime),
        Err(missing) => Check::note(
            name,
            missing.to_string(),
            "only programs with kernels need a runtime: memory and events can be shared without one",
        ),
    }
}

/// Checks UCX, which moves memory between hosts. Loads UCX.
pub(super) fn ucx() -> Check {
    let name = "UCX, for links";
    let found = crosshandle_link::ucx().and_then(|ucx| {
        let (major, minor, release) = ucx.version;
        let transports = crosshandle_link::ucx_transports()?;
        Ok(format!(
            "{major}.{minor}.{release} ({}): {}",
            ucx.path.display(),
            transports.join(", ")
        ))
    });
    match found {
        Ok(found) => Check::ok(name, found),
        Err(missing) => Check::note(
            name,
            missing.to_string(),
            "without UCX, links to other hosts move memory over TLS",
        ),
    }
}

pub(super) fn check() -> Vec<Check> {
    BackendStatus::all()
        .into_iter()
        .map(|status| {
            let check = format!("backend {}", status.backend);
            match status.driver {
                Ok(found) => Check::ok(check, found),
                Err(missing) => Check::note(
                    check,
                    missing,
                    "install its driver if this machine has such a device",
                ),
            }
        })
        .collect()
}
