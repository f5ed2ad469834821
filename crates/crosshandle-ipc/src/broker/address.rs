//! Addresses of exporters: each process has one socket in a directory.

use crosshandle_os::fork::PerProcess;
use crosshandle_os::process;
use crosshandle_types::error::{Error, Result};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The environment variable that names the socket directory. Set it to the same directory in all
/// containers that share objects.
pub const SOCKET_DIR_VARIABLE: &str = "CROSSHANDLE_SOCKET_DIR";

/// The users whose processes may open what a context exports, and whose exports the context may
/// open.
///
/// In a user namespace that does not map all users, the kernel shows each unmapped user as the same
/// one (65534, `nobody`). Only [`Anyone`](Self::Anyone) admits that user.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum PeerPolicy {
    /// Only processes of this process's effective user.
    #[default]
    SameUser,
    /// Processes of this process's effective user and of these users.
    Users(Vec<u32>),
    /// All users who can access the socket directory.
    Anyone,
}

impl PeerPolicy {
    pub fn admits(&self, uid: u32) -> bool {
        let users: &[u32] = match self {
            Self::SameUser => &[],
            Self::Users(users) => users,
            Self::Anyone => return true,
        };
        let is_wanted = uid == rustix::process::geteuid().as_raw() || users.contains(&uid);
        is_wanted && !process::is_nobody(uid)
    }
}

/// Returns the random number that identifies this process to importers. Never zero.
pub fn exporter_id() -> Result<u64> {
    static ID: PerProcess<OnceLock<u64>> = PerProcess::new(OnceLock::new);
    if let Some(id) = ID.get() {
        return Ok(*id);
    }
    let mut bytes = [0; 8];
    process::random(&mut bytes)
        .map_err(Error::os("asking the kernel for random bytes (getrandom)"))?;
    Ok(*ID.get_or_init(|| u64::from_ne_bytes(bytes).max(1)))
}

/// Returns the directories that are searched for exporters, in order of preference. Exporters
/// listen in the first one.
pub fn directories(chosen: Option<&Path>) -> Vec<PathBuf> {
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

/// Returns the socket directories of this process in order of preference. Exporters listen in the
/// first one, and importers search all of them. They may not exist yet.
/// `ContextOptions::socket_dir` takes precedence.
pub fn socket_directories() -> Vec<PathBuf> {
    directories(None)
}

/// Suffix of the names under which a holder serves exporters' importers.
const HELD_SUFFIX: &str = ".held";

/// Returns the exporter whose importers a holder serves under this name, or `None` for other
/// names.
pub fn held_exporter_of(name: &str) -> Option<u64> {
    let (exporter, _) = exporter_of(&format!("{}.sock", name.strip_suffix(HELD_SUFFIX)?))?;
    Some(exporter)
}

/// Returns the name of an exporter's socket.
pub(super) fn socket_name(exporter: u64) -> String {
    format!("{exporter:016x}.sock")
}

/// Returns the name of an exporter's socket before it listens.
pub(super) fn unnamed_name(exporter: u64) -> String {
    format!("{exporter:016x}.new")
}

/// Returns the name under which a holder serves memory that an exporter has handed over.
pub fn held_name(exporter: u64) -> String {
    format!("{exporter:016x}{HELD_SUFFIX}")
}

/// Returns the path of an exporter's socket in `directory`.
pub(super) fn socket_path(directory: &Path, exporter: u64) -> PathBuf {
    directory.join(socket_name(exporter))
}

/// Returns the exporter of a socket name, and whether it is the name of a socket that does not
/// listen yet. Returns `None` for names that no exporter uses.
pub fn exporter_of(name: &str) -> Option<(u64, bool)> {
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
