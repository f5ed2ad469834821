//! The type [`Link`], a link between two hosts.

pub(crate) mod data;
mod doorway;
pub(crate) mod listener;
mod outbox;
mod past;
pub(crate) mod request;
pub(crate) mod serve;
pub(crate) mod session;
pub(crate) mod stage;
#[cfg(test)]
mod tests;
pub(crate) mod thread;

use crate::control::handshake::{self, Greeted};
use crate::control::identity::Tls;
use crate::control::message::{Hello, MAX_TEXT, Message, NamedPart, read_parts};
use crate::error::{Error, Result};
use crate::event::RemoteEvent;
use crate::memory::RemoteMemory;
use crate::name::{RemoteName, RemotePart};
use crate::options::{Data, LinkOptions};
use crate::tuning::{
    HANDSHAKE_TIMEOUT, MAX_OPENING, MIN_KEEP_ALIVE, REDIAL_INTERVAL, REPLY_TIMEOUT,
};
use crosshandle::{Context, EventHandle, MemoryHandle, adapter_support::Deadline};
use data::DataPath;
use request::Reply;
use session::{Dial, Session, Start};
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

/// Minimum timeout for the first attempt to reconnect. It is about three round trips on a busy
/// machine. See [`REDIAL_HANDSHAKES`].
const REDIAL_TIMEOUT: Duration = Duration::from_millis(500);

/// Timeout for the first attempt to reconnect, as a multiple of the time that the link's first
/// handshake took. With 1, half of the attempts on a slow network would fail.
const REDIAL_HANDSHAKES: u32 = 3;

/// Maximum pause before the dialling side retries a handshake that the listener has cut off. The
/// pauses start at [`REDIAL_INTERVAL`] and double, so there are five attempts.
const MAX_GREET_PAUSE: Duration = Duration::from_millis(320);

/// A link to another host. It opens handles that processes on that host have created.
///
/// A link is cheap to clone, and any thread may use it. It ends when one side calls
/// [`close`](Self::close), or drops all clones and all objects that were opened over the link. It
/// also ends if no message arrives from the peer for the keep-alive time. If the connection is
/// lost, the link replaces it. A program notices only a delay.
#[derive(Clone)]
pub struct Link {
    inner: Arc<LinkCore>,
}

/// The state that a link and its objects share. Dropping it ends the link.
pub(crate) struct LinkCore {
    pub(crate) session: Arc<Session>,
}

impl Drop for LinkCore {
    fn drop(&mut self) {
        self.session
            .end(self.session.ended("nothing uses it any more"), true);
    }
}

impl Link {
    /// Connects to a host on which a process [listens](crate::Listener).
    ///
    /// `context` opens the local objects that the peer requests, and owns the mirrors of remote
    /// events. This function returns when the link is ready for transfers. It takes at most a few
    /// seconds.
    ///
    /// # Errors
    /// Returns [`Error::NotAdmitted`] if one side cannot prove that it may link, [`Error::NoUcx`]
    /// if UCX is requested but not usable, or [`Error::Os`] if no process listens at the address.
    pub fn connect(
        address: impl ToSocketAddrs + fmt::Display,
        context: &Context,
        options: &LinkOptions,
    ) -> Result<Self> {
        options.check()?;
        let deadline = Deadline::after(HANDSHAKE_TIMEOUT);
        let peer: Arc<str> = address.to_string().into();
        let addresses: Vec<_> = address
            .to_socket_addrs()
            .map_err(Error::os("looking up the host name"))?
            .collect();
        let tls = options.identity.to_tls()?;
        let data = data_path(options)?;
        let hello = Hello {
            session: [0; 16],
            received: 0,
            host: crosshandle::report::host_identity(),
            keep_alive_ms: options.keep_alive.as_millis() as u32,
            data: data.is_some().into(),
            refusal: 0,
            attempt: 0,
        };
        let mut last = Error::invalid("the host name has no address");
        for address in &addresses {
            let begun = Instant::now();
            let greeted = match greet(*address, &peer, &tls, &hello, deadline) {
                Ok(greeted) => greeted,
                Err(error) => {
                    last = error;
                    continue;
                }
            };
            if greeted.hello.refusal != 0 {
                return Err(thread::refused(&peer, greeted.hello.refusal));
            }
            let dial = Some(Dial {
                addresses: vec![*address],
                tls,
                timeout: REDIAL_TIMEOUT.max(begun.elapsed() * REDIAL_HANDSHAKES),
                attempts: AtomicU32::new(0),
            });
            let session = begin(peer, context, options, data, dial, greeted)?;
            let link = Self::of(session);
            link.session().wait_for_data_endpoint(deadline)?;
            return Ok(link);
        }
        Err(last)
    }

    pub(crate) fn of(session: Arc<Session>) -> Self {
        Self {
            inner: Arc::new(LinkCore { session }),
        }
    }

    pub(crate) fn session(&self) -> &Session {
        &self.inner.session
    }

    pub(crate) fn inner(&self) -> &Arc<LinkCore> {
        &self.inner
    }

    /// Returns the peer's address: the dialled address, or the source address of an accepted
    /// connection.
    pub fn peer(&self) -> &str {
        &self.session().peer
    }

    /// Returns the [host identity](crosshandle::report::host_identity) that the peer claims to
    /// have.
    pub fn peer_host(&self) -> u64 {
        self.session().host
    }

    /// Opens memory on the remote host. The peer opens the handle on its host, with the same checks
    /// as for any process there.
    ///
    /// # Errors
    /// Returns [`Error::Refused`] if the peer cannot open the handle, or [`Error::Ended`] if the
    /// link has ended.
    pub fn open_memory(&self, handle: &MemoryHandle) -> Result<RemoteMemory> {
        RemoteMemory::open(self, handle, false, Deadline::after(REPLY_TIMEOUT))
    }

    /// Opens memory on the remote host read-only.
    ///
    /// # Errors
    /// Returns the same errors as [`open_memory`](Self::open_memory).
    pub fn open_memory_read_only(&self, handle: &MemoryHandle) -> Result<RemoteMemory> {
        RemoteMemory::open(self, handle, true, Deadline::after(REPLY_TIMEOUT))
    }

    /// Opens an event on the remote host.
    ///
    /// # Errors
    /// Returns the same errors as [`open_memory`](Self::open_memory).
    pub fn open_event(&self, handle: &EventHandle) -> Result<RemoteEvent> {
        RemoteEvent::open(self, handle)
    }

    /// Looks up a named object that the holder on the remote host keeps, and opens its parts
    /// read-only. The peer must have [permitted lookups of names](LinkOptions::names).
    ///
    /// # Errors
    /// Returns the same errors as [`open_memory`](Self::open_memory). Returns [`Error::Refused`] if
    /// the name does not exist.
    pub fn open_name(&self, name: &str) -> Result<RemoteName> {
        if name.len() > MAX_TEXT {
            return Err(Error::invalid("the name is too long"));
        }
        self.open_name_until(name, Deadline::after(REPLY_TIMEOUT))
    }

    /// Opens a named object. One deadline covers all parts, because the peer chooses their number.
    fn open_name_until(&self, name: &str, deadline: Deadline) -> Result<RemoteName> {
        let pending = self
            .session()
            .ask(|request| Message::OpenName { request, name })?;
        let Reply::Name { version, parts } = pending.wait_until(deadline)? else {
            return Err(Error::Protocol("its reply does not match the request"));
        };
        let parts = read_parts(&parts).map_err(Error::Protocol)?;
        let open = |part: &NamedPart<'_>| {
            let handle = MemoryHandle::from_bytes(part.handle).map_err(crosshandle::Error::from)?;
            Ok(RemotePart {
                role: part.role.to_owned(),
                device: part.device.to_owned(),
                memory: RemoteMemory::open(self, &handle, true, deadline)?,
            })
        };
        Ok(RemoteName {
            name: name.to_owned(),
            version,
            parts: parts.iter().map(open).collect::<Result<_>>()?,
        })
    }

    /// Returns how often UCX's connection has failed and was replaced. A program notices only a
    /// delay. Returns 0 for a link without UCX.
    pub fn replaced_endpoints(&self) -> u32 {
        let data = self.session().data.as_ref();
        data.map_or(0, |data| data.replacements())
    }

    /// Returns the names of the transports that UCX uses for this link, such as `tcp` and
    /// `cuda_ipc`. The list is empty without UCX and while UCX's connection is being replaced.
    pub fn transports(&self) -> Vec<String> {
        let data = self.session().data.as_ref();
        data.map_or_else(Vec::new, |data| data.transports())
    }

    /// Returns the error with which the link ended, or `None` while it is alive.
    pub fn ended(&self) -> Option<Error> {
        self.session().state().check_alive().err()
    }

    /// Ends the link. On both sides, operations that wait for the other side fail.
    pub fn close(&self) {
        let session = self.session();
        session.end(session.ended("this side closed it"), true);
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("peer", &self.peer())
            .field("ended", &self.ended())
            .finish_non_exhaustive()
    }
}

pub(crate) fn data_path(options: &LinkOptions) -> Result<Option<DataPath>> {
    match options.data {
        Data::Ucx => DataPath::new(&options.ucx, options.staging, options.keep_alive).map(Some),
        Data::Tls => Ok(None),
    }
}

/// Starts a session on a connection over which both sides have sent their greetings.
pub(crate) fn begin(
    peer: Arc<str>,
    context: &Context,
    options: &LinkOptions,
    mut data: Option<DataPath>,
    dial: Option<Dial>,
    greeted: Greeted,
) -> Result<Arc<Session>> {
    let theirs = Duration::from_millis(greeted.hello.keep_alive_ms.into()).max(MIN_KEEP_ALIVE);
    let keep_alive = options.keep_alive.min(theirs);
    if let Some(data) = &mut data {
        data.set_keep_alive(keep_alive);
    }
    let (opening, requests) = sync_channel(MAX_OPENING);
    let start = Start {
        peer,
        host: greeted.hello.host,
        id: greeted.hello.session,
        keep_alive,
        context: context.clone(),
        data,
        dial,
        opening,
        names: options.names.clone(),
    };
    let session = Session::new(start, greeted)?;
    let opener = Arc::downgrade(&session);
    let listens = Arc::clone(&session);
    thread::start("xhl-open", move || serve::open_all(&opener, &requests))?;
    thread::start("xhl-listen", move || thread::listen(&listens))?;
    Ok(session)
}

/// Connects and performs the handshake on the dialling side. Retries if a listener with too many
/// handshakes cuts off the connection.
fn greet(
    address: SocketAddr,
    peer: &Arc<str>,
    tls: &Tls,
    hello: &Hello,
    deadline: Deadline,
) -> Result<Greeted> {
    let mut pause = REDIAL_INTERVAL;
    loop {
        let greeted = thread::connect_to(address, deadline)
            .and_then(|socket| handshake::dial(socket, peer, tls, hello, deadline));
        match greeted {
            Err(error) if handshake::was_cut_off(&error) && pause < MAX_GREET_PAUSE => {
                deadline.sleep(pause);
                pause *= 2;
            }
            greeted => return greeted,
        }
    }
}

/// Tells the peer to close an object that this side no longer uses.
pub(crate) fn close_object(session: &Session, id: u32) {
    let _ = session.say(&Message::Close { id });
}

/// Returns the TLS configurations for a link's identity.
pub(crate) fn tls(options: &LinkOptions) -> Result<Tls> {
    options.identity.to_tls()
}
