//! Code for a device, before it is loaded.

use std::fmt;

/// Code for a device, as a compiler has made it.
#[derive(Clone, Copy)]
pub struct ProgramImage<'a> {
    pub(crate) format: Format<'a>,
}

#[derive(Clone, Copy)]
pub(crate) enum Format<'a> {
    Text(&'a str),
    Binary(&'a [u8]),
}

impl<'a> ProgramImage<'a> {
    /// Makes an image of assembly code that the device's driver compiles (PTX for CUDA). Zeros at its
    /// end are ignored.
    pub fn text(text: &'a str) -> Self {
        Self {
            format: Format::Text(text),
        }
    }

    /// Makes an image of code in a binary format of the driver (cubin and fatbin for CUDA).
    ///
    /// # Safety
    /// It must be well-formed: drivers trust the offsets in it.
    #[allow(unsafe_code)] // The promise is the caller's.
    pub unsafe fn binary(bytes: &'a [u8]) -> Self {
        Self {
            format: Format::Binary(bytes),
        }
    }
}

impl fmt::Debug for ProgramImage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (format, len) = match self.format {
            Format::Text(text) => ("text", text.len()),
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
}
