//! Claims: one writer of a name at a time, each in an epoch of its own.

use super::super::fence::{self, Claim, Region, Writer};
use super::super::identity::Status;
use super::super::message::{Answer, Right, refused};
use super::super::state::{Name, key_of};
use super::super::successor::{Change, Successor};
use super::Server;
use super::programs::{Asker, Stage};
use super::questions::{not_allowed, too_many_wait};
use crate::error::HolderFault;
use crate::handle::{BackendKind, Key};
use crate::os::process;
use crate::types::Access;

/// A claim that is being looked into.
struct Claimed {
    name: String,
    /// What the name stood for when it was claimed.
    version: u64,
    epoch: u64,
    forces: bool,
    writer: Writer,
    /// Why the writer before may write still, if it may.
    proof: Result<(), String>,
}

impl Server {
    /// Looks in the background into whether a program may be the writer of a name.
    pub(super) fn claim(
        &mut self,
        number: u64,
        name: &str,
        forces: bool,
        request: u64,
        token: Option<&str>,
    ) -> Option<Answer> {
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
        if request == 0 {
            return Some(refused(HolderFault::Refused, "a claim has a number"));
        }
        let claimer = Writer::new(request, asker.uid, asker.pid);
        if is_of(found, &claimer) {
            // The answer was lost.
            let answer = Answer::Claimed(found.tell(Some(Access::ReadWrite)));
            self.promise(number, answer);
            return None;
        }
        if let Err(refusal) = self.check_alone(found) {
            return Some(refusal);
        }
        if asker.pid == 0 && !forces {
            let why = "the holder cannot see this process, so it could not tell when it has ended: run both \
                       in one PID namespace";
            return Some(refused(HolderFault::Fenced, why));
        }
        if !self.may_work(asker) {
            return Some(too_many_wait());
        }
        let claim = self.claim_of(found, asker);
        let (name, version, epoch) = (found.name.clone(), found.version, found.epoch);
        self.connected[index].stage = Stage::Working;
        self.jobs.submit(number, asker, move || {
            let claimed = Claimed {
                name,
                version,
                epoch,
                forces,
                writer: claimer,
                proof: claim.prove(),
            };
            Box::new(move |server| server.decide(number, claimed))
        });
        None
    }

    /// Describes what is to be proven before a program may write.
    fn claim_of(&self, name: &Name, asker: Asker) -> Claim {
        let mut region = Region {
            host: Vec::new(),
            makers: Vec::new(),
            is_cuda: false,
        };
        for handle in name.handles() {
            let Some(record) = self.holdings.records().get(&key_of(&handle)) else {
                continue;
            };
            match record.memory.file_id() {
                Some(file) => region.host.push(fence::normal(file)),
                None => region.makers.push(record.maker),
            }
            region.is_cuda |= handle.fields().backend == BackendKind::Cuda;
        }
        let successor = self.successor.as_ref().map_or(0, Successor::pid);
        Claim {
            region,
            writer: name.writer.clone(),
            claimer: asker.pid,
            pair: [process::pid(), successor],
            policy: self.terms.policy.clone(),
        }
    }

    /// Refuses a name whose memory can be written by another name.
    fn check_alone(&self, name: &Name) -> Result<(), Answer> {
        match self.holdings.other_name_of(name) {
            Some(other) => Err(refused(
                HolderFault::Fenced,
                format!(
                    "the memory of {} is held as {} too; remove that name first",
                    name.name, other.name
                ),
            )),
            None => Ok(()),
        }
    }

    /// Lets a program write, or refuses it.
    fn decide(&mut self, number: u64, claimed: Claimed) {
        let name = claimed.name.clone();
        if self.position(number).is_none() {
            // It has given up, and would keep others out; if only its answer was lost, it asks again.
            return;
        }
        match self.grant(claimed) {
            Ok(answer) => {
                self.promise(number, answer);
                self.notify(&name);
            }
            Err(refusal) => self.reply(number, &refusal),
        }
    }

    fn grant(&mut self, claimed: Claimed) -> Result<Answer, Answer> {
        let Claimed {
            name,
            version,
            epoch,
            forces,
            writer,
            proof,
        } = claimed;
        let found = self.find(&name)?;
        let fenced = |why: String| refused(HolderFault::Fenced, why);
        if is_of(found, &writer) {
            return Ok(Answer::Claimed(found.tell(Some(Access::ReadWrite))));
        }
        // Of several that claim at a time one alone is let in.
        if (found.version, found.epoch) != (version, epoch) {
            return Err(fenced(format!(
                "{name} was replaced or claimed meanwhile; try again"
            )));
        }
        self.check_alone(found)?;
        if let Err(why) = &proof {
            if !forces {
                return Err(fenced(format!("{name} may still be written: {why}")));
            }
            (self.terms.log)(&format!("{name} is claimed by force: {why}"));
        }
        if !forces && writer.process.is_none_or(|process| process.has_ended()) {
            return Err(fenced("the process that claims has ended".into()));
        }
        // Handles that earlier writers had, or gave to others, open nothing any more.
        let handles: Vec<_> = (found.parts.iter())
            .filter_map(|part| part.handles().ok()?.0)
            .collect();
        for handle in handles {
            let mut key = [0; 16];
            let filled = process::random(&mut key);
            filled.map_err(|errno| refused(HolderFault::Refused, errno.to_string()))?;
            if self.holdings.rekey(&handle, Key::from_bytes(key)).is_some() {
                let change = Change::Rekey {
                    handle: handle.to_string(),
                    key,
                };
                self.tell(change, Vec::new());
            }
        }
        let found = self.holdings.name_mut(&name).expect("it was found");
        found.epoch += 1;
        found.writer = Some(writer);
        let (told, entry) = (found.clone(), found.tell(Some(Access::ReadWrite)));
        self.tell(Change::Name(Box::new(told)), Vec::new());
        Ok(Answer::Claimed(entry))
    }

    /// Notes that the writer of a name writes no more.
    pub(super) fn end_claim(
        &mut self,
        number: u64,
        name: &str,
        request: u64,
    ) -> Result<(), Answer> {
        self.find(name)?;
        let index = self.position(number);
        let pid = index.map_or(0, |index| self.connected[index].asker.pid);
        let found = self.holdings.name_mut(name).expect("it was found");
        let of = |writer: &&mut Writer| {
            // A forked child of the writer knows the number too.
            let is_it = writer.process.is_none_or(|process| {
                Status::of(pid).is_some_and(|status| status.identity == process)
            });
            writer.request == request && is_it
        };
        let Some(writer) = found.writer.as_mut().filter(of) else {
            let why = format!("{name} has another writer by now");
            return Err(refused(HolderFault::Fenced, why));
        };
        writer.is_released = true;
        let told = found.clone();
        self.tell(Change::Name(Box::new(told)), Vec::new());
        Ok(())
    }
}

/// Returns whether a name has this very writer, by the same question.
fn is_of(name: &Name, writer: &Writer) -> bool {
    let same = |of: &&Writer| {
        (of.request, of.uid, of.process) == (writer.request, writer.uid, writer.process)
    };
    name.writer
        .as_ref()
        .filter(same)
        .is_some_and(|of| !of.is_released)
}
