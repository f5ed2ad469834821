//! The listening side. It accepts links from hosts that authenticate themselves, and assigns new
//! connections of existing links to their sessions.

use super::doorway::Doorway;
use super::session::Session;
use super::{Link, begin, data_path, thread, tls};
use crate::control::handshake::{self, Greeted};
use crate::control::identity::Tls;
use crate::control::message::{Hello, SessionId, refusal};
use crate::error::{Error, Result};
use crate::options::LinkOptions;
use crate::tuning::HANDSHAKE_TIMEOUT;
use crate::wait::wait_until;
use crosshandle::{Context, adapter_support::Deadline};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Maximum number of established links that wait for [`Listener::accept`](crate::Listener::accept).
const MAX_UNACCEPTED: usize = 16;

/// A listener that accepts links from other hosts.
///
/// Dropping the listener closes its socket. Accepted links stay alive, but they can no longer
/// replace a lost connection.
pub struct Listener {
    shared: Arc<Shared>,
    address: SocketAddr,
}

struct Shared {
    context: Context,
    options: LinkOptions,
    tls: Tls,
    state: Mutex<State>,
    /// Notified when a new link waits to be accepted.
    changed: Condvar,
    is_closed: AtomicBool,
}

#[derive(Default)]
struct State {
    sessions: HashMap<SessionId, Weak<Session>>,
    unaccepted: VecDeque<Link>,
    doorway: Doorway<TcpStream>,
}

impl Listener {
    /// Listens for links at `address`, `host:port`. Port 0 selects a free port.
    ///
    /// `context` opens the local objects that peers request, and owns the mirrors of remote events.
    ///
    /// # Errors
    /// Returns [`Error::Os`] if the process cannot listen at the address, [`Error::Identity`] if
    /// the identity cannot be used, or [`Error::NoUcx`] if UCX is requested but not usable.
    pub fn bind(
        address: impl ToSocketAddrs,
        context: &Context,
        options: &LinkOptions,
    ) -> Result<Self> {
        options.check()?;
        let tls = tls(options)?;
        // Without a working data path, the listener would reject every host, so fail now.
        drop(data_path(options)?);
        let socket = TcpListener::bind(address).map_err(Error::os("listening for links"))?;
        let address = socket
            .local_addr()
            .map_err(Error::os("listening for links"))?;
        let shared = Arc::new(Shared {
            context: context.clone(),
            options: options.clone(),
            tls,
            state: Mutex::default(),
            changed: Condvar::new(),
            is_closed: AtomicBool::new(false),
        });
        let accepts = Arc::clone(&shared);
        thread::start("xhl-accept", move || accepts.accept_all(&socket))?;
        Ok(Self { shared, address })
    }

    /// Returns the address at which the listener accepts links.
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// Waits without a timeout for the next link from another host.
    pub fn accept(&self) -> Link {
        loop {
            if let Some(link) = self.accept_by(Deadline::NEVER) {
                return link;
            }
        }
    }

    /// Waits for the next link from another host, for at most `timeout`.
    ///
    /// # Errors
    /// Returns [`Error::TimedOut`] if no host has linked within `timeout`.
    pub fn accept_timeout(&self, timeout: Duration) -> Result<Link> {
        let link = self.accept_by(Deadline::after(timeout));
        link.ok_or(Error::TimedOut("waiting for a link"))
    }

    /// Returns the next link, or `None` if no host has linked since the last call.
    pub fn try_accept(&self) -> Option<Link> {
        self.accept_by(Deadline::after(Duration::ZERO))
    }

    fn accept_by(&self, deadline: Deadline) -> Option<Link> {
        let mut state = self.shared.state();
        while state.unaccepted.is_empty() && !deadline.is_over() {
            state = wait_until(&self.shared.changed, state, deadline);
        }
        state.unaccepted.pop_front()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.shared.is_closed.store(true, Ordering::Release);
        let unaccepted = std::mem::take(&mut self.shared.state().unaccepted);
        drop(unaccepted);
        // Connect to the listener, so that the `accept` call in its thread returns. A listener at
        // the unspecified address can be reached at the loopback address.
        let mut address = self.address;
        if address.ip().is_unspecified() {
            address.set_ip(match address {
                SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
            });
        }
        drop(TcpStream::connect_timeout(&address, HANDSHAKE_TIMEOUT));
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept_all(self: &Arc<Self>, listener: &TcpListener) {
        loop {
            let accepted = listener.accept();
            if self.is_closed.load(Ordering::Acquire) {
                return;
            }
            match accepted {
                Ok((socket, peer)) => self.begin_handshake(socket, peer),
                // Usually, the process has run out of file descriptors. Retry later, when some may
                // have been closed.
                Err(_) => std::thread::sleep(crate::tuning::REDIAL_INTERVAL),
            }
        }
    }

    /// Runs the handshake for a new connection on its own thread. If there are too many handshakes,
    /// ends one of them.
    fn begin_handshake(self: &Arc<Self>, socket: TcpStream, peer: SocketAddr) {
        let Ok(copy) = socket.try_clone() else { return };
        let (number, ended) = self.state().doorway.enter(peer.ip(), copy);
        if let Some(ended) = ended {
            let _ = ended.shutdown(Shutdown::Both);
        }
        let shared = Arc::clone(self);
        let started = thread::start("xhl-greet", move || {
            let name: Arc<str> = peer.to_string().into();
            let deadline = Deadline::after(HANDSHAKE_TIMEOUT);
            let greeted = handshake::accept(socket, &name, &shared.tls, deadline);
            shared.state().doorway.leave(number);
            if let Ok(greeted) = greeted {
                // Ignore errors, because `greet` has already sent the reason to the host.
                let _ = shared.greet(name, peer.ip(), greeted);
            }
        });
        if started.is_err() {
            self.state().doorway.leave(number);
        }
    }

    /// Replies to a greeting: starts or resumes a session, or rejects the host.
    fn greet(&self, peer: Arc<str>, address: IpAddr, mut greeted: Greeted) -> Result<()> {
        self.state().doorway.admit(address);
        let theirs = greeted.hello;
        let ours = Hello {
            session: theirs.session,
            received: 0,
            host: crosshandle::report::host_identity(),
            keep_alive_ms: self.options.keep_alive.as_millis() as u32,
            data: (self.options.data == crate::Data::Ucx).into(),
            refusal: 0,
            attempt: theirs.attempt,
        };
        let refuse = |mut greeted: Greeted, reason| {
            greeted.send(&Hello {
                refusal: reason,
                ..ours
            })
        };
        if theirs.session != [0; 16] {
            let session = self.state().sessions.get(&theirs.session).cloned();
            let Some(session) = session.and_then(|session| session.upgrade()) else {
                return refuse(greeted, refusal::NO_SESSION);
            };
            if session.has_ended.load(Ordering::Acquire) {
                return refuse(greeted, refusal::NO_SESSION);
            }
            let reply = |hello: &Hello| {
                greeted.send(hello)?;
                Ok(greeted)
            };
            return session.resume(reply, theirs.attempt, &ours);
        }
        if theirs.data != ours.data {
            return refuse(greeted, refusal::OTHER_DATA);
        }
        if self.state().unaccepted.len() >= MAX_UNACCEPTED {
            return refuse(greeted, refusal::BUSY);
        }
        let data = data_path(&self.options)?;
        let mut id = SessionId::default();
        getrandom::fill(&mut id).map_err(|error| {
            Error::os("numbering a link")(std::io::Error::other(error.to_string()))
        })?;
        greeted.hello.session = id;
        greeted.send(&Hello {
            session: id,
            ..ours
        })?;
        let session = begin(peer, &self.context, &self.options, data, None, greeted)?;
        let deadline = Deadline::after(HANDSHAKE_TIMEOUT);
        self.state().sessions.insert(id, Arc::downgrade(&session));
        let link = Link::of(Arc::clone(&session));
        session.wait_for_data_endpoint(deadline)?;
        let mut state = self.state();
        state
            .sessions
            .retain(|_, session| session.strong_count() > 0);
        state.unaccepted.push_back(link);
        self.changed.notify_one();
        Ok(())
    }
}
