//! Limits of the resources that one user and one process may take of a holder. One rule applies to
//! every kind of resource. Users are compared before processes, since a process can fork and a user
//! cannot.
//!
//! The use of a resource is never kept in counters. A [`Tally`] adds it up when it is needed, so no
//! release can be missed.

use super::super::identity::{Asker, Status};
use super::super::message::{Hold, MAX_NAMES, Reply, busy, refused};
use super::super::state::{ContextKey, Holdings, NameIndex};
use crosshandle_ipc::broker::PeerPolicy;
use crosshandle_types::error::HolderFault;
use rustix::process::{Resource as SystemResource, getrlimit};
use std::collections::BTreeMap;

/// Maximum number of connections of programs to a holder, including those that wait for a version.
/// Each takes a descriptor, and the usual limit of a process is 1,024.
const MAX_PROGRAMS: usize = 256;

/// Maximum number of programs that wait for a version of a name. It is a part of [`MAX_PROGRAMS`],
/// so that connections for other requests remain.
const MAX_WAITING: usize = MAX_PROGRAMS / 2;

/// Maximum number of connections of one process that wait for a version. This limit keeps a few
/// processes from taking all of [`MAX_WAITING`].
const WAITING_OF_PROCESS: usize = MAX_WAITING / 4;

/// Maximum number of programs with a job that runs or is queued. It is a part of [`MAX_PROGRAMS`],
/// so that connections for other requests remain.
const MAX_WORKING: usize = MAX_PROGRAMS / 2;

/// Maximum number of connections of one process with a job that runs or is queued. This limit keeps
/// a few processes from taking all of [`MAX_WORKING`].
const WORKING_OF_PROCESS: usize = MAX_WORKING / 8;

/// Maximum number of jobs that run at a time: hand-overs that fetch memory, and claims that are
/// being checked. Each takes a thread. An exporter that never replies blocks its thread for
/// [`FETCH_TIMEOUT`].
const MAX_JOBS: usize = 24;

/// Maximum number of jobs that run at a time for one process. With a larger value, fewer
/// unresponsive processes could hold up the user's other programs for [`FETCH_TIMEOUT`].
const JOBS_OF_PROCESS: usize = 4;

/// Number of descriptors that a holder needs in addition to those of held memory: for connections
/// of programs, for importers, and for itself.
const OTHER_DESCRIPTORS: usize = MAX_PROGRAMS + 128;

/// Maximum number of descriptors for one record: its own, and a read-only one.
const RECORD_DESCRIPTORS: usize = 2;

/// Maximum number of descriptors for the tables of one exporting context.
const CONTEXT_DESCRIPTORS: usize = 8;

/// Maximum number of names that one process may hand over. This limit keeps one process from taking
/// all of [`MAX_NAMES`].
const NAMES_OF_PROCESS: usize = MAX_NAMES / 2;

/// Maximum number of exporting contexts whose memory is held. Each needs descriptors for its
/// tables.
const MAX_HELD_CONTEXTS: usize = 1024;

/// Maximum number of contexts whose memory one process may hand over. This limit keeps a few
/// processes from taking all of [`MAX_HELD_CONTEXTS`].
const CONTEXTS_OF_PROCESS: usize = 64;

/// Maximum size of the holder's own memory for labels, handles and the tables of exporters'
/// records, in bytes. This limit bounds what hostile programs can take.
const MAX_BYTES: usize = 512 << 20;

/// Maximum size of the holder's own memory for the names of one process, in bytes. This limit keeps
/// a few processes from taking all of [`MAX_BYTES`].
const BYTES_OF_PROCESS: usize = MAX_BYTES / 4;

/// Size of an entry in the table of an exporter's records, in bytes. It includes everything else
/// that is kept for the record.
const TABLE_PLACE_BYTES: usize = 96;

/// A resource of which a holder has a limited amount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Resource {
    /// Connections of programs.
    Connections,
    /// Programs that wait for a version or an epoch.
    Waits,
    /// Running jobs: hand-overs, claims and returns of lost memory.
    Jobs,
    /// Running and queued jobs: hand-overs, claims and returns of lost memory.
    QueuedJobs,
    /// Names.
    Names,
    /// Contexts of exporters whose memory is held.
    Contexts,
    /// Descriptors for held memory.
    Descriptors,
    /// Bytes of the holder's own memory: labels, handles, and tables of exporters' records.
    Bytes,
}

/// What happens when a resource is exhausted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Full {
    /// The user with the largest share gives some up, and of that user the process with the largest
    /// share.
    MostGivesWay,
    /// A user may take only as much as then remains free for others.
    LeavesAsMuch,
}

/// The limits of a resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Limit {
    /// Maximum for all programs together.
    pub(super) all: usize,
    /// Maximum for one process.
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

    /// Returns the name of the resource in messages.
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

    /// Returns the limits of the resource in a process that may open this many descriptors.
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

/// The share that is exhausted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Share {
    Process,
    User,
    All,
}

/// The use of one resource by each user and each process.
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

    /// Subtracts an amount that was added before.
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

    /// Checks whether a process may take `amount` more.
    ///
    /// # Errors
    /// Returns the share that does not allow it.
    pub(super) fn admits(
        &self,
        limit: Limit,
        asker: Asker,
        amount: usize,
        has_users: bool,
    ) -> Result<(), Share> {
        // Processes without an id in this namespace cannot be distinguished, so this limit does not
        // apply to them.
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

    /// Returns the process that gives way to `newcomer` when a resource is exhausted. Returns
    /// `None` if the newcomer's own user and process have the largest share.
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

/// The limits of what a holder holds. The limit of descriptors is below that of the process, since
/// a successor has a duplicate of each one.
pub(super) struct Quota {
    descriptors: usize,
    /// Whether several users may hand memory over.
    pub(super) has_users: bool,
}

impl Quota {
    /// Returns the limits of this process. They also apply to its successor.
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

    /// Checks whether a hand-over fits into the limits. A version that it replaces still counts,
    /// since the old version stays until the new version is held.
    pub(super) fn admit(
        &self,
        holdings: &Holdings,
        hold: &Hold,
        asker: Asker,
    ) -> Result<(), Reply> {
        let own = Status::of(asker.pid).map(|status| status.identity);
        let mut held: BTreeMap<Asker, Usage> = BTreeMap::new();
        for name in holdings.names().values() {
            // The names of a process that has ended count only for its user.
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

fn too_much(resource: Resource, share: Share) -> Reply {
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
    refused(HolderFault::NoRoom, why)
}

/// The resources that all names of one process take.
#[derive(Clone, Default)]
struct Usage {
    names: usize,
    parts: usize,
    bytes: usize,
    /// The contexts, with the number of entries in the table of each.
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

/// Returns the refusal that puts a request off because its process or its user has used up a
/// resource.
pub(super) fn none_left(resource: Resource) -> Reply {
    busy(format!(
        "the holder is busy, and has no {} left for this process at the moment",
        resource.name()
    ))
}

#[cfg(test)]
mod tests;
