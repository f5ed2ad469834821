//! How much may be held: less than the descriptors that a process may have, since a successor has a
//! duplicate of each, and by each of several users a half at most.

use super::super::message::{Answer, Hold, refused};
use super::super::state::{Holdings, Name};
use super::super::tuning::{CONTEXT_DESCRIPTORS, MAX_NAMES, OTHER_DESCRIPTORS, RECORD_DESCRIPTORS};
use crate::error::HolderFault;
use crate::ipc::broker::PeerPolicy;
use rustix::process::{Resource, getrlimit};

pub(super) struct Quota {
    descriptors: usize,
    /// Whether several users may hand memory over.
    has_users: bool,
}

impl Quota {
    /// Returns what this process, and with it its successor, may hold.
    pub(super) fn of(policy: &PeerPolicy) -> Self {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Self {
            descriptors: limit.saturating_sub(OTHER_DESCRIPTORS),
            has_users: *policy != PeerPolicy::SameUser,
        }
    }

    /// Refuses a hand-over that would be too much, whatever it replaces: that stays until this is held.
    pub(super) fn admit(&self, holdings: &Holdings, hold: &Hold, uid: u32) -> Result<(), Answer> {
        let new = 2 * hold.parts.len() * RECORD_DESCRIPTORS + CONTEXT_DESCRIPTORS;
        let all = holdings.records().len() * RECORD_DESCRIPTORS
            + holdings.contexts() * CONTEXT_DESCRIPTORS
            + new;
        let share = |most: usize| most / (1 + usize::from(self.has_users));
        let own = || holdings.names().values().filter(|name| name.owner == uid);
        let of_user: usize = own().map(descriptors).sum::<usize>() + new;
        let names = holdings.names().len();
        let is_new = usize::from(!holdings.names().contains_key(&hold.name));
        let (what, remedy) = if all > self.descriptors || of_user > share(self.descriptors) {
            (
                "descriptors",
                "raise the holder's limit of open files (ulimit -n, LimitNOFILE=)",
            )
        } else if names + is_new > MAX_NAMES || own().count() + is_new > share(MAX_NAMES) {
            ("names", "put more pieces of memory under one name")
        } else {
            return Ok(());
        };
        Err(refused(
            HolderFault::Refused,
            format!(
                "the holder has no {what} left for this{}: remove names (crosshandle rm), or {remedy}",
                match self.has_users {
                    true => " user",
                    false => "",
                }
            ),
        ))
    }
}

/// Returns the descriptors that a name takes at most.
fn descriptors(name: &Name) -> usize {
    2 * name.parts.len() * RECORD_DESCRIPTORS + CONTEXT_DESCRIPTORS
}
