//! Descriptors that are under way to importers, of answers that bring many.
//!
//! The system lets all processes of a user together have as many under way as one process may have open.
//! Importers that ask for pieces and are slow to take them, or never do, must leave some to all others.

use crate::ipc::tuning::MAX_UNDER_WAY_PART;
use crate::os::socket::MAX_DESCRIPTORS;
use crate::threads::driver_jobs;
use rustix::process::{Resource, getrlimit};
use std::sync::{Arc, Weak};

/// Answers that were sent, and were not taken when somebody last looked: the importer `C`, and the number of
/// descriptors.
pub(super) struct UnderWay<C> {
    sent: Vec<(Weak<C>, usize)>,
}

impl<C: Send + Sync + 'static> UnderWay<C> {
    pub(super) const fn new() -> Self {
        Self { sent: Vec::new() }
    }

    /// Counts an answer to an importer that has taken all before. Returns whether there is room for it.
    pub(super) fn add(
        &mut self,
        client: &Weak<C>,
        count: usize,
        has_unread: impl Fn(&C) -> bool,
    ) -> bool {
        let limit = getrlimit(Resource::Nofile).current;
        let limit = usize::try_from(limit.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
        // One answer is always under way, where descriptors are few.
        let limit = (limit / MAX_UNDER_WAY_PART).max(MAX_DESCRIPTORS);
        self.sent.retain(|(other, _)| {
            let other = other.upgrade().filter(|_| !Weak::ptr_eq(other, client));
            other.is_some_and(|other| {
                let is_under_way = has_unread(&other);
                // Where nobody waits: this may be its last owner, and it looks at what the importer had open.
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
