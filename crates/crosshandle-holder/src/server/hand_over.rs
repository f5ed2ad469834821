//! Hand-overs. A background job fetches the memory, and the holder then keeps it under a name.

use super::super::identity::{Asker, Maker};
use super::super::message::{Hold, Reply, Right, refused, refused_by};
use super::super::segment::{Drivers, FETCH_TIMEOUT, fetch};
use super::super::state::{Name, Record, RecordKey, key_of};
use super::super::succession::Change;
use super::Server;
use super::quota::{Resource, none_left};
use super::requests::not_allowed;
use crosshandle_handle::MemoryHandle;
use crosshandle_ipc::broker::Route;
use crosshandle_ipc::{Credential, OpenDeadline, Origin};
use crosshandle_os::process;
use crosshandle_types::error::{Error, HolderFault, Result};
use std::collections::BTreeSet;

/// Upper bound of the record numbers that may be held. The table of an exporter has an entry for
/// each number, so a hostile exporter's table takes up to 5 MB.
const MAX_HELD_INDEX: u32 = 1 << 16;

/// A hand-over whose memory has been fetched.
struct Fetched {
    hold: Hold,
    asker: Asker,
    token: Option<String>,
    records: Result<Vec<Record>>,
}

impl Server {
    /// Checks whether memory may be held under a name. Returns the refusal if it may not.
    fn may_hold(&self, hold: &Hold, asker: Asker, token: Option<&str>) -> Result<(), Reply> {
        if let Err(error) = hold.check() {
            return Err(refused(HolderFault::Refused, error.to_string()));
        }
        let name = &hold.name;
        let held = self.holdings.names().get(name);
        // A program that may not replace a held name may not replace a lost one either.
        if let Some(found) = held.or_else(|| self.lost_name(name)) {
            if held.is_some() && !hold.replaces {
                return Err(refused(
                    HolderFault::NameTaken,
                    format!(
                        "{name} is in use, by version {} of {} bytes; publish the next version, or take \
                         another name",
                        found.version,
                        found.bytes()
                    ),
                ));
            }
            if held.is_some() && found.pinned {
                let why = format!("{name} is pinned; unpin it first");
                return Err(refused(HolderFault::Pinned, why));
            }
            if !found.tokens.allow(Right::Write, token) {
                return Err(not_allowed(name));
            }
            let replaces_tokens = hold.tokens.has_some() && hold.tokens != found.tokens;
            if replaces_tokens && !found.tokens.allow(Right::Admin, token) {
                let why = format!(
                    "{name} has tokens, and replacing them takes the one of administration; without new \
                     ones it keeps those that it has"
                );
                return Err(refused(HolderFault::NotAllowed, why));
            }
        }
        self.quota.admit(&self.holdings, hold, asker)
    }

    /// Fetches the memory of a hand-over in the background.
    pub(super) fn hold(&mut self, number: u64, hold: Hold, token: Option<&str>) -> Option<Reply> {
        let index = self.position(number)?;
        let asker = self.connected[index].asker;
        if self.is_done(number, &hold, token) {
            return None;
        }
        if let Err(refusal) = self.may_hold(&hold, asker, token) {
            return Some(refusal);
        }
        if !self.has_room(Resource::QueuedJobs, asker) {
            return Some(none_left(Resource::QueuedJobs));
        }
        self.begin_work(number);
        let drivers = self.terms.drivers;
        let origin = Origin {
            directory: Some(self.path.clone()),
            policy: self.terms.policy.clone(),
            timeout: FETCH_TIMEOUT,
        };
        // After a lost reply, a program may repeat a hand-over of memory that its exporter no
        // longer serves. Known records are therefore not fetched again.
        let records = self.holdings.records().values();
        let known: Vec<MemoryHandle> = records.map(|record| record.handle).collect();
        let token = token.map(str::to_owned);
        self.jobs.submit(number, asker, move || {
            let records = fetch_all(&hold, &known, &origin, drivers);
            let fetched = Fetched {
                hold,
                asker,
                token,
                records,
            };
            Box::new(move |server| server.take(number, fetched))
        });
        None
    }

    /// Repeats the reply to a request that has already taken effect. The first reply may have been
    /// lost when a holder died. Returns whether the request had taken effect.
    fn is_done(&mut self, number: u64, hold: &Hold, token: Option<&str>) -> bool {
        let found = self.holdings.names().get(&hold.name);
        let Some(found) = found.filter(|found| found.is_of(hold)) else {
            return false;
        };
        if !found.tokens.allow(Right::Write, token) && hold.tokens != found.tokens {
            return false;
        }
        let answer = Reply::HandedOver {
            version: found.version,
            is_safe: false,
        };
        self.promise(number, answer);
        true
    }

    fn take(&mut self, number: u64, fetched: Fetched) {
        if self.is_done(number, &fetched.hold, fetched.token.as_deref()) {
            return;
        }
        let name = fetched.hold.name.clone();
        match self.keep(fetched) {
            Ok(version) => {
                let answer = Reply::HandedOver {
                    version,
                    is_safe: false,
                };
                self.promise(number, answer);
                self.notify(&name);
            }
            Err(refusal) => self.reply(number, &refusal),
        }
    }

    /// Holds the fetched memory. Returns the version of the name.
    fn keep(&mut self, fetched: Fetched) -> Result<u64, Reply> {
        let Fetched {
            hold,
            asker,
            token,
            records,
        } = fetched;
        // The checks are repeated, since another program may have been faster.
        self.may_hold(&hold, asker, token.as_deref())?;
        if let Some(claimed) = self.holdings.claimed_name_of(&hold) {
            let why = format!(
                "the memory is that of {}, which has one writer at a time: it has one name",
                claimed.name
            );
            return Err(refused(HolderFault::HasWriter, why));
        }
        let records = records.map_err(|error| refused_by(&error))?;
        let checked = self.check_lost(&records);
        checked.map_err(|error| refused_by(&error))?;
        let mut added = Vec::new();
        let mut failed = None;
        for record in records {
            let key = key_of(&record.handle);
            let exporter = record.handle.fields().exporter;
            let (change, files) = Change::record(&record);
            if let Err(error) = self.holdings.add_record(record) {
                failed = Some(error);
                break;
            }
            added.push(key);
            self.tell(change, files);
            if let Err(error) = self.answer_for(exporter) {
                failed = Some(error);
                break;
            }
        }
        let before = self.holdings.names().get(&hold.name);
        let before = before.or_else(|| self.lost_name(&hold.name));
        let mut name = Name::new(hold, before, asker, process::time() / 1_000_000_000);
        self.holdings.share_earlier(&mut name);
        let version = name.version;
        let is_missing = |handle| {
            let found = self.holdings.records().get(&key_of(&handle));
            found.is_none_or(|record| record.handle != handle)
        };
        if failed.is_none() && name.handles().any(is_missing) {
            failed = Some(Error::Stale);
        }
        if let Some(error) = failed {
            self.release(added);
            return Err(refused_by(&error));
        }
        self.spread_earlier(&name.name);
        self.lost.remove(&name.name);
        self.tell(Change::Name(Box::new(name.clone())), Vec::new());
        let unneeded = self.holdings.set_name(name);
        self.release(unneeded);
        Ok(version)
    }

    /// Passes the earlier writers of a name on to the other names of its memory, since the name is
    /// removed or replaced.
    pub(super) fn spread_earlier(&mut self, name: &str) {
        for told in self.holdings.spread_earlier(name) {
            self.tell(Change::Name(Box::new(told)), Vec::new());
        }
    }

    /// Releases those of the records that no name needs.
    pub(super) fn release(&mut self, keys: Vec<RecordKey>) {
        for key in keys {
            let Some(record) = self.holdings.records().get(&key) else {
                continue;
            };
            if !record.names.is_empty() {
                continue;
            }
            let handle = record.handle;
            let last_of = self.holdings.remove_record(&key);
            self.tell(Change::Release { handle }, Vec::new());
            if let Some(exporter) = last_of {
                self.directory.leave(exporter);
            }
        }
    }
}

/// Fetches the records of a hand-over from their exporters, except for those that are held already.
fn fetch_all(
    hold: &Hold,
    known: &[MemoryHandle],
    origin: &Origin,
    drivers: Drivers,
) -> Result<Vec<Record>> {
    let deadline = OpenDeadline::after(FETCH_TIMEOUT);
    let mut records = Vec::new();
    for part in &hold.parts {
        let (Some(handle), Some(read_only)) = (part.handle, part.read_only) else {
            return Err(Error::invalid(format!(
                "the part {} has no handle for writing",
                part.role
            )));
        };
        let (fields, other) = (handle.fields(), read_only.fields());
        let is_pair = fields.exporter == other.exporter
            && fields.context == other.context
            && fields.segment == other.segment
            && fields.length == other.length
            && !fields.read_only
            && other.read_only;
        if !is_pair || fields.length != part.bytes {
            return Err(Error::invalid(format!(
                "the handles of the part {} are not of one piece of memory",
                part.role
            )));
        }
        if Credential::of(&fields).record.index >= MAX_HELD_INDEX
            || Credential::of(&other).record.index >= MAX_HELD_INDEX
        {
            return Err(Error::invalid(format!(
                "the maker shares more than {MAX_HELD_INDEX} objects in the context of the part {}: hand over \
                 memory of another context",
                part.role
            )));
        }
        for handle in [handle, read_only] {
            // The whole handle is compared, because another process may have received the same key.
            if known.contains(&handle) {
                continue;
            }
            let (memory, maker): (_, Maker) =
                fetch(&handle, Route::Exporter, origin, drivers, &deadline)?;
            records.push(Record {
                memory,
                maker,
                handle,
                device: part.device.clone(),
                kind: part.kind,
                name: format!("{}/{}", hold.name, part.role),
                names: BTreeSet::new(),
            });
        }
    }
    Ok(records)
}
