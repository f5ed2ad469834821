//! The holder's names in the socket directory, which others may remove: whoever cleans up, or any process of
//! a user who may write there. What is held does not depend on them.

use super::super::tuning::MAX_OLD_LISTENERS;
use super::{Server, copy, set_nonblocking};
use crate::error::{Error, Result};
use crate::ipc::broker::{HeldListener, HolderDirectory, PeerPolicy};
use crate::os::socket;
use std::sync::Arc;

impl Server {
    /// Gives the holder's sockets and its lock their names again where those are gone or of other files, and
    /// all makers' names. What fails is tried again at the next hand-over.
    pub(super) fn restore_names(&mut self) {
        if let Err(error) = self.try_restore() {
            (self.terms.log)(&format!("the socket directory cannot be restored: {error}"));
        }
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
        self.directory = HolderDirectory::open(&self.path, shared)?;
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
