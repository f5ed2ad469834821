//! The journal: what is held, in a file that only the holder's user can read. A holder that begins where the one before
//! died together with its successor learns from it which names there were, what they needed, and which files their
//! memory was, so that nothing else can be brought back under them.

use super::state::{Holdings, Name, key_of};
use super::tuning::MAX_JOURNAL_BYTES;
use crate::error::Result;
use crate::ipc::broker::{FileId, HolderDirectory};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A name of which nobody has the memory but processes that have it open.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Lost {
    /// As it was, without handles for writing.
    pub(super) name: Name,
    /// Which file each part was, where that can be told.
    pub(super) files: Vec<Option<FileId>>,
}

#[derive(Serialize, Deserialize)]
struct Journal {
    /// Which run of the machine this is of: files have other numbers in the next one.
    boot: String,
    names: Vec<Lost>,
}

fn boot() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.map_or_else(|_| String::new(), |id| id.trim().to_owned())
}

impl Lost {
    fn of(name: &Name, holdings: &Holdings) -> Self {
        let mut name = name.clone();
        let file_of = |text: &str| {
            let handle = text.parse().ok()?;
            holdings.records().get(&key_of(&handle))?.memory.identity()
        };
        let files = name.parts.iter().map(|part| file_of(&part.read_only));
        let files = files.collect();
        for part in &mut name.parts {
            part.handle = None;
        }
        (name.writer, name.recovered) = (None, None);
        name.earlier.clear();
        Self { name, files }
    }
}

/// Writes down what is held, and what is lost.
pub(super) fn write(
    directory: &HolderDirectory,
    holdings: &Holdings,
    lost: &BTreeMap<String, Lost>,
) -> Result<()> {
    let held = (holdings.names().values()).map(|name| Lost::of(name, holdings));
    let journal = Journal {
        boot: boot(),
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
    let lost = journal.names.into_iter().filter(|lost| {
        lost.files.len() == lost.name.parts.len() && !holdings.names().contains_key(&lost.name.name)
    });
    lost.map(|lost| (lost.name.name.clone(), lost)).collect()
}
