//! The members of a channel: joining, leaving and dying.

use super::shape::MAX_HELD;
use super::{Channel, ChannelError, waiting};
use crate::platform::{Atomic, Ordering, Platform};

/// A producer or a consumer, in shared memory.
#[repr(C, align(64))]
pub struct Member<P: Platform> {
    /// - 0–2: 0 if the place was never used, or [`JOINING`], [`ALIVE`], [`LEFT`] or [`DEAD`].
    /// - 16–31: number by which the caller identifies the member's process.
    /// - 32–63: generation, which grows each time a member takes the place.
    word: P::AtomicU64,
    /// Position of a consumer of a broadcast (`consumer.rs`).
    pub(super) cursor: P::AtomicU64,
    /// Slots that a consumer holds, each plus 1. Only the consumer writes to them.
    pub(super) held: [P::AtomicU64; MAX_HELD as usize],
    /// For each held slot: number of the signal after which the slot is free, or 0 if the consumer
    /// has not released it.
    pub(super) free_after: [P::AtomicU64; MAX_HELD as usize],
}

impl<P: Platform> Default for Member<P> {
    fn default() -> Self {
        Self {
            word: P::AtomicU64::new(0),
            cursor: P::AtomicU64::new(0),
            held: std::array::from_fn(|_| P::AtomicU64::new(0)),
            free_after: std::array::from_fn(|_| P::AtomicU64::new(0)),
        }
    }
}

const STATE: u64 = 7;
/// The member has the place, but its cursor is not valid yet.
const JOINING: u64 = 1;
const ALIVE: u64 = 2;
const LEFT: u64 = 3;
const DEAD: u64 = 4;
const OWNER_SHIFT: u32 = 16;
const GENERATION_SHIFT: u32 = 32;

/// One member during one life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemberKey {
    pub index: u8,
    pub generation: u32,
    /// Number by which the caller identifies the member's process.
    pub owner: u16,
}

/// The members of a role.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    /// No member has joined yet.
    NoneYet,
    /// At least one member is alive.
    Alive,
    /// All members have left or died. `died` is whether at least one of them died.
    Gone { died: bool },
}

/// What a channel needs to know about the processes of its members.
pub trait Peers {
    /// Returns whether the process with this number has ended. May make a system call.
    fn is_dead(&self, owner: u16) -> bool;

    /// Returns whether the consumer's signal with this number is complete. A slot that the consumer
    /// released with this number is then free.
    fn is_complete(&self, consumer: MemberKey, number: u64) -> bool {
        let _ = (consumer, number);
        true
    }

    /// Returns whether the queue that writes the latest item of a slot has ended its work. Asked
    /// only for items that were published as unfinished.
    fn is_written(&self, slot: u16) -> bool {
        let _ = slot;
        true
    }

    /// Called before the calling thread sleeps, so that the caller can watch the processes of other
    /// members.
    fn before_sleep(&self) {}

    /// Returns whether the program has interrupted the calling thread. Called between two sleeps.
    fn is_interrupted(&self) -> bool {
        false
    }
}

impl<P: Platform> Member<P> {
    /// Returns the member that lives in the place.
    pub(super) fn key(&self, index: usize) -> Option<MemberKey> {
        let word = self.word.load(Ordering::SeqCst);
        matches!(word & STATE, JOINING | ALIVE).then_some(MemberKey {
            index: index as u8,
            generation: (word >> GENERATION_SHIFT) as u32,
            owner: (word >> OWNER_SHIFT) as u16,
        })
    }

    /// Returns whether the member has joined completely, so that its cursor is valid.
    pub(super) fn has_cursor(&self) -> bool {
        self.word.load(Ordering::SeqCst) & STATE == ALIVE
    }

    /// Completes the joining of a member.
    pub(super) fn set_alive(&self, key: MemberKey) {
        self.change(key, JOINING, ALIVE);
    }

    /// Ends a life of the member. Returns whether this call ended it.
    fn end(&self, key: MemberKey, state: u64) -> bool {
        self.change(key, ALIVE, state) || self.change(key, JOINING, state)
    }

    fn change(&self, key: MemberKey, from: u64, to: u64) -> bool {
        let (from, to) = (key.word(from), key.word(to));
        self.word
            .compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed)
            .is_ok()
    }

    /// Takes the place for a new member if no living member has it.
    fn take(&self, index: usize, owner: u16, peers: &dyn Peers) -> Option<MemberKey> {
        if let Some(key) = self.key(index) {
            if !peers.is_dead(key.owner) {
                return None;
            }
            self.end(key, DEAD);
        }
        let word = self.word.load(Ordering::SeqCst);
        if matches!(word & STATE, JOINING | ALIVE) {
            return None;
        }
        let key = MemberKey {
            index: index as u8,
            generation: ((word >> GENERATION_SHIFT) as u32).wrapping_add(1),
            owner,
        };
        self.word
            .compare_exchange(word, key.word(JOINING), Ordering::SeqCst, Ordering::Relaxed)
            .ok()?;
        Some(key)
    }
}

impl MemberKey {
    fn word(self, state: u64) -> u64 {
        u64::from(self.generation) << GENERATION_SHIFT
            | u64::from(self.owner) << OWNER_SHIFT
            | state
    }
}

impl<P: Platform> Channel<'_, P> {
    /// Finds a place for a member whose process has this number.
    pub(super) fn join(
        members: &[Member<P>],
        owner: u16,
        peers: &dyn Peers,
    ) -> Result<MemberKey, ChannelError> {
        let mut places = members.iter().enumerate();
        places
            .find_map(|(index, member)| member.take(index, owner, peers))
            .ok_or(ChannelError::NoPlace)
    }

    /// Ends the membership of a producer. Its reserved slots become free.
    pub fn remove_producer(&self, key: MemberKey) {
        self.end(self.producers, key, LEFT);
    }

    /// Ends the membership of a consumer. The slots that it holds become free.
    pub fn remove_consumer(&self, key: MemberKey) {
        self.end(self.consumers, key, LEFT);
    }

    /// Makes a consumer that receives no more items, so that producers no longer wait for it. It
    /// still holds its slots.
    pub fn retire_consumer(&self, key: MemberKey) {
        let Some(member) = self.consumers.get(usize::from(key.index)) else {
            return;
        };
        // Producers treat it like a consumer that has not joined completely.
        if member.change(key, ALIVE, JOINING) {
            waiting::nudge::<P>(&member.cursor);
        }
    }

    /// Ends the memberships of dead processes. Returns whether there were any.
    pub fn remove_dead(&self, peers: &dyn Peers) -> bool {
        let mut found = false;
        for members in [self.producers, self.consumers] {
            for (index, member) in members.iter().enumerate() {
                if let Some(key) = member.key(index).filter(|key| peers.is_dead(key.owner)) {
                    self.end(members, key, DEAD);
                    found = true;
                }
            }
        }
        found
    }

    /// Returns the living producers.
    pub fn living_producers(&self) -> impl Iterator<Item = MemberKey> {
        Self::living(self.producers)
    }

    /// Returns the living consumers.
    pub fn living_consumers(&self) -> impl Iterator<Item = MemberKey> {
        Self::living(self.consumers)
    }

    fn living(members: &[Member<P>]) -> impl Iterator<Item = MemberKey> {
        let members = members.iter().enumerate();
        members.filter_map(|(index, member)| member.key(index))
    }

    /// Returns which producers the channel has or had.
    pub fn producers(&self) -> Presence {
        Self::presence(self.producers)
    }

    /// Returns which consumers the channel has or had.
    pub fn consumers(&self) -> Presence {
        Self::presence(self.consumers)
    }

    fn presence(members: &[Member<P>]) -> Presence {
        let mut presence = Presence::NoneYet;
        for member in members {
            let died = match member.word.load(Ordering::SeqCst) & STATE {
                JOINING | ALIVE => return Presence::Alive,
                LEFT => false,
                DEAD => true,
                _ => continue,
            };
            let died = died || presence == Presence::Gone { died: true };
            presence = Presence::Gone { died };
        }
        presence
    }

    /// Ends a membership, and wakes the members that may wait for it.
    fn end(&self, members: &[Member<P>], key: MemberKey, state: u64) {
        let Some(member) = members.get(usize::from(key.index)) else {
            return;
        };
        if !member.end(key, state) {
            return;
        }
        // Consumers wait for the next item. Producers wait for this cursor, or for the head, which
        // a consumer may have advanced without waking them.
        waiting::nudge::<P>(self.position(self.published()));
        waiting::nudge::<P>(&member.cursor);
        waiting::nudge::<P>(&self.head.head);
    }

    /// Returns the writer of a slot if it is alive.
    pub(super) fn living_writer(&self, writer: (usize, u8)) -> Option<MemberKey> {
        let (index, generation) = writer;
        let key = self.producers.get(index)?.key(index)?;
        (key.generation as u8 == generation).then_some(key)
    }
}
