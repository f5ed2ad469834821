//! The layout of an event in shared memory.

use crate::platform::{AtomicU32, AtomicU64, Ordering};

/// Completion words of a slot: with `issued` they fill one cache line.
pub(crate) const RING: u64 = 7;
/// Changes of owner that can be remembered while signals before them are unfinished.
pub(super) const RUNS: usize = 16;
/// Bits of `issued` and of a run that hold the owner.
const OWNER_BITS: u32 = 12;
/// Set in `issued` while every signal up to its number is complete.
pub(super) const COMPLETE: u64 = 1 << OWNER_BITS;
/// Set in `issued` while somebody sleeps until a number that has not been taken.
pub(super) const WATCHED: u64 = 1 << (OWNER_BITS + 1);
const NUMBER_SHIFT: u32 = OWNER_BITS + 2;
/// The greatest signal number.
pub(super) const MAX_NUMBER: u64 = (1 << (64 - NUMBER_SHIFT)) - 1;

/// How far ahead a signal may be of what is unfinished. A word may be left behind by two of these
/// and a few numbers more, and only lower halves within 2³¹ of each other compare rightly.
pub(super) const WINDOW: u64 = 1 << 29;

/// Set in `marks` once a device signals the event.
pub(super) const DEVICE_SIGNALS: u32 = 1;
/// Set in `marks` once a command that calls the host signals the event.
pub(super) const MAY_FAIL: u32 = 1 << 1;
/// Set in `marks` once a queue would rather have waited for the driver's own event.
pub(super) const DEVICE_WAITS: u32 = 1 << 2;
/// In `marks`: twice for each time that signals of the driver's own event were taken back. Wraps.
pub(super) const REVOKED: u32 = 1 << 24;

/// Set in a completion word whose signal failed; `failed_*` says which and why.
pub(super) const FAILED: u64 = 1 << 31;
/// The part of a completion word that counts sleepers.
pub(super) const SLEEPERS: u64 = FAILED - 1;

/// A process attached to an arena, as the signals it submits name it. Never zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Owner(u16);

impl Owner {
    /// The process that created the arena.
    pub(crate) const EXPORTER: Self = Self(1);
    /// The greatest owner: as many processes can be attached to one arena.
    pub(crate) const MAX: u16 = (1 << OWNER_BITS) - 1;

    /// `raw` as an owner, if it is one.
    pub(crate) fn new(raw: u16) -> Option<Self> {
        (1..=Self::MAX).contains(&raw).then_some(Self(raw))
    }

    /// The owner as a number.
    pub(crate) fn get(self) -> u16 {
        self.0
    }
}

/// `issued`, taken apart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Issued(pub(super) u64);

impl Issued {
    /// Number `number`, taken by `owner`.
    pub(super) fn pending(number: u64, owner: Owner) -> Self {
        Self(number << NUMBER_SHIFT | u64::from(owner.0))
    }

    /// Number `number`, and everything up to it complete.
    pub(super) fn complete(number: u64) -> Self {
        Self(number << NUMBER_SHIFT | COMPLETE)
    }

    /// The number of the latest signal.
    pub(super) fn number(self) -> u64 {
        self.0 >> NUMBER_SHIFT
    }

    /// Who took it; meaningless if complete.
    pub(super) fn owner(self) -> u16 {
        (self.0 & u64::from(Owner::MAX)) as u16
    }

    /// Whether all signals up to the number are complete for certain.
    pub(super) fn is_complete(self) -> bool {
        self.0 & COMPLETE != 0
    }

    pub(super) fn is_watched(self) -> bool {
        self.0 & WATCHED != 0
    }
}

/// Why a signal failed, as it stands in shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum FailureReason {
    /// The process that submitted it ended before it completed.
    OwnerDied = 1,
    /// The command that should have signalled reported an error.
    CommandFailed = 2,
}

impl FailureReason {
    /// Bits of `failed_to` that hold the reason, below the number.
    pub(crate) const BITS: u32 = 8;

    /// A stranger may have written any value; what is unknown counts as a death.
    pub(crate) fn from_bits(raw: u64) -> Self {
        match raw & 0xff {
            2 => Self::CommandFailed,
            _ => Self::OwnerDied,
        }
    }
}

/// One event in shared memory.
///
/// Every field is atomic and any bit pattern is a value, so a hostile peer can make an event
/// nonsense but not make reading it unsound.
#[repr(C, align(128))]
pub(crate) struct Slot {
    /// Everything that a signal touches: one cache line.
    pub(super) issued: AtomicU64,
    pub(super) words: [AtomicU64; RING as usize],

    /// The CPU that signalled last, plus one. On a line of its own, rewritten only when the
    /// signaller migrates.
    pub(super) signaller_cpu: AtomicU32,
    /// What else there is to know of who signals and who waits: bits that are only ever set, and a
    /// count above them.
    pub(super) marks: AtomicU32,
    /// For each word a number that it has reached for certain, if devices signal the event: see
    /// [`settle`](Slot::settle).
    pub(super) finished: [AtomicU64; RING as usize],

    /// For each word the last range of failed signals: first number, then last number and reason.
    /// Both only grow, so that a survivor that comes late undoes nothing. A failure behind a
    /// success starts a new range, and the one before is forgotten.
    pub(super) failed_from: [AtomicU64; RING as usize],
    /// The greatest number that a device was told to wait for before anybody took it.
    pub(super) armed: AtomicU64,
    pub(super) failed_to: [AtomicU64; RING as usize],
    /// What is known of the driver's own event that rides along: see `mirror`.
    pub(super) mirror: AtomicU64,

    /// Where runs of one owner ended, in the form of `issued`: at `number mod 16`, or at the next
    /// place that no unfinished signal needs.
    pub(super) runs: [AtomicU64; RUNS],
}

impl Slot {
    /// A slot as a fresh event has it: complete, at zero.
    #[allow(dead_code)] // Arenas are made of zeros and reset; the model checker needs values.
    pub(crate) fn new() -> Self {
        let slot = Self {
            issued: AtomicU64::new(0),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
            signaller_cpu: AtomicU32::new(0),
            marks: AtomicU32::new(0),
            finished: std::array::from_fn(|_| AtomicU64::new(0)),
            failed_from: std::array::from_fn(|_| AtomicU64::new(0)),
            armed: AtomicU64::new(0),
            failed_to: std::array::from_fn(|_| AtomicU64::new(0)),
            mirror: AtomicU64::new(0),
            runs: std::array::from_fn(|_| AtomicU64::new(0)),
        };
        slot.reset();
        slot
    }

    /// Makes this a fresh event. Only while nobody else can hold the slot.
    pub(crate) fn reset(&self) {
        // Complete at zero: the words are made exact when the first number is taken.
        self.issued.store(Issued::complete(0).0, Ordering::Relaxed);
        for (index, word) in self.words.iter().enumerate() {
            let before = last_of_word(index as u64, 0);
            word.store(u64::from(before as u32) << 32, Ordering::Relaxed);
        }
        self.signaller_cpu.store(0, Ordering::Relaxed);
        self.marks.store(0, Ordering::Relaxed);
        self.armed.store(0, Ordering::Relaxed);
        self.mirror.store(0, Ordering::Relaxed);
        let records = self.failed_from.iter().chain(&self.failed_to);
        for record in records.chain(&self.finished) {
            record.store(0, Ordering::Relaxed);
        }
        for run in &self.runs {
            run.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn load_issued(&self) -> Issued {
        Issued(self.issued.load(Ordering::Acquire))
    }

    /// The number of the latest signal that was submitted.
    pub(crate) fn issued(&self) -> u64 {
        self.load_issued().number()
    }

    pub(super) fn word(&self, number: u64) -> &AtomicU64 {
        &self.words[(number % RING) as usize]
    }

    /// The greatest number such that it and all before it have completed.
    pub(crate) fn completed(&self) -> u64 {
        // `issued` first: the words can only be further on by the time they are read.
        let issued = self.load_issued();
        if issued.is_complete() {
            return issued.number();
        }
        let number = issued.number();
        let oldest_pending = self
            .words
            .iter()
            .map(|word| at_number(word.load(Ordering::Acquire), number) + RING as i64)
            .min()
            .unwrap_or(0);
        number.min((oldest_pending - 1).max(0) as u64)
    }
}

/// The sequence half of a completion word.
pub(super) fn sequence(word: u64) -> u32 {
    (word >> 32) as u32
}

/// Whether a word at `sequence` has reached `number`. True only for numbers within 2³¹ of it.
pub(super) fn reached(sequence: u32, number: u64) -> bool {
    sequence.wrapping_sub(number as u32) as i32 >= 0
}

/// The full number that a completion word stands at, given a recent number of `issued`. Below
/// zero for a word that no signal has used. A word may be past a number that was read earlier.
pub(super) fn at_number(word: u64, issued: u64) -> i64 {
    let ahead = sequence(word).wrapping_sub(issued as u32) as i32;
    (issued as i64).wrapping_add(i64::from(ahead))
}

/// The last number up to `issued` that belongs to word `index`; below zero before its first.
pub(super) fn last_of_word(index: u64, issued: u64) -> i64 {
    let issued = issued as i64;
    issued - (issued - index as i64).rem_euclid(RING as i64)
}
