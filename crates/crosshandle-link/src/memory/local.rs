//! Memory of this host that a command copies from or to the other host's.

use super::transfer::{Opened, Span};
use crate::error::{Error, Result};
use crate::link::data::Direction;
use crate::link::stage::host_memory;
use crate::tuning::{STAGING_PART, STAGING_TIMEOUT};
use crosshandle::handle::BackendKind;
use crosshandle::{Command, Context, Memory, MemoryRange};

/// Parts of a copy: while one moves, another is copied.
const PARTS: usize = 2;

pub(super) struct Local(MemoryRange);

impl Local {
    /// Takes memory that the host or the context's device can access.
    pub(super) fn new(range: MemoryRange, context: &Context) -> Result<Self> {
        if !range.is_on_host() && context.device().info().backend == BackendKind::Host {
            return Err(Error::Local(crosshandle::Error::Unsupported(
                "the host cannot access this device's memory: make the link with a context of that device, \
                 or copy to memory of kind Host first, and that over the link"
                    .into(),
            )));
        }
        Ok(Self(range))
    }

    pub(super) fn send(self, to: &Opened, at: u64) -> Result<()> {
        if to.data.is_some() && self.0.is_on_host() {
            // SAFETY: the range keeps its memory, which the host can access. UCX, written in C, copies
            // it as the library itself does: what races with other processes is arbitrary bytes.
            return unsafe { to.move_one(Direction::Put, at, &self.span()) };
        }
        let parts = Parts::new(self, to)?;
        let mut next = parts.part(0)?;
        let mut start = 0;
        if let Some(part) = &next {
            parts.copy(part, Direction::Put)?;
            parts.finish()?;
        }
        for index in 1.. {
            let Some(part) = next else { break };
            next = parts.part(index)?;
            // Copied while the one before moves.
            if let Some(next) = &next {
                parts.copy(next, Direction::Put)?;
            }
            let moved = parts.put(to, at + start, &part);
            let finished = parts.finish();
            moved.and(finished)?;
            start += part.len as u64;
        }
        Ok(())
    }

    pub(super) fn receive(self, from: &Opened, at: u64) -> Result<()> {
        if from.data.is_some() && self.0.is_on_host() {
            // SAFETY: as in `send`; the range is writable.
            return unsafe { from.move_one(Direction::Get, at, &self.span()) };
        }
        let parts = Parts::new(self, from)?;
        let mut start = 0;
        for index in 0.. {
            let Some(part) = parts.part(index)? else {
                break;
            };
            // While this one moves, the one before is copied.
            let moved = parts.get(from, at + start, &part);
            let finished = parts.finish();
            moved.and(finished)?;
            parts.copy(&part, Direction::Get)?;
            start += part.len as u64;
        }
        parts.finish()
    }

    fn span(&self) -> Span {
        Span {
            start: self.0.as_ptr(),
            len: self.0.len(),
        }
    }
}

/// Memory that moves by way of a copy in memory of the host, part by part: memory of a device, and all that
/// goes through messages, so that the library accesses it.
struct Parts {
    local: MemoryRange,
    copy: Memory,
    part_len: usize,
    queue: crosshandle::Queue,
}

struct Part {
    own: MemoryRange,
    /// Where it is in the copy.
    place: usize,
    len: usize,
}

impl Parts {
    fn new(local: Local, remote: &Opened) -> Result<Self> {
        let context = &remote.session().context;
        let part_len = STAGING_PART.min(local.0.len().max(1));
        Ok(Self {
            local: local.0,
            copy: host_memory(context, PARTS * part_len)?,
            part_len,
            queue: context.create_queue()?,
        })
    }

    fn part(&self, index: usize) -> Result<Option<Part>> {
        let start = index * self.part_len;
        if start >= self.local.len() {
            return Ok(None);
        }
        let len = self.part_len.min(self.local.len() - start);
        Ok(Some(Part {
            own: self.local.range(start..start + len)?,
            place: index % PARTS * self.part_len,
            len,
        }))
    }

    /// Starts to copy a part: to the copy for `Put`, from it for `Get`.
    fn copy(&self, part: &Part, direction: Direction) -> Result<()> {
        let copy = self.copy.range(part.place..part.place + part.len)?;
        let own = part.own.clone();
        self.queue.submit(match direction {
            Direction::Put => Command::copy(own, copy)?,
            Direction::Get => Command::copy(copy, own)?,
        })?;
        Ok(())
    }

    fn finish(&self) -> Result<()> {
        Ok(self.queue.finish_timeout(STAGING_TIMEOUT)?)
    }

    fn span(&self, part: &Part) -> Span {
        Span {
            start: self.copy.as_ptr().wrapping_add(part.place),
            len: part.len,
        }
    }

    fn put(&self, to: &Opened, at: u64, part: &Part) -> Result<()> {
        if to.data.is_some() {
            // SAFETY: the copy is memory of the host, and lives until this returns.
            return unsafe { to.move_one(Direction::Put, at, &self.span(part)) };
        }
        let mut bytes = vec![0; part.len];
        self.copy.read(part.place, &mut bytes)?;
        to.write(at, &bytes)
    }

    fn get(&self, from: &Opened, at: u64, part: &Part) -> Result<()> {
        if from.data.is_some() {
            // SAFETY: as in `put`.
            return unsafe { from.move_one(Direction::Get, at, &self.span(part)) };
        }
        let mut bytes = vec![0; part.len];
        from.read(at, &mut bytes)?;
        Ok(self.copy.write(part.place, &bytes)?)
    }
}
