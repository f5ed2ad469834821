//! The messages between an importer and a broker, as pure values.
//!
//! Both sides may be hostile. A message is accepted only if its size, magic number, version and
//! every field are valid.

use crate::record::{Credential, Record};
use crosshandle_handle::Key;
use crosshandle_os::socket::MAX_DESCRIPTORS;
use crosshandle_types::Access;
use crosshandle_types::observe::Reason;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const MAGIC: [u8; 4] = *b"XHBR";
/// Version of the protocol. It changes with every change of a message or of a shared layout.
pub const VERSION: u16 = 9;
/// Size of a request in bytes.
pub const REQUEST_SIZE: usize = size_of::<RawRequest>();
/// Size of a reply in bytes, without a table of pieces that may follow it in the message.
pub const REPLY_SIZE: usize = size_of::<RawReply>();
/// Maximum size of a message with a reply, in bytes.
pub const MAX_REPLY_MESSAGE: usize = REPLY_SIZE + PieceTable::size(MAX_DESCRIPTORS);

/// Maximum number of pieces of memory, enough for all memory of a large GPU in the smallest pieces.
pub const MAX_PIECES: usize = 1 << 17;

/// Maximum length of a blob in bytes.
const BLOB_BYTES: usize = 128;

/// A backend blob, or note: bytes that an exporter's backend sends to the importer's backend with a
/// descriptor. Only these two backends understand it. Most backends use none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BackendBlob {
    len: usize,
    /// The bytes after the first `len` are zeros.
    bytes: [u8; BLOB_BYTES],
}

impl BackendBlob {
    /// An empty blob.
    pub const NONE: Self = Self {
        len: 0,
        bytes: [0; BLOB_BYTES],
    };

    /// Makes a blob from at most [`BLOB_BYTES`] bytes of `text`.
    pub fn new(text: &[u8]) -> Self {
        let mut note = Self::NONE;
        note.len = text.len().min(BLOB_BYTES);
        note.bytes[..note.len].copy_from_slice(&text[..note.len]);
        note
    }

    /// Returns the blob's bytes. Unless this process made the blob, a peer chose them.
    pub fn as_bytes(&self) -> &[u8] {
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

/// A request of an importer. Each request except [`Describe`](Self::Describe) contains the
/// credential of an object of the context, and its reply concerns only that object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// Attaches to a context. The reply carries the first chunk of the context's catalog and of a
    /// ledger for the importer.
    Attach {
        context: u32,
        credential: Credential,
        /// The importer's program, for people.
        program: ProgramName,
    },
    /// Requests the chunks of catalog and ledger that contain the object's record.
    Chunk(Credential),
    /// Requests memory. The reply carries its descriptor, the descriptors of some pieces if the
    /// memory consists of pieces, or the driver's handle if the memory has no descriptor.
    Memory {
        credential: Credential,
        access: Access,
        /// The requested pieces. It is [`PieceSpan::ALL`] if the memory does not consist of pieces.
        span: PieceSpan,
    },
    /// Requests an event's arena. The reply carries the arena's descriptor, and the descriptor of
    /// the file in which the processes that signal events show that they are alive.
    Arena(Credential),
    /// Requests an event's native mirror. The reply carries its descriptor.
    Mirror(Credential),
    /// Requests a report of all contexts for people. Only processes of the exporter's own user may
    /// request it. The reply carries a JSON file.
    Describe,
}

/// The pieces that an importer requests at a time, if memory consists of pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PieceSpan {
    /// Number of the first requested piece.
    pub first: u32,
    /// Maximum number of pieces in the reply, which the importer's free descriptors limit. 0 stands
    /// for as many pieces as a reply can carry.
    pub most: u8,
}

impl PieceSpan {
    /// Requests as many pieces as one reply can carry, starting with the first.
    pub const ALL: Self = Self { first: 0, most: 0 };
}

/// The name of a program, truncated to this size.
pub type ProgramName = [u8; 16];

/// Returns the program name that a peer sent as text.
pub fn program_text(name: &ProgramName) -> String {
    let end = name.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&name[..end.unwrap_or(name.len())]).into_owned()
}

/// A reply of the broker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reply {
    /// The importer is attached and signals with this owner number. The reply carries the
    /// descriptors of catalog and ledger.
    Attached {
        owner: u16,
        /// Whether the importer must lock its ledger to show that it is alive.
        locks_ledger: bool,
    },
    /// The reply carries the requested descriptors: catalog and ledger, an arena, or a report.
    Sent,
    /// The number and the size of the object's segment, and the backend's blob. The reply carries
    /// the descriptor.
    Fetched {
        segment: u32,
        len: u64,
        note: BackendBlob,
    },
    /// The number and the size of a segment that consists of pieces, and the backend's blob for
    /// each piece. A [`PieceTable`] follows the reply, which carries the descriptors of the pieces
    /// in the table.
    Pieces {
        segment: u32,
        len: u64,
        note: BackendBlob,
    },
    /// The number and the size of a segment without a descriptor, and the driver's handle of it.
    DriverHandle {
        segment: u32,
        len: u64,
        handle: BackendBlob,
    },
    /// The broker refuses the request.
    Refused(Refusal),
}

/// A piece's part of the memory behind a descriptor, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PiecePart {
    /// Length of all memory behind the descriptor.
    pub whole: u64,
    pub offset: u64,
    pub len: u64,
}

/// The pieces whose descriptors a message carries, in their order in the segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PieceTable {
    /// Number of all pieces of the segment.
    pub total: u32,
    /// Number of the first piece in this table.
    pub first: u32,
    /// At least one part, and at most [`MAX_DESCRIPTORS`].
    pub parts: Vec<PiecePart>,
}

impl PieceTable {
    /// Returns the size in bytes of a table of this many pieces.
    const fn size(pieces: usize) -> usize {
        8 + 24 * pieces
    }

    /// Appends the table to a reply.
    pub fn encode(&self, message: &mut Vec<u8>) {
        message.extend(self.total.to_le_bytes());
        message.extend(self.first.to_le_bytes());
        for PiecePart { whole, offset, len } in &self.parts {
            message.extend(whole.to_le_bytes());
            message.extend(offset.to_le_bytes());
            message.extend(len.to_le_bytes());
        }
    }

    fn decode(bytes: &[u8]) -> Result<Self, BadMessage> {
        let bad = BadMessage::Malformed("pieces");
        let (head, parts) = bytes.split_first_chunk::<8>().ok_or(bad)?;
        let [total, first]: [U32; 2] = zerocopy::transmute!(*head);
        let (parts, rest) = parts.as_chunks::<24>();
        if !rest.is_empty() || parts.is_empty() || parts.len() > MAX_DESCRIPTORS {
            return Err(bad);
        }
        let end = u64::from(first.get()) + parts.len() as u64;
        if total.get() as usize > MAX_PIECES || end > u64::from(total.get()) {
            return Err(bad);
        }
        let part = |bytes: &[u8; 24]| {
            let [whole, offset, len]: [U64; 3] = zerocopy::transmute!(*bytes);
            PiecePart {
                whole: whole.get(),
                offset: offset.get(),
                len: len.get(),
            }
        };
        let parts: Vec<_> = parts.iter().map(part).collect();
        let is_bad = |PiecePart { whole, offset, len }: &PiecePart| {
            let end = offset.checked_add(*len);
            *len == 0 || end.is_none_or(|end| end > *whole)
        };
        if parts.iter().any(is_bad) {
            return Err(bad);
        }
        Ok(Self {
            total: total.get(),
            first: first.get(),
            parts,
        })
    }
}

/// The reason why the broker refuses a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Refusal {
    /// The request is not valid in this state.
    BadRequest = 1,
    /// The broker uses another version of the protocol.
    Version = 2,
    /// No context with this number exists (any more).
    UnknownContext = 3,
    /// The importer's user is not admitted.
    NotAdmitted = 4,
    /// The object was freed.
    Stale = 5,
    /// The handle only grants reading.
    ReadOnly = 6,
    /// The exporter has no room for another importer, or no free descriptor.
    NoRoom = 7,
    /// The key does not belong to the object.
    WrongKey = 8,
    /// The exporter cannot make a read-only descriptor.
    NoReadOnly = 9,
    /// Too many unattached importers are connected, or too many importers of this user.
    Busy = 10,
    /// The exporter has handed the memory over, so its holder replies.
    Moved = 11,
}

/// The reason why a message is rejected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadMessage {
    /// The message has another version.
    Version,
    /// The bytes are not a valid message.
    Malformed(&'static str),
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawRequest {
    magic: [u8; 4],
    version: U16,
    operation: U16,
    /// The context's number, or the number of the first piece.
    context: U32,
    record: U32,
    generation: U64,
    key: [u8; 16],
    access: U32,
    serial: U32,
    /// The importer's program, or the maximum number of requested pieces followed by zeros.
    program: [u8; 16],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawReply {
    magic: [u8; 4],
    version: U16,
    status: U16,
    /// The kind of reply, if the status is 0.
    content: U32,
    /// The owner's number or the segment's number.
    number: U32,
    serial: U32,
    /// For an attached importer, whether it locks its ledger. Otherwise the blob's length.
    note_len: U32,
    len: U64,
    note: [u8; BLOB_BYTES],
}

const ATTACH: u16 = 1;
const CHUNK: u16 = 2;
const MEMORY: u16 = 3;
const ARENA: u16 = 4;
const MIRROR: u16 = 5;
const DESCRIBE: u16 = 6;

const ATTACHED: u32 = 1;
const SENT: u32 = 2;
const FETCHED: u32 = 3;
const PIECES: u32 = 4;
const DRIVER_HANDLE: u32 = 5;

/// The number of a request on its connection. The reply contains the same number, which
/// distinguishes a late reply from the next one.
pub type Serial = u32;

impl Request {
    /// Returns whether an unattached client may send this request.
    pub(super) fn is_of_no_context(&self) -> bool {
        matches!(self, Self::Attach { .. } | Self::Describe)
    }

    pub fn encode(self, serial: Serial) -> [u8; REQUEST_SIZE] {
        let none = Credential {
            record: Record {
                index: 0,
                generation: 0,
            },
            key: Key::from_bytes([0; 16]),
        };
        let (operation, credential) = match self {
            Self::Attach { credential, .. } => (ATTACH, credential),
            Self::Chunk(credential) => (CHUNK, credential),
            Self::Memory { credential, .. } => (MEMORY, credential),
            Self::Arena(credential) => (ARENA, credential),
            Self::Mirror(credential) => (MIRROR, credential),
            Self::Describe => (DESCRIBE, none),
        };
        let mut raw = RawRequest {
            magic: MAGIC,
            version: VERSION.into(),
            operation: operation.into(),
            context: 0.into(),
            record: credential.record.index.into(),
            generation: credential.record.generation.into(),
            key: *credential.key.as_bytes(),
            access: 0.into(),
            serial: serial.into(),
            program: [0; 16],
        };
        match self {
            Self::Attach {
                context, program, ..
            } => {
                raw.context = context.into();
                raw.program = program;
            }
            Self::Memory { access, span, .. } => {
                raw.access = u32::from(access == Access::ReadWrite).into();
                raw.context = span.first.into();
                raw.program[0] = span.most;
            }
            _ => {}
        }
        zerocopy::transmute!(raw)
    }

    pub fn decode(bytes: &[u8]) -> Result<(Self, Serial), BadMessage> {
        let raw =
            RawRequest::ref_from_bytes(bytes).map_err(|_| BadMessage::Malformed("wrong size"))?;
        check(&raw.magic, raw.version)?;
        let credential = Credential {
            record: Record {
                index: raw.record.get(),
                generation: raw.generation.get(),
            },
            key: Key::from_bytes(raw.key),
        };
        let request = match raw.operation.get() {
            ATTACH => Self::Attach {
                context: raw.context.get(),
                credential,
                program: raw.program,
            },
            CHUNK => Self::Chunk(credential),
            MEMORY => Self::Memory {
                credential,
                access: match raw.access.get() {
                    0 => Access::ReadOnly,
                    _ => Access::ReadWrite,
                },
                span: PieceSpan {
                    first: raw.context.get(),
                    most: raw.program[0],
                },
            },
            ARENA => Self::Arena(credential),
            MIRROR => Self::Mirror(credential),
            DESCRIBE => Self::Describe,
            _ => return Err(BadMessage::Malformed("operation")),
        };
        let serial = raw.serial.get();
        // Every field that the request does not use must be zero.
        if request.encode(serial) != bytes {
            return Err(BadMessage::Malformed("fields of two requests"));
        }
        Ok((request, serial))
    }
}

impl Reply {
    pub fn encode(self, serial: Serial) -> [u8; REPLY_SIZE] {
        let mut raw = RawReply {
            magic: MAGIC,
            version: VERSION.into(),
            status: 0.into(),
            content: 0.into(),
            number: 0.into(),
            serial: serial.into(),
            note_len: 0.into(),
            len: 0.into(),
            note: BackendBlob::NONE.bytes,
        };
        match self {
            Self::Attached {
                owner,
                locks_ledger,
            } => {
                raw.content = ATTACHED.into();
                raw.number = u32::from(owner).into();
                raw.note_len = u32::from(locks_ledger).into();
            }
            Self::Sent => raw.content = SENT.into(),
            Self::Fetched { segment, len, note }
            | Self::Pieces { segment, len, note }
            | Self::DriverHandle {
                segment,
                len,
                handle: note,
            } => {
                raw.content = match self {
                    Self::Pieces { .. } => PIECES,
                    Self::DriverHandle { .. } => DRIVER_HANDLE,
                    _ => FETCHED,
                }
                .into();
                raw.number = segment.into();
                raw.len = len.into();
                raw.note_len = (note.len as u32).into();
                raw.note = note.bytes;
            }
            Self::Refused(refusal) => raw.status = (refusal as u16).into(),
        }
        zerocopy::transmute!(raw)
    }

    /// Decodes a message, which is a reply and its table of pieces, if it has one.
    pub fn read(bytes: &[u8]) -> Result<(Self, Serial, Option<PieceTable>), BadMessage> {
        let (reply, rest) = bytes
            .split_at_checked(REPLY_SIZE)
            .ok_or(BadMessage::Malformed("wrong size"))?;
        let (reply, serial) = Self::decode(reply)?;
        let table = match reply {
            Self::Pieces { .. } => Some(PieceTable::decode(rest)?),
            _ if rest.is_empty() => None,
            _ => return Err(BadMessage::Malformed("wrong size")),
        };
        Ok((reply, serial, table))
    }

    /// Decodes a message that is a reply without a table.
    pub fn decode(bytes: &[u8]) -> Result<(Self, Serial), BadMessage> {
        let raw =
            RawReply::ref_from_bytes(bytes).map_err(|_| BadMessage::Malformed("wrong size"))?;
        check(&raw.magic, raw.version)?;
        let reply = match (raw.status.get(), raw.content.get()) {
            (0, ATTACHED) => Self::Attached {
                owner: u16::try_from(raw.number.get())
                    .map_err(|_| BadMessage::Malformed("owner"))?,
                locks_ledger: raw.note_len == 1,
            },
            (0, SENT) => Self::Sent,
            (0, FETCHED) if raw.len != 0 => Self::Fetched {
                segment: raw.number.get(),
                len: raw.len.get(),
                note: BackendBlob::decode(raw.note_len.get(), raw.note)?,
            },
            (0, PIECES) if raw.len != 0 => Self::Pieces {
                segment: raw.number.get(),
                len: raw.len.get(),
                note: BackendBlob::decode(raw.note_len.get(), raw.note)?,
            },
            (0, DRIVER_HANDLE) if raw.len != 0 => Self::DriverHandle {
                segment: raw.number.get(),
                len: raw.len.get(),
                handle: BackendBlob::decode(raw.note_len.get(), raw.note)?,
            },
            (status, 0) => Refusal::from_status(status)
                .map(Self::Refused)
                .ok_or(BadMessage::Malformed("status"))?,
            _ => return Err(BadMessage::Malformed("content")),
        };
        let serial = raw.serial.get();
        // Every field that the reply does not use must be zero.
        if reply.encode(serial) != bytes {
            return Err(BadMessage::Malformed("fields of two replies"));
        }
        Ok((reply, serial))
    }
}

impl Refusal {
    /// Returns the reason in the form that the program sees.
    pub fn reason(self) -> Reason {
        match self {
            Self::BadRequest => Reason::BadRequest,
            Self::Version => Reason::Version,
            Self::UnknownContext => Reason::Gone,
            Self::NotAdmitted => Reason::NotAdmitted,
            Self::Stale => Reason::Stale,
            Self::ReadOnly => Reason::ReadOnly,
            Self::NoRoom => Reason::NoRoom,
            Self::WrongKey => Reason::WrongKey,
            Self::NoReadOnly => Reason::NoReadOnly,
            Self::Busy => Reason::Busy,
            Self::Moved => Reason::Moved,
        }
    }

    /// Returns whether the broker refuses for this reason before it asks a context.
    pub(super) fn is_of_no_context(self) -> bool {
        matches!(
            self,
            Self::BadRequest
                | Self::Version
                | Self::UnknownContext
                | Self::NotAdmitted
                | Self::Busy
        )
    }

    fn from_status(status: u16) -> Option<Self> {
        [
            Self::BadRequest,
            Self::Version,
            Self::UnknownContext,
            Self::NotAdmitted,
            Self::Stale,
            Self::ReadOnly,
            Self::NoRoom,
            Self::WrongKey,
            Self::NoReadOnly,
            Self::Busy,
            Self::Moved,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn message(table: &PieceTable) -> Vec<u8> {
        let reply = Reply::Pieces {
            segment: 7,
            len: 3 << 21,
            note: BackendBlob::new(b"note"),
        };
        let mut message = reply.encode(5).to_vec();
        table.encode(&mut message);
        message
    }

    fn table(total: u32, first: u32, parts: usize) -> PieceTable {
        let part = |number: usize| PiecePart {
            whole: 2 << 21,
            offset: (number as u64 % 2) << 21,
            len: 1 << 21,
        };
        PieceTable {
            total,
            first,
            parts: (0..parts).map(part).collect(),
        }
    }

    #[test]
    fn pieces_are_read_as_they_were_written() {
        for table in [
            table(3, 0, 2),
            table(3, 2, 1),
            table(64, 0, 64),
            table(1 << 17, 9, 64),
        ] {
            let message = message(&table);
            assert!(message.len() <= MAX_REPLY_MESSAGE);
            let (reply, serial, read) = Reply::read(&message).expect("it was just written");
            assert!(matches!(reply, Reply::Pieces { segment: 7, .. }));
            assert_eq!((serial, read), (5, Some(table)));
            for end in 0..message.len() {
                let is_whole_table =
                    end > REPLY_SIZE + 8 && (end - REPLY_SIZE - 8).is_multiple_of(24);
                assert_eq!(
                    Reply::read(&message[..end]).is_ok(),
                    is_whole_table,
                    "{end} bytes"
                );
            }
        }
    }

    #[test]
    fn pieces_that_cannot_be_are_refused() {
        let mut outside = table(3, 0, 2);
        outside.parts[1].len += 1;
        let mut none = table(3, 0, 2);
        none.parts[0].len = 0;
        let mut beyond_all = table(3, 0, 2);
        beyond_all.parts[0].offset = u64::MAX;
        for table in [
            outside,
            none,
            beyond_all,
            table(3, 2, 2),
            table(0, 0, 1),
            table(3, 0, 0),
            table(100, 0, 65),
            table((1 << 17) + 1, 0, 1),
            table(1, u32::MAX, 1),
        ] {
            assert!(Reply::read(&message(&table)).is_err(), "{table:?}");
        }
        // No other reply may have a table.
        let mut sent = Reply::Sent.encode(1).to_vec();
        assert!(Reply::read(&sent).is_ok());
        sent.push(0);
        assert!(Reply::read(&sent).is_err());
    }
}
