//! Copies between a thread's buffers and memory of any device.

use crate::error::Result;
use crosshandle::{
    AllocationOptions, Command, Context, Error, Memory, MemoryKind, Queue, SharedBytes,
};

/// One thread's way to a memory's bytes, a piece at a time.
pub(crate) enum Transfer<'a> {
    /// The host accesses the memory itself.
    Direct(SharedBytes<'a>),
    /// The device copies between the memory and memory that the host can access. Two at a time: while the
    /// device copies from one, the thread fills the other.
    Staged {
        memory: &'a Memory,
        stages: Box<[Stage; 2]>,
        current: usize,
    },
}

/// Memory that the host can access, and a queue that copies from it or to it.
pub(crate) struct Stage {
    staging: Memory,
    queue: Queue,
}

impl Stage {
    fn new(context: &Context, bytes: usize) -> crosshandle::Result<Self> {
        let options = AllocationOptions::new(bytes).kind(MemoryKind::Host);
        Ok(Self {
            staging: context.allocate_with(options)?,
            queue: context.create_queue()?,
        })
    }
}

impl<'a> Transfer<'a> {
    pub(crate) fn new(context: &Context, memory: &'a Memory, piece_bytes: usize) -> Result<Self> {
        match memory.bytes() {
            Ok(bytes) => Ok(Self::Direct(bytes)),
            Err(Error::Unsupported(_)) => Self::staged(context, memory, piece_bytes),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn staged(
        context: &Context,
        memory: &'a Memory,
        piece_bytes: usize,
    ) -> Result<Self> {
        let stage = || Stage::new(context, piece_bytes);
        Ok(Self::Staged {
            memory,
            stages: Box::new([stage()?, stage()?]),
            current: 0,
        })
    }

    /// Writes a piece of `len` bytes at `offset`, in parts that `fill` makes: it is called with the offset of
    /// each part in the piece and its buffer. Returns when the last part is taken; the device may copy
    /// still.
    pub(crate) fn write(
        &mut self,
        offset: usize,
        len: usize,
        buffer: &mut [u8],
        mut fill: impl FnMut(usize, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        if let Self::Staged {
            stages, current, ..
        } = self
        {
            *current = 1 - *current;
            // Until the copy from it before the last one is over.
            stages[*current].queue.finish()?;
        }
        let mut at = 0;
        while at < len {
            let size = (len - at).min(buffer.len());
            let part = &mut buffer[..size];
            let part_len = part.len();
            fill(at, part)?;
            match self {
                Self::Direct(bytes) => bytes.write(offset + at, part)?,
                Self::Staged {
                    stages, current, ..
                } => stages[*current].staging.write(at, part)?,
            }
            at += part_len;
        }
        if let Self::Staged {
            memory,
            stages,
            current,
        } = self
        {
            let stage = &stages[*current];
            let to = memory.range(offset..offset + len)?;
            stage
                .queue
                .submit(Command::copy(stage.staging.range(..len)?, to)?)?;
        }
        Ok(())
    }

    /// Reads a piece of `len` bytes at `offset`, and gives it to `take` in parts.
    pub(crate) fn read(
        &mut self,
        offset: usize,
        len: usize,
        buffer: &mut [u8],
        mut take: impl FnMut(&[u8]),
    ) -> Result<()> {
        if let Self::Staged { memory, stages, .. } = self {
            let stage = &stages[0];
            let from = memory.range(offset..offset + len)?;
            stage
                .queue
                .submit(Command::copy(from, stage.staging.range(..len)?)?)?;
            stage.queue.finish()?;
        }
        let mut at = 0;
        while at < len {
            let size = (len - at).min(buffer.len());
            let part = &mut buffer[..size];
            let count = part.len();
            match self {
                Self::Direct(bytes) => bytes.read(offset + at, part)?,
                Self::Staged { stages, .. } => stages[0].staging.read(at, part)?,
            }
            take(part);
            at += count;
        }
        Ok(())
    }

    /// Waits until everything that was written is there.
    pub(crate) fn finish(&self) -> Result<()> {
        if let Self::Staged { stages, .. } = self {
            for stage in stages.iter() {
                stage.queue.finish()?;
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
        const PIECE: usize = 1 << 20;
        let device = Device::find("host").expect("there is always a host");
        let context = Context::new(&device).expect("a context");
        let len = 3 * PIECE + 1000;
        let memory = context.allocate(len).expect("memory");
        let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
        let mut buffer = vec![0; 300_000];
        let pieces = || {
            (0..len)
                .step_by(PIECE)
                .map(|at| (at, (len - at).min(PIECE)))
        };
        let direct = Transfer::new(&context, &memory, PIECE).expect("direct access");
        let staged = Transfer::staged(&context, &memory, PIECE).expect("staged access");
        assert!(matches!(direct, Transfer::Direct(_)));
        let mut ways = [direct, staged];
        for (writer, reader) in [(0, 1), (1, 0)] {
            memory.write(0, &vec![0; len]).expect("cleared");
            for (at, size) in pieces() {
                let fill = |offset: usize, part: &mut [u8]| {
                    let start = at + offset;
                    part.copy_from_slice(&bytes[start..start + part.len()]);
                    Ok(())
                };
                ways[writer]
                    .write(at, size, &mut buffer, fill)
                    .expect("written");
            }
            ways[writer].finish().expect("written");
            let mut found = Vec::new();
            for (at, size) in pieces() {
                let take = |part: &[u8]| found.extend_from_slice(part);
                ways[reader]
                    .read(at, size, &mut buffer, take)
                    .expect("read");
            }
            assert!(found == bytes, "{writer} to {reader}");
        }
    }
}
