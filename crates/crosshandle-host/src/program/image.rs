//! Program images, in the form that the OpenCL runtime takes.

use crosshandle_types::error::{Error, Result};
use crosshandle_types::{Format, ProgramImage, spirv};
use opencl_cpu::Image;

/// Checks an image and converts it for the runtime.
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
            spirv::check(words, image.constants)?;
            Ok(Image::SpirV(words, image.constants))
        }
        Format::Binary([]) => Err(Error::invalid("this image is empty")),
        Format::Binary(bytes) => Ok(Image::Binary(bytes)),
    }
}

/// Compiler options that linkers accept too.
const OF_LINKERS: [&str; 6] = [
    "-cl-denorms-are-zero",
    "-cl-no-signed-zeros",
    "-cl-unsafe-math-optimizations",
    "-cl-finite-math-only",
    "-cl-fast-relaxed-math",
    "-cl-no-subgroup-ifp",
];

/// Returns the options of `compiler` that linkers accept.
pub(super) fn linker_options(compiler: &str) -> String {
    let words = compiler.split_ascii_whitespace();
    let taken: Vec<_> = words.filter(|word| OF_LINKERS.contains(word)).collect();
    taken.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linkers_take_options_about_numbers_alone() {
        let options = "-g -cl-std=CL3.0 -cl-fast-relaxed-math -DX=1 -cl-finite-math-only";
        assert_eq!(
            linker_options(options),
            "-cl-fast-relaxed-math -cl-finite-math-only"
        );
    }
}
