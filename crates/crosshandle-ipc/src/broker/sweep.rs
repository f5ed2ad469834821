//! Removal of sockets that killed processes left behind.
//!
//! Each exporter holds a liveness lock on a byte of the socket directory while its socket exists.
//! The locks distinguish living exporters from dead ones without a connection. Only a socket with a
//! free lock is probed by a connection, and is removed if it refuses.
//!
//! Nothing is removed in a directory that other machines may share, for example on NFS. The locks
//! of their exporters do not show here, and their sockets refuse connections from here.

use super::address::{exporter_of, socket_path};
use super::directory::SocketDirectory;
use crosshandle_os::{descriptor, lock, socket};
use crosshandle_types::error::{Error, Result};
use rustix::fs::Stat;
use rustix::io::Errno;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Maximum number of directory entries that a new exporter checks for sockets of killed processes,
/// which takes about 2 ms. The limit bounds the delay of the first handle.
const MAX_SWEEP_LOOKS: usize = 4096;

/// Maximum number of apparently dead sockets that a new exporter probes by connecting to them. It
/// removes those that refuse.
const MAX_SWEEP_PROBES: usize = 64;

/// Age from which an unnamed socket is treated as left over by a killed process. A process that was
/// stopped for this long while it began to listen, without a liveness lock, must start again.
const MIN_UNNAMED_AGE: Duration = Duration::from_secs(60);

/// Returns the byte of the socket directory that an exporter locks. File offsets end at 2⁶³.
pub(super) fn lock_of(exporter: u64) -> u64 {
    exporter >> 2
}

/// Permission bit of a socket whose exporter holds a lock in the directory. It is the owner's
/// execute permission, which has no meaning for sockets. Not every exporter can lock.
pub(super) const HAS_LOCK: u32 = 0o100;

/// Returns whether an exporter is known to be dead, even if another process has a copy of its
/// socket, such as a child of a raw clone(2). Returns `false` if the death cannot be determined.
pub(super) fn is_known_dead(directory: &Path, exporter: u64) -> bool {
    let socket = fs::symlink_metadata(socket_path(directory, exporter));
    let has_lock = socket.is_ok_and(|socket| {
        socket.file_type().is_socket() && socket.permissions().mode() & HAS_LOCK != 0
    });
    has_lock
        && File::open(directory).is_ok_and(|opened| {
            descriptor::is_on_this_machine_alone(&opened)
                && lock::is_held(opened.as_fd(), lock_of(exporter)) == Ok(false)
        })
}

/// A socket whose process has ended.
pub struct DeadSocket {
    pub path: PathBuf,
    pub exporter: u64,
}

/// Removes a limited number of this user's dead sockets. Never waits. The caller must hold no lock.
pub(super) fn remove_dead_sockets(directory: &SocketDirectory) {
    let Ok(Some(dead)) = find_dead(directory, MAX_SWEEP_LOOKS, MAX_SWEEP_PROBES) else {
        return;
    };
    for (name, _) in dead {
        let _ = directory.remove(&name);
    }
}

/// Returns all of this user's dead sockets in the directory at `path`, which may not exist. With
/// `removes`, it removes them and returns the removed ones.
///
/// # Errors
/// Returns [`Error::Unsupported`] for a directory that other machines may share, and [`Error::Os`].
pub fn dead_sockets(path: &Path, removes: bool) -> Result<Vec<DeadSocket>> {
    let failed = Error::os("reading the socket directory");
    let Some(directory) = SocketDirectory::existing(path).map_err(&failed)? else {
        return Ok(Vec::new());
    };
    let dead = find_dead(&directory, usize::MAX, usize::MAX).map_err(&failed)?;
    let dead = dead.ok_or_else(|| {
        Error::Unsupported(format!(
            "other machines may use the socket directory {} too, and their sockets look dead from here; \
             remove the dead ones on the machine that made them",
            path.display()
        ))
    })?;
    let mut found = Vec::new();
    for (name, exporter) in dead {
        match removes.then(|| directory.remove(&name)) {
            // Another process has removed it.
            Some(Err(Errno::NOENT)) => {}
            Some(Err(errno)) => return Err(Error::os("removing a dead socket")(errno)),
            _ => found.push(DeadSocket {
                path: directory.path_of(&name),
                exporter,
            }),
        }
    }
    Ok(found)
}

/// Returns the names and exporters of this user's dead sockets. Limits the number of checked
/// entries and of connection attempts. Returns `None` if dead sockets cannot be determined from
/// here.
fn find_dead(
    directory: &SocketDirectory,
    looks: usize,
    probes: usize,
) -> Result<Option<Vec<(String, u64)>>, Errno> {
    let (entries, opened) = (directory.entries()?, directory.open_entries()?);
    if !descriptor::is_on_this_machine_alone(&opened) {
        return Ok(None);
    }
    // A lock that cannot be queried tells nothing.
    let is_locked = |exporter| lock::is_held(opened.as_fd(), lock_of(exporter)).unwrap_or(false);
    let suspects = entries.flatten().take(looks).filter_map(|entry| {
        let name = entry.file_name().to_str().ok()?.to_owned();
        let (exporter, is_unnamed) = exporter_of(&name)?;
        let status = directory.own_socket(&name)?;
        // An exporter without a lock is still starting, and does not listen yet.
        let is_dead = !(is_locked(exporter) || is_unnamed && age(&status) < MIN_UNNAMED_AGE);
        is_dead.then_some((name, exporter))
    });
    // A socket gets its name only after its exporter listens, so no new one is treated as dead.
    let refuses = |(name, _): &(String, u64)| {
        socket::try_connect(&directory.path_of(name)) == Err(Errno::CONNREFUSED)
    };
    Ok(Some(suspects.take(probes).filter(refuses).collect()))
}

/// Returns the time since an entry was created or changed, or zero if that time is in the future.
fn age(status: &Stat) -> Duration {
    let made = Duration::from_secs(status.st_ctime.try_into().unwrap_or(0));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap_or_default().saturating_sub(made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::address::{socket_name, unnamed_name};
    use crosshandle_os::lock::LockKind;
    use std::os::unix::fs::{chown, symlink};

    #[test]
    fn only_own_sockets_that_refuse_are_removed() {
        let name = format!("xh-sweep-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let directory = SocketDirectory::open(&path, false).expect("a directory");
        let listen = |name: &str| socket::listen(&path.join(name)).expect("a socket").0;
        // None of these sockets has a lock.
        let living = listen(&socket_name(4));
        drop(listen(&socket_name(8)));
        drop(listen(&unnamed_name(16)));
        drop(listen("agent.sock"));
        drop(listen("c.sock"));
        drop(listen(&socket_name(20)));
        symlink(socket_path(&path, 8), socket_path(&path, 24)).expect("a link");
        fs::write(socket_path(&path, 12), "no socket").expect("a file");
        // Only root can change the owner of a file.
        let is_of_another = chown(socket_path(&path, 20), Some(1234), None).is_ok();
        remove_dead_sockets(&directory);
        let opened = File::open(&path).expect("opened");
        let is_swept = descriptor::is_on_this_machine_alone(&opened);
        assert_eq!(socket_path(&path, 8).exists(), !is_swept);
        for name in [
            socket_name(4),
            socket_name(12),
            "agent.sock".into(),
            "c.sock".into(),
        ] {
            assert!(path.join(&name).exists(), "{name}");
        }
        assert!(socket_path(&path, 24).is_symlink());
        assert_eq!(socket_path(&path, 20).exists(), is_of_another || !is_swept);
        // This socket is too new.
        assert!(path.join(unnamed_name(16)).exists());
        drop(living);
        fs::remove_dir_all(&path).expect("removed");
    }

    #[test]
    fn only_an_exporter_whose_lock_is_gone_is_known_to_be_dead() {
        let name = format!("xh-dead-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir(&directory).expect("a directory");
        let listen = |exporter, mode| {
            let path = socket_path(&directory, exporter);
            let listener = socket::listen(&path).expect("a socket").0;
            let mode = fs::Permissions::from_mode(mode);
            fs::set_permissions(path, mode).expect("permissions");
            listener
        };
        let _listeners = [
            listen(4, 0o600 | HAS_LOCK),
            listen(8, 0o600),
            listen(12, 0o600 | HAS_LOCK),
        ];
        let opened = File::open(&directory).expect("opened");
        let is_local = descriptor::is_on_this_machine_alone(&opened);
        // The liveness thread holds the lock, because a process does not see its own locks.
        let locks = crate::liveness::LivenessLocks::get().expect("a thread");
        let held = locks.hold(opened.as_fd(), lock_of(12), LockKind::Shared);
        let lock = held.expect("locked");
        assert_eq!(is_known_dead(&directory, 4), is_local);
        assert!(!is_known_dead(&directory, 8), "it never had a lock");
        assert!(!is_known_dead(&directory, 12), "it lives");
        assert!(!is_known_dead(&directory, 16), "it has no socket");
        drop(lock);
        fs::remove_dir_all(&directory).expect("removed");
    }

    #[test]
    fn sockets_of_other_machines_are_not_looked_at() {
        // The tests cannot mount file systems, so an unlisted file system replaces the file systems
        // of other machines.
        let unknown = File::open("/proc").expect("opened");
        assert!(!descriptor::is_on_this_machine_alone(&unknown));
    }
}
