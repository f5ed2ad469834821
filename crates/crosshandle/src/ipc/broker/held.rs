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
use crate::os::{process, socket};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// The name of the socket at which programs ask for names, and hand memory over.
const CONTROL: &str = "holder.sock";
/// The name of the socket at which importers ask for memory.
const IMPORTERS: &str = "holder.importers";
/// The name of the file that the living holder has locked.
const LOCK: &str = "holder.lock";
/// The beginning of the names of files that say what is held, for a holder that comes when this one and its successor
/// have died at once. Behind it come a number, which counts the files, and a random one: another user of the
/// directory cannot take the name before. The release before wrote one file of this very name.
const JOURNAL: &str = "holder.journal";

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

    /// Opens the directory that is at `path` now; `None` if there is none.
    pub(crate) fn reopen(path: &Path, shared: bool) -> Result<Option<Self>> {
        let found = SocketDirectory::existing(path);
        match found.map_err(Error::os("opening the socket directory"))? {
            Some(_) => Self::open(path, shared).map(Some),
            None => Ok(None),
        }
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

    /// Makes a file of the journal, which only this user can read. Returns its name, too.
    pub(crate) fn create_journal(&self, number: u64) -> Result<(String, File)> {
        let mut random = [0; 8];
        process::random(&mut random).map_err(Error::os("asking for random numbers"))?;
        let name = format!(
            "{JOURNAL}.{number:016x}.{:016x}",
            u64::from_ne_bytes(random)
        );
        let failed = Error::os("writing the holder's journal");
        let file = self.directory.create_new(&name).map_err(failed)?;
        Ok((name, File::from(file)))
    }

    /// Returns the files of the journal that holders of this user have left, by their numbers: the oldest first.
    pub(crate) fn journals(&self) -> Vec<(u64, String)> {
        let Ok(entries) = self.directory.entries() else {
            return Vec::new();
        };
        let mut found = Vec::new();
        for entry in entries.flatten() {
            let Ok(name) = entry.file_name().to_str() else {
                continue;
            };
            let Some(number) = journal_number(name) else {
                continue;
            };
            if self.directory.own_file(name).is_some() {
                found.push((number, name.to_owned()));
            }
        }
        found.sort();
        found
    }

    /// Returns whether a file of the journal is there and this user's.
    pub(crate) fn has_journal(&self, name: &str) -> bool {
        self.directory.own_file(name).is_some()
    }

    /// Reads a file of the journal, of at most `limit` bytes.
    pub(crate) fn read_journal(&self, name: &str, limit: u64) -> Option<Vec<u8>> {
        let file = File::from(self.directory.own_file(name)?);
        let mut bytes = Vec::new();
        let read = file.take(limit + 1).read_to_end(&mut bytes).ok()?;
        (read as u64 <= limit).then_some(bytes)
    }

    /// Removes a file of the journal. Returns whether it is gone.
    pub(crate) fn remove_journal(&self, name: &str) -> bool {
        matches!(self.directory.remove(name), Ok(()) | Err(Errno::NOENT))
    }

    /// Removes the holder's sockets and its journal. Its lock stays, so that two holders never lock two files, and the
    /// socket of programs if a service manager made it.
    pub(crate) fn clear(&self, is_given: bool) {
        if !is_given {
            let _ = self.directory.remove(CONTROL);
        }
        let _ = self.directory.remove(IMPORTERS);
        for (_, name) in self.journals() {
            let _ = self.directory.remove(&name);
        }
        self.remove_left_names();
    }
}

/// Returns the number of a file of the journal by its name.
fn journal_number(name: &str) -> Option<u64> {
    let rest = name.strip_prefix(JOURNAL)?;
    if rest.is_empty() {
        return Some(0);
    }
    let (number, random) = rest.strip_prefix('.')?.split_once('.')?;
    let is_good = number.len() == 16 && random.len() == 16;
    u64::from_str_radix(number, 16).ok().filter(|_| is_good)
}

/// Returns whether a name in the directory is one of a holder's, so that the holder makes it again when it goes.
pub(crate) fn is_holders(name: &[u8]) -> bool {
    let Ok(name) = str::from_utf8(name) else {
        return false;
    };
    [CONTROL, IMPORTERS, LOCK].contains(&name)
        || journal_number(name).is_some()
        || held_exporter_of(name).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn only_journals_of_this_user_alone_are_read() {
        use std::fs::{self, Permissions};
        use std::os::unix::fs::{PermissionsExt, symlink};
        let path = std::env::temp_dir().join(format!("xh-journal-{}", std::process::id()));
        let directory = HolderDirectory::open(&path, false).expect("a directory");
        assert_eq!(directory.journals(), []);
        // The release before had one of this name; others are nobody's.
        for name in [
            "holder.journal.next",
            "holder.journal.1.2",
            "holder.journals",
        ] {
            fs::write(path.join(name), "").expect("written");
        }
        let mut names = Vec::new();
        for (number, text) in [(2, "one"), (10, "another")] {
            let (name, mut file) = directory.create_journal(number).expect("made");
            file.write_all(text.as_bytes()).expect("written");
            assert_eq!(
                directory.read_journal(&name, 100).as_deref(),
                Some(text.as_bytes())
            );
            names.push((number, name));
        }
        assert_eq!(directory.journals(), names);
        let name = &names[1].1;
        assert_eq!(directory.read_journal(name, 3), None, "it is longer");
        let journal = path.join(name);
        for mode in [0o644, 0o620] {
            fs::set_permissions(&journal, Permissions::from_mode(mode)).expect("changed");
            assert_eq!(directory.read_journal(name, 100), None, "{mode:o}");
            assert_eq!(directory.journals(), names[..1]);
        }
        fs::set_permissions(&journal, Permissions::from_mode(0o600)).expect("changed");
        assert!(directory.has_journal(name));
        fs::rename(&journal, path.join("elsewhere")).expect("renamed");
        symlink(path.join("elsewhere"), &journal).expect("a link");
        assert_eq!(directory.read_journal(name, 100), None, "a link");
        assert!(!directory.has_journal(name));
        directory.clear(false);
        assert!(!path.join(&names[0].1).exists());
        assert!(directory.remove_journal(name) && !directory.has_journal(name));
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
