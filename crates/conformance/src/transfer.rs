//! Bytes into and out of memory that the host may not be able to access.

use crosshandle::{AllocationOptions, Command, Context, Error, Memory, MemoryKind, Queue, Result};

/// Reads and writes memory: directly where the host can, otherwise through a queue.
pub struct Transfer {
    context: Context,
    queue: Option<Queue>,
}

impl Transfer {
    /// For memory of this context.
    ///
    /// # Errors
    /// If there can be no queue.
    pub fn new(context: &Context) -> Result<Self> {
        let direct = context.device().info().capabilities.host_accessible_memory;
        let queue = (!direct).then(|| context.create_queue()).transpose()?;
        Ok(Self {
            context: context.clone(),
            queue,
        })
    }

    /// Writes bytes at an offset.
    ///
    /// # Errors
    /// As [`Memory::write`].
    pub fn write(&self, memory: &Memory, offset: usize, bytes: &[u8]) -> Result<()> {
        let Some(queue) = &self.queue else {
            return memory.write(offset, bytes);
        };
        let staging = self.staging(bytes.len())?;
        staging.write(0, bytes)?;
        let to = memory.range(offset, bytes.len())?;
        queue.submit(Command::copy(to, staging.all())?)?;
        queue.finish()
    }

    /// Reads bytes at an offset.
    ///
    /// # Errors
    /// As [`Memory::read`].
    pub fn read(&self, memory: &Memory, offset: usize, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let Some(queue) = &self.queue else {
            memory.read(offset, &mut bytes)?;
            return Ok(bytes);
        };
        let staging = self.staging(len)?;
        let from = memory.range(offset, len)?;
        queue.submit(Command::copy(staging.all(), from)?)?;
        queue.finish()?;
        staging.read(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Compares memory with the pattern of a seed.
    ///
    /// # Errors
    /// Where they differ first.
    pub fn check(&self, memory: &Memory, offset: usize, seed: u64, len: usize) -> Result<()> {
        let found = self.read(memory, offset, len)?;
        let wanted = crate::pattern(seed, len);
        match found.iter().zip(&wanted).position(|(a, b)| a != b) {
            None => Ok(()),
            Some(at) => Err(Error::InvalidArgument(format!(
                "byte {} is {:#04x}, not {:#04x} as seed {seed} has it",
                offset + at,
                found[at],
                wanted[at]
            ))),
        }
    }

    fn staging(&self, len: usize) -> Result<Memory> {
        let options = AllocationOptions::new(len).kind(MemoryKind::Host);
        self.context.allocate_with(options)
    }
}
