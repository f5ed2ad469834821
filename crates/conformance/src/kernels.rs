//! Kernels of which the suite knows what they do, for all backends that run any.

use crosshandle::handle::BackendKind;
use crosshandle::{
    Access, Command, Context, Device, Kernel, KernelArguments, LaunchShape, MemoryRange, Program,
    ProgramImage, Result,
};
use std::num::NonZeroUsize;
use std::ptr::NonNull;

/// An address at which no process has memory.
const NOWHERE: NonZeroUsize = NonZeroUsize::new(64).unwrap();
/// Threads of a block.
const BLOCK: u32 = 128;

/// Two kernels on words of 32 bits.
pub struct Kernels {
    fill: Kernel,
    scale: Kernel,
}

impl Kernels {
    /// Whether a device runs them.
    pub fn run_on(device: &Device) -> bool {
        device.info().kernels.is_some() && image(device).is_some()
    }

    /// Loads them.
    ///
    /// # Errors
    /// As [`Context::load_program`].
    pub fn load(context: &Context) -> Result<Self> {
        let program = Self::program(context)?;
        Ok(Self {
            fill: program.kernel("fill")?,
            scale: program.kernel("scale")?,
        })
    }

    /// The program that they are in.
    ///
    /// # Errors
    /// As [`Context::load_program`].
    pub fn program(context: &Context) -> Result<Program> {
        let text = image(context.device()).unwrap_or_default();
        context.load_program(ProgramImage::text(text))
    }

    /// Sets every word to a value.
    ///
    /// # Errors
    /// As [`Command::launch`].
    pub fn fill(&self, words: &MemoryRange, value: u32) -> Result<Command> {
        launch(&self.fill, words, value)
    }

    /// Writes where there is no memory, which faults.
    ///
    /// # Errors
    /// As [`Command::launch`].
    pub fn fault(&self) -> Result<Command> {
        let nowhere = NonNull::without_provenance(NOWHERE);
        // SAFETY: to be wrong is what it is for: in a process that is there for nothing else.
        let words = unsafe { MemoryRange::from_raw_parts(nowhere, 4, Access::ReadWrite) };
        launch(&self.fill, &words, 0)
    }

    /// Multiplies every word by 3 and adds a number.
    ///
    /// # Errors
    /// As [`Command::launch`].
    pub fn scale(&self, words: &MemoryRange, addend: u32) -> Result<Command> {
        launch(&self.scale, words, addend)
    }
}

/// The program for a device, as assembly.
fn image(device: &Device) -> Option<&'static str> {
    match device.info().backend {
        BackendKind::Cuda => Some(include_str!("../../crosshandle/src/hal/cuda/kernels.ptx")),
        _ => None,
    }
}

fn launch(kernel: &Kernel, words: &MemoryRange, number: u32) -> Result<Command> {
    let count = words.len() / 4;
    let arguments = KernelArguments::new()
        .memory(words)
        .value(number)
        .value(count as u32);
    let shape = LaunchShape::covering(count, BLOCK)?;
    // SAFETY: both kernels access the words in the range alone, which the arguments keep.
    unsafe { Command::launch(kernel, shape, arguments) }
}
