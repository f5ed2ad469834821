//! The server side of a shared link, in the process that shares it.

use super::message::{Reply, Request};
use super::socket::{self, Named};
use crate::error::{Error, Result};
use crate::event::RemoteEvent;
use crate::link::{Link, thread};
use crate::memory::RemoteMemory;
use crate::tuning::{FIRST_REQUEST_TIMEOUT, NEIGHBOUR_PART, REDIAL_INTERVAL};
use crosshandle::handle::AnyHandle;
use crosshandle::{Context, Memory, MemoryHandle, Queue};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{Shutdown, SocketFlags, accept_with, shutdown};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of neighbours (other local processes) that use a shared link at the same time.
/// Each has a thread.
const MAX_NEIGHBOURS: usize = 64;

/// Maximum number of connections of one process to a shared link.
const MAX_NEIGHBOURS_EACH: usize = 16;

/// Maximum number of objects that one neighbour may have open.
const MAX_NEIGHBOUR_OBJECTS: usize = 4096;

/// Maximum number of a neighbour's own allocations that stay open for its next copies. With a
/// larger number, memory that the neighbour has freed is kept longer.
const MAX_KEPT_LOCALS: usize = 8;

/// A link that this process shares with other local processes of the same user. They use it as a
/// [`NeighbourLink`](super::NeighbourLink). The sharing ends when this object is dropped or the
/// link ends.
///
/// A *neighbour* is a process that uses the shared link. It opens handles from the remote host
/// through the link. For a transfer, this process opens the neighbour's own memory through its
/// handle. It then transfers the bytes directly between that memory and the remote memory, without
/// a second copy.
pub struct SharedLink {
    shared: Arc<Shared>,
    name: String,
}

struct Shared {
    link: Link,
    /// An eventfd that is written when the sharing ends.
    end: OwnedFd,
    neighbours: Mutex<Neighbours>,
}

#[derive(Default)]
struct Neighbours {
    next: u64,
    /// A duplicate of the socket, and the process id, for each connection of a neighbour.
    sockets: HashMap<u64, (OwnedFd, i32)>,
    has_ended: bool,
}

impl SharedLink {
    /// Shares a link under a name of letters, digits, `-`, `_` and `.`.
    ///
    /// The socket is created in `socket_dir`. The default is the [socket
    /// directory](crosshandle::report::socket_directories), which only this user can access.
    ///
    /// # Errors
    /// Returns [`Error::InvalidArgument`] if a running process uses the name, or if other users can
    /// change the directory. Returns [`Error::Os`] if the process cannot listen there.
    pub fn new(link: &Link, name: &str, socket_dir: Option<&Path>) -> Result<Self> {
        let listener = socket::listen(name, socket_dir)?;
        let end = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(Error::os("making a descriptor that ends a thread"))?;
        let shared = Arc::new(Shared {
            link: link.clone(),
            end,
            neighbours: Mutex::default(),
        });
        let accepts = Arc::clone(&shared);
        thread::start("xhl-share", move || accepts.accept_all(&listener))?;
        Ok(Self {
            shared,
            name: name.to_owned(),
        })
    }

    /// Returns the number of connections from neighbours.
    pub fn neighbours(&self) -> usize {
        self.shared.neighbours().sockets.len()
    }
}

impl Drop for SharedLink {
    fn drop(&mut self) {
        let mut neighbours = self.shared.neighbours();
        neighbours.has_ended = true;
        for (socket, _) in neighbours.sockets.values() {
            // Requests that neighbours have already sent still get replies.
            let _ = shutdown(socket, Shutdown::Read);
        }
        // The write fails only if the thread was already notified.
        let _ = rustix::io::write(&self.shared.end, &1u64.to_ne_bytes());
    }
}

impl fmt::Debug for SharedLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedLink")
            .field("name", &self.name)
            .field("link", &self.shared.link)
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn neighbours(&self) -> MutexGuard<'_, Neighbours> {
        let neighbours = self.neighbours.lock();
        neighbours.unwrap_or_else(PoisonError::into_inner)
    }

    fn accept_all(self: &Arc<Self>, listener: &Named) {
        loop {
            let mut ready = [
                PollFd::new(&listener.socket, PollFlags::IN),
                PollFd::new(&self.end, PollFlags::IN),
            ];
            let _ = poll(&mut ready, None);
            if self.neighbours().has_ended {
                return;
            }
            if !ready[0].revents().contains(PollFlags::IN) {
                continue;
            }
            match accept_with(&listener.socket, SocketFlags::CLOEXEC) {
                Ok(socket) => self.welcome(socket),
                // Usually, the process has run out of file descriptors. Retry later, when some may
                // have been closed.
                Err(_) => std::thread::sleep(REDIAL_INTERVAL),
            }
        }
    }

    /// Serves a new connection on its own thread, if the neighbour belongs to this user and there
    /// are not too many connections.
    fn welcome(self: &Arc<Self>, socket: OwnedFd) {
        let Ok(process) = socket::process_of(&socket) else {
            return;
        };
        let Ok(copy) = socket.try_clone() else { return };
        let mut neighbours = self.neighbours();
        if neighbours.has_ended {
            return;
        }
        let sockets = &neighbours.sockets;
        let own = sockets.values().filter(|(_, other)| *other == process);
        if own.count() >= MAX_NEIGHBOURS_EACH || sockets.len() >= MAX_NEIGHBOURS {
            drop(neighbours);
            let why = "too many neighbours use this link: close some connections";
            let full = Reply::Refused {
                has_ended: false,
                why: why.into(),
            };
            let _ = socket::say(&socket, &full.encode());
            return;
        }
        let number = neighbours.next;
        neighbours.next += 1;
        neighbours.sockets.insert(number, (copy, process));
        drop(neighbours);
        let shared = Arc::clone(self);
        let started = thread::start("xhl-serve", move || {
            // A neighbour that closes the connection or violates the protocol gets no reply.
            let _ = Neighbour::serve(&shared.link, &socket);
            shared.neighbours().sockets.remove(&number);
        });
        if started.is_err() {
            self.neighbours().sockets.remove(&number);
        }
    }
}

enum Object {
    Memory(RemoteMemory),
    Event(RemoteEvent),
}

struct Neighbour<'a> {
    link: &'a Link,
    context: Context,
    queue: Queue,
    objects: HashMap<u32, Object>,
    next: u32,
    /// The neighbour's own memory that is open, most recently used first, and whether this process
    /// can write to it.
    locals: VecDeque<(MemoryHandle, bool, Memory)>,
}

impl<'a> Neighbour<'a> {
    fn serve(link: &'a Link, socket: &OwnedFd) -> Result<()> {
        let context = link.session().context.clone();
        let mut neighbour = Self {
            link,
            queue: context.create_queue()?,
            context,
            objects: HashMap::new(),
            next: 1,
            locals: VecDeque::new(),
        };
        let doing = "serving a neighbour";
        let limit =
            |which, limit| set_socket_timeout(socket, which, limit).map_err(Error::os(doing));
        limit(Timeout::Recv, Some(FIRST_REQUEST_TIMEOUT))?;
        // This limits how long a neighbour that reads no replies can block this thread.
        limit(Timeout::Send, Some(FIRST_REQUEST_TIMEOUT))?;
        while let Some(bytes) = socket::hear(socket).map_err(Error::os(doing))? {
            limit(Timeout::Recv, None)?;
            let Ok(request) = Request::decode(&bytes) else {
                return Err(Error::Protocol("a neighbour sent an invalid request"));
            };
            let reply = neighbour.reply(&request).unwrap_or_else(|error| {
                let has_ended = matches!(error, Error::Ended { .. });
                Reply::Refused {
                    has_ended,
                    why: error.to_string(),
                }
            });
            socket::say(socket, &reply.encode()).map_err(Error::os(doing))?;
        }
        Ok(())
    }

    fn reply(&mut self, request: &Request) -> Result<Reply> {
        match *request {
            Request::Open { read_only, handle } => self.open(read_only, handle),
            Request::Copy {
                there,
                id,
                offset,
                handle,
                local_offset,
                len,
            } => {
                let Some(Object::Memory(remote)) = self.objects.get(&id) else {
                    return Err(Error::invalid("it copies memory that is not open"));
                };
                // A longer copy would delay other users of the remote host's staging buffer for too
                // long.
                if len > NEIGHBOUR_PART as u64 {
                    return Err(Error::invalid(
                        "it copies more bytes than one request may copy",
                    ));
                }
                let remote = remote.range(span(offset, len)?)?;
                let local = self
                    .local(handle, !there)?
                    .range(span(local_offset, len)?)?;
                self.queue.submit(match there {
                    true => remote.copy_from(local)?,
                    false => remote.copy_to(local)?,
                })?;
                self.queue.finish()?;
                Ok(Reply::Done { value: 0 })
            }
            Request::Signal { id } => match self.objects.get(&id) {
                Some(Object::Event(event)) => Ok(Reply::Done {
                    value: event.signal()?,
                }),
                _ => Err(Error::invalid("it signals an event that is not open")),
            },
            Request::Close { id } => match self.objects.remove(&id) {
                Some(_) => Ok(Reply::Done { value: 0 }),
                None => Err(Error::invalid("it closes an object that is not open")),
            },
        }
    }

    fn open(&mut self, read_only: bool, handle: &[u8]) -> Result<Reply> {
        if self.objects.len() >= MAX_NEIGHBOUR_OBJECTS {
            return Err(Error::invalid(format!(
                "{MAX_NEIGHBOUR_OBJECTS} objects are open: close some"
            )));
        }
        let id = self.next;
        let (object, reply) = match AnyHandle::from_bytes(handle)
            .map_err(crosshandle::Error::from)?
        {
            AnyHandle::Memory(handle) => {
                let memory = match read_only {
                    true => self.link.open_memory_read_only(&handle)?,
                    false => self.link.open_memory(&handle)?,
                };
                let reply = Reply::Memory {
                    id,
                    len: memory.len() as u64,
                    is_staged: memory.is_staged(),
                };
                (Object::Memory(memory), reply)
            }
            AnyHandle::Event(handle) => {
                let event = self.link.open_event(&handle)?;
                let mirror = *event.mirror().handle()?.as_bytes();
                (Object::Event(event), Reply::Event { id, mirror })
            }
            _ => {
                return Err(Error::invalid(
                    "physical memory and channels cannot be opened over a link: send a handle to memory",
                ));
            }
        };
        self.objects.insert(id, object);
        self.next = id
            .checked_add(1)
            .ok_or_else(|| Error::invalid("it has opened too many objects: connect again"))?;
        Ok(reply)
    }

    /// Returns the neighbour's own memory, and opens it through its handle unless it is already
    /// open.
    fn local(&mut self, handle: &[u8], is_written: bool) -> Result<&Memory> {
        let own = MemoryHandle::from_bytes(handle).map_err(crosshandle::Error::from)?;
        let is_it = |kept: &(MemoryHandle, bool, Memory)| kept.0 == own && kept.1 == is_written;
        let kept = match self.locals.iter().position(is_it) {
            Some(place) => self.locals.remove(place),
            None => None,
        };
        let kept = match kept {
            Some(kept) => kept,
            None => {
                let memory = match is_written {
                    true => self.context.open_memory(&own)?,
                    false => self.context.open_memory_read_only(&own)?,
                };
                (own, is_written, memory)
            }
        };
        self.locals.push_front(kept);
        self.locals.truncate(MAX_KEPT_LOCALS);
        Ok(&self.locals[0].2)
    }
}

fn span(start: u64, len: u64) -> Result<std::ops::Range<usize>> {
    let end = start
        .checked_add(len)
        .and_then(|end| usize::try_from(end).ok());
    let end = end.ok_or_else(|| Error::invalid("an offset is beyond the end of the memory"))?;
    Ok(start as usize..end)
}
