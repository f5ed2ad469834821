//! The messages of a link: pure bytes, checked as they are read. Numbers are little-endian.
//!
//! A frame is the length of what follows (4 bytes), the kind of message (1 byte) and its fields. All but
//! [`Message::Ack`] are *sequenced*: both sides count them, so that a new connection goes on where the
//! last one broke off.

mod hello;
mod lists;
#[cfg(test)]
mod tests;
mod wire;

pub use hello::{HELLO_SIZE, Hello, NoHello, SessionId, VERSION, refusal};
pub use lists::{Failure, NamedPart, read_failures, read_parts, write_failures, write_parts};

/// Bytes of memory that one message carries at most.
pub const MAX_DATA: usize = 256 << 10;
/// Bytes of the longest text.
pub const MAX_TEXT: usize = 1024;
/// Bytes of the longest address of a data endpoint, and of the longest key of memory.
pub const MAX_BLOB: usize = 64 << 10;
/// Bytes of the longest frame, without its length.
pub const MAX_FRAME: usize = MAX_DATA + 64;
/// Ranges of failed signals that the answer to an open tells at most: the latest ones.
pub const MAX_FAILURES: usize = 64;
/// Bytes of the text of each of those.
pub const MAX_FAILURE_TEXT: usize = 256;
/// The number of the furthest signal that a message tells of. Mirrors go on in steps that events allow, and so
/// many are done in a second.
pub const MAX_SIGNAL: u64 = 1 << 48;
/// Bytes in front of each frame.
pub const PREFIX: usize = 4;

/// A message. `id`s are the owner's numbers of what it has opened for the other side; `request`s are the
/// asker's numbers of its questions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message<'a> {
    /// How many sequenced messages have come in. Also says that the sender lives.
    Ack {
        /// Their number since the session began.
        received: u64,
    },
    /// Asks the owner to open a handle.
    Open {
        /// The question's number.
        request: u64,
        /// Memory is to be read only.
        read_only: bool,
        /// The handle.
        handle: &'a [u8],
    },
    /// The answer to an `Open` of memory.
    Memory {
        /// The question's number.
        request: u64,
        /// The owner's number of the memory.
        id: u32,
        /// Bytes of the memory.
        len: u64,
        /// The memory's address at the owner, for UCX; of memory that the owner's host cannot access, the
        /// address of the owner's staging buffer.
        address: u64,
        /// 0, or the bytes of the staging buffer through which the memory moves.
        staging: u32,
        /// UCX's key of the memory; empty without UCX.
        key: &'a [u8],
    },
    /// The answer to an `Open` of an event.
    Event {
        /// The question's number.
        request: u64,
        /// The owner's number of the event.
        id: u32,
        /// The number up to which its signals had finished.
        completed: u64,
        /// Those of them that had failed: [`read_failures`].
        failures: &'a [u8],
    },
    /// The other side needs something no more.
    Close {
        /// The owner's number of it.
        id: u32,
    },
    /// Asks the owner to signal an event.
    Signal {
        /// The question's number.
        request: u64,
        /// The owner's number of the event.
        id: u32,
    },
    /// The answer to a `Signal` or a `WriteAndSignal` (its number) or a `Write` (nothing).
    Done {
        /// The question's number.
        request: u64,
        /// The answer.
        value: u64,
    },
    /// The owner does not do what it was asked for.
    Refused {
        /// The question's number.
        request: u64,
        /// The owner's error.
        why: &'a str,
    },
    /// All signals of an event up to a number have finished.
    Reached {
        /// The owner's number of the event.
        id: u32,
        /// The signal's number.
        number: u64,
    },
    /// Signals of an event have failed, one after the other.
    Failed {
        /// The owner's number of the event.
        id: u32,
        /// The first one's number.
        first: u64,
        /// How many they are.
        count: u32,
        /// The owner's error.
        why: &'a str,
    },
    /// The process that created an event has ended, or has given it up: further signals never come.
    Abandoned {
        /// The owner's number of the event.
        id: u32,
    },
    /// The address of the sender's data endpoint.
    Address {
        /// Which one it is in the link: 1, and one more each time that endpoints have failed and both sides have
        /// made new ones. Two endpoints of one generation connect.
        generation: u32,
        /// As UCX makes it.
        address: &'a [u8],
    },
    /// Asks for bytes of memory.
    Read {
        /// The question's number.
        request: u64,
        /// The owner's number of the memory.
        id: u32,
        /// The first byte.
        offset: u64,
        /// Their number.
        len: u32,
    },
    /// The answer to a `Read`.
    Data {
        /// The question's number.
        request: u64,
        /// The memory's bytes.
        bytes: &'a [u8],
    },
    /// Asks to change bytes of memory.
    Write {
        /// The question's number.
        request: u64,
        /// The owner's number of the memory.
        id: u32,
        /// The first byte.
        offset: u64,
        /// The new bytes.
        bytes: &'a [u8],
    },
    /// Asks to change bytes of memory and then to signal an event.
    WriteAndSignal {
        /// The question's number.
        request: u64,
        /// The owner's number of the memory.
        id: u32,
        /// The owner's number of the event.
        event: u32,
        /// The first byte.
        offset: u64,
        /// The new bytes.
        bytes: &'a [u8],
    },
    /// Asks the owner to copy between memory and its staging buffer.
    Stage {
        /// The question's number.
        request: u64,
        /// The owner's number of the memory.
        id: u32,
        /// Copy into the memory; else out of it.
        into_memory: bool,
        /// The first byte of the memory.
        offset: u64,
        /// The first byte of the staging buffer.
        at: u32,
        /// The number of bytes.
        len: u32,
    },
    /// Asks for what has a name at the owner's holder.
    OpenName {
        /// The question's number.
        request: u64,
        /// The name.
        name: &'a str,
    },
    /// The answer to an `OpenName`.
    Name {
        /// The question's number.
        request: u64,
        /// The version of what has the name.
        version: u64,
        /// Its parts: [`read_parts`].
        parts: &'a [u8],
    },
    /// The sender ends the link.
    Bye {
        /// The reason.
        why: &'a str,
    },
}
