//! Fetching memory and drivers' events from an exporter.

use super::expected_pieces::{ExpectedPieces, other_segment};
use super::{Attachment, Location};
use crate::broker::protocol::{BackendBlob, PieceSpan, Refusal, Reply, Request};
use crate::broker::{
    Dialogue, Exports, Fetch, Fetched, FetchedHandle, FetchedPieces, FullReply, OpenDeadline,
    PieceBatch, PieceFile, Supply,
};
use crate::chunks::open_sealed;
use crate::exporter::Exporter;
use crate::record::Credential;
use crate::records::MIRROR_SEGMENT;
use crosshandle_events::Owner;
use crosshandle_handle::Fields;
use crosshandle_os::process;
use crosshandle_os::socket::MAX_DESCRIPTORS;
use crosshandle_os::threads::disposer::{Disposal, PeerDescriptor};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{Access, observe};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The first object that an importer fetches from a context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum First {
    /// The memory of the handle, with this access.
    Memory(Access),
    /// The arena of the event.
    Arena,
}

impl First {
    pub(super) fn request(self, fields: &Fields) -> Request {
        let credential = Credential::of(fields);
        match self {
            Self::Memory(access) => Request::Memory {
                credential,
                access,
                span: PieceSpan::ALL,
            },
            Self::Arena => Request::Arena(credential),
        }
    }
}

/// The delivery of a segment that does not consist of pieces.
pub enum Delivery {
    /// A descriptor.
    Descriptor(Fetched),
    /// The driver's handle.
    DriverHandle(FetchedHandle),
}

/// A driver's handle that no reply has confirmed yet, with one open of its record. The exporter
/// keeps the memory until this value is dropped, even if the program frees the memory.
pub struct HandleAhead {
    pub found: FetchedHandle,
    attachment: Arc<Attachment>,
    record: u32,
}

impl Drop for HandleAhead {
    fn drop(&mut self) {
        self.attachment.release(self.record);
    }
}

impl Attachment {
    /// Fetches the descriptor of the memory that a handle names. The exporter says which segment
    /// contains the memory, so that other handles of this segment find it under its number.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] for memory that only the driver's handle can share.
    pub fn fetch(
        &self,
        fields: &Fields,
        access: Access,
        deadline: &OpenDeadline,
    ) -> Result<Fetched> {
        let credential = Credential::of(fields);
        let _span = observe::fetching(self.origin.context, fields.record);
        let request = Request::Memory {
            credential,
            access,
            span: PieceSpan::ALL,
        };
        match self.ask_for(request, deadline)? {
            Supply::Whole(fetched) => {
                check_segment(fetched.segment, fields)?;
                Ok(fetched)
            }
            Supply::DriverHandle(_) => Err(no_descriptor()),
            Supply::Pieces(_) => Err(OTHER_QUESTION),
        }
    }

    /// Fetches the memory that a handle names, as a descriptor or a driver's handle. If the memory
    /// consists of pieces, `take` receives all of them in order, some at a time, and the result is
    /// `None`.
    ///
    /// While the exporter prepares its reply, the function may call `meanwhile`. `meanwhile` does
    /// work that is already possible, such as mapping memory by its
    /// [`driver_handle`](Self::driver_handle).
    pub fn fetch_segment(
        &self,
        fields: &Fields,
        access: Access,
        deadline: &OpenDeadline,
        meanwhile: impl FnMut(),
        take: impl FnMut(FetchedPieces) -> Result<()>,
    ) -> Result<Option<Delivery>> {
        let _span = observe::fetching(self.origin.context, fields.record);
        let mut fetch = SegmentFetch {
            attachment: self,
            fields,
            access,
            expected: ExpectedPieces::new(fields.segment),
            whole: None,
            meanwhile,
            take,
        };
        match &self.location {
            Location::Remote { connection, .. } => connection.converse(&mut fetch, deadline)?,
            Location::Local(exporter) => loop {
                let supply = Self::ask_here(exporter, fetch.request(MAX_DESCRIPTORS))?;
                if let Supply::Pieces(pieces) = &supply {
                    fetch.expected.check(pieces)?;
                }
                let is_whole = !matches!(supply, Supply::Pieces(_));
                fetch.accept(supply)?;
                if is_whole || fetch.expected.is_done() {
                    break;
                }
            },
        }
        Ok(fetch.whole)
    }

    /// Fetches the memory of several handles like [`fetch_segment`](Self::fetch_segment), and
    /// passes the deliveries to `take` in their order. `take` gets `None` for memory in pieces, and
    /// its error ends the operation. Memory in pieces of an exporter in this process is an error.
    pub fn fetch_each(
        &self,
        handles: &[Fields],
        access: Access,
        deadline: &OpenDeadline,
        mut meanwhile: impl FnMut(&Fields),
        mut take: impl FnMut(&Fields, Option<Delivery>) -> Result<()>,
    ) -> Result<()> {
        let Location::Remote { connection, .. } = &self.location else {
            let ignored = |_: FetchedPieces| Err(Error::Protocol("it consists of pieces"));
            return handles.iter().try_for_each(|fields| {
                let delivery = self.fetch_segment(fields, access, deadline, || {}, ignored)?;
                take(fields, delivery)
            });
        };
        let request = |fields: &Fields| Request::Memory {
            credential: Credential::of(fields),
            access,
            span: PieceSpan::ALL,
        };
        let requests: Vec<_> = handles.iter().map(request).collect();
        let _span = observe::fetching(
            self.origin.context,
            handles.first().map_or(0, |it| it.record),
        );
        let meanwhile = |place: usize| meanwhile(&handles[place]);
        let mut next = handles.iter();
        connection.ask_each(&requests, deadline, meanwhile, |full| {
            let fields = next.next().ok_or(OTHER_QUESTION)?;
            take(fields, self.delivery(supplied(full)?, fields)?)
        })
    }

    /// Returns the delivery after checking that it is the segment that the handle names. Returns
    /// `None` for pieces.
    fn delivery(&self, supply: Supply, fields: &Fields) -> Result<Option<Delivery>> {
        Ok(match supply {
            Supply::Whole(fetched) => {
                check_segment(fetched.segment, fields)?;
                Some(Delivery::Descriptor(fetched))
            }
            Supply::DriverHandle(found) => {
                check_segment(found.segment, fields)?;
                Some(Delivery::DriverHandle(found))
            }
            Supply::Pieces(_) => None,
        })
    }

    /// Returns the driver's handle of the memory that a handle names, according to the catalog, and
    /// counts one open. Only the exporter knows whether the driver's handle may be used.
    pub fn driver_handle(self: &Arc<Self>, fields: &Fields) -> Option<HandleAhead> {
        let Credential { record, key } = Credential::of(fields);
        let found = open_sealed(&key, self.catalog.sealed_handle(record.index)?)?;
        if found.segment != fields.segment || self.try_open(record) != Some(true) {
            return None;
        }
        Some(HandleAhead {
            found,
            attachment: Arc::clone(self),
            record: record.index,
        })
    }

    /// Fetches the native mirror of an event.
    pub fn fetch_mirror(&self, credential: Credential) -> Result<Fetched> {
        let _span = observe::fetching(self.origin.context, credential.record.index);
        let timeout = match &self.location {
            Location::Local(_) => Duration::MAX,
            Location::Remote { timeout, .. } => *timeout,
        };
        let deadline = OpenDeadline::after(timeout);
        match self.ask_for(Request::Mirror(credential), &deadline)? {
            Supply::Whole(fetched) if fetched.segment == MIRROR_SEGMENT => Ok(fetched),
            Supply::Whole(_) => Err(Error::Protocol("its event is memory")),
            Supply::DriverHandle(_) | Supply::Pieces(_) => Err(OTHER_QUESTION),
        }
    }

    fn ask_for(&self, request: Request, deadline: &OpenDeadline) -> Result<Supply> {
        match &self.location {
            Location::Local(exporter) => Self::ask_here(exporter, request),
            Location::Remote { connection, .. } => supplied(connection.ask(request, deadline)?),
        }
    }

    /// Sends a request to an exporter in this process.
    fn ask_here(exporter: &Weak<Exporter>, request: Request) -> Result<Supply> {
        let gone = Error::ExporterGone {
            pid: process::pid(),
        };
        let exporter = exporter.upgrade().ok_or(gone)?;
        let fetch = match request {
            Request::Memory {
                credential,
                access,
                span,
            } => exporter.memory(Owner::EXPORTER.get(), &credential, access, span),
            Request::Mirror(credential) => exporter.mirror(&credential),
            _ => Err(Refusal::BadRequest),
        };
        let supply = match fetch {
            Ok(Fetch::Ready(supply)) => Ok(supply),
            Ok(Fetch::CallsDriver { call, .. }) => call(),
            Err(refusal) => Err(refusal),
        };
        supply.map_err(|refusal| match refusal {
            Refusal::ReadOnly => Error::ReadOnly,
            Refusal::WrongKey => Error::WrongKey,
            Refusal::Moved => Error::HolderGone,
            Refusal::NoRoom => Error::os("opening memory")(Errno::MFILE),
            Refusal::NoReadOnly => Error::Unsupported(
                "a descriptor for reading only cannot be made, since there is no /proc".into(),
            ),
            _ => Error::Stale,
        })
    }
}

/// The requests for a segment, which may consist of pieces.
struct SegmentFetch<'a, M, F> {
    attachment: &'a Attachment,
    fields: &'a Fields,
    access: Access,
    expected: ExpectedPieces,
    /// The segment, if it does not consist of pieces.
    whole: Option<Delivery>,
    /// Called before the exporter has replied.
    meanwhile: M,
    /// Receives the pieces.
    take: F,
}

impl<M, F: FnMut(FetchedPieces) -> Result<()>> SegmentFetch<'_, M, F> {
    fn accept(&mut self, supply: Supply) -> Result<()> {
        match supply {
            Supply::Pieces(pieces) => (self.take)(pieces),
            whole => {
                self.whole = self.attachment.delivery(whole, self.fields)?;
                Ok(())
            }
        }
    }
}

impl<M, F> Dialogue for SegmentFetch<'_, M, F>
where
    M: FnMut(),
    F: FnMut(FetchedPieces) -> Result<()>,
{
    fn meanwhile(&mut self) {
        (self.meanwhile)();
    }

    fn request(&mut self, most: usize) -> Request {
        Request::Memory {
            credential: Credential::of(self.fields),
            access: self.access,
            span: PieceSpan {
                first: self.expected.next,
                most: match most {
                    // 0 stands for the maximum. A request that was sent ahead also has 0.
                    MAX_DESCRIPTORS.. => 0,
                    few => few as u8,
                },
            },
        }
    }

    fn look(&mut self, full: &FullReply) -> Result<bool> {
        if let (Reply::Pieces { segment, len, .. }, Some(table)) = (full.reply, &full.pieces) {
            self.expected.check_table(segment, len, table)?;
            return Ok(!self.expected.is_done());
        }
        match self.has_begun() {
            true => Err(OTHER_QUESTION),
            false => Ok(false),
        }
    }

    fn take(&mut self, full: FullReply) -> Result<()> {
        self.accept(supplied(full)?)
    }

    fn has_begun(&self) -> bool {
        self.expected.next != 0
    }
}

/// Checks that fetched memory is the segment that the handle names.
fn check_segment(segment: u32, fields: &Fields) -> Result<()> {
    if segment == MIRROR_SEGMENT {
        return Err(Error::Protocol("its memory is an event"));
    }
    match segment == fields.segment {
        true => Ok(()),
        false => Err(other_segment()),
    }
}

/// Returns the error for memory that only the driver's handle can share, if the caller needs a
/// descriptor.
fn no_descriptor() -> Error {
    Error::Unsupported(
        "this memory has no descriptor and ends with its exporter, so no holder can hold it and no virtual range can map \
         it: allocate it with crosshandle or with the driver's virtual memory management"
            .into(),
    )
}

const OTHER_QUESTION: Error = Error::Protocol("it does not match the request");

/// Returns the objects that a reply has brought.
fn supplied(full: FullReply) -> Result<Supply> {
    let FullReply {
        reply,
        pieces,
        granted,
    } = full;
    let another_number = Error::Protocol("it has a wrong number of descriptors");
    match (reply, pieces) {
        (Reply::Fetched { segment, len, note }, None) => {
            let [file] = granted.into_vec().try_into().map_err(|_| another_number)?;
            Ok(Supply::Whole(fetched(file, segment, len, note)))
        }
        (
            Reply::DriverHandle {
                segment,
                len,
                handle,
            },
            None,
        ) => match granted.is_empty() {
            true => Ok(Supply::DriverHandle(FetchedHandle {
                segment,
                len,
                handle,
            })),
            false => Err(another_number),
        },
        (Reply::Pieces { segment, len, note }, Some(table)) => {
            if granted.len() != table.parts.len() {
                return Err(another_number);
            }
            let files = granted.into_iter().zip(table.parts);
            let file = |(file, part): (PeerDescriptor, _)| {
                let (file, disposal) = kept(file);
                PieceFile {
                    file,
                    part,
                    disposal,
                }
            };
            let batch = PieceBatch {
                total: table.total,
                first: table.first,
                files: files.map(file).collect(),
                note,
            };
            Ok(Supply::Pieces(FetchedPieces {
                segment,
                len,
                batch,
            }))
        }
        _ => Err(OTHER_QUESTION),
    }
}

fn fetched(file: PeerDescriptor, segment: u32, len: u64, note: BackendBlob) -> Fetched {
    let (file, disposal) = kept(file);
    Fetched {
        file,
        segment,
        len,
        note,
        disposal,
    }
}

/// Returns a peer's descriptor, and the object to drop after it. `None` if any thread may close the
/// descriptor.
fn kept(file: PeerDescriptor) -> (Arc<OwnedFd>, Option<Disposal>) {
    match file.into_memory() {
        Ok(memory) => (Arc::new(memory), None),
        Err(file) => {
            let (file, disposal) = file.lend();
            (file, Some(disposal))
        }
    }
}
