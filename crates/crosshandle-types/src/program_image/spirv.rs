//! Checks of SPIR-V modules before a driver compiles them. The checks find modules that are cut
//! off, and the specialization constants.

use crate::error::{Error, Result};
use std::collections::HashMap;

/// The first word of a module, in little-endian order.
const MAGIC: [u8; 4] = [0x03, 0x02, 0x23, 0x07];
/// Size of a module's header, in bytes.
const HEADER: usize = 20;

const OP_TYPE_INT: u32 = 21;
const OP_TYPE_FLOAT: u32 = 22;
const OP_SPEC_CONSTANT_TRUE: u32 = 48;
const OP_SPEC_CONSTANT_FALSE: u32 = 49;
const OP_SPEC_CONSTANT: u32 = 50;
const OP_DECORATE: u32 = 71;
const DECORATION_SPEC_ID: u32 = 1;

/// The instructions of a module, up to the first truncated or damaged one.
struct Instructions<'a>(&'a [u8]);

impl<'a> Instructions<'a> {
    fn of(module: &'a [u8]) -> Self {
        Self(module.get(HEADER..).unwrap_or_default())
    }
}

impl Iterator for Instructions<'_> {
    /// The operation code, and the words that follow it.
    type Item = (u32, Vec<u32>);

    fn next(&mut self) -> Option<Self::Item> {
        let first = u32::from_le_bytes(*self.0.first_chunk()?);
        // The upper half of an instruction's first word is the number of its words.
        let bytes = 4 * (first >> 16) as usize;
        let (instruction, rest) = self.0.split_at_checked(bytes).filter(|_| bytes != 0)?;
        self.0 = rest;
        let words = instruction.as_chunks().0.iter().skip(1);
        Some((
            first & 0xFFFF,
            words.map(|word| u32::from_le_bytes(*word)).collect(),
        ))
    }
}

/// Rejects bytes that are not a SPIR-V module or that end within an instruction. Also rejects
/// constants that the module does not have, or whose values have the wrong size.
pub fn check(module: &[u8], constants: &[(u32, Vec<u8>)]) -> Result<()> {
    check_module(module)?;
    if constants.is_empty() {
        return Ok(());
    }
    let known = self::constants(module);
    for (number, value) in constants {
        match known.get(number) {
            None => {
                return Err(Error::invalid(format!(
                    "this SPIR-V module has no specialization constant {number}"
                )));
            }
            Some(Some(size)) if *size != value.len() => {
                return Err(Error::invalid(format!(
                    "specialization constant {number} has {size} bytes, but its value {}",
                    value.len()
                )));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

fn check_module(bytes: &[u8]) -> Result<()> {
    let refuse = |what: String| Err(Error::invalid(what));
    let Some((start, _)) = bytes.split_first_chunk() else {
        return refuse("this image is too short for SPIR-V".into());
    };
    if start.iter().rev().eq(MAGIC.iter()) {
        return refuse(
            "this SPIR-V module is in big-endian order; give it in little-endian".into(),
        );
    }
    if *start != MAGIC {
        return refuse("this image does not begin as SPIR-V".into());
    }
    let Some(rest) = bytes.get(HEADER..) else {
        return refuse("this SPIR-V module ends in its header".into());
    };
    if !rest.len().is_multiple_of(4) {
        return refuse(format!(
            "this SPIR-V module has {} bytes, which is not a whole number of words",
            bytes.len()
        ));
    }
    let mut instructions = Instructions::of(bytes);
    while instructions.next().is_some() {}
    match instructions.0.len() {
        0 => Ok(()),
        left => refuse(format!(
            "this SPIR-V module is cut off or damaged at byte {}",
            bytes.len() - left
        )),
    }
}

/// Returns the specialization constants of a module by their numbers, with the size of each value
/// in bytes, or `None` if the size is unknown.
pub fn constants(module: &[u8]) -> HashMap<u32, Option<usize>> {
    let mut numbers = HashMap::new();
    let mut sizes_of_types = HashMap::new();
    let mut sizes = HashMap::new();
    for (operation, words) in Instructions::of(module) {
        match (operation, &words[..]) {
            (OP_DECORATE, [target, DECORATION_SPEC_ID, number, ..]) => {
                numbers.insert(*target, *number);
            }
            (OP_TYPE_INT | OP_TYPE_FLOAT, [result, bits, ..]) => {
                sizes_of_types.insert(*result, (*bits as usize).div_ceil(8));
            }
            (OP_SPEC_CONSTANT, [of, result, ..]) => {
                if let Some(size) = sizes_of_types.get(of) {
                    sizes.insert(*result, *size);
                }
            }
            (OP_SPEC_CONSTANT_TRUE | OP_SPEC_CONSTANT_FALSE, [_, result, ..]) => {
                sizes.insert(*result, 1);
            }
            _ => {}
        }
    }
    let known = numbers.into_iter();
    known
        .map(|(target, number)| (number, sizes.get(&target).copied()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernels of the conformance suite. The kernel `scale` has a 32-bit specialization
    /// constant.
    const MODULE: &[u8] = include_bytes!("kernels.spv");

    #[test]
    fn modules_are_whole() {
        let mut module = MAGIC.to_vec();
        module.extend([0, 0, 1, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
        check_module(&module).unwrap();
        // Two words: OpCapability Kernel.
        module.extend([17, 0, 2, 0, 6, 0, 0, 0]);
        check_module(&module).unwrap();
        for len in [0, 3, 19, 21, 24, 27] {
            assert!(check_module(&module[..len]).is_err(), "{len}");
        }
        let mut other = module.clone();
        other[22] = 0;
        assert!(check_module(&other).is_err());
        other[..4].copy_from_slice(&[7, 0x23, 2, 3]);
        let text = check_module(&other).unwrap_err().to_string();
        assert!(text.contains("big-endian"), "{text}");
    }

    #[test]
    fn constants_are_found_and_values_suit_them() {
        assert_eq!(constants(MODULE), HashMap::from([(0, Some(4))]));
        check(MODULE, &[(0, vec![0; 4])]).unwrap();
        assert!(check(MODULE, &[(0, vec![0; 8])]).is_err());
        assert!(check(MODULE, &[(1, vec![0; 4])]).is_err());
        // Damage only ends the search.
        for cut in 0..MODULE.len() {
            constants(&MODULE[..cut]);
        }
        let mut endless = MODULE.to_vec();
        endless[20..24].fill(0);
        assert!(constants(&endless).is_empty());
    }
}
