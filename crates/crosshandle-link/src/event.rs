//! Events of the remote host.

use crate::control::message::{Failure, Message};
use crate::error::{Error, Result};
use crate::link::request::{PendingRequest, Reply};
use crate::link::session::Session;
use crate::link::{Link, LinkCore, close_object};
use crosshandle::{Command, Event, EventHandle};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of signals by which a mirror advances in one step.
const MAX_STEP: u64 = 1 << 29;

/// An event of the remote host.
///
/// The [mirror](Self::mirror) is an ordinary event of this host. It advances with the remote host's
/// event, and its signals have the same numbers. Any process of this host can wait for the mirror
/// as for any event, but must not signal it. [`signal`](Self::signal) signals the remote host's
/// event, which gives the signal its number.
///
/// Pending waits for the mirror fail with [`PeerDied`](crosshandle::Error::PeerDied) when the link
/// ends or the last clone of this object is dropped.
#[derive(Clone)]
pub struct RemoteEvent {
    opened: Arc<Opened>,
}

struct Opened {
    link: Arc<LinkCore>,
    id: u32,
    mirror: Arc<Mirror>,
}

impl Opened {
    fn session(&self) -> &Session {
        &self.link.session
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let session = self.session();
        session.state().mirrors.remove(&self.id);
        self.mirror.abandon();
        close_object(session, self.id);
    }
}

/// The event of this host that follows an event of the remote host.
pub(crate) struct Mirror {
    event: Event,
    /// Whether the mirror was abandoned, and no longer advances. Locked while it advances.
    is_abandoned: Mutex<bool>,
}

impl Mirror {
    /// Advances to the state that the remote host's event had when it was opened.
    pub(crate) fn begin(&self, completed: u64, failures: &[Failure<'_>]) {
        for failure in failures {
            self.fail(failure);
        }
        self.reach(completed);
    }

    /// Advances to `number`. The signal with this number and all earlier signals must have
    /// finished.
    pub(crate) fn reach(&self, number: u64) {
        let is_abandoned = self.is_abandoned.lock();
        if *is_abandoned.unwrap_or_else(PoisonError::into_inner) {
            return;
        }
        self.go_on(number);
    }

    fn go_on(&self, number: u64) {
        self.step_to(number, |step| self.event.signal_value(step).is_ok());
    }

    fn step_to(&self, number: u64, to: impl Fn(u64) -> bool) {
        loop {
            let submitted = self.event.submitted();
            if submitted >= number {
                return;
            }
            // Signalling fails only if the program signals the mirror itself, or if the number
            // exceeds the maximum of an event.
            if !to(number.min(submitted + MAX_STEP)) && self.event.submitted() <= submitted {
                return;
            }
        }
    }

    /// Advances past consecutive failed signals. The mirror's signals with these numbers fail too.
    pub(crate) fn fail(&self, failure: &Failure<'_>) {
        let Failure { first, count, why } = *failure;
        let before = first.saturating_sub(1);
        let is_abandoned = self.is_abandoned.lock();
        if *is_abandoned.unwrap_or_else(PoisonError::into_inner) {
            return;
        }
        self.go_on(before);
        let last = before.saturating_add(count.into());
        self.step_to(last, |step| self.event.fail_value(step, why).is_ok());
    }

    /// Abandons the mirror: it gets no further signals.
    pub(crate) fn abandon(&self) {
        let is_abandoned = self.is_abandoned.lock();
        let mut is_abandoned = is_abandoned.unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut *is_abandoned, true) {
            let _ = self.event.abandon();
        }
    }
}

impl Session {
    /// Calls `action` with the mirror of an event. Does nothing if this side has closed the mirror,
    /// because the peer may not know that yet.
    pub(crate) fn with_mirror(&self, id: u32, action: impl FnOnce(&Mirror)) {
        let mirror = self.state().mirrors.get(&id).cloned();
        if let Some(mirror) = mirror.and_then(|mirror| mirror.upgrade()) {
            action(&mirror);
        }
    }
}

/// A signal on its way to the remote host.
#[must_use = "the number can be waited for"]
pub struct PendingSignal(Arc<PendingRequest>);

impl PendingSignal {
    pub(crate) fn new(pending: Arc<PendingRequest>) -> Self {
        Self(pending)
    }

    /// Waits until the remote host has signalled the event, and returns the signal's number.
    ///
    /// # Errors
    /// Returns [`Error::Refused`] with the remote host's error, or [`Error::Ended`].
    pub fn wait(self) -> Result<u64> {
        match self.0.wait()? {
            Reply::Done(number) => Ok(number),
            _ => Err(Error::Protocol("its reply does not match the request")),
        }
    }
}

impl fmt::Debug for PendingSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PendingSignal(..)")
    }
}

impl RemoteEvent {
    pub(crate) fn open(link: &Link, handle: &EventHandle) -> Result<Self> {
        let session = link.session();
        let event = session.context.create_event()?;
        event.set_name(&format!("over {}", session.peer));
        let mirror = Arc::new(Mirror {
            event,
            is_abandoned: Mutex::new(false),
        });
        let pending = session.ask_for(Some(Arc::clone(&mirror)), |request| Message::Open {
            request,
            read_only: false,
            handle: handle.as_bytes(),
        })?;
        let Reply::Event { id, .. } = pending.wait()? else {
            return Err(Error::Protocol("its reply does not match the request"));
        };
        Ok(Self {
            opened: Arc::new(Opened {
                link: Arc::clone(link.inner()),
                id,
                mirror,
            }),
        })
    }

    pub(crate) fn link(&self) -> &Arc<LinkCore> {
        &self.opened.link
    }

    pub(crate) fn id(&self) -> u32 {
        self.opened.id
    }

    /// Returns the event of this host that follows the remote host's event. Other processes of this
    /// host can open its handle.
    pub fn mirror(&self) -> &Event {
        &self.opened.mirror.event
    }

    /// Signals the remote host's event, and returns the signal's number. Waits for the reply.
    ///
    /// # Errors
    /// Returns [`Error::Refused`] with the remote host's error, or [`Error::Ended`].
    pub fn signal(&self) -> Result<u64> {
        self.start_signal()?.wait()
    }

    /// Signals the remote host's event, without waiting for the signal's number. A process that
    /// sees the signal also sees the bytes of every [write](crate::RemoteMemory::write) that
    /// returned before this call.
    ///
    /// # Errors
    /// Returns [`Error::Ended`].
    pub fn start_signal(&self) -> Result<PendingSignal> {
        let id = self.opened.id;
        let pending = self
            .opened
            .session()
            .ask(|request| Message::Signal { request, id })?;
        Ok(PendingSignal(pending))
    }

    /// Makes a command that signals the remote host's event. Like any command, it runs in the order
    /// of its queue, and can wait for events.
    pub fn signal_command(&self) -> Command {
        let this = self.clone();
        Command::call(move || this.signal().map(drop))
    }
}

impl fmt::Debug for RemoteEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteEvent")
            .field("peer", &self.opened.session().peer)
            .field("mirror", self.mirror())
            .finish_non_exhaustive()
    }
}
