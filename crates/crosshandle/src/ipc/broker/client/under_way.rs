//! Descriptors that are under way to importers: of answers that bring many, and of all answers to other
//! users.
//!
//! The system lets all processes of a user together have as many under way as one process may have open.
//! Importers that ask for memory and are slow to take it, or never do, must leave some to all others. A
//! process of this process's own user can use up that limit by itself, so its answers that bring few are
//! not counted.

use crate::ipc::tuning::{MAX_UNDER_WAY_PART, UNDER_WAY_LOOK};
use crate::os::socket::{FEW_DESCRIPTORS, MAX_DESCRIPTORS};
use crate::threads::driver_jobs;
use rustix::process::{Resource, getrlimit};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Answers to one importer that were sent, and were not taken at the last look.
struct Sent<C> {
    client: Weak<C>,
    /// The importer's user, if it is another one.
    stranger: Option<u32>,
    descriptors: usize,
    /// Keeps the connection of an importer that has hung up without taking the answers. As long as it
    /// keeps its end, the descriptors stay under way.
    left: Option<Arc<C>>,
}

pub(super) struct UnderWay<C> {
    /// By the addresses of the importers, which the weak references keep from being used again.
    sent: BTreeMap<usize, Sent<C>>,
    all: usize,
    /// The part of `all` that each other user has.
    of_strangers: BTreeMap<u32, usize>,
    /// The time of the last look at what was taken for want of room.
    looked: Option<Instant>,
}

/// Returns how many descriptors may be under way.
fn limit() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    let limit = usize::try_from(limit.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
    // One answer is always under way, where descriptors are few.
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

    /// Counts an answer to an importer that has taken all before. Returns whether there is room for it.
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

    /// Counts a small answer to an importer of another user. `has_taken`: whether it has taken all before.
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

    /// Returns whether a small answer may be sent to an importer of another user: such a user leaves as much
    /// room as it takes.
    pub(super) fn has_room(&mut self, stranger: u32, has_unread: impl Fn(&C) -> bool) -> bool {
        let is_there = |under_way: &Self| {
            let left = limit().saturating_sub(under_way.all + FEW_DESCRIPTORS);
            let own = under_way.of_strangers.get(&stranger).copied();
            own.unwrap_or(0) + FEW_DESCRIPTORS <= left
        };
        if is_there(self) {
            return true;
        }
        // Each look costs a system call for each importer, and many may ask.
        if (self.looked).is_some_and(|looked| looked.elapsed() < UNDER_WAY_LOOK) {
            return false;
        }
        self.looked = Some(Instant::now());
        self.forget_taken(has_unread);
        is_there(self)
    }

    /// Keeps the connection of an importer that hangs up before it has taken what was sent. Returns whether
    /// anything was.
    pub(super) fn keep(&mut self, client: &Arc<C>) -> bool {
        match self.sent.get_mut(&Arc::as_ptr(client).addr()) {
            Some(sent) => {
                sent.left = Some(Arc::clone(client));
                true
            }
            None => false,
        }
    }

    /// Forgets what was sent to an importer that has taken it.
    pub(super) fn forget(&mut self, client: &Weak<C>) {
        self.remove(client.as_ptr().addr());
    }

    /// Forgets all that was taken. Returns whether the connection of an importer that has hung up is kept.
    pub(super) fn forget_taken(&mut self, has_unread: impl Fn(&C) -> bool) -> bool {
        let is_taken = |sent: &Sent<C>| {
            sent.client.upgrade().is_none_or(|client| {
                let is_taken = !has_unread(&client);
                // Where nobody waits: this may be its last owner, and it looks at what the importer had open.
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
            // This may be the last owner, too.
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

    /// An importer, and whether answers lie unread at it.
    fn importer() -> Arc<AtomicBool> {
        Arc::new(AtomicBool::new(true))
    }

    fn has_unread(importer: &AtomicBool) -> bool {
        importer.load(Ordering::Relaxed)
    }

    /// Sends small answers to new importers of a user until there is no room. Returns them.
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
        // Another one has half of the rest, and this process's own user what remains.
        let of_other = fill(&mut under_way, OTHER);
        assert!(of(of_other.len()) + 8 > all / 4);
        let own = importer();
        let rest = all - of(of_one.len() + of_other.len());
        assert!(under_way.add(&Arc::downgrade(&own), None, rest, has_unread));
        // Room comes back with what is taken, after a moment.
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
