//! Memory of the other host.

use crate::control::message::{MAX_DATA, Message};
use crate::error::{Error, Result};
use crate::event::{PendingSignal, RemoteEvent};
use crate::link::data::{DataPath, Direction, Piece};
use crate::link::session::{Answer, Question, Session};
use crate::link::{Inner, Link, close_object};
use crate::tuning::{MAX_WITH_SIGNAL, PIECES_UNDER_WAY};
use crate::ucx::worker::RemoteKey;
use crosshandle::{Access, Command, Memory, MemoryHandle, MemoryRange};
use std::collections::VecDeque;
use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

/// A range of memory of the other host, which can be read and written but not mapped. Dropping the last
/// range closes the memory.
///
/// Cheap to clone; any thread may use it. A write has returned, or a command of one is done, when the bytes
/// are at the other host: what is signalled after that is seen after the bytes.
#[derive(Clone)]
pub struct RemoteMemory {
    opened: Arc<Opened>,
    start: u64,
    len: u64,
}

struct Opened {
    link: Arc<Inner>,
    id: u32,
    address: u64,
    access: Access,
    /// Present with UCX.
    data: Option<(Arc<DataPath>, RemoteKey)>,
}

impl Opened {
    fn session(&self) -> &Session {
        &self.link.session
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Some((data, key)) = &self.data {
            data.destroy_key(*key);
        }
        close_object(self.session(), self.id);
    }
}

impl RemoteMemory {
    pub(crate) fn open(link: &Link, handle: &MemoryHandle, read_only: bool) -> Result<Self> {
        let session = link.session();
        let question = session.ask(|request| Message::Open {
            request,
            read_only,
            handle: handle.as_bytes(),
        })?;
        let Answer::Memory {
            id,
            len,
            address,
            key,
        } = question.wait()?
        else {
            return Err(Error::Protocol("its answer is to another question"));
        };
        if address.checked_add(len).is_none() {
            return Err(Error::Protocol("its memory has no end"));
        }
        let data = match &session.data {
            Some(data) => {
                let key = data
                    .unpack(&key)
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

    /// Returns whether the range has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the access that this host has.
    pub fn access(&self) -> Access {
        self.opened.access
    }

    /// Returns the part in a range of bytes, counted from the start of this range.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the part is not inside.
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
                "the part is not inside of the {} bytes of this memory",
                self.len
            ))),
        }
    }

    fn check(&self, offset: usize, len: usize) -> Result<()> {
        match (offset as u64).checked_add(len as u64) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(Error::invalid(format!(
                "{len} bytes from byte {offset} on are not inside of the {} bytes of this memory",
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

    /// Copies bytes here, starting at byte `offset`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the bytes are not all inside; [`Error::Ended`]; [`Error::Ucx`].
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        self.read_many(&mut [(offset, into)])
    }

    /// Copies bytes there, starting at byte `offset`, and returns when they are there.
    ///
    /// # Errors
    /// As [`read`](Self::read); [`Error::ReadOnly`].
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        self.write_many(&[(offset, from)])
    }

    /// Copies bytes there, starting at byte `offset`, and then signals an event of the same link: whoever sees
    /// the signal sees the bytes. Does not wait for either.
    ///
    /// Up to 16 KiB go with the signal in one message. More are written first, as [`write`](Self::write)
    /// does, and waited for.
    ///
    /// # Errors
    /// As [`write`](Self::write); [`Error::InvalidArgument`] for an event of another link.
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
                "the event is of another link than the memory: write, then signal",
            ));
        }
        if from.len() > MAX_WITH_SIGNAL {
            self.write(offset, from)?;
            return event.start_signal();
        }
        let question = self
            .opened
            .session()
            .ask(|request| Message::WriteAndSignal {
                request,
                id: self.opened.id,
                event: event.id(),
                offset: self.start + offset as u64,
                bytes: from,
            })?;
        Ok(PendingSignal::new(question))
    }

    /// Copies several pieces here, each starting at the byte beside it, all under way at once.
    ///
    /// # Errors
    /// As [`read`](Self::read). After an error all the pieces' bytes are arbitrary.
    pub fn read_many(&self, pieces: &mut [(usize, &mut [u8])]) -> Result<()> {
        for (offset, into) in pieces.iter() {
            self.check(*offset, into.len())?;
        }
        match &self.opened.data {
            Some((data, key)) => {
                let pieces = pieces.iter_mut().map(|(offset, into)| Piece {
                    local: into.as_mut_ptr(),
                    len: into.len(),
                    remote: self.opened.address + self.start + *offset as u64,
                });
                // SAFETY: the slices are borrowed until this returns.
                unsafe { self.move_pieces(data, Direction::Get, *key, pieces) }
            }
            None => {
                for (offset, into) in pieces.iter_mut() {
                    self.read_over_tls(*offset, into)?;
                }
                Ok(())
            }
        }
    }

    /// Copies several pieces there, each starting at the byte beside it, all under way at once, and returns
    /// when all are there. Bytes in more than one piece are arbitrary afterwards.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_many(&self, pieces: &[(usize, &[u8])]) -> Result<()> {
        self.check_writable()?;
        for (offset, from) in pieces {
            self.check(*offset, from.len())?;
        }
        match &self.opened.data {
            Some((data, key)) => {
                let pieces = pieces.iter().map(|(offset, from)| Piece {
                    // Only read from.
                    local: from.as_ptr().cast_mut(),
                    len: from.len(),
                    remote: self.opened.address + self.start + *offset as u64,
                });
                // SAFETY: the slices are borrowed until this returns.
                unsafe { self.move_pieces(data, Direction::Put, *key, pieces) }
            }
            None => {
                for (offset, from) in pieces {
                    self.write_over_tls(*offset, from)?;
                }
                Ok(())
            }
        }
    }

    /// # Safety
    /// As [`DataPath::move_pieces`].
    unsafe fn move_pieces(
        &self,
        data: &DataPath,
        direction: Direction,
        key: RemoteKey,
        pieces: impl Iterator<Item = Piece>,
    ) -> Result<()> {
        let session = self.opened.session();
        session.state().check_alive()?;
        // SAFETY: the caller's promise.
        let moved = unsafe { data.move_pieces(direction, key, pieces, &|| session.wake()) };
        moved.map_err(|error| {
            // An endpoint that has failed moves nothing any more. Nothing but a new link has another one.
            if data.has_failed() {
                session.end(session.ended(error.to_string()), true);
            }
            // The end of the link is the reason, whatever UCX says.
            session.state().check_alive().err().unwrap_or(error)
        })
    }

    fn read_over_tls(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        let mut under_way: VecDeque<(Arc<Question>, &mut [u8])> = VecDeque::new();
        let mut at = self.start + offset as u64;
        let mut pieces = into.chunks_mut(MAX_DATA);
        loop {
            let piece = match under_way.len() < PIECES_UNDER_WAY {
                true => pieces.next(),
                false => None,
            };
            if let Some(piece) = piece {
                let len = piece.len() as u32;
                let question = self.opened.session().ask(|request| Message::Read {
                    request,
                    id: self.opened.id,
                    offset: at,
                    len,
                })?;
                at += u64::from(len);
                under_way.push_back((question, piece));
                continue;
            }
            let Some((question, piece)) = under_way.pop_front() else {
                return Ok(());
            };
            match question.wait()? {
                Answer::Data(bytes) if bytes.len() == piece.len() => piece.copy_from_slice(&bytes),
                _ => return Err(Error::Protocol("its answer is to another question")),
            }
        }
    }

    fn write_over_tls(&self, offset: usize, from: &[u8]) -> Result<()> {
        let mut under_way: VecDeque<Arc<Question>> = VecDeque::new();
        let mut at = self.start + offset as u64;
        let mut pieces = from.chunks(MAX_DATA);
        loop {
            let piece = match under_way.len() < PIECES_UNDER_WAY {
                true => pieces.next(),
                false => None,
            };
            if let Some(bytes) = piece {
                let question = self.opened.session().ask(|request| Message::Write {
                    request,
                    id: self.opened.id,
                    offset: at,
                    bytes,
                })?;
                at += bytes.len() as u64;
                under_way.push_back(question);
                continue;
            }
            let Some(question) = under_way.pop_front() else {
                return Ok(());
            };
            match question.wait()? {
                Answer::Done(_) => {}
                _ => return Err(Error::Protocol("its answer is to another question")),
            }
        }
    }

    /// Makes a command that copies the bytes of `source`, on this host, to this range, which has the same
    /// length. Like any command it runs in the order of its queue, waits for events and signals one; it is
    /// done when the bytes are there. It keeps `source` and the link until then.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for different lengths, [`Error::ReadOnly`];
    /// [`crosshandle::Error::Unsupported`] for device memory that the host cannot access.
    pub fn copy_from(&self, source: MemoryRange) -> Result<Command> {
        self.check_writable()?;
        let (this, source) = (self.clone(), self.local(source)?);
        Ok(Command::call(move || source.send(&this)))
    }

    /// Makes a command that copies the bytes of this range to `destination`, on this host, which has the same
    /// length. As [`copy_from`](Self::copy_from).
    ///
    /// # Errors
    /// As [`copy_from`](Self::copy_from), [`Error::ReadOnly`] for a destination that was opened read-only.
    pub fn copy_to(&self, destination: MemoryRange) -> Result<Command> {
        if destination.access() == Access::ReadOnly {
            return Err(Error::ReadOnly);
        }
        let (this, destination) = (self.clone(), self.local(destination)?);
        Ok(Command::call(move || destination.receive(&this)))
    }

    fn local(&self, range: MemoryRange) -> Result<Local> {
        if range.len() as u64 != self.len {
            return Err(Error::invalid(format!(
                "a copy needs two ranges of one length, but got {} bytes here and {} there",
                range.len(),
                self.len
            )));
        }
        if !range.is_on_host() {
            return Err(Error::Local(crosshandle::Error::Unsupported(
                "the host cannot access this device's memory directly: copy it to memory of kind Host \
                 first, and that over the link"
                    .into(),
            )));
        }
        Ok(Local(range))
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

/// Memory of this host that a command copies.
struct Local(MemoryRange);

impl Local {
    fn piece(&self, remote: &RemoteMemory) -> Piece {
        Piece {
            local: self.0.as_ptr(),
            len: self.0.len(),
            remote: remote.opened.address + remote.start,
        }
    }

    fn send(self, to: &RemoteMemory) -> Result<()> {
        match &to.opened.data {
            Some((data, key)) => {
                let pieces = std::iter::once(self.piece(to));
                // SAFETY: the range keeps its memory, which the host can access. UCX, written in C, copies
                // it as the library itself does: what races with other processes is arbitrary bytes.
                unsafe { to.move_pieces(data, Direction::Put, *key, pieces) }
            }
            None => self.through_copies(
                to,
                |copy, at, len| {
                    let mut bytes = vec![0; len];
                    copy.read(0, &mut bytes)?;
                    to.write_over_tls(at, &bytes)
                },
                true,
            ),
        }
    }

    fn receive(self, from: &RemoteMemory) -> Result<()> {
        match &from.opened.data {
            Some((data, key)) => {
                let pieces = std::iter::once(self.piece(from));
                // SAFETY: as in `send`; the range is writable.
                unsafe { from.move_pieces(data, Direction::Get, *key, pieces) }
            }
            None => self.through_copies(
                from,
                |copy, at, len| {
                    let mut bytes = vec![0; len];
                    from.read_over_tls(at, &mut bytes)?;
                    Ok(copy.write(0, &bytes)?)
                },
                false,
            ),
        }
    }

    /// Moves the memory by a copy, part by part, so that the library accesses it.
    fn through_copies(
        &self,
        remote: &RemoteMemory,
        mut move_part: impl FnMut(&Memory, usize, usize) -> Result<()>,
        is_source: bool,
    ) -> Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let context = &remote.opened.session().context;
        let queue = context.create_queue()?;
        let copy = context.allocate(self.0.len().min(PIECES_UNDER_WAY * MAX_DATA))?;
        let mut at = 0;
        while at < self.0.len() {
            let len = copy.len().min(self.0.len() - at);
            let (own, staged) = (self.0.range(at..at + len)?, copy.range(..len)?);
            if is_source {
                queue.submit(Command::copy(own, staged)?)?;
                queue.finish()?;
                move_part(&copy, at, len)?;
            } else {
                move_part(&copy, at, len)?;
                queue.submit(Command::copy(staged, own)?)?;
                queue.finish()?;
            }
            at += len;
        }
        Ok(())
    }
}
