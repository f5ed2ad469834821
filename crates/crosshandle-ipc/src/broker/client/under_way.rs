//! Counts the descriptors in transit to importers: those in replies that carry many descriptors,
//! and those in all replies to other users.
//!
//! The kernel allows all processes of a user together only as many descriptors in transit as one
//! process may have open. Importers that read their replies slowly or never must not use up this
//! limit. A process of this process's own user can reach the limit by itself, so small replies to
//! it are not counted.

use crate::tuning::UNDER_WAY_LOOK;
use crosshandle_os::socket::{FEW_DESCRIPTORS, MAX_DESCRIPTORS};
use crosshandle_os::threads::driver_jobs;
use rustix::process::{Resource, getrlimit};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Share of a process's descriptor limit that may be in transit to importers, in replies with many
/// descriptors, as a divisor. The rest stays available to other processes of the user.
const MAX_UNDER_WAY_PART: usize = 2;

/// Replies to one importer that were unread at the last check.
struct Sent<C> {
    client: Weak<C>,
    /// The importer's user, if it is not the user of this process.
    stranger: Option<u32>,
    descriptors: usize,
    /// The connection of an importer that has hung up before it read the replies. The descriptors
    /// stay in transit while the importer keeps its end of the connection open.
    left: Option<Arc<C>>,
}

pub(super) struct UnderWay<C> {
    /// The unread replies, by the address of the importer's client. The weak reference in each
    /// entry keeps the address from being reused.
    sent: BTreeMap<usize, Sent<C>>,
    all: usize,
    /// The part of `all` that is in transit to each other user.
    of_strangers: BTreeMap<u32, usize>,
    /// The time of the last check for read replies that [`has_room`](Self::has_room) made.
    looked: Option<Instant>,
}

/// Returns the maximum number of descriptors in transit.
fn limit() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    let limit = usize::try_from(limit.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
    // One reply may always be in transit, even if descriptors are few.
    (limit / MAX_UNDER_WAY_PART).max(MAX_DESCRIPTORS)
}

impl<C: Send + Sync + 'static> UnderWay<C> {
    pub(super) const fn new() -> Self {
        Self {
            sent: BTreeMap::new(),
            all: 0,
            of_strangers: BTreeMap::new(),
            looked: None,
        }
    }

    /// Counts a reply to an importer that has read all earlier replies. Returns whether there is
    /// room for the reply.
    pub(super) fn add(
        &mut self,
        client: &Weak<C>,
        stranger: Option<u32>,
        count: usize,
        has_unread: impl Fn(&C) -> bool,
    ) -> bool {
        self.forget(client);
        self.forget_taken(has_unread);
        let has_room = self.all + count <= limit();
        if has_room {
            self.count(client, stranger, count);
        }
        has_room
    }

    /// Counts a small reply to an importer of another user. `has_taken` says whether the importer
    /// has read all earlier replies.
    pub(super) fn add_few(
        &mut self,
        client: &Weak<C>,
        stranger: u32,
        count: usize,
        has_taken: bool,
    ) {
        if has_taken {
            self.forget(client);
        }
        self.count(client, Some(stranger), count);
    }

    /// Returns whether there is room for a small reply to an importer of another user. Including
    /// this reply, that user may use at most as much room as remains.
    pub(super) fn has_room(&mut self, stranger: u32, has_unread: impl Fn(&C) -> bool) -> bool {
        let is_there = |under_way: &Self| {
            let left = limit().saturating_sub(under_way.all + FEW_DESCRIPTORS);
            let own = under_way.of_strangers.get(&stranger).copied();
            own.unwrap_or(0) + FEW_DESCRIPTORS <= left
        };
        if is_there(self) {
            return true;
        }
        // A check takes one system call for each importer with unread replies, so checks are
        // rate-limited.
        if (self.looked).is_some_and(|looked| looked.elapsed() < UNDER_WAY_LOOK) {
            return false;
        }
        self.looked = Some(Instant::now());
        self.forget_taken(has_unread);
        is_there(self)
    }

    /// Keeps the connection of an importer that has hung up. Returns whether replies to it are
    /// counted.
    pub(super) fn keep(&mut self, client: &Arc<C>) -> bool {
        match self.sent.get_mut(&Arc::as_ptr(client).addr()) {
            Some(sent) => {
                sent.left = Some(Arc::clone(client));
                true
            }
            None => false,
        }
    }

    /// Stops counting the replies to an importer.
    pub(super) fn forget(&mut self, client: &Weak<C>) {
        self.remove(client.as_ptr().addr());
    }

    /// Stops counting the replies that have been read. Returns whether connections of importers
    /// that have hung up are still kept.
    pub(super) fn forget_taken(&mut self, has_unread: impl Fn(&C) -> bool) -> bool {
        let is_taken = |sent: &Sent<C>| {
            sent.client.upgrade().is_none_or(|client| {
                let is_taken = !has_unread(&client);
                // This may be the last reference, whose drop checks the importer's opens, so a job
                // drops it.
                if let Some(last) = Arc::into_inner(client) {
                    driver_jobs::drop_later(last);
                }
                is_taken
            })
        };
        let taken = self.sent.iter().filter(|(_, sent)| is_taken(sent));
        let taken: Vec<_> = taken.map(|(address, _)| *address).collect();
        for address in taken {
            self.remove(address);
        }
        self.sent.values().any(|sent| sent.left.is_some())
    }

    fn count(&mut self, client: &Weak<C>, stranger: Option<u32>, count: usize) {
        let sent = self.sent.entry(client.as_ptr().addr());
        let sent = sent.or_insert_with(|| Sent {
            client: Weak::clone(client),
            stranger,
            descriptors: 0,
            left: None,
        });
        sent.descriptors += count;
        self.all += count;
        if let Some(stranger) = stranger {
            *self.of_strangers.entry(stranger).or_default() += count;
        }
    }

    fn remove(&mut self, address: usize) {
        let Some(sent) = self.sent.remove(&address) else {
            return;
        };
        self.all -= sent.descriptors;
        if let Some(stranger) = sent.stranger
            && let Some(of_user) = self.of_strangers.get_mut(&stranger)
        {
            *of_user -= sent.descriptors;
            if *of_user == 0 {
                self.of_strangers.remove(&stranger);
            }
        }
        if let Some(left) = sent.left {
            // This may be the last reference, too.
            driver_jobs::drop_later(left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    const ONE: u32 = 61_001;
    const OTHER: u32 = 61_002;

    /// Returns an importer with unread replies.
    fn importer() -> Arc<AtomicBool> {
        Arc::new(AtomicBool::new(true))
    }

    fn has_unread(importer: &AtomicBool) -> bool {
        importer.load(Ordering::Relaxed)
    }

    /// Counts small replies to new importers of a user until there is no room. Returns the
    /// importers.
    fn fill(under_way: &mut UnderWay<AtomicBool>, user: u32) -> Vec<Arc<AtomicBool>> {
        let mut importers = Vec::new();
        while under_way.has_room(user, has_unread) {
            importers.push(importer());
            let last = importers.last().expect("one was added");
            under_way.add_few(&Arc::downgrade(last), user, 2, !has_unread(last));
        }
        importers
    }

    #[test]
    fn a_user_that_takes_nothing_leaves_as_much_to_others() {
        let mut under_way = UnderWay::new();
        let of_one = fill(&mut under_way, ONE);
        let all = limit();
        let of = |count: usize| count * 2;
        assert!(of(of_one.len()) <= all / 2 && of(of_one.len()) + 8 > all / 2);
        // A second user gets half of the rest, and this process's own user what remains.
        let of_other = fill(&mut under_way, OTHER);
        assert!(of(of_other.len()) + 8 > all / 4);
        let own = importer();
        let rest = all - of(of_one.len() + of_other.len());
        assert!(under_way.add(&Arc::downgrade(&own), None, rest, has_unread));
        // When the replies are read, there is room again after a moment.
        let begin = Instant::now();
        own.store(false, Ordering::Relaxed);
        of_one
            .iter()
            .for_each(|it| it.store(false, Ordering::Relaxed));
        while !under_way.has_room(ONE, has_unread) {
            assert!(begin.elapsed().as_secs() < 30, "room never comes back");
            std::thread::yield_now();
        }
    }

    #[test]
    fn answers_to_an_importer_that_has_hung_up_count_until_they_are_taken() {
        let mut under_way = UnderWay::new();
        let left = importer();
        under_way.add_few(&Arc::downgrade(&left), ONE, 2, false);
        under_way.add_few(&Arc::downgrade(&left), ONE, 1, false);
        assert!(under_way.keep(&left));
        assert!(!under_way.keep(&importer()), "nothing was sent to it");
        let look = Arc::downgrade(&left);
        drop(left);
        assert!(under_way.forget_taken(has_unread));
        assert_eq!((under_way.all, under_way.of_strangers[&ONE]), (3, 3));
        look.upgrade()
            .expect("kept")
            .store(false, Ordering::Relaxed);
        assert!(!under_way.forget_taken(has_unread));
        assert_eq!((under_way.all, under_way.of_strangers.len()), (0, 0));
    }
}
