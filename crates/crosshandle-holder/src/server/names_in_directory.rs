//! The holder's names in the socket directory. Other programs may remove them: a clean-up tool, or
//! any process of a user who may write there. Held memory does not depend on these names. The
//! holder notices and restores them. If the directory itself is gone and is not restored, the
//! holder ends.

use super::super::journal::State;
use super::{LogLevel, Server, copy, set_nonblocking};
use crosshandle_ipc::broker::{HeldListener, HolderDirectory, PeerPolicy, is_holders};
use crosshandle_os::socket;
use crosshandle_types::error::{Error, Result};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of replaced importer sockets on which the holder still listens. Other processes
/// had removed these sockets from the directory. With a smaller value, repeated removals break
/// connections sooner.
const MAX_OLD_LISTENERS: usize = 4;

/// Time that a holder continues without its socket directory. It ends if the directory has not been
/// restored by then.
const DIRECTORY_GONE_TIME: Duration = Duration::from_secs(3);

/// Delay from a change in the directory until the holder inspects it, and interval of inspections
/// while the directory is missing. A shorter time interferes with programs that are still removing
/// the directory.
const DIRECTORY_LOOK: Duration = Duration::from_millis(50);

/// Interval of inspections of a directory that the kernel does not watch, or that could not be
/// restored.
const UNWATCHED_LOOK: Duration = Duration::from_secs(1);

/// The watched socket directory.
pub(super) struct Watched {
    /// The inotify descriptor, or `None` if the system has no inotify watch left. Without a watch,
    /// the holder inspects the directory at intervals.
    changes: Option<OwnedFd>,
    /// The time of the next inspection. It is a moment after a change, so that the holder does not
    /// compete with a program that removes the whole directory.
    look: Option<Instant>,
    /// The time since which the directory has been missing.
    gone: Option<Instant>,
    /// The reason why some of the holder's names are missing.
    failure: Option<String>,
}

impl Watched {
    pub(super) fn new(path: &Path) -> Self {
        let changes = watch(path).ok();
        Self {
            // Names may have been removed before the watch began.
            look: Some(Instant::now() + DIRECTORY_LOOK),
            changes,
            gone: None,
            failure: None,
        }
    }

    pub(super) fn changes(&self) -> Option<&OwnedFd> {
        self.changes.as_ref()
    }

    pub(super) fn next_look(&self) -> Option<Instant> {
        self.look
    }

    /// Returns the reason why programs or importers cannot reach the holder, if there is one.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Consumes the kernel's notifications. Returns whether one of them concerns the holder's names
    /// or the directory itself.
    fn take(&self) -> bool {
        let Some(changes) = &self.changes else {
            return false;
        };
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(changes, &mut buffer);
        let mut is_own = false;
        while let Ok(event) = events.next() {
            let of_directory = ReadFlags::QUEUE_OVERFLOW
                | ReadFlags::DELETE_SELF
                | ReadFlags::MOVE_SELF
                | ReadFlags::UNMOUNT
                | ReadFlags::IGNORED;
            let name = event.file_name().map_or(&b""[..], |name| name.to_bytes());
            is_own |= event.events().intersects(of_directory) || is_holders(name);
        }
        is_own
    }
}

fn watch(path: &Path) -> std::result::Result<OwnedFd, Errno> {
    let changes = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    let flags = WatchFlags::DELETE
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVED_TO
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF
        | WatchFlags::ONLYDIR;
    inotify::add_watch(&changes, path, flags)?;
    Ok(changes)
}

impl Server {
    /// Inspects the directory if that is due. Returns whether it has been gone for so long that the
    /// holder must end.
    pub(super) fn look_at_directory(&mut self, has_changed: bool) -> bool {
        let now = Instant::now();
        if has_changed && self.watched.take() && self.watched.look.is_none_or(|look| look <= now) {
            self.watched.look = Some(now + DIRECTORY_LOOK);
        }
        if self.watched.look.is_none_or(|look| now < look) {
            return false;
        }
        self.watched.look = None;
        let shared = self.terms.policy != PeerPolicy::SameUser;
        match HolderDirectory::reopen(&self.path, shared) {
            Ok(None) => {
                self.watched.look = Some(now + DIRECTORY_LOOK);
                let since = *self.watched.gone.get_or_insert(now);
                if now - since < DIRECTORY_GONE_TIME {
                    return false;
                }
                return true;
            }
            Ok(Some(_)) if self.watched.gone.take().is_some() => {
                // A new directory of the same name exists.
                self.watched.changes = watch(&self.path).ok();
            }
            _ => {}
        }
        self.restore_names();
        let state = State {
            directory: &self.directory,
            holdings: &self.holdings,
            lost: &self.lost,
        };
        self.journal.check(&state);
        if self.watched.changes.is_none() || self.watched.failure.is_some() {
            self.watched.look = Some(now + UNWATCHED_LOOK);
        }
        false
    }

    /// Restores the names of the holder's sockets and lock if they are missing or belong to other
    /// files, and the names of all exporters. After a failure, a new attempt follows soon.
    pub(super) fn restore_names(&mut self) {
        let failure = self.try_restore().err().map(|error| error.to_string());
        if failure != self.watched.failure {
            match &failure {
                Some(why) => self.say(
                    LogLevel::Warning,
                    &format!("the socket directory cannot be restored: {why}"),
                ),
                None => self.say(LogLevel::Notice, "the socket directory is restored"),
            }
        }
        if failure.is_some() {
            self.watched.look = Some(Instant::now() + UNWATCHED_LOOK);
        }
        self.watched.failure = failure;
    }

    /// Starts to serve an exporter under its name.
    pub(super) fn answer_for(&mut self, exporter: u64) -> Result<()> {
        if self.directory.files() != self.files {
            self.try_restore()?;
        }
        self.directory.answer_for(exporter)
    }

    fn try_restore(&mut self) -> Result<()> {
        let shared = self.terms.policy != PeerPolicy::SameUser;
        // The directory itself may be a new one.
        let Some(directory) = HolderDirectory::reopen(&self.path, shared)? else {
            return Err(Error::invalid("there is no directory any more"));
        };
        self.directory = directory;
        let found = self.directory.files();
        if found.lock != self.files.lock {
            self.restore_lock()?;
        }
        let mut is_other = false;
        if found.programs != self.files.programs && !self.is_given {
            // Programs in the queue of the previous socket are disconnected and repeat their
            // requests.
            let programs = self.directory.listen_for_programs()?;
            self.guard = socket::refuse_descriptors(&programs);
            set_nonblocking(&programs)?;
            self.programs = Arc::new(programs);
            is_other = true;
        }
        if found.importers != self.files.importers {
            let importers = self.directory.listen_for_importers()?;
            self.listeners.push(HeldListener::serve(copy(&importers)?)?);
            if self.listeners.len() > MAX_OLD_LISTENERS {
                self.listeners.remove(0);
            }
            self.importers = Arc::new(importers);
            is_other = true;
        }
        if is_other {
            let now = self.directory.files();
            (self.files.programs, self.files.importers) = (now.programs, now.importers);
            let (change, sockets) = self.sockets();
            self.tell(change, sockets);
        }
        self.holdings.answer_for_all(&self.directory)
    }

    fn restore_lock(&mut self) -> Result<()> {
        let Some(lock) = self.directory.lock()? else {
            return Err(Error::invalid(
                "the holder's lock was removed, and another holder has one of its own now: programs cannot ask \
                 this one for names, and handles are good still",
            ));
        };
        self.lock = Arc::new(lock);
        self.files.lock = self.directory.files().lock;
        let (change, files) = self.lock();
        self.tell(change, files);
        Ok(())
    }
}
