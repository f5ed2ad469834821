//! The words by which the members of a channel find and signal each other: their cards, their
//! requests for signals, and the results that leaving producers record.

use super::ChannelControl;
use crate::platform::{AtomicU64, Ordering};
use crosshandle_events::channel::MemberKey;

/// Number of 64-bit words that a card has for the layer above.
pub const CARD_WORDS: usize = 32;

/// The two roles of members.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ChannelRole {
    Producer,
    Consumer,
}

/// The words of a member for the layer above.
#[repr(C, align(64))]
pub(super) struct Card {
    /// Generation of the member that wrote the card, with [`COMPLETE`], or 0 while it is written
    /// for the first time.
    stamp: AtomicU64,
    words: [AtomicU64; CARD_WORDS],
}

/// Bit of a stamp that says that the whole card is valid.
const COMPLETE: u64 = 1 << 32;

impl ChannelControl {
    pub(super) fn living(&self, role: ChannelRole) -> Box<dyn Iterator<Item = MemberKey> + '_> {
        match role {
            ChannelRole::Producer => Box::new(self.words.living_producers()),
            ChannelRole::Consumer => Box::new(self.words.living_consumers()),
        }
    }

    fn card(&self, role: ChannelRole, index: u8) -> Option<&Card> {
        let cards = match role {
            ChannelRole::Producer => self.producer_cards,
            ChannelRole::Consumer => self.consumer_cards,
        };
        cards.get(usize::from(index))
    }

    /// Writes the card of a member of this process. The member may write it again to add words that
    /// were 0. Other processes can read the other words meanwhile.
    pub fn write_card(&self, role: ChannelRole, key: MemberKey, words: &[u64; CARD_WORDS]) {
        let Some(card) = self.card(role, key.index) else {
            return;
        };
        let stamp = u64::from(key.generation) | COMPLETE;
        if card.stamp.load(Ordering::SeqCst) != stamp {
            card.stamp.store(0, Ordering::SeqCst);
        }
        for (place, word) in card.words.iter().zip(words) {
            place.store(*word, Ordering::Relaxed);
        }
        card.stamp.store(stamp, Ordering::SeqCst);
    }

    /// Returns the words of a member's card, or `None` if the member has not written them yet.
    pub fn read_card(&self, role: ChannelRole, key: MemberKey) -> Option<[u64; CARD_WORDS]> {
        let card = self.card(role, key.index)?;
        let stamp = u64::from(key.generation) | COMPLETE;
        if card.stamp.load(Ordering::SeqCst) != stamp {
            return None;
        }
        let words = std::array::from_fn(|index| card.words[index].load(Ordering::SeqCst));
        (card.stamp.load(Ordering::SeqCst) == stamp).then_some(words)
    }

    fn armed(&self, role: ChannelRole) -> &AtomicU64 {
        match role {
            ChannelRole::Producer => &self.armed.producers,
            ChannelRole::Consumer => &self.armed.consumers,
        }
    }

    /// Asks to be signalled when a member of this process may continue. The caller checks the
    /// channel afterwards, and sleeps only if nothing has changed.
    pub fn arm(&self, role: ChannelRole, key: MemberKey) {
        self.armed(role).fetch_or(1 << key.index, Ordering::SeqCst);
    }

    /// Reverts [`arm`](Self::arm).
    pub fn disarm(&self, role: ChannelRole, index: u8) {
        self.armed(role)
            .fetch_and(!(1_u64 << (index % 64)), Ordering::SeqCst);
    }

    /// Returns the members of a role that want to be signalled, one bit for each.
    #[inline]
    pub fn armed_members(&self, role: ChannelRole) -> u64 {
        self.armed(role).load(Ordering::SeqCst)
    }

    /// Returns the living member at this index.
    pub fn member(&self, role: ChannelRole, index: u8) -> Option<MemberKey> {
        self.living(role).find(|key| key.index == index)
    }

    /// Records that the commands of the latest item in a slot have ended, although its producer
    /// leaves. `number` is the item's number.
    pub fn settle(&self, slot: u16, number: u64, has_failed: bool) {
        let Some(settled) = self.settled.get(usize::from(slot)) else {
            return;
        };
        let before = settled.load(Ordering::SeqCst);
        // The slot keeps this item as long as a consumer may ask for it. If it already has another
        // item, a later producer may have settled that one, and the exchange fails.
        if self.words.latest_in(slot) == Some(number) {
            let after = settled_word(number, has_failed);
            let _ = settled.compare_exchange(before, after, Ordering::SeqCst, Ordering::Relaxed);
        }
    }

    /// Returns whether the commands of item `number` in a slot have failed, or `None` if its
    /// producer has not [settled](Self::settle) it.
    pub fn settled(&self, slot: u16, number: u64) -> Option<bool> {
        let settled = self.settled.get(usize::from(slot))?.load(Ordering::SeqCst);
        let mut outcomes = [false, true].into_iter();
        outcomes.find(|has_failed| settled == settled_word(number, *has_failed))
    }
}

/// Returns the value of a settled word for an item. Not 0, which stands for no item.
fn settled_word(number: u64, has_failed: bool) -> u64 {
    const NUMBER_BITS: u32 = 48;
    ((number & ((1 << NUMBER_BITS) - 1)) + 1) << 1 | u64::from(has_failed)
}
