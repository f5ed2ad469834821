//! Sharing between containers, which need only one directory in common.
//!
//! Each container has its own read-only root, which contains only the command and its libraries.
//! The socket directory is its only volume. The conformance suite (topic `namespaces`) tests each
//! namespace separately.

use crate::common::{Finished, Running, Sandbox, contents, text};
use rustix::process::{Pid, Signal, kill_process};
use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Environment variables with the paths of programs that are not in `PATH`.
const BWRAP: &str = "BWRAP";
const PODMAN: &str = "PODMAN";

/// A way to isolate the command from this process.
trait Container {
    /// Returns the command line up to the program's own arguments. The program runs in the root of
    /// `image`. If killing the started process does not end the program, the program's process ID
    /// is written to `pid_file`.
    fn command(&self, image: &Path, sockets: &Path, pid_file: &Path) -> Command;
}

/// A new PID namespace, with the machine's files.
struct PidNamespace;

impl Container for PidNamespace {
    fn command(&self, image: &Path, sockets: &Path, _pid_file: &Path) -> Command {
        let mut command = Command::new("unshare");
        command
            .args(["--map-root-user", "--pid", "--fork", "--kill-child", "--"])
            .arg(env!("CARGO_BIN_EXE_crosshandle"))
            .current_dir(image)
            .env("CROSSHANDLE_SOCKET_DIR", sockets);
        command
    }
}

/// All namespaces, without a network and without privileges.
struct Bubblewrap;

impl Container for Bubblewrap {
    fn command(&self, image: &Path, sockets: &Path, _pid_file: &Path) -> Command {
        let mut command = Command::new(program(BWRAP, "bwrap"));
        command
            .args(["--unshare-all", "--die-with-parent", "--new-session"])
            .args(["--ro-bind", text(image), "/"])
            .args(["--proc", "/proc", "--dev", "/dev"])
            .args(["--bind", text(sockets), "/sockets"])
            .args(["--setenv", "CROSSHANDLE_SOCKET_DIR", "/sockets"])
            .args(["--chdir", "/", "/crosshandle"]);
        command
    }
}

/// Podman's default namespaces, control groups, capabilities and system call filter, with the
/// additional restrictions of a careful operator.
struct Podman;

impl Container for Podman {
    fn command(&self, image: &Path, sockets: &Path, pid_file: &Path) -> Command {
        let mut command = Command::new(program(PODMAN, "podman"));
        command
            .args(["run", "--rm", "--network=none", "--read-only"])
            .args(["--cap-drop=all", "--security-opt=no-new-privileges"])
            // Podman asks for more than a restricted user may have.
            .args(["--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096"])
            .arg(format!("--volume={}:/sockets", sockets.display()))
            .arg("--env=CROSSHANDLE_SOCKET_DIR=/sockets")
            .args(["--pidfile", text(pid_file)])
            .args(["--rootfs", text(image), "/crosshandle"]);
        command
    }
}

/// A process, in a container or outside, that is killed when dropped.
struct Placed {
    /// `None` when the process has finished.
    running: Option<Running>,
    pid_file: PathBuf,
}

impl Placed {
    fn start(command: Command, pid_file: PathBuf) -> Self {
        let running = Some(Running::start(command));
        Self { running, pid_file }
    }

    fn running(&mut self) -> &mut Running {
        self.running.as_mut().expect("it has not finished")
    }

    fn finish(mut self) -> Finished {
        self.running.take().expect("it has not finished").finish()
    }

    fn kill(&self) {
        let inner = fs::read_to_string(&self.pid_file).ok();
        match inner.and_then(|text| Pid::from_raw(text.trim().parse().ok()?)) {
            Some(inner) => drop(kill_process(inner, Signal::KILL)),
            None => self
                .running
                .iter()
                .for_each(|running| running.signal(Signal::KILL)),
        }
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        if self.running.is_some() {
            self.kill();
        }
    }
}

fn program(variable: &str, usual: &str) -> PathBuf {
    std::env::var_os(variable).map_or_else(|| usual.into(), PathBuf::from)
}

#[test]
#[ignore = "needs user namespaces; `cargo xtask test` runs it"]
fn memory_and_events_cross_pid_namespaces() {
    share_with(&PidNamespace);
}

#[test]
#[ignore = "needs bubblewrap; `cargo xtask test` runs it"]
fn memory_and_events_cross_bubblewrap_containers() {
    share_with(&Bubblewrap);
}

#[test]
#[ignore = "needs Podman; `cargo xtask test` runs it"]
fn memory_and_events_cross_podman_containers() {
    share_with(&Podman);
}

type Start<'a> = &'a dyn Fn(&[&str]) -> Placed;

/// Shares from outside to inside, from inside to outside, and between two containers.
fn share_with(container: &dyn Container) {
    let sandbox = Sandbox::new();
    let image = sandbox.path("image");
    let all = contents(3 << 20);
    make_image(&image, &all);

    let number = Cell::new(0);
    let inside = |arguments: &[&str]| {
        number.set(number.get() + 1);
        let pid_file = sandbox.path(&format!("pid-{}", number.get()));
        let mut command = container.command(&image, &sandbox.sockets(), &pid_file);
        command.args(arguments);
        Placed::start(command, pid_file)
    };
    let outside = |arguments: &[&str]| {
        let mut command = sandbox.command(arguments);
        command.current_dir(&image);
        Placed::start(command, PathBuf::new())
    };
    let (inside, outside): (Start<'_>, Start<'_>) = (&inside, &outside);

    for (exporter, importer) in [(outside, inside), (inside, outside), (inside, inside)] {
        let mut sharer = exporter(&["share", "data"]);
        let memory = sharer.running().stdout.line();
        let read = importer(&["read", &memory]).finish().expect(0);
        assert!(read.stdout == all);

        let mut holder = exporter(&["event", "new"]);
        let event = holder.running().stdout.line();
        for (waits, signals) in [(importer, exporter), (exporter, importer)] {
            let mut waiter = waits(&["-v", "event", "wait", &event, "--next"]);
            let said = waiter.running().stderr.line();
            assert!(said.contains("waiting for signal"), "{said}");
            signals(&["event", "signal", &event]).finish().expect(0);
            waiter.finish().expect(0);
        }
        let mut waiter = importer(&["-v", "event", "wait", &event, "--next"]);
        let said = waiter.running().stderr.line();
        assert!(said.contains("waiting for signal 3"), "{said}");
        holder.kill();
        waiter.finish().expect(4);
    }
}

/// Makes a root directory with the command, its libraries and a file.
fn make_image(image: &Path, data: &[u8]) {
    let command = Path::new(env!("CARGO_BIN_EXE_crosshandle"));
    for directory in ["dev", "proc", "sys", "tmp", "run", "etc", "sockets"] {
        fs::create_dir_all(image.join(directory)).expect("a directory for the test");
    }
    fs::copy(command, image.join("crosshandle")).expect("the command");
    fs::write(image.join("data"), data).expect("a file for the test");
    let output = Command::new("ldd").arg(command).output().expect("ldd");
    for library in String::from_utf8_lossy(&output.stdout)
        .split_whitespace()
        .filter(|word| word.starts_with('/'))
    {
        let copy = image.join(library.trim_start_matches('/'));
        fs::create_dir_all(copy.parent().expect("a directory")).expect("a directory");
        fs::copy(library, copy).expect("a library of the command");
    }
}
