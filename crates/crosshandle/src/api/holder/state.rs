//! What a holder has: memory under its makers' records, and names for it. The holder and its successor
//! have the same.

use super::message::{Entry, Hold, Part, Tokens};
use super::tuning::MAX_HELD_CONTEXTS;
use crate::error::{Error, Result};
use crate::handle::{BackendKind, Fields, MemoryHandle};
use crate::ipc::broker::protocol::BackendBlob;
use crate::ipc::broker::{Fetched, HolderDirectory, PeerPolicy, Route};
use crate::ipc::{
    Attachment, Credential, Deadline, Exporter, First, HeldMemory, Label, Origin, Particulars,
    Shared,
};
use crate::os::descriptor::{self, FileKind};
use crate::os::memfd;
use crate::threads::disposer::Disposal;
use crate::types::Access;
use crate::types::report::ObjectKind;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};

/// The context of another process: its exporter and its number there.
pub(super) type ContextKey = (u64, u32);
/// A record's key.
pub(super) type RecordKey = [u8; 16];

/// A record and what it stands for, as it is fetched from its maker or passed on to a successor.
pub(super) struct Record {
    pub(super) handle: MemoryHandle,
    pub(super) device: String,
    pub(super) kind: ObjectKind,
    /// What reports call it.
    pub(super) name: String,
    pub(super) memory: Arc<HeldSegment>,
    /// The number of names that need it.
    pub(super) names: usize,
}

/// Memory that a process keeps by its descriptor alone.
pub(super) struct HeldSegment {
    pub(super) file: Arc<OwnedFd>,
    /// A descriptor for reading only, made when it is needed.
    read_only: OnceLock<Arc<OwnedFd>>,
    pub(super) len: u64,
    pub(super) note: BackendBlob,
    /// Dropped after the descriptor, which a peer sent.
    _disposal: Option<Disposal>,
}

impl HeldSegment {
    pub(super) fn new(file: Arc<OwnedFd>, len: u64, note: BackendBlob) -> Self {
        Self {
            file,
            read_only: OnceLock::new(),
            len,
            note,
            _disposal: None,
        }
    }
}

impl Shared for HeldSegment {
    fn len(&self) -> usize {
        self.len as usize
    }

    fn descriptor(&self, access: Access) -> Result<Arc<OwnedFd>> {
        if access == Access::ReadWrite || !memfd::is_memory(&self.file) {
            return Ok(Arc::clone(&self.file));
        }
        if let Some(file) = self.read_only.get() {
            return Ok(Arc::clone(file));
        }
        let file = memfd::reopen_read_only(self.file.as_fd())
            .map_err(Error::os("making a read-only descriptor"))?;
        Ok(Arc::clone(self.read_only.get_or_init(|| Arc::new(file))))
    }

    fn note(&self) -> BackendBlob {
        self.note
    }
}

/// Asks a handle's maker for the memory, as an importer does. Waits until the deadline.
pub(super) fn fetch(
    handle: &MemoryHandle,
    origin: &Origin,
    deadline: &Deadline,
) -> Result<Arc<HeldSegment>> {
    let fields = handle.fields();
    let access = match fields.read_only {
        true => Access::ReadOnly,
        false => Access::ReadWrite,
    };
    let attachment = Attachment::to(
        &fields,
        Route::Exporter,
        origin,
        First::Memory(access),
        deadline,
    )?;
    let Fetched {
        file,
        segment: _,
        len,
        note,
        disposal,
    } = attachment.fetch(&fields, access, deadline)?;
    let memory = HeldSegment {
        file,
        read_only: OnceLock::new(),
        len,
        note,
        _disposal: disposal,
    };
    if fields.offset != 0 || fields.length > len {
        return Err(Error::invalid(
            "only memory that has its segment alone can be held, and this one begins within one",
        ));
    }
    check(&memory, fields.backend)?;
    Ok(memory.into())
}

/// Refuses what does not keep its memory, or could not be given to importers.
fn check(memory: &HeldSegment, backend: BackendKind) -> Result<()> {
    let not_memory = || Error::Protocol("its descriptor is of no memory that outlives it");
    if memfd::is_memory(&memory.file) {
        let looked = memfd::check(&memory.file).map_err(Error::os("looking at memory"))?;
        // A driver's legacy handle comes in a file of its own, which is shorter.
        return match looked == (memory.len, true) {
            true => Ok(()),
            false => Err(Error::Unsupported(
                "this memory ends with its maker, so it cannot be held: allocate it with crosshandle \
                 or with the driver's virtual memory management"
                    .into(),
            )),
        };
    }
    if backend == BackendKind::Host {
        return Err(not_memory());
    }
    match descriptor::kind(&memory.file) {
        Ok(FileKind::Stream) | Err(_) => Err(not_memory()),
        Ok(_) => Ok(()),
    }
}

/// A context of another process, as far as it was handed over.
struct HeldContext {
    exporter: Arc<Exporter>,
    records: usize,
}

/// A name and what it stands for.
#[derive(Clone, serde::Serialize, serde::Deserialize)]
pub(super) struct Name {
    pub(super) name: String,
    pub(super) version: u64,
    pub(super) label: String,
    pub(super) pinned: bool,
    pub(super) created_unix_s: u64,
    pub(super) tokens: Tokens,
    pub(super) parts: Vec<Part>,
}

impl Name {
    pub(super) fn new(hold: Hold, version: u64, created_unix_s: u64) -> Self {
        Self {
            name: hold.name,
            version,
            label: hold.label,
            pinned: false,
            created_unix_s,
            tokens: hold.tokens,
            parts: hold.parts,
        }
    }

    /// Returns what is told of the name: with handles for reading, or for writing too, or without.
    pub(super) fn tell(&self, handles: Option<Access>) -> Entry {
        let part = |part: &Part| Part {
            handle: match handles {
                Some(Access::ReadWrite) => part.handle.clone(),
                _ => None,
            },
            read_only: match handles {
                Some(_) => part.read_only.clone(),
                None => String::new(),
            },
            ..part.clone()
        };
        Entry {
            name: self.name.clone(),
            version: self.version,
            label: self.label.clone(),
            pinned: self.pinned,
            created_unix_s: self.created_unix_s,
            has_tokens: self.tokens.has_some(),
            parts: self.parts.iter().map(part).collect(),
        }
    }

    /// Returns the bytes of its parts, as their maker said.
    pub(super) fn bytes(&self) -> u64 {
        let parts = self.parts.iter().map(|part| part.bytes);
        parts.fold(0, u64::saturating_add)
    }

    /// Returns the handles of all records that the name needs.
    pub(super) fn handles(&self) -> impl Iterator<Item = MemoryHandle> {
        self.parts.iter().flat_map(|part| {
            // They were read when they were handed over.
            let (handle, read_only) = part.handles().ok().unzip();
            handle.flatten().into_iter().chain(read_only)
        })
    }
}

/// Everything that is held.
pub(super) struct Holdings {
    policy: PeerPolicy,
    contexts: BTreeMap<ContextKey, HeldContext>,
    records: BTreeMap<RecordKey, Record>,
    names: BTreeMap<String, Name>,
}

/// Returns the key of a handle's record.
pub(super) fn key_of(handle: &MemoryHandle) -> RecordKey {
    *handle.fields().key.as_bytes()
}

fn context_of(fields: &Fields) -> ContextKey {
    (fields.exporter, fields.context)
}

impl Holdings {
    pub(super) fn new(policy: PeerPolicy) -> Self {
        Self {
            policy,
            contexts: BTreeMap::new(),
            records: BTreeMap::new(),
            names: BTreeMap::new(),
        }
    }

    pub(super) fn names(&self) -> &BTreeMap<String, Name> {
        &self.names
    }

    pub(super) fn records(&self) -> &BTreeMap<RecordKey, Record> {
        &self.records
    }

    /// Returns the bytes that are held, each once.
    pub(super) fn bytes(&self) -> u64 {
        let names = self.names.values().map(Name::bytes);
        names.fold(0, u64::saturating_add)
    }

    /// Answers for a record from now on. One that is here already stays.
    pub(super) fn add_record(&mut self, record: Record) -> Result<()> {
        let fields = record.handle.fields();
        let key = key_of(&record.handle);
        if let Some(known) = self.records.get(&key) {
            return match known.handle == record.handle {
                true => Ok(()),
                false => Err(Error::invalid(
                    "the handle of another object has the same key",
                )),
            };
        }
        let contexts = self.contexts.len();
        let context = match self.contexts.entry(context_of(&fields)) {
            std::collections::btree_map::Entry::Occupied(found) => found.into_mut(),
            std::collections::btree_map::Entry::Vacant(_) if contexts >= MAX_HELD_CONTEXTS => {
                return Err(Error::LimitReached {
                    what: format!("memory of {contexts} contexts is held"),
                    remedy: "remove names (crosshandle rm), or hand over memory of fewer contexts"
                        .into(),
                });
            }
            std::collections::btree_map::Entry::Vacant(vacant) => {
                let label = Label {
                    name: Some(format!("held for {:016x}", fields.exporter)),
                    device: record.device.clone(),
                    backend: fields.backend.to_string(),
                };
                let policy = self.policy.clone();
                let exporter = Exporter::of_another(fields.context, label, policy)?;
                vacant.insert(HeldContext {
                    exporter,
                    records: 0,
                })
            }
        };
        let access = match fields.read_only {
            true => Access::ReadOnly,
            false => Access::ReadWrite,
        };
        let memory = HeldMemory {
            object: Arc::clone(&record.memory) as _,
            segment: fields.segment,
            access,
            particulars: Particulars {
                kind: record.kind,
                len: fields.length,
                // Both records of one allocation have this in common.
                allocation: fields.segment as usize,
            },
        };
        context
            .exporter
            .hold(Credential::of(&fields), memory, &record.name)?;
        context.records += 1;
        self.records.insert(key, record);
        Ok(())
    }

    /// Answers for a record no more. Returns its exporter if nothing of that one is held any more.
    pub(super) fn remove_record(&mut self, key: &RecordKey) -> Option<u64> {
        let record = self.records.remove(key)?;
        let fields = record.handle.fields();
        let context_key = context_of(&fields);
        let context = self.contexts.get_mut(&context_key)?;
        context.exporter.release_held(Credential::of(&fields));
        context.records -= 1;
        if context.records == 0 {
            self.contexts.remove(&context_key);
        }
        let is_last = !self.contexts.keys().any(|(of, _)| *of == fields.exporter);
        is_last.then_some(fields.exporter)
    }

    /// Lets go of all records that no name needs.
    pub(super) fn remove_unnamed(&mut self) {
        let unnamed = self.records.iter().filter(|(_, record)| record.names == 0);
        for key in Vec::from_iter(unnamed.map(|(key, _)| *key)) {
            self.remove_record(&key);
        }
    }

    /// Puts a name, whose records are here, in the place of what has it. Returns the records that no name
    /// needs any more.
    pub(super) fn set_name(&mut self, name: Name) -> Vec<RecordKey> {
        for handle in name.handles() {
            if let Some(record) = self.records.get_mut(&key_of(&handle)) {
                record.names += 1;
            }
        }
        match self.names.insert(name.name.clone(), name) {
            Some(before) => self.unneeded_without(&before),
            None => Vec::new(),
        }
    }

    pub(super) fn name_mut(&mut self, name: &str) -> Option<&mut Name> {
        self.names.get_mut(name)
    }

    /// Removes a name. Returns the records that no name needs any more.
    pub(super) fn remove_name(&mut self, name: &str) -> Vec<RecordKey> {
        match self.names.remove(name) {
            Some(removed) => self.unneeded_without(&removed),
            None => Vec::new(),
        }
    }

    fn unneeded_without(&mut self, name: &Name) -> Vec<RecordKey> {
        let mut unneeded = Vec::new();
        for handle in name.handles() {
            let key = key_of(&handle);
            if let Some(record) = self.records.get_mut(&key) {
                record.names = record.names.saturating_sub(1);
                if record.names == 0 {
                    unneeded.push(key);
                }
            }
        }
        unneeded
    }

    /// Names the holder's socket for all exporters whose records are held.
    pub(super) fn answer_for_all(&self, directory: &HolderDirectory) -> Result<()> {
        let mut exporters: Vec<_> = self
            .contexts
            .keys()
            .map(|(exporter, _)| *exporter)
            .collect();
        exporters.dedup();
        exporters
            .into_iter()
            .try_for_each(|exporter| directory.answer_for(exporter))
    }
}
