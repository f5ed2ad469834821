//! What the event protocol needs of the machine. The model checkers bring their own version.

#[cfg(fault_steps)]
pub use crosshandle_os::fault_steps::{AtomicU32, AtomicU64, sleep, sleep_any, wake_all};
#[cfg(not(fault_steps))]
pub use crosshandle_os::futex::{sleep, sleep_any, wake_all};
pub use crosshandle_os::process::current_cpu;
pub use crosshandle_os::sleepers::{Awaited, enter};
pub use std::hint::spin_loop as spin_hint;
pub use std::sync::atomic::Ordering;
#[cfg(not(fault_steps))]
pub use std::sync::atomic::{AtomicU32, AtomicU64};
pub use std::time::Instant;

/// Whether spinning makes sense on this machine.
pub const MAY_SPIN: bool = true;
