//! The writes of the hostile process, and the initial words of an event.

use crate::Slot;
use crate::input::Input;
use crate::platform;
use crosshandle_events::RING;
use std::rc::Rc;

/// Length of one write in the input, in bytes.
const BYTES: usize = 11;
/// Minimum number of steps between the writes of an endless attack. A process that writes between
/// every two steps would keep any lock-free loop running, but no real process stays that fast.
const PAUSE: u32 = 3;

/// A write between two steps of the others.
#[derive(Clone, Copy)]
struct Write {
    /// Number of the victims' steps after this write.
    pause: u32,
    field: usize,
    form: u8,
    value: u64,
}

impl Write {
    fn read(bytes: &[u8; BYTES]) -> Self {
        let [pause, field, form, value @ ..] = bytes;
        Self {
            pause: u32::from(*pause),
            field: usize::from(*field) % Slot::FIELDS,
            form: *form,
            value: u64::from_le_bytes(*value),
        }
    }

    fn apply(self, slot: &Slot) {
        let small = self.value % 64;
        slot.overwrite(self.field, |word| match self.form % 8 {
            0 => self.value,
            1 => word.wrapping_add(small),
            2 => word.wrapping_sub(small),
            3 => word ^ 1 << small,
            4 => word.wrapping_add(small << 14),
            5 => word.wrapping_add(small << 32),
            // A device writes in this way.
            6 => self.value << 32 | word & u64::from(u32::MAX),
            _ => word ^ self.value,
        });
    }
}

/// The writes of the hostile process.
#[derive(Clone)]
pub(crate) struct Writes {
    all: Rc<[Write]>,
    first: u32,
    /// Whether the writes repeat without end, during operations that must end in spite of them.
    never_end: bool,
}

impl Writes {
    pub(crate) fn read(input: &mut Input<'_>, mode: u8) -> Self {
        let count = usize::from(mode >> 4 & 7);
        let bytes = input.split_end(count * BYTES + 1);
        let (first, writes) = bytes.split_first().unwrap_or((&0, &[]));
        Self {
            all: writes.as_chunks().0.iter().map(Write::read).collect(),
            first: u32::from(*first),
            never_end: mode & 0x80 != 0,
        }
    }

    /// Starts the writes again. `must_end` says whether the operation must end whatever is written.
    pub(crate) fn start(&self, slot: &'static Slot, must_end: bool) {
        if self.all.is_empty() {
            return;
        }
        let (all, repeated) = (Rc::clone(&self.all), self.never_end && must_end);
        let mut next = 0;
        platform::attack(
            self.first,
            Box::new(move || {
                let write = all.get(next)?;
                write.apply(slot);
                next += 1;
                if repeated {
                    next %= all.len();
                }
                Some(write.pause.max(PAUSE * u32::from(repeated)))
            }),
        );
    }

    /// Applies one write between two operations.
    pub(crate) fn apply(&self, slot: &Slot, index: usize) {
        if !self.all.is_empty() {
            self.all[index % self.all.len()].apply(slot);
        }
    }
}

/// Fills a slot with a fresh event, an event that is complete at some number, or any words.
pub(crate) fn fill(slot: &Slot, input: &mut Input<'_>, mode: u8) {
    slot.reset();
    match mode >> 1 & 3 {
        0 => {}
        1 if mode & 1 == 1 => {
            for field in 0..Slot::FIELDS {
                let word = input.word();
                slot.overwrite(field, |_| word);
            }
        }
        _ => complete_at(slot, input.number(1 << 29) % (1 << 50)),
    }
}

/// Makes a slot complete at a number, as if all signals had completed at once.
fn complete_at(slot: &Slot, number: u64) {
    /// Index of the first completion word among the fields.
    const WORDS: usize = 3;
    const COMPLETE: u64 = 1 << 12;
    slot.overwrite(0, |_| number << 14 | COMPLETE);
    for index in 0..RING {
        let last = (number as i64) - (number as i64 - index as i64).rem_euclid(RING as i64);
        slot.overwrite(WORDS + index as usize, |_| u64::from(last as u32) << 32);
    }
}

pub(crate) fn snapshot(slot: &Slot) -> [u64; Slot::FIELDS] {
    std::array::from_fn(|field| {
        let mut found = 0;
        slot.overwrite(field, |word| {
            found = word;
            word
        });
        found
    })
}
