//! What one user and one process may take of a holder: one rule for every kind of resource. Users come
//! first, since a process can fork and a user cannot.
//!
//! What is used is never counted along: it is added up from what there is ([`Tally`]), so that nothing that
//! ends can be forgotten in an account.

use super::super::identity::{Asker, Status};
use super::super::message::{Answer, Hold, busy, refused};
use super::super::state::{ContextKey, Holdings, NameIndex};
use super::super::tuning::{
    BYTES_OF_PROCESS, CONTEXT_DESCRIPTORS, CONTEXTS_OF_PROCESS, JOBS_OF_PROCESS, MAX_BYTES,
    MAX_HELD_CONTEXTS, MAX_JOBS, MAX_NAMES, MAX_PROGRAMS, MAX_WAITING, MAX_WORKING,
    NAMES_OF_PROCESS, OTHER_DESCRIPTORS, RECORD_DESCRIPTORS, TABLE_PLACE_BYTES, WAITING_OF_PROCESS,
    WORKING_OF_PROCESS,
};
use crate::error::HolderFault;
use crate::ipc::broker::PeerPolicy;
use rustix::process::{Resource as SystemResource, getrlimit};
use std::collections::BTreeMap;

/// A kind of resource that a holder has a bounded amount of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Resource {
    /// Connections of programs.
    Connections,
    /// Programs that wait for a version or an epoch.
    Waits,
    /// Hand-overs, claims and returns that run.
    Jobs,
    /// Hand-overs, claims and returns that run or wait for their turn.
    QueuedJobs,
    /// Names.
    Names,
    /// Contexts of makers whose memory is held.
    Contexts,
    /// Descriptors of what is held.
    Descriptors,
    /// Bytes of the holder's own memory: labels, handles, and tables of makers' records.
    Bytes,
}

/// What happens where all of a resource is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Full {
    /// The user who has most gives some up, and of that user the process that has most.
    MostGivesWay,
    /// A user may have as much as is left free for others.
    LeavesAsMuch,
}

/// How much there is of a resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Limit {
    /// For all programs together.
    pub(super) all: usize,
    /// For one process.
    pub(super) process: usize,
    pub(super) full: Full,
}

impl Resource {
    #[cfg(test)]
    const ALL: [Self; 8] = [
        Self::Connections,
        Self::Waits,
        Self::Jobs,
        Self::QueuedJobs,
        Self::Names,
        Self::Contexts,
        Self::Descriptors,
        Self::Bytes,
    ];

    /// Returns the resource's name, for people.
    fn name(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Waits => "waits",
            Self::Jobs => "running jobs",
            Self::QueuedJobs => "queued and running jobs",
            Self::Names => "names",
            Self::Contexts => "contexts",
            Self::Descriptors => "descriptors",
            Self::Bytes => "bytes of the holder's own memory",
        }
    }

    /// Returns how much there is of it in a process that may have so many descriptors.
    pub(super) fn limit(self, descriptors: usize) -> Limit {
        let (all, process, full) = match self {
            Self::Connections => (MAX_PROGRAMS, MAX_PROGRAMS, Full::MostGivesWay),
            Self::Waits => (MAX_WAITING, WAITING_OF_PROCESS, Full::MostGivesWay),
            Self::Jobs => (MAX_JOBS, JOBS_OF_PROCESS, Full::LeavesAsMuch),
            Self::QueuedJobs => (MAX_WORKING, WORKING_OF_PROCESS, Full::MostGivesWay),
            Self::Names => (MAX_NAMES, NAMES_OF_PROCESS, Full::LeavesAsMuch),
            Self::Contexts => (MAX_HELD_CONTEXTS, CONTEXTS_OF_PROCESS, Full::LeavesAsMuch),
            Self::Descriptors => {
                let all = descriptors.saturating_sub(OTHER_DESCRIPTORS);
                (all, all / 2, Full::LeavesAsMuch)
            }
            Self::Bytes => (MAX_BYTES, BYTES_OF_PROCESS, Full::LeavesAsMuch),
        };
        Limit { all, process, full }
    }

    fn remedy(self) -> &'static str {
        match self {
            Self::Names => "put more pieces of memory under one name",
            Self::Contexts => "hand over memory of fewer contexts",
            Self::Bytes => "use shorter labels, or contexts that share fewer objects",
            _ => "raise the holder's limit of open files (ulimit -n, LimitNOFILE=)",
        }
    }
}

/// Whose share is used up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Share {
    Process,
    User,
    All,
}

/// How much of one resource each user and each process has.
#[derive(Default)]
pub(super) struct Tally(BTreeMap<u32, BTreeMap<u32, usize>>);

impl FromIterator<Asker> for Tally {
    fn from_iter<T: IntoIterator<Item = Asker>>(askers: T) -> Self {
        let mut tally = Self::default();
        for asker in askers {
            tally.add(asker, 1);
        }
        tally
    }
}

impl Tally {
    pub(super) fn add(&mut self, asker: Asker, amount: usize) {
        let of_user = self.0.entry(asker.uid).or_default();
        *of_user.entry(asker.pid).or_default() += amount;
    }

    /// Takes away what was added.
    pub(super) fn take(&mut self, asker: Asker, amount: usize) {
        let of_user = self.0.get_mut(&asker.uid);
        if let Some(of_process) = of_user.and_then(|of_user| of_user.get_mut(&asker.pid)) {
            *of_process = of_process.saturating_sub(amount);
        }
    }

    pub(super) fn of_process(&self, asker: Asker) -> usize {
        let of_user = self.0.get(&asker.uid);
        of_user.map_or(0, |all| all.get(&asker.pid).copied().unwrap_or(0))
    }

    pub(super) fn of_user(&self, uid: u32) -> usize {
        self.0.get(&uid).map_or(0, |all| all.values().sum())
    }

    pub(super) fn all(&self) -> usize {
        self.0.values().flat_map(BTreeMap::values).sum()
    }

    /// Returns whose share does not allow a process to take more.
    pub(super) fn admits(
        &self,
        limit: Limit,
        asker: Asker,
        amount: usize,
        has_users: bool,
    ) -> Result<(), Share> {
        // Processes that have no number here cannot be told from each other.
        let process = asker.pid != 0 && self.of_process(asker) + amount > limit.process;
        let all = self.all() + amount;
        let left = limit.all.saturating_sub(all);
        let leaves = limit.full == Full::LeavesAsMuch && has_users;
        if process {
            Err(Share::Process)
        } else if leaves && self.of_user(asker.uid) + amount > left {
            Err(Share::User)
        } else if all > limit.all {
            Err(Share::All)
        } else {
            Ok(())
        }
    }

    /// Returns which process gives way to another one where all is taken. `None`: the newcomer's user, and of
    /// that one's processes the newcomer's, has most itself.
    pub(super) fn gives_way_to(&self, newcomer: Asker) -> Option<Asker> {
        let own = self.of_user(newcomer.uid);
        let users = self.0.keys().map(|uid| (self.of_user(*uid), *uid));
        let (most, uid) = users.max()?;
        let uid = match most > own + 1 {
            true => uid,
            false => newcomer.uid,
        };
        let processes = self.0.get(&uid)?.iter().map(|(pid, has)| (*has, *pid));
        let (most, pid) = processes.max()?;
        let fullest = Asker { uid, pid };
        let is_more = uid != newcomer.uid || most > self.of_process(newcomer) + 1;
        (fullest != newcomer && is_more).then_some(fullest)
    }
}

/// How much may be held: less than the descriptors that a process may have, since a successor has a
/// duplicate of each.
pub(super) struct Quota {
    descriptors: usize,
    /// Whether several users may hand memory over.
    pub(super) has_users: bool,
}

impl Quota {
    /// Returns what this process, and with it its successor, may hold.
    pub(super) fn of(policy: &PeerPolicy) -> Self {
        let limit = getrlimit(SystemResource::Nofile)
            .current
            .unwrap_or(u64::MAX);
        Self {
            descriptors: usize::try_from(limit).unwrap_or(usize::MAX),
            has_users: *policy != PeerPolicy::SameUser,
        }
    }

    pub(super) fn limit(&self, resource: Resource) -> Limit {
        resource.limit(self.descriptors)
    }

    /// Refuses a hand-over that would be too much, whatever it replaces: that stays until this is held.
    pub(super) fn admit(
        &self,
        holdings: &Holdings,
        hold: &Hold,
        asker: Asker,
    ) -> Result<(), Answer> {
        let own = Status::of(asker.pid).map(|status| status.identity);
        let mut held: BTreeMap<Asker, Usage> = BTreeMap::new();
        for name in holdings.names().values() {
            // The share of a process that has ended is its user's alone.
            let is_own = own.is_some() && name.process == own;
            let of = Asker {
                uid: name.owner,
                pid: if is_own { asker.pid } else { 0 },
            };
            held.entry(of).or_default().add(name.index());
        }
        let before = held.get(&asker).cloned().unwrap_or_default();
        let mut after = before.clone();
        after.add(&NameIndex::of(&hold.parts, &hold.label));
        after.names -= usize::from(holdings.names().contains_key(&hold.name));
        for resource in Usage::RESOURCES {
            let mut tally = Tally::default();
            for (of, held) in &held {
                tally.add(*of, held.amount(resource));
            }
            let new = after
                .amount(resource)
                .saturating_sub(before.amount(resource));
            let admitted = tally.admits(self.limit(resource), asker, new, self.has_users);
            admitted.map_err(|share| too_much(resource, share))?;
        }
        Ok(())
    }
}

fn too_much(resource: Resource, share: Share) -> Answer {
    let whose = match share {
        Share::Process => " for this process",
        Share::User => " for this user",
        Share::All => "",
    };
    let why = format!(
        "the holder has no {} left{whose}: remove names (crosshandle rm), or {}",
        resource.name(),
        resource.remedy()
    );
    refused(HolderFault::Refused, why)
}

/// What the names take that one process has handed over.
#[derive(Clone, Default)]
struct Usage {
    names: usize,
    parts: usize,
    bytes: usize,
    /// The contexts, and how many places the table of each has.
    contexts: BTreeMap<ContextKey, usize>,
}

impl Usage {
    const RESOURCES: [Resource; 4] = [
        Resource::Descriptors,
        Resource::Names,
        Resource::Contexts,
        Resource::Bytes,
    ];

    fn add(&mut self, name: &NameIndex) {
        self.names += 1;
        self.parts += name.parts;
        self.bytes += name.bytes;
        for (context, places) in &name.contexts {
            let known = self.contexts.entry(*context).or_default();
            *known = (*known).max(*places);
        }
    }

    fn amount(&self, resource: Resource) -> usize {
        match resource {
            Resource::Descriptors => {
                2 * self.parts * RECORD_DESCRIPTORS + self.contexts.len() * CONTEXT_DESCRIPTORS
            }
            Resource::Contexts => self.contexts.len(),
            Resource::Bytes => {
                self.bytes + self.contexts.values().sum::<usize>() * TABLE_PLACE_BYTES
            }
            Resource::Names => self.names,
            Resource::Connections | Resource::Waits | Resource::Jobs | Resource::QueuedJobs => 0,
        }
    }
}

/// Puts a question off since its process or its user has taken what there is of a resource.
pub(super) fn none_left(resource: Resource) -> Answer {
    busy(format!(
        "the holder is busy, and has no {} left for this process at the moment",
        resource.name()
    ))
}

#[cfg(test)]
mod tests;
