//! The return of lost memory. After a holder and its successor have died at the same time,
//! processes that have the memory open bring it back. They had it open for reading only, so it
//! returns for reading only.

use super::super::identity::Asker;
use super::super::journal::{Lost, LostPart};
use super::super::message::{
    Hold, Offer, OfferedPart, Recovered, Reply, Right, busy, refused, refused_by,
};
use super::super::segment::{Drivers, FETCH_TIMEOUT, HeldSegment, fetch};
use super::super::state::{Name, Record, RecordKey, key_of};
use super::super::succession::Change;
use super::quota::{Resource, none_left};
use super::requests::not_allowed;
use super::{LogLevel, Server};
use crosshandle_handle::MemoryHandle;
use crosshandle_ipc::broker::Route;
use crosshandle_ipc::{OpenDeadline, Origin};
use crosshandle_types::error::{Error, ErrorKind, HolderFault, Result};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The verified memory that a process has brought back, in the order of the name's parts.
type Brought = Vec<Arc<HeldSegment>>;

impl Server {
    /// Returns a lost name as it was.
    pub(super) fn lost_name(&self, name: &str) -> Option<&Name> {
        self.lost.get(name).map(|lost| &lost.name)
    }

    /// Refuses records that falsely claim to be lost memory. A record of the same exporter must
    /// come from the same process, and a record with the same handle must have the same memory.
    pub(super) fn check_lost(&self, records: &[Record]) -> Result<()> {
        for (handle, was) in self.lost.values().flat_map(Lost::handles) {
            let is_false = |record: &Record| {
                let is_same = record.handle == handle;
                record.handle.fields().exporter == handle.fields().exporter
                    && (was.maker != record.maker || is_same && !was.may_be(&record.memory))
            };
            if records.iter().any(is_false) {
                return Err(Error::invalid(
                    "another process answers under the name of the one that made what was held before, or with \
                     other memory",
                ));
            }
        }
        Ok(())
    }

    /// Fetches the memory that a process brings back, in the background.
    pub(super) fn take_back(&mut self, number: u64, offer: Offer) -> Option<Reply> {
        let index = self.position(number)?;
        let asker = self.connected[index].asker;
        let lost = match self.find_lost(&offer) {
            Ok(Some(lost)) => lost.clone(),
            // Another process has already brought this name back.
            Ok(None) => return Some(Reply::Done),
            Err(refusal) => return Some(refusal),
        };
        let pairs = match pairs_of(&lost, &offer, asker) {
            Ok(pairs) => pairs,
            Err(error) => return Some(refused(HolderFault::Refused, error.to_string())),
        };
        if !self.has_room(Resource::QueuedJobs, asker) {
            return Some(none_left(Resource::QueuedJobs));
        }
        self.begin_work(number);
        let origin = Origin {
            directory: Some(self.path.clone()),
            policy: self.terms.policy.clone(),
            timeout: FETCH_TIMEOUT,
        };
        let drivers = self.terms.drivers;
        self.jobs.submit(number, asker, move || {
            let brought = fetch_all(&lost, &pairs, &origin, drivers);
            Box::new(move |server| {
                let result = brought
                    .map_err(|error| match may_pass(&error) {
                        true => busy(error.to_string()),
                        false => refused_by(&error),
                    })
                    .and_then(|brought| server.restore(&offer, asker, brought));
                match result {
                    Ok(()) => {
                        server.promise(number, Reply::Done);
                        server.notify(&offer.name);
                    }
                    Err(refusal) => {
                        let Reply::Refused { why, .. } = &refusal else {
                            return;
                        };
                        let (name, pid) = (&offer.name, asker.pid);
                        let line = format!("{name} does not come back from process {pid}: {why}");
                        server.say(LogLevel::Detail, &line);
                        server.reply(number, &refusal);
                    }
                }
            })
        });
        None
    }

    /// Returns the lost name that an offer is for. Returns `None` if the name is held already.
    fn find_lost(&self, offer: &Offer) -> Result<Option<&Lost>, Reply> {
        if let Some(held) = self.holdings.names().get(&offer.name)
            && held.version == offer.version
        {
            return Ok(None);
        }
        let Some(lost) = self.lost.get(&offer.name) else {
            let why = format!("nothing of the name {} was held and lost", offer.name);
            return Err(refused(HolderFault::NoSuchName, why));
        };
        let (version, wanted) = (offer.version, lost.name.version);
        if version != wanted {
            let why = format!(
                "version {version} of {} is not what was held last, which was version {wanted}",
                offer.name
            );
            return Err(refused(HolderFault::Refused, why));
        }
        Ok(Some(lost))
    }

    /// Holds the returned memory under its previous name.
    fn restore(&mut self, offer: &Offer, asker: Asker, brought: Brought) -> Result<(), Reply> {
        let Some(lost) = self.find_lost(offer)?.cloned() else {
            return Ok(());
        };
        let mut name = lost.name;
        let as_hold = Hold {
            name: name.name.clone(),
            label: String::new(),
            replaces: false,
            tokens: name.tokens.clone(),
            parts: name.parts.clone(),
            request: 0,
        };
        // The memory is counted for its user but for no process, because the process that handed it
        // over may have ended.
        let owner = Asker {
            uid: name.owner,
            pid: 0,
        };
        self.quota.admit(&self.holdings, &as_hold, owner)?;
        // The inode numbers have shown that identifiable files are the same. Other memory cannot be
        // verified.
        name.recovered = Some(match lost.parts.iter().all(LostPart::is_told) {
            true => Recovered::SameFiles,
            false => Recovered::Unverified,
        });
        let mut added = Vec::new();
        let failed = self.add_all(&name, &lost.parts, brought, &mut added).err();
        if let Some(error) = failed {
            self.release(added);
            return Err(refused_by(&error));
        }
        let line = format!("{} has come back from process {}", name.name, asker.pid);
        self.say(LogLevel::Detail, &line);
        self.lost.remove(&name.name);
        self.tell(Change::Name(Box::new(name.clone())), Vec::new());
        let unneeded = self.holdings.set_name(name);
        self.release(unneeded);
        Ok(())
    }

    fn add_all(
        &mut self,
        name: &Name,
        lost: &[LostPart],
        brought: Brought,
        added: &mut Vec<RecordKey>,
    ) -> Result<()> {
        for ((part, was), memory) in name.parts.iter().zip(lost).zip(brought) {
            let Some(handle) = part.read_only else {
                continue;
            };
            let exporter = handle.fields().exporter;
            // The handle may be held under another name, because its exporter handed the memory
            // over again or a process brought it back.
            if let Some(known) = self.holdings.records().get(&key_of(&handle))
                && !was.may_be(&known.memory)
            {
                return Err(Error::invalid(
                    "other memory is held under the handle of what was held",
                ));
            }
            let record = Record {
                handle,
                device: part.device.clone(),
                kind: part.kind,
                name: format!("{}/{}", name.name, part.role),
                memory,
                maker: was.maker,
                names: BTreeSet::new(),
            };
            let (change, files) = Change::record(&record);
            self.holdings.add_record(record)?;
            added.push(key_of(&handle));
            self.tell(change, files);
            self.answer_for(exporter)?;
        }
        Ok(())
    }

    /// Gives up a lost name, so that it can no longer come back.
    pub(super) fn give_up(&mut self, name: &str, token: Option<&str>) -> Option<Reply> {
        let lost = self.lost_name(name)?;
        if !lost.tokens.allow(Right::Admin, token) {
            return Some(not_allowed(name));
        }
        if lost.pinned {
            let why =
                format!("{name} is pinned; it can be unpinned when it has come back, or replaced");
            return Some(refused(HolderFault::Pinned, why));
        }
        self.lost.remove(name);
        let name = name.to_owned();
        self.tell(Change::Found { name }, Vec::new());
        Some(Reply::Done)
    }
}

/// Returns whether a fetch failed for a temporary reason: one of the two processes was busy.
fn may_pass(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::TimedOut | ErrorKind::ResourceExhausted
    )
}

/// Returns the handle of each part, with the handle by which the process shares the memory.
fn pairs_of(lost: &Lost, offer: &Offer, asker: Asker) -> Result<Vec<(MemoryHandle, MemoryHandle)>> {
    let mut pairs = Vec::new();
    for (part, was) in lost.name.parts.iter().zip(&lost.parts) {
        let offered = offer
            .parts
            .iter()
            .find(|offered| Some(offered.handle) == part.read_only);
        let offered = offered.ok_or_else(|| {
            Error::invalid(format!(
                "the part {} is not there, or its handle is not",
                part.role
            ))
        })?;
        let OfferedPart { handle, from } = *offered;
        let (fields, theirs) = (handle.fields(), from.fields());
        let is_alike = theirs.read_only
            && theirs.backend == fields.backend
            && theirs.device == fields.device
            && theirs.length == fields.length;
        if !is_alike {
            return Err(Error::invalid(format!(
                "the part {} has another length, device or access than what was held",
                part.role
            )));
        }
        let own = rustix::process::geteuid().as_raw();
        if !was.is_told() && asker.uid != lost.name.owner && asker.uid != own {
            return Err(Error::invalid(format!(
                "whether the part {} is the same cannot be told by its descriptor, so only processes of the user \
                 who handed it over may bring it back",
                part.role
            )));
        }
        pairs.push((handle, from));
    }
    Ok(pairs)
}

fn fetch_all(
    lost: &Lost,
    pairs: &[(MemoryHandle, MemoryHandle)],
    origin: &Origin,
    drivers: Drivers,
) -> Result<Brought> {
    let deadline = OpenDeadline::after(FETCH_TIMEOUT);
    let mut brought = Brought::new();
    for ((_, from), was) in pairs.iter().zip(&lost.parts) {
        if from.fields().exporter == crosshandle_ipc::broker::address::exporter_id()? {
            return Err(Error::invalid("the holder itself has nothing to bring"));
        }
        let (memory, _) = fetch(from, Route::Exporter, origin, drivers, &deadline)?;
        if !was.may_be(&memory) {
            return Err(Error::invalid(
                "its memory is another file than what was held, or another part of it",
            ));
        }
        brought.push(memory);
    }
    Ok(brought)
}

#[cfg(test)]
mod tests;
