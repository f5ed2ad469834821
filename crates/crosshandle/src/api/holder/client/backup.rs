//! Backups that readers keep. With them, readers restore held memory after a holder and its
//! successor have died at the same time.

use super::super::HeldName;
use super::pause::Pause;
use super::{ANSWER_TIMEOUT, Holder, MAX_RETRY_INTERVAL};
use crate::backends::DRIVERS;
use crate::pool::DEDICATED;
use crosshandle_handle::{Fields, MemoryHandle};
use crosshandle_holder::fetch_held;
use crosshandle_holder::message::{Offer, OfferedPart, Request};

use crosshandle_ipc::broker::{MADE_BY_NEW_HOLDERS, address, control_path};
use crosshandle_ipc::{ExportCells, Exporter, Label, OpenDeadline, Origin, Particulars};
use crosshandle_os::fork::PerProcess;
use crosshandle_os::process;
use crosshandle_os::threads::background;
use crosshandle_os::threads::exchange::{Next, Registration, Source, Watch, watch};
use crosshandle_types::Access;
use crosshandle_types::error::{Error, HolderFault, Result};
use crosshandle_types::sync::{Deadline, Mutex};
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
use std::time::Duration;

/// Maximum number of attempts to reach a new holder with a backup's offer, while no holder answers.
const MAX_OFFERS: u32 = 100;

/// Shortest interval between two offers.
const OFFER_INTERVAL: Duration = Duration::from_millis(20);

/// Interval at which a process polls for a new holder if the system has no inotify watch left.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// Keeps the memory of a name in this process, in case a holder and its successor die at the same
/// time.
///
/// The backup holds read-only descriptors of the memory. When a new holder starts in the directory,
/// a background thread brings the memory back to it. The name then has its version, label and
/// tokens again, but can only be read.
///
/// A backup keeps the memory that the name stood for when the backup was made. If the name is
/// replaced, the backup no longer restores anything. Dropping it then frees the memory. Any thread
/// may drop it.
pub struct Backup {
    kept: Arc<Kept>,
    _begun: Arc<NewHolders>,
}

struct Kept {
    holder: Holder,
    name: String,
    version: u64,
    parts: Vec<OfferedPart>,
    /// Number of holders that have started since the last round of offers. The thread that
    /// increments it from 0 makes the offers.
    begun: AtomicU64,
    /// Serves the memory to the new holder.
    _exporter: Arc<Exporter>,
}

/// Serialises the offers of this process. A holder runs few jobs at a time for one process, and
/// refuses more.
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
    /// Keeps the memory of a name in this process too. `held` is the result of
    /// [`open`](Self::open). A backup uses a descriptor for each part, and a socket if this process
    /// shares nothing else.
    ///
    /// # Errors
    /// Returns the errors of [`Context::open_memory`](crate::Context::open_memory), and
    /// [`Error::InvalidArgument`] if `held` has no read-only handles. Limits of the system also
    /// cause errors.
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
            let memory = fetch_held(&handle, &origin, DRIVERS, &deadline)?;
            let segment = DEDICATED | number;
            let particulars = Particulars {
                kind: part.kind,
                len: fields.length,
                allocation: segment as usize,
            };
            let cells = ExportCells::default();
            let credential =
                exporter.export_at(&cells, particulars, memory, segment, Access::ReadOnly)?;
            let from = MemoryHandle::new(&Fields {
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
            parts.push(OfferedPart { handle, from });
        }
        let kept = Arc::new(Kept {
            // No caller waits for the offers, so they may take longer.
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
        // A holder may have started before the watch began.
        backup.kept.holder_began();
        Ok(backup)
    }
}

impl Backup {
    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.kept.name
    }

    /// Returns the version of the name that is kept.
    pub fn version(&self) -> u64 {
        self.kept.version
    }

    /// Brings the memory back to the running holder, unless the holder already has it. When a
    /// holder starts, this happens automatically.
    ///
    /// # Errors
    /// Returns [`Error::Holder`] if no holder runs, or if it refuses because it never lost this
    /// version of the name.
    pub fn offer(&self) -> Result<()> {
        self.kept.offer()
    }
}

impl Kept {
    fn offer(&self) -> Result<()> {
        let offer = Offer {
            name: self.name.clone(),
            version: self.version,
            parts: self.parts.clone(),
        };
        self.holder.done(Request::TakeBack(offer))
    }

    /// Brings the memory back in the background. Repeats this if another holder starts meanwhile.
    fn holder_began(self: &Arc<Self>) {
        if self.begun.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        let kept = Arc::downgrade(self);
        background::run_blocking(move || {
            let mut pause = Pause::new(OFFER_INTERVAL, MAX_RETRY_INTERVAL);
            let mut silent = 0;
            // The backup may be dropped meanwhile.
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

    /// Offers the memory to a holder that has just started. Returns whether to retry. Once a holder
    /// answers, the attempts continue until it accepts the memory or refuses it permanently.
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
            // If no holder answers, the watch will report the next one that starts.
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

/// What follows an offer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum After {
    /// The holder has the name, or has a permanent reason to refuse it.
    Done,
    /// The holder could not accept the offer at this moment.
    Retry,
}

/// Notifies the backups of this process when a holder starts in one of some directories. A new
/// holder creates its sockets, and a successor does not. Backups with the same directories share
/// one value, since the system limits the watches of each user.
struct NewHolders {
    kept: Mutex<Vec<Weak<Kept>>>,
    /// `None` if the directories are polled instead.
    watch: OnceLock<Watch>,
}

/// The values of this process, by their directories.
static NEW_HOLDERS: PerProcess<Mutex<BTreeMap<Vec<PathBuf>, Weak<NewHolders>>>> =
    PerProcess::new(Mutex::default);

impl NewHolders {
    /// Registers a backup for notifications, which continue until the result is dropped.
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
            // These limits apply to all processes of a user together.
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
            // Dropping the last reference may block, so the exchange thread must not do it.
            if let Some(last) = Arc::into_inner(kept) {
                background::run_blocking(move || drop(last));
            }
        }
    }
}

/// Polls for new holders, if the system has no watch left.
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

/// The kernel's notifications of changes in the directories.
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

    /// Consumes the pending notifications. Returns whether one of them is about a new holder.
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
        // Dropping the last reference ends the watch, and this thread belongs to the watch.
        if let Some(last) = Arc::into_inner(of) {
            background::run_blocking(move || drop(last));
        }
        Next::Continue
    }
}
