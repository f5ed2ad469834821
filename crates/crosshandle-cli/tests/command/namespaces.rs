//! Sharing across PID namespaces, as between containers: both need one socket directory, no more.

use crate::common::{Running, Sandbox, contents, text};
use rustix::process::Signal;
use std::ffi::OsStr;
use std::process::Command;

/// Arguments of `unshare` that run a command as the first process of a new PID namespace.
const UNSHARE: [&str; 5] = ["--map-root-user", "--pid", "--fork", "--kill-child", "--"];

#[test]
fn memory_and_events_cross_pid_namespaces() {
    let possible = Command::new("unshare").args(UNSHARE).arg("true").output();
    if !possible.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: this system lets no user make namespaces");
        return;
    }
    let sandbox = Sandbox::new();
    let all = contents(3 << 20);
    let file = sandbox.file("data", &all);

    // From outside to inside.
    let (_sharer, memory) = sandbox.hold(["share", text(&file)]);
    let read = inside(&sandbox, ["read", &memory]).finish().expect(0);
    assert!(read.stdout == all);
    let (holder, event) = sandbox.hold(["event", "new"]);
    let mut waiter = inside(&sandbox, ["-v", "event", "wait", &event, "--next"]);
    assert!(waiter.stderr.line().contains("waiting for signal 1"));
    inside(&sandbox, ["event", "signal", &event])
        .finish()
        .expect(0);
    waiter.finish().expect(0);

    // The other way round.
    let mut sharer = inside(&sandbox, ["share", text(&file)]);
    let memory = sharer.stdout.line();
    let read = sandbox.run(["read", &memory]).expect(0);
    assert!(read.stdout == all);

    // A waiter notices a death in another namespace, too.
    let mut waiter = inside(&sandbox, ["-v", "event", "wait", &event, "--next"]);
    assert!(waiter.stderr.line().contains("waiting for signal 2"));
    holder.signal(Signal::KILL);
    waiter.finish().expect(4);
}

fn inside<S: AsRef<OsStr>>(sandbox: &Sandbox, arguments: impl IntoIterator<Item = S>) -> Running {
    let command = sandbox.command(arguments);
    let mut outer = Command::new("unshare");
    outer
        .args(UNSHARE)
        .arg(command.get_program())
        .args(command.get_args())
        .env("CROSSHANDLE_SOCKET_DIR", sandbox.sockets());
    Running::start(outer)
}
