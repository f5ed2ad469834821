//! The layout of an event in shared memory.
//!
//! A slot is six cache lines of 64 bytes. `issued` and the completion words fill the first line,
//! which is usually the only line that a signal writes. Word *i* of an array belongs to the numbers
//! *n* with `n mod 7 = i`. The module documentation explains the roles (submitter, signaller,
//! waiter …).
//!
//! The fields hold, by bits:
//!
//! - `issued`, the latest number. Submitters and immediate signallers write it, and all roles read
//!   it.
//!   - 0–11: owner that took the number, or 0 with `COMPLETE`. Survivors and submitters read it.
//!   - 12, `COMPLETE`: every signal up to the number is complete. Immediate signallers set it, and
//!     submitters clear it.
//!   - 13, `WATCHED`: a waiter sleeps, or a device waits, until a number not yet taken. Waiters and
//!     submitters of device waits set it, and submitters keep it. Immediate signallers clear it,
//!     and set it again if a sleeper or a device wait is left.
//!   - 14–63: number of the latest signal.
//! - `words[i]`, a completion word.
//!   - 0–30: number of sleepers, which are waiters in a futex on the upper half. Waiters change it,
//!     and each completion sets it to 0. Signallers and survivors read it to wake the sleepers.
//!   - 31, `FAILED`: a signal failed, or a survivor finished it. Signallers and survivors set it,
//!     and a device never changes it. Waiters that see it consult `failed_from` and `failed_to`.
//!   - 32–63: lower half of the latest number that finished on this word. Signallers, survivors and
//!     devices write it, and devices write only these bits. Waiters, devices, survivors and
//!     submitters read it.
//! - `signaller_cpu`: CPU of the latest host signaller plus 1, or 0 if there was none. Host
//!   signallers write it. Waiters read it to decide whether to spin.
//! - `flags`, most of which are set once.
//!   - 0, `DEVICE_SIGNALS`: devices signal the event. Submitters of device signals set it. Waiters
//!     then sleep in steps, and signallers maintain `finished`.
//!   - 1, `MAY_FAIL`: signals may fail although no process dies. Submitters set it, and submitters
//!     of dependent commands read it.
//!   - 2, `MIRROR_REQUESTED`: a queue prefers to wait for the driver's own event. Submitters of
//!     device waits set it, and signallers read it.
//!   - 3, `SINGLE_SIGNALLER`: only device code of the event's creator signals. The creator sets it,
//!     keeps numbers taken ahead, and all other submitters are refused.
//!   - 4–15, `LATEST_DEATH`: latest owner that ended with the event open, or 0 if none did. The
//!     exporter writes it, and waiters for numbers not yet taken read it.
//!   - 16, `ALONE`: only one process has the event open, and no other can open it. The exporter
//!     sets it, and that process's waiters read it.
//!   - 24–31, `REVOCATION`: number of revocations of the native mirror times 2, which wraps. It is
//!     odd during a revocation. Processes that revoke write it, and submitters of device waits read
//!     it.
//! - `finished[i]`: a number of the word that has certainly finished. It only grows, and is
//!   maintained only with `DEVICE_SIGNALS`. Signallers, survivors, and queues that find a device's
//!   signal done write it. Survivors read it.
//! - `failed_from[i]`: first number of the latest range of failed signals, or 0 if there is none.
//!   Signallers and survivors write it before the word, and waiters read it.
//! - `failed_to[i]`, the end of that range. It is written and read like `failed_from`.
//!   - 0–11: owner that died, if that is the reason, or 0 if it is unknown. Only survivors write
//!     it.
//!   - 12–13: reason ([`FailureReason`]).
//!   - 14–63: last number of the range.
//! - `max_device_wait`: greatest number that a device waits for and that was not yet taken then, or
//!   0 if there is none. Submitters of device waits write it, and immediate signallers read it.
//! - `mirror`, the state of the native mirror.
//!   - 0–49: latest number that the mirror was signalled for, or 0 if it is unknown. Queues that
//!     signal the mirror and processes that revoke write it. Queues that wait for the mirror read
//!     it.
//!   - 50: a signal of the mirror is being submitted to the driver. Queues that signal the mirror
//!     write it, and all queues read it.
//!   - 51–58: number of waits that are being submitted to the driver. Queues that wait write it,
//!     and queues that signal read it.
//! - `runs[j]`, laid out like `issued`: last number and owner of a run of numbers that one owner
//!   took, or 0 if it is unused. Submitters that follow another owner write it, and survivors read
//!   it.

use crate::platform::{Atomic, Ordering, Platform};

/// Number of completion words in a slot. With `issued` they fill one cache line.
pub const RING: u64 = 7;
/// Number of changes of owner that a slot can hold while signals before them are unfinished.
pub(super) const RUNS: usize = 16;
/// Number of bits of `issued` and of a run that hold the owner.
const OWNER_BITS: u32 = 12;
/// Bit of `issued` which means that every signal up to its number is complete.
pub(super) const COMPLETE: u64 = 1 << OWNER_BITS;
/// Bit of `issued` which means that a waiter sleeps, or a device waits, until a number not yet
/// taken.
pub(super) const WATCHED: u64 = 1 << (OWNER_BITS + 1);
const NUMBER_SHIFT: u32 = OWNER_BITS + 2;
/// The greatest signal number.
pub(super) const MAX_NUMBER: u64 = (1 << (64 - NUMBER_SHIFT)) - 1;

/// Maximum distance of a number from the oldest unfinished number. A word may lag by two of these
/// and a few numbers more, and only lower halves within 2³¹ of each other compare correctly.
pub const WINDOW: u64 = 1 << 29;

/// Bit of `flags` which means that devices signal the event.
pub(super) const DEVICE_SIGNALS: u32 = 1;
/// Bit of `flags` which means that a command that calls the host signals the event, and may fail.
pub(super) const MAY_FAIL: u32 = 1 << 1;
/// Bit of `flags` which means that a queue prefers to wait for the driver's own event.
pub(super) const MIRROR_REQUESTED: u32 = 1 << 2;
/// Bit of `flags` which means that only device code of the event's creator signals.
pub(super) const SINGLE_SIGNALLER: u32 = 1 << 3;
/// Lowest bit in `flags` of the latest owner that ended with the event open.
pub(super) const LATEST_DEATH_SHIFT: u32 = 4;
/// Bits of `flags` that hold that owner.
pub(super) const LATEST_DEATH: u32 = (Owner::MAX as u32) << LATEST_DEATH_SHIFT;
/// Bit of `flags` which means that only one process has the event open, and no other can open it.
pub(super) const ALONE: u32 = 1 << 16;
/// Lowest bit of the revocation count in `flags`. Every revocation of the native mirror raises the
/// count by two. The count wraps.
pub(super) const REVOCATION: u32 = 1 << 24;

/// Bit of a completion word which means that a signal failed. `failed_from` and `failed_to` say
/// which signals failed and why.
pub(super) const FAILED: u64 = 1 << 31;
/// Bits of a completion word that count sleepers.
pub(super) const SLEEPERS: u64 = FAILED - 1;

/// The number of a process that is attached to an arena. Its signals carry the number, which is
/// never zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Owner(u16);

impl Owner {
    /// The process that created the arena.
    pub const EXPORTER: Self = Self(1);
    /// The greatest owner, which is also the maximum number of processes attached to one arena.
    pub const MAX: u16 = (1 << OWNER_BITS) - 1;

    /// Makes an owner from its number. Returns `None` if `raw` is out of range.
    #[inline]
    pub fn new(raw: u16) -> Option<Self> {
        (1..=Self::MAX).contains(&raw).then_some(Self(raw))
    }

    /// Returns the owner as a number.
    #[inline]
    pub fn get(self) -> u16 {
        self.0
    }
}

/// A decoded value of `issued` or of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Issued(pub(super) u64);

impl Issued {
    /// Makes the value for a `number` that `owner` took and that is not known to be finished.
    #[inline]
    pub(super) fn pending(number: u64, owner: Owner) -> Self {
        Self(number << NUMBER_SHIFT | u64::from(owner.0))
    }

    /// Makes the value for `number` with every signal up to it complete.
    #[inline]
    pub(super) fn complete(number: u64) -> Self {
        Self(number << NUMBER_SHIFT | COMPLETE)
    }

    /// Returns the number of the latest signal.
    #[inline]
    pub(super) fn number(self) -> u64 {
        self.0 >> NUMBER_SHIFT
    }

    /// Returns the owner that took the number. The result is meaningless if the value is complete.
    #[inline]
    pub(super) fn owner(self) -> u16 {
        (self.0 & u64::from(Owner::MAX)) as u16
    }

    /// Returns whether all signals up to the number are certainly complete.
    #[inline]
    pub(super) fn is_complete(self) -> bool {
        self.0 & COMPLETE != 0
    }

    /// Returns whether a waiter sleeps, or a device waits, until a number not yet taken.
    #[inline]
    pub(super) fn is_watched(self) -> bool {
        self.0 & WATCHED != 0
    }
}

/// The reason for a signal's failure, as recorded in shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FailureReason {
    /// The process that submitted the signal ended before the signal completed. The owner is `None`
    /// if shared memory names none, which only a hostile peer can cause.
    OwnerDied(Option<Owner>),
    /// The command that should have signalled reported an error.
    CommandFailed,
}

impl FailureReason {
    const OWNER_DIED: u64 = 1;
    const COMMAND_FAILED: u64 = 2;

    #[inline]
    fn bits(self) -> u64 {
        match self {
            Self::OwnerDied(owner) => {
                Self::OWNER_DIED << OWNER_BITS | owner.map_or(0, |owner| u64::from(owner.0))
            }
            Self::CommandFailed => Self::COMMAND_FAILED << OWNER_BITS,
        }
    }
}

/// A decoded value of `failed_to`. A hostile peer may have written any value, and an unknown reason
/// is treated as a death.
#[derive(Clone, Copy)]
pub(super) struct FailedTo(pub(super) u64);

impl FailedTo {
    #[inline]
    pub(super) fn new(last: u64, reason: FailureReason) -> Self {
        Self(last << NUMBER_SHIFT | reason.bits())
    }

    /// Returns the last number of the range; 0 if there is none.
    #[inline]
    pub(super) fn last(self) -> u64 {
        self.0 >> NUMBER_SHIFT
    }

    /// Returns the reason for the latest failures of the range.
    #[inline]
    pub(super) fn reason(self) -> FailureReason {
        match self.0 >> OWNER_BITS & 3 {
            FailureReason::COMMAND_FAILED => FailureReason::CommandFailed,
            _ => FailureReason::OwnerDied(Owner::new((self.0 & u64::from(Owner::MAX)) as u16)),
        }
    }
}

/// An event in shared memory.
///
/// Every field is atomic, and every bit pattern is a valid value. A hostile peer can make an
/// event's state meaningless, but reading it stays sound. The list at the top of this file
/// explains the bits.
#[repr(C, align(128))]
pub struct Slot<P: Platform> {
    // A signal touches only `issued` and `words`, which share one cache line.
    pub(super) issued: P::AtomicU64,
    pub(super) words: [P::AtomicU64; RING as usize],

    // These fields are not on the first line. They are written only when the signaller migrates.
    pub(super) signaller_cpu: P::AtomicU32,
    pub(super) flags: P::AtomicU32,
    /// See [`record_finished`](Slot::record_finished).
    pub(super) finished: [P::AtomicU64; RING as usize],

    /// Together with `failed_to`, one range of failed signals for each word. Both values only grow,
    /// so a late survivor undoes nothing. A failure after a success starts a new range, and the
    /// earlier range is forgotten.
    pub(super) failed_from: [P::AtomicU64; RING as usize],
    pub(super) max_device_wait: P::AtomicU64,
    pub(super) failed_to: [P::AtomicU64; RING as usize],
    /// See `native_mirror.rs`.
    pub(super) mirror: P::AtomicU64,

    /// Ends of runs. The run that ended with `number` is at `number mod 16`, or at the next index
    /// whose record no unfinished signal needs.
    pub(super) runs: [P::AtomicU64; RUNS],
}

impl<P: Platform> Slot<P> {
    /// Makes the slot of a new event, which is complete at number 0.
    pub fn new() -> Self {
        let slot = Self {
            issued: Atomic::new(0),
            words: std::array::from_fn(|_| Atomic::new(0)),
            signaller_cpu: Atomic::new(0),
            flags: Atomic::new(0),
            finished: std::array::from_fn(|_| Atomic::new(0)),
            failed_from: std::array::from_fn(|_| Atomic::new(0)),
            max_device_wait: Atomic::new(0),
            failed_to: std::array::from_fn(|_| Atomic::new(0)),
            mirror: Atomic::new(0),
            runs: std::array::from_fn(|_| Atomic::new(0)),
        };
        slot.reset();
        slot
    }

    /// Makes this slot a new event. The caller ensures that no other thread or process uses the
    /// slot.
    pub fn reset(&self) {
        // The words become exact when the first number is taken.
        self.issued.store(Issued::complete(0).0, Ordering::Relaxed);
        for (index, word) in self.words.iter().enumerate() {
            let before = last_of_word(index as u64, 0);
            word.store(u64::from(before as u32) << 32, Ordering::Relaxed);
        }
        self.signaller_cpu.store(0, Ordering::Relaxed);
        self.flags.store(0, Ordering::Relaxed);
        self.max_device_wait.store(0, Ordering::Relaxed);
        self.mirror.store(0, Ordering::Relaxed);
        let records = self.failed_from.iter().chain(&self.failed_to);
        for record in records.chain(&self.finished) {
            record.store(0, Ordering::Relaxed);
        }
        for run in &self.runs {
            run.store(0, Ordering::Relaxed);
        }
    }

    /// Changes one of the slot's fields, including the 32-bit fields, as a hostile process may do.
    #[cfg(any(test, feature = "testing"))]
    pub fn overwrite(&self, field: usize, change: impl FnOnce(u64) -> u64) {
        let words = [&self.issued, &self.max_device_wait, &self.mirror].into_iter();
        let arrays = [
            &self.words,
            &self.finished,
            &self.failed_from,
            &self.failed_to,
        ];
        let mut fields = words.chain(arrays.into_iter().flatten()).chain(&self.runs);
        match fields.nth(field) {
            Some(word) => word.store(change(word.load(Ordering::SeqCst)), Ordering::SeqCst),
            None => {
                let half = if field.is_multiple_of(2) {
                    &self.flags
                } else {
                    &self.signaller_cpu
                };
                let value = change(half.load(Ordering::SeqCst).into());
                half.store(value as u32, Ordering::SeqCst);
            }
        }
    }

    /// Number of fields that [`overwrite`](Self::overwrite) can change.
    #[cfg(any(test, feature = "testing"))]
    pub const FIELDS: usize = 5 + 4 * RING as usize + RUNS;

    /// Returns the number of the latest signal, as programs see it. Numbers that are taken ahead
    /// for device code are not submitted yet.
    pub fn submitted(&self) -> u64 {
        match self.is_single_signaller() {
            true => self.completed(),
            false => self.issued(),
        }
    }

    pub(super) fn load_issued(&self) -> Issued {
        Issued(self.issued.load(Ordering::Acquire))
    }

    /// Returns the number of the latest signal that was submitted.
    pub fn issued(&self) -> u64 {
        self.load_issued().number()
    }

    /// Returns the completion word that belongs to a number.
    pub(super) fn word(&self, number: u64) -> &P::AtomicU64 {
        &self.words[(number % RING) as usize]
    }

    /// Returns the greatest number up to which all signals have finished.
    pub fn completed(&self) -> u64 {
        // `issued` is read first. By the time the words are read, they can only have advanced.
        let issued = self.load_issued();
        if issued.is_complete() {
            return issued.number();
        }
        let number = issued.number();
        let oldest_pending = self
            .words
            .iter()
            .map(|word| full_number(word.load(Ordering::Acquire), number) + RING as i64)
            .min()
            .unwrap_or(0);
        number.min((oldest_pending - 1).max(0) as u64)
    }
}

/// Returns the upper half of a completion word, which holds the lower 32 bits of its number.
#[inline]
pub(super) fn sequence(word: u64) -> u32 {
    (word >> 32) as u32
}

/// Returns whether a word at `sequence` has reached `number`. The result is correct only if the
/// word's number is within 2³¹ of `number`.
#[inline]
pub(super) fn reached(sequence: u32, number: u64) -> bool {
    sequence.wrapping_sub(number as u32) as i32 >= 0
}

/// Returns the full number of a completion word, given a recent number of `issued`. The result is
/// negative if no signal has used the word. A word may be ahead of an earlier reading of `issued`.
#[inline]
pub(super) fn full_number(word: u64, issued: u64) -> i64 {
    let ahead = sequence(word).wrapping_sub(issued as u32) as i32;
    (issued as i64).wrapping_add(i64::from(ahead))
}

/// Returns the last number up to `issued` that belongs to word `index`. The result is negative
/// before the word's first number.
#[inline]
pub(super) fn last_of_word(index: u64, issued: u64) -> i64 {
    let issued = issued as i64;
    issued - (issued - index as i64).rem_euclid(RING as i64)
}
