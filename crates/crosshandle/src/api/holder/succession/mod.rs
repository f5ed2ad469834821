//! What a holder and its successor say to each other, over a pair of sockets that only they have: the
//! holder sends every change, with the descriptors that belong to it, and the successor confirms it. The
//! hang-up is the successor's word to take over. This file has the messages and the holder's side;
//! `follow.rs` has the successor's.
//!
//! Both may be of different releases while a holder is upgraded: each side says the version of these
//! messages that it speaks, and a successor follows holders of its own version and of the one before.

mod follow;

pub(super) use follow::follow;

use super::identity::Maker;
use super::journal::Lost;
use super::state::{Holdings, Name, Record, RecordKey};
use super::tuning::{
    EARLIER_WRITER_BYTES, MAX_EARLIER_WRITERS, MAX_MESSAGE_BYTES, MAX_UNCONFIRMED, PING_INTERVAL,
    UNRESPONSIVE_TIME,
};
use crate::error::{Error, Result};
use crate::ipc::broker::{FileId, HolderFiles};
use crate::os::fork::KeptFromChildren;
use crate::os::socket::{self, Received};
use crate::threads::background;
use crate::types::report::ObjectKind;
use data_encoding::HEXLOWER;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

/// The command that starts a successor: a program that calls [`serve_as_successor`](super::serve_as_successor).
#[derive(Clone, Debug)]
pub(super) struct SuccessorCommand {
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<OsString>,
}

/// A path in JSON: a text, or its bytes if they are none.
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

/// The version of these messages. In version 1 holders told neither their version nor what is lost, and never
/// asked whether their successor is there.
#[cfg(not(test))]
pub(super) fn version() -> u32 {
    VERSION
}

const VERSION: u32 = 2;
/// The oldest version of a holder that a successor follows: that of the release before.
const OLDEST_VERSION: u32 = 1;

/// The version of these messages, which tests change to be another release.
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
        /// Whether the socket of programs belongs to a service manager.
        is_given: bool,
        takeovers: u64,
        /// The version that the holder speaks.
        #[serde(default = "first_version")]
        version: u32,
    },
    /// The sockets of programs and importers come along, in the place of those before.
    Sockets {
        programs: Option<FileId>,
        importers: Option<FileId>,
    },
    /// The lock of the directory's holder comes along, in the place of the one before.
    Lock { file: Option<FileId> },
    /// A record is held from now on. Its descriptor comes along.
    Record {
        handle: String,
        device: String,
        kind: ObjectKind,
        name: String,
        len: u64,
        note: String,
        maker: Maker,
    },
    /// A record has another key from now on.
    Rekey { handle: String, key: RecordKey },
    /// A name stands for something from now on, and for what it stood before no more.
    Name(Box<Name>),
    /// A name stands for nothing any more.
    Forget { name: String },
    /// A record that no name needs is held no more.
    Release { handle: String },
    /// A name is lost, as long as nothing is held under it.
    Lost(Box<Lost>),
    /// A lost name is waited for no more.
    Found { name: String },
    /// Nothing has changed: the successor confirms that it is there.
    Ping,
}

fn first_version() -> u32 {
    1
}

/// A change and its number.
#[derive(Serialize, Deserialize)]
struct Message {
    serial: u64,
    change: Change,
}

/// The successor's confirmation of all changes up to this one.
#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
struct Confirmed {
    serial: u64,
    /// The version that the successor speaks.
    version: u32,
    /// Why it does not follow this holder.
    refuses: Option<String>,
    /// A name that it cannot take over, of those that it was told of since its last confirmation, and why.
    drops: Option<(String, String)>,
    /// How many names it cannot take over.
    dropped: usize,
}

impl Change {
    pub(super) fn record(record: &Record) -> (Self, Vec<Sent>) {
        let change = Self::Record {
            handle: record.handle.to_string(),
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

/// What is sent along with a change: whoever drops it last closes it as its kind of descriptor must be.
pub(super) type Sent = Arc<dyn AsFd>;

/// The most descriptors that come with one change.
const MAX_FILES: usize = 2;

/// Bytes of the longest message to a successor.
const MAX_CHANGE_BYTES: usize =
    MAX_MESSAGE_BYTES + 1024 + (MAX_EARLIER_WRITERS + 1) * EARLIER_WRITER_BYTES;
/// Bytes of the longest confirmation.
const MAX_CONFIRMED_BYTES: usize = 4096;

/// A holder's successor, as the holder knows it.
pub(super) struct Successor {
    stream: KeptFromChildren,
    child: Child,
    /// Changes that are not sent yet.
    outgoing: VecDeque<(Vec<u8>, Vec<Sent>)>,
    /// The number of the latest message.
    serial: u64,
    /// The number of the latest one that changes something.
    changed: u64,
    confirmed: u64,
    /// The number of the last change of those that the holder had when the successor was started.
    initial: u64,
    /// The version that it speaks; 0 until it has said so.
    version: u32,
    /// How many names it cannot take over.
    dropped: usize,
    /// When it has last confirmed something, or was asked for the first thing that it has not confirmed.
    heard: Instant,
}

/// What a successor has said.
#[derive(Default)]
pub(super) struct Heard {
    /// Names that it cannot take over, and why.
    pub(super) drops: Vec<(String, String)>,
    /// Why it does not follow this holder.
    pub(super) refuses: Option<String>,
}

impl Successor {
    /// Starts a successor, which has nothing yet.
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

    /// Tells of a change as soon as there is room, and returns its number.
    pub(super) fn tell(&mut self, change: Change, files: Vec<Sent>) -> u64 {
        // The release before does not know these.
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

    /// Notes that all the holder had was told.
    pub(super) fn end_beginning(&mut self) {
        self.initial = self.serial;
    }

    /// Returns whether the successor has a change, and everything from before it was started.
    pub(super) fn has(&self, serial: u64) -> bool {
        self.confirmed >= serial.max(self.initial)
    }

    pub(super) fn has_all(&self) -> bool {
        self.has(self.changed) && self.dropped == 0
    }

    /// Returns how many names it cannot take over.
    pub(super) fn dropped(&self) -> usize {
        self.dropped
    }

    /// Returns when it is to be looked at: then it is asked whether it is there, or has not answered for too long.
    pub(super) fn next_look(&self) -> Instant {
        match self.confirmed == self.serial {
            true => self.heard + PING_INTERVAL,
            false => self.heard + UNRESPONSIVE_TIME,
        }
    }

    /// Asks it whether it is there, if it was silent for a while. Returns whether it has not answered for too long.
    pub(super) fn is_unresponsive(&mut self) -> bool {
        if Instant::now() < self.next_look() {
            return false;
        }
        if self.confirmed < self.serial {
            return true;
        }
        self.tell(Change::Ping, Vec::new());
        if self.confirmed == self.serial {
            // The release before is not asked.
            self.heard = Instant::now();
        }
        false
    }

    /// Returns the number of the latest change.
    pub(super) fn changed(&self) -> u64 {
        self.changed
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Returns whether there is something to send.
    pub(super) fn wants_to_send(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Sends what there is room for.
    ///
    /// # Errors
    /// The successor has ended, or is stuck.
    pub(super) fn send(&mut self) -> Result<(), Errno> {
        if self.serial - self.confirmed > MAX_UNCONFIRMED as u64 + self.initial {
            return Err(Errno::TIMEDOUT);
        }
        while let Some((bytes, files)) = self.outgoing.front() {
            let files: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
            match socket::send(&self.stream, bytes, &files) {
                Ok(()) => drop(self.outgoing.pop_front()),
                // Descriptors in flight are limited too.
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::TOOMANYREFS) => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Ends the successor, so that it does not take over. Merely dropped it does, should the holder panic.
    pub(super) fn end(mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Ends one in whose place another is started, without waiting until the system has ended it.
    pub(super) fn replace(mut self) {
        let _ = self.child.kill();
        background::run_blocking(move || drop(self.child.wait()));
    }

    /// Takes the confirmations that have come.
    ///
    /// # Errors
    /// The successor has ended, or makes no sense.
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

/// What a successor goes on with.
pub(super) struct Inheritance {
    pub(super) directory: PathBuf,
    pub(super) programs: OwnedFd,
    pub(super) importers: OwnedFd,
    pub(super) lock: OwnedFd,
    /// Whether the socket of programs belongs to a service manager.
    pub(super) is_given: bool,
    pub(super) takeovers: u64,
    /// Which files of the directory the sockets and the lock are.
    pub(super) files: HolderFiles,
    pub(super) holdings: Holdings,
    /// What is lost. `None`: only the journal tells.
    pub(super) lost: Option<BTreeMap<String, Lost>>,
    /// The names that could not be taken over, and why.
    pub(super) dropped: BTreeMap<String, String>,
}

#[cfg(test)]
mod tests;
