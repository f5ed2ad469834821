//! Runs the event protocol on a slot that contains any words. Several processes and their devices
//! operate on the slot, and some processes are killed at any step. A hostile process writes to the
//! slot between any two steps.
//!
//! The protocol runs here on a platform that counts steps. These rules hold whatever the hostile
//! process writes:
//!
//! - Nothing panics.
//! - Every operation ends within a number of steps, and a wait with a deadline ends at its
//!   deadline.
//! - Waiters of another event and that event's orphans are served.
//! - The neighbouring slot stays unchanged.
//!
//! For an event that no process tampers with, these rules hold as well:
//!
//! - No pending signal is reported as complete, and no completed signal as failed.
//! - Signal numbers never decrease.

#![no_main]

#[path = "arena/input.rs"]
mod input;
#[path = "arena/platform.rs"]
mod platform;
#[path = "arena/processes.rs"]
mod processes;
#[path = "arena/writes.rs"]
mod writes;

use input::Input;
use libfuzzer_sys::fuzz_target;
use processes::World;
use writes::{Writes, fill, snapshot};

type Slot = crosshandle_events::Slot<platform::Steps>;

/// Maximum number of operations of one input.
const OPERATIONS: usize = 48;

thread_local! {
    /// The event under test, another event, and the neighbouring slot.
    static SLOTS: &'static [Slot; 3] = Box::leak(Box::new([Slot::new(), Slot::new(), Slot::new()]));
    /// The words of the neighbouring slot at the start.
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
    // Checked only for some inputs, because it takes as long as the rest.
    if data.len().is_multiple_of(16) {
        BESIDE.with(|before| {
            assert_eq!(
                snapshot(beside),
                *before,
                "the neighbouring slot was written"
            )
        });
    }
});
