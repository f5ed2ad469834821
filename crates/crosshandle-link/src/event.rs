//! Events of the other host.

use crate::control::message::{Failure, Message};
use crate::error::{Error, Result};
use crate::link::question::{Answer, Question};
use crate::link::session::Session;
use crate::link::{Inner, Link, close_object};
use crosshandle::{Command, Event, EventHandle};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// The furthest that an event goes on in one step.
const MAX_STEP: u64 = 1 << 29;

/// An event of the other host.
///
/// Its [mirror](Self::mirror) is an ordinary event of this host that goes on as the other host's does, with
/// the same numbers: wait for it in every way there is, in this process and in others, and don't signal it.
/// [`signal`](Self::signal) signals the other host's event, which gives the signal its number.
///
/// When the link ends, waits for the mirror that are not over fail with
/// [`PeerDied`](crosshandle::Error::PeerDied). So they do when the last clone of this is dropped.
#[derive(Clone)]
pub struct RemoteEvent {
    opened: Arc<Opened>,
}

struct Opened {
    link: Arc<Inner>,
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

/// The event of this host that goes on as the other host's does.
pub(crate) struct Mirror {
    event: Event,
    /// Held while it goes on. `true`: it goes on no more.
    is_abandoned: Mutex<bool>,
}

impl Mirror {
    /// Goes on to where the other host's event was when it was opened.
    pub(crate) fn begin(&self, completed: u64, failures: &[Failure<'_>]) {
        for failure in failures {
            self.fail(failure);
        }
        self.reach(completed);
    }

    /// Goes on to a number whose signal has finished, as have all before it.
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
            // It fails only if the program signals the mirror itself, or beyond what events count to.
            if !to(number.min(submitted + MAX_STEP)) && self.event.submitted() <= submitted {
                return;
            }
        }
    }

    /// Goes on to the last of the signals that have failed.
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

    /// Ends it: no further signals come.
    pub(crate) fn abandon(&self) {
        let is_abandoned = self.is_abandoned.lock();
        let mut is_abandoned = is_abandoned.unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut *is_abandoned, true) {
            let _ = self.event.abandon();
        }
    }
}

impl Session {
    /// Does something with the mirror of an event. Nothing if it is closed: the other side may not know yet.
    pub(crate) fn with_mirror(&self, id: u32, action: impl FnOnce(&Mirror)) {
        let mirror = self.state().mirrors.get(&id).cloned();
        if let Some(mirror) = mirror.and_then(|mirror| mirror.upgrade()) {
            action(&mirror);
        }
    }
}

/// A signal that is under way to the other host.
#[must_use = "the number can be waited for"]
pub struct PendingSignal(Arc<Question>);

impl PendingSignal {
    pub(crate) fn new(question: Arc<Question>) -> Self {
        Self(question)
    }

    /// Waits until the other host has signalled, and returns the signal's number.
    ///
    /// # Errors
    /// [`Error::Refused`] with the other host's error; [`Error::Ended`].
    pub fn wait(self) -> Result<u64> {
        match self.0.wait()? {
            Answer::Done(number) => Ok(number),
            _ => Err(Error::Protocol("its answer is to another question")),
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
        let question = session.ask_for(Some(Arc::clone(&mirror)), |request| Message::Open {
            request,
            read_only: false,
            handle: handle.as_bytes(),
        })?;
        let Answer::Event { id, .. } = question.wait()? else {
            return Err(Error::Protocol("its answer is to another question"));
        };
        Ok(Self {
            opened: Arc::new(Opened {
                link: Arc::clone(link.inner()),
                id,
                mirror,
            }),
        })
    }

    pub(crate) fn link(&self) -> &Arc<Inner> {
        &self.opened.link
    }

    pub(crate) fn id(&self) -> u32 {
        self.opened.id
    }

    /// Returns the event of this host that goes on as the other host's does. Other processes of this host
    /// can open its handle.
    pub fn mirror(&self) -> &Event {
        &self.opened.mirror.event
    }

    /// Signals the other host's event, and returns the signal's number after a round trip.
    ///
    /// # Errors
    /// [`Error::Refused`] with the other host's error; [`Error::Ended`].
    pub fn signal(&self) -> Result<u64> {
        self.start_signal()?.wait()
    }

    /// Signals the other host's event, without waiting for the signal's number. Bytes that a
    /// [write](crate::RemoteMemory::write) which has returned has written are seen by whoever has seen the
    /// signal.
    ///
    /// # Errors
    /// [`Error::Ended`].
    pub fn start_signal(&self) -> Result<PendingSignal> {
        let id = self.opened.id;
        let question = self
            .opened
            .session()
            .ask(|request| Message::Signal { request, id })?;
        Ok(PendingSignal(question))
    }

    /// Makes a command that signals the other host's event. Like any command it runs in the order of its
    /// queue and waits for events.
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
