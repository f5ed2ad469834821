//! The journal: what is held, in files that only the holder's user can read. A holder that begins where the one before
//! died together with its successor learns from it which names there were, what they needed, and which files their
//! memory was, so that nothing else can be brought back under them.

use super::identity::Maker;
use super::segment::HeldSegment;
use super::state::{Holdings, Name, Record, key_of};
use super::tuning::{JOURNAL_FILE_BYTES, JOURNAL_MOVED_BYTES, JOURNAL_RETRY, MAX_JOURNAL_BYTES};
use crate::error::{Error, Result};
use crate::handle::MemoryHandle;
use crate::ipc::broker::{FileId, HolderDirectory};
use data_encoding::HEXLOWER;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::time::Instant;

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

/// The first line of a file: when and where its lines count.
#[derive(Serialize, Deserialize)]
struct Head {
    /// Which run of the machine this is of: files have other numbers in the next one.
    boot: String,
    /// In which PID namespace makers have their numbers.
    pids: String,
    /// All names, in the one file that the release before wrote.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    names: Vec<Lost>,
}

/// A line behind the first one. A later one counts for its name.
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

/// The journal of a holder: lines are appended to the last one of its files. What counts of the oldest one is moved
/// to the last one bit by bit, with each change, until the oldest is removed: so no change takes longer since much is
/// held, and the files together are not much longer than what counts in them.
///
/// Nothing waits for the disk: the lines outlive the processes, and a run of the machine that ends takes the
/// memory with it that they tell of.
pub(super) struct Journal {
    /// The oldest first; the last one is appended to.
    files: VecDeque<Part>,
    /// Names whose lines are to be written.
    due: BTreeSet<String>,
    /// The number of the next file.
    next: u64,
    /// Why the lines that are due could not be written.
    failure: Option<String>,
    /// When to try again.
    retry: Instant,
    /// Files that are to be removed and could not be.
    unneeded: Vec<String>,
}

/// A file of the journal, or those that holders before this one have left.
struct Part {
    names: Vec<String>,
    /// `None` if nothing is appended to it.
    file: Option<File>,
    len: u64,
    /// The names whose latest line is in it.
    lines: BTreeSet<String>,
}

/// What a name is: held or lost, or neither.
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
    /// Begins a journal where holders before have left theirs, whose lines count until they are written again.
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
        // So that it is known at once whether it can be written.
        journal.write(state);
        journal
    }

    /// Notes that a name is another one than its line says.
    pub(super) fn note(&mut self, name: &str) {
        self.due.insert(name.to_owned());
    }

    /// Returns why the journal lacks something, if it does.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Returns when there is something to do, though nothing has changed.
    pub(super) fn next_look(&self) -> Option<Instant> {
        match self.failure.is_some() || !self.unneeded.is_empty() {
            true => Some(self.retry),
            false => self.is_to_be_moved().then(Instant::now),
        }
    }

    fn is_to_be_moved(&self) -> bool {
        // Of files that this holder has not begun, as soon as nothing else is to be done.
        self.files.len() > 1 && self.files.front().is_some_and(|first| first.file.is_none())
    }

    /// Writes down what has changed, and moves some lines. Returns whether that has begun to fail, or fails no more.
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

    /// Writes everything into new files, since somebody has removed one or put another one in its place.
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

    /// Puts a full disk in the place of the file that is appended to.
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
        // Twice what was written, so that the oldest file is empty before the last one is full.
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

    /// Writes a name's line. Returns its length.
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
        // A file that stays is older than all others, so its lines do not count.
        if Instant::now() >= self.retry && !self.unneeded.is_empty() {
            self.unneeded.retain(|name| !directory.remove_journal(name));
            self.retry = Instant::now() + JOURNAL_RETRY;
        }
    }
}

impl Part {
    /// Appends a line, or nothing.
    fn append(&mut self, line: &[u8]) -> Result<()> {
        let file = self.file.as_mut().expect("it is appended to");
        let bytes = [line, b"\n"].concat();
        match file.write_all(&bytes) {
            Ok(()) => {
                self.len += bytes.len() as u64;
                Ok(())
            }
            Err(error) => {
                // Half a line would take the next one with it.
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

/// Reads what was held in a directory but for what is held now. Lines that make no sense say nothing.
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
