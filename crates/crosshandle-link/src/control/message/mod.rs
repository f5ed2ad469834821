//! The messages of a link as bytes. Every field is checked when it is read.
//!
//! A frame consists of the length of the rest (4 bytes), the kind of message (1 byte) and the
//! fields. All messages except [`Message::Ack`] are *sequenced*: both sides count them, so that a
//! new connection continues where the last one broke off.

mod hello;
mod lists;
#[cfg(test)]
mod tests;

use crate::wire::{Rest, messages};
use crosshandle::handle::HANDLE_SIZE;

pub use hello::{HELLO_SIZE, Hello, NoHello, SessionId, VERSION, refusal};
pub use lists::{Failure, NamedPart, read_failures, read_parts, write_failures, write_parts};

/// Maximum number of memory bytes that one message carries.
pub const MAX_DATA: usize = 256 << 10;
/// Maximum length of a text, in bytes.
pub const MAX_TEXT: usize = 1024;
/// Maximum size of a data endpoint's address and of a memory key, in bytes.
pub const MAX_BLOB: usize = 64 << 10;
/// Maximum size of a frame without its length field, in bytes.
pub const MAX_FRAME: usize = MAX_DATA + 64;
/// Maximum number of [failures](Failure) that the reply to an open reports. If there are more, the
/// reply has the latest.
pub const MAX_FAILURES: usize = 64;
/// Maximum length of the text of a failure, in bytes.
pub const MAX_FAILURE_TEXT: usize = 256;
/// Maximum number of parts of a named object. A holder has the same limit.
pub const MAX_PARTS: usize = 32;
/// Maximum signal number in a message. A mirror advances in steps that events limit, and reaches
/// this number within about a second.
pub const MAX_SIGNAL: u64 = 1 << 48;
/// Size in bytes of the length field in front of each frame.
pub const PREFIX: usize = 4;

messages! {
    /// A message. An `id` is the number that the owner gave to an object when it opened the object
    /// for the peer. A `request` is the number that the requesting side gave to its request.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub enum Message<'a> {
        /// Reports how many sequenced messages were received, and shows that the sender is alive.
        Ack = 1 {
            /// Number of messages since the session began.
            received: u64,
        },
        /// Asks the owner to open a handle.
        Open = 2 {
            request: u64,
            /// Whether memory is opened read-only.
            read_only: bool,
            handle: &'a [u8; HANDLE_SIZE],
        },
        /// The reply to an `Open` of memory.
        Memory = 3 {
            request: u64,
            /// Length of the memory in bytes.
            len: u64,
            /// The memory's address in the owner's process, for UCX. If the owner's host cannot
            /// access the memory, this is the address of the owner's staging buffer.
            address: u64,
            id: u32,
            /// Size of the staging buffer through which the memory moves, or 0 if it is not staged.
            staging: u32,
            /// UCX's key of the memory. Empty without UCX.
            key: &'a [u8] as Rest<MAX_BLOB>,
        },
        /// The reply to an `Open` of an event.
        Event = 4 {
            request: u64,
            /// All signals up to this number had finished when the event was opened.
            completed: u64,
            id: u32,
            /// The failures among these signals, for [`read_failures`].
            failures: &'a [u8] as Rest<MAX_BLOB>,
        },
        /// The peer no longer needs an object.
        Close = 5 { id: u32 },
        /// Asks the owner to signal an event.
        Signal = 6 {
            request: u64,
            id: u32,
        },
        /// The reply to a `Signal`, a `WriteAndSignal` or a `Write`. The value is the signal's
        /// number. It has no meaning for a `Write`.
        Done = 7 {
            request: u64,
            value: u64,
        },
        /// The owner refuses a request.
        Refused = 8 {
            request: u64,
            /// The owner's error.
            why: &'a str as Rest<MAX_TEXT>,
        },
        /// All signals of an event up to a number have finished.
        Reached = 9 {
            number: u64,
            id: u32,
        },
        /// Consecutive signals of an event have failed.
        Failed = 10 {
            /// Number of the first signal.
            first: u64,
            id: u32,
            /// Number of failed signals.
            count: u32,
            /// The owner's error.
            why: &'a str as Rest<MAX_TEXT>,
        },
        /// The process that created an event has ended or has abandoned the event. No further
        /// signals follow.
        Abandoned = 11 { id: u32 },
        /// The address of the sender's data endpoint.
        Address = 12 {
            /// Generation of the endpoint. The first is 1, and it increases each time that both
            /// sides replace failed endpoints. Only endpoints of the same generation connect.
            generation: u32,
            /// The address in UCX's format.
            address: &'a [u8] as Rest<MAX_BLOB>,
        },
        /// Asks to read bytes of memory.
        Read = 13 {
            request: u64,
            /// Offset of the first byte in the memory.
            offset: u64,
            id: u32,
            /// Number of bytes.
            len: u32,
        },
        /// The reply to a `Read`.
        Data = 14 {
            request: u64,
            bytes: &'a [u8] as Rest<MAX_DATA>,
        },
        /// Asks to write bytes of memory.
        Write = 15 {
            request: u64,
            /// Offset of the first byte in the memory.
            offset: u64,
            id: u32,
            bytes: &'a [u8] as Rest<MAX_DATA>,
        },
        /// Asks to write bytes of memory and then to signal an event.
        WriteAndSignal = 17 {
            request: u64,
            /// Offset of the first byte in the memory.
            offset: u64,
            id: u32,
            event: u32,
            bytes: &'a [u8] as Rest<MAX_DATA>,
        },
        /// Asks the owner to copy between memory and its staging buffer.
        Stage = 18 {
            request: u64,
            /// Offset of the first byte in the memory.
            offset: u64,
            id: u32,
            /// Offset of the first byte in the staging buffer.
            at: u32,
            /// Number of bytes.
            len: u32,
            /// `true` copies into the memory, `false` out of it.
            into_memory: bool,
        },
        /// Asks for a named object of the owner's holder.
        OpenName = 19 {
            request: u64,
            name: &'a str as Rest<MAX_TEXT>,
        },
        /// The reply to an `OpenName`.
        Name = 20 {
            request: u64,
            version: u64,
            /// The parts of the object, for [`read_parts`].
            parts: &'a [u8] as Rest<MAX_BLOB>,
        },
        /// The sender ends the link.
        Bye = 16 {
            why: &'a str as Rest<MAX_TEXT>,
        },
    }
}

impl<'a> Message<'a> {
    /// Returns `true` if both sides count the message.
    pub fn is_sequenced(&self) -> bool {
        !matches!(self, Self::Ack { .. })
    }

    /// Returns `true` if the message is a reply.
    pub fn is_asked_for(&self) -> bool {
        matches!(
            self,
            Self::Memory { .. }
                | Self::Event { .. }
                | Self::Done { .. }
                | Self::Refused { .. }
                | Self::Data { .. }
                | Self::Name { .. }
        )
    }

    /// Returns the message as a frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Vec::with_capacity(64);
        to.extend_from_slice(&[0; PREFIX]);
        self.write(&mut to);
        debug_assert!(to.len() <= PREFIX + MAX_FRAME);
        let len = (to.len() - PREFIX) as u32;
        to[..PREFIX].copy_from_slice(&len.to_le_bytes());
        to
    }

    /// Returns the size of the first frame in `bytes`, including its length field, or `None` if
    /// more bytes are needed to know.
    ///
    /// # Errors
    /// Returns an error if the frame is empty or longer than any valid frame.
    pub fn frame_len(bytes: &[u8]) -> Result<Option<usize>, &'static str> {
        let Some(prefix) = bytes.first_chunk::<PREFIX>() else {
            return Ok(None);
        };
        let len = u32::from_le_bytes(*prefix) as usize;
        match len {
            1..=MAX_FRAME => Ok(Some(PREFIX + len)),
            _ => Err("a message is empty or longer than any message is"),
        }
    }

    /// Decodes a frame, without its length, and checks every field.
    ///
    /// # Errors
    /// Returns the reason why the bytes are invalid.
    pub fn decode(frame: &'a [u8]) -> Result<Self, &'static str> {
        let message = Self::read(frame)?;
        match message {
            Self::Event {
                completed: number, ..
            }
            | Self::Reached { number, .. }
            | Self::Failed { first: number, .. }
                if number > MAX_SIGNAL =>
            {
                Err("the number of a signal is larger than any that a link reports")
            }
            Self::Event {
                completed,
                failures,
                ..
            } => read_failures(failures, completed).map(|_| message),
            Self::Read { len, .. } if len as usize > MAX_DATA => {
                Err("more bytes are asked for than one message carries")
            }
            Self::Name { parts, .. } => read_parts(parts).map(|_| message),
            _ => Ok(message),
        }
    }
}
