//! Pending requests to the peer, and their replies.

use crate::error::{Error, Result};
use crate::event::Mirror;
use crate::tuning::REPLY_TIMEOUT;
use crate::wait::{poll_since, wait_until};
use crosshandle::adapter_support::Deadline;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

/// A successful reply to a request.
#[derive(Debug)]
pub(crate) enum Reply {
    Memory {
        id: u32,
        len: u64,
        address: u64,
        staging: u32,
        key: Vec<u8>,
    },
    Event {
        id: u32,
        completed: u64,
        /// In the encoding of the message.
        failures: Vec<u8>,
    },
    Name {
        version: u64,
        /// In the encoding of the message.
        parts: Vec<u8>,
    },
    Done(u64),
    Data(Vec<u8>),
}

impl Reply {
    /// Returns the number of the object that the owner has opened for this request, or `None` if it
    /// opened none.
    pub(crate) fn opened(&self) -> Option<u32> {
        match self {
            Self::Memory { id, .. } | Self::Event { id, .. } => Some(*id),
            _ => None,
        }
    }
}

/// The state of a pending request.
#[derive(Default)]
enum Place {
    #[default]
    Waits,
    Replied(Result<Reply>),
    /// The thread that waited for the reply has given up.
    GivenUp,
}

/// A request that was sent to the peer, and its reply.
#[derive(Default)]
pub(crate) struct PendingRequest {
    place: Mutex<Place>,
    replied: Condvar,
    /// Whether `place` has the reply, for a thread that polls.
    has_reply: AtomicBool,
    /// The mirror, if the request opens an event. It is registered when the reply arrives, before
    /// this side handles reports of signals.
    pub(super) mirror: Option<Arc<Mirror>>,
    /// Number of bytes that the reply will contain.
    pub(super) reads: usize,
}

impl PendingRequest {
    /// Creates a request. `mirror` is `Some` if the request opens an event. `reads` is the number
    /// of bytes that the reply will contain.
    pub(super) fn new(mirror: Option<Arc<Mirror>>, reads: usize) -> Arc<Self> {
        Arc::new(Self {
            mirror,
            reads,
            ..Self::default()
        })
    }

    /// Passes the reply to the waiting thread. Returns `false` if that thread has given up.
    pub(super) fn reply(&self, reply: Result<Reply>) -> bool {
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        match *place {
            Place::Waits => *place = Place::Replied(reply),
            Place::Replied(_) => {}
            Place::GivenUp => return false,
        }
        self.has_reply.store(true, Ordering::Release);
        self.replied.notify_all();
        true
    }

    /// Waits for the reply, at most for [`REPLY_TIMEOUT`]. Returns an error if the link ends
    /// first.
    pub(crate) fn wait(&self) -> Result<Reply> {
        self.wait_until(Deadline::after(REPLY_TIMEOUT))
    }

    /// Waits for the reply until `deadline`.
    pub(crate) fn wait_until(&self, deadline: Deadline) -> Result<Reply> {
        poll_since(Instant::now(), || {
            let is_over = self.has_reply.load(Ordering::Acquire) || deadline.is_over();
            is_over.then_some(())
        });
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        while matches!(*place, Place::Waits) && !deadline.is_over() {
            place = wait_until(&self.replied, place, deadline);
        }
        match std::mem::replace(&mut *place, Place::GivenUp) {
            Place::Replied(reply) => reply,
            _ => Err(Error::TimedOut("waiting for the peer's reply")),
        }
    }
}
