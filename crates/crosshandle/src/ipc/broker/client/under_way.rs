//! Descriptors in transit to importers, in replies that carry many.
//!
//! The kernel limits the descriptors in transit of all processes of a user together to the limit of
//! one process. Importers that request pieces and receive them slowly or never must leave some
//! descriptors to others.

use crate::ipc::tuning::MAX_UNDER_WAY_PART;
use crate::os::socket::MAX_DESCRIPTORS;
use crate::threads::driver_jobs;
use rustix::process::{Resource, getrlimit};
use std::sync::{Arc, Weak};

/// Sent replies that were unread at the last check: the importer `C`, and the number of
/// descriptors.
pub(super) struct UnderWay<C> {
    sent: Vec<(Weak<C>, usize)>,
}

impl<C: Send + Sync + 'static> UnderWay<C> {
    pub(super) const fn new() -> Self {
        Self { sent: Vec::new() }
    }

    /// Counts a reply to an importer that has read all earlier replies. Returns whether there is
    /// room for the reply.
    pub(super) fn add(
        &mut self,
        client: &Weak<C>,
        count: usize,
        has_unread: impl Fn(&C) -> bool,
    ) -> bool {
        let limit = getrlimit(Resource::Nofile).current;
        let limit = usize::try_from(limit.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
        // One reply may always be in transit, even if descriptors are few.
        let limit = (limit / MAX_UNDER_WAY_PART).max(MAX_DESCRIPTORS);
        self.sent.retain(|(other, _)| {
            let other = other.upgrade().filter(|_| !Weak::ptr_eq(other, client));
            other.is_some_and(|other| {
                let is_under_way = has_unread(&other);
                // This may be the last reference, whose drop checks the importer's opens, so a job
                // drops it.
                if let Some(last) = Arc::into_inner(other) {
                    driver_jobs::drop_later(last);
                }
                is_under_way
            })
        });
        let others: usize = self.sent.iter().map(|(_, count)| count).sum();
        let has_room = others + count <= limit;
        if has_room {
            self.sent.push((Weak::clone(client), count));
        }
        has_room
    }
}
