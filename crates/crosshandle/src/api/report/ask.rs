//! Requests reports from all exporters of the socket directories at once, with one deadline.

use crosshandle_handle::Bounded;
use crosshandle_ipc::broker::address;
use crosshandle_ipc::broker::protocol::{BadMessage, REPLY_SIZE, Refusal, Reply, Request};
use crosshandle_os::socket::{self, FEW_DESCRIPTORS, Granted, Guard, Received};
use crosshandle_os::threads::disposer::{PeerDescriptor, PeerStream};
use crosshandle_types::error::Error;
use crosshandle_types::report::ProcessReport;
use crosshandle_types::sync::Deadline;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fmt;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Maximum number of exporters that are asked at once. Each takes a descriptor, and processes may
/// usually have 1,024. If more exporters than this are stopped, those after them are not asked in
/// time.
const MAX_REQUESTS: usize = 256;

/// Maximum length of a report, in bytes. It keeps an exporter from filling the memory of the
/// reader. A report with as many objects as it can list has some hundred kilobytes.
const MAX_REPORT_BYTES: usize = 64 << 20;

/// An exporter that has not sent a report, or a directory that could not be read.
#[derive(Clone)]
#[non_exhaustive]
pub struct Silent {
    /// The exporter's socket, or the directory.
    pub socket: PathBuf,
    /// The random number that identifies the exporter, as 16 hexadecimal digits. Empty for a
    /// directory.
    pub exporter: String,
    /// The process that listens, if it is visible in this PID namespace.
    pub pid: Option<u32>,
    /// The reason why there is no report.
    pub reason: SilentReason,
}

/// The reason why an exporter has not sent a report.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum SilentReason {
    /// No process listens. The exporter has ended and left its socket behind.
    Dead,
    /// The process listens but has not replied in time. It may be stopped.
    Late,
    /// The process belongs to another user. No request was sent to it.
    OtherUser {
        /// The user id.
        uid: u32,
    },
    /// The socket, the reply or the directory is unusable.
    Failed(Error),
}

impl Silent {
    fn new(socket: PathBuf, pid: Option<u32>, reason: SilentReason) -> Self {
        Self {
            exporter: exporter_of(&socket).map_or(String::new(), |id| format!("{id:016x}")),
            socket,
            pid,
            reason,
        }
    }
}

/// Prints the text, because Rust prints this form of an error that `main` returns.
impl fmt::Debug for Silent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Silent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let socket = self.socket.display();
        match (&self.reason, self.pid) {
            (SilentReason::Dead, _) => write!(f, "{socket}: its process has ended"),
            (SilentReason::Late, Some(pid)) => {
                write!(f, "{socket}: process {pid} does not answer; is it stopped?")
            }
            (SilentReason::Late, None) => write!(f, "{socket}: no answer; is its process stopped?"),
            (SilentReason::OtherUser { uid }, _) => write!(f, "{socket}: belongs to user {uid}"),
            (SilentReason::Failed(error), _) => write!(f, "{socket}: {error}"),
        }
    }
}

impl std::error::Error for Silent {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.reason {
            SilentReason::Failed(error) => Some(error),
            _ => None,
        }
    }
}

/// Asks the exporters of this user in `directories` for reports.
///
/// Returns the reports in the order of their process ids, followed by the exporters that have not
/// replied within `timeout`. Directories that do not exist are skipped. Only sockets whose names
/// are those of exporters are connected to.
///
/// The call takes at most `timeout`, regardless of the number of exporters. If an exporter is
/// stopped, the call takes the whole `timeout`.
pub fn exporters(directories: &[PathBuf], timeout: Duration) -> Vec<Result<ProcessReport, Silent>> {
    let deadline = Deadline::after(timeout);
    let mut replies = Vec::new();
    let mut sockets = VecDeque::new();
    for directory in directories {
        match sockets_in(directory) {
            Ok(found) => sockets.extend(found),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                let reason = Error::os("reading the socket directory")(errno);
                let reason = SilentReason::Failed(reason);
                replies.push(Err(Silent::new(directory.clone(), None, reason)));
            }
        }
    }
    let mut requests: Vec<PendingRequest> = Vec::new();
    while !sockets.is_empty() || !requests.is_empty() {
        while requests.len() < MAX_REQUESTS
            && let Some(socket) = sockets.pop_front()
        {
            match PendingRequest::ask(&socket) {
                Ok(request) => requests.push(request),
                Err((pid, reason)) => replies.push(Err(Silent::new(socket, pid, reason))),
            }
        }
        let is_late = !await_reply(&requests, deadline);
        let mut index = 0;
        while let Some(request) = requests.get(index) {
            match request.reply() {
                None if !is_late => index += 1,
                Some(Ok(report)) => {
                    replies.push(Ok(report));
                    requests.swap_remove(index);
                }
                reply => {
                    let reason = match reply {
                        Some(Err(error)) => SilentReason::Failed(error),
                        _ => SilentReason::Late,
                    };
                    let request = requests.swap_remove(index);
                    let silent = Silent::new(request.socket, request.pid, reason);
                    replies.push(Err(silent));
                }
            }
        }
    }
    replies.sort_by_key(|reply| match reply {
        Ok(report) => (0, Some(report.pid), report.exporter.clone()),
        Err(silent) => (1, silent.pid, silent.exporter.clone()),
    });
    replies
}

/// Returns the sockets of exporters in a directory, without symbolic links.
fn sockets_in(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut sockets = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type().is_ok_and(|kind| kind.is_socket())
            && exporter_of(&entry.path()).is_some()
        {
            sockets.push(entry.path());
        }
    }
    sockets.sort();
    Ok(sockets)
}

/// Returns the number of the exporter whose socket has this path, if it is the path of such a
/// socket.
fn exporter_of(socket: &Path) -> Option<u64> {
    let (exporter, is_unnamed) = address::exporter_of(socket.file_name()?.to_str()?)?;
    (!is_unnamed).then_some(exporter)
}

/// Waits until at least one reply can be read. Returns `false` if the deadline has passed.
fn await_reply(requests: &[PendingRequest], deadline: Deadline) -> bool {
    loop {
        if requests.is_empty() {
            return true;
        }
        let mut descriptors: Vec<_> = requests
            .iter()
            .map(|request| PollFd::new(&request.stream, PollFlags::IN))
            .collect();
        let timeout = deadline.remaining().and_then(|left| left.try_into().ok());
        match poll(&mut descriptors, timeout.as_ref()) {
            Err(Errno::INTR) => {}
            // Without polling, no reply can arrive in time.
            Err(_) | Ok(0) => return false,
            Ok(_) => return true,
        }
    }
}

/// A request to one exporter that waits for its reply.
struct PendingRequest {
    socket: PathBuf,
    stream: PeerStream,
    pid: Option<u32>,
}

impl PendingRequest {
    /// Connects and sends the request without blocking. An error includes the process that listens,
    /// if it is known.
    fn ask(socket: &Path) -> Result<Self, (Option<u32>, SilentReason)> {
        let failed = |operation| move |errno| SilentReason::Failed(Error::os(operation)(errno));
        // Does not block, because the connection queue of a stopped process may stay full.
        let stream = socket::connect(socket, Deadline::expired()).map_err(|errno| {
            let reason = match errno {
                Errno::CONNREFUSED | Errno::NOENT => SilentReason::Dead,
                Errno::TIMEDOUT => SilentReason::Late,
                errno => failed("connecting to the exporter")(errno),
            };
            (None, reason)
        })?;
        let peer = socket::peer(&stream)
            .map_err(|errno| (None, failed("asking who the exporter is")(errno)))?;
        // The process id is 0 if the process is not visible in this PID namespace.
        let (uid, pid) = (peer.uid, Some(peer.pid).filter(|pid| *pid != 0));
        // Nothing is accepted from other users, especially no descriptors.
        if uid != rustix::process::geteuid().as_raw() {
            return Err((pid, SilentReason::OtherUser { uid }));
        }
        match socket::send(&stream, &Request::Describe.encode(1), &[]) {
            // The exporter has hung up, but may have sent a reply with the reason before.
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => {}
            Err(errno) => return Err((pid, failed("talking to the exporter")(errno))),
        }
        Ok(Self {
            socket: socket.to_owned(),
            stream: PeerStream::new(stream, Guard::Look, ()),
            pid,
        })
    }

    /// Returns the reply if it has arrived. Does not block.
    fn reply(&self) -> Option<Result<ProcessReport, Error>> {
        let mut buffer = [0; REPLY_SIZE];
        // If the exporter closed the connection without reading the request, its last reply can be
        // read only after the reset.
        let mut receive = || {
            socket::receive_until(
                &self.stream,
                &mut buffer,
                FEW_DESCRIPTORS,
                Deadline::expired(),
            )
        };
        let received: Result<Received<Granted<PeerDescriptor>>, _> = match receive() {
            Err(Errno::CONNRESET) => receive(),
            received => received,
        };
        Some(match received {
            Err(Errno::TIMEDOUT) => return None,
            Ok(Received::Unwanted) => Err(Error::Protocol("it came with more than a report")),
            Err(errno) => Err(Error::os("talking to the exporter")(errno)),
            Ok(Received::HungUp) => Err(Error::Protocol("it hung up without one")),
            Ok(Received::Message(len, mut granted)) => {
                check(&buffer[..len]).and_then(|()| match (granted.pop(), granted.is_empty()) {
                    (Some(file), true) => match file.into_memory() {
                        Ok(file) => read(file).and_then(|report| self.check(report)),
                        Err(_) => Err(Error::Protocol("its report is not sealed")),
                    },
                    _ => Err(Error::Protocol("it came without a report")),
                })
            }
        })
    }

    /// Checks that a report comes from the exporter that was asked.
    fn check(&self, report: ProcessReport) -> Result<ProcessReport, Error> {
        let named = u64::from_str_radix(&report.exporter, 16).ok();
        if named.is_none() || named != exporter_of(&self.socket) {
            return Err(Error::Protocol("its report is another exporter's"));
        }
        Ok(report)
    }
}

/// Reads a report from the file that the exporter sent.
fn read(file: OwnedFd) -> Result<ProcessReport, Error> {
    // Checks the seals first. Only files in the kernel's own memory have seals. Reading any other
    // file could take as long as its owner likes.
    let wanted = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW;
    if !fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(wanted)) {
        return Err(Error::Protocol("its report is not sealed"));
    }
    let len = fstat(&file)
        .map_err(Error::os("asking for the length of a report"))?
        .st_size;
    let bytes = Bounded::<MAX_REPORT_BYTES>::new(len).and_then(Bounded::zeros);
    let mut bytes = bytes.ok_or(Error::Protocol("its report is too long"))?;
    let mut read = 0;
    while read < bytes.len() {
        // Does not use the file position of the descriptor, because every process that has the
        // descriptor can move it.
        match rustix::io::pread(&file, &mut bytes[read..], read as u64) {
            Ok(0) => break,
            Ok(count) => read += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Error::os("reading a report")(errno)),
        }
    }
    serde_json::from_slice(&bytes[..read]).map_err(|_| Error::Protocol("its report is no report"))
}

/// Checks that a reply announces a report.
fn check(message: &[u8]) -> Result<(), Error> {
    match Reply::decode(message) {
        Ok((Reply::Sent, _)) => Ok(()),
        Ok((Reply::Refused(Refusal::Busy), _)) => Err(Error::LimitReached {
            what: "too many processes are connected to the exporter".into(),
            remedy: "try again".into(),
        }),
        Ok((Reply::Refused(_), _)) => Err(Error::Protocol("it refuses to make a report")),
        Ok(_) => Err(Error::Protocol("it answers another question")),
        Err(BadMessage::Version) => Err(Error::Protocol("it is of another version")),
        Err(BadMessage::Malformed(what)) => Err(Error::Protocol(what)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crosshandle_os::memfd;
    use rustix::event::Timespec;
    use std::os::fd::{AsFd, BorrowedFd};
    use std::time::Instant;

    /// A socket directory of a test. Dropping it removes the directory.
    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("xh-ask-{name}-{}", std::process::id()));
            fs::create_dir(&path).expect("a directory");
            Self(path)
        }

        fn socket(&self, exporter: u64) -> PathBuf {
            self.0.join(format!("{exporter:016x}.sock"))
        }

        /// Requests reports. The call takes the whole timeout only if an exporter is silent.
        fn ask(&self, timeout: Duration) -> Vec<Result<ProcessReport, Silent>> {
            exporters(std::slice::from_ref(&self.0), timeout)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const LONG: Duration = Duration::from_secs(60);
    const LATE_AFTER: Duration = Duration::from_millis(200);

    /// Replies to one request at `path` with a file, and keeps the connection open until the other
    /// side hangs up.
    fn reply_once(
        path: &Path,
        file: impl FnOnce() -> Option<OwnedFd> + Send + 'static,
    ) -> std::thread::JoinHandle<()> {
        let (listener, guard) = socket::listen(path).expect("a socket");
        std::thread::spawn(move || {
            let ready = |stream: BorrowedFd<'_>| {
                let limit = Timespec::try_from(LONG).expect("a time");
                let mut descriptors = [PollFd::from_borrowed_fd(stream, PollFlags::IN)];
                assert_eq!(poll(&mut descriptors, Some(&limit)), Ok(1));
            };
            ready(listener.as_fd());
            let stream = socket::accept(&listener).expect("a connection");
            ready(stream.as_fd());
            let mut buffer = [0; 256];
            let received = socket::receive(&stream, &mut buffer, guard).expect("a question");
            let Received::Message(len, _) = received else {
                panic!("it hung up");
            };
            let request = Request::decode(&buffer[..len]);
            assert_eq!(request, Ok((Request::Describe, 1)));
            let file = file();
            let files: Vec<_> = file.iter().map(AsFd::as_fd).collect();
            let reply = Reply::Sent.encode(1);
            socket::send(&stream, &reply, &files).expect("sent");
            ready(stream.as_fd());
        })
    }

    fn constant(text: &str) -> Option<OwnedFd> {
        Some(memfd::create_constant("report", text.as_bytes()).expect("a file"))
    }

    #[test]
    fn replies_come_in_the_order_of_their_pids() {
        let directory = Directory::new("order");
        let threads = [
            reply_once(&directory.socket(1), || {
                constant(r#"{"exporter": "1", "pid": 20, "program": "second"}"#)
            }),
            reply_once(&directory.socket(2), || {
                constant(
                    r#"{"exporter": "2", "pid": 10, "program": "first", "of a later version": []}"#,
                )
            }),
        ];
        let replies = directory.ask(LONG);
        let programs: Vec<_> = replies
            .iter()
            .map(|reply| reply.as_ref().expect("a report").program.as_str())
            .collect();
        assert_eq!(programs, ["first", "second"]);
        for thread in threads {
            thread.join().expect("the fake exporter");
        }
    }

    #[test]
    fn one_deadline_is_for_all_the_silent_ones() {
        let directory = Directory::new("silent");
        let listeners: Vec<_> = (1..=8)
            .map(|exporter| socket::listen(&directory.socket(exporter)).expect("a socket"))
            .collect();
        let answering = reply_once(&directory.socket(9), || constant(r#"{"exporter": "9"}"#));
        let begin = Instant::now();
        let replies = directory.ask(LATE_AFTER);
        assert!(begin.elapsed() >= LATE_AFTER);
        assert_eq!(replies.iter().filter(|reply| reply.is_ok()).count(), 1);
        let late = replies.iter().filter_map(|reply| reply.as_ref().err());
        let mut count = 0;
        for silent in late {
            assert!(matches!(silent.reason, SilentReason::Late), "{silent}");
            assert_eq!(silent.pid, Some(std::process::id()));
            count += 1;
        }
        assert_eq!(count, listeners.len());
        answering.join().expect("the fake exporter");
    }

    #[test]
    fn lies_are_told_from_reports() {
        let unsealed = || {
            let file = memfd::create("report", 4096).expect("a file");
            Some(file)
        };
        type File = fn() -> Option<OwnedFd>;
        let cases: [(&str, File); 5] = [
            ("not sealed", unsealed),
            ("not sealed", || {
                Some(rustix::pipe::pipe().expect("a pipe").0)
            }),
            ("without a report", || None),
            ("another exporter", || constant(r#"{"exporter": "2"}"#)),
            ("no report", || constant("")),
        ];
        for (what, file) in cases {
            let directory = Directory::new("lies");
            let thread = reply_once(&directory.socket(1), file);
            let replies = directory.ask(LONG);
            thread.join().expect("the fake exporter");
            let [Err(silent)] = &replies[..] else {
                panic!("{what}: {replies:?}");
            };
            assert!(silent.to_string().contains(what), "{what}: {silent}");
        }
    }

    #[test]
    fn only_sockets_of_exporters_are_asked() {
        let directory = Directory::new("names");
        drop(socket::listen(&directory.socket(1)).expect("a socket"));
        let other = directory.0.join("agent.sock");
        let _listener = socket::listen(&other).expect("a socket");
        std::os::unix::fs::symlink(&other, directory.socket(2)).expect("a link");
        fs::write(directory.socket(3), "").expect("a file");
        let replies = directory.ask(LONG);
        let [Err(dead)] = &replies[..] else {
            panic!("{replies:?}");
        };
        assert!(matches!(dead.reason, SilentReason::Dead));
        assert_eq!(dead.exporter, "0000000000000001");
        let missing = exporters(&[directory.0.join("none")], LONG);
        assert!(missing.is_empty());
        let [Err(silent)] = &exporters(&[directory.socket(3)], LONG)[..] else {
            panic!("a file is no directory");
        };
        assert!(matches!(silent.reason, SilentReason::Failed(_)));
    }
}
