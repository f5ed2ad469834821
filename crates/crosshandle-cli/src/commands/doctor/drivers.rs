//! Checks of the backends' drivers, and of the libraries that links use.

use super::check::Check;
use crosshandle::handle::BackendKind;
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

#[cfg(not(feature = "links"))]
pub(super) fn ucx() -> Check {
    Check::note(
        "UCX, for links",
        "this program was built without links",
        "build it with the Cargo feature `links`",
    )
}

/// Checks UCX, which moves memory between hosts. Loads UCX.
#[cfg(feature = "links")]
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
    let all = BackendStatus::all();
    all.into_iter().flat_map(of_backend).collect()
}

fn of_backend(status: BackendStatus) -> impl Iterator<Item = Check> {
    let check = format!("backend {}", status.backend);
    let driver = match status.driver {
        Ok(found) => Check::ok(check, found),
        Err(missing) => Check::note(
            check,
            missing,
            "install its driver if this machine has such a device",
        ),
    };
    let together = status.runs_processes_together;
    let kernels = together.map(|together| kernels_of_two_processes(status.backend, together));
    [driver].into_iter().chain(kernels)
}

/// Says whether kernels of two processes run on one device at the same time.
fn kernels_of_two_processes(backend: BackendKind, together: Result<String, String>) -> Check {
    let check = format!("kernels of two processes on one {backend} device");
    match together {
        Ok(found) => Check::ok(check, found),
        Err(found) => Check::note(
            check,
            found,
            "let streams wait for the other process instead of kernels, or start MPS",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::check::Level;

    #[test]
    fn kernels_that_take_turns_are_told() {
        let check = |together| kernels_of_two_processes(BackendKind::Cuda, together);
        assert_eq!(check(Ok("with MPS".into())).level, Level::Ok);
        let without = check(Err("without MPS".into()));
        assert_eq!(without.level, Level::Note);
        assert_eq!(without.check, "kernels of two processes on one cuda device");
    }
}
