//! Images, as the runtime takes them.

use crate::error::{Error, Result};
use crate::types::{Format, ProgramImage};
use opencl_cpu::Image;

/// The first word of a SPIR-V module, in little-endian order.
const SPIR_V: [u8; 4] = [0x03, 0x02, 0x23, 0x07];
/// Bytes of a module's header.
const HEADER: usize = 20;

/// Returns an image as the runtime takes it.
pub(super) fn prepare<'a>(image: &ProgramImage<'a>) -> Result<Image<'a>> {
    match image.format {
        Format::Text(text) => {
            let text = text.trim_end_matches('\0');
            if text.trim().is_empty() || text.contains('\0') {
                return Err(Error::invalid("this text is no OpenCL C"));
            }
            Ok(Image::Source(text))
        }
        Format::SpirV(words) => {
            check_module(words)?;
            Ok(Image::SpirV(words, image.constants))
        }
        Format::Binary([]) => Err(Error::invalid("this image is empty")),
        Format::Binary(bytes) => Ok(Image::Binary(bytes)),
    }
}

/// Refuses bytes that are no SPIR-V module, or are cut off within an instruction.
fn check_module(bytes: &[u8]) -> Result<()> {
    let refuse = |what: String| Err(Error::invalid(what));
    let Some((start, _)) = bytes.split_first_chunk() else {
        return refuse("this image is too short for SPIR-V".into());
    };
    if start.iter().rev().eq(SPIR_V.iter()) {
        return refuse(
            "this SPIR-V module is in big-endian order; give it in little-endian".into(),
        );
    }
    if *start != SPIR_V {
        return refuse("this image does not begin as SPIR-V".into());
    }
    let Some(mut rest) = bytes.get(HEADER..) else {
        return refuse("this SPIR-V module ends in its header".into());
    };
    if !rest.len().is_multiple_of(4) {
        return refuse(format!(
            "this SPIR-V module has {} bytes, which is not a whole number of words",
            bytes.len()
        ));
    }
    while let Some((word, _)) = rest.split_first_chunk() {
        // The upper half of an instruction's first word is the number of its words.
        let words = (u32::from_le_bytes(*word) >> 16) as usize;
        match rest.get(4 * words..) {
            Some(after) if words != 0 => rest = after,
            _ => {
                return refuse(format!(
                    "this SPIR-V module is cut off or damaged at byte {}",
                    bytes.len() - rest.len()
                ));
            }
        }
    }
    Ok(())
}

/// Options that linkers take too.
const OF_LINKERS: [&str; 6] = [
    "-cl-denorms-are-zero",
    "-cl-no-signed-zeros",
    "-cl-unsafe-math-optimizations",
    "-cl-finite-math-only",
    "-cl-fast-relaxed-math",
    "-cl-no-subgroup-ifp",
];

/// Returns those of a compiler's options that linkers take.
pub(super) fn linker_options(compiler: &str) -> String {
    let words = compiler.split_ascii_whitespace();
    let taken: Vec<_> = words.filter(|word| OF_LINKERS.contains(word)).collect();
    taken.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_whole() {
        let mut module = SPIR_V.to_vec();
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
    fn linkers_take_options_about_numbers_alone() {
        let options = "-g -cl-std=CL3.0 -cl-fast-relaxed-math -DX=1 -cl-finite-math-only";
        assert_eq!(
            linker_options(options),
            "-cl-fast-relaxed-math -cl-finite-math-only"
        );
    }
}
