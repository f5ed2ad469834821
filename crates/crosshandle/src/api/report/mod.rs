//! Reports of exporting processes, and removal of the sockets that killed processes left behind.
//!
//! Every process that exports with this crate replies on its socket when a process of the same user
//! requests a report. The report lists the objects that the process shares. [`exporters`] requests
//! a report from each such process. `crosshandle ps` and `crosshandle top` show the reports. A
//! report contains no handle and no key, so its readers cannot open anything with it.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! let directories = crosshandle::report::socket_directories();
//! for answer in crosshandle::report::exporters(&directories, Duration::from_secs(1)) {
//!     match answer {
//!         Ok(process) => println!("{} {}", process.pid, process.program),
//!         Err(silent) => eprintln!("{silent}"),
//!     }
//! }
//! ```
//!
//! # Limits of a report
//! The contents of a report are claims of its exporter. Names of objects and programs may be chosen
//! by any process that shares with the exporter, so remove control characters before printing them
//! to a terminal.
//!
//! The numbers in a report are read one after another while the process runs, so two of them may be
//! inconsistent. Later versions may add fields. Readers of the JSON should ignore unknown fields.

mod ask;
mod dead;

pub use ask::{Silent, SilentReason, exporters};
pub use crosshandle_ipc::broker::{SOCKET_DIR_VARIABLE, socket_directories};
pub use crosshandle_os::cgroup::{MemoryLimit, memory_limit};
pub use crosshandle_os::process::host_identity;
pub use crosshandle_types::report::{
    ChannelReport, ContextReport, Counters, EventReport, ImporterReport, MemoryReport,
    ObjectAccess, ObjectKind, OpenedBy, ProcessReport, Totals, UnfinishedSignal, Waiter,
};
pub use dead::{DeadSocket, dead_sockets, remove_dead};
