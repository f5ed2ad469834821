//! Two network namespaces with a pair of veths between them, each with its own boot identity, and
//! peer processes in them.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Maximum time for the pair of veths to come up.
const UP_LIMIT: Duration = Duration::from_secs(10);
/// Maximum time for a peer to reply, unless it is asked to wait.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// Two hosts. Dropping the value ends their processes and removes the namespaces.
pub(crate) struct Hosts {
    number: u32,
    directory: PathBuf,
}

/// A process on one of the hosts.
pub(crate) struct Peer {
    child: Child,
    input: ChildStdin,
    answers: Receiver<String>,
}

impl Hosts {
    /// Makes two hosts. Panics if that is not possible.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = std::process::id() % 30_000 * 8 + NEXT.fetch_add(1, Ordering::Relaxed) % 8;
        let directory = std::env::temp_dir().join(format!("xhl-{number}"));
        let hosts = Self { number, directory };
        hosts.set_up().expect("network namespaces");
        hosts
    }

    fn set_up(&self) -> Result<(), String> {
        for side in ["a", "b"] {
            let sockets = self.directory.join(side);
            std::fs::create_dir_all(&sockets).map_err(|error| error.to_string())?;
            let boot_id = format!("{side}0000000-0000-4000-8000-{:012x}\n", self.number);
            std::fs::write(self.directory.join(format!("boot-{side}")), boot_id)
                .map_err(|error| error.to_string())?;
            ip(&["netns", "add", &self.namespace(side)])?;
        }
        let (a, b) = (self.namespace("a"), self.namespace("b"));
        let (veth_a, veth_b) = (self.interface("a"), self.interface("b"));
        ip(&[
            "link", "add", &veth_a, "netns", &a, "type", "veth", "peer", "name", &veth_b, "netns",
            &b,
        ])?;
        for side in ["a", "b"] {
            let (namespace, interface) = (self.namespace(side), self.interface(side));
            let address = format!("{}/24", self.address(side));
            ip(&["-n", &namespace, "addr", "add", &address, "dev", &interface])?;
            ip(&["-n", &namespace, "link", "set", "lo", "up"])?;
            ip(&["-n", &namespace, "link", "set", &interface, "up"])?;
        }
        for side in ["a", "b"] {
            self.wait_until_up(side)?;
        }
        Ok(())
    }

    /// Waits until the kernel has seen that the other end of the pair is up. UCX does not use an
    /// interface before that.
    fn wait_until_up(&self, side: &str) -> Result<(), String> {
        let (namespace, interface) = (self.namespace(side), self.interface(side));
        let start = Instant::now();
        while !ip(&["-n", &namespace, "link", "show", "dev", &interface])?.contains("state UP") {
            if start.elapsed() > UP_LIMIT {
                return Err(format!("{interface} does not come up"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn namespace(&self, side: &str) -> String {
        format!("xhl-{}-{side}", self.number)
    }

    pub(crate) fn interface(&self, side: &str) -> String {
        format!("xhl{}{side}", self.number)
    }

    pub(crate) fn address(&self, side: &str) -> &'static str {
        match side {
            "a" => "10.77.0.1",
            _ => "10.77.0.2",
        }
    }

    /// Takes the network between the hosts down, or up again.
    pub(crate) fn connect(&self, up: bool) {
        let state = if up { "up" } else { "down" };
        let interface = self.interface("a");
        ip(&["-n", &self.namespace("a"), "link", "set", &interface, state]).unwrap();
    }

    /// Filters all packets between the hosts except those of the link's control connection.
    /// `action` is `drop` or `reject with tcp reset`. `None` ends the filtering.
    ///
    /// # Errors
    /// Returns an error if `nft` is not installed or fails.
    pub(crate) fn filter_data(&self, control: &str, action: Option<&str>) -> Result<(), String> {
        let port = control.rsplit(':').next().unwrap_or_default();
        let mut rules = "table inet xhl {}\ndelete table inet xhl\n".to_owned();
        if let Some(action) = action {
            // Packets with the flag RST must arrive, so that the reset is reported.
            let rule = format!(
                "tcp sport {port} accept; tcp dport {port} accept; tcp flags & rst == rst accept; \
                 meta l4proto tcp {action};"
            );
            for hook in ["input", "output"] {
                rules += &format!(
                    "table inet xhl {{ chain {hook} {{ type filter hook {hook} priority 0; {rule} }}; }}\n"
                );
            }
        }
        let mut child = Command::new("ip")
            .args(["netns", "exec", &self.namespace("a"), "nft", "-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("ip: {error}"))?;
        if let Some(mut input) = child.stdin.take() {
            // The write fails if `nft` is not installed, which the exit status shows.
            let _ = input.write_all(rules.as_bytes());
        }
        let output = child
            .wait_with_output()
            .map_err(|error| error.to_string())?;
        match output.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        }
    }

    /// Starts a process on one of the hosts.
    pub(crate) fn start(&self, side: &str) -> Peer {
        Peer::spawn(self.command(side, &program()))
    }

    /// Makes a command that runs a program on one of the hosts. The caller may add arguments.
    pub(crate) fn command(&self, side: &str, program: &Path) -> Command {
        let script = "mount --bind \"$1\" /proc/sys/kernel/random/boot_id && shift && exec \"$@\"";
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.namespace(side)])
            .args(["unshare", "--mount", "sh", "-c", script, "sh"])
            .arg(self.directory.join(format!("boot-{side}")))
            .arg(program)
            .env("CROSSHANDLE_SOCKET_DIR", self.directory.join(side))
            // UCX's log would go to the standard output.
            .env("UCX_LOG_LEVEL", "fatal");
        command
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for side in ["a", "b"] {
            let _ = ip(&["netns", "delete", &self.namespace(side)]);
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Returns the path of the peer program. `CROSSHANDLE_LINK_PEER` names it on machines where the
/// tests were not built.
pub(crate) fn program() -> PathBuf {
    let named = std::env::var_os("CROSSHANDLE_LINK_PEER").map(PathBuf::from);
    named.unwrap_or_else(|| env!("CARGO_BIN_EXE_crosshandle-link-peer").into())
}

/// Runs `ip`, and returns what it printed.
fn ip(arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("ip")
        .args(arguments)
        .output()
        .map_err(|error| format!("ip: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!(
            "ip {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}

impl Peer {
    /// Starts a process on this host itself.
    pub(crate) fn local() -> Self {
        Self::spawn(Command::new(program()))
    }

    /// Starts a process on this host itself, with these environment variables.
    pub(crate) fn with(variables: &[(&str, String)]) -> Self {
        let mut command = Command::new(program());
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        // UCX's log would go to the standard output.
        command.env("UCX_LOG_LEVEL", "fatal");
        Self::spawn(command)
    }

    pub(crate) fn spawn(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            child,
            input,
            answers,
        }
    }

    /// Sends a request. The reply comes later.
    pub(crate) fn begin(&mut self, request: &str) {
        writeln!(self.input, "{request}").unwrap();
        self.input.flush().unwrap();
    }

    /// Waits for the reply to the oldest request.
    pub(crate) fn end(&mut self) -> Result<String, String> {
        let line = self.answers.recv_timeout(ANSWER_LIMIT);
        let line = line.map_err(|error| format!("no answer: {error}"))?;
        match line.split_once(' ') {
            Some(("ok", answer)) => Ok(answer.to_owned()),
            Some((_, error)) => Err(error.to_owned()),
            None => panic!("{line}"),
        }
    }

    pub(crate) fn try_ask(&mut self, request: &str) -> Result<String, String> {
        self.begin(request);
        self.end()
    }

    /// Sends a request that must succeed, and returns its reply.
    pub(crate) fn ask(&mut self, request: &str) -> String {
        self.try_ask(request)
            .unwrap_or_else(|error| panic!("{request}: {error}"))
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns `true` if the process has called `abort`, or does so within some seconds.
    pub(crate) fn has_aborted(&mut self) -> bool {
        use std::os::unix::process::ExitStatusExt;
        let start = Instant::now();
        while start.elapsed() < UP_LIMIT {
            if let Ok(Some(status)) = self.child.try_wait() {
                return status.signal() == Some(rustix::process::Signal::ABORT.as_raw());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    /// Kills the process, as in a crash.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.kill();
    }
}
