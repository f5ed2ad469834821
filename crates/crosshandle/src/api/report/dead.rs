//! Removal of the sockets of processes that were killed.

use super::ask::sockets_in;
use crate::error::{Error, Result};
use crate::ipc::broker::dead_socket_lock;
use crate::os::{descriptor, lock, socket};
use rustix::io::Errno;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A socket that a process left behind when it was killed.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DeadSocket {
    /// The path of the socket.
    pub socket: PathBuf,
    /// The random number that named the process, as 16 hexadecimal digits.
    pub exporter: String,
}

/// Returns the sockets in `directory` whose processes have ended, and removes nothing. A directory
/// that does not exist has none.
///
/// # Errors
/// - [`Error::Unsupported`]: other machines may use the directory too, and their sockets look dead from
///   here.
/// - [`Error::Os`]: the directory cannot be read.
pub fn dead_sockets(directory: &Path) -> Result<Vec<DeadSocket>> {
    let failed = |error: std::io::Error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        Error::os("reading the socket directory")(errno)
    };
    let opened = match File::open(directory) {
        Ok(opened) => opened,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    if !descriptor::is_on_this_machine_alone(&opened) {
        return Err(Error::Unsupported(format!(
            "other machines may use the socket directory {} too, and their sockets look dead from here; \
             remove the dead ones on the machine that made them",
            directory.display()
        )));
    }
    let uid = rustix::process::geteuid().as_raw();
    let is_dead = |socket: &PathBuf| {
        let is_own = fs::symlink_metadata(socket).is_ok_and(|found| found.uid() == uid);
        // A lock that cannot be asked for says nothing.
        let is_locked = exporter_of(socket).is_some_and(|exporter| {
            lock::is_held(opened.as_fd(), dead_socket_lock(exporter)).unwrap_or(false)
        });
        // A socket gets its name only once its exporter listens, so no new one is taken for dead.
        is_own && !is_locked && socket::try_connect(socket) == Err(Errno::CONNREFUSED)
    };
    let sockets = sockets_in(directory).map_err(failed)?;
    Ok(sockets
        .into_iter()
        .filter(is_dead)
        .map(|socket| DeadSocket {
            exporter: exporter_of(&socket).map_or(String::new(), |id| format!("{id:016x}")),
            socket,
        })
        .collect())
}

/// Removes the sockets in `directory` whose processes have ended, and returns them. Living and stopped
/// processes keep theirs.
///
/// # Errors
/// As those of [`dead_sockets`]; also [`Error::Os`] if one cannot be removed.
pub fn remove_dead(directory: &Path) -> Result<Vec<DeadSocket>> {
    let mut dead = dead_sockets(directory)?;
    let mut failure = None;
    dead.retain(|found| match fs::remove_file(&found.socket) {
        Ok(()) => true,
        // Another process has removed it.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
        Err(error) => {
            failure = Some(Errno::from_io_error(&error).unwrap_or(Errno::IO));
            false
        }
    });
    match failure {
        Some(errno) if dead.is_empty() => Err(Error::os("removing a dead socket")(errno)),
        _ => Ok(dead),
    }
}

/// Returns the exporter whose socket has this name: 16 hexadecimal digits and `.sock`.
pub(super) fn exporter_of(socket: &Path) -> Option<u64> {
    let digits = socket.file_name()?.to_str()?.strip_suffix(".sock")?;
    let is_name = digits.len() == 16
        && digits
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    is_name.then(|| u64::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dead_sockets_are_removed() {
        let name = format!("xh-dead-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir(&directory).expect("a directory");
        let path = |name: &str| directory.join(name);
        let listen = |name: &str| socket::listen(&path(name)).expect("a socket");
        let living = listen("0000000000000004.sock");
        drop(listen("0000000000000008.sock"));
        drop(listen("agent.sock"));
        drop(listen("deadbeef.sock"));
        fs::write(path("000000000000000c.sock"), "no socket").expect("a file");
        std::os::unix::fs::symlink(path("agent.sock"), path("0000000000000010.sock"))
            .expect("a link");
        let dead = dead_sockets(&directory).expect("listed");
        let exporters: Vec<_> = dead.iter().map(|found| &*found.exporter).collect();
        assert_eq!(exporters, ["0000000000000008"]);
        assert!(path("0000000000000008.sock").exists());
        assert_eq!(remove_dead(&directory).expect("removed"), dead);
        assert_eq!(remove_dead(&directory).expect("nothing left"), []);
        assert_eq!(fs::read_dir(&directory).expect("listed").count(), 5);
        drop(living);
        fs::remove_dir_all(&directory).expect("removed");
        assert_eq!(remove_dead(&directory).expect("no directory"), []);
    }

    #[test]
    fn directories_of_other_machines_are_left_alone() {
        // No list of file systems can be tried here, so one that is not in ours stands for them.
        let refused = remove_dead(Path::new("/proc")).expect_err("not ours alone");
        assert!(matches!(refused, Error::Unsupported(_)));
    }
}
