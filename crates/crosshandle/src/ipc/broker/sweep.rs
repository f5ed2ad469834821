//! Removal of sockets whose processes were killed before they could do so themselves.
//!
//! Each exporter has a liveness lock on a byte of the socket directory, as long as its socket is
//! there. So living exporters are told from dead ones without connecting to them: only a socket
//! whose lock is free is tried, and removed if it refuses.
//!
//! In a directory that other machines have too, such as one of NFS, nothing is removed: their
//! exporters' locks don't show here, and their sockets refuse connections from here.

use super::address::{exporter_of, socket_path};
use super::directory::SocketDirectory;
use crate::error::{Error, Result};
use crate::ipc::tuning::{MAX_SWEEP_LOOKS, MAX_SWEEP_PROBES, MIN_UNNAMED_AGE};
use crate::os::{descriptor, lock, socket};
use rustix::fs::Stat;
use rustix::io::Errno;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Returns the byte of the socket directory that an exporter locks. Offsets of files end at 2⁶³.
pub(super) fn lock_of(exporter: u64) -> u64 {
    exporter >> 2
}

/// The permission that a socket has whose exporter holds a lock in the directory: it lets the owner
/// execute it, which means nothing for sockets. Not every exporter can lock.
pub(super) const HAS_LOCK: u32 = 0o100;

/// Returns whether an exporter is known to be dead, whoever may have its socket still: a child of a
/// raw clone(2), say. `false` if that cannot be told.
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
pub(crate) struct DeadSocket {
    pub(crate) path: PathBuf,
    pub(crate) exporter: u64,
}

/// Removes this user's dead sockets, at most a few. Called without a lock; never waits.
pub(super) fn remove_dead_sockets(directory: &SocketDirectory) {
    let Ok(Some(dead)) = find_dead(directory, MAX_SWEEP_LOOKS, MAX_SWEEP_PROBES) else {
        return;
    };
    for (name, _) in dead {
        let _ = directory.remove(&name);
    }
}

/// Returns all of this user's dead sockets in the directory at `path`, which may not exist. `removes`:
/// removes them too, and returns those that it has removed.
///
/// # Errors
/// [`Error::Unsupported`] for a directory that other machines may have too; [`Error::Os`].
pub(crate) fn dead_sockets(path: &Path, removes: bool) -> Result<Vec<DeadSocket>> {
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

/// Returns the names of this user's dead sockets and their exporters, after at most so many looks at
/// entries and attempts to connect; `None` if that cannot be told from here.
fn find_dead(
    directory: &SocketDirectory,
    looks: usize,
    probes: usize,
) -> Result<Option<Vec<(String, u64)>>, Errno> {
    let (entries, opened) = (directory.entries()?, directory.open_entries()?);
    if !descriptor::is_on_this_machine_alone(&opened) {
        return Ok(None);
    }
    // A lock that cannot be asked for says nothing.
    let is_locked = |exporter| lock::is_held(opened.as_fd(), lock_of(exporter)).unwrap_or(false);
    let suspects = entries.flatten().take(looks).filter_map(|entry| {
        let name = entry.file_name().to_str().ok()?.to_owned();
        let (exporter, is_unnamed) = exporter_of(&name)?;
        let status = directory.own_socket(&name)?;
        // An exporter without a lock is between two steps: it does not listen yet.
        let is_dead = !(is_locked(exporter) || is_unnamed && age(&status) < MIN_UNNAMED_AGE);
        is_dead.then_some((name, exporter))
    });
    // A socket gets its name only once its exporter listens, so no new one is taken for dead.
    let refuses = |(name, _): &(String, u64)| {
        socket::try_connect(&directory.path_of(name)) == Err(Errno::CONNREFUSED)
    };
    Ok(Some(suspects.take(probes).filter(refuses).collect()))
}

/// Returns the time since an entry was made or changed; zero if that is in the future.
fn age(status: &Stat) -> Duration {
    let made = Duration::from_secs(status.st_ctime.try_into().unwrap_or(0));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap_or_default().saturating_sub(made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipc::broker::address::{socket_name, unnamed_name};
    use crate::os::lock::LockKind;
    use std::os::unix::fs::{chown, symlink};

    #[test]
    fn only_own_sockets_that_refuse_are_removed() {
        let name = format!("xh-sweep-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let directory = SocketDirectory::open(&path, false).expect("a directory");
        let listen = |name: &str| socket::listen(&path.join(name)).expect("a socket").0;
        // None has a lock.
        let living = listen(&socket_name(4));
        drop(listen(&socket_name(8)));
        drop(listen(&unnamed_name(16)));
        drop(listen("agent.sock"));
        drop(listen("c.sock"));
        drop(listen(&socket_name(20)));
        symlink(socket_path(&path, 8), socket_path(&path, 24)).expect("a link");
        fs::write(socket_path(&path, 12), "no socket").expect("a file");
        // Only root can give files away.
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
        // Too new.
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
        // As another process holds it: this one's own locks don't show.
        let locks = crate::ipc::liveness::LivenessLocks::get().expect("a thread");
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
        // No list of file systems can be tried here, so one that is not in ours stands for them.
        let unknown = File::open("/proc").expect("opened");
        assert!(!descriptor::is_on_this_machine_alone(&unknown));
    }
}
