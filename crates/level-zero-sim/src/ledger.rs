//! Counts of live objects and of calls, and the report about them.

use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::checks;
use crate::switches::switches;

macro_rules! resources {
    ($($resource:ident $name:literal,)*) => {
        /// A kind of object that the report counts.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum Resource {
            $($resource,)*
        }

        const NAMES: &[&str] = &[$($name,)*];
        static COUNTS: [Count; NAMES.len()] = [const { Count::new() }; NAMES.len()];
    };
}

resources! {
    Driver "drivers",
    Device "devices",
    Context "contexts",
    List "command-lists",
    Queue "command-queues",
    Memory "allocations",
    OpenedMemory "opened-allocations",
    Physical "physical-memory",
    Reservation "reservations",
    Mapping "mappings",
    Pool "event-pools",
    PooledEvent "pooled-events",
    CounterEvent "counter-events",
    OpenedEvent "opened-counter-events",
    Module "modules",
    BuildLog "build-logs",
    Kernel "kernels",
    Image "images",
    Sampler "samplers",
    Descriptor "exported-descriptors",
}

struct Count {
    live: AtomicU64,
    total: AtomicU64,
}

impl Count {
    const fn new() -> Self {
        Self {
            live: AtomicU64::new(0),
            total: AtomicU64::new(0),
        }
    }
}

pub(crate) fn add(resource: Resource) {
    let count = &COUNTS[resource as usize];
    count.live.fetch_add(1, Ordering::Relaxed);
    count.total.fetch_add(1, Ordering::Relaxed);
}

pub(crate) fn remove(resource: Resource) {
    COUNTS[resource as usize]
        .live
        .fetch_sub(1, Ordering::Relaxed);
}

type Function = (&'static str, &'static AtomicU64);
static FUNCTIONS: Mutex<Vec<Function>> = Mutex::new(Vec::new());

/// Adds a function to the report at its first call.
pub(crate) fn note_function(name: &'static str, calls: &'static AtomicU64) {
    if let Ok(mut functions) = FUNCTIONS.lock() {
        functions.push((name, calls));
    }
}

/// Returns the report, whose lines are `program ARGUMENT…`, `live NAME N of M created`,
/// `misuse CHECK N` and `calls FUNCTION N`.
pub(crate) fn report() -> String {
    let mut text = String::from("program");
    for argument in std::env::args_os() {
        let _ = write!(text, " {}", argument.display());
    }
    text.push('\n');
    for (name, count) in NAMES.iter().zip(&COUNTS) {
        let live = count.live.load(Ordering::Relaxed);
        let total = count.total.load(Ordering::Relaxed);
        let _ = writeln!(text, "live {name} {live} of {total} created");
    }
    for (check, count) in checks::found() {
        let _ = writeln!(text, "misuse {} {count}", check.name());
    }
    let mut functions = FUNCTIONS.lock().map(|f| f.clone()).unwrap_or_default();
    functions.sort_unstable_by_key(|(name, _)| *name);
    for (name, calls) in functions {
        let _ = writeln!(text, "calls {name} {}", calls.load(Ordering::Relaxed));
    }
    text
}

/// Writes the report to the file that the switch `REPORT` names. Each process has its own file.
pub(crate) fn write_report() {
    let Some(path) = &switches().report else {
        return;
    };
    let mut path = path.clone().into_os_string();
    path.push(format!(".{}", std::process::id()));
    let _ = std::fs::write(path, report());
}

/// Runs when the process exits normally or unloads the driver.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = {
    extern "C" fn at_exit() {
        let _ = std::panic::catch_unwind(write_report);
    }
    at_exit
};
