//! The messages of a link: pure bytes, checked as they are read. Numbers are little-endian.
//!
//! A frame is the length of what follows (4 bytes), the kind of message (1 byte) and its fields. All but
//! [`Message::Ack`] are *sequenced*: both sides count them, so that a new connection goes on where the
//! last one broke off.

use crosshandle::handle::HANDLE_SIZE;

/// Bytes of memory that one message carries at most.
pub const MAX_DATA: usize = 256 << 10;
/// Bytes of the longest text.
pub const MAX_TEXT: usize = 1024;
/// Bytes of the longest address of a data endpoint, and of the longest key of memory.
pub const MAX_BLOB: usize = 64 << 10;
/// Bytes of the longest frame, without its length.
pub const MAX_FRAME: usize = MAX_DATA + 64;
/// Bytes in front of each frame.
pub const PREFIX: usize = 4;
/// The first bytes of a greeting: the protocol and its version.
const MAGIC: [u8; 8] = *b"xhlink\0\x01";
/// Bytes of a greeting.
pub const HELLO_SIZE: usize = 64;

/// The number of a session, by which a broken connection is replaced; all zero asks for a new one.
pub type SessionId = [u8; 16];

/// What each side says first, when TLS has shown who it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// The session to go on with, or zeros.
    pub session: SessionId,
    /// How many sequenced messages of the session have come in.
    pub received: u64,
    /// The identity of the sender's running kernel.
    pub host: u64,
    /// After how many milliseconds of silence the sender gives the link up.
    pub keep_alive_ms: u32,
    /// How memory is to be moved: 0 over TLS, 1 by UCX.
    pub data: u8,
    /// 0, or the reason why there is no link.
    pub refusal: u8,
}

/// Reasons for a refusal in a greeting.
pub mod refusal {
    /// The session is unknown or has ended.
    pub const NO_SESSION: u8 = 1;
    /// The two sides move memory in different ways.
    pub const OTHER_DATA: u8 = 2;
    /// No further links are accepted.
    pub const BUSY: u8 = 3;
}

impl Hello {
    /// Returns the greeting's bytes.
    pub fn encode(&self) -> [u8; HELLO_SIZE] {
        let mut bytes = [0; HELLO_SIZE];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..24].copy_from_slice(&self.session);
        bytes[24..32].copy_from_slice(&self.received.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.host.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.keep_alive_ms.to_le_bytes());
        bytes[44] = self.data;
        bytes[45] = self.refusal;
        bytes
    }

    /// Reads a greeting.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub fn decode(bytes: &[u8; HELLO_SIZE]) -> Result<Self, &'static str> {
        if bytes[..8] != MAGIC {
            return Err("its greeting is not of this protocol and version");
        }
        if bytes[46..].iter().any(|byte| *byte != 0) {
            return Err("its greeting has fields of another version");
        }
        let mut fields = Fields(&bytes[8..]);
        let hello = Self {
            session: fields.array()?,
            received: fields.u64()?,
            host: fields.u64()?,
            keep_alive_ms: fields.u32()?,
            data: fields.u8()?,
            refusal: fields.u8()?,
        };
        match hello.data {
            0 | 1 => Ok(hello),
            _ => Err("its greeting names no known way to move memory"),
        }
    }
}

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
        /// The memory's address at the owner, for UCX.
        address: u64,
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
    /// A signal of an event has failed.
    Failed {
        /// The owner's number of the event.
        id: u32,
        /// The signal's number.
        number: u64,
        /// The owner's error.
        why: &'a str,
    },
    /// The process that created an event has ended: further signals never come.
    Abandoned {
        /// The owner's number of the event.
        id: u32,
    },
    /// The address of the sender's data endpoint.
    Address {
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
    /// The sender ends the link.
    Bye {
        /// The reason.
        why: &'a str,
    },
}

mod kind {
    pub(super) const ACK: u8 = 1;
    pub(super) const OPEN: u8 = 2;
    pub(super) const MEMORY: u8 = 3;
    pub(super) const EVENT: u8 = 4;
    pub(super) const CLOSE: u8 = 5;
    pub(super) const SIGNAL: u8 = 6;
    pub(super) const DONE: u8 = 7;
    pub(super) const REFUSED: u8 = 8;
    pub(super) const REACHED: u8 = 9;
    pub(super) const FAILED: u8 = 10;
    pub(super) const ABANDONED: u8 = 11;
    pub(super) const ADDRESS: u8 = 12;
    pub(super) const READ: u8 = 13;
    pub(super) const DATA: u8 = 14;
    pub(super) const WRITE: u8 = 15;
    pub(super) const BYE: u8 = 16;
    pub(super) const WRITE_AND_SIGNAL: u8 = 17;
}

impl<'a> Message<'a> {
    /// Returns whether both sides count the message.
    pub fn is_sequenced(&self) -> bool {
        !matches!(self, Self::Ack { .. })
    }

    /// Returns whether the message answers a question.
    pub fn is_asked_for(&self) -> bool {
        matches!(
            self,
            Self::Memory { .. }
                | Self::Event { .. }
                | Self::Done { .. }
                | Self::Refused { .. }
                | Self::Data { .. }
        )
    }

    /// Returns the message as a frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Vec::with_capacity(64 + self.blob().len());
        to.extend_from_slice(&[0; PREFIX]);
        match *self {
            Self::Ack { received } => {
                to.push(kind::ACK);
                put(&mut to, &[received]);
            }
            Self::Open {
                request, read_only, ..
            } => {
                to.push(kind::OPEN);
                put(&mut to, &[request]);
                to.push(read_only.into());
            }
            Self::Memory {
                request,
                id,
                len,
                address,
                ..
            } => {
                to.push(kind::MEMORY);
                put(&mut to, &[request, len, address]);
                to.extend_from_slice(&id.to_le_bytes());
            }
            Self::Event {
                request,
                id,
                completed,
            } => {
                to.push(kind::EVENT);
                put(&mut to, &[request, completed]);
                to.extend_from_slice(&id.to_le_bytes());
            }
            Self::Close { id } => {
                to.push(kind::CLOSE);
                to.extend_from_slice(&id.to_le_bytes());
            }
            Self::Signal { request, id } => {
                to.push(kind::SIGNAL);
                put(&mut to, &[request]);
                to.extend_from_slice(&id.to_le_bytes());
            }
            Self::Done { request, value } => {
                to.push(kind::DONE);
                put(&mut to, &[request, value]);
            }
            Self::Refused { request, .. } => {
                to.push(kind::REFUSED);
                put(&mut to, &[request]);
            }
            Self::Reached { id, number } => {
                to.push(kind::REACHED);
                put(&mut to, &[number]);
                to.extend_from_slice(&id.to_le_bytes());
            }
            Self::Failed { id, number, .. } => {
                to.push(kind::FAILED);
                put(&mut to, &[number]);
                to.extend_from_slice(&id.to_le_bytes());
            }
            Self::Abandoned { id } => {
                to.push(kind::ABANDONED);
                to.extend_from_slice(&id.to_le_bytes());
            }
            Self::Address { .. } => to.push(kind::ADDRESS),
            Self::Read {
                request,
                id,
                offset,
                len,
            } => {
                to.push(kind::READ);
                put(&mut to, &[request, offset]);
                to.extend_from_slice(&id.to_le_bytes());
                to.extend_from_slice(&len.to_le_bytes());
            }
            Self::Data { request, .. } => {
                to.push(kind::DATA);
                put(&mut to, &[request]);
            }
            Self::Write {
                request,
                id,
                offset,
                ..
            } => {
                to.push(kind::WRITE);
                put(&mut to, &[request, offset]);
                to.extend_from_slice(&id.to_le_bytes());
            }
            Self::WriteAndSignal {
                request,
                id,
                event,
                offset,
                ..
            } => {
                to.push(kind::WRITE_AND_SIGNAL);
                put(&mut to, &[request, offset]);
                to.extend_from_slice(&id.to_le_bytes());
                to.extend_from_slice(&event.to_le_bytes());
            }
            Self::Bye { .. } => to.push(kind::BYE),
        }
        to.extend_from_slice(self.blob());
        debug_assert!(to.len() <= PREFIX + MAX_FRAME);
        let len = (to.len() - PREFIX) as u32;
        to[..PREFIX].copy_from_slice(&len.to_le_bytes());
        to
    }

    /// What is at the end of the frame, as long as it is.
    fn blob(&self) -> &'a [u8] {
        match self {
            Self::Open { handle, .. } => handle,
            Self::Memory { key, .. } => key,
            Self::Address { address } => address,
            Self::Data { bytes, .. }
            | Self::Write { bytes, .. }
            | Self::WriteAndSignal { bytes, .. } => bytes,
            Self::Refused { why, .. } | Self::Failed { why, .. } | Self::Bye { why } => {
                &why.as_bytes()[..why.floor_char_boundary(MAX_TEXT)]
            }
            _ => &[],
        }
    }

    /// Returns how many bytes the first frame of `bytes` has, its length included; `None` if more must
    /// come first to tell.
    ///
    /// # Errors
    /// The frame is longer than any is.
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

    /// Reads a frame, without its length.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub fn decode(frame: &'a [u8]) -> Result<Self, &'static str> {
        let mut fields = Fields(frame);
        let message = match fields.u8()? {
            kind::ACK => Self::Ack {
                received: fields.u64()?,
            },
            kind::OPEN => Self::Open {
                request: fields.u64()?,
                read_only: match fields.u8()? {
                    0 => false,
                    1 => true,
                    _ => return Err("an access is neither to read nor to write"),
                },
                handle: match fields.blob(HANDLE_SIZE)? {
                    handle if handle.len() == HANDLE_SIZE => handle,
                    _ => return Err("a handle has another size"),
                },
            },
            kind::MEMORY => {
                let (request, len, address) = (fields.u64()?, fields.u64()?, fields.u64()?);
                Self::Memory {
                    request,
                    id: fields.u32()?,
                    len,
                    address,
                    key: fields.blob(MAX_BLOB)?,
                }
            }
            kind::EVENT => {
                let (request, completed) = (fields.u64()?, fields.u64()?);
                Self::Event {
                    request,
                    id: fields.u32()?,
                    completed,
                }
            }
            kind::CLOSE => Self::Close { id: fields.u32()? },
            kind::SIGNAL => Self::Signal {
                request: fields.u64()?,
                id: fields.u32()?,
            },
            kind::DONE => Self::Done {
                request: fields.u64()?,
                value: fields.u64()?,
            },
            kind::REFUSED => Self::Refused {
                request: fields.u64()?,
                why: fields.text()?,
            },
            kind::REACHED => {
                let number = fields.u64()?;
                Self::Reached {
                    id: fields.u32()?,
                    number,
                }
            }
            kind::FAILED => {
                let number = fields.u64()?;
                Self::Failed {
                    id: fields.u32()?,
                    number,
                    why: fields.text()?,
                }
            }
            kind::ABANDONED => Self::Abandoned { id: fields.u32()? },
            kind::ADDRESS => Self::Address {
                address: fields.blob(MAX_BLOB)?,
            },
            kind::READ => {
                let (request, offset) = (fields.u64()?, fields.u64()?);
                let (id, len) = (fields.u32()?, fields.u32()?);
                if len as usize > MAX_DATA {
                    return Err("more bytes are asked for than one message carries");
                }
                Self::Read {
                    request,
                    id,
                    offset,
                    len,
                }
            }
            kind::DATA => Self::Data {
                request: fields.u64()?,
                bytes: fields.blob(MAX_DATA)?,
            },
            kind::WRITE => {
                let (request, offset) = (fields.u64()?, fields.u64()?);
                Self::Write {
                    request,
                    id: fields.u32()?,
                    offset,
                    bytes: fields.blob(MAX_DATA)?,
                }
            }
            kind::WRITE_AND_SIGNAL => {
                let (request, offset) = (fields.u64()?, fields.u64()?);
                Self::WriteAndSignal {
                    request,
                    id: fields.u32()?,
                    event: fields.u32()?,
                    offset,
                    bytes: fields.blob(MAX_DATA)?,
                }
            }
            kind::BYE => Self::Bye {
                why: fields.text()?,
            },
            _ => return Err("a message is of no known kind"),
        };
        match fields.0 {
            [] => Ok(message),
            _ => Err("a message has more bytes than its fields"),
        }
    }
}

fn put(to: &mut Vec<u8>, numbers: &[u64]) {
    for number in numbers {
        to.extend_from_slice(&number.to_le_bytes());
    }
}

/// What is left of a frame.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        let (first, rest) = self
            .0
            .split_first_chunk()
            .ok_or("a message has fewer bytes than its fields")?;
        self.0 = rest;
        Ok(*first)
    }

    fn u8(&mut self) -> Result<u8, &'static str> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Result<u32, &'static str> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, &'static str> {
        self.array().map(u64::from_le_bytes)
    }

    fn blob(&mut self, max: usize) -> Result<&'a [u8], &'static str> {
        match self.0.len() <= max {
            true => Ok(std::mem::take(&mut self.0)),
            false => Err("a message has more bytes than its fields"),
        }
    }

    fn text(&mut self) -> Result<&'a str, &'static str> {
        std::str::from_utf8(self.blob(MAX_TEXT)?).map_err(|_| "a text is not UTF-8")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Message<'static>> {
        let handle = &[7; HANDLE_SIZE];
        vec![
            Message::Ack { received: 3 },
            Message::Open {
                request: 1,
                read_only: true,
                handle,
            },
            Message::Memory {
                request: 1,
                id: 2,
                len: 3,
                address: 4,
                key: b"key",
            },
            Message::Event {
                request: 1,
                id: 2,
                completed: 3,
            },
            Message::Close { id: 9 },
            Message::Signal { request: 1, id: 2 },
            Message::Done {
                request: 1,
                value: 2,
            },
            Message::Refused {
                request: 1,
                why: "no",
            },
            Message::Reached { id: 1, number: 2 },
            Message::Failed {
                id: 1,
                number: 2,
                why: "no",
            },
            Message::Abandoned { id: 1 },
            Message::Address { address: b"there" },
            Message::Read {
                request: 1,
                id: 2,
                offset: 3,
                len: 4,
            },
            Message::Data {
                request: 1,
                bytes: b"bytes",
            },
            Message::Write {
                request: 1,
                id: 2,
                offset: 3,
                bytes: b"bytes",
            },
            Message::WriteAndSignal {
                request: 1,
                id: 2,
                event: 3,
                offset: 4,
                bytes: b"bytes",
            },
            Message::Bye { why: "enough" },
        ]
    }

    #[test]
    fn every_message_is_read_as_it_was_written() {
        for message in all() {
            let frame = message.encode();
            assert_eq!(Message::frame_len(&frame), Ok(Some(frame.len())));
            assert_eq!(Message::decode(&frame[PREFIX..]), Ok(message));
        }
    }

    #[test]
    fn a_message_that_is_cut_off_is_refused_or_has_a_shorter_blob() {
        for message in all() {
            let frame = message.encode();
            for end in PREFIX..frame.len() {
                let cut = Message::decode(&frame[PREFIX..end]);
                assert_ne!(cut.as_ref(), Ok(&message));
                let blob = message.blob().len();
                let is_in_blob =
                    end >= frame.len() - blob && !matches!(message, Message::Open { .. });
                assert_eq!(cut.is_ok(), is_in_blob, "{message:?} cut at {end}: {cut:?}");
            }
        }
    }

    #[test]
    fn lengths_that_no_message_has_are_refused_before_the_message_is_there() {
        assert_eq!(Message::frame_len(&[1, 0, 0]), Ok(None));
        for len in [0, MAX_FRAME as u32 + 1, u32::MAX] {
            assert!(Message::frame_len(&len.to_le_bytes()).is_err());
        }
    }

    #[test]
    fn long_texts_are_cut_at_a_character() {
        let why = "é".repeat(MAX_TEXT);
        let frame = Message::Bye { why: &why }.encode();
        let Ok(Message::Bye { why }) = Message::decode(&frame[PREFIX..]) else {
            panic!("not as it was written");
        };
        assert_eq!(why.len(), MAX_TEXT);
    }

    #[test]
    fn greetings_of_other_protocols_are_refused() {
        let hello = Hello {
            session: [3; 16],
            received: 4,
            host: 5,
            keep_alive_ms: 6,
            data: 1,
            refusal: 0,
        };
        let bytes = hello.encode();
        assert_eq!(Hello::decode(&bytes), Ok(hello));
        for place in (0..8).chain([44]).chain(46..HELLO_SIZE) {
            let mut other = bytes;
            other[place] ^= 0x42;
            assert!(Hello::decode(&other).is_err(), "byte {place}");
        }
    }
}
