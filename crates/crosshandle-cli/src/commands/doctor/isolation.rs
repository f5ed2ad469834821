//! Checks of mechanisms that isolate processes: Yama, namespaces and containers.

use super::check::Check;
use std::fs;
use std::path::Path;

/// Name of the initial PID namespace, whose inode number is fixed.
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";
/// Name of the initial user namespace, whose inode number is fixed.
const FIRST_USER_NAMESPACE: &str = "user:[4026531837]";

pub(super) fn yama() -> Check {
    const CHECK: &str = "ptrace permission";
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    let found = scope.map_or_else(
        |_| "Yama is absent".to_owned(),
        |scope| format!("Yama's ptrace_scope is {}", scope.trim()),
    );
    Check::ok(
        CHECK,
        format!("{found}; none is needed, since descriptors cross through sockets"),
    )
}

pub(super) fn namespaces() -> Check {
    const CHECK: &str = "namespaces";
    let namespace = |name: &str| {
        fs::read_link(format!("/proc/self/ns/{name}"))
            .map(|link| link.to_string_lossy().into_owned())
    };
    let (Ok(pid), Ok(user)) = (namespace("pid"), namespace("user")) else {
        return Check::note(CHECK, "unknown", "mount /proc to see them");
    };
    let container = container().map_or_else(String::new, |how| format!(", in a container ({how})"));
    if pid == FIRST_PID_NAMESPACE && user == FIRST_USER_NAMESPACE && container.is_empty() {
        return Check::ok(CHECK, "those of the host");
    }
    let mut advice = "to share with processes outside, mount one directory in all containers and \
                      name it in CROSSHANDLE_SOCKET_DIR"
        .to_owned();
    if user != FIRST_USER_NAMESPACE {
        advice.push_str(
            "; in a user namespace, users outside look like others: both sides must admit them",
        );
    }
    Check::note(CHECK, format!("{pid}, {user}{container}"), advice)
}

/// Returns the kind of container in which this process runs, if any.
fn container() -> Option<String> {
    for (path, name) in [
        ("/.dockerenv", "Docker"),
        ("/run/.containerenv", "Podman"),
        ("/var/run/secrets/kubernetes.io", "Kubernetes"),
    ] {
        if Path::new(path).exists() {
            return Some(name.to_owned());
        }
    }
    std::env::var("container").ok()
}
