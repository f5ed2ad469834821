//! Access to UCX, which transfers memory contents: its declarations, its library, and a worker.

mod context;
pub(crate) mod library;
#[allow(clippy::all, clippy::undocumented_unsafe_blocks, dead_code, missing_docs)]
#[allow(missing_debug_implementations, non_camel_case_types, unreachable_pub)]
#[rustfmt::skip]
mod sys;
pub(crate) mod worker;

pub use library::UCX_VARIABLE;

use crate::error::Result;

/// Error codes with which UCX rejects a call regardless of the state of the connection.
pub(crate) const REFUSALS: [i32; 7] = [
    sys::UCS_ERR_NO_MEMORY as i32,
    sys::UCS_ERR_INVALID_PARAM as i32,
    sys::UCS_ERR_INVALID_ADDR as i32,
    sys::UCS_ERR_NOT_IMPLEMENTED as i32,
    sys::UCS_ERR_OUT_OF_RANGE as i32,
    sys::UCS_ERR_EXCEEDS_LIMIT as i32,
    sys::UCS_ERR_UNSUPPORTED as i32,
];

/// The UCX library that was found on this machine.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct UcxInfo {
    /// The version of the library.
    pub version: (u32, u32, u32),
    /// The path that was passed to the dynamic loader.
    pub path: std::path::PathBuf,
}

/// Returns the version and the path of the UCX library. Loads the library on first use.
///
/// # Errors
/// Returns [`Error::NoUcx`](crate::Error::NoUcx) if no usable library was found. Its text lists the
/// searched paths.
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
/// Returns [`Error::NoUcx`](crate::Error::NoUcx) if no usable library was found, or the error from
/// UCX.
pub fn ucx_transports() -> Result<Vec<String>> {
    context::transports()
}

#[cfg(test)]
mod tests {
    #[test]
    #[ignore = "needs UCX; `cargo xtask test` runs it"]
    fn every_machine_has_tcp() {
        let found = super::ucx_transports().expect("UCX");
        assert!(found.iter().any(|name| name == "tcp"), "{found:?}");
    }
}
