//! The ABI version, which the header compares with the library.

/// The ABI version of this header. It increases with each incompatible change.
pub const CROSSHANDLE_ABI_VERSION: u32 = 1;

/// A variable whose name contains the ABI version. Every file that includes the header refers to
/// it, so the linker and the loader refuse a library with another ABI version.
#[unsafe(no_mangle)]
pub static crosshandle_abi_1: u32 = CROSSHANDLE_ABI_VERSION;

/// Returns the ABI version of the library. A program that finds the functions with `dlsym` compares
/// it with `CROSSHANDLE_ABI_VERSION`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_abi_version() -> u32 {
    CROSSHANDLE_ABI_VERSION
}
