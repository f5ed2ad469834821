//! A check of the socket directory: its path, and whether exporters can listen there.

use super::check::Check;
use crosshandle::report::SOCKET_DIR_VARIABLE;
use rustix::fs::{Access, access};
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

const CHECK: &str = "socket directory";

/// Maximum length of a socket's path in bytes: the size of `sun_path` in the kernel, without the
/// final zero byte.
const SOCKET_PATH_MAX_BYTES: usize = 107;
/// Number of bytes in a socket's path that are reserved for the name of the exporter's socket.
const SOCKET_NAME_BYTES: usize = 24;

pub(super) fn check(chosen: Option<&Path>) -> Check {
    let directories = crosshandle::report::socket_directories();
    let by_variable = std::env::var_os(SOCKET_DIR_VARIABLE).is_some_and(|name| !name.is_empty());
    let (directory, why) = match (chosen, directories.first()) {
        (Some(directory), _) => (directory, "by --socket-dir"),
        (None, Some(directory)) if by_variable => (&**directory, SOCKET_DIR_VARIABLE),
        (None, Some(directory)) => (&**directory, "by default"),
        (None, None) => return Check::problem(CHECK, "none", format!("set {SOCKET_DIR_VARIABLE}")),
    };
    let named = format!("{} ({why})", directory.display());
    let problem = |what: String| {
        Check::problem(
            CHECK,
            format!("{named} {what}"),
            format!("name another directory in {SOCKET_DIR_VARIABLE}, or with --socket-dir"),
        )
    };
    let len = directory.as_os_str().len();
    if len + SOCKET_NAME_BYTES > SOCKET_PATH_MAX_BYTES {
        return problem(format!(
            "has {len} characters, but only {} leave room for a socket's name",
            SOCKET_PATH_MAX_BYTES - SOCKET_NAME_BYTES
        ));
    }
    // Exporters create the directory in the same way.
    let created = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory);
    let metadata = match created.and_then(|()| fs::metadata(directory)) {
        Ok(metadata) => metadata,
        Err(error) => return problem(format!("cannot be created: {error}")),
    };
    if is_strange_link(directory) {
        return problem("is a symbolic link in a directory that other users can change".into());
    }
    if let Err(error) = access(directory, Access::WRITE_OK | Access::EXEC_OK) {
        return problem(format!("cannot be written to: {error}"));
    }
    let (mode, owner) = (metadata.mode() & 0o7777, metadata.uid());
    let is_trusted_owner = owner == 0 || owner == rustix::process::geteuid().as_raw();
    if !is_trusted_owner || mode & 0o022 != 0 && mode & 0o1000 == 0 {
        return problem(format!(
            "other users can change it (mode {mode:o}, owner {owner})"
        ));
    }
    Check::ok(CHECK, format!("{named}, mode {mode:o}, {len} characters"))
}

/// Returns `true` if a path is a symbolic link that another user may have created.
fn is_strange_link(path: &Path) -> bool {
    let around = match path.parent() {
        Some(around) if !around.as_os_str().is_empty() => around,
        _ => Path::new("."),
    };
    path.is_symlink()
        && fs::metadata(around).is_ok_and(|around| {
            let own = rustix::process::geteuid().as_raw();
            around.mode() & 0o022 != 0 || around.uid() != 0 && around.uid() != own
        })
}
