//! Reports about an exporting process. The field names are those of the JSON output.

use super::{Access, MemoryKind};
use serde::{Deserialize, Serialize};

/// One exporting process and what it shares.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessReport {
    /// The process id in the PID namespace of the process itself.
    pub pid: u32,
    /// The name of the program.
    pub program: String,
    /// The random number that identifies the process in its handles, as 16 hexadecimal digits.
    pub exporter: String,
    /// When the process began to export, in seconds since 1970.
    pub started_unix_s: u64,
    /// When the report was made, in nanoseconds of the machine's monotonic clock. Two reports of a
    /// process give rates: divide the difference of a counter by the difference of the times.
    pub taken_ns: u64,
    /// Number of connections that the process rejected before they named a context, such as
    /// connections of other users or other protocol versions.
    pub refusals: u64,
    /// The contexts that have exported something. The report may omit some of them.
    pub contexts: Vec<ContextReport>,
    /// The channels that the process has open. The report may omit some of them.
    pub channels: Vec<ChannelReport>,
}

/// One open channel. All processes that have a channel open report the same state.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ChannelReport {
    /// The number that identifies the channel on this machine, as 16 hexadecimal digits.
    pub channel: String,
    /// The name that the program gave the channel. Only the process that created it knows the name.
    pub name: Option<String>,
    /// Number of items that can wait to be received.
    pub depth: u32,
    /// Number of items that were published so far.
    pub published: u64,
    /// Number of living producers.
    pub producers: u64,
    /// Number of living consumers.
    pub consumers: u64,
}

/// One exporting context.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ContextReport {
    /// The context's number in its process.
    pub number: u32,
    /// The name that the program gave the context.
    pub name: Option<String>,
    /// The device, as `crosshandle devices` lists it.
    pub device: String,
    /// The backend: `host`, `cuda`, `level_zero`.
    pub backend: String,
    /// Shared memory and shared physical memory. The report may omit some of it; [`Totals`] counts
    /// all of it.
    pub memory: Vec<MemoryReport>,
    /// Shared events. The report may omit some of them; [`Totals`] counts all of them. Events with
    /// waiters come first.
    pub events: Vec<EventReport>,
    /// The processes that are attached to the context.
    pub importers: Vec<ImporterReport>,
    /// Totals over everything that the context shares, whether the report lists it or not.
    pub totals: Totals,
    /// Counts of what has happened in the context since its creation.
    pub counters: Counters,
}

/// Totals over everything that a context shares. They include objects that the report does not
/// list.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// Number of shared allocations, including physical memory.
    pub memory: u64,
    /// Total size of the shared allocations, in bytes.
    pub memory_bytes: u64,
    /// Number of shared events.
    pub events: u64,
}

/// A record of shared memory. Memory that is shared both read-only and for writing has two records.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryReport {
    /// The number of the record.
    pub record: u32,
    /// The name that the program gave the memory.
    pub name: Option<String>,
    /// The kind of the memory.
    pub kind: ObjectKind,
    /// The length in bytes.
    pub bytes: u64,
    /// The access that the record's handles allow.
    pub access: ObjectAccess,
    /// Whether the exporter has freed the memory while importers still have it open.
    pub freed: bool,
    /// The importers that have the memory open. The report may omit some of them.
    pub opened_by: Vec<OpenedBy>,
}

/// The kind of a shared allocation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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

/// The access that a record's handles allow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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
pub struct OpenedBy {
    /// The importer's number in the context: [`ImporterReport::owner`].
    pub owner: u16,
    /// Number of times that the importer has the object open.
    pub times: u64,
}

/// One shared event.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct EventReport {
    /// The number of the record.
    pub record: u32,
    /// The name that the program gave the event.
    pub name: Option<String>,
    /// The number of the latest submitted signal, or 0 if there is none.
    pub submitted: u64,
    /// The highest number up to which all signals are complete.
    pub completed: u64,
    /// The first signals that were submitted but are not complete, in the order of their numbers.
    /// The report may omit some of them, but each [waiter](Waiter::culprit) names the signal that
    /// delays it.
    pub unfinished: Vec<UnfinishedSignal>,
    /// The threads that sleep until a signal of this event is complete. The report may omit some of
    /// them.
    pub waiters: Vec<Waiter>,
    /// The importers that have the event open. The report may omit some of them.
    pub opened_by: Vec<OpenedBy>,
}

/// A signal that was submitted but is not complete.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct UnfinishedSignal {
    /// The number of the signal.
    pub number: u64,
    /// The submitter's number in the context. The exporter itself has number 1.
    pub owner: u16,
    /// The submitter's process id in the exporter's PID namespace, or 0 if it has none there.
    pub pid: u32,
    /// The name of the submitter's program.
    pub program: String,
}

/// A thread that sleeps until a signal is complete.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Waiter {
    /// The number of the waiting process in the context. The exporter itself has number 1.
    pub owner: u16,
    /// The id of the waiting process in the exporter's PID namespace, or 0 if it has none there.
    pub pid: u32,
    /// The name of the waiting program.
    pub program: String,
    /// The id of the thread in the PID namespace of its process.
    pub thread: u32,
    /// The number of the signal that the thread waits for.
    pub number: u64,
    /// How long the thread had been waiting when the report was made, in nanoseconds.
    pub waiting_ns: u64,
    /// The unfinished signal that delays the thread. It is the awaited signal itself, or an earlier
    /// signal that must complete first. `None` if the awaited signal is not submitted yet or is
    /// complete.
    pub culprit: Option<UnfinishedSignal>,
}

/// A process that is attached to a context.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ImporterReport {
    /// The importer's number in the context.
    pub owner: u16,
    /// The process id in the exporter's PID namespace, or 0 if it has none there.
    pub pid: u32,
    /// The name of the program.
    pub program: String,
    /// The user id that the kernel reports.
    pub user: u32,
    /// When the process attached, in seconds since 1970.
    pub attached_unix_s: u64,
    /// Number of records that the process has open. If the context shares very many objects, some
    /// are not counted.
    pub objects: u64,
    /// Total size of the memory among these objects, in bytes.
    pub bytes: u64,
}

/// Counts of what has happened in a context since its creation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Number of bytes copied by commands of this context's queues, and by importers' commands from
    /// or to memory of this context that they have open.
    pub copied_bytes: u64,
    /// Number of signals that any process submitted to this context's shared events.
    pub signals: u64,
    /// Number of importers' requests that were answered with an object.
    pub opens: u64,
    /// Number of importers that attached.
    pub attaches: u64,
    /// Number of requests that were refused.
    pub refusals: u64,
    /// Number of importers that ended without closing the objects that they had open.
    pub deaths: u64,
}
