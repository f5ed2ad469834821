//! SPIR-V modules, as far as callers' errors are found in them: their beginning, and their specialization
//! constants.

use crate::abi::failure::{Failure, Result};
use crosshandle::ProgramImage;
use std::collections::HashMap;
use unified_runtime_sys::ur_result_t;

/// The first word of a module.
const MAGIC: u32 = 0x0723_0203;
/// Words of a module's header.
const HEADER: usize = 5;

/// Returns whether bytes begin as a module does.
pub(super) fn is_module(bytes: &[u8]) -> bool {
    bytes.first_chunk().map(|word| u32::from_le_bytes(*word)) == Some(MAGIC)
}

/// Refuses bytes that are no module. The compiler finds out whether it is a good one.
pub(super) fn check(bytes: &[u8]) -> Result<()> {
    if is_module(bytes) && bytes.len() >= 4 * HEADER && bytes.len().is_multiple_of(4) {
        return Ok(());
    }
    Err(Failure::new(
        ur_result_t::UR_RESULT_ERROR_INVALID_BINARY,
        "this is no module in SPIR-V, in little-endian order",
    ))
}

/// The bytes of the value of each specialization constant that is a number; `None` where they are not known.
pub(super) type Constants = HashMap<u32, Option<usize>>;

/// Returns the specialization constants of a module.
pub(super) fn constants(module: &[u8]) -> Constants {
    // SAFETY: it is not compiled, but only looked at.
    unsafe { ProgramImage::spirv(module) }.constant_sizes()
}

/// Refuses a value for a constant that there isn't, or of another size.
///
/// # Errors
/// `INVALID_SPEC_ID`, `INVALID_VALUE`.
pub(super) fn check_constant(known: &Constants, number: u32, value: &[u8]) -> Result<()> {
    match known.get(&number) {
        None => Err(Failure::new(
            ur_result_t::UR_RESULT_ERROR_INVALID_SPEC_ID,
            format!("the program has no specialization constant {number}"),
        )),
        Some(Some(size)) if *size != value.len() => Err(Failure::new(
            ur_result_t::UR_RESULT_ERROR_INVALID_VALUE,
            format!(
                "specialization constant {number} has {size} bytes, but the value {}",
                value.len()
            ),
        )),
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernels of the conformance suite, of which `scale` has a constant of 32 bits.
    const MODULE: &[u8] = include_bytes!("../../../conformance/kernels/kernels.spv");

    #[test]
    fn modules_and_their_constants_are_found() {
        check(MODULE).unwrap();
        let known = constants(MODULE);
        assert_eq!(known, HashMap::from([(0, Some(4))]));
        check_constant(&known, 0, &[0; 4]).unwrap();
        let failure = check_constant(&known, 0, &[0; 8]).unwrap_err();
        assert_eq!(failure.result(), ur_result_t::UR_RESULT_ERROR_INVALID_VALUE);
        let failure = check_constant(&known, 1, &[0; 4]).unwrap_err();
        assert_eq!(
            failure.result(),
            ur_result_t::UR_RESULT_ERROR_INVALID_SPEC_ID
        );
        for wrong in [&MODULE[..4], &MODULE[..21], &MODULE[1..], b"text", b""] {
            assert!(check(wrong).is_err());
        }
    }
}
