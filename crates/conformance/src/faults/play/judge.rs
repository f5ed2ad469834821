//! What a workload's commands answer, and what memory then holds.

use super::{Player, RELEASE_LINE};
use crate::failure::Failure;
use crate::faults::step::Fault;
use crate::faults::worker::Answer;

impl Player<'_> {
    pub(super) fn note_content(&mut self, command: &str, is_done: bool) {
        let words: Vec<_> = command.split(' ').collect();
        if let ["write" | "range-write", name, _, seed, ..] = words[..] {
            let seed = seed.parse().ok().filter(|_| is_done);
            self.contents.insert(name.to_owned(), seed);
        }
    }

    /// Notes which memory a worker has.
    pub(super) fn note_open(&mut self, worker: usize, command: &str) {
        let words: Vec<_> = command.split(' ').collect();
        match words[..] {
            ["allocate" | "open-memory", name, ..] => {
                self.open.insert((worker, name.to_owned()));
            }
            ["close", ..] => {
                for name in &words[1..] {
                    self.open.remove(&(worker, (*name).to_owned()));
                }
            }
            _ => {}
        }
    }

    /// Compares all memory that is still open with what was written to it.
    pub(super) fn check_all(&mut self) -> Result<(), Failure> {
        for (worker, name) in self.open.clone() {
            // What has the same name as other memory, and memory that was never written at its start.
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

    /// Judges an answer. Returns the words of a good one.
    pub(super) fn judge(
        &mut self,
        worker: usize,
        command: &str,
        wanted: Option<&str>,
        answer: Answer,
    ) -> Option<Vec<String>> {
        let name = self.stage.workers[worker].name;
        let has_fault = self.stage.injected.is_some();
        match answer {
            Ok(words) => {
                if let Some(wanted) = wanted
                    && !has_fault
                {
                    self.violation(format!("{name} {command}: no {wanted}"));
                }
                Some(words)
            }
            Err((kind, text)) => {
                let is_wanted = Some(kind.as_str()) == wanted;
                let is_wrong_byte = kind == "InvalidArgument" && text.starts_with("byte ");
                if is_wrong_byte
                    || !(is_wanted || (has_fault && self.excuses(worker, &kind, &text)))
                {
                    self.violation(format!("{name} {command}: {kind}: {text}"));
                }
                None
            }
        }
    }

    /// Returns whether the fault that happened explains a command's error.
    pub(super) fn excuses(&self, worker: usize, kind: &str, text: &str) -> bool {
        let is_missing = (kind == "Usage" && text.starts_with("no such object"))
            || (kind == "InvalidArgument"
                && (text.contains("do not lie in one mapping") || text.contains("whole mappings")));
        let of_a_peer = [
            "ExporterGone",
            "PeerDied",
            "TimedOut",
            "CommandFailed",
            "Stale",
        ];
        is_missing
            || match self.fault {
                None => false,
                Some(Fault::Kill | Fault::Stop) => of_a_peer.contains(&kind),
                // The call's error reaches the program, or the peer whose request it spoils.
                Some(Fault::Error(..)) => {
                    self.stage.victim == Some(worker)
                        || of_a_peer.contains(&kind)
                        || matches!(kind, "Os" | "LimitReached" | "OutOfMemory")
                }
            }
    }
}
