//! The three paths for the contents of remote memory: over UCX, in messages over the control
//! connection, and over UCX through the owner's staging buffer.

use crate::control::message::{MAX_DATA, Message};
use crate::error::{Error, Result};
use crate::link::data::{DataPath, Direction, Piece};
use crate::link::request::{PendingRequest, Reply};
use crate::link::session::Session;
use crate::link::{LinkCore, close_object};
use crate::tuning::{STAGING_PART, STAGING_PARTS};
use crosshandle::Access;
use std::collections::VecDeque;
use std::slice;
use std::sync::{Arc, MutexGuard, PoisonError};

/// Maximum number of pieces that one read or write has in flight over TLS.
const PIECES_UNDER_WAY: usize = 16;

/// Maximum size in bytes of an access to staged memory that uses messages even if UCX is available.
/// A message takes one round trip instead of two, but it has to be encrypted.
const STAGED_IN_MESSAGES: usize = 64 << 10;

/// Open memory on the remote host. All methods expect offsets from its first byte that were
/// checked.
pub(super) struct Opened {
    pub(super) link: Arc<LinkCore>,
    pub(super) id: u32,
    /// Address of the memory, or of the staging buffer, in the owner's process.
    pub(super) address: u64,
    pub(super) access: Access,
    /// The UCX data path, and the number of the memory's key in it. `None` without UCX.
    pub(super) data: Option<(Arc<DataPath>, u32)>,
    /// Size of the owner's staging buffer in bytes, or 0 if the memory is not staged.
    pub(super) staging: u32,
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Some((data, key)) = &self.data {
            data.remove_key(*key);
        }
        close_object(self.session(), self.id);
    }
}

impl Opened {
    pub(super) fn session(&self) -> &Session {
        &self.link.session
    }

    /// Returns `true` if UCX accesses the memory directly, without a staging buffer.
    pub(super) fn is_direct(&self) -> bool {
        self.data.is_some() && self.staging == 0
    }

    /// Returns `true` if an access of `len` bytes uses messages. This applies to all accesses
    /// without UCX. It also applies to small accesses to staged memory, because a message takes one
    /// round trip instead of two.
    fn goes_in_messages(&self, len: usize) -> bool {
        self.data.is_none() || self.staging > 0 && len <= STAGED_IN_MESSAGES
    }

    /// Transfers pieces over UCX. On entry, `remote` in each piece is an offset from
    /// [`address`](Self::address). This method replaces it by the address itself.
    ///
    /// # Safety
    /// The caller must uphold the contract of [`DataPath::move_pieces`].
    pub(super) unsafe fn move_pieces(
        &self,
        direction: Direction,
        pieces: &mut [Piece],
    ) -> Result<()> {
        let Some((data, key)) = &self.data else {
            return Err(Error::Protocol("the link has no data connection"));
        };
        let session = self.session();
        session.state().check_alive()?;
        for piece in &mut *pieces {
            piece.remote += self.address;
        }
        // SAFETY: the caller upholds the same contract for this call.
        let moved = unsafe { data.move_pieces(direction, *key, pieces, &|| session.wake()) };
        // If the link has ended, return that error instead of UCX's error.
        moved.map_err(|error| session.state().check_alive().err().unwrap_or(error))
    }

    /// Transfers `len` bytes part by part. `places` provides the local address of each part.
    ///
    /// # Safety
    /// For each part, the caller must ensure that the memory at the address from `places` can be
    /// read, and for `Get` written, until the part was transferred.
    pub(super) unsafe fn move_parts(
        &self,
        direction: Direction,
        at: u64,
        len: usize,
        places: &mut dyn Places,
    ) -> Result<()> {
        if self.staging > 0 && !self.goes_in_messages(len) {
            // SAFETY: the caller upholds the same contract for this call.
            return unsafe { self.move_staged(direction, at, len, places) };
        }
        let by_ucx = self.is_direct();
        for part in (0..).map_while(|index| Part::of(len, STAGING_PART, index)) {
            let local = places.prepare(part)?;
            let remote = at + part.start as u64;
            // SAFETY: the caller upholds the same contract for this call.
            unsafe {
                match (by_ucx, direction) {
                    (true, _) => {
                        let len = part.len;
                        self.move_pieces(direction, &mut [Piece { local, len, remote }])?;
                    }
                    (false, Direction::Put) => {
                        self.write_in_messages(remote, slice::from_raw_parts(local, part.len))?;
                    }
                    (false, Direction::Get) => {
                        self.read_in_messages(remote, slice::from_raw_parts_mut(local, part.len))?;
                    }
                }
            }
            places.moved(part)?;
        }
        Ok(())
    }

    /// Transfers the bytes in `local` over UCX, through the owner's staging buffer if the memory is
    /// staged.
    ///
    /// # Safety
    /// The caller must uphold the contract of [`DataPath::move_pieces`].
    pub(super) unsafe fn move_one(
        &self,
        direction: Direction,
        at: u64,
        local: &mut Span,
    ) -> Result<()> {
        if self.staging > 0 {
            // SAFETY: the caller upholds the same contract for this call.
            return unsafe { self.move_staged(direction, at, local.len, local) };
        }
        let piece = Piece {
            local: local.start,
            len: local.len,
            remote: at,
        };
        // SAFETY: the caller upholds the same contract for this call.
        unsafe { self.move_pieces(direction, &mut [piece]) }
    }

    /// Copies bytes from the remote memory, starting at offset `at`, into `into`.
    pub(super) fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        if self.goes_in_messages(into.len()) {
            return self.read_in_messages(at, into);
        }
        let mut local = Span {
            start: into.as_mut_ptr(),
            len: into.len(),
        };
        // SAFETY: the slice is borrowed until this returns.
        unsafe { self.move_one(Direction::Get, at, &mut local) }
    }

    /// Copies bytes from `from` to the remote memory, starting at offset `at`.
    pub(super) fn write(&self, at: u64, from: &[u8]) -> Result<()> {
        if self.goes_in_messages(from.len()) {
            return self.write_in_messages(at, from);
        }
        let mut local = Span {
            // UCX only reads through this pointer.
            start: from.as_ptr().cast_mut(),
            len: from.len(),
        };
        // SAFETY: the slice is borrowed until this returns.
        unsafe { self.move_one(Direction::Put, at, &mut local) }
    }

    /// Locks the owner's staging buffer for one transfer. The owner has one buffer per link, and
    /// limits the number of waiting requests.
    fn turn(&self) -> Option<MutexGuard<'_, bool>> {
        let turn = || self.session().staging.lock();
        (self.staging > 0).then(|| turn().unwrap_or_else(PoisonError::into_inner))
    }

    fn read_in_messages(&self, mut at: u64, into: &mut [u8]) -> Result<()> {
        let _turn = self.turn();
        let mut under_way: VecDeque<(Arc<PendingRequest>, &mut [u8])> = VecDeque::new();
        let mut pieces = into.chunks_mut(MAX_DATA);
        loop {
            let piece = match under_way.len() < PIECES_UNDER_WAY {
                true => pieces.next(),
                false => None,
            };
            if let Some(piece) = piece {
                let len = piece.len() as u32;
                let pending = self.session().ask(|request| Message::Read {
                    request,
                    id: self.id,
                    offset: at,
                    len,
                })?;
                at += u64::from(len);
                under_way.push_back((pending, piece));
                continue;
            }
            let Some((pending, piece)) = under_way.pop_front() else {
                return Ok(());
            };
            match pending.wait()? {
                Reply::Data(bytes) if bytes.len() == piece.len() => piece.copy_from_slice(&bytes),
                _ => return Err(Error::Protocol("its reply does not match the request")),
            }
        }
    }

    fn write_in_messages(&self, mut at: u64, from: &[u8]) -> Result<()> {
        let _turn = self.turn();
        let mut under_way: VecDeque<Arc<PendingRequest>> = VecDeque::new();
        let mut pieces = from.chunks(MAX_DATA);
        loop {
            let piece = match under_way.len() < PIECES_UNDER_WAY {
                true => pieces.next(),
                false => None,
            };
            if let Some(bytes) = piece {
                let pending = self.session().ask(|request| Message::Write {
                    request,
                    id: self.id,
                    offset: at,
                    bytes,
                })?;
                at += bytes.len() as u64;
                under_way.push_back(pending);
                continue;
            }
            let Some(pending) = under_way.pop_front() else {
                return Ok(());
            };
            wait_until_done(&pending)?;
        }
    }

    /// Transfers bytes over UCX through the owner's staging buffer. While one part of the buffer is
    /// transferred, the owner copies other parts.
    ///
    /// # Safety
    /// The caller must uphold the contract of [`DataPath::move_pieces`].
    unsafe fn move_staged(
        &self,
        direction: Direction,
        at: u64,
        len: usize,
        places: &mut dyn Places,
    ) -> Result<()> {
        let mut turn = self.turn();
        if turn.as_deref() == Some(&true) {
            return Err(Error::invalid(
                "an earlier copy of the remote host timed out, so its staging buffer cannot be used: make a new link",
            ));
        }
        let part_len = (self.staging as usize / STAGING_PARTS).min(STAGING_PART);
        let mut copies: VecDeque<(Part, Arc<PendingRequest>)> = VecDeque::new();
        let ask = |part: Part| {
            self.session().ask(|request| Message::Stage {
                request,
                id: self.id,
                into_memory: direction == Direction::Put,
                offset: at + part.start as u64,
                at: (part.index % STAGING_PARTS * part_len) as u32,
                len: part.len as u32,
            })
        };
        let mut move_part = |part: Part| {
            let local = places.prepare(part)?;
            let piece = Piece {
                local,
                len: part.len,
                remote: (part.index % STAGING_PARTS * part_len) as u64,
            };
            // SAFETY: the caller upholds the same contract for this call.
            unsafe { self.move_pieces(direction, &mut [piece])? };
            places.moved(part)
        };
        let mut result = Ok(());
        let mut is_broken = false;
        let mut next = 0;
        while result.is_ok() {
            match (direction, Part::of(len, part_len, next)) {
                (Direction::Put, Some(part)) => {
                    // Before this side writes to a place in the buffer again, the owner must have
                    // copied the place's contents to the memory.
                    if copies.len() == STAGING_PARTS
                        && let Some((_, copy)) = copies.pop_front()
                    {
                        result = wait_until_done(&copy);
                        is_broken = is_late(&result);
                    }
                    result = result
                        .and_then(|()| move_part(part))
                        .and_then(|()| ask(part))
                        .map(|copy| copies.push_back((part, copy)));
                    next += 1;
                }
                (Direction::Get, Some(part)) if copies.len() < STAGING_PARTS => {
                    result = ask(part).map(|copy| copies.push_back((part, copy)));
                    next += 1;
                }
                _ => {
                    let Some((part, copy)) = copies.pop_front() else {
                        break;
                    };
                    result = wait_until_done(&copy);
                    is_broken = is_late(&result);
                    if result.is_ok() && direction == Direction::Get {
                        result = move_part(part);
                    }
                }
            }
        }
        // Wait for all of the owner's copies for this transfer, so that the next transfer can use
        // the buffer.
        for (_, copy) in copies {
            is_broken |= is_late(&copy.wait());
        }
        if let (true, Some(turn)) = (is_broken, &mut turn) {
            **turn = true;
        }
        result
    }
}

/// One of the parts into which a transfer is divided.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) index: usize,
    /// Offset in bytes from the start of the transfer.
    pub(super) start: usize,
    pub(super) len: usize,
}

impl Part {
    fn of(len: usize, part_len: usize, index: usize) -> Option<Self> {
        let start = index * part_len;
        (start < len).then(|| Self {
            index,
            start,
            len: part_len.min(len - start),
        })
    }
}

/// The local memory of a transfer. It provides the address of each part, in order.
pub(super) trait Places {
    /// Waits until a part may be transferred, and returns the local address for it.
    fn prepare(&mut self, part: Part) -> Result<*mut u8>;

    fn moved(&mut self, part: Part) -> Result<()>;
}

/// Local bytes that are transferred directly, without a copy to other memory.
pub(super) struct Span {
    pub(super) start: *mut u8,
    pub(super) len: usize,
}

impl Places for Span {
    fn prepare(&mut self, part: Part) -> Result<*mut u8> {
        Ok(self.start.wrapping_add(part.start))
    }

    fn moved(&mut self, _: Part) -> Result<()> {
        Ok(())
    }
}

fn is_late<T>(result: &Result<T>) -> bool {
    matches!(result, Err(Error::TimedOut(_)))
}

fn wait_until_done(pending: &PendingRequest) -> Result<()> {
    match pending.wait()? {
        Reply::Done(_) => Ok(()),
        _ => Err(Error::Protocol("its reply does not match the request")),
    }
}
