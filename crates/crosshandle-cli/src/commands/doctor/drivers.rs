//! Checks of the backends' drivers.

use super::row::Row;
use crosshandle::BackendStatus;

pub(super) fn check() -> Vec<Row> {
    BackendStatus::all()
        .into_iter()
        .map(|status| {
            let check = format!("backend {}", status.backend);
            match status.driver {
                Ok(found) => Row::ok(check, found),
                Err(missing) => Row::note(
                    check,
                    missing,
                    "install its driver if this machine has such a device",
                ),
            }
        })
        .collect()
}
