//! The client of a holder. It asks for names and hands memory over.

mod backup;
mod claim;
mod pause;

pub use backup::Backup;
pub use claim::{ClaimOptions, Lease};

use super::message::{
    Answer, Entry, Hold, PROTOCOL, Part, Question, Recovered, Request, Status, Tokens,
};
use super::tuning::{
    ANSWER_TIMEOUT, MAX_MESSAGE_BYTES, MAX_NAMES, MAX_RECONNECTS, MAX_RETRY_INTERVAL,
    RECONNECT_INTERVAL,
};
use crate::api::memory::Memory;
use crosshandle_handle::MemoryHandle;
use crosshandle_ipc::broker::{PeerPolicy, address, control_path};
use crosshandle_os::process;
use crosshandle_os::socket::{self, Granted, Guard, Received, interrupt};
use crosshandle_os::threads::disposer::{PeerDescriptor, PeerStream};
use crosshandle_types::error::{Error, HolderFault, Result};
use crosshandle_types::report::ObjectKind;
use crosshandle_types::sync::Deadline;
use pause::Pause;
use rustix::io::Errno;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// A client of a holder: it opens names and hands memory over. Clones are cheap, and any thread may
/// use it. Each call makes a new connection, and continues with the successor if the holder dies
/// during the call.
#[derive(Clone, Debug)]
pub struct Holder {
    socket_dir: Option<PathBuf>,
    peers: PeerPolicy,
    timeout: Duration,
    token: Option<String>,
}

impl Default for Holder {
    fn default() -> Self {
        Self::new()
    }
}

/// Options of a name under which memory is handed over.
#[derive(Clone, Default)]
pub struct HoldOptions {
    label: String,
    replaces: bool,
    tokens: Tokens,
}

impl fmt::Debug for HoldOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HoldOptions")
            .field("label", &self.label)
            .field("replaces", &self.replaces)
            .finish_non_exhaustive()
    }
}

impl HoldOptions {
    /// Returns the default options: no label, no tokens, and a name that is not in use yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a text of at most 4,096 bytes for programs that open the name. Every program that may
    /// send requests to the holder can read it.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// Sets whether the name may already be in use (default: no). If it is, the memory becomes its
    /// next version, and the holder releases the previous one. Processes that have the previous
    /// version open keep it.
    ///
    /// The name keeps its tokens if no token is set here. Setting tokens on an existing name needs
    /// the administration token.
    pub fn replaces(mut self, replaces: bool) -> Self {
        self.replaces = replaces;
        self
    }

    /// Sets the token that programs must present to read (default: none).
    pub fn read_token(mut self, token: impl Into<String>) -> Self {
        self.tokens.read = Some(token.into());
        self
    }

    /// Sets the token that programs must present to write, or to replace the name. It also allows
    /// reading.
    pub fn write_token(mut self, token: impl Into<String>) -> Self {
        self.tokens.write = Some(token.into());
        self
    }

    /// Sets the token that programs must present to remove or pin the name. It also allows every
    /// other operation.
    pub fn admin_token(mut self, token: impl Into<String>) -> Self {
        self.tokens.admin = Some(token.into());
        self
    }
}

/// A name of a holder, with the memory that it stands for.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct HeldName {
    /// The name.
    pub name: String,
    /// The version of the name, counted from 1. Each replacement increments it.
    pub version: u64,
    /// The text that the process set when it handed the memory over.
    pub label: String,
    /// Whether the name is protected against removal and replacement.
    pub pinned: bool,
    /// When the memory was handed over, in seconds since 1970-01-01 UTC.
    pub created_unix_s: u64,
    /// Whether some operations on the name need a token.
    pub has_tokens: bool,
    /// The number of writers that have [claimed](Holder::claim) the name, or 0 if no process has
    /// claimed it.
    pub epoch: u64,
    /// The process id of the current writer, in the holder's PID namespace. `None` if no process
    /// has claimed the name or the claim has ended. The process itself may have ended.
    pub writer: Option<u32>,
    /// How the memory was verified, if a process that had it open for reading brought it back
    /// ([`Backup`](super::Backup)).
    pub recovered: Option<Recovered>,
    /// The memory.
    pub parts: Vec<HeldPart>,
}

/// One piece of memory under a name.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct HeldPart {
    /// The role of this part. Each part of a name has a different role.
    pub role: String,
    /// The device, as the process that handed the memory over names it: `host`, `cuda:1`.
    pub device: String,
    /// The kind of the memory.
    pub kind: ObjectKind,
    /// The length in bytes.
    pub bytes: u64,
    /// A read-only handle. `None` in lists.
    pub read_only: Option<MemoryHandle>,
    /// A handle for reading and writing. `None` unless the caller asked for it.
    pub handle: Option<MemoryHandle>,
}

impl HeldName {
    /// Returns the part with the given role, if the name has one.
    pub fn part(&self, role: &str) -> Option<&HeldPart> {
        self.parts.iter().find(|part| part.role == role)
    }
}

impl TryFrom<Entry> for HeldName {
    type Error = Error;

    fn try_from(entry: Entry) -> Result<Self> {
        let part = |part: Part| {
            let read_only = Some(&part.read_only).filter(|text| !text.is_empty());
            Ok(HeldPart {
                handle: part.handle.as_deref().map(str::parse).transpose()?,
                read_only: read_only.map(|text| text.parse()).transpose()?,
                role: part.role,
                device: part.device,
                kind: part.kind,
                bytes: part.bytes,
            })
        };
        Ok(Self {
            name: entry.name,
            version: entry.version,
            label: entry.label,
            pinned: entry.pinned,
            created_unix_s: entry.created_unix_s,
            has_tokens: entry.has_tokens,
            epoch: entry.epoch,
            writer: entry.writer,
            recovered: entry.recovered,
            parts: entry.parts.into_iter().map(part).collect::<Result<_>>()?,
        })
    }
}

/// The holder's reply to a hand-over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct HandedOver {
    /// The version of the name that this memory has become.
    pub version: u64,
    /// Whether the successor also has the memory and the journal records it. The memory then
    /// outlives the holder.
    pub is_safe: bool,
}

impl Holder {
    /// Returns a client of the holder in the default socket directories. This function sends no
    /// request.
    pub fn new() -> Self {
        Self {
            socket_dir: None,
            peers: PeerPolicy::SameUser,
            timeout: ANSWER_TIMEOUT,
            token: None,
        }
    }

    /// Sets the directory that the holder is looked up in (default: the
    /// [`socket_directories`](crate::report::socket_directories)).
    pub fn socket_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.socket_dir = Some(directory.into());
        self
    }

    /// Sets the users as which the holder may run (default: the same user).
    pub fn peers(mut self, peers: PeerPolicy) -> Self {
        self.peers = peers;
        self
    }

    /// Sets how long a call may wait for the holder (default: 30 s). The limit applies to the whole
    /// call, even if it sends several requests.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the token that calls present.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Hands memory over under a name. Each piece has a role. From then on the holder serves the
    /// memory and handles that were made earlier stay valid. This process may continue to use the
    /// memory, drop it, or end. The call returns when the holder and its successor have the memory.
    /// If the successor is late, [`HandedOver::is_safe`] is false.
    ///
    /// Only memory with a segment of its own can be handed over, since a descriptor covers a whole
    /// segment. Allocate it in a context [without pooling](crate::ContextOptions::pooling).
    ///
    /// # Errors
    /// - [`Error::Unsupported`] for memory that shares its segment, was opened from a handle, or
    ///   ends with this process.
    /// - [`Error::Holder`] if no holder runs, or if it refuses the request.
    /// - [`Error::TimedOut`] if the timeout passes.
    ///
    /// After an error the memory still belongs to this process alone. After a timeout the holder
    /// may have it as well, and the call can be repeated.
    pub fn hand_over(
        &self,
        name: &str,
        parts: &[(&str, &Memory)],
        options: HoldOptions,
    ) -> Result<HandedOver> {
        let mut told = Vec::new();
        for (role, memory) in parts {
            let described = memory.describe_whole()?;
            told.push(Part {
                role: (*role).to_owned(),
                device: described.device,
                kind: described.kind,
                bytes: memory.len() as u64,
                handle: Some(described.handle.to_string()),
                read_only: described.read_only.to_string(),
            });
        }
        let hold = Hold {
            name: name.to_owned(),
            label: options.label,
            replaces: options.replaces,
            tokens: options.tokens,
            parts: told,
            request: new_request()?,
        };
        let handed_over = self.hold(hold)?;
        for (_, memory) in parts {
            memory.note_handed_over();
        }
        Ok(handed_over)
    }

    /// Asks the holder to keep memory under a further name. `held` is the result of
    /// [`open_to_write`](Self::open_to_write). The memory stays as long as one of its names exists.
    ///
    /// # Errors
    /// Returns [`Error::InvalidArgument`] if handles for writing are missing. Returns
    /// [`Error::Stale`] or [`Error::Holder`] if the memory is no longer held, or has only one
    /// writer at a time. Other errors are those of [`hand_over`](Self::hand_over).
    pub fn hold_as(&self, held: &HeldName, name: &str, options: HoldOptions) -> Result<HandedOver> {
        let part = |part: &HeldPart| {
            let missing = "the answer to `open_to_write` is needed, which has handles for writing";
            let (Some(handle), Some(read_only)) = (part.handle, part.read_only) else {
                return Err(Error::invalid(missing));
            };
            Ok(Part {
                role: part.role.clone(),
                device: part.device.clone(),
                kind: part.kind,
                bytes: part.bytes,
                handle: Some(handle.to_string()),
                read_only: read_only.to_string(),
            })
        };
        self.hold(Hold {
            name: name.to_owned(),
            label: options.label,
            replaces: options.replaces,
            tokens: options.tokens,
            parts: held.parts.iter().map(part).collect::<Result<_>>()?,
            request: new_request()?,
        })
    }

    fn hold(&self, hold: Hold) -> Result<HandedOver> {
        hold.check()?;
        match self.ask(Question::Hold(hold))? {
            Answer::HandedOver { version, is_safe } => Ok(HandedOver { version, is_safe }),
            _ => Err(senseless()),
        }
    }

    /// Opens a name for reading.
    ///
    /// # Errors
    /// Returns [`Error::Holder`] if no holder runs, the name does not exist, or its token was not
    /// presented.
    pub fn open(&self, name: &str) -> Result<HeldName> {
        self.opened(Question::Open {
            name: name.to_owned(),
            writes: false,
        })
    }

    /// Opens a name for reading and writing.
    ///
    /// # Errors
    /// Returns the errors of [`open`](Self::open).
    pub fn open_to_write(&self, name: &str) -> Result<HeldName> {
        self.opened(Question::Open {
            name: name.to_owned(),
            writes: true,
        })
    }

    /// Waits for at most `timeout` until a name has a later version than `version`, and opens it
    /// for reading.
    ///
    /// # Errors
    /// Returns the errors of [`open`](Self::open), also if the name is removed during the wait.
    /// Returns [`Error::TimedOut`] if the timeout passes.
    pub fn await_version(&self, name: &str, version: u64, timeout: Duration) -> Result<HeldName> {
        let question = Question::Await {
            name: name.to_owned(),
            version,
            epoch: None,
        };
        self.within(timeout).opened(question)
    }

    /// Returns a client with this timeout.
    fn within(&self, timeout: Duration) -> Self {
        Self {
            timeout,
            ..self.clone()
        }
    }

    /// Returns all names in order, without handles.
    ///
    /// # Errors
    /// Returns [`Error::Holder`] if no holder runs.
    pub fn list(&self) -> Result<Vec<HeldName>> {
        let mut all: Vec<HeldName> = Vec::new();
        let deadline = Deadline::after(self.timeout);
        loop {
            let last = all.last().map(|last| last.name.clone());
            let question = Question::List { after: last };
            let Answer::Listed { names, more } = self.ask_until(question, deadline)? else {
                return Err(senseless());
            };
            let is_done = !more || names.is_empty();
            // A list without an end would take all memory. Names may be added and removed between
            // two requests, but not that many.
            if all.len() + names.len() > 2 * MAX_NAMES {
                return Err(senseless());
            }
            for entry in names {
                all.push(entry.try_into()?);
            }
            if is_done {
                return Ok(all);
            }
        }
    }

    /// Removes a name, so that it can no longer be opened. Processes that have its memory open keep
    /// it.
    ///
    /// # Errors
    /// Returns the errors of [`open`](Self::open), and [`Error::Holder`] if the name is pinned.
    pub fn remove(&self, name: &str) -> Result<()> {
        self.done(Question::Remove {
            name: name.to_owned(),
        })
    }

    /// Sets or clears the protection of a name against removal and replacement.
    ///
    /// # Errors
    /// Returns the errors of [`open`](Self::open).
    pub fn pin(&self, name: &str, pinned: bool) -> Result<()> {
        self.done(Question::Pin {
            name: name.to_owned(),
            pinned,
        })
    }

    /// Returns the state of the holder.
    ///
    /// # Errors
    /// Returns [`Error::Holder`] if no holder runs.
    pub fn status(&self) -> Result<Status> {
        match self.ask(Question::Status)? {
            Answer::Status(status) => Ok(status),
            _ => Err(senseless()),
        }
    }

    /// Ends the holder and its successor, which release everything. Processes that have memory open
    /// keep it.
    ///
    /// # Errors
    /// Returns [`Error::Holder`] if no holder runs, or if a name is pinned or needs a token for
    /// this.
    pub fn stop(&self) -> Result<()> {
        self.done(Question::Stop)
    }

    fn opened(&self, question: Question) -> Result<HeldName> {
        match self.ask(question)? {
            Answer::Opened(entry) => entry.try_into(),
            _ => Err(senseless()),
        }
    }

    fn done(&self, question: Question) -> Result<()> {
        match self.ask(question)? {
            Answer::Done => Ok(()),
            _ => Err(senseless()),
        }
    }

    /// Sends a request, and repeats it if the holder dies meanwhile. All requests may be repeated.
    fn ask(&self, question: Question) -> Result<Answer> {
        self.ask_until(question, Deadline::after(self.timeout))
    }

    fn ask_until(&self, question: Question, deadline: Deadline) -> Result<Answer> {
        let request = Request {
            protocol: PROTOCOL,
            token: self.token.clone(),
            question,
        };
        let bytes = serde_json::to_vec(&request).expect("plain data");
        if bytes.len() > MAX_MESSAGE_BYTES {
            return Err(Error::invalid("the names, tokens and labels are too long"));
        }
        let deadline = interrupt::deadline(deadline);
        let mut attempts = 0;
        let mut holder = 0;
        let mut pause = Pause::new(RECONNECT_INTERVAL, MAX_RETRY_INTERVAL);
        loop {
            if attempts > 0 || holder != 0 {
                interrupt::check().map_err(Error::os("asking the holder"))?;
            }
            match self.ask_once(&bytes, deadline, &mut holder) {
                Err(Errno::PIPE | Errno::CONNRESET) if attempts < MAX_RECONNECTS => {
                    attempts += 1;
                    pause.wait(deadline);
                }
                // The holder serves all users and processes by turns, so it will also serve this
                // process.
                Ok(Answer::Refused {
                    fault: HolderFault::Busy,
                    ..
                }) if !deadline.is_over() => pause.wait(deadline),
                Err(Errno::TIMEDOUT) => {
                    return Err(match holder {
                        0 => Error::TimedOut("waiting for the holder's answer"),
                        pid => Error::NoAnswer {
                            doing: "waiting for the answer of the holder,",
                            pid,
                            program: process::program_of(pid),
                        },
                    });
                }
                Err(Errno::NOENT) => return Err(self.no_holder()),
                Err(Errno::PERM) => {
                    return Err(Error::Holder {
                        fault: HolderFault::NotAllowed,
                        why:
                            "the holder runs as a user that is not admitted; widen `PeerPolicy` if \
                              that is intended"
                                .into(),
                    });
                }
                Err(errno) => return Err(Error::os("asking the holder")(errno)),
                Ok(Answer::Refused { fault, why }) => return Err(Error::Holder { fault, why }),
                Ok(answer) => return Ok(answer),
            }
        }
    }

    /// Sends the request once. Sets `holder` to the process id of the holder, or to 0 if the holder
    /// has no id in this PID namespace.
    fn ask_once(
        &self,
        request: &[u8],
        deadline: Deadline,
        holder: &mut u32,
    ) -> Result<Answer, Errno> {
        let stream = PeerStream::new(self.connect(deadline)?, Guard::Look, ());
        let peer = socket::peer(&stream)?;
        *holder = peer.pid;
        if !self.peers.admits(peer.uid) {
            return Err(Errno::PERM);
        }
        match socket::send(&stream, request, &[]) {
            // The holder has hung up, but may have sent the reason before.
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => {}
            Err(errno) => return Err(errno),
        }
        let mut buffer = vec![0; MAX_MESSAGE_BYTES + LIST_SLACK];
        let received: Received<Granted<PeerDescriptor>> =
            socket::receive_until(&stream, &mut buffer, 0, deadline)?;
        let len = match received {
            Received::Message(len, _) => len,
            Received::Unwanted => return Err(Errno::PROTO),
            Received::HungUp => return Err(Errno::CONNRESET),
        };
        serde_json::from_slice(&buffer[..len]).map_err(|_| Errno::PROTO)
    }

    /// Connects to the first holder that listens. Returns [`Errno::NOENT`] if none does.
    fn connect(&self, deadline: Deadline) -> Result<std::os::fd::OwnedFd, Errno> {
        for directory in address::directories(self.socket_dir.as_deref()) {
            match socket::connect(&control_path(&directory), deadline) {
                Err(Errno::NOENT | Errno::CONNREFUSED | Errno::NOTDIR | Errno::ACCESS) => {}
                result => return result,
            }
        }
        Err(Errno::NOENT)
    }

    fn no_holder(&self) -> Error {
        let directories = address::directories(self.socket_dir.as_deref());
        let directories: Vec<_> = directories
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        Error::Holder {
            fault: HolderFault::NoHolder,
            why: format!(
                "no holder answers in {}; start one with `crosshandle hold`",
                directories.join(", ")
            ),
        }
    }
}

/// Space for the last entry of a list, in bytes. It may begin within the limit of a message and end
/// beyond it.
const LIST_SLACK: usize = 64 << 10;

/// Returns a random number for a request that may be repeated but must take effect only once.
fn new_request() -> Result<u64> {
    let mut bytes = [0; 8];
    process::random(&mut bytes).map_err(Error::os("asking for random numbers"))?;
    Ok(u64::from_ne_bytes(bytes).max(1))
}

fn senseless() -> Error {
    Error::Protocol("the holder answers another question")
}

impl Memory {
    /// Hands the memory over to a holder under a name. See [`Holder::hand_over`].
    ///
    /// # Errors
    /// Returns the errors of [`Holder::hand_over`].
    pub fn hand_over(&self, holder: &Holder, name: &str) -> Result<HandedOver> {
        holder.hand_over(name, &[(WHOLE, self)], HoldOptions::new())
    }
}

/// The role of the only part of a name.
pub(super) const WHOLE: &str = "memory";
