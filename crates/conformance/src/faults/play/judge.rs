//! Judges the answers of a workload's commands, and the contents of memory afterwards.
//!
//! An error is accepted only if the fault explains it:
//!
//! - After a kill, `ExporterGone` when an object of the victim is opened. Also `PeerDied` and
//!   `CommandFailed` if the victim had one of the objects.
//! - After a stop, `TimedOut` from an exchange with the victim, and from the victim's own command.
//! - After an error, the errors in the [table](FOLLOWS), from the command that was running.
//! - After any fault, an error about an object that was never made.
//! - After any fault, `Stale` when an object is opened that its exporter has closed, and
//!   `ExporterGone` when the exporter has closed the context.
//! - After any fault, `TimedOut` from a wait for a signal whose line did not succeed.
//!
//! It is also a violation if an expected error is missing:
//!
//! - the error that a line gives without a fault
//! - `ExporterGone` when an object of a dead process is opened
//! - `TimedOut` when the first object of a stopped process is opened
//! - an error of a wait for a signal that no process can have completed

use super::signals::Signals;
use super::{Player, RELEASE_LINE};
use crate::failure::Failure;
use crate::faults::step::Fault;
use crate::faults::worker::Reply;
use crate::faults::workload::{Action, Origin};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// Effects of the lines that have run so far.
#[derive(Default)]
pub(super) struct Facts {
    /// Objects by worker and name. The value is `true` if the worker has the object. Objects
    /// without an entry were never made.
    has: BTreeMap<(usize, String), bool>,
    /// Ranges into which a worker has mapped physical memory.
    mapped: BTreeSet<(usize, String)>,
    /// Objects that their exporter has closed.
    closed: BTreeSet<Origin>,
    /// Workers that have tried to open an object of another worker, with the name of the latter.
    met: BTreeSet<(usize, char)>,
    /// Signals that workers were told to make.
    signals: Signals,
    /// Numbers of the lines that did not succeed.
    pub(super) failed: BTreeSet<usize>,
}

/// A command whose answer is to be judged.
pub(super) struct Asked<'a> {
    pub(super) worker: usize,
    pub(super) command: &'a str,
    pub(super) began: Instant,
    /// Whether the worker was stopped during the command.
    pub(super) was_stopped: bool,
    /// Whether the command opens the worker's first object of another worker.
    pub(super) is_first: bool,
}

impl Player<'_> {
    pub(super) fn note_content(&mut self, command: &str, is_done: bool) {
        let words: Vec<_> = command.split(' ').collect();
        if let ["write" | "range-write", name, _, seed, ..] = words[..] {
            let seed = seed.parse().ok().filter(|_| is_done);
            self.contents.insert(name.to_owned(), seed);
        }
    }

    /// Records the effects that a command may have even if it fails. Returns whether it opens the
    /// worker's first object of another worker.
    pub(super) fn note_sent(&mut self, worker: usize, command: &str) -> bool {
        let name = self.stage.workers[worker].name;
        self.facts.signals.note(self.script, name, command);
        let opened = self.opened(name, command);
        opened.is_some_and(|(exporter, _)| self.facts.met.insert((worker, exporter)))
    }

    /// Records the objects that a worker has after a successful command.
    pub(super) fn note_open(&mut self, worker: usize, command: &str) {
        let words: Vec<_> = command.split(' ').collect();
        if let ["allocate" | "open-memory", name, ..] = words[..] {
            self.open.insert((worker, name.to_owned()));
        }
        match words[..] {
            ["map", range, ..] => {
                self.facts.mapped.insert((worker, range.to_owned()));
            }
            [
                "context" | "allocate" | "open-memory" | "event" | "open-event" | "queue"
                | "physical" | "open-physical" | "reserve",
                name,
                ..,
            ] => {
                self.facts.has.insert((worker, name.to_owned()), true);
            }
            ["close", ..] => {
                let by = self.stage.workers[worker].name;
                for name in &words[1..] {
                    let key = (worker, (*name).to_owned());
                    self.open.remove(&key);
                    self.facts.has.remove(&key);
                    let origin = self.script.origin(by, name);
                    if origin.0 == by {
                        self.facts.closed.insert(origin);
                    }
                }
            }
            _ => {}
        }
    }

    /// Records that a command failed or was not run.
    pub(super) fn note_failed(&mut self, worker: usize, command: &str) {
        self.facts.failed.insert(self.stage.line);
        let words: Vec<_> = command.split(' ').collect();
        match words[..] {
            // Objects that the command names before the missing one are closed.
            ["close", ..] => {
                for name in &words[1..] {
                    let key = (worker, (*name).to_owned());
                    if let Some(has) = self.facts.has.get_mut(&key) {
                        *has = false;
                    }
                }
            }
            ["unmap", range, ..] => {
                self.facts.mapped.remove(&(worker, range.to_owned()));
            }
            _ => {}
        }
    }

    /// Compares all open memory with the bytes that were written to it.
    pub(super) fn check_all(&mut self) -> Result<(), Failure> {
        for (worker, name) in self.open.clone() {
            // Skips memory that has the same name as other memory, and memory whose start was never
            // written.
            if matches!(name.as_str(), "again" | "large") {
                continue;
            }
            let Some(command) = self.prepared(worker, &format!("check {name} 0 ? 4096")) else {
                continue;
            };
            self.released += 1;
            let number = (RELEASE_LINE + self.released) as u64;
            self.run(worker, number, &command, None)?;
        }
        Ok(())
    }

    pub(super) fn is_killed(&self, worker: usize) -> bool {
        self.fault == Some(Fault::Kill) && self.stage.victim == Some(worker)
    }

    /// Returns the error that a line is expected to give without a fault.
    pub(super) fn wanted(&self, line: usize) -> Option<String> {
        let line = self
            .script
            .lines
            .iter()
            .find(|known| known.number == line)?;
        match &line.action {
            Action::Run { error, .. } => error.clone(),
            _ => None,
        }
    }

    /// Judges an answer. Returns its words if it is a success.
    pub(super) fn judge(
        &mut self,
        asked: &Asked<'_>,
        wanted: Option<&str>,
        answer: Reply,
    ) -> Option<Vec<String>> {
        let (name, command) = (self.stage.workers[asked.worker].name, asked.command);
        match answer {
            Ok(words) => {
                if let Some(due) = self.due(asked, wanted) {
                    self.violation(format!("{name} {command}: no {due}"));
                }
                Some(words)
            }
            Err((kind, text)) => {
                let is_wanted = Some(kind.as_str()) == wanted;
                if !is_wanted && !self.explains(asked, &kind, &text) {
                    self.violation(format!("{name} {command}: {kind}: {text}"));
                }
                None
            }
        }
    }

    /// Returns the error that a command must give, if any. `wanted` is the error that it gives
    /// without a fault.
    fn due<'a>(&self, asked: &Asked<'_>, wanted: Option<&'a str>) -> Option<&'a str> {
        let name = self.stage.workers[asked.worker].name;
        if self
            .facts
            .signals
            .is_missing(self.script, name, asked.command)
        {
            return Some("error, although the signal cannot have been completed");
        }
        let opened = self.opened(name, asked.command);
        match wanted {
            // The memory may still exist if the line that closes it did not run.
            Some("Stale") => {
                wanted.filter(|_| opened.is_some_and(|it| self.facts.closed.contains(&it)))
            }
            // The signal may have been made while the worker was stopped. If it was not, the check
            // above has found that.
            Some("TimedOut") => None,
            Some(wanted) => Some(wanted),
            None => {
                let (exporter, _) = opened?;
                let exporter = self.stage.index(exporter).ok()?;
                let injected = self.stage.injected;
                let was_before = injected.is_some_and(|injected| injected < asked.began);
                let is_stopped = self.stage.workers[exporter].is_stopped;
                match was_before {
                    true if self.is_killed(exporter) => Some("ExporterGone"),
                    true if is_stopped && asked.is_first => Some("TimedOut"),
                    _ => None,
                }
            }
        }
    }

    /// Returns the errors of an open after the exporter has closed the object or its context.
    fn ended(&self, origin: &Origin) -> Vec<&'static str> {
        let is_closed = |it: &Origin| self.facts.closed.contains(it);
        let is_context_closed = self
            .script
            .context(origin)
            .is_some_and(|context| is_closed(&context));
        let errors = [
            ("Stale", is_closed(origin)),
            ("ExporterGone", is_context_closed),
        ];
        errors
            .into_iter()
            .filter(|(_, may)| *may)
            .map(|(error, _)| error)
            .collect()
    }

    /// Returns the object that a command opens, if another worker exports it.
    fn opened(&self, name: char, command: &str) -> Option<Origin> {
        match command.split(' ').collect::<Vec<_>>()[..] {
            [open, opened, ..] if open.starts_with("open-") => {
                Some(self.script.origin(name, opened))
            }
            _ => None,
        }
    }

    /// Returns whether the injected fault explains a command's error.
    pub(super) fn explains(&self, asked: &Asked<'_>, kind: &str, text: &str) -> bool {
        let (Some(injected), Some(fault)) = (self.stage.injected, self.fault) else {
            return false;
        };
        let Some(victim) = self.stage.victim else {
            return false;
        };
        let (worker, command) = (asked.worker, asked.command);
        let name = self.stage.workers[worker].name;
        let victims_name = self.stage.workers[victim].name;
        if self.lacks(worker, command, kind, text) {
            return true;
        }
        let is_wait = command.starts_with("wait-") || command.starts_with("finish ");
        if kind == "TimedOut" && is_wait && self.lacks_signal(name, command) {
            return true;
        }
        let opened = self.opened(name, command);
        if opened
            .as_ref()
            .is_some_and(|it| self.ended(it).contains(&kind))
        {
            return true;
        }
        let opens_victims = opened.is_some_and(|(exporter, _)| exporter == victims_name);
        let is_involved = || self.script.involved(name, command).contains(&victims_name);
        let is_under_way = asked.began <= injected;
        match fault {
            Fault::Kill => match kind {
                "ExporterGone" => opens_victims,
                "PeerDied" | "CommandFailed" => is_involved(),
                _ => false,
            },
            Fault::Stop => {
                kind == "TimedOut" && (opens_victims || (worker == victim && asked.was_stopped))
            }
            Fault::Error(error, _) => {
                let is_own = worker == victim;
                is_under_way && (is_own || opens_victims) && follows(error, is_own, kind)
            }
        }
    }

    /// Returns whether an error reports a missing object that was never made.
    fn lacks(&self, worker: usize, command: &str, kind: &str, text: &str) -> bool {
        let key = |name: &str| (worker, name.to_owned());
        if let Some(name) = text.strip_prefix("no such object: ") {
            return kind == "Usage" && self.facts.has.get(&key(name)) != Some(&true);
        }
        let is_unmapped =
            text.contains("do not lie in one mapping") || text.contains("whole mappings");
        let range = command.split(' ').nth(1).unwrap_or_default();
        kind == "InvalidArgument" && is_unmapped && !self.facts.mapped.contains(&key(range))
    }

    /// Returns whether the command waits for a signal whose line has not succeeded.
    fn lacks_signal(&self, name: char, command: &str) -> bool {
        let objects = self.script.objects(name, command);
        let mut lines = self.script.signals(&objects);
        lines.any(|line| line < self.stage.line && self.facts.failed.contains(&line))
    }
}

/// Errors of the library that may follow an error of a system call. The first list is for the
/// process that made the call. The second list is for a process that opens an object of that
/// process at the same time. A correct program repeats interrupted calls.
const FOLLOWS: &[(&str, &[&str], &[&str])] = &[
    ("EINTR", &[], &[]),
    ("ECONNABORTED", &[], &[]),
    ("EAGAIN", &["Io", "LimitReached"], &[]),
    ("ECONNREFUSED", &["ExporterGone"], &[]),
    ("EMFILE", &["LimitReached"], &["LimitReached"]),
    (
        "ENOMEM",
        &["OutOfMemory", "Os", "LimitReached", "Io"],
        &["LimitReached"],
    ),
    ("ENOBUFS", &["Os"], &[]),
    ("ENOSPC", &["Os", "OutOfMemory"], &["LimitReached"]),
    ("EACCES", &["InvalidArgument"], &[]),
    ("ENOLCK", &["Os"], &[]),
];

/// Returns whether an error of a system call may cause this error of the library.
fn follows(error: &str, is_own: bool, kind: &str) -> bool {
    let found = FOLLOWS.iter().find(|(known, ..)| *known == error);
    found.is_some_and(|(_, own, others)| if is_own { own } else { others }.contains(&kind))
}
