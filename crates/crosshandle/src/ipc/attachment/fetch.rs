//! What an importer fetches of an exporter: memory, and events of drivers.

use super::expected_pieces::{ExpectedPieces, other_segment};
use super::{Attachment, Link};
use crate::error::{Error, Result};
use crate::event_protocol::Owner;
use crate::handle::Fields;
use crate::ipc::broker::protocol::{BackendBlob, PieceSpan, Refusal, Reply, Request};
use crate::ipc::broker::{
    Answer, Deadline, Dialogue, Exports, Fetch, Fetched, FetchedPieces, PieceBatch, PieceFile,
    Supply,
};
use crate::ipc::exporter::Exporter;
use crate::ipc::record::Credential;
use crate::ipc::records::MIRROR_SEGMENT;
use crate::observe;
use crate::os::process;
use crate::os::socket::MAX_DESCRIPTORS;
use crate::threads::disposer::{Disposal, PeerDescriptor};
use crate::types::Access;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// What an importer fetches first of a context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum First {
    /// The memory of the handle, for this access.
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

impl Attachment {
    /// Fetches the memory that a handle names. The exporter says which segment that is in: other
    /// handles that name this segment will find it under its number.
    pub(crate) fn fetch(
        &self,
        fields: &Fields,
        access: Access,
        deadline: &Deadline,
    ) -> Result<Fetched> {
        let credential = Credential::of(fields);
        let _span = observe::fetching(self.origin.context, fields.record);
        let request = Request::Memory {
            credential,
            access,
            span: PieceSpan::ALL,
        };
        let fetched = self.ask_for(request, deadline)?;
        self.check_segment(fetched, fields)
    }

    /// Fetches the memory that a handle names, as [`fetch`](Self::fetch) does. If the memory consists of
    /// pieces, `take` gets all of them in their order, some at a time, and the result is `None`.
    pub(crate) fn fetch_segment(
        &self,
        fields: &Fields,
        access: Access,
        deadline: &Deadline,
        take: impl FnMut(FetchedPieces) -> Result<()>,
    ) -> Result<Option<Fetched>> {
        let _span = observe::fetching(self.origin.context, fields.record);
        let mut fetch = SegmentFetch {
            attachment: self,
            fields,
            access,
            expected: ExpectedPieces::new(fields.segment),
            whole: None,
            take,
        };
        match &self.link {
            Link::Remote { connection, .. } => connection.converse(&mut fetch, deadline)?,
            Link::Local(exporter) => loop {
                let supply = Self::ask_here(exporter, fetch.question(MAX_DESCRIPTORS))?;
                if let Supply::Pieces(pieces) = &supply {
                    fetch.expected.check(pieces)?;
                }
                let is_whole = matches!(supply, Supply::Whole(_));
                fetch.accept(supply)?;
                if is_whole || fetch.expected.is_done() {
                    break;
                }
            },
        }
        Ok(fetch.whole)
    }

    /// Fetches the memory of several handles, as [`fetch`](Self::fetch) does each, and hands it on in their order.
    /// `take` gets `None` for memory that consists of pieces; an error of `take` ends it.
    pub(crate) fn fetch_each(
        &self,
        handles: &[Fields],
        access: Access,
        deadline: &Deadline,
        mut take: impl FnMut(&Fields, Option<Fetched>) -> Result<()>,
    ) -> Result<()> {
        let Link::Remote { connection, .. } = &self.link else {
            return handles
                .iter()
                .try_for_each(|fields| take(fields, Some(self.fetch(fields, access, deadline)?)));
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
        let mut next = handles.iter();
        connection.ask_each(&requests, deadline, |answer| {
            let fields = next.next().ok_or(OTHER_QUESTION)?;
            match supplied(answer)? {
                Supply::Whole(fetched) => take(fields, Some(self.check_segment(fetched, fields)?)),
                Supply::Pieces(_) => take(fields, None),
            }
        })
    }

    /// Checks that fetched memory is the segment that the handle names.
    fn check_segment(&self, fetched: Fetched, fields: &Fields) -> Result<Fetched> {
        if fetched.segment == MIRROR_SEGMENT {
            return Err(Error::Protocol("its memory is an event"));
        }
        if fetched.segment != fields.segment {
            return Err(other_segment());
        }
        Ok(fetched)
    }

    /// Fetches the native mirror of an event.
    pub(crate) fn fetch_mirror(&self, credential: Credential) -> Result<Fetched> {
        let _span = observe::fetching(self.origin.context, credential.record.index);
        let timeout = match &self.link {
            Link::Local(_) => Duration::MAX,
            Link::Remote { timeout, .. } => *timeout,
        };
        let deadline = Deadline::after(timeout);
        let fetched = self.ask_for(Request::Mirror(credential), &deadline)?;
        if fetched.segment != MIRROR_SEGMENT {
            return Err(Error::Protocol("its event is memory"));
        }
        Ok(fetched)
    }

    fn ask_for(&self, request: Request, deadline: &Deadline) -> Result<Fetched> {
        match &self.link {
            Link::Local(exporter) => match Self::ask_here(exporter, request)? {
                Supply::Whole(fetched) => Ok(fetched),
                Supply::Pieces(_) => Err(OTHER_QUESTION),
            },
            Link::Remote { connection, .. } => match connection.ask(request, deadline)? {
                (Reply::Fetched { segment, len, note }, [file]) => {
                    Ok(fetched(file, segment, len, note))
                }
                _ => Err(OTHER_QUESTION),
            },
        }
    }

    /// Asks an exporter in this process.
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

/// The questions for a segment, which may consist of pieces.
struct SegmentFetch<'a, F> {
    attachment: &'a Attachment,
    fields: &'a Fields,
    access: Access,
    expected: ExpectedPieces,
    /// The segment, if it does not consist of pieces.
    whole: Option<Fetched>,
    /// What gets the pieces.
    take: F,
}

impl<F: FnMut(FetchedPieces) -> Result<()>> SegmentFetch<'_, F> {
    fn accept(&mut self, supply: Supply) -> Result<()> {
        match supply {
            Supply::Whole(fetched) => {
                self.whole = Some(self.attachment.check_segment(fetched, self.fields)?);
                Ok(())
            }
            Supply::Pieces(pieces) => (self.take)(pieces),
        }
    }
}

impl<F: FnMut(FetchedPieces) -> Result<()>> Dialogue for SegmentFetch<'_, F> {
    fn question(&mut self, most: usize) -> Request {
        Request::Memory {
            credential: Credential::of(self.fields),
            access: self.access,
            span: PieceSpan {
                first: self.expected.next,
                most: match most {
                    // As it may have been asked already.
                    MAX_DESCRIPTORS.. => 0,
                    few => few as u8,
                },
            },
        }
    }

    fn look(&mut self, answer: &Answer) -> Result<bool> {
        if let (Reply::Pieces { segment, len, .. }, Some(table)) = (answer.reply, &answer.pieces) {
            self.expected.check_table(segment, len, table)?;
            return Ok(!self.expected.is_done());
        }
        match self.has_begun() {
            true => Err(OTHER_QUESTION),
            false => Ok(false),
        }
    }

    fn take(&mut self, answer: Answer) -> Result<()> {
        self.accept(supplied(answer)?)
    }

    fn has_begun(&self) -> bool {
        self.expected.next != 0
    }
}

const OTHER_QUESTION: Error = Error::Protocol("it answers another question");

/// Returns what an answer has brought.
fn supplied(answer: Answer) -> Result<Supply> {
    let Answer {
        reply,
        pieces,
        granted,
    } = answer;
    let another_number = Error::Protocol("it came with another number of descriptors");
    match (reply, pieces) {
        (Reply::Fetched { segment, len, note }, None) => {
            let [file] = granted.into_vec().try_into().map_err(|_| another_number)?;
            Ok(Supply::Whole(fetched(file, segment, len, note)))
        }
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

/// Returns a peer's descriptor, and what to drop after it unless any thread may close it.
fn kept(file: PeerDescriptor) -> (Arc<OwnedFd>, Option<Disposal>) {
    match file.into_memory() {
        Ok(memory) => (Arc::new(memory), None),
        Err(file) => {
            let (file, disposal) = file.lend();
            (file, Some(disposal))
        }
    }
}
