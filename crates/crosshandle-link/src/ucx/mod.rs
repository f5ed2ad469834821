//! UCX, which moves the bytes: its declarations, the library as it is found, and a worker.

pub(crate) mod library;
mod sys;
pub(crate) mod worker;

pub use library::UCX_VARIABLE;

use crate::error::Result;

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
    worker::transports()
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
