//! The parts of the library that fuzz targets call.

use crosshandle_events::platform::Ordering;
use crosshandle_events::{Owner, open_count};
use crosshandle_handle::{AnyHandle, Key};
use crosshandle_ipc::broker::Client;
use crosshandle_ipc::broker::protocol::{PieceSpan, Reply, Request};
use crosshandle_ipc::fuzzing as parts;
use crosshandle_ipc::{Credential, Record};
use crosshandle_os::socket::{self, Guard};
use crosshandle_os::threads::exchange::{Next, Registration, Source};
use crosshandle_types::Access;
use std::fmt::Display;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Reads bytes as a broker reads an importer's request; the bytes of what was understood.
pub fn request(bytes: &[u8]) -> Option<Vec<u8>> {
    let (request, serial) = Request::decode(bytes).ok()?;
    Some(request.encode(serial).to_vec())
}

/// Reads bytes as an importer reads a broker's reply; the bytes of what was understood.
pub fn reply(bytes: &[u8]) -> Option<Vec<u8>> {
    let (reply, serial, pieces) = Reply::read(bytes).ok()?;
    let mut message = reply.encode(serial).to_vec();
    if let Some(pieces) = pieces {
        pieces.encode(&mut message);
    }
    Some(message)
}

/// A connection of an importer with this process's broker, without the exchange thread between.
pub struct Dialogue {
    client: Option<Arc<Client>>,
    importer: OwnedFd,
}

impl Dialogue {
    /// Connects. `None`: refused.
    pub fn begin() -> Option<Self> {
        let (exporter, importer) = socket::pair().expect("two sockets");
        let client = Client::admit(exporter, Guard::Look).ok()??;
        Some(Self {
            client: Some(client),
            importer,
        })
    }

    /// Sends a message as the importer. `false`: it cannot be sent.
    pub fn send(&self, message: &[u8], files: &[BorrowedFd<'_>]) -> bool {
        socket::send(&self.importer, message, files).is_ok()
    }

    /// Has the broker handle a message, as the exchange thread does. `false`: it has hung up.
    pub fn serve(&mut self) -> bool {
        let Some(client) = &self.client else {
            return false;
        };
        if client.ready(Registration::NONE) == Next::Forget {
            self.client = None;
        }
        self.client.is_some()
    }

    /// Returns the importer's end.
    pub fn importer(&self) -> &OwnedFd {
        &self.importer
    }
}

/// What a status of 0 means in a reply, and which number it gives an attached importer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplyKind {
    /// Attached, as this owner.
    Attached(u16),
    /// Descriptors come along.
    Sent,
    /// A descriptor comes along, of so many bytes.
    Fetched(u64),
    Refused,
}

/// Reads a reply.
pub fn answer(bytes: &[u8]) -> Option<(ReplyKind, u32)> {
    let (reply, serial, _) = Reply::read(bytes).ok()?;
    let answer = match reply {
        Reply::Attached { owner, .. } => ReplyKind::Attached(owner),
        Reply::Sent => ReplyKind::Sent,
        Reply::Fetched { len, .. }
        | Reply::Pieces { len, .. }
        | Reply::DriverHandle { len, .. } => ReplyKind::Fetched(len),
        Reply::Refused(_) => ReplyKind::Refused,
    };
    Some((answer, serial))
}

/// What a request asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum RequestKind {
    Attach { context: u32 },
    Chunk,
    Memory { writable: bool },
    Arena,
    Mirror,
    Describe,
}

/// What a request shows: the numbers in a handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct Shown {
    pub record: u32,
    pub generation: u64,
    pub key: [u8; 16],
}

/// Returns the bytes of a request.
pub fn encode(question: RequestKind, shown: Shown, serial: u32) -> Vec<u8> {
    let credential = Credential {
        record: Record {
            index: shown.record,
            generation: shown.generation,
        },
        key: Key::from_bytes(shown.key),
    };
    let request = match question {
        RequestKind::Attach { context } => Request::Attach {
            context,
            credential,
            program: *b"fuzzer\xff\0\0\0\0\0\0\0\0\0",
        },
        RequestKind::Chunk => Request::Chunk(credential),
        RequestKind::Memory { writable } => Request::Memory {
            credential,
            access: if writable {
                Access::ReadWrite
            } else {
                Access::ReadOnly
            },
            span: PieceSpan::ALL,
        },
        RequestKind::Arena => Request::Arena(credential),
        RequestKind::Mirror => Request::Mirror(credential),
        RequestKind::Describe => Request::Describe,
    };
    request.encode(serial).to_vec()
}

/// Returns the numbers in a handle's bytes, and its context.
pub fn shown(handle: &[u8]) -> Option<(Shown, u32)> {
    let fields = AnyHandle::from_bytes(handle).ok()?.fields();
    let shown = Shown {
        record: fields.record,
        generation: fields.generation,
        key: *fields.key.as_bytes(),
    };
    Some((shown, fields.context))
}

fn message(error: impl Display) -> String {
    error.to_string()
}

/// A catalog with one chunk, as an importer has it.
pub struct Catalog(parts::Catalog);

impl Catalog {
    /// Opens a chunk.
    pub fn open(file: &OwnedFd, chunk: usize) -> Result<Self, String> {
        let catalog = parts::Catalog::default();
        catalog.add(parts::CatalogChunk::open(file, chunk).map_err(message)?);
        Ok(Self(catalog))
    }

    /// Returns the length of a chunk's file.
    pub fn file_len(chunk: usize) -> u64 {
        parts::catalog_len(chunk) as u64
    }

    /// Returns the generation of a record, if its chunk is here.
    pub fn generation(&self, record: u32) -> Option<u64> {
        let generation = self.0.generation(record)?;
        Some(generation.load(Ordering::SeqCst))
    }

    /// Returns the name of a record's object.
    pub fn name(&self, record: u32) -> String {
        self.0.name(record)
    }

    /// Returns the driver's handle of a record that a key opens, and the segment and its length
    /// that come with it.
    pub fn sealed_handle(&self, record: u32, key: [u8; 16]) -> Option<(u32, u64, Vec<u8>)> {
        let sealed = self.0.sealed_handle(record)?;
        let found = parts::open_sealed(&Key::from_bytes(key), sealed)?;
        Some((found.segment, found.len, found.handle.as_bytes().to_vec()))
    }

    /// Returns a process's number and program, and when it ended.
    pub fn peer(&self, owner: u16) -> Option<(u32, String, u64)> {
        let peer = self.0.peer(Owner::new(owner)?);
        Some((peer.pid, peer.program, peer.ended))
    }
}

/// A ledger with one chunk, as an importer or the exporter has it.
pub struct Ledger(parts::Ledger);

impl Ledger {
    /// Opens a chunk.
    pub fn open(file: &OwnedFd, chunk: usize) -> Result<Self, String> {
        let ledger = parts::Ledger::default();
        ledger.add(parts::LedgerChunk::open(file, chunk).map_err(message)?);
        Ok(Self(ledger))
    }

    /// Returns the length of a chunk's file.
    pub fn file_len(chunk: usize) -> u64 {
        parts::ledger_len(chunk) as u64
    }

    /// Returns the open count of a record, if its chunk is here.
    pub fn count(&self, record: u32) -> Option<u32> {
        let count = self.0.count(record)?;
        Some(count.load(Ordering::SeqCst))
    }

    /// Opens a record that has this generation in a catalog, and closes it again. `None`: one of
    /// the chunks is not here.
    pub fn open_and_close(&self, catalog: &Catalog, record: u32, generation: u64) -> Option<bool> {
        let (count, now) = (self.0.count(record)?, catalog.0.generation(record)?);
        let is_open = open_count::try_open(count, now, generation);
        if is_open {
            open_count::close(count);
        }
        Some(is_open)
    }

    /// Returns whether a record is open.
    pub fn is_open(&self, record: u32) -> bool {
        self.0.is_open(record)
    }

    /// Returns the number of sleepers that the ledger tells of.
    pub fn sleepers(&self) -> usize {
        self.0.sleepers().len()
    }

    /// Enters a sleeper.
    pub fn enter(&self, record: u32, thread: u32, number: u64, since: u64) -> Option<usize> {
        self.0.enter(parts::Sleeper {
            record,
            number,
            thread,
            since,
        })
    }

    /// Ends what `enter` began.
    pub fn leave(&self, index: usize) {
        self.0.leave(index);
    }

    /// Counts copied bytes, and returns the sum.
    pub fn add_copied(&self, bytes: u64) -> u64 {
        self.0.add_copied(bytes);
        self.0.copied()
    }
}

/// Opens an event arena.
pub fn open_arena(file: &OwnedFd, slots: usize) -> Result<(), String> {
    parts::open_arena(file, slots).map_err(message)
}

/// Returns the length of an arena's file.
pub fn arena_len(slots: usize) -> u64 {
    parts::arena_len(slots) as u64
}
