//! The messages that the peer has not confirmed yet. They are kept, so that they can be sent again
//! over a new connection.

use crate::control::message::Message;
use crate::tuning::{MAX_ASKED, MAX_TOLD};
use std::collections::VecDeque;

/// Maximum number of sent endpoint addresses that the peer has not confirmed. If there are more,
/// the link ends. An honest peer confirms at least every [`ACK_EVERY`] messages, so it stays far
/// below this limit.
const MAX_ADDRESSES: usize = 256;

/// Maximum size in bytes of all replies that the peer has not confirmed. If there are more, the
/// link ends. Sixteen calls with [`PIECES_UNDER_WAY`] pieces each need a quarter of this limit.
const MAX_OWED: usize = 256 << 20;

/// The reason why a frame was sent. It determines how the number of such frames is limited.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// A reply to the peer. If the peer leaves too many replies unconfirmed, the link ends.
    Owed,
    /// A report of signals. If too many are unconfirmed, later signals share one report.
    Told,
    /// A request to the peer. If too many are unconfirmed, further requests wait.
    Asked,
    /// The address of a new UCX endpoint. The peer can make this side send many addresses, so the
    /// link ends if too many are unconfirmed.
    Address,
    /// Any other message. The number of opened objects limits the number of such messages.
    Other,
}

struct Unconfirmed {
    frame: Vec<u8>,
    cause: Cause,
}

/// The frames that the peer has not confirmed, in order.
#[derive(Default)]
pub(super) struct Outbox {
    frames: VecDeque<Unconfirmed>,
    /// Number of elements in `frames` that were passed to the current connection.
    given: usize,
    /// Number of confirmed frames, which are no longer in `frames`.
    confirmed: u64,
    owed_bytes: usize,
    asked_bytes: usize,
    told: usize,
    addresses: usize,
}

impl Outbox {
    /// Adds a message, which is kept until the peer has confirmed it.
    pub(super) fn keep(&mut self, message: &Message<'_>, frame: Vec<u8>) {
        let cause = match message {
            Message::Reached { .. } | Message::Failed { .. } | Message::Abandoned { .. } => {
                Cause::Told
            }
            Message::Open { .. }
            | Message::OpenName { .. }
            | Message::Signal { .. }
            | Message::Read { .. }
            | Message::Write { .. }
            | Message::WriteAndSignal { .. }
            | Message::Stage { .. } => Cause::Asked,
            Message::Address { .. } => Cause::Address,
            message if message.is_asked_for() => Cause::Owed,
            _ => Cause::Other,
        };
        self.count(cause, frame.len() as isize);
        self.frames.push_back(Unconfirmed { frame, cause });
    }

    fn count(&mut self, cause: Cause, bytes: isize) {
        match cause {
            Cause::Owed => self.owed_bytes = self.owed_bytes.saturating_add_signed(bytes),
            Cause::Asked => self.asked_bytes = self.asked_bytes.saturating_add_signed(bytes),
            Cause::Told => self.told = self.told.saturating_add_signed(bytes.signum()),
            Cause::Address => {
                self.addresses = self.addresses.saturating_add_signed(bytes.signum());
            }
            Cause::Other => {}
        }
    }

    /// Drops the frames that the peer has confirmed. `received` is the number of messages that the
    /// peer has received since the session began.
    pub(super) fn forget(&mut self, received: u64) -> Result<(), &'static str> {
        let sent = self.confirmed + self.frames.len() as u64;
        if received < self.confirmed || received > sent {
            return Err("it confirms what was not sent");
        }
        for _ in self.confirmed..received {
            if let Some(Unconfirmed { frame, cause }) = self.frames.pop_front() {
                self.count(cause, -(frame.len() as isize));
            }
        }
        self.given = self
            .given
            .saturating_sub((received - self.confirmed) as usize);
        self.confirmed = received;
        Ok(())
    }

    /// Returns the next frame to send over the current connection, and marks it as passed on.
    pub(super) fn give(&mut self) -> Option<&[u8]> {
        let next = self.frames.get(self.given)?;
        self.given += 1;
        Some(&next.frame)
    }

    /// Returns `true` if some frames were not passed to the current connection yet.
    pub(super) fn has_more(&self) -> bool {
        self.given < self.frames.len()
    }

    /// Prepares for a new connection: all unconfirmed frames are passed on again.
    pub(super) fn begin_again(&mut self) {
        self.given = 0;
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns `true` if the peer leaves too many replies unconfirmed.
    pub(super) fn owes_too_much(&self) -> bool {
        self.owed_bytes > MAX_OWED
    }

    /// Returns `true` if the peer leaves too many endpoint addresses unconfirmed.
    pub(super) fn has_too_many_addresses(&self) -> bool {
        self.addresses > MAX_ADDRESSES
    }

    /// Returns `true` if this side must wait for confirmations before it sends another request.
    pub(super) fn has_asked_enough(&self) -> bool {
        self.asked_bytes > MAX_ASKED
    }

    /// Returns `true` if reports of further signals must wait.
    pub(super) fn has_told_enough(&self) -> bool {
        self.told > MAX_TOLD
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds a message and passes it to the connection.
    fn keep(outbox: &mut Outbox, message: &Message<'_>) {
        outbox.keep(message, message.encode());
        assert_eq!(outbox.give(), Some(&*message.encode()));
    }

    #[test]
    fn what_was_not_confirmed_is_sent_again_in_its_order() {
        let mut outbox = Outbox::default();
        for id in 0..5 {
            keep(&mut outbox, &Message::Close { id });
        }
        assert!(outbox.forget(6).is_err());
        outbox.forget(2).unwrap();
        assert!(outbox.forget(1).is_err());
        let frames: Vec<_> = (2..5).map(|id| Message::Close { id }.encode()).collect();
        for _ in 0..2 {
            outbox.begin_again();
            let mut given = Vec::new();
            while let Some(frame) = outbox.give() {
                given.push(frame.to_vec());
            }
            assert_eq!(given, frames);
        }
        outbox.begin_again();
        // Confirmed frames are not sent again.
        outbox.give().unwrap();
        outbox.forget(3).unwrap();
        assert_eq!(outbox.give(), Some(&*frames[1]));
        outbox.give().unwrap();
        outbox.forget(5).unwrap();
        assert!(!outbox.has_more() && outbox.give().is_none());
    }

    #[test]
    fn each_cause_has_a_bound_of_its_own_and_confirmations_make_room() {
        let bytes = vec![0; 1 << 18];
        let mut outbox = Outbox::default();
        for number in 0..=MAX_TOLD as u64 {
            assert!(!outbox.has_told_enough());
            keep(&mut outbox, &Message::Reached { id: 1, number });
        }
        assert!(outbox.has_told_enough() && !outbox.has_asked_enough());
        outbox.forget(1).unwrap();
        assert!(!outbox.has_told_enough());
        let mut sent = 1 + MAX_TOLD as u64;
        while !outbox.has_asked_enough() {
            let (request, id, offset) = (1, 1, 0);
            keep(
                &mut outbox,
                &Message::Write {
                    request,
                    id,
                    offset,
                    bytes: &bytes,
                },
            );
            sent += 1;
        }
        assert!(!outbox.owes_too_much());
        outbox.forget(sent).unwrap();
        assert!(!outbox.has_asked_enough());
        while !outbox.owes_too_much() {
            let request = 1;
            keep(
                &mut outbox,
                &Message::Data {
                    request,
                    bytes: &bytes,
                },
            );
        }
        outbox.clear();
        assert!(!outbox.owes_too_much());
        for generation in 0..=MAX_ADDRESSES as u32 {
            assert!(!outbox.has_too_many_addresses());
            let address = b"where";
            keep(
                &mut outbox,
                &Message::Address {
                    generation,
                    address,
                },
            );
        }
        assert!(outbox.has_too_many_addresses());
        outbox.forget(1).unwrap();
        assert!(!outbox.has_too_many_addresses());
    }
}
