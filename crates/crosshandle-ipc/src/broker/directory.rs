//! The socket directory, opened as a descriptor. All operations happen in the directory that was
//! checked, even if its path changes.

use super::address::SOCKET_DIR_VARIABLE;
use crosshandle_os::process;
use crosshandle_types::error::{Error, Result};
use rustix::fs::{self, AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::{Errno, retry_on_intr};
use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};

/// Maximum length of a socket directory's path in bytes. A socket address must also have room for
/// the socket's name.
const MAX_DIRECTORY_BYTES: usize = 107 - 24;

/// Permission bits that let the group or others write.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// Mode bit that lets only owners remove entries.
const STICKY: u32 = 0o1000;

/// An existing directory that is safe to listen in.
#[derive(Debug)]
pub(super) struct SocketDirectory {
    path: PathBuf,
    /// Descriptor for looking up names, even if this user may not list them.
    place: OwnedFd,
    id: DirectoryId,
}

/// The identity of a directory, whatever its path.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct DirectoryId {
    device: u64,
    inode: u64,
}

impl SocketDirectory {
    /// Opens a directory, and creates it if necessary. If `shared`, other users are admitted.
    ///
    /// # Errors
    /// Returns [`Error::InvalidArgument`] for a directory that cannot be used or that other users
    /// can change.
    pub(super) fn open(path: &Path, shared: bool) -> Result<Self> {
        if path.as_os_str().len() > MAX_DIRECTORY_BYTES {
            return Err(Error::invalid(format!(
                "the socket directory {} has more than {MAX_DIRECTORY_BYTES} characters; choose a shorter one",
                path.display()
            )));
        }
        let unusable = |errno: Errno| match errno {
            // This error is not specific to the directory.
            Errno::MFILE | Errno::NFILE => Error::os("opening the socket directory")(errno),
            errno => Error::invalid(format!(
                "the socket directory {} cannot be used: {}; set {SOCKET_DIR_VARIABLE}",
                path.display(),
                std::io::Error::from(errno)
            )),
        };
        let place = match Self::find(path, shared) {
            Ok(Some(place)) => place,
            Ok(None) => {
                return Err(Error::invalid(format!(
                    "the socket directory {} is a symbolic link in a directory that other users can \
                     change; replace it by a directory or set {SOCKET_DIR_VARIABLE}",
                    path.display()
                )));
            }
            Err(errno) => return Err(unusable(errno)),
        };
        let status = fs::fstat(&place).map_err(unusable)?;
        // A user with write access could replace this process's socket, unless the directory is
        // sticky.
        let is_open = status.st_mode & WRITABLE_BY_OTHERS != 0 && status.st_mode & STICKY == 0;
        if !shared && !is_open && process::is_nobody(status.st_uid) {
            return Err(Error::invalid(format!(
                "the socket directory {} belongs to a user that this user namespace does not map, and so \
                 to nobody that can be told from others; map the user (/proc/self/uid_map) or set \
                 {SOCKET_DIR_VARIABLE}",
                path.display()
            )));
        }
        if !shared && (!is_trusted(status.st_uid) || is_open) {
            return Err(Error::invalid(format!(
                "the socket directory {} can be changed by other users; make it yours alone \
                 (chmod 700) or set {SOCKET_DIR_VARIABLE}",
                path.display()
            )));
        }
        Ok(Self {
            path: path.to_owned(),
            place,
            id: DirectoryId {
                device: status.st_dev,
                inode: status.st_ino,
            },
        })
    }

    /// Opens a directory to inspect this user's entries, or returns `None` if it does not exist.
    /// The directory may be unsafe to listen in.
    pub(super) fn existing(path: &Path) -> Result<Option<Self>, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let place = match open_at(fs::CWD, path, flags, Mode::empty()) {
            Ok(place) => place,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        let status = fs::fstat(&place)?;
        Ok(Some(Self {
            path: path.to_owned(),
            place,
            id: DirectoryId {
                device: status.st_dev,
                inode: status.st_ino,
            },
        }))
    }

    /// Opens a directory, and creates it if necessary. Returns `None` if it is a symbolic link that
    /// another user may have placed there.
    fn find(path: &Path, shared: bool) -> Result<Option<OwnedFd>, Errno> {
        const FLAGS: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
        let mode = if shared { 0o711 } else { 0o700 };
        // The last component of `/`, or of a path that ends in `..`, cannot be a link.
        let Some(Component::Normal(name)) = path.components().next_back() else {
            return open_at(fs::CWD, path, FLAGS, Mode::empty()).map(Some);
        };
        let around = match path.parent() {
            Some(around) if !around.as_os_str().is_empty() => around,
            _ => Path::new("."),
        };
        let made = DirBuilder::new().recursive(true).mode(mode).create(around);
        made.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let around = open_at(fs::CWD, around, FLAGS, Mode::empty())?;
        // An existing directory is opened even if this user could not create it.
        let made = fs::mkdirat(&around, name, Mode::from_raw_mode(mode));
        match open_at(&around, name, FLAGS | OFlags::NOFOLLOW, Mode::empty()) {
            Err(Errno::NOENT) => Err(made.err().unwrap_or(Errno::NOENT)),
            Err(errno @ (Errno::LOOP | Errno::NOTDIR)) => {
                let link = fs::statat(&around, name, AtFlags::SYMLINK_NOFOLLOW)?;
                if FileType::from_raw_mode(link.st_mode) != FileType::Symlink {
                    return Err(errno);
                }
                let status = fs::fstat(&around)?;
                // Even if the directory is sticky, other users could have taken the name first.
                if status.st_mode & WRITABLE_BY_OTHERS != 0 || !is_trusted(status.st_uid) {
                    return Ok(None);
                }
                open_at(&around, name, FLAGS, Mode::empty()).map(Some)
            }
            result => result.map(Some),
        }
    }

    /// Opens the directory for its entries and locks, which needs the permission to list it.
    pub(super) fn open_entries(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        open_at(&self.place, ".", flags, Mode::empty())
    }

    /// Returns the directory's entries.
    pub(super) fn entries(&self) -> Result<Dir, Errno> {
        Dir::new(self.open_entries()?)
    }

    pub(super) fn id(&self) -> DirectoryId {
        self.id
    }

    /// Returns the path of an entry, for calls that accept only paths.
    pub(super) fn path_of(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.path.join(name.as_ref())
    }

    /// Returns the status of a socket of this user, or `None` for any other entry.
    pub(super) fn own_socket(&self, name: &str) -> Option<Stat> {
        let status = fs::statat(&self.place, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let is_own = status.st_uid == rustix::process::geteuid().as_raw();
        let is_socket = FileType::from_raw_mode(status.st_mode) == FileType::Socket;
        (is_own && is_socket).then_some(status)
    }

    /// Sets the permissions of an entry that is not a link.
    pub(super) fn set_mode(&self, name: &str, mode: u32) -> Result<(), Errno> {
        fs::chmodat(
            &self.place,
            name,
            Mode::from_raw_mode(mode),
            AtFlags::empty(),
        )
    }

    /// Renames an entry, and replaces an existing entry with the new name.
    pub(super) fn rename(&self, from: &str, to: &str) -> Result<(), Errno> {
        fs::renameat(&self.place, from, &self.place, to)
    }

    /// Gives an entry a second name. Fails with [`Errno::EXIST`] if the name exists.
    pub(super) fn link(&self, from: &str, to: &str) -> Result<(), Errno> {
        fs::linkat(&self.place, from, &self.place, to, AtFlags::empty())
    }

    /// Returns whether two names exist and refer to the same file.
    pub(super) fn are_same(&self, one: &str, other: &str) -> bool {
        self.file_id(one)
            .is_some_and(|file| self.file_id(other) == Some(file))
    }

    /// Returns the identity of the file with a name, if it exists.
    pub(super) fn file_id(&self, name: &str) -> Option<(u64, u64)> {
        let status = fs::statat(&self.place, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some((status.st_dev, status.st_ino))
    }

    /// Opens a file of this user, and creates it if necessary.
    pub(super) fn create(&self, name: &str) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        open_at(&self.place, name, flags, Mode::RUSR | Mode::WUSR)
    }

    /// Creates a file that only this user may read or write. Fails with [`Errno::EXIST`] if the
    /// name exists.
    pub(super) fn create_new(&self, name: &str) -> Result<OwnedFd, Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        open_at(&self.place, name, flags, Mode::RUSR | Mode::WUSR)
    }

    /// Opens a file that only this user can have written or read, or returns `None` for any other
    /// entry.
    pub(super) fn own_file(&self, name: &str) -> Option<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = open_at(&self.place, name, flags, Mode::empty()).ok()?;
        let status = fs::fstat(&file).ok()?;
        let is_own = status.st_uid == rustix::process::geteuid().as_raw()
            && FileType::from_raw_mode(status.st_mode) == FileType::RegularFile
            && status.st_mode & 0o077 == 0;
        is_own.then_some(file)
    }

    /// Removes an entry that is not a directory.
    pub(super) fn remove(&self, name: &str) -> Result<(), Errno> {
        fs::unlinkat(&self.place, name, AtFlags::empty())
    }
}

/// Returns whether only this process's user and root can change what a user owns.
fn is_trusted(owner: u32) -> bool {
    let own = rustix::process::geteuid().as_raw();
    owner == 0 || owner == own && !process::is_nobody(owner)
}

/// Opens a path that starts at a directory. Some file systems are interrupted by signals.
fn open_at(
    around: impl AsFd,
    path: impl AsRef<Path>,
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    retry_on_intr(|| fs::openat(&around, path.as_ref(), flags, mode))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    /// A directory that is removed on drop.
    struct Sandbox(PathBuf);

    impl Sandbox {
        fn new(name: &str) -> Self {
            let name = format!("xh-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir(&path).expect("a directory");
            Self(path)
        }

        fn set_mode(&self, mode: u32) {
            fs::set_permissions(&self.0, Permissions::from_mode(mode)).expect("changed");
        }
    }

    impl Drop for Sandbox {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn links_of_others_are_refused() {
        let place = Sandbox::new("links");
        let target = place.0.join("target");
        fs::create_dir(&target).expect("a directory");
        fs::set_permissions(&target, Permissions::from_mode(0o700)).expect("changed");
        let link = place.0.join("link");
        symlink(&target, &link).expect("a link");
        for mode in [0o777, 0o1777, 0o770] {
            place.set_mode(mode);
            let refused = SocketDirectory::open(&link, false).expect_err("refused");
            assert!(refused.to_string().contains("symbolic link"), "{refused}");
            SocketDirectory::open(&target, false).expect("no link");
        }
        // A link is accepted if only this user could have created it.
        place.set_mode(0o700);
        let linked = SocketDirectory::open(&link, false).expect("an own link");
        let direct = SocketDirectory::open(&target, false).expect("no link");
        assert_eq!(linked.id(), direct.id());
        fs::remove_dir(&target).expect("removed");
        assert!(SocketDirectory::open(&link, false).is_err());
        assert!(!target.exists());
    }

    #[test]
    fn directories_are_made_and_looked_at() {
        let place = Sandbox::new("made");
        let deep = place.0.join("a/b");
        let opened = SocketDirectory::open(&deep, false).expect("made");
        let mode = fs::metadata(&deep).expect("made").permissions().mode();
        assert_eq!(mode & 0o7777, 0o700);
        fs::set_permissions(&deep, Permissions::from_mode(0o777)).expect("changed");
        assert!(SocketDirectory::open(&deep, false).is_err());
        SocketDirectory::open(&deep, true).expect("others are admitted");
        // Later changes of the path do not matter.
        let moved = place.0.join("moved");
        fs::rename(&deep, &moved).expect("moved");
        fs::write(moved.join("entry"), "").expect("a file");
        opened.remove("entry").expect("removed");
        let file = place.0.join("file");
        fs::write(&file, "").expect("a file");
        let refused = SocketDirectory::open(&file, false).expect_err("refused");
        assert!(refused.to_string().contains("cannot be used"), "{refused}");
    }
}
