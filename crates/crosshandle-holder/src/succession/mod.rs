//! The protocol between a holder and its successor, over a private pair of sockets. The holder
//! sends every change together with its descriptors, and the successor confirms it. When the
//! holder's end hangs up, the successor takes over. This file has the messages and the holder's
//! side. `follow.rs` has the successor's side.
//!
//! While a holder is upgraded, the two processes may be of different releases. Each states its
//! version of the protocol. A successor follows holders of its own version and of the previous one.

mod follow;

pub(super) use follow::follow;

use super::identity::Maker;
use super::journal::Lost;
use super::message::{MAX_MESSAGE_BYTES, handle};
use super::proof::MAX_EARLIER_WRITERS;
use super::state::{Holdings, Name, Record, RecordKey};
use crosshandle_handle::MemoryHandle;
use crosshandle_ipc::broker::{FileId, HolderFiles};
use crosshandle_os::fork::KeptFromChildren;
use crosshandle_os::socket::{self, Received};
use crosshandle_os::threads::background;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::report::ObjectKind;
use data_encoding::HEXLOWER;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum size of one earlier writer in a message to the successor, in bytes.
const EARLIER_WRITER_BYTES: usize = 256;

/// Time of silence after which the holder pings its successor. A shorter time wakes both idle
/// processes more often. A longer time delays the replacement of a stopped successor.
const PING_INTERVAL: Duration = Duration::from_millis(500);

/// Time after which a successor that confirms nothing is replaced. A shorter time replaces
/// successors in vain on a busy machine. A longer time delays changes if the successor is stopped.
const UNRESPONSIVE_TIME: Duration = Duration::from_millis(1000);

/// Maximum number of unconfirmed messages to a successor. A successor with more is replaced. With a
/// smaller value, many names that are handed over at once make a successor look stuck.
const MAX_UNCONFIRMED: usize = 1 << 16;

/// The command that starts a successor. Its program calls
/// [`serve_as_successor`](super::serve_as_successor).
#[derive(Clone, Debug)]
pub(super) struct SuccessorCommand {
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<OsString>,
}

/// A path in JSON: a string, or an array of bytes if the path is not UTF-8.
mod any_path {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::ffi::OsString;
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    use std::path::{Path, PathBuf};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Text(PathBuf),
        Bytes(Vec<u8>),
    }

    pub(super) fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
        match path.to_str() {
            Some(text) => text.serialize(to),
            None => path.as_os_str().as_bytes().serialize(to),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
        Ok(match Written::deserialize(from)? {
            Written::Text(path) => path,
            Written::Bytes(bytes) => OsString::from_vec(bytes).into(),
        })
    }
}

/// Version of the protocol. In version 1, holders sent neither their version nor the lost names,
/// and did not ping their successor.
#[cfg(not(test))]
pub(super) fn version() -> u32 {
    VERSION
}

const VERSION: u32 = 2;
/// Oldest version of a holder that a successor follows: that of the previous release.
const OLDEST_VERSION: u32 = 1;

/// Version of the protocol. Tests override it to act as another release.
#[cfg(test)]
pub(super) fn version() -> u32 {
    let told = std::env::var("CROSSHANDLE_TEST_SUCCESSION").ok();
    told.and_then(|text| text.parse().ok()).unwrap_or(VERSION)
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Change {
    /// The first message.
    Begin {
        #[serde(with = "any_path")]
        directory: PathBuf,
        /// Whether the socket for programs belongs to a service manager.
        is_given: bool,
        takeovers: u64,
        /// The version of the holder.
        #[serde(default = "first_version")]
        version: u32,
    },
    /// Sends the sockets for programs and importers, which replace the previous ones.
    Sockets {
        programs: Option<FileId>,
        importers: Option<FileId>,
    },
    /// Sends the lock of the directory, which replaces the previous one.
    Lock { file: Option<FileId> },
    /// Adds a record, with its descriptor.
    Record {
        #[serde(with = "handle")]
        handle: MemoryHandle,
        device: String,
        kind: ObjectKind,
        name: String,
        len: u64,
        note: String,
        maker: Maker,
    },
    /// Changes the key of a record.
    Rekey {
        #[serde(with = "handle")]
        handle: MemoryHandle,
        key: RecordKey,
    },
    /// Sets a name, and replaces its previous version.
    Name(Box<Name>),
    /// Removes a name.
    Forget { name: String },
    /// Releases a record that no name needs.
    Release {
        #[serde(with = "handle")]
        handle: MemoryHandle,
    },
    /// Adds a lost name. It stays lost until memory is held under it.
    Lost(Box<Lost>),
    /// Gives up a lost name.
    Found { name: String },
    /// Changes nothing. The successor confirms that it is alive.
    Ping,
}

fn first_version() -> u32 {
    1
}

/// A change and its serial number.
#[derive(Serialize, Deserialize)]
struct Message {
    serial: u64,
    change: Change,
}

/// Confirms all changes up to a serial number.
#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
struct Confirmed {
    serial: u64,
    /// The version of the successor.
    version: u32,
    /// The reason why the successor does not follow this holder.
    refuses: Option<String>,
    /// One of the names since the last confirmation that the successor cannot take over, and the
    /// reason.
    drops: Option<(String, String)>,
    /// Number of names that the successor cannot take over.
    dropped: usize,
}

impl Change {
    pub(super) fn record(record: &Record) -> (Self, Vec<Sent>) {
        let change = Self::Record {
            handle: record.handle,
            device: record.device.clone(),
            kind: record.kind,
            name: record.name.clone(),
            len: record.memory.len,
            note: HEXLOWER.encode(record.memory.note.as_bytes()),
            maker: record.maker,
        };
        (change, vec![Arc::clone(&record.memory) as _])
    }
}

/// An object that is sent with a change. Dropping its last reference closes the descriptor in the
/// way that its kind needs.
pub(super) type Sent = Arc<dyn AsFd>;

/// Maximum number of descriptors of one change.
const MAX_FILES: usize = 2;

/// Maximum size of a message to a successor, in bytes.
const MAX_CHANGE_BYTES: usize =
    MAX_MESSAGE_BYTES + 1024 + (MAX_EARLIER_WRITERS + 1) * EARLIER_WRITER_BYTES;
/// Maximum size of a confirmation, in bytes.
const MAX_CONFIRMED_BYTES: usize = 4096;

/// A successor, as its holder sees it.
pub(super) struct Successor {
    stream: KeptFromChildren,
    child: Child,
    /// Messages that have not been sent yet.
    outgoing: VecDeque<(Vec<u8>, Vec<Sent>)>,
    /// The serial number of the latest message.
    serial: u64,
    /// The serial number of the latest message that changes something.
    changed: u64,
    confirmed: u64,
    /// The serial number of the last change that belongs to the initial state.
    initial: u64,
    /// The version of the successor. 0 until the successor has stated its version.
    version: u32,
    /// Number of names that the successor cannot take over.
    dropped: usize,
    /// The time of its latest confirmation, or of the first message after that.
    heard: Instant,
}

/// The reports of a successor.
#[derive(Default)]
pub(super) struct Heard {
    /// Names that the successor cannot take over, and the reasons why.
    pub(super) drops: Vec<(String, String)>,
    /// The reason why it does not follow this holder.
    pub(super) refuses: Option<String>,
}

impl Successor {
    /// Starts a successor. It has received no changes yet.
    pub(super) fn start(command: &SuccessorCommand) -> Result<Self> {
        let failed = Error::os("starting a successor");
        let (ours, theirs) = socket::pair().map_err(&failed)?;
        let child = Command::new(&command.program)
            .args(&command.arguments)
            .stdin(theirs)
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| failed(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        Ok(Self {
            stream: KeptFromChildren::new(ours),
            child,
            outgoing: VecDeque::new(),
            serial: 0,
            changed: 0,
            confirmed: 0,
            initial: 0,
            version: 0,
            dropped: 0,
            heard: Instant::now(),
        })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Queues a change, and returns its serial number.
    pub(super) fn tell(&mut self, change: Change, files: Vec<Sent>) -> u64 {
        // The previous release does not know these messages.
        let is_new = matches!(
            change,
            Change::Lost(_) | Change::Found { .. } | Change::Ping
        );
        if is_new && (self.version == 1 || version() == 1) {
            return self.serial;
        }
        if self.confirmed == self.serial {
            self.heard = Instant::now();
        }
        self.serial += 1;
        if !matches!(change, Change::Ping) {
            self.changed = self.serial;
        }
        let message = Message {
            serial: self.serial,
            change,
        };
        let bytes = serde_json::to_vec(&message).expect("plain data");
        self.outgoing.push_back((bytes, files));
        self.serial
    }

    /// Notes that the whole initial state has been queued.
    pub(super) fn end_beginning(&mut self) {
        self.initial = self.serial;
    }

    /// Returns whether the successor has confirmed a change and the whole initial state.
    pub(super) fn has(&self, serial: u64) -> bool {
        self.confirmed >= serial.max(self.initial)
    }

    pub(super) fn has_all(&self) -> bool {
        self.has(self.changed) && self.dropped == 0
    }

    /// Returns the number of names that the successor cannot take over.
    pub(super) fn dropped(&self) -> usize {
        self.dropped
    }

    /// Returns when the holder must check the successor: to ping it, or because it has not replied
    /// for too long.
    pub(super) fn next_look(&self) -> Instant {
        match self.confirmed == self.serial {
            true => self.heard + PING_INTERVAL,
            false => self.heard + UNRESPONSIVE_TIME,
        }
    }

    /// Pings the successor if it was silent for a while. Returns whether it has not replied for too
    /// long.
    pub(super) fn is_unresponsive(&mut self) -> bool {
        if Instant::now() < self.next_look() {
            return false;
        }
        if self.confirmed < self.serial {
            return true;
        }
        self.tell(Change::Ping, Vec::new());
        if self.confirmed == self.serial {
            // The previous release is not pinged.
            self.heard = Instant::now();
        }
        false
    }

    /// Returns the serial number of the latest change.
    pub(super) fn changed(&self) -> u64 {
        self.changed
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Returns whether messages are queued.
    pub(super) fn wants_to_send(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Sends as many messages as the socket accepts.
    ///
    /// # Errors
    /// Returns an error if the successor has ended or is stuck.
    pub(super) fn send(&mut self) -> Result<(), Errno> {
        if self.serial - self.confirmed > MAX_UNCONFIRMED as u64 + self.initial {
            return Err(Errno::TIMEDOUT);
        }
        while let Some((bytes, files)) = self.outgoing.front() {
            let files: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
            match socket::send(&self.stream, bytes, &files) {
                Ok(()) => drop(self.outgoing.pop_front()),
                // The system also limits the number of descriptors in flight.
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::TOOMANYREFS) => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Ends the successor, so that it does not take over. If it is only dropped, for example
    /// because the holder panics, it does take over.
    pub(super) fn end(mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Ends a successor that is being replaced, without waiting for its end.
    pub(super) fn replace(mut self) {
        let _ = self.child.kill();
        background::run_blocking(move || drop(self.child.wait()));
    }

    /// Reads the confirmations that have arrived.
    ///
    /// # Errors
    /// Returns an error if the successor has ended or sends invalid messages.
    pub(super) fn receive(&mut self, heard: &mut Heard) -> Result<(), Errno> {
        let mut buffer = [0; MAX_CONFIRMED_BYTES];
        loop {
            match socket::receive(&self.stream, &mut buffer, socket::Guard::Look) {
                Ok(Received::Message(len, ())) => {
                    let confirmed: Confirmed =
                        serde_json::from_slice(&buffer[..len]).map_err(|_| Errno::PROTO)?;
                    self.confirmed = self.confirmed.max(confirmed.serial.min(self.serial));
                    self.heard = Instant::now();
                    self.version = confirmed.version.max(1);
                    self.dropped = confirmed.dropped;
                    heard.drops.extend(confirmed.drops);
                    heard.refuses = confirmed.refuses.or(heard.refuses.take());
                }
                Ok(Received::HungUp | Received::Unwanted) => return Err(Errno::CONNRESET),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
    }
}

/// The state with which a successor takes over.
pub(super) struct Inheritance {
    pub(super) directory: PathBuf,
    pub(super) programs: OwnedFd,
    pub(super) importers: OwnedFd,
    pub(super) lock: OwnedFd,
    /// Whether the socket for programs belongs to a service manager.
    pub(super) is_given: bool,
    pub(super) takeovers: u64,
    /// The files in the directory of the sockets and the lock.
    pub(super) files: HolderFiles,
    pub(super) holdings: Holdings,
    /// The lost names. `None` if only the journal has them.
    pub(super) lost: Option<BTreeMap<String, Lost>>,
    /// The names that could not be taken over, and the reasons.
    pub(super) dropped: BTreeMap<String, String>,
}

#[cfg(test)]
mod tests;
