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
