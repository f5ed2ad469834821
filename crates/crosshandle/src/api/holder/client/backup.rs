//! The reader's side of bringing memory back when a holder and its successor have died at once.

use super::super::message::{Offer, OfferedPart, Question};
use super::super::segment::fetch;
use super::super::tuning::{
    ANSWER_TIMEOUT, LOOK_INTERVAL, MAX_OFFERS, MAX_RETRY_INTERVAL, OFFER_INTERVAL,
};
use super::pause::Pause;
use super::{HeldName, Holder};
use crate::error::{Error, HolderFault, Result};
use crate::handle::{Fields, MemoryHandle};
use crate::ipc::broker::{MADE_BY_NEW_HOLDERS, Route, address, control_path};
use crate::ipc::{ExportCells, Exporter, Label, OpenDeadline, Origin, Particulars, Shared};
use crate::os::fork::PerProcess;
use crate::os::process;
use crate::pool::DEDICATED;
use crate::sync::{Deadline, Mutex};
use crate::threads::background;
use crate::threads::exchange::{Next, Registration, Source, Watch, watch};
use crate::types::Access;
use rustix::fs::inotify;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// What this process keeps of a name, so that it outlives even a holder that dies at the same moment as its successor:
/// descriptors of its memory, for reading. When a new holder begins in the directory, the memory is brought back to it in
/// the background, and it has its name, version, label and tokens again, for reading only.
///
/// It keeps the memory that the name stood for when it was made, also when the name is replaced: then it brings nothing
/// back any more, and dropping it frees the memory. Any thread may drop it.
pub struct Backup {
    kept: Arc<Kept>,
    _begun: Arc<NewHolders>,
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
        let backup = Backup {
            _begun: NewHolders::tell(self, &kept)?,
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
        let kept = Arc::downgrade(self);
        background::run_blocking(move || {
            let mut pause = Pause::new(OFFER_INTERVAL, MAX_RETRY_INTERVAL);
            let mut silent = 0;
            // The name may be given up meanwhile.
            while let Some(kept) = kept.upgrade() {
                let begun = kept.begun.load(Ordering::Acquire);
                let next = kept.offer_once(&mut silent);
                if next == After::Retry {
                    drop(kept);
                    pause.wait(Deadline::NEVER);
                    continue;
                }
                let done =
                    (kept.begun).compare_exchange(begun, 0, Ordering::AcqRel, Ordering::Acquire);
                if done.is_ok() {
                    return;
                }
                (pause, silent) = (Pause::new(OFFER_INTERVAL, MAX_RETRY_INTERVAL), 0);
            }
        });
    }

    /// Offers the memory to a holder that has just begun. Returns whether that is to be done again: only
    /// a holder that has a reason for refusing it ends the attempts.
    fn offer_once(&self, silent: &mut u32) -> After {
        let turn = OFFERING.lock();
        let offered = self.offer();
        drop(turn);
        let Err(error) = offered else {
            return After::Done;
        };
        tracing::debug!(name = self.name, %error, "a holder does not take a backup");
        let is_silent = matches!(
            &error,
            Error::Holder {
                fault: HolderFault::NoHolder,
                ..
            }
        );
        if is_silent {
            // The next one that begins is noticed.
            *silent += 1;
            return match *silent < MAX_OFFERS {
                true => After::Retry,
                false => After::Done,
            };
        }
        match &error {
            Error::Holder {
                fault: HolderFault::Busy,
                ..
            }
            | Error::TimedOut(_)
            | Error::Os { .. }
            | Error::OutOfMemory { .. }
            | Error::LimitReached { .. } => After::Retry,
            _ => After::Done,
        }
    }
}

/// What comes after an offer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum After {
    /// The holder has the name, or has a reason not to take it.
    Done,
    /// The holder could not take it at this moment.
    Retry,
}

/// Tells the backups of this process when a holder begins in some directories: it makes its sockets anew, which its
/// successors do not. All backups of a process share one, since the system gives a user few watches.
struct NewHolders {
    kept: Mutex<Vec<Weak<Kept>>>,
    /// `None` if the directories are looked at instead.
    watch: OnceLock<Watch>,
}

/// Those of this process, by their directories.
static NEW_HOLDERS: PerProcess<Mutex<BTreeMap<Vec<PathBuf>, Weak<NewHolders>>>> =
    PerProcess::new(Mutex::default);

impl NewHolders {
    /// Tells a backup of holders that begin, until the result is dropped.
    fn tell(holder: &Holder, kept: &Arc<Kept>) -> Result<Arc<Self>> {
        let directories = address::directories(holder.socket_dir.as_deref());
        let mut all = NEW_HOLDERS.lock();
        all.retain(|_, of| of.strong_count() > 0);
        let known = all.get(&directories).and_then(Weak::upgrade);
        let this = match known {
            Some(known) => known,
            None => {
                let new = Self::watch(&directories)?;
                all.insert(directories, Arc::downgrade(&new));
                new
            }
        };
        drop(all);
        this.kept.lock().push(Arc::downgrade(kept));
        Ok(this)
    }

    fn watch(directories: &[PathBuf]) -> Result<Arc<Self>> {
        let this = Arc::new(Self {
            kept: Mutex::new(Vec::new()),
            watch: OnceLock::new(),
        });
        match Changes::of(directories, &this) {
            Ok(changes) => {
                let _ = this.watch.set(watch(Arc::new(changes))?);
            }
            // Of a user's processes together.
            Err(Errno::MFILE | Errno::NFILE | Errno::NOSPC | Errno::NOMEM) => {
                look_now_and_then(directories.to_vec(), Arc::downgrade(&this));
            }
            Err(errno) => {
                let failed = Error::os("watching the socket directory for a holder");
                return Err(failed(errno));
            }
        }
        Ok(this)
    }

    fn holder_began(&self) {
        let mut kept = self.kept.lock();
        kept.retain(|kept| kept.strong_count() > 0);
        let all: Vec<_> = kept.iter().filter_map(Weak::upgrade).collect();
        drop(kept);
        for kept in all {
            kept.holder_began();
            // Dropping the last reference is not for the thread that watches.
            if let Some(last) = Arc::into_inner(kept) {
                background::run_blocking(move || drop(last));
            }
        }
    }
}

/// Looks for new holders where the system has no watch left.
fn look_now_and_then(directories: Vec<PathBuf>, of: Weak<NewHolders>) {
    let files = move || -> Vec<_> {
        let paths = directories.iter().map(|path| control_path(path));
        let id = |status: std::fs::Metadata| (status.dev(), status.ino(), status.ctime_nsec());
        paths
            .map(|path| std::fs::symlink_metadata(path).ok().map(id))
            .collect()
    };
    let mut before = files();
    background::repeat(LOOK_INTERVAL, move || {
        let Some(of) = of.upgrade() else { return false };
        let now = files();
        if now != before {
            before = now;
            of.holder_began();
        }
        true
    });
}

/// What the kernel tells of the directories.
struct Changes {
    changes: OwnedFd,
    of: Weak<NewHolders>,
}

impl Changes {
    fn of(directories: &[PathBuf], of: &Arc<NewHolders>) -> std::result::Result<Self, Errno> {
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let changes = inotify::init(flags)?;
        let mut found = Err(Errno::NOENT);
        for directory in directories {
            let watched = inotify::add_watch(&changes, directory, inotify::WatchFlags::CREATE);
            found = found.or(watched);
        }
        found?;
        Ok(Self {
            changes,
            of: Arc::downgrade(of),
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

impl Source for Changes {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }

    fn wants_messages(&self) -> bool {
        true
    }

    fn ready(&self, _: Registration) -> Next {
        let Some(of) = self.of.upgrade() else {
            return Next::Forget;
        };
        if self.take() {
            of.holder_began();
        }
        // It has a watch, whose end is not for this thread.
        if let Some(last) = Arc::into_inner(of) {
            background::run_blocking(move || drop(last));
        }
        Next::Continue
    }
}
