//! Replies to requests about names.

use super::super::message::{
    Envelope, HeldName, Reply, Request, Right, Status, check_name, refused,
};
use super::super::proof::Writer;
use super::super::state::{Name, key_of};
use super::super::succession::{Change, Successor};
use super::Server;
use super::programs::{Stage, Wait};
use super::quota::{Resource, none_left};
use crosshandle_handle::MemoryHandle;
use crosshandle_os::process;
use crosshandle_types::Access;
use crosshandle_types::error::HolderFault;

/// Size of the names in one reply to a list request, in bytes. With the last entry, the reply must
/// stay below [`MAX_MESSAGE_BYTES`].
const LIST_BYTES: usize = 30 << 10;

impl Server {
    /// Handles a request. Returns `None` if the reply follows later.
    pub(super) fn answer(&mut self, number: u64, envelope: Envelope) -> Option<Reply> {
        let Envelope { token, request, .. } = envelope;
        let token = token.as_deref();
        Some(match request {
            Request::Hold(hold) => return self.hold(number, hold, token),
            Request::Open { name, writes: true } => {
                return self.open_to_write(number, &name, token);
            }
            Request::Open { name, .. } => match self.open(&name, Access::ReadOnly, token) {
                Ok(entry) => Reply::Opened(entry),
                Err(refusal) => refusal,
            },
            Request::Await {
                name,
                version,
                epoch,
            } => {
                let wait = Wait {
                    name,
                    version,
                    epoch,
                    token: token.map(str::to_owned),
                };
                match self.is_over(&wait) {
                    Some(answer) => answer,
                    None => {
                        let index = self.position(number)?;
                        if !self.has_room(Resource::Waits, self.connected[index].asker) {
                            return Some(none_left(Resource::Waits));
                        }
                        let index = self.position(number)?;
                        self.connected[index].stage = Stage::Waiting(wait);
                        return None;
                    }
                }
            }
            Request::Claim {
                name,
                forces,
                request,
            } => return self.claim(number, &name, forces, request, token),
            Request::EndClaim { name, request } => match self.end_claim(number, &name, request) {
                Ok(()) => {
                    self.promise(number, Reply::Done);
                    return None;
                }
                Err(refusal) => refusal,
            },
            Request::List { after } => self.list(after.as_deref()),
            Request::Remove { name } if self.lost.contains_key(&name) => {
                return self.give_up(&name, token);
            }
            Request::Remove { name } => match self.administrate(&name, token) {
                Ok(name) if name.pinned => {
                    let why = format!("{} is pinned; unpin it first", name.name);
                    refused(HolderFault::Pinned, why)
                }
                Ok(_) => {
                    self.spread_earlier(&name);
                    let unneeded = self.holdings.remove_name(&name);
                    self.tell(Change::Forget { name: name.clone() }, Vec::new());
                    self.release(unneeded);
                    self.notify(&name);
                    self.promise(number, Reply::Done);
                    return None;
                }
                Err(refusal) => refusal,
            },
            Request::Pin { name, pinned } => match self.administrate(&name, token) {
                Ok(found) => {
                    found.pinned = pinned;
                    let change = Change::Name(Box::new(found.clone()));
                    self.tell(change, Vec::new());
                    self.promise(number, Reply::Done);
                    return None;
                }
                Err(refusal) => refusal,
            },
            Request::TakeBack(offer) => return self.take_back(number, offer),
            Request::Status => Reply::Status(self.status()),
            Request::Stop => {
                let is_locked =
                    |name: &&Name| name.pinned || !name.tokens.allow(Right::Admin, token);
                let lost = self.lost.values().map(|lost| &lost.name);
                match self.holdings.names().values().chain(lost).find(is_locked) {
                    Some(name) => refused(
                        HolderFault::Pinned,
                        format!(
                            "{} is pinned or has a token, so the holder stays",
                            name.name
                        ),
                    ),
                    None => Reply::Done,
                }
            }
        })
    }

    fn status(&self) -> Status {
        let successor = self.successor.as_ref();
        let why_unsafe = self.why_unsafe();
        Status {
            pid: process::pid(),
            successor: successor.map(Successor::pid),
            is_safe: why_unsafe.is_none(),
            takeovers: self.takeovers,
            names: self.holdings.names().len() as u64,
            bytes: self.holdings.bytes(),
            lost: self.lost.len() as u64,
            why_unsafe,
        }
    }

    /// Returns the reason why held memory could be lost with one process, or with both. Returns
    /// `None` if nothing could be lost.
    pub(super) fn why_unsafe(&self) -> Option<String> {
        let Some(successor) = &self.successor else {
            return Some("there is no successor".into());
        };
        if successor.dropped() > 0 {
            let (name, why) = self.dropped.as_ref()?;
            let more = match successor.dropped() {
                1 => String::new(),
                all => format!(", nor {} more", all - 1),
            };
            return Some(format!(
                "the successor cannot take {name} over ({why}){more}; remove it, or load it again"
            ));
        }
        if !successor.has_all() {
            return Some(format!(
                "the successor, process {}, lacks something yet",
                successor.pid()
            ));
        }
        let failure = self.journal.failure().or(self.watched.failure());
        failure.map(str::to_owned)
    }

    pub(super) fn find(&self, name: &str) -> Result<&Name, Reply> {
        if let Err(error) = check_name(name) {
            return Err(refused(HolderFault::NoSuchName, error.to_string()));
        }
        self.holdings.names().get(name).ok_or_else(|| {
            if self.lost.contains_key(name) {
                let why = format!(
                    "{name} was held by a holder that died together with its successor; it comes back as soon as a \
                     process answers that has kept it, or load it again"
                );
                return refused(HolderFault::NoSuchName, why);
            }
            let why =
                format!("nothing is held under the name {name}; `crosshandle ls` lists the names");
            refused(HolderFault::NoSuchName, why)
        })
    }

    fn open(&self, name: &str, access: Access, token: Option<&str>) -> Result<HeldName, Reply> {
        let found = self.find(name)?;
        let right = match access {
            Access::ReadOnly => Right::Read,
            Access::ReadWrite => Right::Write,
        };
        if !found.tokens.allow(right, token) {
            return Err(not_allowed(name));
        }
        if access == Access::ReadWrite && found.recovered.is_some() {
            return Err(only_for_reading(name));
        }
        if access == Access::ReadWrite && found.has_one_writer() {
            let why = format!("{name} is for one writer at a time: claim it");
            return Err(refused(HolderFault::HasWriter, why));
        }
        Ok(found.tell(Some(access)))
    }

    /// Replies with handles for writing. For a driver's memory, the holder cannot determine later
    /// which processes have it open. It therefore records each process that receives such handles,
    /// for the first claim.
    pub(super) fn open_to_write(
        &mut self,
        number: u64,
        name: &str,
        token: Option<&str>,
    ) -> Option<Reply> {
        let entry = match self.open(name, Access::ReadWrite, token) {
            Ok(entry) => entry,
            Err(refusal) => return Some(refusal),
        };
        let found = self.find(name).expect("it was opened");
        if found.handles().all(|handle| self.is_of_host(&handle)) {
            return Some(Reply::Opened(entry));
        }
        let asker = self.connected[self.position(number)?].asker;
        let found = self.holdings.name_mut(name).expect("it was opened");
        // Requests of the same process share one entry.
        if found.add_earlier(Writer::new(0, asker.uid, asker.pid)) {
            let told = found.clone();
            self.tell(Change::Name(Box::new(told)), Vec::new());
        }
        self.promise(number, Reply::Opened(entry));
        None
    }

    /// Returns whether a handle is of host memory, for which the kernel reports the processes that
    /// have it open.
    fn is_of_host(&self, handle: &MemoryHandle) -> bool {
        let record = self.holdings.records().get(&key_of(handle));
        record.is_some_and(|record| record.memory.file_id().is_some())
    }

    /// Returns the reply to a waiting program, if its wait is over.
    fn is_over(&self, wait: &Wait) -> Option<Reply> {
        match self.open(&wait.name, Access::ReadOnly, wait.token.as_deref()) {
            Ok(entry) => {
                let is_over = match wait.epoch {
                    Some(epoch) => entry.epoch > epoch,
                    None => entry.version > wait.version,
                };
                is_over.then_some(Reply::Opened(entry))
            }
            Err(refusal) => Some(refusal),
        }
    }

    fn administrate(&mut self, name: &str, token: Option<&str>) -> Result<&mut Name, Reply> {
        if !self.find(name)?.tokens.allow(Right::Admin, token) {
            return Err(not_allowed(name));
        }
        Ok(self.holdings.name_mut(name).expect("it was found"))
    }

    fn list(&self, after: Option<&str>) -> Reply {
        use std::ops::Bound;
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut bytes = 0;
        let mut names = Vec::new();
        let mut rest = self
            .holdings
            .names()
            .range::<str, _>((start, Bound::Unbounded));
        for (_, name) in rest.by_ref() {
            let entry = name.tell(None);
            bytes += serde_json::to_vec(&entry).map_or(0, |text| text.len());
            names.push(entry);
            if bytes > LIST_BYTES {
                break;
            }
        }
        Reply::Listed {
            names,
            more: rest.next().is_some(),
        }
    }

    /// Replies to the programs that wait for another version or epoch of a name.
    pub(super) fn notify(&mut self, changed: &str) {
        let mut due = Vec::new();
        for program in &self.connected {
            if let Stage::Waiting(wait) = &program.stage
                && wait.name == changed
                && let Some(answer) = self.is_over(wait)
            {
                due.push((program.number, answer));
            }
        }
        for (number, answer) in due {
            self.reply(number, &answer);
        }
    }
}

pub(super) fn not_allowed(name: &str) -> Reply {
    let why = format!("{name} has a token, which was not shown; give it with --token");
    refused(HolderFault::NotAllowed, why)
}

pub(super) fn only_for_reading(name: &str) -> Reply {
    let why = format!(
        "{name} has come back from a process that had it open for reading, so nobody can write it: publish its next \
         version"
    );
    refused(HolderFault::Refused, why)
}
