//! Explanations of handles, for people and for JSON.

use std::fmt;

use super::wire::VERSION;
use super::{Fields, HandleKind};

/// The contents of a handle in words, without its key.
///
/// All fields are strings and numbers, so an explanation is easily printed as JSON. `Display`
/// writes aligned lines of text, without a line break at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// Kind of the object: `memory`, `physical memory`, `event` or `channel`.
    pub kind: &'static str,
    /// Version of the handle's format.
    pub version: u8,
    /// Size of the handle itself in bytes.
    pub handle_size: usize,
    /// Backend of the object: `host`, `cuda` or `level_zero`.
    pub backend: &'static str,
    /// UUID of the device; `None` for an event.
    pub device: Option<String>,
    /// Identity of the exporter's kernel, as 16 hexadecimal digits. Changes with each boot.
    pub host: String,
    /// Whether the exporter's kernel is the one that runs here. `None` if either kernel is unknown.
    pub same_host: Option<bool>,
    /// Random identity of the exporting process, as 16 hexadecimal digits.
    pub exporter: String,
    /// The exporter's process id in its own PID namespace.
    pub exporter_pid: u32,
    /// Number of the exporting context in its process.
    pub context: u32,
    /// Index of the object's record in its context.
    pub record: u32,
    /// Generation of the record. A handle of an older generation is stale.
    pub generation: u64,
    /// Range of memory that the handle shares; `None` for an event.
    pub memory: Option<SharedRange>,
    /// Conditions for opening the handle, one sentence each.
    pub opening: Vec<String>,
}

/// The range of memory that a handle shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedRange {
    /// Number of the segment in the exporting context.
    pub segment: u32,
    /// Offset of the first shared byte from the segment's start, in bytes.
    pub offset: u64,
    /// Number of shared bytes.
    pub length: u64,
    /// Whether the importer can only read the memory.
    pub read_only: bool,
}

impl Explanation {
    pub(super) fn new(kind: HandleKind, fields: &Fields, local_host: Option<u64>) -> Self {
        // A process without `/proc` does not know its host, and uses 1 instead.
        let known = local_host.filter(|local| *local != 1 && fields.host != 1);
        let same_host = known.map(|local| local == fields.host);
        let is_memory = kind != HandleKind::Event;
        let memory = is_memory.then_some(SharedRange {
            segment: fields.segment,
            offset: fields.offset,
            length: fields.length,
            read_only: fields.read_only,
        });
        Self {
            kind: kind.name(),
            version: VERSION,
            handle_size: kind.size(),
            backend: fields.backend.name(),
            device: is_memory.then(|| fields.device.to_string()),
            host: format!("{:016x}", fields.host),
            same_host,
            exporter: format!("{:016x}", fields.exporter),
            exporter_pid: fields.pid,
            context: fields.context,
            record: fields.record,
            generation: fields.generation,
            memory,
            opening: opening(kind, fields, same_host),
        }
    }
}

/// Returns the conditions for opening a handle, one sentence each.
fn opening(kind: HandleKind, fields: &Fields, same_host: Option<bool>) -> Vec<String> {
    let machine = match same_host {
        Some(true) => "It can be opened on this machine, until the next boot.",
        Some(false) => "It cannot be opened here: it comes from another machine or boot.",
        None => "It can be opened only on the machine that it comes from, until its next boot.",
    };
    let object = match kind {
        HandleKind::Event => "event",
        HandleKind::Channel => "channel",
        HandleKind::Memory | HandleKind::PhysicalMemory => "memory",
    };
    let context = match kind {
        HandleKind::Event => "The importer's context may be of any backend.".to_owned(),
        _ => format!(
            "The importer's context must be of the backend \"{}\" and contain the device.",
            fields.backend
        ),
    };
    vec![
        machine.to_owned(),
        format!(
            "Process {} must still run and hold the {object}. An open {object} stays usable afterwards.",
            fields.pid
        ),
        "The importer must be the same user, unless the exporter admits others, and must reach \
         the exporter's socket directory."
            .to_owned(),
        context,
    ]
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const WIDTH: usize = 10;
        let host = match self.same_host {
            Some(true) => "this machine",
            Some(false) => "another machine, or an earlier boot of this one",
            None => "a machine",
        };
        let (kind, version, size) = (self.kind, self.version, self.handle_size);
        writeln!(
            f,
            "{:WIDTH$}{kind}, format version {version}, {size} bytes",
            "kind"
        )?;
        writeln!(f, "{:WIDTH$}{}", "backend", self.backend)?;
        if let Some(device) = &self.device {
            writeln!(f, "{:WIDTH$}{device}", "device")?;
        }
        writeln!(f, "{:WIDTH$}{host}, id {}", "host", self.host)?;
        writeln!(
            f,
            "{:WIDTH$}process {}, id {}, context {}",
            "exporter", self.exporter_pid, self.exporter, self.context
        )?;
        if let Some(range) = &self.memory {
            let access = if range.read_only {
                "read only"
            } else {
                "read and write"
            };
            writeln!(
                f,
                "{:WIDTH$}{} bytes at offset {} of segment {}",
                "shares", range.length, range.offset, range.segment
            )?;
            writeln!(f, "{:WIDTH$}{access}", "access")?;
        }
        writeln!(
            f,
            "{:WIDTH$}{}, generation {}",
            "record", self.record, self.generation
        )?;
        for (index, sentence) in self.opening.iter().enumerate() {
            let (label, line_break) = if index == 0 {
                ("opening", "")
            } else {
                ("", "\n")
            };
            write!(f, "{line_break}{label:WIDTH$}{sentence}")?;
        }
        Ok(())
    }
}
