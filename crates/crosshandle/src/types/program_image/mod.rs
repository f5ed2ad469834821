//! Code for a device, before it is loaded.

pub(crate) mod spirv;

use std::collections::HashMap;
use std::fmt;

/// Code for a device, as a compiler has made it.
#[derive(Clone, Copy)]
pub struct ProgramImage<'a> {
    pub(crate) format: Format<'a>,
    /// Specialization constants.
    pub(crate) constants: &'a [(u32, Vec<u8>)],
    /// Options of the compiler for this image alone.
    pub(crate) options: &'a str,
}

#[derive(Clone, Copy)]
pub(crate) enum Format<'a> {
    Text(&'a str),
    SpirV(&'a [u8]),
    Binary(&'a [u8]),
}

impl<'a> ProgramImage<'a> {
    /// Makes an image of text that the device's driver compiles: assembly code for CUDA (PTX), source
    /// code for the host (OpenCL C). Zeros at its end are ignored.
    pub fn text(text: &'a str) -> Self {
        Self::new(Format::Text(text))
    }

    /// Makes an image of a SPIR-V module with OpenCL kernels, in little-endian order.
    ///
    /// # Safety
    /// It must be valid: compilers in drivers trust much of what is in it.
    #[allow(unsafe_code)] // The promise is the caller's.
    pub unsafe fn spirv(bytes: &'a [u8]) -> Self {
        Self::new(Format::SpirV(bytes))
    }

    /// Makes an image of code in a binary format of the driver (cubin and fatbin for CUDA; on Level Zero and
    /// the host, what the driver, the OpenCL runtime or its offline compiler made).
    ///
    /// # Safety
    /// It must be well-formed: drivers trust the offsets in it.
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

    /// Sets specialization constants of an image in SPIR-V, each by its number and a value of as many
    /// bytes as the constant's type. Constants that are not set keep the module's own values.
    pub fn specialized(self, constants: &'a [(u32, Vec<u8>)]) -> Self {
        Self { constants, ..self }
    }

    /// Sets options of the driver's compiler for this image alone, which come before those of
    /// [`ProgramOptions::compiler`].
    pub fn compiled_with(self, options: &'a str) -> Self {
        Self { options, ..self }
    }

    /// Returns the specialization constants of an image in SPIR-V, by their numbers: how many bytes the
    /// value of each has, where that is known.
    pub fn constant_sizes(&self) -> HashMap<u32, Option<usize>> {
        match self.format {
            Format::SpirV(module) => spirv::constants(module),
            Format::Text(_) | Format::Binary(_) => HashMap::new(),
        }
    }

    /// Returns the options of the compiler for this image, among those of a whole program.
    pub(crate) fn options_among(&self, options: &ProgramOptions) -> String {
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
    pub(crate) max_registers: Option<u32>,
    pub(crate) compiler: String,
}

impl ProgramOptions {
    /// Returns the driver's own choices.
    pub fn new() -> Self {
        Self::default()
    }

    /// Limits the registers of a thread; values that do not fit go to memory. The limit applies to
    /// images that the driver compiles: [text](ProgramImage::text), and binaries that hold such code.
    /// Machine code in a binary keeps the registers that it was compiled for.
    pub fn max_registers(mut self, registers: u32) -> Self {
        self.max_registers = Some(registers);
        self
    }

    /// Adds options of the driver's compiler, in its own words (`-cl-fast-relaxed-math`, say), for
    /// drivers that take any: those of OpenCL and of Level Zero.
    pub fn compiler(mut self, options: &str) -> Self {
        if !self.compiler.is_empty() && !options.is_empty() {
            self.compiler.push(' ');
        }
        self.compiler.push_str(options);
        self
    }
}
