//! Addresses of exporters: one socket for each process, in a directory.

use crate::error::{Error, Result};
use crate::os::fork::PerProcess;
use crate::os::process;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The environment variable that names the socket directory. Set it to one directory in all
/// containers that share.
pub const SOCKET_DIR_VARIABLE: &str = "CROSSHANDLE_SOCKET_DIR";

/// The users whose processes may open what a context exports, and whose exports it may open.
///
/// In a user namespace that does not map all users, the kernel shows each of the others as the same
/// one (65534, `nobody`). That one is admitted by [`Anyone`](Self::Anyone) alone.
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
        let users: &[u32] = match self {
            Self::SameUser => &[],
            Self::Users(users) => users,
            Self::Anyone => return true,
        };
        let is_wanted = uid == rustix::process::geteuid().as_raw() || users.contains(&uid);
        is_wanted && !process::is_nobody(uid)
    }
}

/// Returns the random number that names this process to importers. Never zero.
pub(crate) fn exporter_id() -> Result<u64> {
    static ID: PerProcess<OnceLock<u64>> = PerProcess::new(OnceLock::new);
    if let Some(id) = ID.get() {
        return Ok(*id);
    }
    let mut bytes = [0; 8];
    process::random(&mut bytes)
        .map_err(Error::os("asking the kernel for random bytes (getrandom)"))?;
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

/// Returns whether the environment names the socket directory.
pub(super) fn is_set_by_environment() -> bool {
    std::env::var_os(SOCKET_DIR_VARIABLE).is_some_and(|path| !path.is_empty())
}

/// Returns the socket directories of this process, best first, unless
/// [`ContextOptions::socket_dir`](crate::ContextOptions::socket_dir) names one. Exporters listen in
/// the first one; importers look in all. They may not exist yet.
pub fn socket_directories() -> Vec<PathBuf> {
    directories(None)
}

/// The end of the names under which a holder answers for exporters.
const HELD_SUFFIX: &str = ".held";

/// Returns the exporter that a holder answers for under this name; `None` for other names.
pub(crate) fn held_exporter_of(name: &str) -> Option<u64> {
    let (exporter, _) = exporter_of(&format!("{}.sock", name.strip_suffix(HELD_SUFFIX)?))?;
    Some(exporter)
}

/// Returns the name of an exporter's socket.
pub(super) fn socket_name(exporter: u64) -> String {
    format!("{exporter:016x}.sock")
}

/// Returns the name of an exporter's socket until it listens.
pub(super) fn unnamed_name(exporter: u64) -> String {
    format!("{exporter:016x}.new")
}

/// Returns the name under which a holder answers for what an exporter has handed over.
pub(crate) fn held_name(exporter: u64) -> String {
    format!("{exporter:016x}{HELD_SUFFIX}")
}

/// Returns the path of an exporter's socket in `directory`.
pub(super) fn socket_path(directory: &Path, exporter: u64) -> PathBuf {
    directory.join(socket_name(exporter))
}

/// Returns the exporter whose socket has this name, and whether it is the name of one that does not listen
/// yet. `None` for names that no exporter uses.
pub(crate) fn exporter_of(name: &str) -> Option<(u64, bool)> {
    let (number, kind) = name.split_once('.')?;
    let is_unnamed = match kind {
        "sock" => false,
        "new" => true,
        _ => return None,
    };
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if number.len() != 16 || !number.bytes().all(is_digit) {
        return None;
    }
    Some((u64::from_str_radix(number, 16).ok()?, is_unnamed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_exporters_use_are_theirs() {
        let name = socket_name(0xab);
        assert_eq!(exporter_of(&name), Some((0xab, false)));
        assert_eq!(exporter_of(&held_name(0xab)), None);
        assert_eq!(held_exporter_of(&held_name(0xab)), Some(0xab));
        assert_eq!(held_exporter_of(&name), None);
        let unnamed = unnamed_name(0xab);
        assert_eq!(exporter_of(&unnamed), Some((0xab, true)));
        for other in [
            "agent.sock",
            "ab.sock",
            "00000000000000AB.sock",
            "+0000000000000ab.sock",
            "000000000000000ab.sock",
            "00000000000000ab.sock.new",
            "00000000000000ab",
        ] {
            assert_eq!(exporter_of(other), None, "{other}");
        }
    }

    #[test]
    fn only_users_who_are_somebody_are_admitted() {
        let own = rustix::process::geteuid().as_raw();
        assert!(PeerPolicy::SameUser.admits(own));
        assert!(!PeerPolicy::SameUser.admits(own + 1));
        assert!(PeerPolicy::Users(vec![own + 1]).admits(own + 1));
        assert!(PeerPolicy::Anyone.admits(own + 1));
    }
}
