//! The program's side: asks a holder for names, and hands memory over to it.

mod backup;
mod claim;
mod pause;

pub use backup::Backup;
pub use claim::{ClaimOptions, Lease};

use super::message::{
    Answer, Entry, Hold, PROTOCOL, Part, Question, Recovered, Request, Status, Tokens,
};
use super::tuning::{
    ANSWER_TIMEOUT, MAX_MESSAGE_BYTES, MAX_RECONNECTS, MAX_RETRY_INTERVAL, RECONNECT_INTERVAL,
};
use crate::api::memory::Memory;
use crate::error::{Error, HolderFault, Result};
use crate::handle::MemoryHandle;
use crate::ipc::broker::{PeerPolicy, address, control_path};
use crate::os::process;
use crate::os::socket::{self, Granted, Guard, Received};
use crate::sync::Deadline;
use crate::threads::disposer::{PeerDescriptor, PeerStream};
use crate::types::report::ObjectKind;
use pause::Pause;
use rustix::io::Errno;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// A holder, as programs see it: it is asked for names, and takes memory over. Cheap to clone; any thread
/// may use it. Each call connects anew, and goes on with the successor if the holder dies meanwhile.
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

/// What a name is to be, when memory is handed over.
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
    /// Returns the usual options: no label, no tokens, and a name that nothing has.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a text for programs that open the name, of at most 4,096 bytes. Everybody can read it who may
    /// ask the holder.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// Sets whether the name may be in use already (default: no). Then what is handed over is the name's
    /// next version. The holder lets go of the version before; who has that open keeps it. The name keeps its
    /// tokens if none are set here; setting others takes the token of administration.
    pub fn replaces(mut self, replaces: bool) -> Self {
        self.replaces = replaces;
        self
    }

    /// Sets the word that programs must show to read (default: none is needed).
    pub fn read_token(mut self, token: impl Into<String>) -> Self {
        self.tokens.read = Some(token.into());
        self
    }

    /// Sets the word that programs must show to write, and to replace the name. It lets them read, too.
    pub fn write_token(mut self, token: impl Into<String>) -> Self {
        self.tokens.write = Some(token.into());
        self
    }

    /// Sets the word that programs must show to remove or pin the name. It lets them do all else, too.
    pub fn admin_token(mut self, token: impl Into<String>) -> Self {
        self.tokens.admin = Some(token.into());
        self
    }
}

/// A name that a holder knows, and what it stands for.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct HeldName {
    /// The name.
    pub name: String,
    /// Counts what the name stood for so far, from 1.
    pub version: u64,
    /// The text that whoever handed the memory over gave it.
    pub label: String,
    /// Whether the name is protected from being removed and replaced.
    pub pinned: bool,
    /// When the memory was handed over, in seconds since 1970.
    pub created_unix_s: u64,
    /// Whether some uses of the name take a token.
    pub has_tokens: bool,
    /// Counts the writers that have [claimed](Holder::claim) the name, from 1; 0 if none has.
    pub epoch: u64,
    /// The process that may write the memory, in the holder's PID namespace, unless it has ended its claim
    /// or none has one. It may have ended itself.
    pub writer: Option<u32>,
    /// Whether the memory has come back from a process that had it open for reading ([`Backup`](super::Backup)), and
    /// what is known of it then.
    pub recovered: Option<Recovered>,
    /// The memory.
    pub parts: Vec<HeldPart>,
}

/// One piece of memory under a name.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct HeldPart {
    /// What tells it from the other parts of the name.
    pub role: String,
    /// The device, as the process that handed it over calls it: `host`, `cuda:1`.
    pub device: String,
    /// The kind of the memory.
    pub kind: ObjectKind,
    /// The length in bytes.
    pub bytes: u64,
    /// A handle for reading only; `None` in lists.
    pub read_only: Option<MemoryHandle>,
    /// A handle for reading and writing; `None` unless that was asked for.
    pub handle: Option<MemoryHandle>,
}

impl HeldName {
    /// Returns the part with a role, if there is one.
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

/// What a holder says of memory that it has taken over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct HandedOver {
    /// The version of the name that the memory is.
    pub version: u64,
    /// Whether the holder's successor has it too, so that it outlives the holder.
    pub is_safe: bool,
}

impl Holder {
    /// Returns the holder of the usual socket directories. Nothing is asked yet.
    pub fn new() -> Self {
        Self {
            socket_dir: None,
            peers: PeerPolicy::SameUser,
            timeout: ANSWER_TIMEOUT,
            token: None,
        }
    }

    /// Sets the directory in which to look for the holder (default: as
    /// [`socket_directories`](crate::socket_directories)).
    pub fn socket_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.socket_dir = Some(directory.into());
        self
    }

    /// Sets the users as whom the holder may run (default: the same user).
    pub fn peers(mut self, peers: PeerPolicy) -> Self {
        self.peers = peers;
        self
    }

    /// Sets how long a call may wait for the holder (default: 30 s), however many questions the call takes.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the token to show.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Hands memory over, under a name: each piece with its role. From then on the holder answers for it,
    /// handles that were made before stay good, and this process may go on using the memory, drop it, or
    /// end. Returns when the holder and its successor have it.
    ///
    /// Only memory that has a segment alone can be handed over, since a descriptor is for all of a segment:
    /// allocate it in a context [without pooling](crate::ContextOptions::pooling).
    ///
    /// # Errors
    /// [`Error::Unsupported`] for memory that shares its segment, was opened from a handle, or ends with
    /// this process; [`Error::Holder`] if there is no holder or it refuses; [`Error::TimedOut`]. After an
    /// error the memory is this process's as before, unless the time was over: then the holder may have it,
    /// and the call can be made again.
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

    /// Has the holder keep what it answered with ([`open_to_write`](Self::open_to_write)) under another name, too. Both
    /// names are for the same memory, which stays as long as one of them does.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if handles for writing are missing; [`Error::Stale`] or [`Error::Holder`] if the
    /// memory is held no more, or has one writer at a time; as [`hand_over`](Self::hand_over).
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

    /// Asks for the memory under a name, to read it.
    ///
    /// # Errors
    /// [`Error::Holder`] if there is no holder, nothing has the name, or the name's token was not shown.
    pub fn open(&self, name: &str) -> Result<HeldName> {
        self.opened(Question::Open {
            name: name.to_owned(),
            writes: false,
        })
    }

    /// Asks for the memory under a name, to read and write it.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_to_write(&self, name: &str) -> Result<HeldName> {
        self.opened(Question::Open {
            name: name.to_owned(),
            writes: true,
        })
    }

    /// Waits until a name has a later version than `version`, for at most `timeout`, and asks for its
    /// memory to read it.
    ///
    /// # Errors
    /// As [`open`](Self::open), also when the name is removed meanwhile; [`Error::TimedOut`].
    pub fn await_version(&self, name: &str, version: u64, timeout: Duration) -> Result<HeldName> {
        let question = Question::Await {
            name: name.to_owned(),
            version,
            epoch: None,
        };
        self.within(timeout).opened(question)
    }

    /// Returns a holder that waits for so long.
    fn within(&self, timeout: Duration) -> Self {
        Self {
            timeout,
            ..self.clone()
        }
    }

    /// Returns all names, in order, without handles.
    ///
    /// # Errors
    /// [`Error::Holder`] if there is no holder.
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
            for entry in names {
                all.push(entry.try_into()?);
            }
            if is_done {
                return Ok(all);
            }
        }
    }

    /// Lets go of what a name stands for. Who has it open keeps it; nobody can open it any more.
    ///
    /// # Errors
    /// As [`open`](Self::open); also if the name is pinned.
    pub fn remove(&self, name: &str) -> Result<()> {
        self.done(Question::Remove {
            name: name.to_owned(),
        })
    }

    /// Protects a name from being removed or replaced, or does so no more.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn pin(&self, name: &str, pinned: bool) -> Result<()> {
        self.done(Question::Pin {
            name: name.to_owned(),
            pinned,
        })
    }

    /// Asks how the holder is.
    ///
    /// # Errors
    /// [`Error::Holder`] if there is none.
    pub fn status(&self) -> Result<Status> {
        match self.ask(Question::Status)? {
            Answer::Status(status) => Ok(status),
            _ => Err(senseless()),
        }
    }

    /// Ends the holder and its successor, who let go of everything. Who has something open keeps it.
    ///
    /// # Errors
    /// [`Error::Holder`] if there is none, or a name is pinned or needs a token for that.
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

    /// Asks a question, again if the holder dies meanwhile. All questions may be asked twice.
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
        let mut attempts = 0;
        let mut holder = 0;
        let mut pause = Pause::new(RECONNECT_INTERVAL, MAX_RETRY_INTERVAL);
        loop {
            match self.ask_once(&bytes, deadline, &mut holder) {
                Err(Errno::PIPE | Errno::CONNRESET) if attempts < MAX_RECONNECTS => {
                    attempts += 1;
                    pause.wait(deadline);
                }
                // The holder serves every user and process in turn, so this one's turn comes.
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

    /// Asks once. `holder` is set to the holder's process id, if it has one in this process's namespace.
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
            // It has hung up, but may have said before why.
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

    /// Connects to the first holder that there is ([`Errno::NOENT`]: there is none).
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

/// Bytes of the last entry of a list, which may begin within the limit.
const LIST_SLACK: usize = 64 << 10;

/// Returns a number for a question that may be asked twice and is to be done once.
fn new_request() -> Result<u64> {
    let mut bytes = [0; 8];
    process::random(&mut bytes).map_err(Error::os("asking for random numbers"))?;
    Ok(u64::from_ne_bytes(bytes).max(1))
}

fn senseless() -> Error {
    Error::Protocol("the holder answers another question")
}

impl Memory {
    /// Hands all of the memory over to a holder, under a name of its own. See [`Holder::hand_over`].
    ///
    /// # Errors
    /// As [`Holder::hand_over`].
    pub fn hand_over(&self, holder: &Holder, name: &str) -> Result<HandedOver> {
        holder.hand_over(name, &[(WHOLE, self)], HoldOptions::new())
    }
}

/// The role of the one part of a name.
pub(super) const WHOLE: &str = "memory";
