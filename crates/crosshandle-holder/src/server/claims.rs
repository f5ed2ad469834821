//! Claims. A name has one writer at a time, and each writer has an epoch of its own.

use super::super::identity::{Asker, ProcessIdentity, Status};
use super::super::message::{Reply, Right, refused};
use super::super::proof::{self, Claim, Region, Writer};
use super::super::state::{Name, key_of};
use super::super::succession::{Change, Successor};
use super::quota::{Resource, none_left};
use super::requests::{not_allowed, only_for_reading};
use super::{LogLevel, Server};
use crosshandle_handle::{Key, MemoryHandle};
use crosshandle_os::process;
use crosshandle_types::Access;
use crosshandle_types::error::HolderFault;
use std::sync::Arc;

/// A claim that is being checked.
struct Claimed {
    name: String,
    /// The version of the name when the claim was made.
    version: u64,
    epoch: u64,
    forces: bool,
    writer: Writer,
    /// The reason why another process may still write, if one may.
    proof: Result<(), String>,
    /// The handles for writing that were made for this claim, each with the key that it replaces.
    changed: Vec<(MemoryHandle, Key)>,
}

impl Claimed {
    /// Checks whether the program may become the writer. Returns the refusal if it may not.
    fn check(&self, found: &Name) -> Result<(), Reply> {
        let name = &self.name;
        // Only one of several concurrent claims succeeds.
        if (found.version, found.epoch) != (self.version, self.epoch) {
            return Err(has_writer(format!(
                "{name} was replaced or claimed meanwhile; try again"
            )));
        }
        if self.forces {
            return Ok(());
        }
        if let Err(why) = &self.proof {
            return Err(has_writer(format!("{name} may still be written: {why}")));
        }
        if self.writer.process.is_none_or(ProcessIdentity::has_ended) {
            return Err(has_writer("the process that claims has ended".into()));
        }
        Ok(())
    }
}

impl Server {
    /// Checks in the background whether a program may become the writer of a name.
    pub(super) fn claim(
        &mut self,
        number: u64,
        name: &str,
        forces: bool,
        request: u64,
        token: Option<&str>,
    ) -> Option<Reply> {
        let index = self.position(number)?;
        let asker = self.connected[index].asker;
        let found = match self.find(name) {
            Ok(found) => found,
            Err(refusal) => return Some(refusal),
        };
        let needed = match forces {
            true => Right::Admin,
            false => Right::Write,
        };
        if !found.tokens.allow(needed, token) {
            return Some(not_allowed(name));
        }
        if found.recovered.is_some() {
            return Some(only_for_reading(name));
        }
        if request == 0 {
            return Some(refused(HolderFault::Refused, "a claim has a number"));
        }
        let claimer = Writer::new(request, asker.uid, asker.pid);
        if is_of(found, &claimer) {
            // The reply to an earlier attempt was lost.
            let answer = Reply::Claimed(found.tell(Some(Access::ReadWrite)));
            self.promise(number, answer);
            return None;
        }
        if let Err(refusal) = self.check_alone(found) {
            return Some(refusal);
        }
        if asker.pid == 0 && !forces {
            let why = "the holder cannot see this process, so it could not tell when it has ended: run both \
                       in one PID namespace";
            return Some(refused(HolderFault::HasWriter, why));
        }
        let found = found.clone();
        if !self.has_room(Resource::QueuedJobs, asker) {
            return Some(none_left(Resource::QueuedJobs));
        }
        let claim = self.claim_of(&found, asker);
        let (name, version, epoch) = (found.name.clone(), found.version, found.epoch);
        self.begin_work(number);
        self.jobs.submit(number, asker, move || {
            let claimed = Claimed {
                name,
                version,
                epoch,
                forces,
                writer: claimer,
                proof: claim.prove(),
                changed: Vec::new(),
            };
            Box::new(move |server| server.revoke(number, asker, claimed))
        });
        None
    }

    /// Revokes the right to write from all processes before a program receives it. Handles for
    /// writing that were made earlier no longer open anything. A second check finds processes that
    /// opened the memory in between.
    fn revoke(&mut self, number: u64, asker: Asker, mut claimed: Claimed) {
        if self.position(number).is_none() {
            return;
        }
        let found = match self.find(&claimed.name) {
            Ok(found) => found.clone(),
            Err(refusal) => return self.reply(number, &refusal),
        };
        if is_of(&found, &claimed.writer) {
            let answer = Reply::Claimed(found.tell(Some(Access::ReadWrite)));
            return self.promise(number, answer);
        }
        if !claimed.forces && found.is_being_claimed() {
            let why = format!("{} is being claimed by another program", found.name);
            return self.reply(number, &has_writer(why));
        }
        let checked = claimed.check(&found);
        let checked = checked.and_then(|()| self.check_alone(&found));
        let rekeyed = checked.and_then(|()| self.rekey_all(&found, &mut claimed.changed));
        if let Err(refusal) = rekeyed {
            self.restore_keys(&claimed);
            return self.reply(number, &refusal);
        }
        if claimed.forces {
            return self.decide(number, claimed);
        }
        let mark = Arc::new(());
        let found = self.holdings.name_mut(&claimed.name).expect("it was found");
        found.claiming = Arc::downgrade(&mark);
        let found = found.clone();
        // The claim is described again, since other processes may have received handles since the
        // first check.
        let claim = self.claim_of(&found, asker);
        self.jobs.submit(number, asker, move || {
            claimed.proof = claim.prove();
            Box::new(move |server| {
                server.decide(number, claimed);
                // The holder gives out handles for writing again once `mark` is dropped, even if
                // the job is abandoned or panics.
                drop(mark);
            })
        });
    }

    /// Changes the keys for writing of all memory of a name, and records the previous keys.
    fn rekey_all(
        &mut self,
        name: &Name,
        changed: &mut Vec<(MemoryHandle, Key)>,
    ) -> Result<(), Reply> {
        let handles = name.parts.iter().filter_map(|part| part.handle);
        for handle in handles {
            let mut key = [0; 16];
            let filled = process::random(&mut key);
            filled.map_err(|errno| refused(HolderFault::Refused, errno.to_string()))?;
            if let Some(after) = self.rekey(&handle, Key::from_bytes(key)) {
                changed.push((after, handle.fields().key));
            }
        }
        Ok(())
    }

    /// Changes the key of a record, here and in the successor. Returns the new handle.
    fn rekey(&mut self, handle: &MemoryHandle, key: Key) -> Option<MemoryHandle> {
        let after = self.holdings.rekey(handle, key)?;
        let change = Change::Rekey {
            handle: *handle,
            key: *key.as_bytes(),
        };
        self.tell(change, Vec::new());
        Some(after)
    }

    /// Restores the keys from before a claim that failed. No process has received the keys that
    /// this claim made. A key that another claim has changed in the meantime stays.
    fn restore_keys(&mut self, claimed: &Claimed) {
        for (handle, before) in &claimed.changed {
            self.rekey(handle, *before);
        }
    }

    /// Describes what must be proven before a program may write.
    fn claim_of(&self, name: &Name, asker: Asker) -> Claim {
        let mut region = Region {
            host: Vec::new(),
            makers: Vec::new(),
            backends: Vec::new(),
        };
        for handle in name.handles() {
            let Some(record) = self.holdings.records().get(&key_of(&handle)) else {
                continue;
            };
            let file = record.memory.file_id();
            region.host.extend(file.map(proof::normal));
            // If the holder can see the exporter of host memory, it finds the exporter by its open
            // files.
            if file.is_none() || record.maker.process.is_none() {
                region.makers.push(record.maker);
            }
            let backend = handle.fields().backend;
            if !region.backends.contains(&backend) {
                region.backends.push(backend);
            }
        }
        let successor = self.successor.as_ref().map_or(0, Successor::pid);
        let own = Status::of(asker.pid).map(|status| status.identity);
        Claim {
            region,
            writer: name.writer.clone(),
            earlier: (name.earlier.iter())
                .filter(|writer| own.is_none() || writer.process != own)
                .cloned()
                .collect(),
            claimer: asker.pid,
            pair: [process::pid(), successor],
            policy: self.terms.policy.clone(),
            drivers: self.terms.drivers,
            suspect: Arc::clone(&name.suspect),
        }
    }

    /// Refuses a name whose memory is also held under another name.
    fn check_alone(&self, name: &Name) -> Result<(), Reply> {
        match self.holdings.other_name_of(name) {
            Some(other) => Err(refused(
                HolderFault::HasWriter,
                format!(
                    "the memory of {} is held as {} too; remove that name first",
                    name.name, other.name
                ),
            )),
            None => Ok(()),
        }
    }

    /// Grants or refuses a claim, according to the proof.
    fn decide(&mut self, number: u64, claimed: Claimed) {
        let name = claimed.name.clone();
        if self.position(number).is_none() {
            // A program that has given up would exclude others. If only its connection was lost, it
            // repeats the claim.
            return self.restore_keys(&claimed);
        }
        match self.grant(&claimed) {
            Ok(answer) => {
                self.promise(number, answer);
                self.notify(&name);
            }
            Err(refusal) => {
                self.restore_keys(&claimed);
                self.reply(number, &refusal);
            }
        }
    }

    fn grant(&mut self, claimed: &Claimed) -> Result<Reply, Reply> {
        let found = self.find(&claimed.name)?;
        claimed.check(found)?;
        self.check_alone(found)?;
        if let Err(why) = &claimed.proof {
            let line = format!("{} is claimed by force: {why}", claimed.name);
            self.say(LogLevel::Notice, &line);
        }
        let found = self.holdings.name_mut(&claimed.name).expect("it was found");
        found.epoch += 1;
        let before = found.writer.replace(claimed.writer.clone());
        match &claimed.proof {
            // A forced claim has no second check, so the earlier writers are kept.
            Ok(()) if claimed.forces => {}
            Ok(()) => found.earlier.clear(),
            Err(_) => {
                let before = before.filter(|before| !before.is_released);
                if let Some(before) = before {
                    found.add_earlier(before);
                }
            }
        }
        let (told, entry) = (found.clone(), found.tell(Some(Access::ReadWrite)));
        self.tell(Change::Name(Box::new(told)), Vec::new());
        Ok(Reply::Claimed(entry))
    }

    /// Notes that the writer of a name no longer writes.
    pub(super) fn end_claim(&mut self, number: u64, name: &str, request: u64) -> Result<(), Reply> {
        self.find(name)?;
        let index = self.position(number);
        let pid = index.map_or(0, |index| self.connected[index].asker.pid);
        let found = self.holdings.name_mut(name).expect("it was found");
        let of = |writer: &Writer| {
            // A forked child of the writer also knows the number.
            let is_it = writer.process.is_none_or(|process| {
                Status::of(pid).is_some_and(|status| status.identity == process)
            });
            request != 0 && writer.request == request && is_it
        };
        // A writer that was replaced by force may also end its claim.
        let kept = found.earlier.len();
        found.earlier.retain(|writer| !of(writer));
        let is_earlier = found.earlier.len() < kept;
        let current = found.writer.as_mut().filter(|writer| of(writer));
        let is_current = current.is_some();
        if let Some(writer) = current {
            writer.is_released = true;
        }
        if is_current || is_earlier {
            let told = found.clone();
            self.tell(Change::Name(Box::new(told)), Vec::new());
        }
        match is_current {
            true => Ok(()),
            false => Err(has_writer(format!("{name} has another writer by now"))),
        }
    }
}

fn has_writer(why: String) -> Reply {
    refused(HolderFault::HasWriter, why)
}

/// Returns whether this writer already has the name, by the same request.
fn is_of(name: &Name, writer: &Writer) -> bool {
    let same = |of: &&Writer| {
        (of.request, of.uid, of.process) == (writer.request, writer.uid, writer.process)
    };
    name.writer
        .as_ref()
        .filter(same)
        .is_some_and(|of| !of.is_released)
}

#[cfg(test)]
pub(super) mod tests;
