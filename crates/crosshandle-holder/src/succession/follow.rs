//! The successor's side. It follows the changes of a holder until the holder dies. An invalid
//! message about a name does not end the successor: it drops the name and reports that.

use super::super::journal::Lost;
use super::super::segment::{Drivers, HeldSegment};
use super::super::state::{Holdings, Name, Record, RecordKey, key_of};
use super::{
    Change, Confirmed, Inheritance, MAX_CHANGE_BYTES, MAX_CONFIRMED_BYTES, MAX_FILES, Message,
    OLDEST_VERSION, version,
};
use crosshandle_handle::{Key, MemoryHandle};
use crosshandle_ipc::broker::HolderFiles;
use crosshandle_ipc::broker::protocol::BackendBlob;
use crosshandle_os::socket::{self, Granted, Received};
use crosshandle_os::threads::disposer::PeerDescriptor;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::Deadline;
use data_encoding::HEXLOWER;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

/// Receives the changes of a holder until it dies. Returns `None` if the holder died before it had
/// sent enough for a takeover. Also returns `None` when `stop` becomes readable, which tells this
/// process to end.
///
/// # Errors
/// Returns an error if the holder is of a release that this one does not follow, if it sends
/// invalid messages, or if a limit of the system is reached.
pub(crate) fn follow(
    stream: BorrowedFd<'_>,
    stop: Option<BorrowedFd<'_>>,
    holdings: Holdings,
    drivers: Drivers,
) -> Result<Option<Inheritance>> {
    let mut follower = Follower::new(holdings, drivers);
    let mut buffer = vec![0; MAX_CHANGE_BYTES];
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
        let message = serde_json::from_slice::<Message>(&buffer[..len]);
        let refusal = match message {
            Ok(Message { serial, change }) => {
                follower.serial = serial;
                follower.take(change, granted).err()
            }
            Err(error) => Some(Error::invalid(format!(
                "the holder says what this release does not understand: {error}"
            ))),
        };
        let mut confirmed = follower.confirm();
        confirmed.refuses = refusal.as_ref().map(ToString::to_string);
        let is_followed = answer(stream, &confirmed)?;
        if let Some(error) = refusal {
            return Err(error);
        }
        if !is_followed {
            break;
        }
    }
    Ok(follower.inherit())
}

/// Sends a confirmation. Returns whether the holder is still connected.
fn answer(stream: BorrowedFd<'_>, confirmed: &Confirmed) -> Result<bool> {
    let mut bytes = serde_json::to_vec(confirmed).expect("plain data");
    if bytes.len() > MAX_CONFIRMED_BYTES {
        let short = Confirmed {
            drops: None,
            refuses: None,
            ..*confirmed
        };
        bytes = serde_json::to_vec(&short).expect("plain data");
    }
    loop {
        match socket::send(stream, &bytes, &[]) {
            Ok(()) => return Ok(true),
            Err(Errno::AGAIN) => socket::wait_until(stream, PollFlags::OUT, Deadline::NEVER)
                .map_err(Error::os("answering the holder"))?,
            Err(Errno::PIPE | Errno::CONNRESET) => return Ok(false),
            Err(errno) => return Err(Error::os("answering the holder")(errno)),
        }
    }
}

/// The state that a successor has received so far.
struct Follower {
    serial: u64,
    begun: Option<(PathBuf, bool, u64)>,
    sockets: Option<(OwnedFd, OwnedFd)>,
    lock: Option<OwnedFd>,
    files: HolderFiles,
    holdings: Holdings,
    drivers: Drivers,
    /// The holder's version.
    version: u32,
    lost: BTreeMap<String, Lost>,
    /// Records that this process could not hold, and the reasons.
    refused: BTreeMap<RecordKey, String>,
    dropped: BTreeMap<String, String>,
    /// One of the dropped names that has not been reported to the holder yet.
    drops: Option<(String, String)>,
}

impl Follower {
    fn new(holdings: Holdings, drivers: Drivers) -> Self {
        Self {
            drivers,
            serial: 0,
            begun: None,
            sockets: None,
            lock: None,
            files: HolderFiles::default(),
            holdings,
            version: 0,
            lost: BTreeMap::new(),
            refused: BTreeMap::new(),
            dropped: BTreeMap::new(),
            drops: None,
        }
    }

    /// Applies a change.
    ///
    /// # Errors
    /// Returns an error if the holder cannot be followed at all.
    fn take(&mut self, change: Change, granted: Granted<PeerDescriptor>) -> Result<()> {
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
                version: holders,
            } => {
                let own = version();
                if !(OLDEST_VERSION.max(own.saturating_sub(1))..=own).contains(&holders) {
                    return Err(Error::invalid(format!(
                        "this successor (crosshandle {}) speaks version {own} and follows holders of version \
                         {} or {own}, and the holder is of version {holders}: upgrade one release at a time",
                        env!("CARGO_PKG_VERSION"),
                        own.saturating_sub(1).max(OLDEST_VERSION),
                    )));
                }
                self.version = holders;
                self.begun = Some((directory, is_given, takeovers));
            }
            Change::Sockets {
                programs,
                importers,
            } => {
                self.sockets = Some((file()?.into_owned(), file()?.into_owned()));
                (self.files.programs, self.files.importers) = (programs, importers);
            }
            Change::Lock { file: id } => {
                self.lock = Some(file()?.into_owned());
                self.files.lock = id;
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
                let added = file().and_then(|file| {
                    let note = HEXLOWER.decode(note.as_bytes());
                    let note = note.map_err(|_| Error::Protocol("the holder's note is no text"))?;
                    let (note, backend) = (BackendBlob::new(&note), handle.fields().backend);
                    let owns_descriptor = self.drivers.owns_descriptor;
                    let is_of_driver = owns_descriptor(backend, file.as_fd(), &note);
                    self.holdings.add_record(Record {
                        handle,
                        device,
                        kind,
                        name,
                        memory: Arc::new(HeldSegment::received(file, len, note, is_of_driver)),
                        maker,
                        names: BTreeSet::new(),
                    })
                });
                if let Err(error) = added {
                    self.refused.insert(key_of(&handle), error.to_string());
                }
            }
            Change::Rekey { handle, key } => match self.refused.remove(&key_of(&handle)) {
                Some(why) => drop(self.refused.insert(key, why)),
                None => drop(self.holdings.rekey(&handle, Key::from_bytes(key))),
            },
            Change::Name(name) => self.set_name(*name),
            Change::Forget { name } => {
                self.forget(&name);
            }
            Change::Release { handle } => {
                self.refused.remove(&key_of(&handle));
                self.holdings.remove_record(&key_of(&handle));
            }
            Change::Lost(lost) => drop(self.lost.insert(lost.name.name.clone(), *lost)),
            Change::Found { name } => drop(self.lost.remove(&name)),
            Change::Ping => {}
        }
        Ok(())
    }

    fn forget(&mut self, name: &str) {
        self.dropped.remove(name);
        drop(self.holdings.remove_name(name));
    }

    /// Takes a name, or drops it if some of its memory is missing. The previous version of the name
    /// would be wrong, so it is dropped too.
    fn set_name(&mut self, name: Name) {
        let missing = name.handles().find_map(|handle| self.missing(&handle));
        self.lost.remove(&name.name);
        match missing {
            None => {
                self.dropped.remove(&name.name);
                drop(self.holdings.set_name(name));
            }
            Some(why) => {
                self.forget(&name.name);
                self.drops = Some((name.name.clone(), why.clone()));
                self.dropped.insert(name.name, why);
            }
        }
    }

    /// Returns the reason if a record is missing.
    fn missing(&self, handle: &MemoryHandle) -> Option<String> {
        let found = self.holdings.records().get(&key_of(handle));
        if found.is_some_and(|record| record.handle == *handle) {
            return None;
        }
        let why = self.refused.get(&key_of(handle)).cloned();
        Some(why.unwrap_or_else(|| "its memory has not come".into()))
    }

    fn confirm(&mut self) -> Confirmed {
        Confirmed {
            serial: self.serial,
            version: version(),
            refuses: None,
            drops: self.drops.take(),
            dropped: self.dropped.len(),
        }
    }

    fn inherit(self) -> Option<Inheritance> {
        let (Some((directory, is_given, takeovers)), Some((programs, importers)), Some(lock)) =
            (self.begun, self.sockets, self.lock)
        else {
            return None;
        };
        // Dropped names are in the journal. Holders of version 1 do not send lost names.
        let is_told = self.version > 1 && self.dropped.is_empty();
        Some(Inheritance {
            directory,
            is_given,
            programs,
            importers,
            lock,
            takeovers,
            files: self.files,
            holdings: self.holdings,
            lost: is_told.then_some(self.lost),
            dropped: self.dropped,
        })
    }
}

/// Waits until the holder sends a message or this process must end. Returns whether it must end.
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
