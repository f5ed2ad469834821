//! SPIR-V modules. The adapter reads the header, the specialization constants, the maximum
//! work-group sizes, and the sizes of kernel parameters.

use crate::abi::failure::{Failure, Result};
use crosshandle::kernel::ProgramImage;
use std::collections::HashMap;
use unified_runtime_sys::ur_result_t;

/// The first word of a SPIR-V module.
const MAGIC: u32 = 0x0723_0203;
/// Number of words in the header of a SPIR-V module.
const HEADER: usize = 5;

/// Returns whether the bytes start like a SPIR-V module.
pub(super) fn is_module(bytes: &[u8]) -> bool {
    bytes.first_chunk().map(|word| u32::from_le_bytes(*word)) == Some(MAGIC)
}

/// Returns `INVALID_BINARY` if the bytes do not start like a SPIR-V module. The compiler decides
/// whether the module is valid.
pub(super) fn check(bytes: &[u8]) -> Result<()> {
    if is_module(bytes) && bytes.len() >= 4 * HEADER && bytes.len().is_multiple_of(4) {
        return Ok(());
    }
    Err(Failure::new(
        ur_result_t::UR_RESULT_ERROR_INVALID_BINARY,
        "this is not a SPIR-V module in little-endian order",
    ))
}

/// The sizes in bytes of a module's numeric specialization constants, indexed by id. `None` means
/// that the size is unknown.
pub(super) type Constants = HashMap<u32, Option<usize>>;

/// Returns the specialization constants in a module.
pub(super) fn constants(module: &[u8]) -> Constants {
    // SAFETY: this call only reads the sizes of the constants. The module is not compiled.
    unsafe { ProgramImage::spirv(module) }.constant_sizes()
}

const OP_ENTRY_POINT: u32 = 15;
const OP_EXECUTION_MODE: u32 = 16;
const OP_TYPE_INT: u32 = 21;
const OP_TYPE_FLOAT: u32 = 22;
const OP_FUNCTION_PARAMETER: u32 = 55;
/// The first instruction of a function's body.
const OP_LABEL: u32 = 248;
/// The first instruction of a function. All entry points and execution modes precede it.
const OP_FUNCTION: u32 = 54;
/// The execution mode `MaxWorkgroupSizeINTEL`, which specifies the maximum work-group size.
const MODE_LARGEST_SIZE: u32 = 5893;

/// Returns the words of a module. If the module's length is not a multiple of 4, the last bytes are
/// ignored.
fn words_of(module: &[u8]) -> Vec<u32> {
    let (words, _) = module.as_chunks::<4>();
    words.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// Iterates over the instructions after the header. Each item is an operation code and the words of
/// its instruction. The iteration ends at the first damaged instruction.
fn instructions(words: &[u32]) -> impl Iterator<Item = (u32, &[u32])> {
    let mut rest = words.get(HEADER..).unwrap_or_default();
    std::iter::from_fn(move || {
        let first = *rest.first()?;
        let (instruction, behind) = rest.split_at_checked((first >> 16) as usize)?;
        rest = behind;
        // An instruction with a length of 0 would cause an endless loop.
        (!instruction.is_empty()).then_some((first & 0xFFFF, instruction))
    })
}

/// Returns the string in the operands of an instruction, up to the terminating zero byte.
fn text_of(words: &[u32]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// Returns the maximum work-group size of each kernel that declares one.
pub(super) fn largest_sizes(module: &[u8]) -> Vec<(String, [usize; 3])> {
    let words = words_of(module);
    let (mut names, mut sizes) = (HashMap::new(), HashMap::new());
    for (operation, instruction) in instructions(&words) {
        match (operation, instruction) {
            (OP_FUNCTION, _) => break,
            (OP_ENTRY_POINT, [_, _, function, name @ ..]) => {
                names.insert(*function, text_of(name));
            }
            (OP_EXECUTION_MODE, [_, function, MODE_LARGEST_SIZE, x, y, z]) => {
                sizes.insert(*function, [x, y, z].map(|size| *size as usize));
            }
            _ => {}
        }
    }
    let sizes = sizes.into_iter();
    sizes
        .filter_map(|(function, size)| Some((names.get(&function)?.clone(), size)))
        .collect()
}

/// Returns the size in bytes of each parameter of a kernel. A parameter that is not a single number
/// gives `None`. The result is empty if the module does not contain the kernel.
pub(super) fn numbers(module: &[u8], kernel: &str) -> Vec<Option<usize>> {
    let words = words_of(module);
    let (mut entry, mut sizes) = (None, HashMap::new());
    let (mut parameters, mut is_inside) = (Vec::new(), false);
    for (operation, instruction) in instructions(&words) {
        match (operation, instruction) {
            (OP_ENTRY_POINT, [_, _, function, name @ ..]) if text_of(name) == kernel => {
                entry = Some(*function);
            }
            (OP_TYPE_INT | OP_TYPE_FLOAT, [_, number, bits, ..]) => {
                sizes.insert(*number, bits.div_ceil(8) as usize);
            }
            (OP_FUNCTION, [_, _, function, ..]) => is_inside = Some(*function) == entry,
            (OP_FUNCTION_PARAMETER, [_, kind, ..]) if is_inside => {
                parameters.push(sizes.get(kind).copied());
            }
            (OP_LABEL, _) if is_inside => break,
            _ => {}
        }
    }
    parameters
}

/// Checks the value for a specialization constant.
///
/// # Errors
/// Returns `INVALID_SPEC_ID` if the module has no such constant, and `INVALID_VALUE` if the value
/// has the wrong size.
pub(super) fn check_constant(known: &Constants, number: u32, value: &[u8]) -> Result<()> {
    match known.get(&number) {
        None => Err(Failure::new(
            ur_result_t::UR_RESULT_ERROR_INVALID_SPEC_ID,
            format!("the program has no specialization constant {number}"),
        )),
        Some(Some(size)) if *size != value.len() => Err(Failure::new(
            ur_result_t::UR_RESULT_ERROR_INVALID_VALUE,
            format!(
                "specialization constant {number} has {size} bytes, but the value has {}",
                value.len()
            ),
        )),
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernels of the conformance suite. The kernel `scale` uses a 32-bit specialization
    /// constant.
    const MODULE: &[u8] = include_bytes!("../../../conformance/kernels/kernels.spv");

    #[test]
    fn largest_sizes_are_those_of_kernels() {
        assert!(largest_sizes(MODULE).is_empty());
        let name = u32::from_le_bytes(*b"two\0");
        let words = [
            MAGIC, 0x1_0000, 0, 9, 0, 0x4_000F, 6, 4, name, 0x6_0010, 4, 5893, 2, 4, 8, 0x6_0010,
            5, 5893, 1, 1, 1, 0x5_0036, 1, 2, 0, 3, 0x6_0010, 4, 5893, 9, 9, 9,
        ];
        let module: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(largest_sizes(&module), [("two".to_owned(), [2, 4, 8])]);
        for end in 0..module.len() {
            largest_sizes(&module[..end]);
        }
    }

    #[test]
    fn numbers_among_parameters_have_their_sizes() {
        assert_eq!(numbers(MODULE, "fill"), [None, Some(4), Some(4)]);
        assert!(numbers(MODULE, "none").is_empty());
        for end in (0..MODULE.len()).step_by(7) {
            numbers(&MODULE[..end], "fill");
        }
        // An instruction with a length of 0, and an instruction that exceeds the module.
        for damaged in [0, 0xFFFF_0036] {
            let words = [MAGIC, 0, 0, 0, 0, damaged, 0].map(u32::to_le_bytes);
            assert!(numbers(&words.concat(), "fill").is_empty());
        }
    }

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
