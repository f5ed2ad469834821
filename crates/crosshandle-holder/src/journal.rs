//! The journal records what is held, in files that only the holder's user can read. If a holder
//! dies together with its successor, the next holder reads the journal. It then knows which names
//! existed, which tokens they needed, and which files contained their memory. No other memory can
//! therefore be brought back under these names.

use super::identity::Maker;
use super::message::HeldPart;
use super::segment::HeldSegment;
use super::state::{Holdings, Name, Record, key_of};
use crosshandle_handle::MemoryHandle;
use crosshandle_ipc::broker::{FileId, HolderDirectory};
use crosshandle_types::error::{Error, Result};
use data_encoding::HEXLOWER;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::time::{Duration, Instant};

/// Maximum size of a journal that is read, in bytes. It has room for [`MAX_NAMES`] names with long
/// labels and many parts. A file that is not a journal takes that much memory for a moment.
const MAX_JOURNAL_BYTES: u64 = 128 << 20;

/// Interval at which the holder tries to write the journal again after a failure. Held memory is
/// reported as unsafe until an attempt succeeds.
const JOURNAL_RETRY: Duration = Duration::from_secs(1);

/// Minimum size of a journal file before the next one is begun, in bytes. A larger value makes a
/// new holder read more.
const JOURNAL_FILE_BYTES: u64 = 1 << 20;

/// Number of bytes of journal lines that are moved at a time out of the files of a previous holder.
/// Requests wait meanwhile.
const JOURNAL_MOVED_BYTES: u64 = 64 << 10;

/// A lost name: only processes that have its memory open still have that memory.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Lost {
    /// The name as it was, without handles for writing.
    pub(super) name: Name,
    /// The memory of each part.
    pub(super) parts: Vec<LostPart>,
}

/// The memory of a part of a lost name.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct LostPart {
    memory: Memory,
    /// The process that exported the memory. Until the memory is back, no other process may reply
    /// under its exporter's name.
    pub(super) maker: Maker,
}

/// Properties that distinguish memory from other memory.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Memory {
    /// The file that contains the memory, or `None` if the file cannot be identified.
    file: Option<FileId>,
    len: u64,
    /// The driver's data that accompanies the descriptor. Among other things, it says which part of
    /// the file the memory is.
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

    /// Returns whether the memory can be identified.
    pub(super) fn is_told(&self) -> bool {
        self.memory.file.is_some()
    }

    /// Returns whether `segment` is the same memory, as far as that can be determined.
    pub(super) fn may_be(&self, segment: &HeldSegment) -> bool {
        self.memory == Memory::of(segment)
    }
}

/// The first line of a journal file. It says when and where the other lines are valid.
#[derive(Serialize, Deserialize)]
struct Head {
    /// The boot id. After a reboot, the same inode numbers refer to other files.
    boot: String,
    /// The PID namespace of the process ids of exporters.
    pids: String,
    /// All names, in the single file that the previous release wrote.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    names: Vec<Lost>,
}

/// Any other line of a journal file. The last line of a name is the valid one.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Kept(Box<Lost>),
    Gone(String),
}

fn boot() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.map_or_else(|_| String::new(), |id| id.trim().to_owned())
}

/// Returns the identity of this process's PID namespace, or an empty string if it cannot be
/// determined.
fn pids() -> String {
    let namespace = std::fs::read_link("/proc/self/ns/pid");
    namespace.map_or_else(
        |_| String::new(),
        |namespace| namespace.to_string_lossy().into_owned(),
    )
}

impl Lost {
    /// Returns a name as it would be after its memory is lost. Returns `None` if a record of the
    /// name is missing.
    fn of(name: &Name, holdings: &Holdings) -> Option<Self> {
        let mut name = name.clone();
        let part_of = |part: &HeldPart| {
            let record = holdings.records().get(&key_of(&part.read_only?))?;
            Some(LostPart::of(record))
        };
        let parts = name.parts.iter().map(part_of);
        let parts = parts.collect::<Option<_>>()?;
        for part in &mut name.parts {
            part.handle = None;
        }
        (name.writer, name.recovered) = (None, None);
        name.earlier.clear();
        Some(Self { name, parts })
    }

    /// Returns the handle and the previous memory of each part.
    pub(super) fn handles(&self) -> impl Iterator<Item = (MemoryHandle, &LostPart)> {
        let parts = self.name.parts.iter().zip(&self.parts);
        parts.filter_map(|(part, was)| Some((part.read_only?, was)))
    }
}

/// The journal of a holder. Lines are appended to the last of its files.
///
/// With each change, some valid lines of the oldest file are moved to the last one, until the
/// oldest file can be removed. The cost of a change therefore does not depend on the number of held
/// names, and the files are not much longer than their valid lines.
///
/// The journal never waits for the disk. Its lines outlive the processes, and a reboot also removes
/// the memory that they describe.
pub(super) struct Journal {
    /// The oldest file comes first. Lines are appended to the last one.
    files: VecDeque<Part>,
    /// Names whose lines must still be written.
    due: BTreeSet<String>,
    /// The number of the next file.
    next: u64,
    /// The error of the last attempt to write lines, if it failed.
    failure: Option<String>,
    /// Time of the next attempt after a failure.
    retry: Instant,
    /// Files that should be removed, but could not be removed yet.
    unneeded: Vec<String>,
}

/// A file of the journal, or all files of previous holders.
struct Part {
    names: Vec<String>,
    /// `None` if no line can be appended to the file.
    file: Option<File>,
    len: u64,
    /// The names whose valid line is in this file.
    lines: BTreeSet<String>,
}

/// The state that the journal records: held and lost names.
pub(super) struct State<'a> {
    pub(super) directory: &'a HolderDirectory,
    pub(super) holdings: &'a Holdings,
    pub(super) lost: &'a BTreeMap<String, Lost>,
}

impl State<'_> {
    fn line(&self, name: &str) -> Line {
        let held = self.holdings.names().get(name);
        let held = held.and_then(|held| Lost::of(held, self.holdings));
        match held.or_else(|| self.lost.get(name).cloned()) {
            Some(lost) => Line::Kept(Box::new(lost)),
            None => Line::Gone(name.to_owned()),
        }
    }
}

impl Journal {
    /// Begins a journal. The lines of previous holders stay valid until they are written again.
    pub(super) fn begin(state: &State<'_>) -> Self {
        let left = state.directory.journals();
        let next = left.iter().map(|(number, _)| number + 1).max().unwrap_or(1);
        let names = state.holdings.names().keys().chain(state.lost.keys());
        let mut files = VecDeque::new();
        if !left.is_empty() {
            files.push_back(Part {
                names: left.into_iter().map(|(_, name)| name).collect(),
                file: None,
                len: 0,
                lines: names.cloned().collect(),
            });
        }
        let mut journal = Self {
            files,
            due: BTreeSet::new(),
            next,
            failure: None,
            retry: Instant::now(),
            unneeded: Vec::new(),
        };
        // Writing at once shows whether the journal can be written.
        journal.write(state);
        journal
    }

    /// Notes that the line of a name is out of date.
    pub(super) fn note(&mut self, name: &str) {
        self.due.insert(name.to_owned());
    }

    /// Returns the reason why the journal is incomplete, if it is.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Returns the next time at which the journal has work even if nothing changes.
    pub(super) fn next_look(&self) -> Option<Instant> {
        match self.failure.is_some() || !self.unneeded.is_empty() {
            true => Some(self.retry),
            false => self.is_to_be_moved().then(Instant::now),
        }
    }

    fn is_to_be_moved(&self) -> bool {
        // Lines of previous holders are moved as soon as the holder is idle.
        self.files.len() > 1 && self.files.front().is_some_and(|first| first.file.is_none())
    }

    /// Writes the changes and moves some lines. Returns whether the journal has begun to fail, or
    /// has recovered.
    pub(super) fn write(&mut self, state: &State<'_>) -> bool {
        let has_failed = self.failure.is_some();
        if has_failed && self.due.is_empty() && Instant::now() < self.retry {
            return false;
        }
        self.failure = self.try_write(state).err().map(|error| error.to_string());
        if self.failure.is_some() {
            self.retry = Instant::now() + JOURNAL_RETRY;
        }
        self.remove_unneeded(state.directory);
        self.failure.is_some() != has_failed
    }

    /// Checks that all files still exist. If another process has removed or replaced one, all lines
    /// become due and go into new files.
    pub(super) fn check(&mut self, state: &State<'_>) {
        let mut names = self.files.iter().flat_map(|part| &part.names);
        if names.all(|name| state.directory.has_journal(name)) {
            return;
        }
        for part in std::mem::take(&mut self.files) {
            self.due.extend(part.lines);
            self.unneeded.extend(part.names);
        }
    }

    /// Replaces the last file with a file on a full disk.
    #[cfg(test)]
    pub(super) fn fill_disk(&mut self) {
        let full = File::options().write(true).open("/dev/full");
        let last = self.files.back_mut().expect("it was begun");
        last.file = Some(full.expect("a full disk"));
    }

    fn try_write(&mut self, state: &State<'_>) -> Result<()> {
        let whole: u64 = self.files.iter().map(|part| part.len).sum();
        let is_full =
            |last: &Part| last.file.is_none() || last.len > JOURNAL_FILE_BYTES.max(whole / 2);
        if self.files.back().is_none_or(is_full) {
            let part = self.create(state.directory)?;
            self.files.push_back(part);
        }
        let mut written = 0;
        while let Some(name) = self.due.first().cloned() {
            written += self.append(state, &name)?;
            self.due.remove(&name);
        }
        // Moving twice the written amount empties the oldest file before the last one is full.
        let mut to_move = match self.is_to_be_moved() {
            true => JOURNAL_MOVED_BYTES.max(2 * written),
            false => 2 * written,
        };
        while self.files.len() > 1 {
            let first = self.files.front_mut().expect("there are two");
            if first.lines.is_empty() {
                let first = self.files.pop_front().expect("there are two");
                self.unneeded.extend(first.names);
                self.retry = Instant::now();
                continue;
            }
            if to_move == 0 {
                break;
            }
            let name = first.lines.first().cloned().expect("it has lines");
            to_move = to_move.saturating_sub(self.append(state, &name)?);
        }
        Ok(())
    }

    fn create(&mut self, directory: &HolderDirectory) -> Result<Part> {
        let (name, file) = directory.create_journal(self.next)?;
        self.next += 1;
        let head = Head {
            boot: boot(),
            pids: pids(),
            names: Vec::new(),
        };
        let mut part = Part {
            names: vec![name],
            file: Some(file),
            len: 0,
            lines: BTreeSet::new(),
        };
        let written = part.append(&serde_json::to_vec(&head).expect("plain data"));
        if let Err(error) = written {
            self.unneeded.extend(part.names);
            return Err(error);
        }
        Ok(part)
    }

    /// Writes the line of a name. Returns its length in bytes.
    fn append(&mut self, state: &State<'_>, name: &str) -> Result<u64> {
        let line = state.line(name);
        let bytes = serde_json::to_vec(&line).expect("plain data");
        let last = self.files.back_mut().expect("it was begun");
        last.append(&bytes)?;
        for part in &mut self.files {
            part.lines.remove(name);
        }
        if matches!(line, Line::Kept(_)) {
            let last = self.files.back_mut().expect("it was begun");
            last.lines.insert(name.to_owned());
        }
        Ok(bytes.len() as u64 + 1)
    }

    fn remove_unneeded(&mut self, directory: &HolderDirectory) {
        // A remaining file is older than all others, so its lines are not valid.
        if Instant::now() >= self.retry && !self.unneeded.is_empty() {
            self.unneeded.retain(|name| !directory.remove_journal(name));
            self.retry = Instant::now() + JOURNAL_RETRY;
        }
    }
}

impl Part {
    /// Appends a line completely or not at all.
    fn append(&mut self, line: &[u8]) -> Result<()> {
        let file = self.file.as_mut().expect("it is appended to");
        let bytes = [line, b"\n"].concat();
        match file.write_all(&bytes) {
            Ok(()) => {
                self.len += bytes.len() as u64;
                Ok(())
            }
            Err(error) => {
                // Half a line would also make the next one unreadable.
                let is_cut = rustix::io::retry_on_intr(|| rustix::fs::ftruncate(&*file, self.len))
                    .is_ok()
                    && file.seek(SeekFrom::Start(self.len)).is_ok();
                if !is_cut {
                    self.file = None;
                }
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                Err(Error::os("writing the holder's journal")(errno))
            }
        }
    }
}

/// Reads the names that previous holders held in a directory, except those that are held now.
/// Ignores lines that cannot be parsed.
pub(super) fn read(directory: &HolderDirectory, holdings: &Holdings) -> BTreeMap<String, Lost> {
    let mut all = BTreeMap::new();
    let now = boot();
    for (_, name) in directory.journals() {
        let Some(bytes) = directory.read_journal(&name, MAX_JOURNAL_BYTES) else {
            continue;
        };
        let mut lines = bytes.split(|byte| *byte == b'\n');
        let head = lines.next().map(serde_json::from_slice::<Head>);
        let Some(Ok(head)) = head else { continue };
        if head.boot.is_empty() || head.boot != now {
            continue;
        }
        let knows_pids = !head.pids.is_empty() && head.pids == pids();
        let held = |lost: Box<Lost>| Line::Kept(lost);
        let whole = head.names.into_iter().map(Box::new).map(held);
        let lines = lines.filter_map(|line| serde_json::from_slice::<Line>(line).ok());
        for line in whole.chain(lines) {
            match line {
                Line::Kept(mut lost) => {
                    if lost.parts.len() != lost.name.parts.len() {
                        continue;
                    }
                    for part in lost.parts.iter_mut().filter(|_| !knows_pids) {
                        part.maker.process = None;
                    }
                    all.insert(lost.name.name.clone(), *lost);
                }
                Line::Gone(name) => drop(all.remove(&name)),
            }
        }
    }
    all.retain(|name, _| !holdings.names().contains_key(name));
    all
}
