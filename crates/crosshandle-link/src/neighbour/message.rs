//! Messages between a neighbour and the process that shares its link. Each request and each reply
//! is one datagram. Replies come in the order of the requests.

use crosshandle::handle::HANDLE_SIZE;

/// The bytes of a handle.
pub type HandleBytes = [u8; HANDLE_SIZE];

/// Maximum size of a request or a reply, in bytes.
pub const MAX_LEN: usize = 2048;
/// Maximum length of a refusal's text, in bytes.
const MAX_TEXT: usize = MAX_LEN - 2;

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Question {
    /// Opens an object of the remote host.
    Open {
        /// Memory is opened for reading only.
        read_only: bool,
        /// The handle of the object.
        handle: HandleBytes,
    },
    /// Copies between memory of the remote host and memory of this host.
    Copy {
        /// The direction: `true` copies to the remote host.
        there: bool,
        /// The number of the remote host's memory.
        id: u32,
        /// First byte in the remote host's memory.
        offset: u64,
        /// Handle of this host's memory.
        handle: HandleBytes,
        /// First byte in this host's memory.
        local_offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// Signals an event of the remote host.
    Signal {
        /// The number of the event.
        id: u32,
    },
    /// Closes an object.
    Close {
        /// The number of the object.
        id: u32,
    },
}

/// A reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Memory was opened.
    Memory {
        /// The number of the memory.
        id: u32,
        /// Its length in bytes.
        len: u64,
        /// The remote host copies the bytes on their way.
        is_staged: bool,
    },
    /// An event was opened.
    Event {
        /// The number of the event.
        id: u32,
        /// The handle of its mirror.
        mirror: HandleBytes,
    },
    /// The request is done. Contains the number of the signal, if it was one.
    Done(u64),
    /// The request is refused.
    Refused {
        /// The link has ended.
        has_ended: bool,
        /// The reason.
        why: String,
    },
}

/// Reads fields from the front of the bytes.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }

    fn flag(&mut self) -> Option<bool> {
        match self.take()? {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        }
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    /// Returns `value` if no bytes are left.
    fn end<T>(self, value: T) -> Option<T> {
        self.0.is_empty().then_some(value)
    }
}

impl Question {
    /// Returns the request as bytes.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Open { read_only, handle } => [&[1, u8::from(*read_only)], &handle[..]].concat(),
            Self::Copy {
                there,
                id,
                offset,
                handle,
                local_offset,
                len,
            } => [
                &[2, u8::from(*there)][..],
                &id.to_le_bytes(),
                &offset.to_le_bytes(),
                handle,
                &local_offset.to_le_bytes(),
                &len.to_le_bytes(),
            ]
            .concat(),
            Self::Signal { id } => [&[3], &id.to_le_bytes()[..]].concat(),
            Self::Close { id } => [&[4], &id.to_le_bytes()[..]].concat(),
        }
    }

    /// Decodes a request, or returns `None` if the bytes are not a valid one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let question = match fields.take()? {
            [1] => Self::Open {
                read_only: fields.flag()?,
                handle: fields.take()?,
            },
            [2] => Self::Copy {
                there: fields.flag()?,
                id: fields.u32()?,
                offset: fields.u64()?,
                handle: fields.take()?,
                local_offset: fields.u64()?,
                len: fields.u64()?,
            },
            [3] => Self::Signal { id: fields.u32()? },
            [4] => Self::Close { id: fields.u32()? },
            _ => return None,
        };
        fields.end(question)
    }
}

impl Answer {
    /// Returns the reply as bytes. The text of a refusal is cut off if it is too long.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Memory { id, len, is_staged } => [
                &[1, u8::from(*is_staged)][..],
                &id.to_le_bytes(),
                &len.to_le_bytes(),
            ]
            .concat(),
            Self::Event { id, mirror } => [&[2], &id.to_le_bytes()[..], mirror].concat(),
            Self::Done(value) => [&[3], &value.to_le_bytes()[..]].concat(),
            Self::Refused { has_ended, why } => {
                let text = &why[..why.floor_char_boundary(MAX_TEXT)];
                [&[4, u8::from(*has_ended)], text.as_bytes()].concat()
            }
        }
    }

    /// Decodes a reply, or returns `None` if the bytes are not a valid one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let answer = match fields.take()? {
            [1] => Self::Memory {
                is_staged: fields.flag()?,
                id: fields.u32()?,
                len: fields.u64()?,
            },
            [2] => Self::Event {
                id: fields.u32()?,
                mirror: fields.take()?,
            },
            [3] => Self::Done(fields.u64()?),
            [4] => {
                let has_ended = fields.flag()?;
                let why = std::str::from_utf8(fields.0).ok()?.to_owned();
                fields.0 = &[];
                Self::Refused { has_ended, why }
            }
            _ => return None,
        };
        fields.end(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use data_encoding::HEXLOWER;

    fn questions() -> Vec<Question> {
        let handle = std::array::from_fn(|place| place as u8);
        vec![
            Question::Open {
                read_only: true,
                handle,
            },
            Question::Copy {
                there: true,
                id: 7,
                offset: 1 << 40,
                handle,
                local_offset: 3,
                len: u64::MAX,
            },
            Question::Signal { id: u32::MAX },
            Question::Close { id: 0 },
        ]
    }

    fn answers() -> Vec<Answer> {
        vec![
            Answer::Memory {
                id: 1,
                len: 2,
                is_staged: true,
            },
            Answer::Event {
                id: 3,
                mirror: std::array::from_fn(|place| place as u8),
            },
            Answer::Done(9),
            Answer::Refused {
                has_ended: true,
                why: "no".into(),
            },
        ]
    }

    /// `datagrams.txt` has the bytes of these messages.
    #[test]
    fn every_message_has_the_bytes_of_this_version() {
        let mut lines = include_str!("datagrams.txt").lines();
        for question in questions() {
            let bytes = question.encode();
            assert_eq!(Some(&*HEXLOWER.encode(&bytes)), lines.next());
            assert_eq!(Question::decode(&bytes), Some(question));
            // One byte less or more is not a valid request.
            assert_eq!(Question::decode(&bytes[..bytes.len() - 1]), None);
            assert_eq!(Question::decode(&[&bytes[..], &[0]].concat()), None);
        }
        for answer in answers() {
            let bytes = answer.encode();
            assert_eq!(Some(&*HEXLOWER.encode(&bytes)), lines.next());
            assert_eq!(Answer::decode(&bytes), Some(answer));
        }
        assert_eq!(lines.next(), None);
    }

    #[test]
    fn long_refusals_are_cut_at_a_character() {
        let whole = "ö".repeat(MAX_LEN);
        let bytes = Answer::Refused {
            has_ended: true,
            why: whole.clone(),
        }
        .encode();
        assert_eq!(bytes.len(), MAX_LEN);
        let Some(Answer::Refused { why, .. }) = Answer::decode(&bytes) else {
            panic!("not as it was written");
        };
        assert!(whole.starts_with(&why));
    }

    #[test]
    fn senseless_bytes_are_no_message() {
        for senseless in [&[][..], &[0], &[5, 0], &[1, 2], &[4, 2, 65]] {
            assert_eq!(Question::decode(senseless), None);
            assert_eq!(Answer::decode(senseless), None);
        }
    }
}
