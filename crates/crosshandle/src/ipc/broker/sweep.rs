//! Removal of sockets whose processes were killed before they could do so themselves.
//!
//! Each exporter has a liveness lock on a byte of the socket directory, as long as its socket is
//! there. So living exporters are told from dead ones without connecting to them: only a socket
//! whose lock is free is tried, and removed if it refuses.
//!
//! In a directory that other machines have too, such as one of NFS, nothing is removed: their
//! exporters' locks don't show here, and their sockets refuse connections from here.

use super::address::exporter_of;
use super::directory::SocketDirectory;
use crate::ipc::tuning::{MAX_SWEEP_LOOKS, MAX_SWEEP_PROBES, MIN_UNNAMED_AGE};
use crate::os::{descriptor, lock, socket};
use rustix::fs::Stat;
use rustix::io::Errno;
use std::os::fd::AsFd;
use std::time::{Duration, SystemTime};

/// Returns the byte of the socket directory that an exporter locks. Offsets of files end at 2⁶³.
pub(crate) fn lock_of(exporter: u64) -> u64 {
    exporter >> 2
}

/// Removes this user's dead sockets, at most a few. Called without a lock; never waits.
pub(super) fn remove_dead_sockets(directory: &SocketDirectory) {
    let (Ok(entries), Ok(opened)) = (directory.entries(), directory.open_entries()) else {
        return;
    };
    if !descriptor::is_on_this_machine_alone(&opened) {
        return;
    }
    // A lock that cannot be asked for says nothing.
    let is_locked = |exporter| lock::is_held(opened.as_fd(), lock_of(exporter)).unwrap_or(false);
    let mut probes = 0;
    for entry in entries.flatten().take(MAX_SWEEP_LOOKS) {
        let Some(name) = entry.file_name().to_str().ok() else {
            continue;
        };
        let Some((exporter, is_unnamed)) = exporter_of(name) else {
            continue;
        };
        let Some(status) = directory.own_socket(name) else {
            continue;
        };
        // An exporter without a lock is between two steps: it does not listen yet.
        if is_locked(exporter) || is_unnamed && age(&status) < MIN_UNNAMED_AGE {
            continue;
        }
        if probes == MAX_SWEEP_PROBES {
            return;
        }
        probes += 1;
        // A socket gets its name only once its exporter listens, so no new one is removed here.
        if socket::try_connect(&directory.path_of(name)) == Err(Errno::CONNREFUSED) {
            let _ = directory.remove(name);
        }
    }
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
    use crate::ipc::broker::address::{socket_name, socket_path, unnamed_name};
    use std::fs::{self, File};
    use std::os::unix::fs::{chown, symlink};

    #[test]
    fn only_own_sockets_that_refuse_are_removed() {
        let name = format!("xh-sweep-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let directory = SocketDirectory::open(&path, false).expect("a directory");
        let listen = |name: &str| socket::listen(&path.join(name)).expect("a socket");
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
    fn sockets_of_other_machines_are_not_looked_at() {
        // No list of file systems can be tried here, so one that is not in ours stands for them.
        let unknown = File::open("/proc").expect("opened");
        assert!(!descriptor::is_on_this_machine_alone(&unknown));
    }
}
