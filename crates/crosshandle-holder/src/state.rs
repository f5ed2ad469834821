//! The holdings of a holder: memory under the records of its exporters, and names of that memory.
//! The holder and its successor have the same holdings.

use super::identity::{Asker, Maker, ProcessIdentity, Status};
use super::message::{HeldName, HeldPart, Hold, Recovered, Tokens, total};
use super::proof::MAX_EARLIER_WRITERS;
use super::proof::Writer;
use super::segment::HeldSegment;
use crosshandle_handle::{Fields, Key, MemoryHandle};
use crosshandle_ipc::broker::{HolderDirectory, PeerPolicy};
use crosshandle_ipc::{Credential, Exporter, HeldMemory, Label, Particulars};
use crosshandle_types::Access;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::report::ObjectKind;
use std::collections::btree_map::Entry as ContextEntry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, OnceLock, Weak};

/// Size of everything that is kept for a part of a name, in bytes: its handles, its record and its
/// line in the journal.
const PART_BYTES: usize = 2048;

/// Identifies a context of another process, by its exporter and its number there.
pub(super) type ContextKey = (u64, u32);
/// The key of a record.
pub(super) type RecordKey = [u8; 16];

/// A record and its memory, fetched from the exporter or received from a holder.
pub(super) struct Record {
    pub(super) handle: MemoryHandle,
    pub(super) device: String,
    pub(super) kind: ObjectKind,
    /// The name of the record in reports.
    pub(super) name: String,
    pub(super) memory: Arc<HeldSegment>,
    /// The process that exported it.
    pub(super) maker: Maker,
    /// The names that need the record.
    pub(super) names: BTreeSet<String>,
}

/// A context of another process, with those of its records that are held.
struct HeldContext {
    exporter: Arc<Exporter>,
    /// The process that owns the context.
    maker: Maker,
    /// The keys of the held records, by their numbers in the context.
    records: BTreeMap<u32, RecordKey>,
}

/// A name and the memory that it stands for.
#[derive(Clone, serde::Serialize, serde::Deserialize)]
pub(super) struct Name {
    pub(super) name: String,
    pub(super) version: u64,
    pub(super) label: String,
    pub(super) pinned: bool,
    pub(super) created_unix_s: u64,
    pub(super) tokens: Tokens,
    pub(super) parts: Vec<HeldPart>,
    /// The user who handed the memory over.
    pub(super) owner: u32,
    /// The process that handed the memory over, if the holder could see it.
    #[serde(default)]
    pub(super) process: Option<ProcessIdentity>,
    /// The number of the request that handed the memory over.
    pub(super) request: u64,
    /// The number of the latest writer.
    pub(super) epoch: u64,
    pub(super) writer: Option<Writer>,
    /// Other processes that may still write. Some opened a driver's memory for writing before the
    /// first claim. Others were writers that had not provably ended when another process claimed
    /// the name by force.
    pub(super) earlier: Vec<Writer>,
    /// How the memory was verified, if a process that had it open for reading brought it back. The
    /// name then has no handles for writing.
    #[serde(default)]
    pub(super) recovered: Option<Recovered>,
    /// Alive while a claim of the name is being checked. The claim's job keeps the strong
    /// reference.
    #[serde(skip)]
    pub(super) claiming: Weak<()>,
    /// The process that prevented the latest claim. See [`Claim`](super::proof::Claim).
    #[serde(skip)]
    pub(super) suspect: Arc<AtomicU32>,
    /// Values that are derived from the parts and the label. They never change, except that handles
    /// get new keys.
    #[serde(skip)]
    pub(super) index: OnceLock<NameIndex>,
}

/// The resources of a holder that a name takes, according to its handles.
#[derive(Clone, Debug, Default)]
pub(super) struct NameIndex {
    /// The number of its parts.
    pub(super) parts: usize,
    /// The contexts of its memory, and the number of table entries that each needs for its records.
    pub(super) contexts: Vec<(ContextKey, usize)>,
    /// Size of the holder's memory that the name takes without the tables, in bytes.
    pub(super) bytes: usize,
}

impl NameIndex {
    pub(super) fn of(parts: &[HeldPart], label: &str) -> Self {
        let mut contexts: BTreeMap<ContextKey, usize> = BTreeMap::new();
        for part in parts {
            for handle in part.handles() {
                let fields = handle.fields();
                let places = contexts.entry(context_of(&fields)).or_default();
                *places = (*places).max(fields.record as usize + 1);
            }
        }
        Self {
            parts: parts.len(),
            contexts: contexts.into_iter().collect(),
            bytes: label.len() + parts.len() * PART_BYTES,
        }
    }
}

impl Name {
    /// Creates the name that a program has asked for. It replaces the version `before`, if there is
    /// one.
    pub(super) fn new(
        hold: Hold,
        before: Option<&Self>,
        owner: Asker,
        created_unix_s: u64,
    ) -> Self {
        let kept = before.filter(|_| !hold.tokens.has_some());
        Self {
            name: hold.name,
            version: before.map_or(1, |before| before.version + 1),
            label: hold.label,
            pinned: false,
            created_unix_s,
            tokens: kept.map_or(hold.tokens, |before| before.tokens.clone()),
            parts: hold.parts,
            owner: owner.uid,
            process: Status::of(owner.pid).map(|status| status.identity),
            request: hold.request,
            // The new version is usually other memory, which no process has claimed. Readers
            // continue to count epochs.
            epoch: before.map_or(0, |before| before.epoch),
            writer: None,
            earlier: Vec::new(),
            recovered: None,
            claiming: Weak::new(),
            suspect: Arc::default(),
            index: OnceLock::new(),
        }
    }

    /// Returns the resources that the name takes.
    pub(super) fn index(&self) -> &NameIndex {
        (self.index).get_or_init(|| NameIndex::of(&self.parts, &self.label))
    }

    /// Adds a process that may still write the memory. Returns whether it was not known before.
    pub(super) fn add_earlier(&mut self, writer: Writer) -> bool {
        let is_known = |known: &Writer| {
            known.process.is_some()
                && (known.request, known.process) == (writer.request, writer.process)
        };
        // One entry beyond the limit shows that there were more.
        let is_new =
            self.earlier.len() <= MAX_EARLIER_WRITERS && !self.earlier.iter().any(is_known);
        if is_new {
            self.earlier.push(writer);
        }
        is_new
    }

    /// Adds the earlier writers of another name of the same memory. Returns whether some
    /// were not known before.
    fn add_earlier_of(&mut self, other: &Self) -> bool {
        let known = self.earlier.len();
        for writer in &other.earlier {
            self.add_earlier(writer.clone());
        }
        self.earlier.len() > known
    }

    /// Returns whether a claim of the name is being checked.
    pub(super) fn is_being_claimed(&self) -> bool {
        self.claiming.strong_count() > 0
    }

    /// Returns whether only one writer at a time may have handles for writing.
    pub(super) fn has_one_writer(&self) -> bool {
        self.epoch > 0 || self.is_being_claimed()
    }

    /// Returns whether `hold` is the request that handed the memory over.
    pub(super) fn is_of(&self, hold: &Hold) -> bool {
        hold.request != 0 && hold.request == self.request
    }

    /// Returns the description of the name for a reply. `handles` chooses whether it contains no
    /// handles, only read-only handles, or also handles for writing.
    pub(super) fn tell(&self, handles: Option<Access>) -> HeldName {
        let part = |part: &HeldPart| HeldPart {
            handle: part.handle.filter(|_| handles == Some(Access::ReadWrite)),
            read_only: part.read_only.filter(|_| handles.is_some()),
            ..part.clone()
        };
        HeldName {
            name: self.name.clone(),
            version: self.version,
            label: self.label.clone(),
            pinned: self.pinned,
            created_unix_s: self.created_unix_s,
            has_tokens: self.tokens.has_some(),
            epoch: self.epoch,
            writer: (self.writer.as_ref())
                .filter(|writer| !writer.is_released)
                .and_then(Writer::pid),
            recovered: self.recovered,
            parts: self.parts.iter().map(part).collect(),
        }
    }

    /// Returns the total size of all parts in bytes.
    pub(super) fn bytes(&self) -> u64 {
        total(&self.parts)
    }

    /// Returns the handles of all records that the name needs.
    pub(super) fn handles(&self) -> impl Iterator<Item = MemoryHandle> {
        self.parts.iter().flat_map(HeldPart::handles)
    }
}

/// Everything that a holder holds.
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

    /// Returns the number of held bytes: the sum over all names.
    pub(super) fn bytes(&self) -> u64 {
        let names = self.names.values().map(Name::bytes);
        names.fold(0, u64::saturating_add)
    }

    /// Starts to serve a record. A record that is already held stays as it is.
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
        self.check_maker(fields.exporter, &record.maker)?;
        let context = match self.contexts.entry(context_of(&fields)) {
            ContextEntry::Occupied(found) => found.into_mut(),
            ContextEntry::Vacant(vacant) => {
                let label = Label {
                    name: Some(format!("held for {:016x}", fields.exporter)),
                    device: record.device.clone(),
                    backend: fields.backend.to_string(),
                };
                let policy = self.policy.clone();
                let exporter = Exporter::of_another(fields.context, label, policy)?;
                vacant.insert(HeldContext {
                    exporter,
                    maker: record.maker,
                    records: BTreeMap::new(),
                })
            }
        };
        // An exporter never reuses the number of a record that it handed over.
        if context.records.contains_key(&fields.record) {
            return Err(Error::invalid(
                "another object is held under the same number of its maker's",
            ));
        }
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
                // Both records of an allocation share this value.
                allocation: fields.segment as usize,
            },
        };
        let held = (context.exporter).hold(Credential::of(&fields), memory, &record.name);
        if let Err(error) = held {
            if context.records.is_empty() {
                self.contexts.remove(&context_of(&fields));
            }
            return Err(error);
        }
        context.records.insert(fields.record, key);
        self.records.insert(key, record);
        Ok(())
    }

    /// Refuses a record if another process's records of the same exporter are held. Any process
    /// that can write to the socket directory could otherwise reply under the name of an exporter
    /// that has ended.
    ///
    /// Only one process can serve an exporter, so the held records are consistent in whatever order
    /// they arrive. A process that the holder cannot see never equals one that it can see.
    fn check_maker(&self, exporter: u64, maker: &Maker) -> Result<()> {
        let contexts = self.contexts.range((exporter, 0)..=(exporter, u32::MAX));
        let mut makers = contexts.map(|(_, context)| &context.maker);
        match makers.all(|known| known == maker) {
            true => Ok(()),
            false => Err(Error::invalid(
                "another process answers under the name of the one that made what is held; hand over memory \
                 of the process that runs",
            )),
        }
    }

    /// Changes the key of a record, under all names that need the record. Returns the new handle,
    /// or `None` if the record does not exist or another record has the key.
    pub(super) fn rekey(&mut self, before: &MemoryHandle, key: Key) -> Option<MemoryHandle> {
        if self.records.contains_key(key.as_bytes()) {
            return None;
        }
        let mut record = self.records.remove(&key_of(before))?;
        let fields = before.fields();
        let handle = MemoryHandle::new(&Fields { key, ..fields });
        if let Some(context) = self.contexts.get_mut(&context_of(&fields)) {
            context.exporter.rekey_held(Credential::of(&fields), key);
            context.records.insert(fields.record, key_of(&handle));
        }
        record.handle = handle;
        let named = record.names.clone();
        self.records.insert(key_of(&handle), record);
        let names = self
            .names
            .iter_mut()
            .filter(|(name, _)| named.contains(*name));
        let parts = names.flat_map(|(_, name)| &mut name.parts);
        for part in parts.filter(|part| part.handle == Some(*before)) {
            part.handle = Some(handle);
        }
        Some(handle)
    }

    /// Stops serving a record. Returns its exporter if no other record of that exporter is held.
    pub(super) fn remove_record(&mut self, key: &RecordKey) -> Option<u64> {
        let record = self.records.remove(key)?;
        let fields = record.handle.fields();
        let context_key = context_of(&fields);
        let context = self.contexts.get_mut(&context_key)?;
        context.exporter.release_held(Credential::of(&fields));
        context.records.remove(&fields.record);
        if context.records.is_empty() {
            self.contexts.remove(&context_key);
        }
        (!self.is_answered_for(fields.exporter)).then_some(fields.exporter)
    }

    /// Returns whether any record of an exporter is held.
    pub(super) fn is_answered_for(&self, exporter: u64) -> bool {
        let mut contexts = self.contexts.range((exporter, 0)..=(exporter, u32::MAX));
        contexts.next().is_some()
    }

    /// Removes all records that no name needs.
    pub(super) fn remove_unnamed(&mut self) {
        let unnamed = self
            .records
            .iter()
            .filter(|(_, record)| record.names.is_empty());
        for key in Vec::from_iter(unnamed.map(|(key, _)| *key)) {
            self.remove_record(&key);
        }
    }

    /// Returns the names that need one of the records, except `except`.
    fn names_of(
        &self,
        keys: impl IntoIterator<Item = RecordKey>,
        except: &str,
    ) -> BTreeSet<&String> {
        let records = keys.into_iter().filter_map(|key| self.records.get(&key));
        let names = records.flat_map(|record| &record.names);
        names.filter(|name| **name != *except).collect()
    }

    /// Adds the earlier writers that other names of the same memory know to a name.
    pub(super) fn share_earlier(&self, name: &mut Name) {
        let keys = name.handles().map(|handle| key_of(&handle));
        // This includes the name itself, if its next version has some of the same memory.
        let records = keys.filter_map(|key| self.records.get(&key));
        let names: BTreeSet<&String> = records.flat_map(|record| &record.names).collect();
        for other in names {
            if let Some(other) = self.names.get(other) {
                name.add_earlier_of(other);
            }
        }
    }

    /// Passes the earlier writers of a name on to the other names of its memory, before the name is
    /// removed. Returns the names that have changed.
    pub(super) fn spread_earlier(&mut self, name: &str) -> Vec<Name> {
        let Some(gone) = self.names.get(name).cloned() else {
            return Vec::new();
        };
        let keys = gone.handles().map(|handle| key_of(&handle));
        let others: Vec<String> = self.names_of(keys, name).into_iter().cloned().collect();
        let mut changed = Vec::new();
        for other in others {
            if let Some(other) = self.names.get_mut(&other)
                && other.add_earlier_of(&gone)
            {
                changed.push(other.clone());
            }
        }
        changed
    }

    /// Sets a name, whose records must be held, and replaces its previous version. Returns the
    /// records that no name needs any more.
    pub(super) fn set_name(&mut self, name: Name) -> Vec<RecordKey> {
        let keys: BTreeSet<RecordKey> = name.handles().map(|handle| key_of(&handle)).collect();
        let before = self.names.get(&name.name);
        let before: Vec<RecordKey> =
            before.map_or_else(Vec::new, |it| it.handles().map(|it| key_of(&it)).collect());
        let gone = before.into_iter().filter(|key| !keys.contains(key));
        let unneeded = self.unname(&name.name, gone);
        for key in &keys {
            if let Some(record) = self.records.get_mut(key) {
                record.names.insert(name.name.clone());
            }
        }
        self.names.insert(name.name.clone(), name);
        unneeded
    }

    /// Returns another name of the same memory, if one exists.
    pub(super) fn other_name_of(&self, name: &Name) -> Option<&Name> {
        let keys = name.handles().map(|handle| key_of(&handle));
        let other = self.names_of(keys, &name.name).into_iter().next()?;
        self.names.get(other)
    }

    /// Returns a name with some of the memory of a hand-over that has been claimed or is being
    /// claimed, if one exists.
    pub(super) fn claimed_name_of(&self, hold: &Hold) -> Option<&Name> {
        let handles = hold.parts.iter().flat_map(HeldPart::handles);
        let records = handles.filter_map(|handle| self.records.get(&key_of(&handle)));
        let mut names = records
            .flat_map(|record| &record.names)
            .filter_map(|name| self.names.get(name));
        names.find(|name| name.has_one_writer())
    }

    pub(super) fn name_mut(&mut self, name: &str) -> Option<&mut Name> {
        self.names.get_mut(name)
    }

    /// Removes a name. Returns the records that no name needs any more.
    pub(super) fn remove_name(&mut self, name: &str) -> Vec<RecordKey> {
        let Some(removed) = self.names.remove(name) else {
            return Vec::new();
        };
        let keys: Vec<RecordKey> = removed.handles().map(|handle| key_of(&handle)).collect();
        self.unname(name, keys)
    }

    /// Removes a name from records. Returns the records that no name needs any more.
    fn unname(&mut self, name: &str, keys: impl IntoIterator<Item = RecordKey>) -> Vec<RecordKey> {
        let mut unneeded = Vec::new();
        for key in keys {
            if let Some(record) = self.records.get_mut(&key)
                && record.names.remove(name)
                && record.names.is_empty()
            {
                unneeded.push(key);
            }
        }
        unneeded
    }

    /// Links the names of all exporters with held records to the holder's socket. Tries all of
    /// them, and returns the first failure.
    pub(super) fn answer_for_all(&self, directory: &HolderDirectory) -> Result<()> {
        let mut exporters: Vec<_> = self
            .contexts
            .keys()
            .map(|(exporter, _)| *exporter)
            .collect();
        exporters.dedup();
        let answers = exporters
            .into_iter()
            .map(|exporter| directory.answer_for(exporter));
        answers.fold(Ok(()), Result::and)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crosshandle_handle::{BackendKind, DeviceUuid};
    use crosshandle_ipc::broker::protocol::BackendBlob;
    use crosshandle_os::memfd;
    use crosshandle_os::threads::disposer::PeerDescriptor;

    fn record(exporter: u64, number: u32, key: u8, pid: u32) -> Record {
        let fields = Fields {
            backend: BackendKind::Host,
            read_only: false,
            isolated: false,
            exporter,
            pid: 1,
            context: 1,
            key: Key::from_bytes([key; 16]),
            device: DeviceUuid::from_bytes([1; 16]),
            generation: 5,
            record: number,
            segment: number,
            offset: 0,
            length: 4096,
            host: 1,
        };
        let file = PeerDescriptor::from(memfd::create("test", 4096).expect("memory"));
        Record {
            handle: MemoryHandle::new(&fields),
            device: "host".into(),
            kind: ObjectKind::Device,
            name: "test".into(),
            memory: Arc::new(HeldSegment::received(file, 4096, BackendBlob::NONE, false)),
            maker: Maker::new(0, pid),
            names: BTreeSet::new(),
        }
    }

    /// In whatever order records arrive, a successor can hold in any order what the holder holds.
    #[test]
    fn who_may_answer_does_not_depend_on_the_order() {
        let (maker, other) = (std::process::id(), std::os::unix::process::parent_id());
        // Claims of one invisible process and two visible ones, in one context and in two.
        let claims = [
            (3, 1, 0, 1),
            (4, 2, maker, 1),
            (5, 3, other, 1),
            (6, 4, 0, 2),
            (7, 5, maker, 2),
        ];
        let made = |index: usize| {
            let (number, key, pid, context) = claims[index];
            let mut record = record(7, number, key, pid);
            record.handle = MemoryHandle::new(&Fields {
                context,
                ..record.handle.fields()
            });
            record
        };
        for first in permutations(claims.len()) {
            let mut holder = Holdings::new(PeerPolicy::SameUser);
            let held = (first.iter().copied())
                .filter(|index| holder.add_record(made(*index)).is_ok())
                .collect::<Vec<_>>();
            let makers: BTreeSet<u32> = held.iter().map(|index| claims[*index].2).collect();
            assert_eq!(makers.len(), 1, "{first:?}: {held:?}");
            for order in permutations(held.len()) {
                let mut successor = Holdings::new(PeerPolicy::SameUser);
                for index in order {
                    let taken = successor.add_record(made(held[index]));
                    taken.expect("what the holder holds");
                }
            }
        }
    }

    fn permutations(count: usize) -> Vec<Vec<usize>> {
        if count == 0 {
            return vec![Vec::new()];
        }
        let shorter = permutations(count - 1);
        let places = |rest: Vec<usize>| {
            (0..count).map(move |place| {
                let mut all = rest.clone();
                all.insert(place, count - 1);
                all
            })
        };
        shorter.into_iter().flat_map(places).collect()
    }

    #[test]
    fn who_answers_under_a_makers_name_replaces_nothing() {
        let mut holdings = Holdings::new(PeerPolicy::SameUser);
        let (maker, other) = (std::process::id(), std::os::unix::process::parent_id());
        holdings.add_record(record(7, 3, 1, maker)).expect("held");
        holdings.add_record(record(7, 4, 2, maker)).expect("held");
        // Under a number that is in use, by the exporter itself or by an invisible process.
        for pid in [maker, 0] {
            holdings
                .add_record(record(7, 3, 9, pid))
                .expect_err("a number in use");
        }
        // Under another number, by another process.
        let refused = holdings
            .add_record(record(7, 5, 3, other))
            .expect_err("another process");
        assert!(
            refused.to_string().contains("another process answers"),
            "{refused}"
        );
        holdings
            .add_record(record(8, 5, 4, other))
            .expect("its own");
        assert_eq!(holdings.records().len(), 3);
        // Rekeying changes the key and nothing else.
        let before = record(7, 3, 1, maker).handle;
        let after = holdings
            .rekey(&before, Key::from_bytes([8; 16]))
            .expect("held");
        assert_eq!(after.fields().record, 3);
        // It fails for a key that another record has.
        assert_eq!(holdings.rekey(&after, Key::from_bytes([2; 16])), None);
        assert!(
            holdings.records().contains_key(&[8; 16]) && !holdings.records().contains_key(&[1; 16])
        );
        assert_eq!(
            holdings.remove_record(&key_of(&after)),
            None,
            "another one is held"
        );
        holdings
            .add_record(record(7, 3, 1, maker))
            .expect("the number is free again");
    }
}
