//! Admission limits the number of connections that an exporter keeps, and for which users.
//!
//! A peer that connects takes a descriptor of the exporter before it has shown a key. Unattached
//! connections are therefore few, and have little time and few requests. If there are too many, the
//! exporter drops the oldest one that has had a reply without attaching, or otherwise the oldest
//! one that has sent nothing. An importer attaches with its first request, so it succeeds even
//! among thousands of idle connections, and among thousands that only send requests. Attached
//! connections are limited too, and those of other users more strictly.
//!
//! This module only decides and counts. The listener and the clients close the connections.

use crosshandle_types::sync::HashMap;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// Maximum number of connections to an exporter that are not attached to any context. More
/// connections allow strangers to take more descriptors. With fewer, a flood of connections
/// displaces importers earlier, which must then reconnect.
const MAX_UNATTACHED: usize = 64;

/// Maximum number of [`MAX_UNATTACHED`] connections that belong to one user other than the
/// exporter's own.
const MAX_UNATTACHED_OF_STRANGER: usize = 16;

/// Maximum number of requests on an unattached connection. An importer attaches with its first
/// request, and `crosshandle ps` sends one request. The limit bounds the exporter's time for peers
/// without a handle.
const MAX_UNATTACHED_REQUESTS: u32 = 8;

/// Maximum time until a connection sends its first request, and between further requests until it
/// is attached. If an importer is stopped or swapped out for longer, it must reconnect.
const UNATTACHED_TIME: Duration = Duration::from_secs(2);

/// Share of the exporter's descriptor limit that attached connections may use, as a divisor. It
/// includes the descriptors that the exporter keeps for each of them.
const MAX_ATTACHED_PART: usize = 2;

/// Share of the exporter's descriptor limit that attached connections of one other user may use, as
/// a divisor.
const MAX_ATTACHED_PART_OF_STRANGER: usize = 4;

/// Maximum number of descriptors that are reserved for the exporter's own calls, and at most a
/// share of [`MAX_RESERVED_PART`] of the limit. Some calls, such as an open that attaches, need
/// several descriptors at once.
const MAX_RESERVED_DESCRIPTORS: usize = 32;

/// Divisor of the descriptor limit that bounds the reserve, for small limits (see
/// [`MAX_RESERVED_DESCRIPTORS`]).
const MAX_RESERVED_PART: usize = 8;

/// The number of a connection. Later connections have greater numbers.
pub(super) type Number = u64;

/// Limits on simultaneous connections. Attached connections count by the descriptors that the
/// process keeps for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Limits {
    attached: usize,
    attached_of_stranger: usize,
    /// The lowest descriptor number that is reserved.
    reserved: usize,
}

impl Limits {
    /// Returns the limits of a process with this descriptor limit.
    pub(super) fn of(descriptors: u64) -> Self {
        let descriptors = usize::try_from(descriptors).unwrap_or(usize::MAX);
        let reserve = MAX_RESERVED_DESCRIPTORS.min(descriptors / MAX_RESERVED_PART);
        Self {
            attached: descriptors / MAX_ATTACHED_PART,
            attached_of_stranger: descriptors / MAX_ATTACHED_PART_OF_STRANGER,
            reserved: descriptors - reserve,
        }
    }

    /// Returns whether a descriptor with this number leaves the reserve untouched. The kernel gives
    /// the lowest free number, so greater numbers are usually free.
    pub(super) fn has_room(&self, descriptor: RawFd) -> bool {
        usize::try_from(descriptor).is_ok_and(|number| number < self.reserved)
    }
}

/// A connection that is not attached to a context. `C` is a reference that can hang it up.
struct Unattached<C> {
    uid: u32,
    /// Number of messages that arrived on the connection.
    requests: u32,
    deadline: Instant,
    connection: C,
}

/// A connection that is attached to a context.
struct Attached {
    uid: u32,
    /// Number of descriptors that the process keeps for the connection.
    descriptors: usize,
}

/// The connections of a process.
pub(super) struct Admission<C> {
    /// The user id of the process.
    own_uid: u32,
    next: Number,
    /// Sorted by age, the oldest first.
    unattached: BTreeMap<Number, Unattached<C>>,
    attached: HashMap<Number, Attached>,
    /// Number of descriptors for attached connections, by user.
    attached_of: HashMap<u32, usize>,
}

/// The decision on a newcomer.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Verdict<C> {
    /// The newcomer may stay.
    Welcome,
    /// The newcomer may stay, and this connection must be hung up.
    InsteadOf(C),
    /// There are too many connections.
    Refused,
}

impl<C> Admission<C> {
    pub(super) fn new(own_uid: u32) -> Self {
        Self {
            own_uid,
            next: 0,
            unattached: BTreeMap::new(),
            attached: HashMap::default(),
            attached_of: HashMap::default(),
        }
    }

    /// Returns a number for a new connection.
    pub(super) fn number(&mut self) -> Number {
        self.next += 1;
        self.next
    }

    /// Decides whether to accept a new connection from the user `uid`, and whether it replaces an
    /// older connection.
    pub(super) fn admit(
        &mut self,
        number: Number,
        uid: u32,
        descriptor: RawFd,
        limits: &Limits,
        now: Instant,
        connection: C,
    ) -> Verdict<C> {
        let is_stranger = uid != self.own_uid;
        let theirs = self.count_unattached(uid);
        let verdict = if is_stranger && theirs >= MAX_UNATTACHED_OF_STRANGER {
            self.take_oldest(|other| other == uid)
        } else if self.unattached.len() < MAX_UNATTACHED && limits.has_room(descriptor) {
            Verdict::Welcome
        } else {
            self.take_for(is_stranger)
        };
        if !matches!(verdict, Verdict::Refused) {
            let newcomer = Unattached {
                uid,
                requests: 0,
                deadline: now + UNATTACHED_TIME,
                connection,
            };
            self.unattached.insert(number, newcomer);
        }
        verdict
    }

    /// Records a message of a connection, and extends the connection's deadline. Returns whether
    /// the message may get a reply. If not, the caller must hang up.
    pub(super) fn spoke(&mut self, number: Number, now: Instant) -> bool {
        let Some(connection) = self.unattached.get_mut(&number) else {
            return true;
        };
        connection.requests += 1;
        connection.deadline = now + UNATTACHED_TIME;
        connection.requests <= MAX_UNATTACHED_REQUESTS
    }

    /// Returns whether a connection may attach, given the number of descriptors that the process
    /// keeps for it, including its own. Returns `false` if the connection must already be hung up.
    pub(super) fn may_attach(&self, number: Number, descriptors: usize, limits: &Limits) -> bool {
        self.unattached.get(&number).is_some_and(|connection| {
            let uid = connection.uid;
            let theirs = self.attached_of.get(&uid).copied().unwrap_or(0);
            let all: usize = self.attached_of.values().sum();
            all + descriptors <= limits.attached
                && (uid == self.own_uid || theirs + descriptors <= limits.attached_of_stranger)
        })
    }

    /// Makes an unattached connection an attached one, and counts its descriptors.
    pub(super) fn attach(&mut self, number: Number, descriptors: usize) {
        if let Some(Unattached { uid, .. }) = self.unattached.remove(&number) {
            self.attached.insert(number, Attached { uid, descriptors });
            *self.attached_of.entry(uid).or_default() += descriptors;
        }
    }

    /// Removes a connection that has ended.
    pub(super) fn leave(&mut self, number: Number) {
        self.unattached.remove(&number);
        let Some(Attached { uid, descriptors }) = self.attached.remove(&number) else {
            return;
        };
        if let Some(count) = self.attached_of.get_mut(&uid) {
            *count -= descriptors;
            if *count == 0 {
                self.attached_of.remove(&uid);
            }
        }
    }

    /// Returns the earliest deadline of a connection.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.unattached.values().map(|of| of.deadline).min()
    }

    /// Removes and returns the connections past their deadline, which the caller hangs up.
    pub(super) fn take_late(&mut self, now: Instant) -> Vec<C> {
        let late = self.unattached.extract_if(.., |_, of| of.deadline <= now);
        late.map(|(_, of)| of.connection).collect()
    }

    fn count_unattached(&self, uid: u32) -> usize {
        self.unattached.values().filter(|of| of.uid == uid).count()
    }

    /// Makes room for a newcomer by dropping a connection of the stranger with the most
    /// connections. If there are no strangers, a newcomer of our own user replaces a connection of
    /// our own user.
    fn take_for(&mut self, is_stranger: bool) -> Verdict<C> {
        let strangers = self.unattached.values().map(|of| of.uid);
        let strangers = strangers.filter(|uid| *uid != self.own_uid);
        let greatest = strangers.max_by_key(|uid| (self.count_unattached(*uid), Reverse(*uid)));
        match greatest {
            Some(stranger) => self.take_oldest(|uid| uid == stranger),
            None if is_stranger => Verdict::Refused,
            None => self.take_oldest(|_| true),
        }
    }

    /// Removes the oldest connection of some users that had a reply without attaching, or otherwise
    /// their oldest connection.
    fn take_oldest(&mut self, is_theirs: impl Fn(u32) -> bool) -> Verdict<C> {
        let theirs = self.unattached.iter().filter(|(_, of)| is_theirs(of.uid));
        let oldest = theirs.min_by_key(|(number, of)| (of.requests == 0, **number));
        let number = oldest.map(|(number, _)| *number);
        match number.and_then(|number| self.unattached.remove(&number)) {
            Some(of) => Verdict::InsteadOf(of.connection),
            None => Verdict::Refused,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const OWN: u32 = 1000;
    const STRANGER: u32 = 2000;

    struct Exporter {
        admission: Admission<Number>,
        limits: Limits,
        now: Instant,
    }

    impl Exporter {
        fn new(descriptors: u64) -> Self {
            Self {
                admission: Admission::new(OWN),
                limits: Limits::of(descriptors),
                now: Instant::now(),
            }
        }

        fn connect_with(&mut self, uid: u32, descriptor: RawFd) -> (Number, Verdict<Number>) {
            let number = self.admission.number();
            let (limits, now) = (self.limits, self.now);
            let admission = &mut self.admission;
            let verdict = admission.admit(number, uid, descriptor, &limits, now, number);
            (number, verdict)
        }

        fn connect(&mut self, uid: u32) -> (Number, Verdict<Number>) {
            self.connect_with(uid, 10)
        }

        fn welcome(&mut self, uid: u32) -> Number {
            let (number, verdict) = self.connect(uid);
            assert_eq!(verdict, Verdict::Welcome);
            number
        }

        fn attach(&mut self, number: Number) -> bool {
            self.attach_with(number, 1)
        }

        fn attach_with(&mut self, number: Number, descriptors: usize) -> bool {
            let may_attach = self.admission.may_attach(number, descriptors, &self.limits);
            if may_attach {
                self.admission.attach(number, descriptors);
            }
            may_attach
        }
    }

    #[test]
    fn the_oldest_goes() {
        let mut exporter = Exporter::new(1 << 16);
        let all: Vec<_> = (0..MAX_UNATTACHED).map(|_| exporter.welcome(OWN)).collect();
        assert!(exporter.attach(all[1]));
        exporter.welcome(OWN);
        assert_eq!(exporter.connect(OWN).1, Verdict::InsteadOf(all[0]));
        assert_eq!(exporter.connect(OWN).1, Verdict::InsteadOf(all[2]));
        // This connection was hung up already.
        assert!(!exporter.attach(all[2]));
        assert!(exporter.attach(all[3]));
    }

    #[test]
    fn those_that_were_answered_in_vain_go_first() {
        let mut exporter = Exporter::new(1 << 16);
        let all: Vec<_> = (0..MAX_UNATTACHED).map(|_| exporter.welcome(OWN)).collect();
        for number in &all[5..] {
            assert!(exporter.admission.spoke(*number, exporter.now));
        }
        // Newcomers stay, because they have had no time to send anything.
        for number in &all[5..] {
            let (newcomer, verdict) = exporter.connect(OWN);
            assert_eq!(verdict, Verdict::InsteadOf(*number));
            assert!(exporter.attach(newcomer));
            exporter.welcome(OWN);
        }
        assert_eq!(exporter.connect(OWN).1, Verdict::InsteadOf(all[0]));
    }

    #[test]
    fn requests_before_attaching_are_few() {
        let mut exporter = Exporter::new(1 << 16);
        let (number, attached) = (exporter.welcome(OWN), exporter.welcome(OWN));
        assert!(exporter.attach(attached));
        for _ in 0..MAX_UNATTACHED_REQUESTS {
            assert!(exporter.admission.spoke(number, exporter.now));
        }
        assert!(!exporter.admission.spoke(number, exporter.now));
        for _ in 0..2 * MAX_UNATTACHED_REQUESTS {
            assert!(exporter.admission.spoke(attached, exporter.now));
        }
    }

    #[test]
    fn a_stranger_harms_only_himself() {
        let mut exporter = Exporter::new(1 << 16);
        let own = exporter.welcome(OWN);
        let other = exporter.welcome(STRANGER + 1);
        let first = exporter.welcome(STRANGER);
        for _ in 1..MAX_UNATTACHED_OF_STRANGER {
            exporter.welcome(STRANGER);
        }
        for gone in first..first + 1000 {
            assert_eq!(exporter.connect(STRANGER).1, Verdict::InsteadOf(gone));
        }
        for number in [own, other] {
            assert!(exporter.attach(number));
        }
    }

    #[test]
    fn many_strangers_give_way_to_the_owner() {
        let mut exporter = Exporter::new(1 << 16);
        let own = exporter.welcome(OWN);
        let mut uid = STRANGER;
        let last = loop {
            uid += 1;
            let (number, verdict) = exporter.connect(uid);
            if verdict != Verdict::Welcome {
                break (number, verdict);
            }
        };
        // This connection belongs to the first stranger.
        assert_eq!(last.1, Verdict::InsteadOf(own + 1));
        for _ in 0..MAX_UNATTACHED - 1 {
            let Verdict::InsteadOf(gone) = exporter.connect(OWN).1 else {
                panic!("the owner is refused");
            };
            assert_ne!(gone, own);
        }
        // Now all connections belong to the owner.
        assert_eq!(exporter.connect(STRANGER).1, Verdict::Refused);
        assert_eq!(exporter.connect(OWN).1, Verdict::InsteadOf(own));
    }

    #[test]
    fn attached_connections_have_limits() {
        let mut exporter = Exporter::new(64);
        let mut strangers = Vec::new();
        for _ in 0..16 {
            let number = exporter.welcome(STRANGER);
            assert!(exporter.attach(number));
            strangers.push(number);
        }
        let refused = exporter.welcome(STRANGER);
        assert!(!exporter.attach(refused));
        for _ in 0..16 {
            let number = exporter.welcome(OWN);
            assert!(exporter.attach(number));
        }
        let own = exporter.welcome(OWN);
        assert!(!exporter.attach(own), "half of the descriptors");
        exporter.admission.leave(strangers[0]);
        exporter.admission.leave(strangers[0]);
        assert!(exporter.attach(own));
        assert!(!exporter.attach(refused), "half of the descriptors");
        exporter.admission.leave(strangers[1]);
        assert!(exporter.attach(refused), "fewer than a quarter");
        assert!(exporter.admission.attached_of[&STRANGER] == 15);
    }

    #[test]
    fn attached_connections_count_by_the_descriptors_that_they_cost() {
        let mut exporter = Exporter::new(64);
        let mut strangers = Vec::new();
        for _ in 0..8 {
            let number = exporter.welcome(STRANGER);
            assert!(exporter.attach_with(number, 2));
            strangers.push(number);
        }
        let refused = exporter.welcome(STRANGER);
        assert!(!exporter.attach_with(refused, 1), "a quarter is in use");
        for _ in 0..7 {
            let number = exporter.welcome(OWN);
            assert!(exporter.attach_with(number, 2));
        }
        let last = exporter.welcome(OWN);
        assert!(exporter.attach_with(last, 1));
        let own = exporter.welcome(OWN);
        assert!(!exporter.attach_with(own, 2), "one is left of a half");
        assert!(exporter.attach_with(own, 1));
        exporter.admission.leave(strangers[0]);
        assert!(exporter.attach_with(refused, 2));
        let more = exporter.welcome(OWN);
        assert!(!exporter.attach_with(more, 1), "a half is in use");
    }

    #[test]
    fn a_reserve_of_descriptors_is_left_to_the_owner() {
        let mut exporter = Exporter::new(64);
        let reserved = 64 - 64 / MAX_RESERVED_PART as RawFd;
        let (_, refused) = exporter.connect_with(OWN, reserved);
        assert_eq!(refused, Verdict::Refused, "nobody can give way");
        let (first, welcome) = exporter.connect_with(OWN, reserved - 1);
        assert_eq!(welcome, Verdict::Welcome);
        let (_, instead) = exporter.connect_with(OWN, reserved);
        assert_eq!(instead, Verdict::InsteadOf(first));
        let (_, refused) = exporter.connect_with(STRANGER, reserved);
        assert_eq!(refused, Verdict::Refused);
        let all = Limits::of(u64::MAX);
        assert!(all.has_room(1 << 20) && !all.has_room(-1));
    }

    #[test]
    fn whoever_says_nothing_has_little_time() {
        let mut exporter = Exporter::new(1 << 16);
        assert_eq!(exporter.admission.deadline(), None);
        let began = exporter.now;
        let (silent, speaking, attached) = (
            exporter.welcome(OWN),
            exporter.welcome(OWN),
            exporter.welcome(OWN),
        );
        assert!(exporter.attach(attached));
        exporter.now = began + Duration::from_secs(1);
        exporter.admission.spoke(speaking, exporter.now);
        assert_eq!(exporter.admission.deadline(), Some(began + UNATTACHED_TIME));
        let early = began + UNATTACHED_TIME - Duration::from_nanos(1);
        assert!(exporter.admission.take_late(early).is_empty());
        let late = began + UNATTACHED_TIME;
        assert_eq!(exporter.admission.take_late(late), [silent]);
        let later = exporter.now + UNATTACHED_TIME;
        assert_eq!(exporter.admission.deadline(), Some(later));
        assert_eq!(exporter.admission.take_late(later), [speaking]);
        assert_eq!(exporter.admission.deadline(), None);
    }
}
