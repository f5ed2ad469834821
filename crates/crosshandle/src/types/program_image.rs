//! Code for a device, before it is loaded.

use std::fmt;

/// Code for a device, as its compiler left it.
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
    /// In the assembly language that the device's driver compiles (PTX for NVIDIA's). Zeros at its
    /// end don't matter.
    pub fn text(text: &'a str) -> Self {
        Self {
            format: Format::Text(text),
        }
    }

    /// In a binary format of the driver's (cubin and fatbin for NVIDIA's).
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

/// How a program is loaded.
#[derive(Clone, Debug, Default)]
pub struct ProgramOptions {
    pub(crate) max_registers: Option<u32>,
}

impl ProgramOptions {
    /// As the driver does it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Threads may use this many registers at most; what doesn't fit goes to memory. Of images that
    /// are compiled now, which binary ones may not be.
    pub fn max_registers(mut self, registers: u32) -> Self {
        self.max_registers = Some(registers);
        self
    }
}
