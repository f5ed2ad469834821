//! The client side of a shared link, in a process that uses another process's link.

use super::message::{Reply, Request};
use super::socket;
use crate::error::{Error, Result};
use crate::memory::MAX_LEN;
use crate::tuning::NEIGHBOUR_PART;
use crosshandle::{
    Access, AllocationOptions, Context, Event, EventHandle, Memory, MemoryHandle, MemoryKind,
};
use std::fmt;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Size in bytes of the shared memory through which a neighbour's private bytes are copied.
const NEIGHBOUR_BUFFER: usize = 1 << 20;

/// A link that another local process of the same user [shares](super::SharedLink). It opens handles
/// from the remote host.
///
/// A `NeighbourLink` is cheap to clone, and any thread may use it. The sharing process serves one
/// call per connection at a time, so a thread that transfers much data should have its own
/// connection.
#[derive(Clone)]
pub struct NeighbourLink {
    shared: Arc<Shared>,
}

struct Shared {
    name: Arc<str>,
    context: Context,
    /// The connection to the sharing process. `None` if it can no longer be used.
    socket: Mutex<Option<OwnedFd>>,
    /// Shared memory through which this process's private bytes are copied, and its handle.
    buffer: Mutex<Option<(Memory, MemoryHandle)>>,
}

impl NeighbourLink {
    /// Connects to the process that shares a link under `name`. `context` opens the mirrors of
    /// events, and allocates the shared memory through which private bytes are copied.
    ///
    /// # Errors
    /// Returns [`Error::InvalidArgument`] if no process of this user shares a link under this name.
    /// Returns [`Error::TimedOut`] if the process does not accept connections, for example because
    /// it is stopped.
    pub fn connect(name: &str, context: &Context, socket_dir: Option<&Path>) -> Result<Self> {
        let socket = socket::find(name, socket_dir)?;
        Ok(Self {
            shared: Arc::new(Shared {
                name: name.into(),
                context: context.clone(),
                socket: Mutex::new(Some(socket)),
                buffer: Mutex::new(None),
            }),
        })
    }

    /// Opens memory on the remote host.
    ///
    /// # Errors
    /// Returns [`Error::Refused`] if the remote host or the sharing process rejects the request, or
    /// [`Error::Ended`] if the link has ended.
    pub fn open_memory(&self, handle: &MemoryHandle) -> Result<NeighbourMemory> {
        self.open(handle, false)
    }

    /// Opens memory on the remote host read-only.
    ///
    /// # Errors
    /// Returns the same errors as [`open_memory`](Self::open_memory).
    pub fn open_memory_read_only(&self, handle: &MemoryHandle) -> Result<NeighbourMemory> {
        self.open(handle, true)
    }

    fn open(&self, handle: &MemoryHandle, read_only: bool) -> Result<NeighbourMemory> {
        let request = Request::Open {
            read_only,
            handle: handle.as_bytes(),
        };
        let Reply::Memory { id, len, is_staged } = self.shared.ask(&request)? else {
            return Err(Error::Protocol("its reply does not match the request"));
        };
        let opened = Arc::new(Opened {
            shared: Arc::clone(&self.shared),
            id,
        });
        let len = usize::try_from(len)
            .ok()
            .filter(|_| len == handle.len() && len <= MAX_LEN);
        let len = len.ok_or(Error::Protocol(
            "its memory has a different length than the handle",
        ))?;
        Ok(NeighbourMemory {
            opened,
            len,
            access: match read_only || handle.is_read_only() {
                true => Access::ReadOnly,
                false => Access::ReadWrite,
            },
            is_staged,
        })
    }

    /// Opens an event on the remote host.
    ///
    /// # Errors
    /// Returns the same errors as [`open_memory`](Self::open_memory).
    pub fn open_event(&self, handle: &EventHandle) -> Result<NeighbourEvent> {
        let request = Request::Open {
            read_only: false,
            handle: handle.as_bytes(),
        };
        let Reply::Event { id, mirror } = self.shared.ask(&request)? else {
            return Err(Error::Protocol("its reply does not match the request"));
        };
        let opened = Opened {
            shared: Arc::clone(&self.shared),
            id,
        };
        let mirror = EventHandle::from_bytes(&mirror).map_err(crosshandle::Error::from)?;
        Ok(NeighbourEvent {
            mirror: self.shared.context.open_event(&mirror)?,
            opened: Arc::new(opened),
        })
    }
}

impl fmt::Debug for NeighbourLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NeighbourLink")
            .field("name", &self.shared.name)
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn ended(&self, why: impl Into<Arc<str>>) -> Error {
        Error::Ended {
            peer: format!("what '{}' leads to", self.name).into(),
            why: why.into(),
        }
    }

    fn ask(&self, request: &Request<'_>) -> Result<Reply> {
        let mut place = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(socket) = &*place else {
            return Err(self.ended("the process that shares it was late, or has ended"));
        };
        let asked = socket::say(socket, &request.encode()).and_then(|()| socket::hear(socket));
        let reply = match asked {
            Ok(Some(bytes)) => Reply::decode(&bytes).map_err(Error::Protocol),
            Ok(None) => {
                Err(self.ended("the process that shares it has ended, or no longer shares it"))
            }
            Err(rustix::io::Errno::AGAIN) => Err(Error::TimedOut(
                "waiting for the process that shares its link",
            )),
            Err(error) => Err(self.ended(std::io::Error::from(error).to_string())),
        };
        match reply {
            Ok(Reply::Refused { has_ended, why }) if has_ended => Err(self.ended(why)),
            Ok(Reply::Refused { why, .. }) => Err(Error::Refused(why.into())),
            Ok(reply) => Ok(reply),
            Err(error) => {
                // Drop the connection, because a late reply would be treated as the reply to the
                // next request.
                *place = None;
                Err(error)
            }
        }
    }
}

/// An object that the sharing process has opened for this process. Dropping it closes the object in
/// the sharing process.
struct Opened {
    shared: Arc<Shared>,
    id: u32,
}

impl Drop for Opened {
    fn drop(&mut self) {
        let _ = self.shared.ask(&Request::Close { id: self.id });
    }
}

/// Memory on the remote host, accessed through another process's link. Dropping the last clone
/// closes the memory.
///
/// Any thread may use it. When a write returns, the bytes are in the remote memory.
#[derive(Clone)]
pub struct NeighbourMemory {
    opened: Arc<Opened>,
    len: usize,
    access: Access,
    is_staged: bool,
}

impl NeighbourMemory {
    /// Returns the length of the memory in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `true` if the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether this process may only read the memory, or also write to it.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Returns `true` if the memory is staged. See
    /// [`RemoteMemory::is_staged`](crate::RemoteMemory::is_staged).
    pub fn is_staged(&self) -> bool {
        self.is_staged
    }

    /// Copies a range of `source`, which this process has allocated, to the remote memory, starting
    /// at byte `offset`. Makes no extra copy on this host.
    ///
    /// # Errors
    /// Returns [`Error::InvalidArgument`] if either memory does not contain all the bytes,
    /// [`Error::Refused`] if the sharing process cannot open `source`, [`Error::ReadOnly`] if the
    /// remote memory was opened read-only, or [`Error::Ended`] if the link has ended.
    pub fn copy_from(&self, offset: usize, source: &Memory, range: Range<usize>) -> Result<()> {
        self.check_writable()?;
        check(&range, source.len())?;
        self.copy(true, offset, &source.handle_read_only()?, range)
    }

    /// Copies bytes from the remote memory, starting at byte `offset`, into a range of
    /// `destination`, which this process has allocated.
    ///
    /// # Errors
    /// Returns the same errors as [`copy_from`](Self::copy_from).
    pub fn copy_to(&self, offset: usize, destination: &Memory, range: Range<usize>) -> Result<()> {
        check(&range, destination.len())?;
        self.copy(false, offset, &destination.handle()?, range)
    }

    /// Copies bytes from the remote memory, starting at byte `offset`, into `into`. The bytes pass
    /// through shared memory.
    ///
    /// # Errors
    /// Returns the same errors as [`copy_from`](Self::copy_from).
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        self.check(offset, into.len())?;
        self.with_buffer(|buffer, handle| {
            for (index, part) in into.chunks_mut(NEIGHBOUR_BUFFER).enumerate() {
                self.copy(
                    false,
                    offset + index * NEIGHBOUR_BUFFER,
                    handle,
                    0..part.len(),
                )?;
                buffer.read(0, part)?;
            }
            Ok(())
        })
    }

    /// Copies bytes from `from` to the remote memory, starting at byte `offset`. The bytes pass
    /// through shared memory. Returns when they are in the remote memory.
    ///
    /// # Errors
    /// Returns the same errors as [`copy_from`](Self::copy_from).
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        self.check_writable()?;
        self.check(offset, from.len())?;
        self.with_buffer(|buffer, handle| {
            for (index, part) in from.chunks(NEIGHBOUR_BUFFER).enumerate() {
                buffer.write(0, part)?;
                self.copy(
                    true,
                    offset + index * NEIGHBOUR_BUFFER,
                    handle,
                    0..part.len(),
                )?;
            }
            Ok(())
        })
    }

    fn with_buffer(&self, work: impl FnOnce(&Memory, &MemoryHandle) -> Result<()>) -> Result<()> {
        let shared = &self.opened.shared;
        let mut place = shared.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        let (buffer, handle) = match &mut *place {
            Some(made) => made,
            empty => {
                let options = AllocationOptions::new(NEIGHBOUR_BUFFER).kind(MemoryKind::Host);
                let memory = shared.context.allocate_with(options)?;
                let handle = memory.handle()?;
                empty.insert((memory, handle))
            }
        };
        work(buffer, handle)
    }

    /// Copies in parts of at most [`NEIGHBOUR_PART`] bytes, so that each reply arrives in time.
    fn copy(
        &self,
        there: bool,
        offset: usize,
        handle: &MemoryHandle,
        range: Range<usize>,
    ) -> Result<()> {
        self.check(offset, range.len())?;
        for start in range.clone().step_by(NEIGHBOUR_PART) {
            self.opened.shared.ask(&Request::Copy {
                there,
                id: self.opened.id,
                offset: (offset + start - range.start) as u64,
                handle: handle.as_bytes(),
                local_offset: start as u64,
                len: NEIGHBOUR_PART.min(range.end - start) as u64,
            })?;
        }
        Ok(())
    }

    fn check(&self, offset: usize, len: usize) -> Result<()> {
        let end = offset.checked_add(len);
        match end {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(Error::invalid(format!(
                "{len} bytes from byte {offset} on are not inside the {} bytes of this memory",
                self.len
            ))),
        }
    }

    fn check_writable(&self) -> Result<()> {
        match self.access {
            Access::ReadWrite => Ok(()),
            Access::ReadOnly => Err(Error::ReadOnly),
        }
    }
}

fn check(range: &Range<usize>, len: usize) -> Result<()> {
    match range.start <= range.end && range.end <= len {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "bytes {} to {} are not inside the {len} bytes of this process's memory",
            range.start, range.end
        ))),
    }
}

impl fmt::Debug for NeighbourMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NeighbourMemory")
            .field("link", &self.opened.shared.name)
            .field("len", &self.len)
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

/// An event on the remote host, used through another process's link. Dropping the last clone closes
/// the event.
#[derive(Clone)]
pub struct NeighbourEvent {
    opened: Arc<Opened>,
    mirror: Event,
}

impl NeighbourEvent {
    /// Returns the local event that follows the remote event. The sharing process owns this mirror,
    /// and this process has opened it through its handle.
    pub fn mirror(&self) -> &Event {
        &self.mirror
    }

    /// Signals the remote event, waits for the reply, and returns the signal's number.
    ///
    /// # Errors
    /// Returns [`Error::Refused`] if the remote host or the sharing process rejects the request, or
    /// [`Error::Ended`] if the link has ended.
    pub fn signal(&self) -> Result<u64> {
        let id = self.opened.id;
        match self.opened.shared.ask(&Request::Signal { id })? {
            Reply::Done { value } => Ok(value),
            _ => Err(Error::Protocol("its reply does not match the request")),
        }
    }
}

impl fmt::Debug for NeighbourEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NeighbourEvent")
            .field("link", &self.opened.shared.name)
            .field("mirror", &self.mirror)
            .finish_non_exhaustive()
    }
}
