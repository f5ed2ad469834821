//! The event protocol on a slot of any words: operations of several processes, some of which are killed
//! at any step, and of their devices, while a hostile process writes to the slot between any two steps.
//!
//! The library's own files run here on a platform that counts steps. What must hold, whatever is written:
//! nothing panics; every operation ends within a number of steps; a wait with a deadline ends by then;
//! waiters of another event, and its orphans, get what is theirs; the slot beside stays as it is. On
//! an event that nobody has tampered with, also: nothing unfinished counts as finished, nothing
//! that was completed counts as failed, and numbers never go back.

#![no_main]

#[path = "../../crates/crosshandle/src/event_protocol/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the library uses all of it")]
mod event_protocol;
#[path = "arena/input.rs"]
mod input;
#[path = "arena/platform.rs"]
mod platform;
#[path = "arena/processes.rs"]
mod processes;
#[path = "arena/writes.rs"]
mod writes;

use event_protocol::Slot;
use input::Input;
use libfuzzer_sys::fuzz_target;
use processes::World;
use writes::{Writes, fill, snapshot};

/// Most operations of one input.
const OPERATIONS: usize = 48;

thread_local! {
    /// The event under test, another event, and the slot beside.
    static SLOTS: &'static [Slot; 3] = Box::leak(Box::new([Slot::new(), Slot::new(), Slot::new()]));
    /// The words of the slot beside.
    static BESIDE: [u64; Slot::FIELDS] = SLOTS.with(|[_, _, beside]| snapshot(beside));
}

fuzz_target!(|data: &[u8]| {
    let [slot, other, beside] = SLOTS.with(|slots| *slots);
    let mut input = Input::new(data);
    platform::restart();
    other.reset();
    let mode = input.byte();
    let writes = match mode & 1 {
        0 => None,
        _ => Some(Writes::read(&mut input, mode)),
    };
    fill(slot, &mut input, mode);
    let mut world = World::new(slot, other, writes, mode);
    for _ in 0..OPERATIONS {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
    }
    world.end();
    // Now and then, because it takes as long as the rest.
    if data.len().is_multiple_of(16) {
        BESIDE.with(|before| assert_eq!(snapshot(beside), *before, "the slot beside was written"));
    }
});
