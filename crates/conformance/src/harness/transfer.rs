//! Access to memory that the host may not be able to access.

use super::deadline;
use crosshandle::{
    AllocationOptions, Command, Context, Error, Memory, MemoryKind, MemoryRange, Queue, Result,
    virtual_memory::VirtualRange,
};

/// Reads and writes memory: directly if the host can access it, and otherwise through a queue.
pub struct Transfer {
    context: Context,
    queue: Option<Queue>,
}

impl Transfer {
    /// Creates a transfer for memory of this context.
    ///
    /// # Errors
    /// Fails if no queue can be created.
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
    /// Fails as [`Memory::write`] does.
    pub fn write(&self, memory: &Memory, offset: usize, bytes: &[u8]) -> Result<()> {
        match &self.queue {
            None => memory.write(offset, bytes),
            Some(queue) => self.copy_in(queue, memory.range(offset..offset + bytes.len())?, bytes),
        }
    }

    /// Reads bytes at an offset.
    ///
    /// # Errors
    /// Fails as [`Memory::read`] does.
    pub fn read(&self, memory: &Memory, offset: usize, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        match &self.queue {
            None => memory.read(offset, &mut bytes)?,
            Some(queue) => self.copy_out(queue, memory.range(offset..offset + len)?, &mut bytes)?,
        }
        Ok(bytes)
    }

    /// Compares memory with the pattern of a seed.
    ///
    /// # Errors
    /// Fails with the first difference.
    pub fn check(&self, memory: &Memory, offset: usize, seed: u64, len: usize) -> Result<()> {
        compare(&self.read(memory, offset, len)?, offset, seed)
    }

    /// Writes bytes to memory that is mapped in a range.
    ///
    /// # Errors
    /// Fails as [`VirtualRange::with_bytes`] does.
    pub fn write_range(&self, range: &VirtualRange, offset: usize, bytes: &[u8]) -> Result<()> {
        match &self.queue {
            None => {
                range.with_bytes(offset..offset + bytes.len(), |place| place.write(0, bytes))?
            }
            Some(queue) => self.copy_in(queue, mapped(range, offset, bytes.len())?, bytes),
        }
    }

    /// Reads bytes of memory that is mapped in a range.
    ///
    /// # Errors
    /// Fails as [`VirtualRange::with_bytes`] does.
    pub fn read_range(&self, range: &VirtualRange, offset: usize, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        match &self.queue {
            None => range.with_bytes(offset..offset + len, |place| place.read(0, &mut bytes))??,
            Some(queue) => self.copy_out(queue, mapped(range, offset, len)?, &mut bytes)?,
        }
        Ok(bytes)
    }

    /// Compares memory that is mapped in a range with the pattern of a seed.
    ///
    /// # Errors
    /// Fails with the first difference.
    pub fn check_range(
        &self,
        range: &VirtualRange,
        offset: usize,
        seed: u64,
        len: usize,
    ) -> Result<()> {
        compare(&self.read_range(range, offset, len)?, offset, seed)
    }

    fn copy_in(&self, queue: &Queue, to: MemoryRange, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let staging = self.staging(bytes.len())?;
        staging.write(0, bytes)?;
        queue.submit(Command::copy(staging.all(), to)?)?;
        queue.finish_timeout(deadline())
    }

    fn copy_out(&self, queue: &Queue, from: MemoryRange, bytes: &mut [u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let staging = self.staging(bytes.len())?;
        queue.submit(Command::copy(from, staging.all())?)?;
        queue.finish_timeout(deadline())?;
        staging.read(0, bytes)
    }

    fn staging(&self, len: usize) -> Result<Memory> {
        let options = AllocationOptions::new(len).kind(MemoryKind::Host);
        self.context.allocate_with(options)
    }
}

/// Returns the range of mapped bytes for a copy.
fn mapped(range: &VirtualRange, offset: usize, len: usize) -> Result<MemoryRange> {
    // SAFETY: the functions of this file wait for every copy before they return, and no case unmaps
    // memory during a copy. If a copy is late, the case fails.
    unsafe { range.range(offset..offset + len) }
}

fn compare(found: &[u8], offset: usize, seed: u64) -> Result<()> {
    let wanted = crate::pattern(seed, found.len());
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
