//! The state of a link that both sides keep: what was said and not yet confirmed, what was asked, and what is
//! open for whom. A session outlives its connections.

use super::data::DataPath;
use super::serve::{OpenRequest, Served};
use crate::control::channel::Channel;
use crate::control::handshake::Greeted;
use crate::control::identity::Tls;
use crate::control::message::{Hello, Message, SessionId};
use crate::error::{Error, Result};
use crate::event::Mirror;
use crate::tuning::{
    ACK_EVERY, ACKS_PER_KEEP_ALIVE, ANSWER_TIMEOUT, MAX_OWED, REDIALS_PER_KEEP_ALIVE,
};
use crosshandle::{Context, Notifier};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// What a link is made of, shared by its objects and its threads.
pub(crate) struct Session {
    pub(crate) peer: Arc<str>,
    /// The identity of the other side's running kernel.
    pub(crate) host: u64,
    pub(crate) id: SessionId,
    pub(crate) keep_alive: Duration,
    pub(crate) context: Context,
    /// `None`: memory moves over the control connection.
    pub(crate) data: Option<Arc<DataPath>>,
    /// Present at the side that dialled.
    pub(crate) dial: Option<Dial>,
    /// Tells of signals of events that are open for the other side. The token is the event's number.
    pub(crate) notifier: Notifier,
    pub(crate) opening: SyncSender<OpenRequest>,
    wake: OwnedFd,
    state: Mutex<State>,
    /// Notified when the data endpoint is there, and when the link ends.
    changed: Condvar,
    /// Held while a new connection takes the place of the last one.
    resuming: Mutex<()>,
    pub(crate) has_ended: AtomicBool,
}

/// How the side that dialled dials again.
pub(crate) struct Dial {
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) tls: Tls,
}

/// The changing part of a session.
pub(crate) struct State {
    pub(crate) channel: Option<Channel>,
    /// Frames that the other side has not confirmed. The first one follows `confirmed` others.
    unconfirmed: VecDeque<Unconfirmed>,
    /// Bytes of those that answer the other side.
    owed_bytes: usize,
    confirmed: u64,
    /// Sequenced messages that have come in, and how many of those have been confirmed.
    pub(crate) received: u64,
    reported: u64,
    heard_at: Instant,
    spoke_at: Instant,
    questions: HashMap<u64, Arc<Question>>,
    next_question: u64,
    pub(crate) served: HashMap<u32, Served>,
    pub(crate) next_served: u32,
    /// Handles that are being opened for the other side.
    pub(crate) opening: usize,
    pub(crate) mirrors: HashMap<u32, Weak<Mirror>>,
    has_data_endpoint: bool,
    pub(crate) is_dialling: bool,
    ended: Option<Error>,
}

/// A frame that the other side has not confirmed.
struct Unconfirmed {
    frame: Vec<u8>,
    /// Its bytes, if the other side has asked for it.
    owed: usize,
}

/// An answer.
#[derive(Debug)]
pub(crate) enum Answer {
    Memory {
        id: u32,
        len: u64,
        address: u64,
        key: Vec<u8>,
    },
    Event {
        id: u32,
        completed: u64,
    },
    Done(u64),
    Data(Vec<u8>),
}

/// A question that waits for its answer.
#[derive(Default)]
pub(crate) struct Question {
    answer: Mutex<Option<Result<Answer>>>,
    answered: Condvar,
    /// Of a question that opens an event: the mirror, so that it is known before the event goes on.
    mirror: Option<Arc<Mirror>>,
}

impl Question {
    fn answer(&self, answer: Result<Answer>) {
        let mut place = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        place.get_or_insert(answer);
        self.answered.notify_all();
    }

    /// Waits for the answer, which comes at the latest when the link ends.
    pub(crate) fn wait(&self) -> Result<Answer> {
        let place = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut place, _) = self
            .answered
            .wait_timeout_while(place, ANSWER_TIMEOUT, |answer| answer.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        place
            .take()
            .unwrap_or(Err(Error::TimedOut("waiting for the other side's answer")))
    }
}

/// What the link's thread has to do next.
pub(crate) struct Agenda {
    /// The latest time to look again.
    pub(crate) wake_at: Instant,
    /// A connection must be made.
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
}

impl Session {
    pub(crate) fn new(start: Start, greeted: Greeted) -> Result<Arc<Self>> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(Error::os("making a descriptor to wake a thread by"))?;
        let now = Instant::now();
        let session = Arc::new(Self {
            peer: start.peer,
            host: start.host,
            id: start.id,
            keep_alive: start.keep_alive,
            context: start.context,
            data: start.data.map(Arc::new),
            dial: start.dial,
            notifier: Notifier::new()?,
            opening: start.opening,
            wake,
            state: Mutex::new(State {
                channel: Some(greeted.into_channel()?),
                unconfirmed: VecDeque::new(),
                owed_bytes: 0,
                confirmed: 0,
                received: 0,
                reported: 0,
                heard_at: now,
                spoke_at: now,
                questions: HashMap::new(),
                next_question: 1,
                served: HashMap::new(),
                next_served: 1,
                opening: 0,
                mirrors: HashMap::new(),
                has_data_endpoint: false,
                is_dialling: false,
                ended: None,
            }),
            changed: Condvar::new(),
            resuming: Mutex::new(()),
            has_ended: AtomicBool::new(false),
        });
        if let Some(data) = &session.data {
            let address = data.address()?;
            session.say(&Message::Address { address: &address })?;
        }
        Ok(session)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the link's thread.
    pub(crate) fn wake(&self) {
        // It fails only if the thread is to wake already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    pub(crate) fn wake_fd(&self) -> &OwnedFd {
        &self.wake
    }

    /// Returns the error of a link that ended for a reason.
    pub(crate) fn ended(&self, why: impl Into<Arc<str>>) -> Error {
        Error::Ended {
            peer: Arc::clone(&self.peer),
            why: why.into(),
        }
    }

    /// Sends a message, now or when there is a connection again.
    pub(crate) fn say(&self, message: &Message<'_>) -> Result<()> {
        let mut state = self.state();
        state.check_alive()?;
        if state.say(message) {
            drop(state);
            self.wake();
        }
        Ok(())
    }

    /// Sends a question: `message` makes it from its number.
    pub(crate) fn ask<'a>(
        &self,
        message: impl FnOnce(u64) -> Message<'a>,
    ) -> Result<Arc<Question>> {
        self.ask_for(None, message)
    }

    /// Sends a question that opens an event with this mirror.
    pub(crate) fn ask_for<'a>(
        &self,
        mirror: Option<Arc<Mirror>>,
        message: impl FnOnce(u64) -> Message<'a>,
    ) -> Result<Arc<Question>> {
        let mut state = self.state();
        state.check_alive()?;
        let number = state.next_question;
        state.next_question += 1;
        let question = Arc::new(Question {
            mirror,
            ..Question::default()
        });
        state.questions.insert(number, Arc::clone(&question));
        if state.say(&message(number)) {
            drop(state);
            self.wake();
        }
        Ok(question)
    }

    /// Gives an answer to whoever waits for it.
    pub(crate) fn answered(&self, number: u64, answer: Result<Answer>) -> Result<(), &'static str> {
        let mut state = self.state();
        let question = state.questions.remove(&number);
        let question = question.ok_or("it answers a question that nobody asked")?;
        if let (Some(mirror), Ok(Answer::Event { id, .. })) = (&question.mirror, &answer) {
            state.mirrors.insert(*id, Arc::downgrade(mirror));
        }
        drop(state);
        if let (Some(mirror), Ok(Answer::Event { completed, .. })) = (&question.mirror, &answer) {
            mirror.reach(*completed);
        }
        question.answer(answer);
        Ok(())
    }

    /// Notes that the data endpoint is there.
    pub(crate) fn note_data_endpoint(&self) {
        self.state().has_data_endpoint = true;
        self.changed.notify_all();
    }

    /// Waits until memory can move.
    pub(crate) fn wait_for_data_endpoint(&self, deadline: Instant) -> Result<()> {
        let mut state = self.state();
        loop {
            state.check_alive()?;
            if state.has_data_endpoint || self.data.is_none() {
                return Ok(());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::TimedOut(
                    "waiting for the other side's data endpoint",
                ));
            }
            state = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Ends the link: whatever waits for the other side fails. Does nothing if it has ended.
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
        let questions = std::mem::take(&mut state.questions);
        let mirrors = std::mem::take(&mut state.mirrors);
        let served = std::mem::take(&mut state.served);
        let channel = state.channel.take();
        state.unconfirmed.clear();
        state.owed_bytes = 0;
        drop(state);
        // Waiters first: they may be many, and closing takes its time.
        for mirror in mirrors.into_values().filter_map(|mirror| mirror.upgrade()) {
            mirror.abandon();
        }
        for question in questions.into_values() {
            question.answer(Err(why.clone()));
        }
        if let Some(data) = &self.data {
            data.close();
        }
        for (id, served) in served {
            self.stop_serving(id, served);
        }
        drop(channel);
        self.changed.notify_all();
        self.wake();
    }

    /// Replaces the connection by one whose other side has greeted with this session. `answer` returns the
    /// connection once that side knows what was received.
    pub(crate) fn resume(
        &self,
        connect: impl FnOnce(&Hello) -> Result<Greeted>,
        hello: &Hello,
    ) -> Result<()> {
        let _turn = self.resuming.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.state();
        state.check_alive()?;
        // From here on nothing is received until the new connection is there.
        state.channel = None;
        let hello = Hello {
            received: state.received,
            ..*hello
        };
        drop(state);
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
        self.wake();
        Ok(())
    }

    /// Returns what is to be done next, or the error with which the link has ended.
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
            state.confirm();
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

impl State {
    pub(crate) fn check_alive(&self) -> Result<()> {
        self.ended.clone().map_or(Ok(()), Err)
    }

    /// Sends a message. Returns whether the link's thread must send the rest.
    pub(crate) fn say(&mut self, message: &Message<'_>) -> bool {
        if self.ended.is_some() {
            return false;
        }
        let frame = message.encode();
        let was_flushed = match &mut self.channel {
            Some(channel) => {
                channel.queue(&frame);
                let flushed = channel.flush();
                self.spoke_at = Instant::now();
                flushed
            }
            None => Ok(false),
        };
        if message.is_sequenced() {
            let owed = match message.is_asked_for() {
                true => frame.len(),
                false => 0,
            };
            self.owed_bytes += owed;
            self.unconfirmed.push_back(Unconfirmed { frame, owed });
        }
        match was_flushed {
            Ok(is_left) => is_left,
            Err(_) => {
                self.channel = None;
                true
            }
        }
    }

    /// Returns whether the other side asks for more than it takes.
    pub(crate) fn is_choked(&self) -> bool {
        self.owed_bytes > MAX_OWED
    }

    /// Confirms what has been received. Also says that this side lives.
    pub(crate) fn confirm(&mut self) {
        self.reported = self.received;
        let received = self.received;
        self.say(&Message::Ack { received });
    }

    /// Notes that a sequenced message has come.
    pub(crate) fn count_received(&mut self) {
        self.received += 1;
        if self.received - self.reported >= ACK_EVERY {
            self.confirm();
        }
    }

    pub(crate) fn note_heard(&mut self) {
        self.heard_at = Instant::now();
    }

    /// Forgets what the other side has received.
    pub(crate) fn forget_confirmed(&mut self, received: u64) -> Result<(), &'static str> {
        let sent = self.confirmed + self.unconfirmed.len() as u64;
        if received < self.confirmed || received > sent {
            return Err("it confirms what was not sent");
        }
        for _ in self.confirmed..received {
            if let Some(Unconfirmed { owed, .. }) = self.unconfirmed.pop_front() {
                self.owed_bytes -= owed;
            }
        }
        self.confirmed = received;
        Ok(())
    }

    fn resume(&mut self, mut channel: Channel, received: u64) -> Result<(), &'static str> {
        self.forget_confirmed(received)?;
        for Unconfirmed { frame, .. } in &self.unconfirmed {
            channel.queue(frame);
        }
        self.note_heard();
        self.spoke_at = Instant::now();
        self.reported = self.received;
        // What fails here fails again for the link's thread.
        self.channel = channel.flush().is_ok().then_some(channel);
        Ok(())
    }
}
