//! Building, which turns program images into loaded programs on devices.
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

/// The values of specialization constants, each with its id.
pub(super) type Constants = Vec<(u32, Vec<u8>)>;

/// The build state of a program on one device.
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
    /// Returns the state of a program that has been loaded.
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

    /// Returns the state of a program that was compiled but must still be linked.
    pub(super) fn left_open(options: &str) -> Self {
        Self {
            options: options.to_owned(),
            status: status::UR_PROGRAM_BUILD_STATUS_SUCCESS,
            ..Self::default()
        }
    }

    /// Sets the values of the specialization constants with which the program was loaded.
    pub(super) fn with_constants(self, constants: Constants) -> Self {
        Self { constants, ..self }
    }

    /// Returns the loaded program. Returns `None` if the program is not loaded.
    pub(super) fn program(&self) -> Option<&crosshandle::kernel::Program> {
        self.program.as_ref()
    }

    /// Returns whether the program was loaded with these options and these specialization
    /// constants.
    fn is_loaded(&self, options: &str, constants: &Constants) -> bool {
        self.program.is_some() && self.options == options && self.constants == *constants
    }
}

/// Returns whether bytes may be a program image for the adapter's devices. The driver decides
/// whether the image is valid.
pub(super) fn is_image(bytes: &[u8]) -> bool {
    // A runtime that accepts SPIR-V may also have a binary format of its own, so any bytes may be
    // valid.
    description::get().takes_spirv || is_known(bytes)
}

/// Returns whether the bytes are text, or start like a known binary format.
fn is_known(bytes: &[u8]) -> bool {
    text_of(bytes).is_some() || is_binary(bytes)
}

/// Returns whether the bytes start like an ELF file, or like a container of device binaries.
fn is_binary(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\x7FELF") || bytes.starts_with(&[0x50, 0xED, 0x55, 0xBA])
}

/// Returns the bytes as text, without trailing zero bytes. Returns `None` if the bytes are not
/// text.
pub(super) fn text_of(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?.trim_end_matches('\0');
    let is_text = |byte: u8| byte >= b' ' || byte.is_ascii_whitespace();
    (!text.is_empty() && text.bytes().all(is_text)).then_some(text)
}

/// Checks that the bytes are PTX assembly. The driver's compiler decides whether the assembly is
/// valid.
///
/// # Errors
/// Returns `INVALID_BINARY` if the bytes are not PTX.
pub(super) fn check_assembly(bytes: &[u8]) -> Result<()> {
    if text_of(bytes).is_some_and(ptx::is_assembly) {
        return Ok(());
    }
    Err(Failure::new(
        ur_result_t::UR_RESULT_ERROR_INVALID_BINARY,
        "this adapter accepts only PTX as an intermediate language, and this is not PTX",
    ))
}

/// Converts bytes to a program image with specialization constants.
///
/// # Safety
/// If the bytes are not text, the caller must ensure that they are a well-formed image.
pub(super) unsafe fn image_of<'a>(
    bytes: &'a [u8],
    constants: &'a [(u32, Vec<u8>)],
) -> ProgramImage<'a> {
    // SAFETY: the caller upholds this function's contract.
    unsafe {
        match text_of(bytes) {
            _ if spirv::is_module(bytes) => ProgramImage::spirv(bytes).specialized(constants),
            // Level Zero drivers compile no text. They report text as an invalid binary.
            Some(text) if description::get().takes_text => ProgramImage::text(text),
            _ => ProgramImage::binary(bytes),
        }
    }
}

/// Converts a compiler's options to the options that this adapter supports.
pub(super) fn options_of(text: &str) -> ProgramOptions {
    match description::get().takes_spirv {
        true => ProgramOptions::new().compiler(text),
        false => registers_of(text),
    }
}

/// Converts the assembler option that limits the number of registers. All other options are
/// ignored.
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
    /// Loads the image on its device. Does nothing if the image is already loaded with the same
    /// options and specialization constants.
    ///
    /// Kernels and variables belong to the loaded program, so it is replaced only if the options or
    /// the constants have changed.
    ///
    /// # Errors
    /// Returns `PROGRAM_BUILD_FAILURE` if the build fails. The compiler's log is then available.
    /// Returns `INVALID_OPERATION` if the program has no image to load.
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
                // SAFETY: the creator of the program guaranteed that the bytes are text or a
                // well-formed image.
                let image = unsafe { image_of(&self.bytes, &constants) };
                crosshandle::kernel::Program::with_options(inner, &[image], &options_of(options))
            }
        };
        let mut build = self.build();
        if build.is_loaded(options, &constants) {
            // Another thread has loaded the program first. That loaded program is kept, because it
            // may already have kernels.
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

    /// Returns a loaded program that another device shares with this device, if it was loaded from
    /// the same image with the same options and constants.
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

    /// Checks that the driver can compile and link the image.
    ///
    /// # Errors
    /// Returns `INVALID_OPERATION` for a native binary if the driver only loads such binaries, as
    /// drivers of Level Zero do.
    pub(super) fn check_linkable(&self) -> Result<()> {
        let description = description::get();
        let links_only_spirv = description.takes_spirv && !description.takes_text;
        if self.bytes.is_empty() || !links_only_spirv || spirv::is_module(&self.bytes) {
            return Ok(());
        }
        Err(Failure::new(
            ur_result_t::UR_RESULT_ERROR_INVALID_OPERATION,
            "the driver loads native binaries, but neither compiles nor links them",
        ))
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
        self.check_linkable()?;
        *self.build() = Build::left_open(options);
        Ok(())
    }
}

/// Converts an error from `crosshandle`. If the program or an argument caused the error, the UR
/// result is `result`.
pub(super) fn failure(error: Error, result: ur_result_t) -> Failure {
    let is_refused = matches!(error, Error::Program { .. } | Error::InvalidArgument(_));
    let failure = Failure::from(error);
    if is_refused {
        failure.with_result(result)
    } else {
        failure
    }
}

/// Returns the failure for building a program that has no image.
pub(super) fn no_image() -> Failure {
    Failure::new(
        ur_result_t::UR_RESULT_ERROR_INVALID_OPERATION,
        "this program was linked or created from a native handle, so it has no image to build",
    )
}

/// Converts compiler options to Rust text. Null becomes an empty text.
pub(super) fn options_text(text: Option<&CStr>) -> Cow<'_, str> {
    text.map_or_else(Cow::default, CStr::to_string_lossy)
}

/// Returns whether the flags allow unresolved symbols. Such a program must be linked later, because
/// drivers load only complete programs.
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
