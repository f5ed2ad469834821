//! Removal of sockets whose processes were killed before they could do so themselves.
//!
//! Each exporter has a liveness lock on a byte of the socket directory, as long as its socket is
//! there. So living exporters are told from dead ones without connecting to them: only a socket
//! whose lock is free is tried, and removed if it refuses.
//!
//! In a directory that other machines have too, such as one of NFS, nothing is removed: their
//! exporters' locks don't show here, and their sockets refuse connections from here.

use super::address::exporter_of;
use crate::ipc::tuning::{MAX_SWEEP_LOOKS, MAX_SWEEP_PROBES};
use crate::os::{descriptor, lock, socket};
use rustix::io::Errno;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Returns the byte of the socket directory that an exporter locks. Offsets of files end at 2⁶³.
pub(crate) fn lock_of(exporter: u64) -> u64 {
    exporter >> 2
}

/// Removes dead sockets, at most a few. Called without a lock; never waits.
pub(super) fn remove_dead_sockets(directory: &Path) {
    let (Ok(entries), Ok(opened)) = (fs::read_dir(directory), File::open(directory)) else {
        return;
    };
    if !descriptor::is_on_this_machine_alone(&opened) {
        return;
    }
    // A lock that cannot be asked for says nothing.
    let is_locked = |exporter| lock::is_held(opened.as_fd(), lock_of(exporter)).unwrap_or(false);
    let mut probes = 0;
    for entry in entries.flatten().take(MAX_SWEEP_LOOKS) {
        let path = entry.path();
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        match exporter_of(&path) {
            Some(exporter) if is_socket && !is_locked(exporter) => {}
            _ => continue,
        }
        if probes == MAX_SWEEP_PROBES {
            return;
        }
        probes += 1;
        // A socket gets its name only once its exporter listens, so no new one is removed here.
        if socket::try_connect(&path) == Err(Errno::CONNREFUSED) {
            let _ = fs::remove_file(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipc::broker::address::socket_path;

    #[test]
    fn only_sockets_that_refuse_are_removed() {
        let name = format!("xh-sweep-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir(&directory).expect("a directory");
        let path = |exporter| socket_path(&directory, exporter);
        let listen = |exporter| socket::listen(&path(exporter)).expect("a socket");
        // Neither has a lock.
        let living = listen(4);
        drop(listen(8));
        fs::write(path(12), "no socket").expect("a file");
        remove_dead_sockets(&directory);
        let opened = File::open(&directory).expect("opened");
        let is_swept = descriptor::is_on_this_machine_alone(&opened);
        assert_eq!(path(8).exists(), !is_swept);
        assert!(path(4).exists() && path(12).exists());
        drop(living);
        fs::remove_dir_all(&directory).expect("removed");
    }

    #[test]
    fn sockets_of_other_machines_are_not_looked_at() {
        // No list of file systems can be tried here, so one that is not in ours stands for them.
        let unknown = File::open("/proc").expect("opened");
        assert!(!descriptor::is_on_this_machine_alone(&unknown));
    }
}
