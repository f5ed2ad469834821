//! The messages that the two sides of a link exchange, and their encoding. Decoding checks every
//! field.
//!
//! A frame consists of the length of the rest (4 bytes), the kind of the message (1 byte) and the
//! fields. All messages except [`Message::Ack`] are *sequenced*: both sides count them, so that a
//! new connection continues after the last message that arrived over the previous one.

mod hello;
mod lists;
#[cfg(test)]
mod tests;

use crate::wire::{Rest, RestIsHandle, messages};

pub use hello::{HELLO_SIZE, Hello, NoHello, SessionId, VERSION, refusal};
pub use lists::{Failure, NamedPart, read_failures, read_parts, write_failures, write_parts};

/// Maximum number of bytes of memory contents in one message.
pub const MAX_DATA: usize = 256 << 10;
/// Maximum length in bytes of a text in a message.
pub const MAX_TEXT: usize = 1024;
/// Maximum size in bytes of an endpoint address, a memory key or a list.
pub const MAX_BLOB: usize = 64 << 10;
/// Maximum size in bytes of a frame without its length field.
pub const MAX_FRAME: usize = MAX_DATA + 64;
/// Maximum number of [failures](Failure) in the reply to an `Open`. If there are more, the reply
/// contains the latest ones.
pub const MAX_FAILURES: usize = 64;
/// Maximum length in bytes of the text in a failure.
pub const MAX_FAILURE_TEXT: usize = 256;
/// Maximum number of parts in a named object. A holder has the same limit.
pub const MAX_PARTS: usize = 32;
/// Maximum signal number in a message. A mirror advances in steps of limited size, and needs about
/// a second to reach this number.
pub const MAX_SIGNAL: u64 = 1 << 48;
/// Size in bytes of the length field in front of each frame.
pub const PREFIX: usize = 4;

messages! {
    /// A message. `id` is the number that the owner assigned to an object when it opened the object
    /// for the peer. `request` is the number that the requesting side assigned to its request. The
    /// *owner* of an object is the side on whose host the object is.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub enum Message<'a> {
        /// A confirmation: reports how many sequenced messages the sender has received, and that it
        /// is alive.
        Ack = 1 {
            /// Number of sequenced messages since the session began.
            received: u64,
        },
        /// Asks the owner to open a handle.
        Open = 2 {
            request: u64,
            /// Whether memory is opened read-only.
            read_only: bool,
            /// The handle, of memory or of an event.
            handle: &'a [u8] as RestIsHandle,
        },
        /// The reply to an `Open` of memory.
        Memory = 3 {
            request: u64,
            /// Length of the memory in bytes.
            len: u64,
            /// The memory's address in the owner's process, for UCX. If the memory is staged, this
            /// is the address of the owner's staging buffer.
            address: u64,
            id: u32,
            /// Size in bytes of the owner's staging buffer, or 0 if the memory is not staged.
            staging: u32,
            /// UCX's key for the memory. Empty without UCX.
            key: &'a [u8] as Rest<MAX_BLOB>,
        },
        /// The reply to an `Open` of an event.
        Event = 4 {
            request: u64,
            /// All signals up to this number had completed or failed when the event was opened.
            completed: u64,
            id: u32,
            /// The failures among these signals, in the format of [`read_failures`].
            failures: &'a [u8] as Rest<MAX_BLOB>,
        },
        /// Tells the owner that the peer no longer needs an object.
        Close = 5 { id: u32 },
        /// Asks the owner to signal an event.
        Signal = 6 {
            request: u64,
            id: u32,
        },
        /// The reply to a `Signal`, `WriteAndSignal`, `Write` or `Stage`. `value` is the signal's
        /// number, and has no meaning in the other replies.
        Done = 7 {
            request: u64,
            value: u64,
        },
        /// The reply to a request that the owner rejects.
        Refused = 8 {
            request: u64,
            /// The text of the owner's error.
            why: &'a str as Rest<MAX_TEXT>,
        },
        /// Reports that all signals of an event up to a number have completed or failed.
        Reached = 9 {
            number: u64,
            id: u32,
        },
        /// Reports that consecutive signals of an event have failed.
        Failed = 10 {
            /// Number of the first signal.
            first: u64,
            id: u32,
            /// Number of consecutive failed signals.
            count: u32,
            /// The text of the owner's error.
            why: &'a str as Rest<MAX_TEXT>,
        },
        /// Reports that the process that created an event has ended or has abandoned the event. No
        /// further signals follow.
        Abandoned = 11 { id: u32 },
        /// Contains the address of the sender's UCX endpoint.
        Address = 12 {
            /// Generation of the endpoint. The first generation is 1. It increases each time that
            /// both sides replace their failed endpoints. Only endpoints of the same generation
            /// connect.
            generation: u32,
            /// The address in UCX's format.
            address: &'a [u8] as Rest<MAX_BLOB>,
        },
        /// Asks the owner for bytes from memory.
        Read = 13 {
            request: u64,
            /// Offset of the first byte in the memory.
            offset: u64,
            id: u32,
            /// Number of bytes in the access.
            len: u32,
        },
        /// The reply to a `Read`.
        Data = 14 {
            request: u64,
            bytes: &'a [u8] as Rest<MAX_DATA>,
        },
        /// Asks the owner to write bytes to memory.
        Write = 15 {
            request: u64,
            /// Offset of the first byte in the memory.
            offset: u64,
            id: u32,
            bytes: &'a [u8] as Rest<MAX_DATA>,
        },
        /// Asks the owner to write bytes to memory and then to signal an event.
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
            /// Number of bytes in the access.
            len: u32,
            /// `true` copies from the staging buffer to the memory, and `false` copies from the
            /// memory.
            into_memory: bool,
        },
        /// Asks for a named object that the holder on the owner's host keeps.
        OpenName = 19 {
            request: u64,
            name: &'a str as Rest<MAX_TEXT>,
        },
        /// The reply to an `OpenName`.
        Name = 20 {
            request: u64,
            version: u64,
            /// The parts of the object, in the format of [`read_parts`].
            parts: &'a [u8] as Rest<MAX_BLOB>,
        },
        /// Reports that the sender ends the link.
        Bye = 16 {
            why: &'a str as Rest<MAX_TEXT>,
        },
    }
}

impl<'a> Message<'a> {
    /// Returns `true` if the message is sequenced, which means that both sides count it.
    pub fn is_sequenced(&self) -> bool {
        !matches!(self, Self::Ack { .. })
    }

    /// Returns `true` if the message is a reply to a request.
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

    /// Encodes the message as a frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Vec::with_capacity(64);
        to.extend_from_slice(&[0; PREFIX]);
        self.write(&mut to);
        debug_assert!(to.len() <= PREFIX + MAX_FRAME);
        let len = (to.len() - PREFIX) as u32;
        to[..PREFIX].copy_from_slice(&len.to_le_bytes());
        to
    }

    /// Returns the size of the first frame in `bytes`, including its length field. Returns `None`
    /// if `bytes` does not contain the whole length field.
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

    /// Decodes a frame without its length field, and checks every field.
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
