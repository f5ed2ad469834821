//! Building, which turns images into programs on devices.
//!
//! The driver compiles and loads in one step. So compiling a program only marks its image as ready
//! for linking.

use super::{DeviceImage, Program, enter_with_kernels, ptx, spirv};
use crate::abi::boundary::{MaybeText, entry_points};
use crate::abi::description;
use crate::abi::failure::{Failure, Result};
use crate::abi::object::{Handle, HandlesMut};
use crate::context::Context;
use crate::discovery::Device;
use crosshandle::{
    Error,
    kernel::{ProgramImage, ProgramOptions},
};
use std::borrow::Cow;
use std::ffi::CStr;
use std::ptr;
use unified_runtime_sys::{
    UR_EXP_PROGRAM_FLAG_ALLOW_UNRESOLVED_SYMBOLS, UR_EXP_PROGRAM_FLAGS_MASK,
    ur_exp_program_flags_t, ur_program_binary_type_t as binary_type,
    ur_program_build_status_t as status, ur_result_t,
};

/// Values of specialization constants, by their ids.
pub(super) type Constants = Vec<(u32, Vec<u8>)>;

/// The state of a program on a device.
pub(super) struct Build {
    pub(super) status: status,
    pub(super) binary_type: binary_type,
    pub(super) options: String,
    pub(super) log: String,
    /// The values of the specialization constants with which the program was loaded.
    constants: Constants,
    program: Option<crosshandle::kernel::Program>,
}

impl Default for Build {
    fn default() -> Self {
        Self {
            status: status::UR_PROGRAM_BUILD_STATUS_NONE,
            binary_type: binary_type::UR_PROGRAM_BINARY_TYPE_COMPILED_OBJECT,
            options: String::new(),
            log: String::new(),
            constants: Constants::new(),
            program: None,
        }
    }
}

impl Build {
    /// Returns the state of a loaded program.
    pub(super) fn done(program: crosshandle::kernel::Program, options: &str) -> Self {
        Self {
            options: options.to_owned(),
            status: status::UR_PROGRAM_BUILD_STATUS_SUCCESS,
            binary_type: binary_type::UR_PROGRAM_BINARY_TYPE_EXECUTABLE,
            log: program.log().to_owned(),
            constants: Constants::new(),
            program: Some(program),
        }
    }

    /// Returns the state of a program that must still be linked.
    pub(super) fn left_open(options: &str) -> Self {
        Self {
            options: options.to_owned(),
            status: status::UR_PROGRAM_BUILD_STATUS_SUCCESS,
            ..Self::default()
        }
    }

    /// Adds the values of the specialization constants with which the program was loaded.
    pub(super) fn with_constants(self, constants: Constants) -> Self {
        Self { constants, ..self }
    }

    /// Returns the program, if it is loaded.
    pub(super) fn program(&self) -> Option<&crosshandle::kernel::Program> {
        self.program.as_ref()
    }

    /// Returns whether the program was loaded with these options and values of constants.
    fn is_loaded(&self, options: &str, constants: &Constants) -> bool {
        self.program.is_some() && self.options == options && self.constants == *constants
    }
}

/// Returns whether bytes may be an image for the adapter's devices. The driver decides whether the
/// image is valid.
pub(super) fn is_image(bytes: &[u8]) -> bool {
    // Runtimes that accept SPIR-V have their own binary formats.
    description::get().takes_spirv || is_known(bytes)
}

/// Returns whether bytes are text or have a known binary format.
fn is_known(bytes: &[u8]) -> bool {
    text_of(bytes).is_some() || is_binary(bytes)
}

/// Returns whether bytes start like an executable or a container of executables.
fn is_binary(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\x7FELF") || bytes.starts_with(&[0x50, 0xED, 0x55, 0xBA])
}

/// Returns bytes as text without trailing zeros, if they are text.
pub(super) fn text_of(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?.trim_end_matches('\0');
    let is_text = |byte: u8| byte >= b' ' || byte.is_ascii_whitespace();
    (!text.is_empty() && text.bytes().all(is_text)).then_some(text)
}

/// Fails for bytes that are not assembly. The driver's compiler decides whether the assembly is
/// valid.
///
/// # Errors
/// Returns `INVALID_BINARY`.
pub(super) fn check_assembly(bytes: &[u8]) -> Result<()> {
    if text_of(bytes).is_some_and(ptx::is_assembly) {
        return Ok(());
    }
    Err(Failure::new(
        ur_result_t::UR_RESULT_ERROR_INVALID_BINARY,
        "the only intermediate language of this adapter is PTX, and this is not PTX",
    ))
}

/// Converts bytes to an image, with values of specialization constants.
///
/// # Safety
/// The caller must ensure that bytes that are not text are a well-formed image.
pub(super) unsafe fn image_of<'a>(
    bytes: &'a [u8],
    constants: &'a [(u32, Vec<u8>)],
) -> ProgramImage<'a> {
    // SAFETY: the caller upholds this function's contract.
    unsafe {
        match text_of(bytes) {
            _ if spirv::is_module(bytes) => ProgramImage::spirv(bytes).specialized(constants),
            // Level Zero drivers compile no text, and report that it is not a valid binary.
            Some(text) if description::get().takes_text => ProgramImage::text(text),
            _ => ProgramImage::binary(bytes),
        }
    }
}

/// Returns the options that this adapter supports, from a compiler's options.
pub(super) fn options_of(text: &str) -> ProgramOptions {
    match description::get().takes_spirv {
        true => ProgramOptions::new().compiler(text),
        false => registers_of(text),
    }
}

/// Converts an assembler's option for the number of registers.
fn registers_of(text: &str) -> ProgramOptions {
    let words = text.split_ascii_whitespace();
    let registers = words.rev().find_map(|word| {
        let (_, number) = word.split_once("maxrregcount=")?;
        number.trim_matches(['"', '\'']).parse().ok()
    });
    let options = ProgramOptions::new();
    match registers {
        Some(registers) => options.max_registers(registers),
        None => options,
    }
}

impl DeviceImage {
    /// Loads the image on its device, unless it is already loaded with the same options and
    /// constants.
    ///
    /// Kernels and variables belong to the loaded program. So a loaded program is replaced only if
    /// the options or the values of specialization constants have changed.
    ///
    /// # Errors
    /// Returns `PROGRAM_BUILD_FAILURE`, after which the compiler's log is available. Returns
    /// `INVALID_OPERATION` if there is no image.
    pub(super) fn load(&self, program: &Program, options: &str) -> Result<()> {
        let inner = program.context.on(&self.device)?;
        let constants = program.constants.lock().clone();
        if self.build().is_loaded(options, &constants) {
            return Ok(());
        }
        if self.bytes.is_empty() {
            return Err(no_image());
        }
        let loaded = match self.loaded_for_another(program, options, &constants) {
            Some(loaded) => Ok(loaded),
            None => {
                // SAFETY: the creator of the program guaranteed that bytes that are not text are
                // well-formed.
                let image = unsafe { image_of(&self.bytes, &constants) };
                crosshandle::kernel::Program::with_options(inner, &[image], &options_of(options))
            }
        };
        let mut build = self.build();
        if build.is_loaded(options, &constants) {
            // Another thread has loaded the program first, and that program may already have
            // kernels.
            return Ok(());
        }
        match loaded {
            Ok(program) => {
                *build = Build::done(program, options).with_constants(constants);
                Ok(())
            }
            Err(error) => {
                *build = Build {
                    status: status::UR_PROGRAM_BUILD_STATUS_ERROR,
                    options: options.to_owned(),
                    log: match &error {
                        Error::Program { log, .. } if !log.is_empty() => log.clone(),
                        error => error.to_string(),
                    },
                    ..Build::default()
                };
                Err(failure(
                    error,
                    ur_result_t::UR_RESULT_ERROR_PROGRAM_BUILD_FAILURE,
                ))
            }
        }
    }

    /// Returns the program if the same image is loaded for another device, and that program also
    /// runs on this device.
    fn loaded_for_another(
        &self,
        program: &Program,
        options: &str,
        constants: &Constants,
    ) -> Option<crosshandle::kernel::Program> {
        let serves = |other: &&Self| {
            !ptr::eq(self, *other)
                && self.device.shares_programs_with(&other.device)
                && self.bytes == other.bytes
        };
        program.images.iter().filter(serves).find_map(|other| {
            let build = other.build();
            let program = build
                .program()
                .filter(|_| build.is_loaded(options, constants))?;
            Some(program.clone())
        })
    }

    /// Marks the image as compiled, so that it can be linked.
    fn compile(&self, program: &Program, options: &str) -> Result<()> {
        let constants = program.constants.lock().clone();
        if self.build().is_loaded(options, &constants) {
            return Ok(());
        }
        if self.bytes.is_empty() {
            return Err(no_image());
        }
        *self.build() = Build::left_open(options);
        Ok(())
    }
}

/// Converts an error of the library. Errors of the program get the result `result`.
pub(super) fn failure(error: Error, result: ur_result_t) -> Failure {
    let is_refused = matches!(error, Error::Program { .. } | Error::InvalidArgument(_));
    let failure = Failure::from(error);
    if is_refused {
        failure.with_result(result)
    } else {
        failure
    }
}

pub(super) fn no_image() -> Failure {
    Failure::new(
        ur_result_t::UR_RESULT_ERROR_INVALID_OPERATION,
        "a program that was linked, or created with a native handle, is built already",
    )
}

/// Returns the options of a compiler as text. A null pointer means no options.
pub(super) fn options_text(text: Option<&CStr>) -> Cow<'_, str> {
    text.map_or_else(Cow::default, CStr::to_string_lossy)
}

/// Returns whether unresolved symbols are allowed, so that the program must be linked later.
/// Drivers only load complete programs.
///
/// # Errors
/// Returns `INVALID_ENUMERATION` for unknown flags.
pub(super) fn is_left_open(flags: ur_exp_program_flags_t) -> Result<bool> {
    if flags & UR_EXP_PROGRAM_FLAGS_MASK != 0 {
        return Err(Failure::ENUMERATION);
    }
    Ok(flags & UR_EXP_PROGRAM_FLAG_ALLOW_UNRESOLVED_SYMBOLS != 0)
}

entry_points! {
    in enter_with_kernels;

    pub(super) fn build(context: Handle<Context>, program: Handle<Program>, options: MaybeText) {
        let options = options_text(options);
        let mut images = program.images.iter();
        images.try_for_each(|image| image.load(program, &options))
    }

    pub(super) fn build_exp(
        program: Handle<Program>,
        devices(count, first): HandlesMut<Device>,
        flags: ur_exp_program_flags_t,
        options: MaybeText,
    ) {
        let is_left_open = is_left_open(flags)?;
        let options = options_text(options);
        let mut images = devices.iter().map(|device| program.image(device));
        images.try_for_each(|image| match is_left_open {
            true => image?.compile(program, &options),
            false => image?.load(program, &options),
        })
    }

    pub(super) fn compile(context: Handle<Context>, program: Handle<Program>, options: MaybeText) {
        let options = options_text(options);
        let mut images = program.images.iter();
        images.try_for_each(|image| image.compile(program, &options))
    }

    pub(super) fn compile_exp(
        program: Handle<Program>,
        devices(count, first): HandlesMut<Device>,
        flags: ur_exp_program_flags_t,
        options: MaybeText,
    ) {
        is_left_open(flags)?;
        let options = options_text(options);
        let mut devices = devices.iter();
        devices.try_for_each(|device| program.image(device)?.compile(program, &options))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_text_or_of_a_known_format() {
        for image in [
            &b".version 7.0\n\t.target sm_70\n\0"[..],
            b"\x7FELF\x02\x01",
            b"\x50\xED\x55\xBA\x01",
        ] {
            assert!(is_known(image), "{image:?}");
        }
        check_assembly(b"// made by hand\n.version 7.0\n.target sm_70\n\0").unwrap();
        for other in [&b"\x7FELF\x02\x01"[..], b"void f() {}", &[0, 1, 2, 3, 4]] {
            assert!(check_assembly(other).is_err(), "{other:?}");
        }
        for other in [&[0_u8, 1, 2, 3, 4][..], b"\0", b"", b"a\0b", b"\xFF\xFE"] {
            assert!(!is_known(other), "{other:?}");
        }
    }

    #[test]
    fn the_last_limit_of_registers_counts() {
        let registers = |text| format!("{:?}", registers_of(text));
        let none = registers("");
        assert_eq!(registers("-O3 -g --maxrregcount=many"), none);
        let some = registers("--maxrregcount=32");
        assert_ne!(some, none);
        assert_eq!(
            registers("-maxrregcount=16 -O2 -Xptxas=\"-maxrregcount=32\""),
            some
        );
    }
}
