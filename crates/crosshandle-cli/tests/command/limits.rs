//! Limits of the system: if a limit is reached, the command names it and loses no data.

use crate::common::{Running, Sandbox, contents, text};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

/// Runs a command in a shell, after another shell command.
fn after(sandbox: &Sandbox, first: &str, arguments: &[&str]) -> Running {
    let command = sandbox.command(arguments);
    let mut shell = Command::new("bash");
    shell
        .arg("-c")
        .arg(format!("{first} && exec \"$0\" \"$@\""))
        .arg(command.get_program())
        .args(command.get_args())
        .env("CROSSHANDLE_SOCKET_DIR", sandbox.sockets());
    Running::start(shell)
}

#[test]
fn the_doctor_survives_low_limits() {
    let sandbox = Sandbox::new();
    for (limit, row) in [
        ("ulimit -f 1000", "file size"),
        ("ulimit -v 60000", "address space"),
        ("ulimit -v 300000", "address space"),
        ("ulimit -v 1000000", "address space"),
    ] {
        let report = after(&sandbox, limit, &["doctor", "--json"]).finish();
        assert!(matches!(report.code(), Some(0 | 1)), "{limit}: {report:?}");
        let report = report.json();
        let checks = report["checks"].as_array().expect("a list");
        let low = checks.iter().find(|check| check["check"] == row);
        assert_eq!(low.expect("the row")["level"], "note", "{report}");
        for check in checks.iter().filter(|check| check["level"] == "problem") {
            let found = check["found"].as_str().expect("text");
            // The child process has the same limit. If the child fails, the check refers to its
            // message instead.
            let names_limit = found.contains("ulimit") || found.contains("second process");
            assert!(names_limit, "{limit}: {found}");
        }
    }
}

#[test]
fn the_doctor_knows_the_memory_that_is_left() {
    let sandbox = Sandbox::new();
    let report = sandbox.run(["doctor", "--json"]).expect(0).json();
    let checks = report["checks"].as_array().expect("a list");
    let memory = checks.iter().find(|check| check["check"] == "memory");
    let found = memory.expect("the row")["found"].as_str().expect("text");
    assert!(found.contains("left"), "{found}");
}

#[test]
#[ignore = "needs a control group; `cargo xtask test` runs it"]
fn a_file_too_large_to_share_is_refused() {
    let sandbox = Sandbox::new();
    let root = Path::new("/sys/fs/cgroup");
    let controllers = fs::read_to_string(root.join("cgroup.subtree_control"));
    let (root, limit) = match controllers {
        Ok(all) if all.contains("memory") => (root.to_owned(), "memory.max"),
        _ => (root.join("memory"), "memory.limit_in_bytes"),
    };
    let group = root.join(format!("xh-command-{}", std::process::id()));
    fs::create_dir(&group).expect("a control group");
    fs::write(group.join(limit), (64 << 20).to_string()).expect("a limit");
    let file = sandbox.path("large");
    // The file is sparse, so it takes no space.
    let large = fs::File::create(&file).expect("a file");
    large.set_len(200 << 20).expect("a size");
    let join = format!("echo 0 > {}/cgroup.procs", group.display());
    let refused = after(&sandbox, &join, &["share", text(&file)]).finish();
    let doctor = after(&sandbox, &join, &["doctor"]).finish();
    fs::remove_dir(&group).expect("no process is left");
    let refused = refused.expect(1);
    let named = group.to_str().expect("text");
    assert!(refused.stderr.contains(named), "{}", refused.stderr);
    assert!(doctor.expect(0).text().contains("control group"));
}

/// Checks that the old file is unchanged, and is the only file in its directory.
#[track_caller]
fn assert_untouched(directory: &Path, old: &[u8]) {
    assert_eq!(fs::read(directory.join("old")).expect("still there"), old);
    assert_eq!(fs::read_dir(directory).expect("listed").count(), 1);
}

#[test]
fn a_file_is_replaced_only_when_it_is_complete() {
    let sandbox = Sandbox::new();
    let all = contents(300 << 10);
    let file = sandbox.file("data", &all);
    let (sharer, handle) = sandbox.hold(["share", text(&file)]);
    let directory = sandbox.path("out");
    fs::create_dir(&directory).expect("a directory");
    let old = directory.join("old");
    fs::write(&old, "old").expect("a file");
    fs::set_permissions(&old, fs::Permissions::from_mode(0o640)).expect("changed");
    let read = ["read", &handle, "-o", text(&old)];

    let refused = after(&sandbox, "ulimit -f 100", &read).finish().expect(1);
    assert!(refused.stderr.contains("ulimit -f"), "{}", refused.stderr);
    assert_untouched(&directory, b"old");

    // Standard output may also be a file.
    let to_file = format!("ulimit -f 100 && exec > {}", text(&sandbox.path("stdout")));
    let refused = after(&sandbox, &to_file, &read[..2]).finish().expect(1);
    // The context also keeps its events in a file, which may be the first one to exceed the limit.
    let (file, memory) = ("too large", "ulimit -f");
    let names_limit = refused.stderr.contains(file) || refused.stderr.contains(memory);
    assert!(names_limit, "{}", refused.stderr);

    sandbox.run(read).expect(0);
    assert_untouched(&directory, &all);
    let mode = fs::metadata(&old).expect("there").permissions().mode();
    assert_eq!(mode & 0o7777, 0o640);

    // The target of a link is replaced, and the link stays.
    let link = sandbox.path("link");
    symlink(&old, &link).expect("a link");
    fs::write(&old, "old").expect("a file");
    sandbox.run(["read", &handle, "-o", text(&link)]).expect(0);
    assert!(link.is_symlink());
    assert_untouched(&directory, &all);

    // A device is written directly.
    sandbox.run(["read", &handle, "-o", "/dev/null"]).expect(0);
    let refused = sandbox.run(["read", &handle, "-o", "/dev/full"]).expect(1);
    assert!(
        refused.stderr.contains("No space left"),
        "{}",
        refused.stderr
    );

    fs::write(&old, "old").expect("a file");
    drop(sharer);
    sandbox.run(read).expect(4);
    assert_untouched(&directory, b"old");
}

#[test]
#[ignore = "needs user namespaces; `cargo xtask test` runs it"]
fn a_full_disk_keeps_the_old_file() {
    const UNSHARE: [&str; 3] = ["--map-root-user", "--mount", "--"];
    let sandbox = Sandbox::new();
    let file = sandbox.file("data", &contents(300 << 10));
    let (_sharer, handle) = sandbox.hold(["share", text(&file)]);
    let directory = sandbox.path("full");
    fs::create_dir(&directory).expect("a directory");
    let script = "mount -t tmpfs -o size=100k none \"$1\" && echo old > \"$1/old\" || exit 99
        \"$0\" read \"$2\" -o \"$1/old\"; code=$?
        cat \"$1/old\"; ls -A \"$1\"; exit $code";
    let mut command = Command::new("unshare");
    command
        .args(UNSHARE)
        .args(["bash", "-c", script])
        .arg(sandbox.command(["read"]).get_program())
        .args([text(&directory), &handle])
        .env("CROSSHANDLE_SOCKET_DIR", sandbox.sockets());
    let refused = Running::start(command).finish().expect(1);
    assert!(
        refused.stderr.contains("No space left"),
        "{}",
        refused.stderr
    );
    assert_eq!(refused.text(), "old\nold\n");
}

#[test]
fn a_directory_behind_a_strangers_link_is_refused() {
    let sandbox = Sandbox::new();
    let open = sandbox.path("open");
    fs::create_dir(&open).expect("a directory");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o1777)).expect("changed");
    let link = open.join("sockets");
    symlink(sandbox.sockets(), &link).expect("a link");
    let refused = sandbox
        .run(["event", "new", "--socket-dir", text(&link)])
        .expect(1);
    assert!(
        refused.stderr.contains("symbolic link"),
        "{}",
        refused.stderr
    );
    let report = sandbox.run(["doctor", "--json", "--socket-dir", text(&link)]);
    let report = report.expect(1).json();
    let checks = report["checks"].as_array().expect("a list");
    let row = checks
        .iter()
        .find(|check| check["check"] == "socket directory");
    assert_eq!(row.expect("the row")["level"], "problem", "{report}");
}

#[test]
#[ignore = "needs user namespaces; `cargo xtask test` runs it"]
fn a_process_without_proc_is_on_the_same_host() {
    const UNSHARE: [&str; 3] = ["--map-root-user", "--mount", "--"];
    let hidden = |program: &str, arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command
            .args(UNSHARE)
            .args([
                "bash",
                "-c",
                "mount -t tmpfs none /proc || exit 99; exec \"$0\" \"$@\"",
            ])
            .arg(program)
            .args(arguments);
        command
    };
    let sandbox = Sandbox::new();
    let start = |arguments: &[&str]| {
        let program = sandbox.command(["event"]).get_program().to_owned();
        let mut command = hidden(program.to_str().expect("text"), arguments);
        command.env("CROSSHANDLE_SOCKET_DIR", sandbox.sockets());
        Running::start(command)
    };
    // Here the exporter cannot read the identity of the host.
    let mut holder = start(&["event", "new"]);
    let event = holder.stdout.line();
    sandbox.run(["event", "signal", &event]).expect(0);
    let explained = sandbox.run(["inspect", &event, "--json"]).expect(0).json();
    assert!(explained["same_host"].is_null(), "{explained}");
    let (_holder, event) = sandbox.hold(["event", "new"]);
    start(&["event", "signal", &event]).finish().expect(0);
    let file = sandbox.file("data", b"bytes");
    let (_sharer, memory) = sandbox.hold(["share", text(&file)]);
    let read = start(&["read", &memory]).finish().expect(0);
    assert_eq!(read.text(), "bytes");
}
