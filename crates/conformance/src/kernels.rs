//! Kernels with known results, for all backends that run kernels.

use crosshandle::{
    Access, Command, Context, Device, MemoryRange, Result,
    kernel::{Kernel, KernelArguments, KernelLimits, LaunchShape, Program, ProgramImage},
};
use std::num::NonZeroUsize;
use std::ptr::NonNull;

/// An address that is unmapped in every process.
const NOWHERE: NonZeroUsize = NonZeroUsize::new(64).unwrap();
/// The kernels as a SPIR-V module, which is made from the text in the same folder.
const SPIR_V: &[u8] = include_bytes!("../kernels/kernels.spv");
/// Number of threads of a block.
const BLOCK: u32 = 128;

/// Two kernels on 32-bit words.
pub struct Kernels {
    fill: Kernel,
    scale: Kernel,
}

impl Kernels {
    /// Returns whether a device can run the kernels.
    pub fn run_on(device: &Device) -> bool {
        device.kernels().is_ok()
    }

    /// Loads the kernels.
    ///
    /// # Errors
    /// Fails as [`Program::new`] does.
    pub fn load(context: &Context) -> Result<Self> {
        Self::of(&Self::program(context)?)
    }

    /// Finds the kernels in the program that contains them.
    ///
    /// # Errors
    /// Fails as [`Program::kernel`] does.
    pub fn of(program: &Program) -> Result<Self> {
        Ok(Self {
            fill: program.kernel("fill")?,
            scale: program.kernel("scale")?,
        })
    }

    /// Loads the program that contains the kernels.
    ///
    /// # Errors
    /// Fails as [`Program::new`] does.
    pub fn program(context: &Context) -> Result<Program> {
        Program::new(context, image(context.device().kernels()?))
    }

    /// Returns a command that sets every word to `value`.
    ///
    /// # Errors
    /// Fails as [`Command::launch`] does.
    pub fn fill(&self, words: &MemoryRange, value: u32) -> Result<Command> {
        launch(&self.fill, words, value)
    }

    /// Returns a command that writes to an address without memory, which faults.
    ///
    /// # Errors
    /// Fails as [`Command::launch`] does.
    pub fn fault(&self) -> Result<Command> {
        let nowhere = NonNull::without_provenance(NOWHERE);
        // SAFETY: the address is invalid on purpose. Only processes that exist for the fault launch
        // this command.
        let words = unsafe { MemoryRange::from_raw_parts(nowhere, 4, Access::ReadWrite) };
        launch(&self.fill, &words, 0)
    }

    /// Returns a command that multiplies every word by 3 and adds `addend`.
    ///
    /// # Errors
    /// Fails as [`Command::launch`] does.
    pub fn scale(&self, words: &MemoryRange, addend: u32) -> Result<Command> {
        launch(&self.scale, words, addend)
    }
}

/// Returns the program in a language that the device accepts.
fn image(limits: &KernelLimits) -> ProgramImage<'static> {
    match limits.intermediate_languages.contains("SPIR-V") {
        // SAFETY: the module passed the assembler's validator.
        true => unsafe { ProgramImage::spirv(SPIR_V) },
        false => ProgramImage::text(include_str!("../../crosshandle-cuda/src/kernels.ptx")),
    }
}

fn launch(kernel: &Kernel, words: &MemoryRange, number: u32) -> Result<Command> {
    let count = words.len() / 4;
    let arguments = KernelArguments::new()
        .with(words)
        .value(number)
        .value(count as u32);
    let shape = LaunchShape::covering(count, BLOCK)?;
    // SAFETY: both kernels access only the words in the range, which the arguments keep alive.
    unsafe { Command::launch(kernel, shape, arguments) }
}
