//! Events on the remote host, and their local mirrors.

use crate::control::message::{Failure, Message};
use crate::error::{Error, Result};
use crate::link::request::{PendingRequest, Reply};
use crate::link::session::Session;
use crate::link::{Link, LinkCore, close_object};
use crosshandle::{Command, Event, EventHandle};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of signals by which a mirror advances in one step. Events have this limit.
const MAX_STEP: u64 = 1 << 29;

/// An event on the remote host.
///
/// Its [mirror](Self::mirror) is an ordinary local event, which advances with the remote event. The
/// signals of both events have the same numbers. Any process on this host can wait for the mirror
/// like for any event, but must not signal it. [`signal`](Self::signal) signals the remote event.
///
/// When the link ends or the last clone of this object is dropped, pending waits for the mirror
/// fail with [`PeerDied`](crosshandle::Error::PeerDied).
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

/// The local event that follows a remote event.
pub(crate) struct Mirror {
    event: Event,
    /// Whether the mirror was abandoned, so that it no longer advances. The lock is held while the
    /// mirror advances.
    is_abandoned: Mutex<bool>,
}

impl Mirror {
    /// Advances the mirror to the state that the remote event had when it was opened.
    pub(crate) fn begin(&self, completed: u64, failures: &[Failure<'_>]) {
        for failure in failures {
            self.fail(failure);
        }
        self.reach(completed);
    }

    /// Advances the mirror to signal `number`. In the remote event, this signal and all earlier
    /// signals have completed or failed.
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
            // Signalling fails only if the program has signalled the mirror itself, or if the
            // number exceeds the maximum for events.
            if !to(number.min(submitted + MAX_STEP)) && self.event.submitted() <= submitted {
                return;
            }
        }
    }

    /// Advances the mirror past consecutive failed signals. The mirror's signals with the same
    /// numbers fail too.
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

    /// Abandons the mirror. It gets no further signals, and pending waits for it fail.
    pub(crate) fn abandon(&self) {
        let is_abandoned = self.is_abandoned.lock();
        let mut is_abandoned = is_abandoned.unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut *is_abandoned, true) {
            let _ = self.event.abandon();
        }
    }
}

impl Session {
    /// Calls `action` with the mirror of the remote event `id`. Does nothing if this side has
    /// already closed that event, which the peer may not know yet.
    pub(crate) fn with_mirror(&self, id: u32, action: impl FnOnce(&Mirror)) {
        let mirror = self.state().mirrors.get(&id).cloned();
        if let Some(mirror) = mirror.and_then(|mirror| mirror.upgrade()) {
            action(&mirror);
        }
    }
}

/// A signal that was sent to the remote host, and whose reply has not been awaited yet.
#[must_use = "the number can be waited for"]
pub struct PendingSignal(Arc<PendingRequest>);

impl PendingSignal {
    pub(crate) fn new(pending: Arc<PendingRequest>) -> Self {
        Self(pending)
    }

    /// Waits until the remote host has signalled the remote event, and returns the signal's number.
    ///
    /// # Errors
    /// Returns [`Error::Refused`] if the remote host could not signal the event, or
    /// [`Error::Ended`] if the link has ended.
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

    /// Returns the local event that follows the remote event. Other processes on this host can open
    /// its handle.
    pub fn mirror(&self) -> &Event {
        &self.opened.mirror.event
    }

    /// Signals the remote event, waits for the reply, and returns the signal's number.
    ///
    /// # Errors
    /// Returns [`Error::Refused`] if the remote host could not signal the event, or
    /// [`Error::Ended`] if the link has ended.
    pub fn signal(&self) -> Result<u64> {
        self.start_signal()?.wait()
    }

    /// Signals the remote event without waiting for the reply. A process that has seen the signal
    /// also sees the bytes of each [write](crate::RemoteMemory::write) that had returned before
    /// this call.
    ///
    /// # Errors
    /// Returns [`Error::Ended`] if the link has ended.
    pub fn start_signal(&self) -> Result<PendingSignal> {
        let id = self.opened.id;
        let pending = self
            .opened
            .session()
            .ask(|request| Message::Signal { request, id })?;
        Ok(PendingSignal(pending))
    }

    /// Creates a command that signals the remote event. Like any command, it runs in the order of
    /// its queue, and can wait for events.
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
