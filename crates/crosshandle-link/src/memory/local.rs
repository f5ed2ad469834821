//! The local memory of a command that copies between this host and the remote host.

use super::ring::{Ring, Rounds};
use super::transfer::{Opened, Span};
use crate::error::{Error, Result};
use crate::link::data::Direction;
use crosshandle::{Context, MemoryRange};
use std::sync::PoisonError;

pub(super) struct Local(MemoryRange);

impl Local {
    /// Wraps local memory that the host or the context's device can access. Fails for other memory.
    pub(super) fn new(range: MemoryRange, context: &Context) -> Result<Self> {
        let capabilities = &context.device().info().capabilities;
        if !range.is_on_host() && capabilities.host_memory_only {
            return Err(Error::Local(crosshandle::Error::Unsupported(
                "the host cannot access this device's memory: create the link with a context on that device, \
                 or copy the memory to host memory first"
                    .into(),
            )));
        }
        Ok(Self(range))
    }

    pub(super) fn send(self, to: &Opened, at: u64) -> Result<()> {
        self.transfer(Direction::Put, to, at)
    }

    pub(super) fn receive(self, from: &Opened, at: u64) -> Result<()> {
        self.transfer(Direction::Get, from, at)
    }

    /// Transfers all bytes. Memory that the host cannot access is transferred through a ring of
    /// host memory. The same applies to bytes that travel in messages, because only a queue may
    /// access the memory in this case.
    fn transfer(self, direction: Direction, remote: &Opened, at: u64) -> Result<()> {
        let session = remote.session();
        // Do not pass device memory to UCX, even if UCX supports the device. The device's stream
        // waits while this command runs, and UCX's own copies have been observed to wait for that
        // stream.
        if remote.data.is_some() && self.0.is_on_host() {
            let mut span = Span {
                start: self.0.as_ptr(),
                len: self.0.len(),
            };
            // SAFETY: the range keeps its memory alive. The host can access the memory, and for
            // `Get` it can write to it. UCX is C code, so races with other processes only result in
            // arbitrary bytes.
            return unsafe { remote.move_one(direction, at, &mut span) };
        }
        let spare = || session.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = spare().take();
        let ring = match kept {
            Some(ring) => ring,
            None => Ring::new(&session.context)?,
        };
        let len = self.0.len();
        let mut rounds = Rounds::new(&ring, direction, self.0);
        // SAFETY: the ring is host memory that only this transfer uses. `rounds` never returns the
        // same place for two parts that are transferred at the same time.
        let moved = unsafe { remote.move_parts(direction, at, len, &mut rounds) };
        let finished = rounds.finish();
        if finished.is_ok() {
            *spare() = Some(ring);
        }
        moved.and(finished)
    }
}
