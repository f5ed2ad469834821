//! Sends and confirms messages, and limits the number of pending requests.

use super::State;
use crate::control::channel::Channel;
use crate::control::message::Message;
use crate::error::Result;
use crate::event::Mirror;
use crate::tuning::MAX_READING;
use std::sync::Arc;
use std::time::Instant;

/// Number of received messages after which a confirmation is sent at once. With a smaller number,
/// more confirmations are sent. With a larger number, the peer has to store more messages.
const ACK_EVERY: u64 = 64;

impl State {
    pub(crate) fn check_alive(&self) -> Result<()> {
        self.ended.clone().map_or(Ok(()), Err)
    }

    /// Queues a message, and sends as many queued bytes as the socket accepts. Returns `true` if
    /// the link's thread must send the rest.
    pub(crate) fn say(&mut self, message: &Message<'_>) -> bool {
        if self.ended.is_some() {
            return false;
        }
        let frame = message.encode();
        debug_assert!(message.is_sequenced());
        self.outbox.keep(message, frame);
        // After an error, the link's thread first handles the received messages, and then drops the
        // connection.
        self.send().unwrap_or(true)
    }

    /// Sends as many queued messages as the socket accepts. Returns `true` if some are left.
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

    /// Returns `true` if unsent bytes or messages remain.
    pub(crate) fn wants_write(&self) -> bool {
        let waits = |channel: &Channel| channel.wants_write() || self.outbox.has_more();
        self.channel
            .as_ref()
            .is_some_and(|channel| !channel.is_over() && waits(channel))
    }

    /// Sends a confirmation of all received messages. It also shows that this side is alive.
    pub(crate) fn confirm(&mut self) {
        // Set the time even if the confirmation cannot be sent, so that the next attempt follows
        // after the usual interval.
        self.spoke_at = Instant::now();
        let Some(channel) = &mut self.channel else {
            return;
        };
        let received = self.received;
        if channel.queue_ack(&Message::Ack { received }.encode()) {
            self.reported = received;
            self.read_unconfirmed = 0;
        }
        // The link's thread handles errors, and sends the bytes that the socket does not accept
        // now.
        let _ = channel.flush();
    }

    pub(super) fn confirm_if_due(&mut self) {
        if self.received - self.reported >= ACK_EVERY {
            self.confirm();
        }
    }

    /// Returns `true` if another request may be sent to the peer.
    pub(crate) fn has_room(&self) -> bool {
        !self.outbox.has_asked_enough() && self.reading + self.read_unconfirmed <= MAX_READING
    }

    /// Counts a received sequenced message.
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
        // This side's greeting has confirmed all received messages.
        self.reported = self.received;
        self.read_unconfirmed = 0;
        self.channel = Some(channel);
        // If sending fails, the channel is over, and the link's thread drops it.
        let _ = self.send();
        Ok(())
    }
}
