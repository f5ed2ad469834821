//! Descriptors that are under way to importers, of answers that bring many.
//!
//! The system lets all processes of a user together have as many under way as one process may have open.
//! Importers that ask for pieces and are slow to take them, or never do, must leave some to all others.

use super::Client;
use crate::ipc::tuning::MAX_UNDER_WAY_PART;
use crate::os::socket::MAX_DESCRIPTORS;
use crate::sync::Mutex;
use rustix::process::{Resource, getrlimit};
use std::sync::{Arc, Weak};

/// Answers that were sent, and were not taken when somebody last looked: the importer, and the number of
/// descriptors.
static SENT: Mutex<Vec<(Weak<Client>, usize)>> = Mutex::new(Vec::new());

/// Counts an answer to an importer that has taken all before. Returns whether there is room for it.
pub(super) fn add(client: &Weak<Client>, count: usize) -> bool {
    let limit = getrlimit(Resource::Nofile).current;
    let limit = usize::try_from(limit.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
    // One answer is always under way, where descriptors are few.
    let limit = (limit / MAX_UNDER_WAY_PART).max(MAX_DESCRIPTORS);
    let mut looked_at = Vec::new();
    let mut sent = SENT.lock();
    sent.retain(|(other, _)| {
        let Some(other) = other.upgrade().filter(|_| !Weak::ptr_eq(other, client)) else {
            return false;
        };
        let is_under_way = other.has_unread();
        looked_at.push(other);
        is_under_way
    });
    let others: usize = sent.iter().map(|(_, count)| count).sum();
    let has_room = others + count <= limit;
    if has_room {
        sent.push((Weak::clone(client), count));
    }
    drop(sent);
    // Without the lock: each may be the last owner, who detaches the client.
    looked_at.into_iter().for_each(release);
    has_room
}

fn release(client: Arc<Client>) {
    if let Some(last) = Arc::into_inner(client) {
        // As a hang-up does: it looks at what the importer had open.
        crate::threads::driver_jobs::drop_later(last);
    }
}
