//! Code for a device, before it is loaded.

pub mod spirv;

use std::collections::HashMap;
use std::fmt;

/// Code for a device, as produced by a compiler.
#[derive(Clone, Copy)]
pub struct ProgramImage<'a> {
    pub format: Format<'a>,
    /// Specialization constants, each with its number and value.
    pub constants: &'a [(u32, Vec<u8>)],
    /// Compiler options for this image only.
    pub options: &'a str,
}

#[derive(Clone, Copy)]
pub enum Format<'a> {
    Text(&'a str),
    SpirV(&'a [u8]),
    Binary(&'a [u8]),
}

impl<'a> ProgramImage<'a> {
    /// Creates an image from text that the device's driver compiles: PTX assembly code for CUDA,
    /// OpenCL C source code for the host. Zeros at the end of the text are ignored.
    pub fn text(text: &'a str) -> Self {
        Self::new(Format::Text(text))
    }

    /// Creates an image from a SPIR-V module with OpenCL kernels, in little-endian order.
    ///
    /// # Safety
    /// The module must be valid, because the compilers in drivers trust its contents.
    #[allow(unsafe_code)] // The promise is the caller's.
    pub unsafe fn spirv(bytes: &'a [u8]) -> Self {
        Self::new(Format::SpirV(bytes))
    }

    /// Creates an image from code in a binary format of the driver. CUDA takes cubin and fatbin
    /// files. Level Zero and the host take the output of the driver, of the OpenCL runtime, or of
    /// its offline compiler.
    ///
    /// # Safety
    /// The code must be well-formed, because drivers trust the offsets in it.
    #[allow(unsafe_code)] // The promise is the caller's.
    pub unsafe fn binary(bytes: &'a [u8]) -> Self {
        Self::new(Format::Binary(bytes))
    }
}

impl<'a> ProgramImage<'a> {
    fn new(format: Format<'a>) -> Self {
        Self {
            format,
            constants: &[],
            options: "",
        }
    }

    /// Sets specialization constants of a SPIR-V image. Each has a number, and a value of as many
    /// bytes as the constant's type. Constants that are not set keep the module's own values.
    pub fn specialized(self, constants: &'a [(u32, Vec<u8>)]) -> Self {
        Self { constants, ..self }
    }

    /// Sets options of the driver's compiler for this image only. They come before the options of
    /// [`ProgramOptions::compiler`].
    pub fn compiled_with(self, options: &'a str) -> Self {
        Self { options, ..self }
    }

    /// Returns the specialization constants of a SPIR-V image by their numbers, with the size of
    /// each value in bytes if it is known.
    pub fn constant_sizes(&self) -> HashMap<u32, Option<usize>> {
        match self.format {
            Format::SpirV(module) => spirv::constants(module),
            Format::Text(_) | Format::Binary(_) => HashMap::new(),
        }
    }

    /// Returns the compiler options for this image, followed by those of the whole program.
    pub fn options_among(&self, options: &ProgramOptions) -> String {
        let both = [self.options, &options.compiler];
        let both = both.into_iter().filter(|options| !options.is_empty());
        both.collect::<Vec<_>>().join(" ")
    }
}

impl fmt::Debug for ProgramImage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (format, len) = match self.format {
            Format::Text(text) => ("text", text.len()),
            Format::SpirV(bytes) => ("SPIR-V", bytes.len()),
            Format::Binary(bytes) => ("binary", bytes.len()),
        };
        f.debug_struct("ProgramImage")
            .field("format", &format)
            .field("len", &len)
            .finish()
    }
}

/// Options for loading a program.
#[derive(Clone, Debug, Default)]
pub struct ProgramOptions {
    pub max_registers: Option<u32>,
    pub compiler: String,
}

impl ProgramOptions {
    /// Creates options that leave every choice to the driver.
    pub fn new() -> Self {
        Self::default()
    }

    /// Limits the number of registers per thread. Values that do not fit are kept in memory. The
    /// limit applies to images that the driver compiles, which are [text](ProgramImage::text) and
    /// binaries that contain text. Machine code in a binary keeps the registers that it was
    /// compiled for.
    pub fn max_registers(mut self, registers: u32) -> Self {
        self.max_registers = Some(registers);
        self
    }

    /// Adds options of the driver's compiler in the compiler's own syntax, such as
    /// `-cl-fast-relaxed-math`. Only OpenCL and Level Zero drivers accept such options.
    pub fn compiler(mut self, options: &str) -> Self {
        if !self.compiler.is_empty() && !options.is_empty() {
            self.compiler.push(' ');
        }
        self.compiler.push_str(options);
        self
    }
}
