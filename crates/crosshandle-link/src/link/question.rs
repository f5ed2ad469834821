//! Questions to the other side, and their answers.

use crate::error::{Error, Result};
use crate::event::Mirror;
use crate::tuning::ANSWER_TIMEOUT;
use crate::wait::wait_until;
use crosshandle::Deadline;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// An answer.
#[derive(Debug)]
pub(crate) enum Answer {
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
        /// As the message has them.
        failures: Vec<u8>,
    },
    Name {
        version: u64,
        /// As the message has them.
        parts: Vec<u8>,
    },
    Done(u64),
    Data(Vec<u8>),
}

impl Answer {
    /// Returns the owner's number of what it has opened.
    pub(crate) fn opened(&self) -> Option<u32> {
        match self {
            Self::Memory { id, .. } | Self::Event { id, .. } => Some(*id),
            _ => None,
        }
    }
}

/// What has become of a question.
#[derive(Default)]
enum Place {
    #[default]
    Waits,
    Answered(Result<Answer>),
    /// Nobody waits any more.
    GivenUp,
}

/// A question that waits for its answer.
#[derive(Default)]
pub(crate) struct Question {
    place: Mutex<Place>,
    answered: Condvar,
    /// Of a question that opens an event: the mirror, so that it is known before the event goes on.
    pub(super) mirror: Option<Arc<Mirror>>,
    /// Bytes that the answer brings.
    pub(super) reads: usize,
}

impl Question {
    /// Makes a question that opens an event with this mirror, if any, and whose answer brings so many bytes.
    pub(super) fn new(mirror: Option<Arc<Mirror>>, reads: usize) -> Arc<Self> {
        Arc::new(Self {
            mirror,
            reads,
            ..Self::default()
        })
    }

    /// Gives the answer to whoever waits. Returns false if nobody does any more.
    pub(super) fn answer(&self, answer: Result<Answer>) -> bool {
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        match *place {
            Place::Waits => *place = Place::Answered(answer),
            Place::Answered(_) => {}
            Place::GivenUp => return false,
        }
        self.answered.notify_all();
        true
    }

    /// Waits for the answer, which comes at the latest when the link ends.
    pub(crate) fn wait(&self) -> Result<Answer> {
        let deadline = Deadline::after(ANSWER_TIMEOUT);
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        while matches!(*place, Place::Waits) && !deadline.is_over() {
            place = wait_until(&self.answered, place, deadline);
        }
        match std::mem::replace(&mut *place, Place::GivenUp) {
            Place::Answered(answer) => answer,
            _ => Err(Error::TimedOut("waiting for the other side's answer")),
        }
    }
}
