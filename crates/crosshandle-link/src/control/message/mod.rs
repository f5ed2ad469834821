//! The messages of a link as bytes. Every field is checked when it is read. Numbers are
//! little-endian.
//!
//! A frame consists of the length of the rest (4 bytes), the kind of message (1 byte) and the
//! fields. All messages except [`Message::Ack`] are *sequenced*: both sides count them, so that a
//! new connection continues where the last one broke off.

mod hello;
mod lists;
#[cfg(test)]
mod tests;
mod wire;

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
/// Maximum number of rows of failed signals that the reply to an open reports. These are the latest
/// ones.
pub const MAX_FAILURES: usize = 64;
/// Maximum length of the text of each such failure, in bytes.
pub const MAX_FAILURE_TEXT: usize = 256;
/// Maximum signal number in a message. A mirror reaches it within about a second, in steps of the
/// size that events allow.
pub const MAX_SIGNAL: u64 = 1 << 48;
/// Size in bytes of the length field in front of each frame.
pub const PREFIX: usize = 4;

/// A message. An `id` is the owner's number of an object that it has opened for the peer. A
/// `request` is the number that the requesting side gave to its request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message<'a> {
    /// Reports how many sequenced messages were received. It also shows that the sender is alive.
    Ack {
        /// Number of messages since the session began.
        received: u64,
    },
    /// Asks the owner to open a handle.
    Open {
        /// Number of the request.
        request: u64,
        /// Memory is opened for reading only.
        read_only: bool,
        /// The handle.
        handle: &'a [u8],
    },
    /// The reply to an `Open` of memory.
    Memory {
        /// Number of the request.
        request: u64,
        /// The owner's number of the memory.
        id: u32,
        /// Length of the memory in bytes.
        len: u64,
        /// The memory's address in the owner, for UCX. If the owner's host cannot access the
        /// memory, it is the address of the owner's staging buffer.
        address: u64,
        /// Size of the staging buffer through which the memory moves, or 0 if it is not staged.
        staging: u32,
        /// UCX's key of the memory. Empty without UCX.
        key: &'a [u8],
    },
    /// The reply to an `Open` of an event.
    Event {
        /// Number of the request.
        request: u64,
        /// The owner's number of the event.
        id: u32,
        /// All signals up to this number had finished.
        completed: u64,
        /// The failed signals among them, for [`read_failures`].
        failures: &'a [u8],
    },
    /// The peer no longer needs an object.
    Close {
        /// The owner's number of the object.
        id: u32,
    },
    /// Asks the owner to signal an event.
    Signal {
        /// Number of the request.
        request: u64,
        /// The owner's number of the event.
        id: u32,
    },
    /// The reply to a `Signal` or a `WriteAndSignal`, with the signal's number, or to a `Write`,
    /// with no meaning.
    Done {
        /// Number of the request.
        request: u64,
        /// The signal's number.
        value: u64,
    },
    /// The owner refuses a request.
    Refused {
        /// Number of the request.
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
    /// A row of successive signals of an event has failed.
    Failed {
        /// The owner's number of the event.
        id: u32,
        /// Number of the first signal.
        first: u64,
        /// Number of signals in the row.
        count: u32,
        /// The owner's error.
        why: &'a str,
    },
    /// The process that created an event has ended or has abandoned it. No further signals come.
    Abandoned {
        /// The owner's number of the event.
        id: u32,
    },
    /// The address of the sender's data endpoint.
    Address {
        /// Number of this endpoint in the link. It starts at 1, and increases each time that
        /// endpoints have failed and both sides have made new ones. Only endpoints of the same
        /// generation connect.
        generation: u32,
        /// The address in UCX's format.
        address: &'a [u8],
    },
    /// Asks to read bytes of memory.
    Read {
        /// Number of the request.
        request: u64,
        /// The owner's number of the memory.
        id: u32,
        /// The first byte.
        offset: u64,
        /// Number of bytes.
        len: u32,
    },
    /// The reply to a `Read`.
    Data {
        /// Number of the request.
        request: u64,
        /// The memory's bytes.
        bytes: &'a [u8],
    },
    /// Asks to write bytes of memory.
    Write {
        /// Number of the request.
        request: u64,
        /// The owner's number of the memory.
        id: u32,
        /// The first byte.
        offset: u64,
        /// The new bytes.
        bytes: &'a [u8],
    },
    /// Asks to write bytes of memory and then to signal an event.
    WriteAndSignal {
        /// Number of the request.
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
        /// Number of the request.
        request: u64,
        /// The owner's number of the memory.
        id: u32,
        /// `true` copies into the memory, `false` out of it.
        into_memory: bool,
        /// Offset of the first byte in the memory.
        offset: u64,
        /// Offset of the first byte in the staging buffer.
        at: u32,
        /// The number of bytes.
        len: u32,
    },
    /// Asks for a named object of the owner's holder.
    OpenName {
        /// Number of the request.
        request: u64,
        /// The name.
        name: &'a str,
    },
    /// The reply to an `OpenName`.
    Name {
        /// Number of the request.
        request: u64,
        /// The version of the named object.
        version: u64,
        /// The parts of the object, for [`read_parts`].
        parts: &'a [u8],
    },
    /// The sender ends the link.
    Bye {
        /// The reason.
        why: &'a str,
    },
}
