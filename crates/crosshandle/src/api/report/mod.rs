//! Who holds what: reports of the processes that export, and removal of what the dead left.
//!
//! Every exporting process of this crate answers on its socket when a process of the same user asks
//! what it shares. [`exporters`] asks all of them; `crosshandle ps` and `crosshandle top` show the
//! answers. A report contains no handle and no key: whoever reads one can open nothing with it.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! let directories = crosshandle::socket_directories();
//! for answer in crosshandle::report::exporters(&directories, Duration::from_secs(1)) {
//!     match answer {
//!         Ok(process) => println!("{} {}", process.pid, process.program),
//!         Err(silent) => eprintln!("{silent}"),
//!     }
//! }
//! ```
//!
//! # What can be relied on
//! A report is what its exporter says. Names and programs are text that any process that shares with
//! the exporter may have chosen: remove control characters before they reach a terminal. The numbers of
//! one report are read one after another while the process runs, so two of them may not fit together.
//! New fields may come; readers of the JSON should ignore what they don't know.

mod ask;
mod dead;
mod tuning;

pub use crate::types::report::{
    ContextReport, Counters, EventReport, ImporterReport, MemoryReport, ObjectAccess, ObjectKind,
    OpenedBy, ProcessReport, Totals, UnfinishedSignal, Waiter,
};
pub use ask::{Silent, SilentReason, exporters};
pub use dead::{DeadSocket, dead_sockets, remove_dead};
