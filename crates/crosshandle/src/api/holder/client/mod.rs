//! The client of a holder. It asks for names and hands memory over.

mod backup;
mod claim;
mod pause;

pub use backup::Backup;
pub use claim::{ClaimOptions, Lease};

use super::{HeldName, HeldPart, Status};
use crate::api::memory::Memory;
use crosshandle_holder::exchange::ask_once;
use crosshandle_holder::message::{
    Envelope, Hold, MAX_MESSAGE_BYTES, MAX_NAMES, PROTOCOL, Reply, Request, Tokens,
};
use crosshandle_ipc::broker::{PeerPolicy, address};
use crosshandle_os::process;
use crosshandle_os::socket::interrupt;
use crosshandle_types::error::{Error, HolderFault, Result};
use crosshandle_types::sync::Deadline;
use pause::Pause;
use rustix::io::Errno;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Default time that a program waits for a holder's reply. A hand-over of many parts must fit into
/// it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Shortest pause before a program reconnects to a holder that has hung up. A successor replies
/// within milliseconds.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(1);

/// Longest pause before a program repeats a request that a busy holder has put off. A smaller value
/// costs the holder more time if many programs wait.
const MAX_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Maximum number of reconnections to a holder that hangs up each time.
const MAX_RECONNECTS: u32 = 64;

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
            told.push(HeldPart::new(
                *role,
                described.device,
                described.kind,
                memory.len() as u64,
                [described.handle, described.read_only],
            ));
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
        let is_missing = |part: &HeldPart| part.handle.is_none() || part.read_only.is_none();
        if held.parts.iter().any(is_missing) {
            return Err(Error::invalid(
                "the answer to `open_to_write` is needed, which has handles for writing",
            ));
        }
        self.hold(Hold {
            name: name.to_owned(),
            label: options.label,
            replaces: options.replaces,
            tokens: options.tokens,
            parts: held.parts.clone(),
            request: new_request()?,
        })
    }

    fn hold(&self, hold: Hold) -> Result<HandedOver> {
        hold.check()?;
        match self.ask(Request::Hold(hold))? {
            Reply::HandedOver { version, is_safe } => Ok(HandedOver { version, is_safe }),
            _ => Err(senseless()),
        }
    }

    /// Opens a name for reading.
    ///
    /// # Errors
    /// Returns [`Error::Holder`] if no holder runs, the name does not exist, or its token was not
    /// presented.
    pub fn open(&self, name: &str) -> Result<HeldName> {
        self.opened(Request::Open {
            name: name.to_owned(),
            writes: false,
        })
    }

    /// Opens a name for reading and writing.
    ///
    /// # Errors
    /// Returns the errors of [`open`](Self::open).
    pub fn open_to_write(&self, name: &str) -> Result<HeldName> {
        self.opened(Request::Open {
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
        let request = Request::Await {
            name: name.to_owned(),
            version,
            epoch: None,
        };
        self.within(timeout).opened(request)
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
            let request = Request::List { after: last };
            let Reply::Listed { names, more } = self.ask_until(request, deadline)? else {
                return Err(senseless());
            };
            let is_done = !more || names.is_empty();
            // A list without an end would take all memory. Names may be added and removed between
            // two requests, but not that many.
            if all.len() + names.len() > 2 * MAX_NAMES {
                return Err(senseless());
            }
            all.extend(names);
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
        self.done(Request::Remove {
            name: name.to_owned(),
        })
    }

    /// Sets or clears the protection of a name against removal and replacement.
    ///
    /// # Errors
    /// Returns the errors of [`open`](Self::open).
    pub fn pin(&self, name: &str, pinned: bool) -> Result<()> {
        self.done(Request::Pin {
            name: name.to_owned(),
            pinned,
        })
    }

    /// Returns the state of the holder.
    ///
    /// # Errors
    /// Returns [`Error::Holder`] if no holder runs.
    pub fn status(&self) -> Result<Status> {
        match self.ask(Request::Status)? {
            Reply::Status(status) => Ok(status),
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
        self.done(Request::Stop)
    }

    fn opened(&self, request: Request) -> Result<HeldName> {
        match self.ask(request)? {
            Reply::Opened(held) => Ok(held),
            _ => Err(senseless()),
        }
    }

    fn done(&self, request: Request) -> Result<()> {
        match self.ask(request)? {
            Reply::Done => Ok(()),
            _ => Err(senseless()),
        }
    }

    /// Sends a request, and repeats it if the holder dies meanwhile. All requests may be repeated.
    fn ask(&self, request: Request) -> Result<Reply> {
        self.ask_until(request, Deadline::after(self.timeout))
    }

    fn ask_until(&self, request: Request, deadline: Deadline) -> Result<Reply> {
        let is_stop = matches!(request, Request::Stop);
        let envelope = Envelope {
            protocol: PROTOCOL,
            token: self.token.clone(),
            request,
        };
        let bytes = serde_json::to_vec(&envelope).expect("plain data");
        if bytes.len() > MAX_MESSAGE_BYTES {
            return Err(Error::invalid("the names, tokens and labels are too long"));
        }
        let deadline = interrupt::deadline(deadline);
        let directories = address::directories(self.socket_dir.as_deref());
        let mut attempts = 0;
        let mut holder = 0;
        let mut pause = Pause::new(RECONNECT_INTERVAL, MAX_RETRY_INTERVAL);
        loop {
            if attempts > 0 || holder != 0 {
                interrupt::check().map_err(Error::os("asking the holder"))?;
            }
            match ask_once(&directories, &self.peers, &bytes, deadline, &mut holder) {
                Err(Errno::PIPE | Errno::CONNRESET) if attempts < MAX_RECONNECTS => {
                    attempts += 1;
                    pause.wait(deadline);
                }
                // The holder serves all users and processes by turns, so it will also serve this
                // process.
                Ok(Reply::Refused {
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
                // The holder died while it stopped, and its successor had already ended.
                Err(Errno::NOENT) if is_stop && attempts > 0 => return Ok(Reply::Done),
                Err(Errno::NOENT) => return Err(no_holder(&directories)),
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
                Ok(Reply::Refused { fault, why }) => return Err(Error::Holder { fault, why }),
                Ok(reply) => return Ok(reply),
            }
        }
    }
}

fn no_holder(directories: &[PathBuf]) -> Error {
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
