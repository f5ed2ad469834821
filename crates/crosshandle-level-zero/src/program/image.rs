//! Program images, in the form that the driver takes.

use crate::driver::{Driver, Input, ModuleFormat};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{Format, ProgramImage, ProgramOptions, spirv};
use level_zero_sys::ZE_MODULE_PROGRAM_EXP_NAME;
use std::ffi::CString;

/// Checks images and converts them for the driver. The caller passes at least one image.
pub(super) fn prepare<'a>(
    driver: &Driver,
    images: &[ProgramImage<'a>],
    options: &ProgramOptions,
) -> Result<(ModuleFormat, Vec<Input<'a>>)> {
    let prepared = images.iter().map(|image| input(image, options));
    let prepared = prepared.collect::<Result<Vec<_>>>()?;
    let formats: Vec<_> = prepared.iter().map(|(format, _)| *format).collect();
    if images.len() > 1 {
        if formats.contains(&ModuleFormat::Native) {
            return Err(Error::Unsupported(
                "the Level Zero driver links SPIR-V modules, and no binaries of its own".into(),
            ));
        }
        if !driver.has_extension(ZE_MODULE_PROGRAM_EXP_NAME) {
            return Err(Error::Unsupported(
                "this Level Zero driver does not link several modules; link them beforehand, with \
                 `spirv-link`"
                    .into(),
            ));
        }
    }
    let inputs = prepared.into_iter().map(|(_, input)| input).collect();
    Ok((formats[0], inputs))
}

fn input<'a>(
    image: &ProgramImage<'a>,
    options: &ProgramOptions,
) -> Result<(ModuleFormat, Input<'a>)> {
    let (format, bytes) = match image.format {
        Format::Text(_) => {
            return Err(Error::Unsupported(
                "the Level Zero driver takes SPIR-V modules and binaries of its own, and no text"
                    .into(),
            ));
        }
        Format::SpirV(module) => {
            spirv::check(module, image.constants)?;
            (ModuleFormat::SpirV, module)
        }
        Format::Binary([]) => return Err(Error::invalid("this image is empty")),
        Format::Binary(bytes) => (ModuleFormat::Native, bytes),
    };
    let flags = CString::new(image.options_among(options));
    let flags = flags.map_err(|_| Error::invalid("a compiler's options have no zero in them"))?;
    let input = Input {
        bytes,
        flags,
        constants: image.constants,
    };
    Ok((format, input))
}
