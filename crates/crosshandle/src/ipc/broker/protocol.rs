//! The messages between an importer and a broker: pure values, checked before use.
//!
//! Both sides may be hostile, so a message is taken only if its size, magic number, version and
//! every field are right.

use crate::handle::Secret;
use crate::types::Access;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const MAGIC: [u8; 4] = *b"XHBR";
/// The version of the protocol. It changes whenever a message or the shared layout behind it does.
pub(crate) const VERSION: u16 = 4;
/// Bytes in a request.
pub(crate) const REQUEST_SIZE: usize = size_of::<RawRequest>();
/// Bytes in a reply.
pub(crate) const REPLY_SIZE: usize = size_of::<RawReply>();

/// Bytes of the longest blob.
const BLOB_BYTES: usize = 128;

/// A backend blob, or note: bytes that an exporter's backend sends to the importer's beside the
/// descriptor, and that only these two understand. Empty for most backends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BackendBlob {
    len: usize,
    /// Zeros after the first `len`.
    bytes: [u8; BLOB_BYTES],
}

impl BackendBlob {
    /// A blob without bytes.
    pub(crate) const NONE: Self = Self {
        len: 0,
        bytes: [0; BLOB_BYTES],
    };

    /// Makes a blob of the first [`BLOB_BYTES`] bytes of `text`.
    pub(crate) fn new(text: &[u8]) -> Self {
        let mut note = Self::NONE;
        note.len = text.len().min(BLOB_BYTES);
        note.bytes[..note.len].copy_from_slice(&text[..note.len]);
        note
    }

    /// Returns the blob's bytes. A peer chose them, unless this process made the blob.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn decode(len: u32, bytes: [u8; BLOB_BYTES]) -> Result<Self, BadMessage> {
        let len = len as usize;
        let rest = bytes.get(len..);
        if rest.is_none_or(|rest| rest.iter().any(|byte| *byte != 0)) {
            return Err(BadMessage::Malformed("note"));
        }
        Ok(Self { len, bytes })
    }
}

/// A question of an importer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Request {
    /// Asks to be let into a context. Comes with the importer's ledger; answered with the arena.
    Attach(Secret),
    /// Asks for the object behind an export record. Answered with its descriptor.
    Fetch {
        record: u32,
        generation: u32,
        access: Access,
    },
}

/// An answer of the broker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reply {
    /// The importer is attached and signals as this owner. The arena's descriptor comes along.
    Attached { owner: u16 },
    /// The number and the size of the object's segment, and the backend's blob. The descriptor
    /// comes along.
    Fetched {
        segment: u32,
        len: u64,
        note: BackendBlob,
    },
    /// The broker refuses.
    Refused(Refusal),
}

/// The reason why the broker refuses a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub(crate) enum Refusal {
    /// The request makes no sense here.
    BadRequest = 1,
    /// The broker speaks another version.
    Version = 2,
    /// There is no context with this secret (any more).
    UnknownContext = 3,
    /// The importer's user is not admitted.
    NotAdmitted = 4,
    /// The object was freed.
    Stale = 5,
    /// The handle grants reading only.
    ReadOnly = 6,
    /// The exporter has no room for another importer, or no descriptor left.
    NoRoom = 7,
}

/// The reason why a message is not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BadMessage {
    /// The message is of another version.
    Version,
    /// The bytes are not a message.
    Malformed(&'static str),
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawRequest {
    magic: [u8; 4],
    version: U16,
    operation: U16,
    secret: [u8; 16],
    record: U32,
    generation: U32,
    access: U32,
    serial: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawReply {
    magic: [u8; 4],
    version: U16,
    status: U16,
    /// The owner's number, or the segment's.
    number: U32,
    serial: U32,
    len: U64,
    note_len: U32,
    _reserved: U32,
    note: [u8; BLOB_BYTES],
}

const ATTACH: u16 = 1;
const FETCH: u16 = 2;

/// The number of a question on its connection. The answer has the same one, so that a late answer
/// is told from the next one.
pub(crate) type Serial = u32;

impl Request {
    pub(crate) fn encode(self, serial: Serial) -> [u8; REQUEST_SIZE] {
        let mut raw = RawRequest {
            magic: MAGIC,
            version: VERSION.into(),
            operation: ATTACH.into(),
            secret: [0; 16],
            record: 0.into(),
            generation: 0.into(),
            access: 0.into(),
            serial: serial.into(),
        };
        match self {
            Self::Attach(secret) => raw.secret = *secret.as_bytes(),
            Self::Fetch {
                record,
                generation,
                access,
            } => {
                raw.operation = FETCH.into();
                raw.record = record.into();
                raw.generation = generation.into();
                raw.access = u32::from(access == Access::ReadWrite).into();
            }
        }
        zerocopy::transmute!(raw)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<(Self, Serial), BadMessage> {
        let raw =
            RawRequest::ref_from_bytes(bytes).map_err(|_| BadMessage::Malformed("wrong size"))?;
        check(&raw.magic, raw.version)?;
        let request = match raw.operation.get() {
            ATTACH if raw.record == 0 && raw.generation == 0 && raw.access == 0 => {
                Self::Attach(Secret::from_bytes(raw.secret))
            }
            FETCH if raw.secret == [0; 16] => Self::Fetch {
                record: raw.record.get(),
                generation: raw.generation.get(),
                access: match raw.access.get() {
                    0 => Access::ReadOnly,
                    1 => Access::ReadWrite,
                    _ => return Err(BadMessage::Malformed("access")),
                },
            },
            _ => return Err(BadMessage::Malformed("operation")),
        };
        Ok((request, raw.serial.get()))
    }
}

impl Reply {
    pub(crate) fn encode(self, serial: Serial) -> [u8; REPLY_SIZE] {
        let (status, number, len, note) = match self {
            Self::Attached { owner } => (0, u32::from(owner), 0, BackendBlob::NONE),
            Self::Fetched { segment, len, note } => (0, segment, len, note),
            Self::Refused(refusal) => (refusal as u16, 0, 0, BackendBlob::NONE),
        };
        let raw = RawReply {
            magic: MAGIC,
            version: VERSION.into(),
            status: status.into(),
            number: number.into(),
            serial: serial.into(),
            len: len.into(),
            note_len: (note.len as u32).into(),
            _reserved: 0.into(),
            note: note.bytes,
        };
        zerocopy::transmute!(raw)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<(Self, Serial), BadMessage> {
        let raw =
            RawReply::ref_from_bytes(bytes).map_err(|_| BadMessage::Malformed("wrong size"))?;
        check(&raw.magic, raw.version)?;
        let note = BackendBlob::decode(raw.note_len.get(), raw.note)?;
        if raw._reserved != 0 || raw.len == 0 && note != BackendBlob::NONE {
            return Err(BadMessage::Malformed("note"));
        }
        let reply = match (raw.status.get(), raw.number.get(), raw.len.get()) {
            (0, owner @ 1.., 0) => Self::Attached {
                owner: u16::try_from(owner).map_err(|_| BadMessage::Malformed("owner"))?,
            },
            (0, segment, len @ 1..) => Self::Fetched { segment, len, note },
            (status, 0, 0) => Refusal::from_status(status)
                .map(Self::Refused)
                .ok_or(BadMessage::Malformed("status"))?,
            _ => return Err(BadMessage::Malformed("fields of two replies")),
        };
        Ok((reply, raw.serial.get()))
    }
}

impl Refusal {
    fn from_status(status: u16) -> Option<Self> {
        [
            Self::BadRequest,
            Self::Version,
            Self::UnknownContext,
            Self::NotAdmitted,
            Self::Stale,
            Self::ReadOnly,
            Self::NoRoom,
        ]
        .into_iter()
        .find(|refusal| *refusal as u16 == status)
    }
}

fn check(magic: &[u8; 4], version: U16) -> Result<(), BadMessage> {
    if *magic != MAGIC {
        return Err(BadMessage::Malformed("not a crosshandle message"));
    }
    if version != VERSION {
        return Err(BadMessage::Version);
    }
    Ok(())
}
