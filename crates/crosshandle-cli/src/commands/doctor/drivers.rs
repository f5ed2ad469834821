//! Check of the backends' drivers.

use super::check::Check;
use crosshandle::BackendStatus;

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
