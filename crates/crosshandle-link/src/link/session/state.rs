//! What a session sends, what it has to confirm, and whether there is room to ask more.

use super::State;
use crate::control::channel::Channel;
use crate::control::message::Message;
use crate::error::Result;
use crate::event::Mirror;
use crate::tuning::{ACK_EVERY, MAX_READING};
use std::sync::Arc;
use std::time::Instant;

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
        debug_assert!(message.is_sequenced());
        self.outbox.keep(message, frame);
        // After an error the link's thread takes what has come, and then lets go of the connection.
        self.send().unwrap_or(true)
    }

    /// Sends as much of what was said as the socket takes. Returns whether something is left.
    pub(super) fn send(&mut self) -> std::io::Result<bool> {
        let Some(channel) = &mut self.channel else {
            return Ok(false);
        };
        loop {
            while channel.has_room()
                && let Some(frame) = self.outbox.give()
            {
                channel.queue(frame);
                self.spoke_at = Instant::now();
            }
            if channel.flush()? {
                return Ok(true);
            }
            if !self.outbox.has_more() || channel.is_over() {
                return Ok(false);
            }
        }
    }

    /// Returns whether something is to be sent when the socket takes more.
    pub(crate) fn wants_write(&self) -> bool {
        let waits = |channel: &Channel| channel.wants_write() || self.outbox.has_more();
        self.channel
            .as_ref()
            .is_some_and(|channel| !channel.is_over() && waits(channel))
    }

    /// Confirms what has been received. Also says that this side lives.
    pub(crate) fn confirm(&mut self) {
        // Also where nothing can be said: it is tried again when the same time has passed.
        self.spoke_at = Instant::now();
        let Some(channel) = &mut self.channel else {
            return;
        };
        let received = self.received;
        if channel.queue_ack(&Message::Ack { received }.encode()) {
            self.reported = received;
            self.read_unconfirmed = 0;
        }
        // An error, and what the socket does not take, the link's thread finds.
        let _ = channel.flush();
    }

    pub(super) fn confirm_if_due(&mut self) {
        if self.received - self.reported >= ACK_EVERY {
            self.confirm();
        }
    }

    /// Returns whether the other side may be asked more.
    pub(crate) fn has_room(&self) -> bool {
        !self.outbox.has_asked_enough() && self.reading + self.read_unconfirmed <= MAX_READING
    }

    /// Notes that a sequenced message has come.
    pub(crate) fn count_received(&mut self) {
        self.received += 1;
        self.confirm_if_due();
    }

    pub(super) fn add_mirror(&mut self, id: u32, mirror: &Arc<Mirror>) -> Result<(), &'static str> {
        if self.mirrors.contains_key(&id) {
            return Err("it gives two events one number");
        }
        self.mirrors.insert(id, Arc::downgrade(mirror));
        Ok(())
    }

    pub(crate) fn note_heard(&mut self) {
        self.heard_at = Instant::now();
    }

    pub(super) fn resume(&mut self, channel: Channel, received: u64) -> Result<(), &'static str> {
        self.outbox.forget(received)?;
        self.outbox.begin_again();
        self.note_heard();
        self.spoke_at = Instant::now();
        // The greeting has said so.
        self.reported = self.received;
        self.read_unconfirmed = 0;
        self.channel = Some(channel);
        // What fails here ends the channel, which the link's thread finds.
        let _ = self.send();
        Ok(())
    }
}
