//! Commands that observe other processes: ps, top, gc.

use crate::common::{Running, STEP_TIMEOUT, Sandbox, wait_for_end};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, OFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::fs::{Timespec, fcntl_setfl};
use rustix::net::{
    self, AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Instant;

/// Reports of four processes, three of which are stuck behind each other.
const REPORTS: &str = include_str!("../../src/commands/ps/fixture.json");

/// Size in bytes of a broker's reply.
const REPLY_BYTES: usize = 160;
/// Kind of a reply that carries a report.
const SENT: u8 = 2;

/// Exporters that reply with prepared reports until they are dropped.
struct FakeExporters {
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl FakeExporters {
    fn start(sandbox: &Sandbox) -> Self {
        let reports: Vec<serde_json::Value> = serde_json::from_str(REPORTS).expect("reports");
        let listeners: Vec<_> = reports
            .into_iter()
            .map(|report| {
                let exporter = report["exporter"].as_str().expect("a number");
                let path = sandbox.sockets().join(format!("{exporter}.sock"));
                let socket = net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None);
                let socket = socket.expect("a socket");
                net::bind(&socket, &SocketAddrUnix::new(path).expect("short")).expect("bound");
                net::listen(&socket, 16).expect("listening");
                (socket, report.to_string())
            })
            .collect();
        let (stop, stopped) = rustix::pipe::pipe().expect("a pipe");
        let thread = std::thread::spawn(move || answer_all(&listeners, &stop));
        Self {
            stop: Some(stopped),
            thread: Some(thread),
        }
    }
}

impl Drop for FakeExporters {
    fn drop(&mut self) {
        self.stop = None;
        let ended = self.thread.take().expect("once").join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

fn answer_all(listeners: &[(OwnedFd, String)], stop: &OwnedFd) {
    loop {
        let sockets = listeners.iter().map(|(socket, _)| socket);
        let mut descriptors: Vec<_> = sockets
            .chain([stop])
            .map(|socket| PollFd::new(socket, PollFlags::IN))
            .collect();
        poll(&mut descriptors, None).expect("polling");
        let ready: Vec<_> = descriptors
            .iter()
            .map(|descriptor| !descriptor.revents().is_empty())
            .collect();
        if ready[listeners.len()] {
            return;
        }
        for ((listener, report), _) in listeners.iter().zip(ready).filter(|(_, ready)| *ready) {
            let stream = net::accept_with(listener, SocketFlags::CLOEXEC).expect("accepted");
            // A process that only checks for a listener sends nothing.
            let mut request = [0; 256];
            let asked = net::recv(&stream, &mut request, RecvFlags::empty());
            if asked.is_ok_and(|(len, _)| len > 0) {
                answer(&stream, &request, report);
            }
        }
    }
}

fn answer(stream: &OwnedFd, request: &[u8], report: &str) {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("report", flags).expect("a file");
    assert_eq!(
        rustix::io::write(&file, report.as_bytes()),
        Ok(report.len())
    );
    fcntl_add_seals(
        &file,
        SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW,
    )
    .expect("sealed");
    let mut reply = [0; REPLY_BYTES];
    reply[..6].copy_from_slice(&request[..6]);
    reply[8] = SENT;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    let sent = net::sendmsg(
        stream,
        &[IoSlice::new(&reply)],
        &mut control,
        SendFlags::NOSIGNAL,
    );
    sent.expect("sent");
}

/// The terminal of a user of `top`.
struct TerminalRun {
    child: Child,
    master: OwnedFd,
    /// Kept open, so that the terminal's modes can be queried.
    terminal: OwnedFd,
    output: String,
}

impl TerminalRun {
    fn start(mut command: Command) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
            .expect("a terminal");
        grantpt(&master).expect("granted");
        unlockpt(&master).expect("unlocked");
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let terminal = ioctl_tiocgptpeer(&master, flags).expect("its other end");
        let size = Winsize {
            ws_row: 24,
            ws_col: 120,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&terminal, size).expect("a size");
        fcntl_setfl(&master, OFlags::NONBLOCK).expect("a mode");
        let end = || Stdio::from(terminal.try_clone().expect("a copy"));
        let child = command
            .env("TERM", "xterm-256color")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .expect("the command starts");
        Self {
            child,
            master,
            terminal,
            output: String::new(),
        }
    }

    /// Waits until the command has written this text, after the text of the previous call.
    fn await_text(&mut self, text: &str) {
        let deadline = Instant::now() + STEP_TIMEOUT;
        loop {
            if let Some(start) = self.output.find(text) {
                self.output.drain(..start + text.len());
                return;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).expect("a short time");
            let mut descriptors = [PollFd::new(&self.master, PollFlags::IN)];
            let ready = poll(&mut descriptors, Some(&left)).expect("polling");
            assert!(ready > 0, "no '{text}' in {:?}", self.output);
            self.read();
        }
    }

    fn read(&mut self) {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = rustix::io::read(&self.master, &mut bytes) {
            self.output += &String::from_utf8_lossy(&bytes[..count]);
        }
    }

    fn press(&self, keys: &str) {
        let written = rustix::io::write(&self.master, keys.as_bytes());
        assert_eq!(written, Ok(keys.len()));
    }

    fn is_raw(&self) -> bool {
        let modes = tcgetattr(&self.terminal).expect("modes").local_modes;
        !modes.contains(LocalModes::ICANON | LocalModes::ECHO)
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Waits for the end of the command, and checks that the terminal was restored.
    fn finish(mut self) {
        wait_for_end(self.pid());
        let status = self.child.wait().expect("it has ended");
        self.read();
        assert_eq!(status.code(), Some(0), "{:?}", self.output);
        assert!(!self.is_raw());
        // The main screen is active again, with a visible cursor.
        assert!(self.output.contains("\x1b[?1049l"), "{:?}", self.output);
        assert!(self.output.contains("\x1b[?25h"), "{:?}", self.output);
    }
}

impl Drop for TerminalRun {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn processes_are_listed_with_who_waits_for_whom() {
    let sandbox = Sandbox::new();
    let _exporters = FakeExporters::start(&sandbox);
    let listed = sandbox.run(["ps"]).expect(0);
    let text = listed.text();
    for line in [
        "100 trainer, exports since ",
        "memory 1 \"weights\"  4 GiB ",
        "300 viewer (thread 301) has waited 35s for signal 12: 200 train-worker has not finished it",
        "400 lonely",
    ] {
        assert!(text.contains(line), "no '{line}' in {text}");
    }
    let json = sandbox.run(["ps", "--json"]).expect(0).json();
    let pids: Vec<_> = json
        .as_array()
        .expect("an array")
        .iter()
        .map(|report| report["pid"].as_u64().expect("a number"))
        .collect();
    assert_eq!(pids, [100, 200, 300, 400]);
    let waiter = &json[0]["contexts"][0]["events"][0]["waiters"][0];
    assert_eq!(waiter["waiting_ns"], 35_000_000_000_u64);
}

#[test]
fn a_part_of_the_processes_can_be_listed() {
    let sandbox = Sandbox::new();
    let _exporters = FakeExporters::start(&sandbox);
    let pids = |arguments: &[&str], code| {
        let json = sandbox.run([&["ps", "--json"], arguments].concat());
        let json = json.expect(code).json();
        let reports = json.as_array().expect("an array").iter();
        reports
            .map(|report| report["pid"].to_string())
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(pids(&["--pid", "100", "--pid", "400"], 0), "100 400");
    assert_eq!(pids(&["--name", "Step"], 0), "100");
    assert_eq!(pids(&["--pid", "5"], 1), "");
    assert_eq!(pids(&["--name", "no such name"], 1), "");
}

#[test]
fn nothing_is_listed_where_nothing_is_shared() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.run(["ps"]).expect(0).text(), "");
    assert_eq!(
        sandbox.run(["ps", "--json"]).expect(0).json(),
        serde_json::json!([])
    );
    let nowhere = sandbox.path("nowhere");
    let nowhere = nowhere.to_str().expect("text");
    sandbox.run(["ps", "--socket-dir", nowhere]).expect(0);
    sandbox.run(["gc", "--socket-dir", nowhere]).expect(0);
    let file = sandbox.file("file", b"");
    let file = file.to_str().expect("text");
    sandbox.run(["gc", "--socket-dir", file]).expect(1);
}

/// Starts a process that shares an event, and stops it.
fn hold_stopped(sandbox: &Sandbox) -> Running {
    let (holder, _) = sandbox.hold(["event", "new"]);
    holder.signal(Signal::STOP);
    let state = waitpid(Some(holder.pid()), WaitOptions::UNTRACED).expect("a child");
    assert!(state.is_some_and(|(_, status)| status.stopped()));
    holder
}

#[test]
fn a_stopped_process_is_named_and_delays_nobody_else() {
    let sandbox = Sandbox::new();
    let _exporters = FakeExporters::start(&sandbox);
    let stopped = hold_stopped(&sandbox);
    let pid = stopped.pid().as_raw_nonzero().get();
    let listed = sandbox.run(["ps", "--timeout", "300ms"]).expect(3);
    let line = format!("{pid} crosshandle is stopped and does not answer");
    assert!(listed.text().contains(&line), "{}", listed.text());
    assert!(listed.text().contains("400 lonely"), "{}", listed.text());
    assert!(listed.stderr.contains(&line), "{}", listed.stderr);
    let json = sandbox
        .run(["ps", "--json", "--timeout", "300ms"])
        .expect(3);
    let silent = json.json()[4].clone();
    assert_eq!(silent["pid"], pid);
    assert_eq!(silent["state"], "stopped");
    // A silent process that was not selected is no failure.
    sandbox
        .run(["ps", "--pid", "400", "--timeout", "300ms"])
        .expect(0);
}

#[test]
fn the_sockets_of_the_dead_are_removed_and_no_others() {
    let sandbox = Sandbox::new();
    let stopped = hold_stopped(&sandbox);
    let before = sandbox.listed_sockets();
    let (killed, _) = sandbox.hold(["event", "new"]);
    killed.signal(Signal::KILL);
    wait_for_end(killed.pid());
    let mut all = sandbox.listed_sockets();
    all.retain(|name| !before.contains(name));
    let [dead] = &all[..] else {
        panic!("{all:?}");
    };
    let listed = sandbox.run(["ps", "--timeout", "100ms"]).expect(3);
    let line = "1 socket of processes that have ended";
    assert!(listed.text().contains(line), "{}", listed.text());
    let would = sandbox.run(["gc", "--dry-run"]).expect(0);
    assert!(
        would.text().starts_with("would remove "),
        "{}",
        would.text()
    );
    assert!(would.text().trim_end().ends_with(dead), "{}", would.text());
    assert_eq!(sandbox.listed_sockets().len(), 2);
    let removed = sandbox.run(["gc"]).expect(0);
    assert!(removed.text().starts_with("removed "), "{}", removed.text());
    assert_eq!(sandbox.listed_sockets(), before);
    assert_eq!(sandbox.run(["gc"]).expect(0).text(), "");
    drop(stopped);
}

#[test]
fn top_prints_one_picture_where_there_is_no_terminal() {
    let sandbox = Sandbox::new();
    let _exporters = FakeExporters::start(&sandbox);
    let picture = sandbox.run(["top", "--interval", "200ms"]).expect(0);
    let text = picture.text();
    assert!(text.contains("LONGEST▼"), "{text}");
    assert!(text.contains("2 waits longer than 5s:"), "{text}");
    assert!(!text.contains('\x1b'), "{text}");
    let events = ["top", "--once", "--view", "events", "--filter", "step"];
    let picture = sandbox.run(events).expect(0);
    let culprit = "200 train-worker has not finished it";
    assert!(picture.text().contains(culprit), "{}", picture.text());
}

#[test]
fn top_lists_channels_with_their_members() {
    let sandbox = Sandbox::new();
    let (holder, handle) = sandbox.hold(["channel", "new", "--slot", "64", "--depth", "2"]);
    let mut receiver = sandbox.start(["channel", "receive", &handle]);
    let (input, lines) = rustix::pipe::pipe().expect("a pipe");
    let sender = Running::start_with(sandbox.command(["channel", "send", &handle]), input);
    // Both members exist once the line has arrived.
    rustix::io::write(&lines, b"one\n").expect("the sender reads");
    assert_eq!(receiver.stdout.line().trim(), "one");
    let shown = ["top", "--once", "--view", "channels", "--interval", "200ms"];
    let shown = sandbox.run(shown).expect(0);
    let line = shown.text().lines().nth(3).expect("a line").to_owned();
    let words: Vec<_> = line.split_whitespace().collect();
    // The holder's process id and the program come first, and the name may have several words.
    assert_eq!(
        words[0],
        holder.pid().as_raw_nonzero().to_string(),
        "{line}"
    );
    assert_eq!(
        &words[words.len() - 5..],
        ["2", "1", "0", "1", "1"],
        "{line}"
    );
    drop((sender, lines));
}

#[test]
fn top_obeys_keys_and_restores_the_terminal() {
    let sandbox = Sandbox::new();
    let _exporters = FakeExporters::start(&sandbox);
    let mut top = TerminalRun::start(sandbox.command(["top"]));
    top.await_text("\x1b[?1049h");
    top.await_text("trainer");
    assert!(top.is_raw());
    top.press("2");
    top.await_text("frames");
    // Only changes are drawn.
    top.press("/mod");
    top.await_text("d▏");
    top.press("\r");
    top.await_text("only 'mod'");
    top.press("q");
    top.finish();
}

#[test]
fn a_signal_ends_top_and_restores_the_terminal() {
    let sandbox = Sandbox::new();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut top = TerminalRun::start(sandbox.command(["top"]));
        top.await_text("0 lines");
        assert!(top.is_raw());
        kill_process(top.pid(), signal).expect("it runs");
        top.finish();
    }
}
