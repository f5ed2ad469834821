//! The journal: what is held, in a file that only the holder's user can read. A holder that begins where the one before
//! died together with its successor learns from it which names there were, what they needed, and which files their
//! memory was, so that nothing else can be brought back under them.

use super::identity::Maker;
use super::segment::HeldSegment;
use super::state::{Holdings, Name, Record, key_of};
use super::tuning::MAX_JOURNAL_BYTES;
use crate::error::Result;
use crate::handle::MemoryHandle;
use crate::ipc::broker::{FileId, HolderDirectory};
use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A name of which nobody has the memory but processes that have it open.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Lost {
    /// As it was, without handles for writing.
    pub(super) name: Name,
    /// What the memory of each part was.
    pub(super) parts: Vec<LostPart>,
}

/// What the memory of a part was.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct LostPart {
    memory: Memory,
    /// Who has made it: nobody else may answer under that one's name before it is back.
    pub(super) maker: Maker,
}

/// What tells memory from other memory.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Memory {
    /// Which file it is, where that can be told.
    file: Option<FileId>,
    len: u64,
    /// What a driver needs to know of it beside the descriptor: which part of the file it is, among others.
    note: String,
}

impl Memory {
    fn of(segment: &HeldSegment) -> Self {
        Self {
            file: segment.identity(),
            len: segment.len,
            note: HEXLOWER.encode(segment.note.as_bytes()),
        }
    }
}

impl LostPart {
    fn of(record: &Record) -> Self {
        Self {
            memory: Memory::of(&record.memory),
            maker: record.maker,
        }
    }

    /// Returns whether it can be told that memory is the same.
    pub(super) fn is_told(&self) -> bool {
        self.memory.file.is_some()
    }

    /// Returns whether memory is the same, as far as that can be told.
    pub(super) fn may_be(&self, segment: &HeldSegment) -> bool {
        self.memory == Memory::of(segment)
    }
}

#[derive(Serialize, Deserialize)]
struct Journal {
    /// Which run of the machine this is of: files have other numbers in the next one.
    boot: String,
    /// In which PID namespace makers have their numbers.
    pids: String,
    names: Vec<Lost>,
}

fn boot() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.map_or_else(|_| String::new(), |id| id.trim().to_owned())
}

/// Returns what tells this process's PID namespace from others; nothing if that cannot be told.
fn pids() -> String {
    let namespace = std::fs::read_link("/proc/self/ns/pid");
    namespace.map_or_else(
        |_| String::new(),
        |namespace| namespace.to_string_lossy().into_owned(),
    )
}

impl Lost {
    /// Returns a name as it will be when its memory is gone; `None` if some of that is not here.
    fn of(name: &Name, holdings: &Holdings) -> Option<Self> {
        let mut name = name.clone();
        let part_of = |text: &str| {
            let handle = text.parse().ok()?;
            let record = holdings.records().get(&key_of(&handle))?;
            Some(LostPart::of(record))
        };
        let parts = name.parts.iter().map(|part| part_of(&part.read_only));
        let parts = parts.collect::<Option<_>>()?;
        for part in &mut name.parts {
            part.handle = None;
        }
        (name.writer, name.recovered) = (None, None);
        name.earlier.clear();
        Some(Self { name, parts })
    }

    /// Returns the handle of each part, and what its memory was.
    pub(super) fn handles(&self) -> impl Iterator<Item = (MemoryHandle, &LostPart)> {
        let parts = self.name.parts.iter().zip(&self.parts);
        parts.filter_map(|(part, was)| Some((part.read_only.parse().ok()?, was)))
    }
}

/// Writes down what is held, and what is lost.
pub(super) fn write(
    directory: &HolderDirectory,
    holdings: &Holdings,
    lost: &BTreeMap<String, Lost>,
) -> Result<()> {
    let held = (holdings.names().values()).filter_map(|name| Lost::of(name, holdings));
    let journal = Journal {
        boot: boot(),
        pids: pids(),
        names: held.chain(lost.values().cloned()).collect(),
    };
    directory.write_journal(&serde_json::to_vec(&journal).expect("plain data"))
}

/// Reads what was held in a directory but for what is held now. A journal that makes no sense says nothing.
pub(super) fn read(directory: &HolderDirectory, holdings: &Holdings) -> BTreeMap<String, Lost> {
    let bytes = directory.journal(MAX_JOURNAL_BYTES);
    let journal = bytes.and_then(|bytes| serde_json::from_slice::<Journal>(&bytes).ok());
    let Some(journal) =
        journal.filter(|journal| !journal.boot.is_empty() && journal.boot == boot())
    else {
        return BTreeMap::new();
    };
    let knows_pids = !journal.pids.is_empty() && journal.pids == pids();
    let lost = journal.names.into_iter().filter(|lost| {
        lost.parts.len() == lost.name.parts.len() && !holdings.names().contains_key(&lost.name.name)
    });
    lost.map(|mut lost| {
        for part in lost.parts.iter_mut().filter(|_| !knows_pids) {
            part.maker.process = None;
        }
        (lost.name.name.clone(), lost)
    })
    .collect()
}
