//! Addresses of exporters: one socket for each process, in a directory.

use crate::error::{Error, Result};
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The environment variable that names the socket directory. Set it to one directory in all
/// containers that share.
pub const SOCKET_DIR_VARIABLE: &str = "CROSSHANDLE_SOCKET_DIR";

/// Bytes of the longest socket directory: what fits into a socket address, less a socket's name.
const MAX_DIRECTORY_BYTES: usize = 107 - 24;

/// The users whose processes may open what a context exports, and whose exports it may open.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum PeerPolicy {
    /// Processes of this process's effective user.
    #[default]
    SameUser,
    /// Processes of these users too.
    Users(Vec<u32>),
    /// All users who can reach the socket directory.
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

/// Returns the random number that names this process to importers. Never zero.
pub(crate) fn exporter_id() -> Result<u64> {
    static ID: OnceLock<u64> = OnceLock::new();
    if let Some(id) = ID.get() {
        return Ok(*id);
    }
    let mut bytes = [0; 8];
    crate::os::process::random(&mut bytes).map_err(Error::os("reading random bytes"))?;
    Ok(*ID.get_or_init(|| u64::from_ne_bytes(bytes).max(1)))
}

/// Returns the directories to look in, best first. The first one is where exporters listen.
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

/// Returns the socket directories of this process, best first, unless
/// [`ContextOptions::socket_dir`](crate::ContextOptions::socket_dir) names one. Exporters listen in
/// the first one; importers look in all. They may not exist yet.
pub fn socket_directories() -> Vec<PathBuf> {
    directories(None)
}

/// Returns the path of an exporter's socket in `directory`.
pub(super) fn socket_path(directory: &Path, exporter: u64) -> PathBuf {
    directory.join(format!("{exporter:016x}.sock"))
}

/// Returns the exporter whose socket has this name.
pub(super) fn exporter_of(socket: &Path) -> Option<u64> {
    let name = socket.file_name()?.to_str()?.strip_suffix(".sock")?;
    u64::from_str_radix(name, 16).ok()
}

/// Makes sure that `directory` exists and is safe to listen in. `shared`: other users are admitted.
pub(super) fn prepare(directory: &Path, shared: bool) -> Result<()> {
    if directory.as_os_str().len() > MAX_DIRECTORY_BYTES {
        return Err(Error::invalid(format!(
            "the socket directory {} has more than {MAX_DIRECTORY_BYTES} characters; choose a shorter one",
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
    // A user who can write there could replace this process's socket, unless the directory is sticky.
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
