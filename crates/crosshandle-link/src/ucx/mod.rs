//! UCX, which moves the bytes: its declarations, the library as it is found, and a worker.

mod context;
pub(crate) mod library;
mod sys;
pub(crate) mod worker;

pub use library::UCX_VARIABLE;

use crate::error::Result;

/// Codes with which UCX refuses what it is asked for, whatever becomes of the connection.
pub(crate) const REFUSALS: [i32; 7] = [
    sys::UCS_ERR_NO_MEMORY as i32,
    sys::UCS_ERR_INVALID_PARAM as i32,
    sys::UCS_ERR_INVALID_ADDR as i32,
    sys::UCS_ERR_NOT_IMPLEMENTED as i32,
    sys::UCS_ERR_OUT_OF_RANGE as i32,
    sys::UCS_ERR_EXCEEDS_LIMIT as i32,
    sys::UCS_ERR_UNSUPPORTED as i32,
];

/// What was found of UCX on this machine.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct UcxInfo {
    /// Its version.
    pub version: (u32, u32, u32),
    /// Its library, as it was asked for.
    pub path: std::path::PathBuf,
}

/// Returns what was found of UCX, which is loaded now if it was not.
///
/// # Errors
/// [`Error::NoUcx`](crate::Error::NoUcx), which says what was looked for.
pub fn ucx() -> Result<UcxInfo> {
    let ucx = library::get()?;
    Ok(UcxInfo {
        version: ucx.version(),
        path: ucx.path().to_owned(),
    })
}

/// Returns the transports that UCX finds on this machine, such as `tcp`, `sysv` and `cuda_copy`.
///
/// # Errors
/// [`Error::NoUcx`](crate::Error::NoUcx), or UCX's own.
pub fn ucx_transports() -> Result<Vec<String>> {
    context::transports()
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_machine_has_tcp() {
        match super::ucx_transports() {
            Ok(found) => assert!(found.iter().any(|name| name == "tcp"), "{found:?}"),
            Err(error) => eprintln!("SKIPPED every_machine_has_tcp: {error}"),
        }
    }
}
