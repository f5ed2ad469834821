//! Copies bytes between this process and memory on any device.

use crate::failure::Result;
use crate::tuning::COPY_CHUNK_BYTES;
use crosshandle::{
    Access, AllocationOptions, Command, Context, Error, Memory, MemoryKind, Queue, SharedBytes,
};

/// Access to the bytes of memory on any device.
pub(crate) struct Transfer<'a> {
    memory: &'a Memory,
    path: Path<'a>,
}

enum Path<'a> {
    /// The host accesses the memory directly.
    Direct(SharedBytes<'a>),
    /// The device copies between the memory and a staging buffer that the host can access.
    Staged { staging: Memory, queue: Queue },
}

impl<'a> Transfer<'a> {
    pub(crate) fn new(context: &Context, memory: &'a Memory) -> Result<Self> {
        match memory.bytes() {
            Ok(bytes) => Ok(Self {
                memory,
                path: Path::Direct(bytes),
            }),
            Err(Error::Unsupported(_)) => Self::staged(context, memory),
            Err(error) => Err(error.into()),
        }
    }

    fn staged(context: &Context, memory: &'a Memory) -> Result<Self> {
        let options = AllocationOptions::new(COPY_CHUNK_BYTES).kind(MemoryKind::Host);
        let staging = context.allocate_with(options)?;
        let queue = context.create_queue()?;
        Ok(Self {
            memory,
            path: Path::Staged { staging, queue },
        })
    }

    /// Returns the length of the memory in bytes.
    pub(crate) fn len(&self) -> usize {
        self.memory.len()
    }

    /// Copies bytes from the memory, starting at byte `offset`, into `into`.
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        match &self.path {
            Path::Direct(bytes) => bytes.read(offset, into)?,
            Path::Staged { staging, queue } => {
                for (index, part) in into.chunks_mut(COPY_CHUNK_BYTES).enumerate() {
                    let start = offset + index * COPY_CHUNK_BYTES;
                    let from = self.memory.range(start..start + part.len())?;
                    let to = staging.range(..part.len())?;
                    queue.submit(Command::copy(from, to)?)?;
                    queue.finish()?;
                    staging.read(0, part)?;
                }
            }
        }
        Ok(())
    }

    /// Copies bytes from `from` into the memory, starting at byte `offset`.
    pub(crate) fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        match &self.path {
            Path::Direct(bytes) => bytes.write(offset, from)?,
            Path::Staged { staging, queue } => {
                if self.memory.access() == Access::ReadOnly {
                    return Err(Error::ReadOnly.into());
                }
                for (index, part) in from.chunks(COPY_CHUNK_BYTES).enumerate() {
                    staging.write(0, part)?;
                    let start = offset + index * COPY_CHUNK_BYTES;
                    let to = self.memory.range(start..start + part.len())?;
                    let from = staging.range(..part.len())?;
                    queue.submit(Command::copy(from, to)?)?;
                    queue.finish()?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crosshandle::Device;

    #[test]
    fn both_ways_copy_the_same_bytes() {
        let device = Device::find("host").expect("the host is always there");
        let context = Context::new(&device).expect("a context");
        let memory = context
            .allocate(2 * COPY_CHUNK_BYTES + 100)
            .expect("memory");
        let direct = Transfer::new(&context, &memory).expect("direct access");
        let staged = Transfer::staged(&context, &memory).expect("staged access");
        assert!(matches!(direct.path, Path::Direct(_)));

        let sent: Vec<u8> = (0..memory.len() - 1).map(|i| (i % 251) as u8).collect();
        let mut received = vec![0; sent.len()];
        staged.write(1, &sent).expect("staged write");
        direct.read(1, &mut received).expect("direct read");
        assert!(sent == received);
        received.fill(0);
        staged.read(1, &mut received).expect("staged read");
        assert!(sent == received);
        assert!(staged.write(memory.len() - 1, &[1, 2]).is_err());
        assert!(direct.read(memory.len() - 1, &mut [0; 2]).is_err());
    }
}
