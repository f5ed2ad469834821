//! The files of a holder in a socket directory: a lock, a socket for programs, a socket for
//! importers, and a journal.
//!
//! The socket for importers also has one name for each exporter that has handed memory over. These
//! names are links to the same socket, so a process that has its descriptor serves importers under
//! all of them. A successor has the descriptor in advance, and connections wait in the socket's
//! queue while the holder changes.

use super::address::{held_exporter_of, held_name};
use super::directory::SocketDirectory;
use super::listener::open_to;
use crosshandle_os::{process, socket};
use crosshandle_types::error::{Error, Result};
use rustix::fs::{FlockOperation, flock};
use rustix::io::{Errno, retry_on_intr};
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Name of the socket at which programs ask for names and hand memory over.
const CONTROL: &str = "holder.sock";
/// Name of the socket at which importers ask for memory.
const IMPORTERS: &str = "holder.importers";
/// Name of the file that the living holder has locked.
const LOCK: &str = "holder.lock";
/// Prefix of the names of journal files. They record the held memory for a new holder, if a holder
/// and its successor die at the same time. A counter and a random number follow the prefix, so
/// another user of the directory cannot take the name in advance. The previous release wrote a
/// single file with exactly this name.
const JOURNAL: &str = "holder.journal";

/// Identity of a file: its file system and its number there.
pub type FileId = (u64, u64);

/// The files of a holder in the socket directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HolderFiles {
    /// The socket for programs.
    pub programs: Option<FileId>,
    /// The socket for importers.
    pub importers: Option<FileId>,
    /// The lock.
    pub lock: Option<FileId>,
}

/// A socket directory with a holder.
pub struct HolderDirectory {
    directory: SocketDirectory,
    shared: bool,
}

/// Names in the directory that a new holder creates, and a successor does not.
pub const MADE_BY_NEW_HOLDERS: [&str; 2] = [CONTROL, IMPORTERS];

/// Returns the path of a holder's socket for programs in a directory.
pub fn control_path(directory: &Path) -> PathBuf {
    directory.join(CONTROL)
}

impl HolderDirectory {
    /// Opens the directory at `path`, and creates it if necessary. If `shared`, other users are
    /// admitted.
    pub fn open(path: &Path, shared: bool) -> Result<Self> {
        Ok(Self {
            directory: SocketDirectory::open(path, shared)?,
            shared,
        })
    }

    /// Opens the directory that is at `path` now, or returns `None` if there is none.
    pub fn reopen(path: &Path, shared: bool) -> Result<Option<Self>> {
        let found = SocketDirectory::existing(path);
        match found.map_err(Error::os("opening the socket directory"))? {
            Some(_) => Self::open(path, shared).map(Some),
            None => Ok(None),
        }
    }

    /// Returns the identities of the holder's files. A missing file is `None`.
    pub fn files(&self) -> HolderFiles {
        HolderFiles {
            programs: self.directory.file_id(CONTROL),
            importers: self.directory.file_id(IMPORTERS),
            lock: self.directory.file_id(LOCK),
        }
    }

    /// Takes the lock of the directory's only holder. The lock is held while any process has the
    /// descriptor. Returns `None` if another holder has the lock.
    pub fn lock(&self) -> Result<Option<OwnedFd>> {
        let failed = Error::os("opening the holder's lock");
        let file = self.directory.create(LOCK).map_err(failed)?;
        match retry_on_intr(|| flock(&file, FlockOperation::NonBlockingLockExclusive)) {
            Ok(()) => Ok(Some(file)),
            Err(Errno::AGAIN) => Ok(None),
            Err(errno) => Err(Error::os("locking the holder's lock")(errno)),
        }
    }

    /// Listens for programs. The caller has the lock, so an existing socket is left over.
    pub fn listen_for_programs(&self) -> Result<OwnedFd> {
        self.listen(CONTROL)
    }

    /// Listens for importers.
    pub fn listen_for_importers(&self) -> Result<OwnedFd> {
        self.listen(IMPORTERS)
    }

    fn listen(&self, name: &str) -> Result<OwnedFd> {
        let _ = self.directory.remove(name);
        let listening = socket::listen(&self.directory.path_of(name));
        let (listener, _) = listening.map_err(Error::os("listening as a holder"))?;
        open_to(&self.directory, name, self.shared, false)?;
        Ok(listener)
    }

    /// Starts to serve an exporter's importers, by giving the holder's socket a second name for the
    /// exporter.
    pub fn answer_for(&self, exporter: u64) -> Result<()> {
        let name = held_name(exporter);
        let failed = Error::os("naming the holder's socket for an exporter");
        match self.directory.link(IMPORTERS, &name) {
            Err(Errno::EXIST) if self.directory.are_same(IMPORTERS, &name) => Ok(()),
            Err(Errno::EXIST) => {
                // An earlier holder left this name.
                let _ = self.directory.remove(&name);
                self.directory.link(IMPORTERS, &name).map_err(failed)
            }
            result => result.map_err(failed),
        }
    }

    /// Stops serving an exporter's importers.
    pub fn leave(&self, exporter: u64) {
        let _ = self.directory.remove(&held_name(exporter));
    }

    /// Removes the names that earlier holders have left behind.
    pub fn remove_left_names(&self) {
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

    /// Creates a journal file that only this user can read, and returns its name and the file.
    pub fn create_journal(&self, number: u64) -> Result<(String, File)> {
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

    /// Returns the journal files of this user's earlier holders with their numbers, the oldest
    /// first.
    pub fn journals(&self) -> Vec<(u64, String)> {
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

    /// Returns whether a journal file exists and belongs to this user.
    pub fn has_journal(&self, name: &str) -> bool {
        self.directory.own_file(name).is_some()
    }

    /// Reads a journal file of at most `limit` bytes.
    pub fn read_journal(&self, name: &str, limit: u64) -> Option<Vec<u8>> {
        let file = File::from(self.directory.own_file(name)?);
        let mut bytes = Vec::new();
        let read = file.take(limit + 1).read_to_end(&mut bytes).ok()?;
        (read as u64 <= limit).then_some(bytes)
    }

    /// Removes a journal file. Returns whether it no longer exists.
    pub fn remove_journal(&self, name: &str) -> bool {
        matches!(self.directory.remove(name), Ok(()) | Err(Errno::NOENT))
    }

    /// Removes the holder's sockets and its journal, but keeps its lock file, so that two holders
    /// never lock different files. If `is_given`, it also keeps the socket for programs, which a
    /// service manager made.
    pub fn clear(&self, is_given: bool) {
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

/// Returns the number of a journal file by its name.
fn journal_number(name: &str) -> Option<u64> {
    let rest = name.strip_prefix(JOURNAL)?;
    if rest.is_empty() {
        return Some(0);
    }
    let (number, random) = rest.strip_prefix('.')?.split_once('.')?;
    let is_good = number.len() == 16 && random.len() == 16;
    let number = u64::from_str_radix(number, 16).ok()?;
    // The next file needs a greater number. No holder reaches this one.
    (is_good && number <= u64::MAX / 2).then_some(number)
}

/// Returns whether a name in the directory belongs to a holder, which restores it if it is removed.
pub fn is_holders(name: &[u8]) -> bool {
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
        // The previous release used one of these names. The other names are not journals, although
        // they are this user's files. After one of them, no journal could be the next.
        for name in [
            "holder.journal.next",
            "holder.journal.1.2",
            "holder.journal.ffffffffffffffff.0000000000000000",
            "holder.journals",
        ] {
            fs::write(path.join(name), "").expect("written");
            let own = Permissions::from_mode(0o600);
            fs::set_permissions(path.join(name), own).expect("changed");
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
