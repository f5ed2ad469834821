//! The state of one side of a link: unconfirmed messages, pending requests, and open objects. A
//! session continues when its connection is replaced.

mod state;

use super::data::DataPath;
use super::outbox::Outbox;
use super::request::{PendingRequest, Reply};
use super::serve::{OpenRequest, Served};
use super::stage::Stager;
use crate::control::channel::Channel;
use crate::control::handshake::Greeted;
use crate::control::identity::Tls;
use crate::control::message::{Hello, Message, SessionId, read_failures};
use crate::error::{Error, Result};
use crate::event::Mirror;
use crate::memory::ring::Ring;
use crate::tuning::{REDIALS_PER_KEEP_ALIVE, REPLY_TIMEOUT};
use crate::wait::wait_until;
use crosshandle::holder::Holder;
use crosshandle::{Context, Notifier, adapter_support::Deadline};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Number of confirmations that an idle side sends per keep-alive. With fewer, two lost messages
/// would look like a lost connection.
const ACKS_PER_KEEP_ALIVE: u32 = 5;

/// The state of one side of a link, which the link's objects and threads share.
pub(crate) struct Session {
    pub(crate) peer: Arc<str>,
    /// The identity of the peer's host, as the peer claims it.
    pub(crate) host: u64,
    pub(crate) id: SessionId,
    pub(crate) keep_alive: Duration,
    pub(crate) context: Context,
    /// The data path over UCX. `None` if memory contents travel over the control connection.
    pub(crate) data: Option<Arc<DataPath>>,
    /// The parameters for replacing a lost connection. `None` on the listening side.
    pub(crate) dial: Option<Dial>,
    /// Waits for signals of the events that are open for the peer. Each wait's token is the event's
    /// number.
    pub(crate) notifier: Notifier,
    pub(crate) opening: SyncSender<OpenRequest>,
    /// The holder whose named objects the peer may open.
    pub(crate) names: Option<Holder>,
    own: Weak<Session>,
    wake: OwnedFd,
    state: Mutex<State>,
    /// Notified when this side has connected to the peer's UCX endpoint, when further requests may
    /// be sent, and when the link ends.
    changed: Condvar,
    /// Number of the latest attempt to replace the connection. The lock is held during a
    /// replacement.
    resuming: Mutex<u32>,
    /// Held while a received message is counted and handled. The greeting on a new connection
    /// reports the number of received messages. So before that, each message must be handled
    /// completely or not at all.
    handling: Mutex<()>,
    /// Whether a copy through the peer's staging buffer has timed out. Such a copy may still access
    /// the buffer later, so the buffer must not be used again. The lock is held by the thread whose
    /// transfer uses the buffer.
    pub(crate) staging: Mutex<bool>,
    /// Host memory for copies to and from local device memory. It is kept for the next copy.
    pub(crate) ring: Mutex<Option<Ring>>,
    pub(crate) has_ended: AtomicBool,
}

/// The parameters with which the dialling side replaces a lost connection.
pub(crate) struct Dial {
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) tls: Tls,
    /// Timeout for the first attempt.
    pub(crate) timeout: Duration,
    /// Number of attempts to replace the connection since the session began.
    pub(crate) attempts: AtomicU32,
}

/// The mutable part of a session.
pub(crate) struct State {
    pub(crate) channel: Option<Channel>,
    pub(super) outbox: Outbox,
    /// Number of received sequenced messages. The first `reported` of them were confirmed to the
    /// peer.
    pub(crate) received: u64,
    reported: u64,
    heard_at: Instant,
    pub(super) spoke_at: Instant,
    pending: HashMap<u64, Arc<PendingRequest>>,
    /// Number of bytes that pending replies will contain.
    reading: usize,
    /// Number of bytes in the replies that arrived since the last confirmation.
    read_unconfirmed: usize,
    next_request: u64,
    pub(crate) served: HashMap<u32, Served>,
    pub(crate) next_served: u32,
    /// Number of handles that are being opened for the peer.
    pub(crate) opening: usize,
    pub(crate) mirrors: HashMap<u32, Weak<Mirror>>,
    pub(super) stager: Option<Arc<Stager>>,
    has_data_endpoint: bool,
    pub(crate) is_dialling: bool,
    ended: Option<Error>,
}

/// The next tasks of the link's thread.
pub(crate) struct Agenda {
    /// The latest time at which the thread must wake up.
    pub(crate) wake_at: Instant,
    /// Whether the thread must dial to replace the connection.
    pub(crate) dials: bool,
}

pub(crate) struct Start {
    pub(crate) peer: Arc<str>,
    pub(crate) host: u64,
    pub(crate) id: SessionId,
    pub(crate) keep_alive: Duration,
    pub(crate) context: Context,
    pub(crate) data: Option<DataPath>,
    pub(crate) dial: Option<Dial>,
    pub(crate) opening: SyncSender<OpenRequest>,
    pub(crate) names: Option<Holder>,
}

impl Session {
    pub(crate) fn new(start: Start, greeted: Greeted) -> Result<Arc<Self>> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(Error::os("making a descriptor that wakes a thread"))?;
        let now = Instant::now();
        let (notifier, channel) = (Notifier::new()?, greeted.into_channel()?);
        let session = Arc::new_cyclic(|own| Self {
            own: Weak::clone(own),
            peer: start.peer,
            host: start.host,
            id: start.id,
            keep_alive: start.keep_alive,
            context: start.context,
            data: start.data.map(Arc::new),
            dial: start.dial,
            notifier,
            opening: start.opening,
            names: start.names,
            wake,
            state: Mutex::new(State {
                channel: Some(channel),
                outbox: Outbox::default(),
                received: 0,
                reported: 0,
                heard_at: now,
                spoke_at: now,
                pending: HashMap::new(),
                reading: 0,
                read_unconfirmed: 0,
                next_request: 1,
                served: HashMap::new(),
                next_served: 1,
                opening: 0,
                mirrors: HashMap::new(),
                stager: None,
                has_data_endpoint: false,
                is_dialling: false,
                ended: None,
            }),
            changed: Condvar::new(),
            resuming: Mutex::new(0),
            handling: Mutex::new(()),
            staging: Mutex::new(false),
            ring: Mutex::new(None),
            has_ended: AtomicBool::new(false),
        });
        if let Some(data) = &session.data {
            session.say_address(data.address()?)?;
        }
        // Wake the link's thread, because messages may have arrived right after the greeting.
        session.wake();
        Ok(session)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn weak(&self) -> Weak<Self> {
        Weak::clone(&self.own)
    }

    /// Wakes the link's thread.
    pub(crate) fn wake(&self) {
        // The write fails only if a wake-up is already pending.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    pub(crate) fn wake_fd(&self) -> &OwnedFd {
        &self.wake
    }

    pub(crate) fn ended(&self, why: impl Into<Arc<str>>) -> Error {
        Error::Ended {
            peer: Arc::clone(&self.peer),
            why: why.into(),
        }
    }

    /// Sends a message. If the connection is lost, the message is sent over the next connection.
    pub(crate) fn say(&self, message: &Message<'_>) -> Result<()> {
        let mut state = self.state();
        state.check_alive()?;
        if state.say(message) {
            drop(state);
            self.wake();
        }
        Ok(())
    }

    /// Sends the address of this side's UCX endpoint to the peer.
    ///
    /// # Errors
    /// Returns an error if the link has ended, or if the peer leaves too many addresses
    /// unconfirmed.
    pub(super) fn say_address(&self, (generation, address): (u32, Vec<u8>)) -> Result<()> {
        self.say(&Message::Address {
            generation,
            address: &address,
        })?;
        match self.state().outbox.has_too_many_addresses() {
            true => Err(Error::Protocol(
                "it replaces data endpoints without confirming any",
            )),
            false => Ok(()),
        }
    }

    /// Sends a request. `message` creates the message from the request's number.
    pub(crate) fn ask<'a>(
        &self,
        message: impl FnOnce(u64) -> Message<'a>,
    ) -> Result<Arc<PendingRequest>> {
        self.ask_for(None, message)
    }

    /// Sends a request, as [`ask`](Self::ask). If the request opens an event, `mirror` is the
    /// event's mirror.
    pub(crate) fn ask_for<'a>(
        &self,
        mirror: Option<Arc<Mirror>>,
        message: impl FnOnce(u64) -> Message<'a>,
    ) -> Result<Arc<PendingRequest>> {
        let mut state = self.wait_for_room()?;
        let number = state.next_request;
        state.next_request += 1;
        let message = message(number);
        let reads = match message {
            Message::Read { len, .. } => len as usize,
            _ => 0,
        };
        state.reading += reads;
        let pending = PendingRequest::new(mirror, reads);
        state.pending.insert(number, Arc::clone(&pending));
        if state.say(&message) {
            drop(state);
            self.wake();
        }
        Ok(pending)
    }

    /// Waits until the peer has confirmed so many earlier requests that another one may be sent.
    /// Fails after [`REPLY_TIMEOUT`].
    fn wait_for_room(&self) -> Result<MutexGuard<'_, State>> {
        let deadline = Deadline::after(REPLY_TIMEOUT);
        let mut state = self.state();
        loop {
            state.check_alive()?;
            if state.has_room() {
                return Ok(state);
            }
            if deadline.is_over() {
                return Err(Error::TimedOut(
                    "waiting for the peer to confirm earlier requests",
                ));
            }
            state = wait_until(&self.changed, state, deadline);
        }
    }

    /// Passes a reply to the thread that waits for it.
    pub(crate) fn replied(&self, number: u64, reply: Result<Reply>) -> Result<(), &'static str> {
        let mut state = self.state();
        let pending = state.pending.remove(&number);
        let pending = pending.ok_or("it replies to an unknown request")?;
        state.reading -= pending.reads;
        state.read_unconfirmed += pending.reads;
        if let Ok(Reply::Event {
            id,
            completed,
            failures,
        }) = &reply
            && let Some(mirror) = &pending.mirror
        {
            let failures = match state.add_mirror(*id, mirror) {
                Ok(()) => read_failures(failures, *completed),
                Err(why) => Err(why),
            };
            drop(state);
            match failures {
                Ok(failures) => mirror.begin(*completed, &failures),
                Err(why) => {
                    pending.reply(Err(Error::Protocol(why)));
                    return Err(why);
                }
            }
        } else {
            drop(state);
        }
        let opened = reply.as_ref().ok().and_then(Reply::opened);
        if !pending.reply(reply)
            && let Some(id) = opened
        {
            // The waiting thread has given up, so close the object that the peer has opened.
            self.state().mirrors.remove(&id);
            let _ = self.say(&Message::Close { id });
        }
        Ok(())
    }

    /// Records that this side has connected to the peer's UCX endpoint.
    pub(crate) fn note_data_endpoint(&self) {
        self.state().has_data_endpoint = true;
        self.changed.notify_all();
    }

    /// Waits until this side has connected to the peer's UCX endpoint. Returns at once for a link
    /// without UCX.
    pub(crate) fn wait_for_data_endpoint(&self, deadline: Deadline) -> Result<()> {
        let mut state = self.state();
        loop {
            state.check_alive()?;
            if state.has_data_endpoint || self.data.is_none() {
                return Ok(());
            }
            if deadline.is_over() {
                return Err(Error::TimedOut("waiting for the peer's data endpoint"));
            }
            state = wait_until(&self.changed, state, deadline);
        }
    }

    /// Ends the link. All operations that wait for the peer fail with `why`. Does nothing if the
    /// link has already ended.
    pub(crate) fn end(&self, why: Error, say_bye: bool) {
        let mut state = self.state();
        if state.ended.is_some() {
            return;
        }
        if say_bye {
            state.say(&Message::Bye {
                why: &why.to_string(),
            });
        }
        state.ended = Some(why.clone());
        self.has_ended.store(true, Ordering::Release);
        let pending = std::mem::take(&mut state.pending);
        let mirrors = std::mem::take(&mut state.mirrors);
        let served = std::mem::take(&mut state.served);
        let channel = state.channel.take();
        let stager = state.stager.take();
        state.outbox.clear();
        drop(state);
        // First wake all threads that wait for mirrors or replies, because closing the data path
        // takes time.
        for mirror in mirrors.into_values().filter_map(|mirror| mirror.upgrade()) {
            mirror.abandon();
        }
        for pending in pending.into_values() {
            pending.reply(Err(why.clone()));
        }
        self.changed.notify_all();
        // After `close`, UCX transfers no more bytes, so memory that was open for the peer may be
        // unmapped.
        if let Some(data) = &self.data {
            data.close();
        }
        for (id, served) in served {
            self.stop_serving(id, served);
        }
        if let Some(stager) = stager {
            self.stop_staging(&stager);
        }
        drop(channel);
        self.wake();
    }

    /// Replaces the connection by a new one, over which the peer has sent a greeting for this
    /// session. `connect` sends this side's greeting and returns the connection.
    ///
    /// Rejects an attempt that arrives after a later attempt, because its greeting is out of date.
    pub(crate) fn resume(
        &self,
        connect: impl FnOnce(&Hello) -> Result<Greeted>,
        attempt: u32,
        hello: &Hello,
    ) -> Result<()> {
        let mut latest = self.resuming.lock().unwrap_or_else(PoisonError::into_inner);
        if attempt <= *latest {
            return Err(Error::TimedOut(
                "replacing a connection: a later attempt has replaced it",
            ));
        }
        *latest = attempt;
        let hello = self.begin_resumption(attempt, hello)?;
        let greeted = connect(&hello)?;
        let received = greeted.hello.received;
        let channel = greeted.into_channel()?;
        let mut state = self.state();
        state.check_alive()?;
        let resumed = state.resume(channel, received);
        drop(state);
        if let Err(why) = resumed {
            self.end(Error::Protocol(why), true);
            return Err(Error::Protocol(why));
        }
        // The peer's greeting may have confirmed earlier requests, so callers may continue.
        self.changed.notify_all();
        self.wake();
        Ok(())
    }

    /// Drops the connection, together with received messages that were not handled. The peer will
    /// send these messages again. Returns this side's greeting for the new connection.
    fn begin_resumption(&self, attempt: u32, hello: &Hello) -> Result<Hello> {
        // Wait until another thread has handled and counted the message that it is processing.
        let _turn = self.handling.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.state();
        state.check_alive()?;
        state.channel = None;
        Ok(Hello {
            received: state.received,
            attempt,
            ..*hello
        })
    }

    /// Sends as many bytes as the socket accepts, and receives the bytes that have arrived.
    pub(crate) fn exchange(&self) -> Result<()> {
        let mut state = self.state();
        state.check_alive()?;
        let _ = state.send();
        let Some(channel) = &mut state.channel else {
            return Ok(());
        };
        if channel.fill() {
            state.note_heard();
        }
        // A confirmation may be due that could not be queued while an earlier one was unsent.
        let had_room = state.has_room();
        state.confirm_if_due();
        if !had_room && state.has_room() {
            self.changed.notify_all();
        }
        Ok(())
    }

    /// Handles the next received message. Returns `false` if there is none. Each message is handled
    /// exactly once, even if a new connection replaces this one: a message is either counted and
    /// handled, or sent again.
    pub(crate) fn handle_next(
        &self,
        handle: impl FnOnce(Message<'_>) -> Result<()>,
    ) -> Result<bool> {
        let _turn = self.handling.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.state();
        state.check_alive()?;
        let Some(channel) = &mut state.channel else {
            return Ok(false);
        };
        let Some(frame) = channel.next_frame().map_err(Error::Protocol)? else {
            if channel.is_over() {
                state.channel = None;
            }
            return Ok(false);
        };
        let message = Message::decode(&frame).map_err(Error::Protocol)?;
        if message.is_sequenced() {
            let had_room = state.has_room();
            state.count_received();
            if !had_room && state.has_room() {
                self.changed.notify_all();
            }
            if state.outbox.owes_too_much() {
                return Err(Error::Protocol("it asks for more than it takes"));
            }
        }
        drop(state);
        handle(message)?;
        Ok(true)
    }

    /// Drops sent messages that the peer has confirmed. `received` is the number of messages that
    /// the peer has received since the session began.
    pub(crate) fn confirmed(&self, received: u64) -> Result<(), &'static str> {
        let mut state = self.state();
        let had_room = state.has_room();
        state.outbox.forget(received)?;
        if !had_room && state.has_room() {
            self.changed.notify_all();
        }
        Ok(())
    }

    /// Returns `true` if reports of further signals must wait.
    pub(crate) fn has_told_enough(&self) -> bool {
        self.state().outbox.has_told_enough()
    }

    /// Returns the next tasks of the link's thread, or the error with which the link has ended.
    pub(crate) fn agenda(&self) -> Result<Agenda> {
        let now = Instant::now();
        let mut state = self.state();
        state.check_alive()?;
        let dies_at = state.heard_at + self.keep_alive;
        if now >= dies_at {
            drop(state);
            return Err(self.ended(format!("nothing was heard for {:?}", self.keep_alive)));
        }
        let speak_every = self.keep_alive / ACKS_PER_KEEP_ALIVE;
        if now >= state.spoke_at + speak_every {
            let had_room = state.has_room();
            state.confirm();
            if !had_room && state.has_room() {
                self.changed.notify_all();
            }
        }
        let mut wake_at = dies_at.min(state.spoke_at.max(now - speak_every) + speak_every);
        let mut dials = false;
        if self.dial.is_some() && !state.is_dialling {
            let dials_at = state.heard_at + self.keep_alive / REDIALS_PER_KEEP_ALIVE;
            dials = state.channel.is_none() || now >= dials_at;
            state.is_dialling = dials;
            if !dials {
                wake_at = wake_at.min(dials_at);
            }
        }
        Ok(Agenda { wake_at, dials })
    }
}
