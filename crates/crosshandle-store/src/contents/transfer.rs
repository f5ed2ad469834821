//! Copies between a thread's buffers and memory on any device.

use crate::error::Result;
use crosshandle::{
    AllocationOptions, Command, Context, Error, Memory, MemoryKind, Queue, SharedBytes,
};

/// One thread's access to the bytes of a memory, piece by piece.
pub(crate) enum Transfer<'a> {
    /// The host accesses the memory directly.
    Direct(SharedBytes<'a>),
    /// The device copies between the memory and two staging buffers that the host can access. While
    /// the device copies from one buffer, the thread fills the other.
    Staged {
        memory: &'a Memory,
        stages: Box<[Stage; 2]>,
        current: usize,
    },
}

/// A staging buffer that the host can access, and a queue that copies from it or to it.
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
    /// Prepares access to memory. Uses staging buffers of `stage_bytes` bytes if the host cannot
    /// access it.
    pub(crate) fn new(context: &Context, memory: &'a Memory, stage_bytes: usize) -> Result<Self> {
        match memory.bytes() {
            Ok(bytes) => Ok(Self::Direct(bytes)),
            Err(Error::Unsupported(_)) => {
                Self::staged(context, memory, stage_bytes.clamp(1, memory.len()))
            }
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn staged(
        context: &Context,
        memory: &'a Memory,
        stage_bytes: usize,
    ) -> Result<Self> {
        let stage = || Stage::new(context, stage_bytes);
        Ok(Self::Staged {
            memory,
            stages: Box::new([stage()?, stage()?]),
            current: 0,
        })
    }

    /// Returns the size of a staging buffer, or 0 if there are none.
    pub(crate) fn stage_bytes(&self) -> usize {
        match self {
            Self::Direct(_) => 0,
            Self::Staged { stages, .. } => stages[0].staging.len(),
        }
    }

    /// Writes `len` bytes at `offset`, in parts of at most `part_bytes`. For each part, calls
    /// `fill` with the part's offset in the written bytes, and with the memory to fill. Returns
    /// when the last part is filled. The device may still be copying then.
    pub(crate) fn write(
        &mut self,
        offset: usize,
        len: usize,
        part_bytes: usize,
        mut fill: impl FnMut(usize, SharedBytes<'_>) -> Result<()>,
    ) -> Result<()> {
        match self {
            Self::Direct(bytes) => {
                for (at, size) in steps(len, part_bytes) {
                    let start = offset + at;
                    fill(at, bytes.slice(start..start + size)?)?;
                }
            }
            Self::Staged {
                memory,
                stages,
                current,
            } => {
                for (begin, taken) in steps(len, stages[0].staging.len()) {
                    *current = 1 - *current;
                    let stage = &stages[*current];
                    // Wait for the previous copy from this buffer.
                    stage.queue.finish()?;
                    let staging = stage.staging.bytes()?;
                    for (at, size) in steps(taken, part_bytes) {
                        fill(begin + at, staging.slice(at..at + size)?)?;
                    }
                    let start = offset + begin;
                    let to = memory.range(start..start + taken)?;
                    stage
                        .queue
                        .submit(Command::copy(stage.staging.range(..taken)?, to)?)?;
                }
            }
        }
        Ok(())
    }

    /// Reads `len` bytes at `offset`, and passes them to `take` in parts.
    pub(crate) fn read(
        &mut self,
        offset: usize,
        len: usize,
        buffer: &mut [u8],
        mut take: impl FnMut(&[u8]),
    ) -> Result<()> {
        match self {
            Self::Direct(bytes) => {
                for (at, size) in steps(len, buffer.len()) {
                    let part = &mut buffer[..size];
                    bytes.read(offset + at, part)?;
                    take(part);
                }
            }
            Self::Staged { memory, stages, .. } => {
                let begin_copy = |stage: &Stage, (begin, taken): (usize, usize)| {
                    let start = offset + begin;
                    let from = memory.range(start..start + taken)?;
                    let copy = Command::copy(from, stage.staging.range(..taken)?)?;
                    stage.queue.submit(copy)
                };
                let mut ahead = steps(len, stages[0].staging.len()).enumerate();
                let mut under_way = ahead.next();
                if let Some((_, step)) = under_way {
                    begin_copy(&stages[0], step)?;
                }
                while let Some((number, (_, taken))) = under_way {
                    under_way = ahead.next();
                    if let Some((next, step)) = under_way {
                        begin_copy(&stages[next % 2], step)?;
                    }
                    let stage = &stages[number % 2];
                    stage.queue.finish()?;
                    for (at, size) in steps(taken, buffer.len()) {
                        let part = &mut buffer[..size];
                        stage.staging.read(at, part)?;
                        take(part);
                    }
                }
            }
        }
        Ok(())
    }

    /// Waits until the device has finished all copies, even if a copy has failed.
    pub(crate) fn finish(&self) -> Result<()> {
        match self {
            Self::Direct(_) => Ok(()),
            Self::Staged { stages, .. } => {
                let ended = stages.each_ref().map(|stage| stage.queue.finish());
                Ok(ended.into_iter().collect::<Result<(), Error>>()?)
            }
        }
    }
}

impl Drop for Transfer<'_> {
    /// Waits for the device, even after a failure. The device writes the memory during a copy, and
    /// the caller is about to publish the state of that memory.
    fn drop(&mut self) {
        // Ignore the result, because a caller that needs it has called `finish`.
        let _ = self.finish();
    }
}

/// Returns the offsets and lengths of the steps that divide `len` bytes, each of at most `most`
/// bytes.
fn steps(len: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..len)
        .step_by(most.max(1))
        .map(move |at| (at, (len - at).min(most)))
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
        let staged = Transfer::staged(&context, &memory, PIECE / 3).expect("staged access");
        assert!(matches!(direct, Transfer::Direct(_)));
        let mut ways = [direct, staged];
        for (writer, reader) in [(0, 1), (1, 0)] {
            memory.write(0, &vec![0; len]).expect("cleared");
            for (at, size) in pieces() {
                let fill = |offset: usize, part: SharedBytes<'_>| {
                    let start = at + offset;
                    Ok(part.write(0, &bytes[start..start + part.len()])?)
                };
                ways[writer]
                    .write(at, size, 300_000, fill)
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
