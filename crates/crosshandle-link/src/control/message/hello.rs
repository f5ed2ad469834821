//! Greetings, the first messages on a connection.

use crate::wire::Fields;
use std::fmt;

/// The first bytes of a greeting, which identify the protocol. The next byte is the version.
const MAGIC: [u8; 7] = *b"xhlink\0";
/// Version of the protocol. It changes with each change of a message's format.
pub const VERSION: u8 = 4;
/// Size of a greeting in bytes.
pub const HELLO_SIZE: usize = 64;

/// The identifier of a session. A connection that replaces a broken one sends it to resume the
/// session. Zeros request a new session.
pub type SessionId = [u8; 16];

/// A greeting: the first message that each side sends after the TLS handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// The session to resume, or zeros.
    pub session: SessionId,
    /// Number of sequenced messages in this session that the sender has received.
    pub received: u64,
    /// The identity of the sender's host. It changes when the host is restarted.
    pub host: u64,
    /// The sender's keep-alive in milliseconds. If no message arrives for this time, the sender
    /// ends the link.
    pub keep_alive_ms: u32,
    /// The transport for memory contents: 0 is TLS, and 1 is UCX.
    pub data: u8,
    /// The reason why the sender rejects the connection, from [`refusal`], or 0.
    pub refusal: u8,
    /// Number of the dialling side's attempt to reconnect. It orders the attempts, because their
    /// greetings may arrive in another order.
    pub attempt: u32,
}

/// The reason why received bytes are not a greeting that this version accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoHello {
    /// The greeting has this other version of the protocol.
    Version(u8),
    /// The greeting is invalid for this reason.
    Broken(&'static str),
}

impl fmt::Display for NoHello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(theirs) => write!(
                f,
                "it speaks version {theirs} of the protocol of links, and this side version {VERSION}: \
                 install the same release of crosshandle on both hosts"
            ),
            Self::Broken(why) => f.write_str(why),
        }
    }
}

/// Reasons why the sender of a greeting rejects the connection.
pub mod refusal {
    /// The session that the peer wants to resume is unknown or has ended.
    pub const NO_SESSION: u8 = 1;
    /// The two sides have chosen different transports for memory contents.
    pub const OTHER_DATA: u8 = 2;
    /// The listener has too many links that wait to be accepted.
    pub const BUSY: u8 = 3;
    /// The two sides use different versions of the protocol. The version is checked first.
    pub const VERSION: u8 = 4;
}

impl Hello {
    /// Encodes the greeting.
    pub fn encode(&self) -> [u8; HELLO_SIZE] {
        let mut bytes = [0; HELLO_SIZE];
        bytes[..7].copy_from_slice(&MAGIC);
        bytes[7] = VERSION;
        bytes[8..24].copy_from_slice(&self.session);
        bytes[24..32].copy_from_slice(&self.received.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.host.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.keep_alive_ms.to_le_bytes());
        bytes[44] = self.data;
        bytes[45] = self.refusal;
        bytes[46..50].copy_from_slice(&self.attempt.to_le_bytes());
        bytes
    }

    /// Decodes a greeting.
    ///
    /// # Errors
    /// Returns the reason why the bytes are not a valid greeting.
    pub fn decode(bytes: &[u8; HELLO_SIZE]) -> Result<Self, NoHello> {
        if bytes[..7] != MAGIC {
            return Err(NoHello::Broken("its greeting is not of this protocol"));
        }
        if bytes[7] != VERSION {
            return Err(NoHello::Version(bytes[7]));
        }
        Self::decode_fields(bytes).map_err(NoHello::Broken)
    }

    fn decode_fields(bytes: &[u8; HELLO_SIZE]) -> Result<Self, &'static str> {
        if bytes[50..].iter().any(|byte| *byte != 0) {
            return Err("its greeting has fields of another version");
        }
        let mut fields = Fields(&bytes[8..]);
        let hello = Self {
            session: fields.next()?,
            received: fields.next()?,
            host: fields.next()?,
            keep_alive_ms: fields.next()?,
            data: fields.next()?,
            refusal: fields.next()?,
            attempt: fields.next()?,
        };
        match hello.data {
            0 | 1 => Ok(hello),
            _ => Err("its greeting names no known way to move memory"),
        }
    }
}
