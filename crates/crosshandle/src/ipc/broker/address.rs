//! Where exporters are found: one socket a process, in a directory.

use crate::error::{Error, Result};
use crate::os::socket;
use rustix::io::Errno;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

/// Names the socket directory. Set it to one directory in all containers that share.
pub const SOCKET_DIR_VARIABLE: &str = "CROSSHANDLE_SOCKET_DIR";

/// The longest path that fits into a socket address, less the name of a socket in it.
const DIRECTORY_MAX: usize = 107 - 24;

/// Who may open what a context exports, and whose exports it may open.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum PeerPolicy {
    /// Processes of this process's effective user.
    #[default]
    SameUser,
    /// Processes of these users too.
    Users(Vec<u32>),
    /// Everybody who can reach the socket directory.
    Anyone,
}

impl PeerPolicy {
    pub(crate) fn admits(&self, uid: u32) -> bool {
        let same = uid == rustix::process::geteuid().as_raw();
        match self {
            Self::SameUser => same,
            Self::Users(users) => same || users.contains(&uid),
            Self::Anyone => true,
        }
    }
}

/// A random number that names this process to importers. Never zero.
pub(crate) fn exporter_id() -> Result<u64> {
    static ID: OnceLock<u64> = OnceLock::new();
    if let Some(id) = ID.get() {
        return Ok(*id);
    }
    let mut bytes = [0; 8];
    crate::os::process::random(&mut bytes).map_err(Error::os("reading random bytes"))?;
    Ok(*ID.get_or_init(|| u64::from_ne_bytes(bytes).max(1)))
}

/// The directories to look in, best first. The first one is where exporters listen.
pub(crate) fn directories(chosen: Option<&Path>) -> Vec<PathBuf> {
    if let Some(path) = chosen {
        return vec![path.to_owned()];
    }
    if let Some(path) = std::env::var_os(SOCKET_DIR_VARIABLE).filter(|path| !path.is_empty()) {
        return vec![path.into()];
    }
    let uid = rustix::process::geteuid().as_raw();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty());
    let mut all: Vec<PathBuf> = runtime
        .map(PathBuf::from)
        .into_iter()
        .chain([format!("/run/user/{uid}").into()])
        // `su` leaves another user's directory in the environment.
        .filter(|path| fs::metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == uid))
        .map(|path| path.join("crosshandle"))
        .collect();
    all.push(std::env::temp_dir().join(format!("crosshandle-{uid}")));
    all.dedup();
    all
}

/// The socket directories of this process, best first, unless
/// [`ContextOptions::socket_dir`](crate::ContextOptions::socket_dir) names one. Exporters listen in
/// the first one; importers look in all. They may not exist yet.
pub fn socket_directories() -> Vec<PathBuf> {
    directories(None)
}

/// The name of a process's socket in `directory`.
pub(crate) fn socket_path(directory: &Path, exporter: u64) -> PathBuf {
    directory.join(format!("{exporter:016x}.sock"))
}

/// Makes sure that `directory` exists and is safe to listen in. `shared`: others are admitted.
pub(crate) fn prepare(directory: &Path, shared: bool) -> Result<()> {
    if directory.as_os_str().len() > DIRECTORY_MAX {
        return Err(Error::invalid(format!(
            "the socket directory {} has more than {DIRECTORY_MAX} characters; choose a shorter one",
            directory.display()
        )));
    }
    let mode = if shared { 0o711 } else { 0o700 };
    let created = DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(directory);
    let metadata = created.and_then(|()| fs::metadata(directory));
    let metadata = metadata.map_err(|error| {
        Error::invalid(format!(
            "the socket directory {} cannot be used: {error}; set {SOCKET_DIR_VARIABLE}",
            directory.display()
        ))
    })?;
    // Whoever can write there could put a socket of his own in place of ours. Sticky: he can't.
    let (owner, mode) = (metadata.uid(), metadata.mode());
    let trusted = owner == 0 || owner == rustix::process::geteuid().as_raw();
    if !shared && (!trusted || mode & 0o022 != 0 && mode & 0o1000 == 0) {
        return Err(Error::invalid(format!(
            "the socket directory {} can be changed by other users; make it yours alone \
             (chmod 700) or set {SOCKET_DIR_VARIABLE}",
            directory.display()
        )));
    }
    Ok(())
}

/// Removes sockets whose processes were killed before they could do so themselves.
pub(crate) fn sweep(directory: &Path) {
    const MOST: usize = 4096;
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for entry in entries.flatten().take(MOST) {
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        let path = entry.path();
        if !is_socket || path.extension().is_none_or(|extension| extension != "sock") {
            continue;
        }
        // A socket gets its name only once somebody listens, so nobody new is refused here.
        let patience = Duration::from_millis(5);
        if let Err(Errno::CONNREFUSED) = socket::connect(&path, patience) {
            let _ = fs::remove_file(&path);
        }
    }
}
