//! The reader's side of bringing memory back when a holder and its successor have died at once.

use super::client::{HeldName, Holder};
use super::message::{Offer, OfferedPart, Question};
use super::segment::fetch;
use super::tuning::{ANSWER_TIMEOUT, MAX_OFFERS, OFFER_INTERVAL};
use crate::error::{Error, HolderFault, Result};
use crate::handle::{Fields, MemoryHandle};
use crate::ipc::broker::{MADE_BY_NEW_HOLDERS, Route, address};
use crate::ipc::{ExportCells, Exporter, Label, OpenDeadline, Origin, Particulars, Shared};
use crate::os::fork::PerProcess;
use crate::os::process;
use crate::pool::DEDICATED;
use crate::sync::Mutex;
use crate::threads::background;
use crate::threads::exchange::{Next, Registration, Source, Watch, watch};
use crate::types::Access;
use rustix::fs::inotify;
use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread;

/// What this process keeps of a name, so that it outlives even a holder that dies at the same moment as its successor:
/// descriptors of its memory, for reading. When a new holder begins in the directory, the memory is brought back to it in
/// the background, and it has its name, version, label and tokens again, for reading only.
///
/// It keeps the memory that the name stood for when it was made, also when the name is replaced: then it brings nothing
/// back any more, and dropping it frees the memory. Any thread may drop it.
pub struct Backup {
    kept: Arc<Kept>,
    _watch: Watch,
}

struct Kept {
    holder: Holder,
    name: String,
    version: u64,
    /// Each part's handle as the holder gave it, and the one by which this process gives the memory.
    parts: Vec<(MemoryHandle, MemoryHandle)>,
    /// Holders that have begun, and been told of, since nobody offered anything: whoever counts the first one offers.
    begun: AtomicU64,
    /// Answers the new holder.
    _exporter: Arc<Exporter>,
}

/// Held by who offers: a holder does few jobs at a time for one process, and refuses others.
static OFFERING: PerProcess<Mutex<()>> = PerProcess::new(Mutex::default);

impl fmt::Debug for Backup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backup")
            .field("name", &self.kept.name)
            .field("version", &self.kept.version)
            .finish_non_exhaustive()
    }
}

impl Holder {
    /// Keeps what a name stands for in this process, too, as [`open`](Self::open) has answered. This costs a descriptor
    /// for each part, and a socket if this process shares nothing else.
    ///
    /// # Errors
    /// As [`Context::open_memory`](crate::Context::open_memory); [`Error::InvalidArgument`] without handles for reading;
    /// limits of the system.
    pub fn back_up(&self, held: &HeldName) -> Result<Backup> {
        let deadline = OpenDeadline::after(self.timeout);
        let origin = Origin {
            directory: self.socket_dir.clone(),
            policy: self.peers.clone(),
            timeout: self.timeout,
        };
        let label = Label {
            name: Some(format!("backup of {}", held.name)),
            device: held
                .parts
                .first()
                .map_or_else(String::new, |part| part.device.clone()),
            backend: String::new(),
        };
        let exporter = Exporter::new(label, self.peers.clone(), self.socket_dir.clone(), false)?;
        let mut parts = Vec::new();
        for (part, number) in held.parts.iter().zip(0_u32..) {
            let handle = part.read_only.ok_or_else(|| {
                Error::invalid("the answer to `open` is needed, which has handles for reading")
            })?;
            let fields = handle.fields();
            let (memory, _) = fetch(&handle, Route::Holder, &origin, &deadline)?;
            let segment = DEDICATED | number;
            let particulars = Particulars {
                kind: part.kind,
                len: fields.length,
                allocation: segment as usize,
            };
            let memory: Arc<dyn Shared> = memory;
            let cells = ExportCells::default();
            let credential =
                exporter.export_at(&cells, particulars, &memory, segment, Access::ReadOnly)?;
            let own = MemoryHandle::new(&Fields {
                read_only: true,
                exporter: address::exporter_id()?,
                pid: process::pid(),
                context: exporter.number(),
                key: credential.key,
                generation: credential.record.generation,
                record: credential.record.index,
                segment,
                offset: 0,
                ..fields
            });
            parts.push((handle, own));
        }
        let kept = Arc::new(Kept {
            // No caller waits for the offers.
            holder: self.within(self.timeout.max(ANSWER_TIMEOUT)),
            name: held.name.clone(),
            version: held.version,
            parts,
            begun: AtomicU64::new(0),
            _exporter: exporter,
        });
        let source = NewHolders::in_directories_of(self, &kept)?;
        let backup = Backup {
            _watch: watch(Arc::new(source))?,
            kept,
        };
        // One may have begun before it was watched for.
        backup.kept.holder_began();
        Ok(backup)
    }
}

impl Backup {
    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.kept.name
    }

    /// Returns the name's version that is kept.
    pub fn version(&self) -> u64 {
        self.kept.version
    }

    /// Brings the memory back to the holder that answers now, unless it has it: this process does that by itself when a
    /// holder begins.
    ///
    /// # Errors
    /// [`Error::Holder`] if there is none, or if it refuses: it never lost the name, or another version of it.
    pub fn offer(&self) -> Result<()> {
        self.kept.offer()
    }
}

impl Kept {
    fn offer(&self) -> Result<()> {
        let part = |(handle, from): &(MemoryHandle, MemoryHandle)| OfferedPart {
            handle: handle.to_string(),
            from: from.to_string(),
        };
        let offer = Offer {
            name: self.name.clone(),
            version: self.version,
            parts: self.parts.iter().map(part).collect(),
        };
        self.holder.done(Question::TakeBack(offer))
    }

    /// Brings the memory back in the background, once more if another holder begins meanwhile.
    fn holder_began(self: &Arc<Self>) {
        if self.begun.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        let kept = Arc::clone(self);
        background::run_blocking(move || {
            loop {
                let begun = kept.begun.load(Ordering::Acquire);
                kept.offer_soon();
                let done =
                    (kept.begun).compare_exchange(begun, 0, Ordering::AcqRel, Ordering::Acquire);
                if done.is_ok() {
                    return;
                }
            }
        });
    }

    /// Brings the memory back to a holder that has just begun.
    fn offer_soon(&self) {
        for _ in 0..MAX_OFFERS {
            let turn = OFFERING.lock();
            let offered = self.offer();
            drop(turn);
            let refused = match offered {
                Err(Error::Holder {
                    fault: HolderFault::NoHolder,
                    ..
                }) => {
                    thread::sleep(OFFER_INTERVAL);
                    continue;
                }
                refused => refused.err(),
            };
            if let Some(error) = refused {
                tracing::debug!(name = self.name, %error, "a holder does not take a backup");
            }
            return;
        }
    }
}

/// Tells when a holder begins: it makes its sockets anew, which its successors do not.
struct NewHolders {
    changes: OwnedFd,
    kept: Weak<Kept>,
}

impl NewHolders {
    fn in_directories_of(holder: &Holder, kept: &Arc<Kept>) -> Result<Self> {
        let failed = Error::os("watching the socket directory for a holder");
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let changes = inotify::init(flags).map_err(&failed)?;
        let mut found = Err(rustix::io::Errno::NOENT);
        for directory in address::directories(holder.socket_dir.as_deref()) {
            let watched = inotify::add_watch(&changes, &directory, inotify::WatchFlags::CREATE);
            found = found.or(watched);
        }
        found.map_err(failed)?;
        Ok(Self {
            changes,
            kept: Arc::downgrade(kept),
        })
    }

    /// Takes what has been told. Returns whether some of it is of a holder.
    fn take(&self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.changes, &mut buffer);
        let mut is_holder = false;
        while let Ok(event) = events.next() {
            let name = event.file_name().map_or(&b""[..], |name| name.to_bytes());
            let is_overflow = event.events().contains(inotify::ReadFlags::QUEUE_OVERFLOW);
            is_holder |= is_overflow
                || MADE_BY_NEW_HOLDERS
                    .iter()
                    .any(|made| made.as_bytes() == name);
        }
        is_holder
    }
}

impl Source for NewHolders {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }

    fn wants_messages(&self) -> bool {
        true
    }

    fn ready(&self, _: Registration) -> Next {
        let Some(kept) = self.kept.upgrade() else {
            return Next::Forget;
        };
        if self.take() {
            kept.holder_began();
        }
        // Dropping the last reference is not for this thread.
        if let Some(last) = Arc::into_inner(kept) {
            background::run_blocking(move || drop(last));
        }
        Next::Continue
    }
}
