//! What a report of an exporting process says. The field names are those of the JSON.

use super::{Access, MemoryKind};
use serde::{Deserialize, Serialize};

/// One exporting process and what it shares.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ProcessReport {
    /// The process id, in the process's own PID namespace.
    pub pid: u32,
    /// The name of the program.
    pub program: String,
    /// The random number that names the process in its handles, as 16 hexadecimal digits.
    pub exporter: String,
    /// When the process began to export, in seconds since 1970.
    pub started_unix_s: u64,
    /// When the report was made, in nanoseconds of the machine's monotonic clock. The difference of
    /// two reports' times and counters gives rates.
    pub taken_ns: u64,
    /// Connections that the process turned away before they named a context: strangers, other
    /// versions, other users.
    pub refusals: u64,
    /// The contexts that have exported something. Limited in number.
    pub contexts: Vec<ContextReport>,
}

/// One exporting context.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ContextReport {
    /// The context's number in its process.
    pub number: u32,
    /// The name that the program gave the context.
    pub name: Option<String>,
    /// The device, as `crosshandle devices` lists it.
    pub device: String,
    /// The backend: `host`, `cuda`, `level_zero`.
    pub backend: String,
    /// Shared memory and shared physical memory. Limited in number: see [`Totals`].
    pub memory: Vec<MemoryReport>,
    /// Shared events. Limited in number: see [`Totals`]. Events with waiters come first.
    pub events: Vec<EventReport>,
    /// The processes that are attached.
    pub importers: Vec<ImporterReport>,
    /// Everything that the context shares, listed above or not.
    pub totals: Totals,
    /// What has happened so far.
    pub counters: Counters,
}

/// Everything that a context shares. A report lists only so many objects one by one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Totals {
    /// Shared allocations, those of physical memory included.
    pub memory: u64,
    /// Bytes of the shared allocations.
    pub memory_bytes: u64,
    /// Shared events.
    pub events: u64,
}

/// One record of shared memory. Memory that is shared both read-only and for writing has two.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct MemoryReport {
    /// The number of the record.
    pub record: u32,
    /// The name that the program gave the memory.
    pub name: Option<String>,
    /// The kind of the memory.
    pub kind: ObjectKind,
    /// The length in bytes.
    pub bytes: u64,
    /// What the record's handles allow.
    pub access: ObjectAccess,
    /// Whether the exporter has freed the memory, and importers keep it.
    pub freed: bool,
    /// Who has it open. Limited in number.
    pub opened_by: Vec<OpenedBy>,
}

/// The kind of a shared allocation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ObjectKind {
    /// Memory on the device.
    #[default]
    Device,
    /// Memory on the host.
    Host,
    /// Memory that moves between device and host.
    Shared,
    /// Physical memory, which has no address of its own.
    Physical,
}

impl From<MemoryKind> for ObjectKind {
    fn from(kind: MemoryKind) -> Self {
        match kind {
            MemoryKind::Device => Self::Device,
            MemoryKind::Host => Self::Host,
            MemoryKind::Shared => Self::Shared,
        }
    }
}

/// What a record's handles allow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ObjectAccess {
    /// Reading only.
    #[default]
    ReadOnly,
    /// Reading and writing.
    ReadWrite,
}

impl From<Access> for ObjectAccess {
    fn from(access: Access) -> Self {
        match access {
            Access::ReadOnly => Self::ReadOnly,
            Access::ReadWrite => Self::ReadWrite,
        }
    }
}

/// An importer that has an object open.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct OpenedBy {
    /// The importer's number in the context: [`ImporterReport::owner`].
    pub owner: u16,
    /// How often the importer has the object open.
    pub times: u64,
}

/// One shared event.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct EventReport {
    /// The number of the record.
    pub record: u32,
    /// The name that the program gave the event.
    pub name: Option<String>,
    /// The number of the signal that was submitted last; 0 if there was none.
    pub submitted: u64,
    /// The greatest number up to which all signals are complete.
    pub completed: u64,
    /// The first signals that were submitted and are not complete, in the order of their numbers, and
    /// who submitted them. Limited in number: a waiter has [its own](Waiter::culprit).
    pub unfinished: Vec<UnfinishedSignal>,
    /// The threads that sleep until a signal of this event is complete. Limited in number.
    pub waiters: Vec<Waiter>,
    /// Who has it open. Limited in number.
    pub opened_by: Vec<OpenedBy>,
}

/// A signal that was submitted and is not complete.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct UnfinishedSignal {
    /// The number of the signal.
    pub number: u64,
    /// The submitter's number in the context; 1 is the exporter itself.
    pub owner: u16,
    /// The submitter's process id in the exporter's PID namespace; 0 if it has none there.
    pub pid: u32,
    /// The name of the submitter's program.
    pub program: String,
}

/// A thread that sleeps until a signal is complete.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Waiter {
    /// The number in the context of the process that waits; 1 is the exporter itself.
    pub owner: u16,
    /// The id of the process that waits, in the exporter's PID namespace; 0 if it has none there.
    pub pid: u32,
    /// The name of the program that waits.
    pub program: String,
    /// The id of the thread, in its own PID namespace.
    pub thread: u32,
    /// The number of the signal that the thread waits for.
    pub number: u64,
    /// How long the thread had been waiting when the report was made, in nanoseconds.
    pub waiting_ns: u64,
    /// The signal whose end the thread waits for: the awaited one, or an earlier one that must be
    /// complete before it. `None` if nobody has submitted the awaited signal, or if it is complete.
    pub culprit: Option<UnfinishedSignal>,
}

/// A process that is attached to a context.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ImporterReport {
    /// The importer's number in the context.
    pub owner: u16,
    /// The process id in the exporter's PID namespace; 0 if it has none there.
    pub pid: u32,
    /// The name of the program.
    pub program: String,
    /// The user id that the kernel reports.
    pub user: u32,
    /// When the process attached, in seconds since 1970.
    pub attached_unix_s: u64,
    /// The objects that the process has open, each record counted once. In a context that shares very
    /// many, not all are looked at.
    pub objects: u64,
    /// Bytes of the memory among them.
    pub bytes: u64,
}

/// What has happened in a context since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Counters {
    /// Bytes that commands of this context's queues copied, and commands of its importers from or to
    /// memory that they have open.
    pub copied_bytes: u64,
    /// Signals that were submitted to this context's shared events, by whichever process.
    pub signals: u64,
    /// Requests of importers that were answered with an object.
    pub opens: u64,
    /// Importers that attached.
    pub attaches: u64,
    /// Requests that were refused.
    pub refusals: u64,
    /// Importers that ended without closing what they had open.
    pub deaths: u64,
}
