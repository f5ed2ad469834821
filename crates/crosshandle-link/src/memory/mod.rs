//! Memory of the remote host.

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

/// Maximum number of bytes that travel in the same message as the signal that follows them.
const MAX_WITH_SIGNAL: usize = 16 << 10;

/// Maximum length of another host's memory in bytes. No processor has a larger address space.
pub(crate) const MAX_LEN: u64 = 1 << 57;

/// A range of memory of the remote host. It can be read and written but not mapped. Dropping the
/// last range closes the memory.
///
/// A range is cheap to clone, and any thread may use it. When a write has returned or a command
/// that writes has completed, the bytes are at the remote host. Any process that sees a later
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
        // The length must be that of the handle. The handle is not trusted either, so its length
        // must fit into an address space.
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

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns `true` if the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the access that this host has to the memory.
    pub fn access(&self) -> Access {
        self.opened.access
    }

    /// Returns `true` if the memory is staged: the link cannot access it directly, for example
    /// because it is GPU memory. A queue of the remote host then copies the bytes between this
    /// memory and memory that the link can access. Each transfer costs one more copy and one more
    /// round trip.
    pub fn is_staged(&self) -> bool {
        self.opened.staging > 0
    }

    /// Returns a part of this range. Offsets are in bytes from the start of this range.
    ///
    /// # Errors
    /// Returns [`Error::InvalidArgument`] if the part is not inside.
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
    /// [`Error::Ended`], or [`Error::Ucx`].
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        self.read_many(&mut [(offset, into)])
    }

    /// Copies bytes from `from` into this range, starting at byte `offset`. Returns when the bytes
    /// are at the remote host.
    ///
    /// # Errors
    /// Returns the errors of [`read`](Self::read), and [`Error::ReadOnly`].
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        self.write_many(&[(offset, from)])
    }

    /// Copies bytes into this range, starting at byte `offset`, and then signals an event of the
    /// same link. Any process that sees the signal also sees the bytes. Small writes return at
    /// once.
    ///
    /// Up to 16 KiB travel in one message with the signal. More bytes, and bytes for
    /// [staged](Self::is_staged) memory, are first written as by [`write`](Self::write), which
    /// waits until they are at the remote host.
    ///
    /// # Errors
    /// Returns the errors of [`write`](Self::write), and [`Error::InvalidArgument`] for an event of
    /// another link.
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

    /// Copies several pieces from this range, all at the same time. Each piece starts at its own
    /// offset.
    ///
    /// # Errors
    /// Returns the errors of [`read`](Self::read). After an error the bytes of all pieces are
    /// arbitrary.
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
            // SAFETY: the slices are borrowed until this returns.
            return unsafe { self.opened.move_pieces(Direction::Get, &mut pieces) };
        }
        for (offset, into) in pieces.iter_mut() {
            self.opened.read(self.start + *offset as u64, into)?;
        }
        Ok(())
    }

    /// Copies several pieces into this range, all at the same time. Each piece starts at its own
    /// offset. Returns when all pieces are at the remote host. If pieces overlap, the bytes that
    /// they share are arbitrary afterwards.
    ///
    /// # Errors
    /// Returns the errors of [`write`](Self::write).
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
            // SAFETY: the slices are borrowed until this returns.
            return unsafe { self.opened.move_pieces(Direction::Put, &mut pieces) };
        }
        for (offset, from) in pieces {
            self.opened.write(self.start + *offset as u64, from)?;
        }
        Ok(())
    }

    /// Makes a command that copies the bytes of `source`, a range on this host, to this range. The
    /// ranges must have the same length.
    ///
    /// Like any command, it runs in the order of its queue, can wait for events, and can signal an
    /// event. The command completes when the bytes are at the remote host, and keeps `source` and
    /// the link alive until then.
    ///
    /// # Errors
    /// Returns [`Error::InvalidArgument`] for different lengths, or [`Error::ReadOnly`]. Returns
    /// [`crosshandle::Error::Unsupported`] for device memory that the host cannot access, unless
    /// the link's context is of that device. With such a context, the memory is first copied to
    /// host memory, part by part.
    pub fn copy_from(&self, source: MemoryRange) -> Result<Command> {
        self.check_writable()?;
        let (this, source) = (self.clone(), self.local(source)?);
        Ok(Command::call(move || source.send(&this.opened, this.start)))
    }

    /// Makes a command that copies the bytes of this range to `destination`, a range on this host.
    /// The ranges must have the same length. The command behaves like the one that
    /// [`copy_from`](Self::copy_from) makes.
    ///
    /// # Errors
    /// Returns the errors of [`copy_from`](Self::copy_from), and [`Error::ReadOnly`] for a
    /// destination that was opened read-only.
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
