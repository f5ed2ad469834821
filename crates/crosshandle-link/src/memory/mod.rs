//! Memory on the remote host.

mod local;
pub(crate) mod ring;
mod transfer;

use crate::control::message::Message;
use crate::error::{Error, Result};
use crate::event::{PendingSignal, RemoteEvent};
use crate::link::data::{Direction, Piece};
use crate::link::request::Reply;
use crate::link::{Link, close_object};
use crate::tuning::STAGING_PARTS;
use crosshandle::{Access, Command, MemoryHandle, MemoryRange, adapter_support::Deadline};
use local::Local;
use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use transfer::Opened;

/// Maximum number of bytes that `write_and_signal` sends in the same message as the signal.
const MAX_WITH_SIGNAL: usize = 16 << 10;

/// Maximum length in bytes of memory on another host. No processor has a larger address space.
pub(crate) const MAX_LEN: u64 = 1 << 57;

/// A range of memory on the remote host. A program can read, write and copy it, but cannot map it.
/// Dropping the last range in a memory closes the memory.
///
/// A range is cheap to clone, and any thread may use it. When a write has returned or a command
/// that writes has completed, the bytes are in the remote memory. Any process that has seen a later
/// signal also sees the bytes.
#[derive(Clone)]
pub struct RemoteMemory {
    opened: Arc<Opened>,
    start: u64,
    len: u64,
}

impl RemoteMemory {
    pub(crate) fn open(
        link: &Link,
        handle: &MemoryHandle,
        read_only: bool,
        deadline: Deadline,
    ) -> Result<Self> {
        let session = link.session();
        let pending = session.ask(|request| Message::Open {
            request,
            read_only,
            handle: handle.as_bytes(),
        })?;
        let Reply::Memory {
            id,
            len,
            address,
            staging,
            key,
        } = pending.wait_until(deadline)?
        else {
            return Err(Error::Protocol("its reply does not match the request"));
        };
        // The length must equal the length in the handle. The handle is not trusted either, so its
        // length must fit into an address space.
        if len != handle.len() || len > MAX_LEN {
            close_object(session, id);
            return Err(Error::Protocol(
                "its memory has a different length than the handle",
            ));
        }
        if address.checked_add(len).is_none() || address.checked_add(staging.into()).is_none() {
            return Err(Error::Protocol("its memory exceeds the address space"));
        }
        if (1..STAGING_PARTS as u32).contains(&staging) {
            return Err(Error::Protocol("its staging buffer has no parts"));
        }
        let data = match &session.data {
            Some(data) => {
                let key = data
                    .add_key(&key)
                    .inspect_err(|_| close_object(session, id))?;
                Some((Arc::clone(data), key))
            }
            None => None,
        };
        let access = match read_only || handle.is_read_only() {
            true => Access::ReadOnly,
            false => Access::ReadWrite,
        };
        let opened = Opened {
            link: Arc::clone(link.inner()),
            id,
            address,
            access,
            data,
            staging,
        };
        Ok(Self {
            opened: Arc::new(opened),
            start: 0,
            len,
        })
    }

    /// Returns the length of the range in bytes.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns `true` if the range is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether this host may only read the memory, or also write to it.
    pub fn access(&self) -> Access {
        self.opened.access
    }

    /// Returns `true` if the memory is staged, which means that the link cannot access it directly,
    /// for example because it is on a GPU. For staged memory, a queue on the remote host copies the
    /// bytes to or from memory that the link can access. Each transfer takes one more copy and one
    /// more round trip.
    pub fn is_staged(&self) -> bool {
        self.opened.staging > 0
    }

    /// Returns a part of this range. Offsets are in bytes from the start of this range.
    ///
    /// # Errors
    /// Returns [`Error::InvalidArgument`] if the part is not inside this range.
    pub fn range(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let start = match range.start_bound() {
            Bound::Included(start) => Some(*start),
            Bound::Excluded(before) => before.checked_add(1),
            Bound::Unbounded => Some(0),
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last.checked_add(1),
            Bound::Excluded(end) => Some(*end),
            Bound::Unbounded => Some(self.len()),
        };
        match (start, end) {
            (Some(start), Some(end)) if start <= end && end <= self.len() => Ok(Self {
                opened: Arc::clone(&self.opened),
                start: self.start + start as u64,
                len: (end - start) as u64,
            }),
            _ => Err(Error::invalid(format!(
                "the part is not inside the {} bytes of this memory",
                self.len
            ))),
        }
    }

    fn check(&self, offset: usize, len: usize) -> Result<()> {
        match (offset as u64).checked_add(len as u64) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(Error::invalid(format!(
                "{len} bytes from byte {offset} on are not inside the {} bytes of this memory",
                self.len
            ))),
        }
    }

    fn check_writable(&self) -> Result<()> {
        match self.opened.access {
            Access::ReadWrite => Ok(()),
            Access::ReadOnly => Err(Error::ReadOnly),
        }
    }

    /// Copies bytes from this range, starting at byte `offset`, into `into`.
    ///
    /// # Errors
    /// Returns [`Error::InvalidArgument`] if the range does not contain all the bytes,
    /// [`Error::Ended`] if the link has ended, or [`Error::Ucx`] if UCX cannot transfer the bytes.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        self.read_many(&mut [(offset, into)])
    }

    /// Copies bytes from `from` into this range, starting at byte `offset`. Returns when the bytes
    /// are in the remote memory.
    ///
    /// # Errors
    /// Returns the same errors as [`read`](Self::read), and [`Error::ReadOnly`] if the memory was
    /// opened read-only.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        self.write_many(&[(offset, from)])
    }

    /// Copies bytes into this range, starting at byte `offset`, and then signals an event that was
    /// opened through the same link. Any process that has seen the signal also sees the bytes. A
    /// small write returns at once.
    ///
    /// Up to 16 KiB travel in one message with the signal. If there are more bytes, or if the
    /// memory is [staged](Self::is_staged), this method first calls [`write`](Self::write), which
    /// waits until the bytes are in the remote memory.
    ///
    /// # Errors
    /// Returns the same errors as [`write`](Self::write), and [`Error::InvalidArgument`] if the
    /// event was opened through another link.
    pub fn write_and_signal(
        &self,
        offset: usize,
        from: &[u8],
        event: &RemoteEvent,
    ) -> Result<PendingSignal> {
        self.check_writable()?;
        self.check(offset, from.len())?;
        if !Arc::ptr_eq(event.link(), &self.opened.link) {
            return Err(Error::invalid(
                "the event and the memory belong to different links: write, then signal",
            ));
        }
        if from.len() > MAX_WITH_SIGNAL || self.is_staged() {
            self.write(offset, from)?;
            return event.start_signal();
        }
        let pending = self
            .opened
            .session()
            .ask(|request| Message::WriteAndSignal {
                request,
                id: self.opened.id,
                event: event.id(),
                offset: self.start + offset as u64,
                bytes: from,
            })?;
        Ok(PendingSignal::new(pending))
    }

    /// Copies several pieces from this range at the same time. Each piece is an offset in this
    /// range and the slice to fill.
    ///
    /// # Errors
    /// Returns the same errors as [`read`](Self::read). After an error, all slices contain
    /// arbitrary bytes.
    pub fn read_many(&self, pieces: &mut [(usize, &mut [u8])]) -> Result<()> {
        for (offset, into) in pieces.iter() {
            self.check(*offset, into.len())?;
        }
        if self.opened.is_direct() {
            let pieces = pieces.iter_mut().map(|(offset, into)| Piece {
                local: into.as_mut_ptr(),
                len: into.len(),
                remote: self.start + *offset as u64,
            });
            let mut pieces: Vec<_> = pieces.collect();
            // SAFETY: the slices stay borrowed until this call returns.
            return unsafe { self.opened.move_pieces(Direction::Get, &mut pieces) };
        }
        for (offset, into) in pieces.iter_mut() {
            self.opened.read(self.start + *offset as u64, into)?;
        }
        Ok(())
    }

    /// Copies several pieces into this range at the same time. Each piece is an offset in this
    /// range and the bytes to copy. Returns when all pieces are in the remote memory. Where pieces
    /// overlap, the remote memory then contains arbitrary bytes.
    ///
    /// # Errors
    /// Returns the same errors as [`write`](Self::write).
    pub fn write_many(&self, pieces: &[(usize, &[u8])]) -> Result<()> {
        self.check_writable()?;
        for (offset, from) in pieces {
            self.check(*offset, from.len())?;
        }
        if self.opened.is_direct() {
            let pieces = pieces.iter().map(|(offset, from)| Piece {
                // The pointer is only read from.
                local: from.as_ptr().cast_mut(),
                len: from.len(),
                remote: self.start + *offset as u64,
            });
            let mut pieces: Vec<_> = pieces.collect();
            // SAFETY: the slices stay borrowed until this call returns.
            return unsafe { self.opened.move_pieces(Direction::Put, &mut pieces) };
        }
        for (offset, from) in pieces {
            self.opened.write(self.start + *offset as u64, from)?;
        }
        Ok(())
    }

    /// Creates a command that copies `source`, a local range, to this range. Both ranges must have
    /// the same length.
    ///
    /// Like any command, it runs in the order of its queue, can wait for events, and can signal an
    /// event. The command completes when the bytes are in the remote memory. It keeps `source` and
    /// the link alive until then.
    ///
    /// # Errors
    /// Returns [`Error::InvalidArgument`] if the lengths differ, or [`Error::ReadOnly`] if this
    /// range is read-only. Returns [`crosshandle::Error::Unsupported`] if `source` is device memory
    /// that the host cannot access, unless the link's context is on that device. With such a
    /// context, the command copies the memory to host memory first, part by part.
    pub fn copy_from(&self, source: MemoryRange) -> Result<Command> {
        self.check_writable()?;
        let (this, source) = (self.clone(), self.local(source)?);
        Ok(Command::call(move || source.send(&this.opened, this.start)))
    }

    /// Creates a command that copies this range to `destination`, a local range. Both ranges must
    /// have the same length. The command behaves like a command from
    /// [`copy_from`](Self::copy_from).
    ///
    /// # Errors
    /// Returns the same errors as [`copy_from`](Self::copy_from), but [`Error::ReadOnly`] if
    /// `destination` is read-only.
    pub fn copy_to(&self, destination: MemoryRange) -> Result<Command> {
        if destination.access() == Access::ReadOnly {
            return Err(Error::ReadOnly);
        }
        let (this, destination) = (self.clone(), self.local(destination)?);
        Ok(Command::call(move || {
            destination.receive(&this.opened, this.start)
        }))
    }

    fn local(&self, range: MemoryRange) -> Result<Local> {
        if range.len() as u64 != self.len {
            return Err(Error::invalid(format!(
                "a copy needs two ranges of the same length, but got {} bytes here and {} there",
                range.len(),
                self.len
            )));
        }
        Local::new(range, &self.opened.session().context)
    }
}

impl fmt::Debug for RemoteMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteMemory")
            .field("peer", &self.opened.session().peer)
            .field("len", &self.len)
            .field("access", &self.opened.access)
            .finish_non_exhaustive()
    }
}
