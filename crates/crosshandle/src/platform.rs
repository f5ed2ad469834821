//! What the event protocol needs of the machine. The model checkers bring their own version.

#[cfg(fault_steps)]
pub(crate) use crate::os::fault_steps::{AtomicU32, AtomicU64, sleep, sleep_any, wake_all};
#[cfg(not(fault_steps))]
pub(crate) use crate::os::futex::{sleep, sleep_any, wake_all};
pub(crate) use crate::os::process::current_cpu;
pub(crate) use crate::os::sleepers::{Awaited, enter};
pub(crate) use std::hint::spin_loop as spin_hint;
pub(crate) use std::sync::atomic::Ordering;
#[cfg(not(fault_steps))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64};
pub(crate) use std::time::Instant;

/// Whether spinning makes sense on this machine.
pub(crate) const MAY_SPIN: bool = true;
