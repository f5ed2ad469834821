//! The files of a holder in a socket directory: its lock, the socket at which it is asked for names, the
//! socket at which it answers importers, and that socket's names, one for each exporter that has handed
//! something over.
//!
//! The names are links to one socket, so whoever has its descriptor answers under all of them: a
//! successor has it before it is needed, and connections wait in its queue while the holder changes.

use super::address::{held_exporter_of, held_name};
use super::directory::SocketDirectory;
use super::listener::open_to;
use crate::error::{Error, Result};
use crate::os::socket;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// The name of the socket at which programs ask for names, and hand memory over.
const CONTROL: &str = "holder.sock";
/// The name of the socket at which importers ask for memory.
const IMPORTERS: &str = "holder.importers";
/// The name of the file that the living holder has locked.
const LOCK: &str = "holder.lock";
/// The name of the file that says what is held, for a holder that comes when this one and its successor have died at once.
const JOURNAL: &str = "holder.journal";
/// The journal's name while it is being written.
const NEXT_JOURNAL: &str = "holder.journal.next";

/// What tells a file from all others: its file system and its number there.
pub(crate) type FileId = (u64, u64);

/// The files in the socket directory that are a holder's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct HolderFiles {
    /// The socket for programs.
    pub(crate) programs: Option<FileId>,
    /// The socket for importers.
    pub(crate) importers: Option<FileId>,
    /// The lock.
    pub(crate) lock: Option<FileId>,
}

/// A socket directory with a holder in it.
pub(crate) struct HolderDirectory {
    directory: SocketDirectory,
    shared: bool,
}

/// The names in the directory that a new holder makes, and its successors do not.
pub(crate) const MADE_BY_NEW_HOLDERS: [&str; 2] = [CONTROL, IMPORTERS];

/// Returns the path of a holder's socket in a directory.
pub(crate) fn control_path(directory: &Path) -> PathBuf {
    directory.join(CONTROL)
}

impl HolderDirectory {
    /// Opens the directory at `path`, and makes it first if it is not there. `shared`: other users are
    /// admitted.
    pub(crate) fn open(path: &Path, shared: bool) -> Result<Self> {
        Ok(Self {
            directory: SocketDirectory::open(path, shared)?,
            shared,
        })
    }

    /// Returns which files have the names of a holder's files, each `None` if nothing has it.
    pub(crate) fn files(&self) -> HolderFiles {
        HolderFiles {
            programs: self.directory.file_id(CONTROL),
            importers: self.directory.file_id(IMPORTERS),
            lock: self.directory.file_id(LOCK),
        }
    }

    /// Takes the lock of the directory's one holder. It is held as long as any process has the
    /// descriptor; `None` if a holder has it.
    pub(crate) fn lock(&self) -> Result<Option<OwnedFd>> {
        let failed = Error::os("opening the holder's lock");
        let file = self.directory.create(LOCK).map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(Errno::AGAIN) => Ok(None),
            Err(errno) => Err(Error::os("locking the holder's lock")(errno)),
        }
    }

    /// Listens where programs ask for names. The caller has the lock, so what is there is left over.
    pub(crate) fn listen_for_programs(&self) -> Result<OwnedFd> {
        self.listen(CONTROL)
    }

    /// Listens where importers ask for memory.
    pub(crate) fn listen_for_importers(&self) -> Result<OwnedFd> {
        self.listen(IMPORTERS)
    }

    fn listen(&self, name: &str) -> Result<OwnedFd> {
        let _ = self.directory.remove(name);
        let listening = socket::listen(&self.directory.path_of(name));
        let (listener, _) = listening.map_err(Error::os("listening as a holder"))?;
        open_to(&self.directory, name, self.shared, false)?;
        Ok(listener)
    }

    /// Answers for an exporter under its name from now on.
    pub(crate) fn answer_for(&self, exporter: u64) -> Result<()> {
        let name = held_name(exporter);
        let failed = Error::os("naming the holder's socket for an exporter");
        match self.directory.link(IMPORTERS, &name) {
            Err(Errno::EXIST) if self.directory.are_same(IMPORTERS, &name) => Ok(()),
            Err(Errno::EXIST) => {
                // Of a holder before this one.
                let _ = self.directory.remove(&name);
                self.directory.link(IMPORTERS, &name).map_err(failed)
            }
            result => result.map_err(failed),
        }
    }

    /// Answers for an exporter no more.
    pub(crate) fn leave(&self, exporter: u64) {
        let _ = self.directory.remove(&held_name(exporter));
    }

    /// Removes the names that holders before this one have left behind.
    pub(crate) fn remove_left_names(&self) {
        let Ok(entries) = self.directory.entries() else {
            return;
        };
        for entry in entries.flatten() {
            let Ok(name) = entry.file_name().to_str() else {
                continue;
            };
            if held_exporter_of(name).is_some() && !self.directory.are_same(IMPORTERS, name) {
                let _ = self.directory.remove(name);
            }
        }
    }

    /// Writes the journal, which only this user can read, in the place of the one before.
    pub(crate) fn write_journal(&self, bytes: &[u8]) -> Result<()> {
        let failed = Error::os("writing the holder's journal");
        let _ = self.directory.remove(NEXT_JOURNAL);
        let file = self.directory.create_new(NEXT_JOURNAL).map_err(&failed)?;
        let mut file = File::from(file);
        let written = file.write_all(bytes);
        written.map_err(|error| failed(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        self.directory.rename(NEXT_JOURNAL, JOURNAL).map_err(failed)
    }

    /// Reads the journal that a holder of this user has left, of at most `limit` bytes.
    pub(crate) fn journal(&self, limit: u64) -> Option<Vec<u8>> {
        let file = File::from(self.directory.own_file(JOURNAL)?);
        let mut bytes = Vec::new();
        let read = file.take(limit + 1).read_to_end(&mut bytes).ok()?;
        (read as u64 <= limit).then_some(bytes)
    }

    /// Removes the holder's sockets and its journal. Its lock stays, so that two holders never lock two files, and the
    /// socket of programs if a service manager made it.
    pub(crate) fn clear(&self, is_given: bool) {
        if !is_given {
            let _ = self.directory.remove(CONTROL);
        }
        let _ = self.directory.remove(IMPORTERS);
        let _ = self.directory.remove(JOURNAL);
        self.remove_left_names();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_journal_of_this_user_alone_is_read() {
        use std::fs::{self, Permissions};
        use std::os::unix::fs::{PermissionsExt, symlink};
        let path = std::env::temp_dir().join(format!("xh-journal-{}", std::process::id()));
        let directory = HolderDirectory::open(&path, false).expect("a directory");
        assert_eq!(directory.journal(100), None);
        // What is left of one that was not written to its end is in nobody's way.
        fs::write(path.join(NEXT_JOURNAL), "half of").expect("written");
        for text in ["one", "another"] {
            directory.write_journal(text.as_bytes()).expect("written");
            assert_eq!(directory.journal(100).as_deref(), Some(text.as_bytes()));
        }
        assert_eq!(directory.journal(3), None, "it is longer");
        let journal = path.join(JOURNAL);
        for mode in [0o644, 0o620] {
            fs::set_permissions(&journal, Permissions::from_mode(mode)).expect("changed");
            assert_eq!(directory.journal(100), None, "{mode:o}");
        }
        fs::set_permissions(&journal, Permissions::from_mode(0o600)).expect("changed");
        fs::rename(&journal, path.join("elsewhere")).expect("renamed");
        symlink(path.join("elsewhere"), &journal).expect("a link");
        assert_eq!(directory.journal(100), None, "a link");
        directory.clear(false);
        assert!(!journal.exists());
        fs::remove_dir_all(&path).expect("removed");
    }

    #[test]
    fn one_socket_answers_under_many_names() {
        let path = std::env::temp_dir().join(format!("xh-held-{}", std::process::id()));
        let directory = HolderDirectory::open(&path, false).expect("a directory");
        let lock = directory.lock().expect("opened").expect("free");
        assert!(directory.lock().expect("opened").is_none(), "it is taken");
        let listener = directory.listen_for_importers().expect("a socket");
        let left = path.join(held_name(3));
        drop(socket::listen(&left).expect("a socket of a holder before"));
        directory.remove_left_names();
        assert!(!left.exists());
        drop(socket::listen(&path.join(held_name(4))).expect("another one"));
        for exporter in [4, 5, 5] {
            directory.answer_for(exporter).expect("named");
        }
        for exporter in [4, 5] {
            let connected = socket::try_connect(&path.join(held_name(exporter)));
            assert_eq!(connected, Ok(()));
            socket::accept(&listener).expect("a connection");
        }
        directory.leave(4);
        assert!(!path.join(held_name(4)).exists());
        directory.clear(false);
        drop(lock);
        assert!(directory.lock().expect("opened").is_some());
        std::fs::remove_dir_all(&path).expect("removed");
    }
}
