//! Removal of sockets that killed processes have left behind.

use crosshandle_ipc::broker;
use crosshandle_types::error::Result;
use std::path::{Path, PathBuf};

/// A socket that a process left behind when it was killed.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DeadSocket {
    /// The path of the socket.
    pub socket: PathBuf,
    /// The random number that identified the exporter, as 16 hexadecimal digits.
    pub exporter: String,
}

/// Returns the sockets of this user in `directory` whose processes have ended. Removes nothing. The
/// result is empty if the directory does not exist.
///
/// # Errors
/// - [`Error::Unsupported`](crate::Error::Unsupported) if other machines may use the directory too,
///   because their sockets look dead from here.
/// - [`Error::Os`](crate::Error::Os) if the directory cannot be read.
pub fn dead_sockets(directory: &Path) -> Result<Vec<DeadSocket>> {
    find(directory, false)
}

/// Removes the sockets of this user in `directory` whose processes have ended, and returns them.
/// The sockets of running and stopped processes remain.
///
/// # Errors
/// The errors of [`dead_sockets`], and [`Error::Os`](crate::Error::Os) if a socket cannot be
/// removed.
pub fn remove_dead(directory: &Path) -> Result<Vec<DeadSocket>> {
    find(directory, true)
}

fn find(directory: &Path, removes: bool) -> Result<Vec<DeadSocket>> {
    let dead = broker::dead_sockets(directory, removes)?.into_iter();
    let mut dead: Vec<_> = dead
        .map(|dead| DeadSocket {
            socket: dead.path,
            exporter: format!("{:016x}", dead.exporter),
        })
        .collect();
    dead.sort_by(|one, other| one.socket.cmp(&other.socket));
    Ok(dead)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crosshandle_os::socket;
    use crosshandle_types::error::Error;
    use std::fs;

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
        // The test cannot mount a shared file system, so it uses a file system that the library
        // does not accept.
        let refused = remove_dead(Path::new("/proc")).expect_err("not ours alone");
        assert!(matches!(refused, Error::Unsupported(_)));
    }
}
