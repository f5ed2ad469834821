//! Building: images become programs on devices.
//!
//! The driver compiles and loads in one step. So a program that is only compiled is one whose image
//! is there to be linked.

use super::{DeviceImage, Program, enter_with_kernels};
use crate::boundary::not_null;
use crate::context::Context;
use crate::device::Device;
use crate::failure::{Failure, Result};
use crate::object::{Shared, from_handles};
use crosshandle::{Error, ProgramImage, ProgramOptions};
use std::ffi::{CStr, c_char};
use unified_runtime_sys::{
    UR_EXP_PROGRAM_FLAG_ALLOW_UNRESOLVED_SYMBOLS, UR_EXP_PROGRAM_FLAGS_MASK, ur_context_handle_t,
    ur_device_handle_t, ur_exp_program_flags_t, ur_program_binary_type_t as binary_type,
    ur_program_build_status_t as status, ur_program_handle_t, ur_result_t,
};

/// How far a program is on a device.
pub(super) struct Build {
    pub(super) status: status,
    pub(super) binary_type: binary_type,
    pub(super) options: String,
    pub(super) log: String,
    program: Option<crosshandle::Program>,
}

impl Default for Build {
    fn default() -> Self {
        Self {
            status: status::UR_PROGRAM_BUILD_STATUS_NONE,
            binary_type: binary_type::UR_PROGRAM_BINARY_TYPE_COMPILED_OBJECT,
            options: String::new(),
            log: String::new(),
            program: None,
        }
    }
}

impl Build {
    /// A program that is loaded.
    pub(super) fn done(program: crosshandle::Program, options: &str) -> Self {
        Self {
            options: options.to_owned(),
            status: status::UR_PROGRAM_BUILD_STATUS_SUCCESS,
            binary_type: binary_type::UR_PROGRAM_BINARY_TYPE_EXECUTABLE,
            log: program.log().to_owned(),
            program: Some(program),
        }
    }

    pub(super) fn program(&self) -> Option<&crosshandle::Program> {
        self.program.as_ref()
    }

    fn is_loaded(&self, options: &str) -> bool {
        self.program.is_some() && self.options == options
    }
}

/// Whether bytes may be an image: text, or of a binary format. Whether they are a good one the
/// driver finds out.
pub(super) fn is_image(bytes: &[u8]) -> bool {
    text_of(bytes).is_some() || is_binary(bytes)
}

/// Executables and containers of them.
fn is_binary(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\x7FELF") || bytes.starts_with(&[0x50, 0xED, 0x55, 0xBA])
}

/// Text, without the zeros at its end.
fn text_of(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?.trim_end_matches('\0');
    let is_text = |byte: u8| byte >= b' ' || byte.is_ascii_whitespace();
    (!text.is_empty() && text.bytes().all(is_text)).then_some(text)
}

/// # Safety
/// What is no text must be well-formed.
pub(super) unsafe fn image_of(bytes: &[u8]) -> ProgramImage<'_> {
    match text_of(bytes) {
        Some(text) => ProgramImage::text(text),
        // SAFETY: as promised to this function.
        None => unsafe { ProgramImage::binary(bytes) },
    }
}

/// The options that mean something here, among those of compilers in general.
pub(super) fn options_of(text: &str) -> ProgramOptions {
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
    /// Loads the image on its device, unless that was done already: kernels and variables belong to
    /// what is loaded, so that it is replaced only where other options ask for that.
    ///
    /// # Errors
    /// `PROGRAM_BUILD_FAILURE`, with the compiler's log kept; `INVALID_OPERATION` if there is no
    /// image.
    fn load(&self, context: &Context, options: &str) -> Result<()> {
        let inner = context.on(&self.device)?;
        if self.build().is_loaded(options) {
            return Ok(());
        }
        if self.bytes.is_empty() {
            return Err(no_image());
        }
        // SAFETY: who created the program vouched for what is no text.
        let image = unsafe { image_of(&self.bytes) };
        let loaded = inner.load_program_with(&[image], &options_of(options));
        let mut build = self.build();
        if build.is_loaded(options) {
            // Another thread was faster, and may have kernels of its program already.
            return Ok(());
        }
        match loaded {
            Ok(program) => {
                *build = Build::done(program, options);
                Ok(())
            }
            Err(error) => {
                *build = Build {
                    status: status::UR_PROGRAM_BUILD_STATUS_ERROR,
                    options: options.to_owned(),
                    log: error.to_string(),
                    ..Build::default()
                };
                Err(failure(
                    error,
                    ur_result_t::UR_RESULT_ERROR_PROGRAM_BUILD_FAILURE,
                ))
            }
        }
    }

    /// Leaves the image to be linked.
    fn compile(&self, options: &str) -> Result<()> {
        if self.build().is_loaded(options) {
            return Ok(());
        }
        if self.bytes.is_empty() {
            return Err(no_image());
        }
        *self.build() = Build {
            status: status::UR_PROGRAM_BUILD_STATUS_SUCCESS,
            options: options.to_owned(),
            ..Build::default()
        };
        Ok(())
    }
}

/// An error of the library, where the program may be to blame.
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

/// # Safety
/// `text` must be null or end with a zero.
pub(super) unsafe fn options_text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: not null, so it ends with a zero.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

/// # Errors
/// `INVALID_ENUMERATION`; `UNSUPPORTED_FEATURE` for a program that is not complete.
pub(super) fn check_flags(flags: ur_exp_program_flags_t) -> Result<()> {
    if flags & UR_EXP_PROGRAM_FLAGS_MASK != 0 {
        return Err(Failure::ENUMERATION);
    }
    if flags & UR_EXP_PROGRAM_FLAG_ALLOW_UNRESOLVED_SYMBOLS != 0 {
        return Err(Failure::unsupported(
            "this adapter loads only programs in which nothing is left to be linked",
        ));
    }
    Ok(())
}

/// Does something with the images for some devices.
fn each<'a>(
    program: &Program,
    mut devices: impl Iterator<Item = &'a Shared<Device>>,
    act: impl Fn(&DeviceImage) -> Result<()>,
) -> Result<()> {
    devices.try_for_each(|device| act(program.image(device)?))
}

pub(super) unsafe extern "C" fn build(
    context: ur_context_handle_t,
    program: ur_program_handle_t,
    options: *const c_char,
) -> ur_result_t {
    enter_with_kernels(|| {
        // SAFETY: the caller passes handles, and null or a text.
        let (_, program, options) = unsafe {
            (
                Shared::<Context>::from_handle(context)?,
                Shared::<Program>::from_handle(program)?,
                options_text(options),
            )
        };
        let mut images = program.images.iter();
        images.try_for_each(|image| image.load(&program.context, &options))
    })
}

pub(super) unsafe extern "C" fn build_exp(
    program: ur_program_handle_t,
    count: u32,
    devices: *mut ur_device_handle_t,
    flags: ur_exp_program_flags_t,
    options: *const c_char,
) -> ur_result_t {
    enter_with_kernels(|| {
        let missing = ur_result_t::UR_RESULT_ERROR_INVALID_NULL_HANDLE;
        // SAFETY: the caller passes handles, and null or a text.
        let (program, options) = unsafe {
            (
                Shared::<Program>::from_handle(program)?,
                options_text(options),
            )
        };
        not_null(devices)?;
        check_flags(flags)?;
        // SAFETY: the caller passes this many devices' handles.
        let devices = unsafe { from_handles::<Device>(devices, count, missing) }?;
        each(program, devices, |image| {
            image.load(&program.context, &options)
        })
    })
}

pub(super) unsafe extern "C" fn compile(
    context: ur_context_handle_t,
    program: ur_program_handle_t,
    options: *const c_char,
) -> ur_result_t {
    enter_with_kernels(|| {
        // SAFETY: the caller passes handles, and null or a text.
        let (_, program, options) = unsafe {
            (
                Shared::<Context>::from_handle(context)?,
                Shared::<Program>::from_handle(program)?,
                options_text(options),
            )
        };
        let mut images = program.images.iter();
        images.try_for_each(|image| image.compile(&options))
    })
}

pub(super) unsafe extern "C" fn compile_exp(
    program: ur_program_handle_t,
    count: u32,
    devices: *mut ur_device_handle_t,
    flags: ur_exp_program_flags_t,
    options: *const c_char,
) -> ur_result_t {
    enter_with_kernels(|| {
        let missing = ur_result_t::UR_RESULT_ERROR_INVALID_NULL_HANDLE;
        // SAFETY: the caller passes handles, and null or a text.
        let (program, options) = unsafe {
            (
                Shared::<Program>::from_handle(program)?,
                options_text(options),
            )
        };
        not_null(devices)?;
        check_flags(flags)?;
        // SAFETY: the caller passes this many devices' handles.
        let devices = unsafe { from_handles::<Device>(devices, count, missing) }?;
        each(program, devices, |image| image.compile(&options))
    })
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
            assert!(is_image(image), "{image:?}");
        }
        for other in [&[0_u8, 1, 2, 3, 4][..], b"\0", b"", b"a\0b", b"\xFF\xFE"] {
            assert!(!is_image(other), "{other:?}");
        }
    }

    #[test]
    fn the_last_limit_of_registers_counts() {
        let registers = |text| format!("{:?}", options_of(text));
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
