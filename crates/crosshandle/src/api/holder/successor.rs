//! What a holder and its successor say to each other, over a pair of sockets that only they have: the
//! holder sends every change, with the descriptors that belong to it, and the successor confirms it. The
//! hang-up is the successor's word to take over.

use super::identity::Maker;
use super::segment::HeldSegment;
use super::state::{Holdings, Name, Record, RecordKey};
use super::tuning::{
    EARLIER_WRITER_BYTES, MAX_EARLIER_WRITERS, MAX_MESSAGE_BYTES, MAX_UNCONFIRMED,
};
use crate::error::{Error, Result};
use crate::handle::{Key, MemoryHandle};
use crate::ipc::broker::protocol::BackendBlob;
use crate::ipc::broker::{FileId, HolderFiles};
use crate::os::fork::KeptFromChildren;
use crate::os::socket::{self, Granted, Received};
use crate::sync::Deadline;
use crate::threads::disposer::PeerDescriptor;
use crate::types::report::ObjectKind;
use data_encoding::HEXLOWER;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// The command that starts a successor: a program that calls [`serve_as_successor`](super::serve_as_successor).
#[derive(Clone, Debug)]
pub(super) struct SuccessorCommand {
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<OsString>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Change {
    /// The first message.
    Begin {
        directory: PathBuf,
        /// Whether the socket of programs belongs to a service manager.
        is_given: bool,
        takeovers: u64,
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
}

#[derive(Serialize, Deserialize)]
struct Message {
    serial: u64,
    change: Change,
}

/// The successor's confirmation of all changes up to this one.
#[derive(Serialize, Deserialize)]
struct Confirmed {
    serial: u64,
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

/// A holder's successor, as the holder knows it.
pub(super) struct Successor {
    stream: KeptFromChildren,
    child: Child,
    /// Changes that are not sent yet.
    outgoing: VecDeque<(Vec<u8>, Vec<Sent>)>,
    /// The number of the latest change.
    serial: u64,
    confirmed: u64,
    /// The number of the last change of those that the holder had when the successor was started.
    initial: u64,
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
            // A terminal's signals are for the holder, which tells it.
            .process_group(0)
            .spawn()
            .map_err(|error| failed(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        Ok(Self {
            stream: KeptFromChildren::new(ours),
            child,
            outgoing: VecDeque::new(),
            serial: 0,
            confirmed: 0,
            initial: 0,
        })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Tells of a change as soon as there is room, and returns its number.
    pub(super) fn tell(&mut self, change: Change, files: Vec<Sent>) -> u64 {
        self.serial += 1;
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
        self.has(self.serial)
    }

    pub(super) fn serial(&self) -> u64 {
        self.serial
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

    /// Takes the confirmations that have come.
    ///
    /// # Errors
    /// The successor has ended, or makes no sense.
    pub(super) fn receive(&mut self) -> Result<(), Errno> {
        let mut buffer = [0; 256];
        loop {
            match socket::receive(&self.stream, &mut buffer, socket::Guard::Look) {
                Ok(Received::Message(len, ())) => {
                    let confirmed: Confirmed =
                        serde_json::from_slice(&buffer[..len]).map_err(|_| Errno::PROTO)?;
                    self.confirmed = self.confirmed.max(confirmed.serial.min(self.serial));
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
}

/// Takes a holder's changes until it dies. `None`: it had not said enough yet to go on with, or this process
/// is to end, as `stop` says when it can be read.
pub(super) fn follow(
    stream: BorrowedFd<'_>,
    stop: Option<BorrowedFd<'_>>,
    mut holdings: Holdings,
) -> Result<Option<Inheritance>> {
    let mut buffer =
        vec![0; MAX_MESSAGE_BYTES + 1024 + (MAX_EARLIER_WRITERS + 1) * EARLIER_WRITER_BYTES];
    let (mut begun, mut sockets, mut lock) = (None, None, None);
    let mut files = HolderFiles::default();
    loop {
        if is_to_stop(stream, stop)? {
            return Ok(None);
        }
        let received = socket::receive_until(stream, &mut buffer, MAX_FILES, Deadline::NEVER);
        let (len, granted): (usize, Granted<PeerDescriptor>) = match received {
            Ok(Received::Message(len, granted)) => (len, granted),
            Ok(Received::HungUp) | Err(Errno::CONNRESET) => break,
            Ok(Received::Unwanted) => return Err(Error::Protocol("the holder makes no sense")),
            Err(errno) => return Err(Error::os("waiting for the holder")(errno)),
        };
        let Message { serial, change } = serde_json::from_slice(&buffer[..len])
            .map_err(|_| Error::Protocol("the holder makes no sense"))?;
        let mut granted = granted.into_iter();
        let mut file = || {
            let missing = Error::Protocol("the holder sent no descriptor");
            granted.next().ok_or(missing)
        };
        match change {
            Change::Begin {
                directory,
                is_given,
                takeovers,
            } => begun = Some((directory, is_given, takeovers)),
            Change::Sockets {
                programs,
                importers,
            } => {
                sockets = Some((file()?.into_owned(), file()?.into_owned()));
                (files.programs, files.importers) = (programs, importers);
            }
            Change::Lock { file: id } => {
                lock = Some(file()?.into_owned());
                files.lock = id;
            }
            Change::Record {
                handle,
                device,
                kind,
                name,
                len,
                note,
                maker,
            } => {
                let note = HEXLOWER.decode(note.as_bytes()).unwrap_or_default();
                let note = BackendBlob::new(&note);
                let handle: MemoryHandle = handle.parse()?;
                let backend = handle.fields().backend;
                let memory = HeldSegment::received(file()?, len, note, backend);
                holdings.add_record(Record {
                    handle,
                    device,
                    kind,
                    name,
                    memory: Arc::new(memory),
                    maker,
                    names: 0,
                })?;
            }
            Change::Rekey { handle, key } => {
                holdings.rekey(&handle.parse()?, Key::from_bytes(key));
            }
            Change::Name(name) => drop(holdings.set_name(*name)),
            Change::Forget { name } => drop(holdings.remove_name(&name)),
            Change::Release { handle } => {
                let handle: MemoryHandle = handle.parse()?;
                let key: RecordKey = super::state::key_of(&handle);
                holdings.remove_record(&key);
            }
        }
        let confirmed = serde_json::to_vec(&Confirmed { serial }).expect("plain data");
        let sent = loop {
            match socket::send(stream, &confirmed, &[]) {
                Err(Errno::AGAIN) => socket::wait_until(stream, PollFlags::OUT, Deadline::NEVER)
                    .map_err(Error::os("answering the holder"))?,
                sent => break sent,
            }
        };
        match sent {
            Ok(()) => {}
            Err(Errno::PIPE | Errno::CONNRESET) => break,
            Err(errno) => return Err(Error::os("answering the holder")(errno)),
        }
    }
    let (Some((directory, is_given, takeovers)), Some((programs, importers)), Some(lock)) =
        (begun, sockets, lock)
    else {
        return Ok(None);
    };
    Ok(Some(Inheritance {
        directory,
        is_given,
        programs,
        importers,
        lock,
        takeovers,
        files,
        holdings,
    }))
}

/// Waits until the holder has said something, or this process is to end.
fn is_to_stop(stream: BorrowedFd<'_>, stop: Option<BorrowedFd<'_>>) -> Result<bool> {
    let Some(stop) = stop else {
        return Ok(false);
    };
    loop {
        let mut descriptors = [stream, stop].map(|it| PollFd::from_borrowed_fd(it, PollFlags::IN));
        match poll(&mut descriptors, None) {
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Error::os("waiting for the holder")(errno)),
            Ok(_) => return Ok(!descriptors[1].revents().is_empty()),
        }
    }
}
