//! The holder's names in the socket directory, which others may remove: a program that cleans up, or any process of
//! a user who may write there. What is held does not depend on them. The holder notices and makes them again; if
//! the directory itself is gone and does not come back, the holder ends.

use super::super::journal::State;
use super::super::tuning::{
    DIRECTORY_GONE_TIME, DIRECTORY_LOOK, MAX_OLD_LISTENERS, UNWATCHED_LOOK,
};
use super::{LogLevel, Server, copy, set_nonblocking};
use crate::error::{Error, Result};
use crate::ipc::broker::{HeldListener, HolderDirectory, PeerPolicy, is_holders};
use crate::os::socket;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// The socket directory as the kernel tells of its changes.
pub(super) struct Watched {
    /// `None` if the system has no more watches: then the directory is looked at now and then.
    changes: Option<OwnedFd>,
    /// When the directory is looked at. A moment after a change, so that who removes all of the directory is not
    /// in a race with who makes it again.
    look: Option<Instant>,
    /// Since when there is no directory.
    gone: Option<Instant>,
    /// Why the holder's names are not all there.
    failure: Option<String>,
}

impl Watched {
    pub(super) fn new(path: &Path) -> Self {
        let changes = watch(path).ok();
        Self {
            // Something may have gone before.
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

    /// Returns why programs or importers cannot reach the holder, if so.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Takes what the kernel tells. Returns whether some of it is of the holder's names, or of the directory.
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
    /// Looks at the directory when it is time to. Returns whether it is gone for so long that the holder ends.
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
                // Another one of the same name.
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

    /// Gives the holder's sockets and its lock their names again where those are gone or of other files, and
    /// all makers' names. What fails is tried again soon.
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

    /// Answers for an exporter under its name from now on.
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
            // Who waits in the queue of the one before is hung up on, and asks again.
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
