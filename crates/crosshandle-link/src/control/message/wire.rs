//! Encoding and decoding of messages.

use super::lists::{read_failures, read_parts};
use super::{MAX_BLOB, MAX_DATA, MAX_FRAME, MAX_SIGNAL, MAX_TEXT, Message, PREFIX};
use crosshandle::handle::HANDLE_SIZE;

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
    pub(super) const STAGE: u8 = 18;
    pub(super) const OPEN_NAME: u8 = 19;
    pub(super) const NAME: u8 = 20;
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
                staging,
                ..
            } => {
                to.push(kind::MEMORY);
                put(&mut to, &[request, len, address]);
                to.extend_from_slice(&id.to_le_bytes());
                to.extend_from_slice(&staging.to_le_bytes());
            }
            Self::Event {
                request,
                id,
                completed,
                ..
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
            Self::Failed {
                id, first, count, ..
            } => {
                to.push(kind::FAILED);
                put(&mut to, &[first]);
                to.extend_from_slice(&id.to_le_bytes());
                to.extend_from_slice(&count.to_le_bytes());
            }
            Self::Abandoned { id } => {
                to.push(kind::ABANDONED);
                to.extend_from_slice(&id.to_le_bytes());
            }
            Self::Address { generation, .. } => {
                to.push(kind::ADDRESS);
                to.extend_from_slice(&generation.to_le_bytes());
            }
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
            Self::Stage {
                request,
                id,
                into_memory,
                offset,
                at,
                len,
            } => {
                to.push(kind::STAGE);
                put(&mut to, &[request, offset]);
                for number in [id, at, len] {
                    to.extend_from_slice(&number.to_le_bytes());
                }
                to.push(into_memory.into());
            }
            Self::OpenName { request, .. } => {
                to.push(kind::OPEN_NAME);
                put(&mut to, &[request]);
            }
            Self::Name {
                request, version, ..
            } => {
                to.push(kind::NAME);
                put(&mut to, &[request, version]);
            }
            Self::Bye { .. } => to.push(kind::BYE),
        }
        to.extend_from_slice(self.blob());
        debug_assert!(to.len() <= PREFIX + MAX_FRAME);
        let len = (to.len() - PREFIX) as u32;
        to[..PREFIX].copy_from_slice(&len.to_le_bytes());
        to
    }

    /// Returns the field at the end of the frame, which has no length of its own.
    pub(super) fn blob(&self) -> &'a [u8] {
        match self {
            Self::Open { handle, .. } => handle,
            Self::Memory { key, .. } => key,
            Self::Address { address, .. } => address,
            Self::Event { failures, .. } => failures,
            Self::Name { parts, .. } => parts,
            Self::Data { bytes, .. }
            | Self::Write { bytes, .. }
            | Self::WriteAndSignal { bytes, .. } => bytes,
            Self::Refused { why, .. }
            | Self::Failed { why, .. }
            | Self::OpenName { name: why, .. }
            | Self::Bye { why } => &why.as_bytes()[..why.floor_char_boundary(MAX_TEXT)],
            _ => &[],
        }
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

    /// Decodes a frame, without its length.
    ///
    /// # Errors
    /// Returns the reason why the bytes are invalid.
    pub fn decode(frame: &'a [u8]) -> Result<Self, &'static str> {
        let mut fields = Fields(frame);
        let message = match fields.u8()? {
            kind::ACK => Self::Ack {
                received: fields.u64()?,
            },
            kind::OPEN => Self::Open {
                request: fields.u64()?,
                read_only: fields.flag()?,
                handle: match fields.blob(HANDLE_SIZE)? {
                    handle if handle.len() == HANDLE_SIZE => handle,
                    _ => return Err("a handle has the wrong size"),
                },
            },
            kind::MEMORY => {
                let (request, len, address) = (fields.u64()?, fields.u64()?, fields.u64()?);
                Self::Memory {
                    request,
                    id: fields.u32()?,
                    len,
                    address,
                    staging: fields.u32()?,
                    key: fields.blob(MAX_BLOB)?,
                }
            }
            kind::EVENT => {
                let (request, completed) = (fields.u64()?, fields.signal()?);
                let id = fields.u32()?;
                let failures = fields.blob(MAX_BLOB)?;
                read_failures(failures, completed)?;
                Self::Event {
                    request,
                    id,
                    completed,
                    failures,
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
                let number = fields.signal()?;
                Self::Reached {
                    id: fields.u32()?,
                    number,
                }
            }
            kind::FAILED => {
                let first = fields.signal()?;
                Self::Failed {
                    id: fields.u32()?,
                    first,
                    count: fields.u32()?,
                    why: fields.text()?,
                }
            }
            kind::ABANDONED => Self::Abandoned { id: fields.u32()? },
            kind::ADDRESS => Self::Address {
                generation: fields.u32()?,
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
            kind::STAGE => {
                let (request, offset) = (fields.u64()?, fields.u64()?);
                let (id, at, len) = (fields.u32()?, fields.u32()?, fields.u32()?);
                Self::Stage {
                    request,
                    id,
                    into_memory: fields.flag()?,
                    offset,
                    at,
                    len,
                }
            }
            kind::OPEN_NAME => Self::OpenName {
                request: fields.u64()?,
                name: fields.text()?,
            },
            kind::NAME => {
                let (request, version) = (fields.u64()?, fields.u64()?);
                let parts = fields.blob(MAX_BLOB)?;
                read_parts(parts)?;
                Self::Name {
                    request,
                    version,
                    parts,
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

/// The bytes of a frame that were not read yet.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        let (first, rest) = self
            .0
            .split_first_chunk()
            .ok_or("a message has fewer bytes than its fields")?;
        self.0 = rest;
        Ok(*first)
    }

    pub(super) fn u8(&mut self) -> Result<u8, &'static str> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn u32(&mut self) -> Result<u32, &'static str> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, &'static str> {
        self.array().map(u64::from_le_bytes)
    }

    fn signal(&mut self) -> Result<u64, &'static str> {
        match self.u64()? {
            number if number <= MAX_SIGNAL => Ok(number),
            _ => Err("the number of a signal is larger than any that a link reports"),
        }
    }

    fn flag(&mut self) -> Result<bool, &'static str> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err("a flag is neither 0 nor 1"),
        }
    }

    /// Takes the next `len` bytes.
    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8], &'static str> {
        let (first, rest) = self
            .0
            .split_at_checked(len)
            .ok_or("a message has fewer bytes than its fields")?;
        self.0 = rest;
        Ok(first)
    }

    /// Takes a text with its length in front.
    pub(super) fn short_text(&mut self, max: usize) -> Result<&'a str, &'static str> {
        let len = usize::from(self.array().map(u16::from_le_bytes)?);
        if len > max {
            return Err("a text is longer than it may be");
        }
        std::str::from_utf8(self.take(len)?).map_err(|_| "a text is not UTF-8")
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
