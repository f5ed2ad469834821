//! Checks after the workload. The surviving workers must continue, share new objects, and release
//! all resources.

use super::judge::Asked;
use super::{CLOSE_LINE, COMMAND_LIMIT, FRESH_LINE, PROMPT, Player, QUIET, first, shown};
use crate::failure::Failure;
use crate::faults::usage::Holdings;
use crate::harness::slowdown;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

impl Player<'_> {
    /// Continues a stopped worker, and waits for the command that was interrupted.
    pub(super) fn go_on(&mut self) -> Result<(), Failure> {
        let Some(victim) = self.stage.victim else {
            return Ok(());
        };
        if !self.stage.workers[victim].is_stopped {
            return Ok(());
        }
        self.stage.go_on(victim);
        let name = self.stage.workers[victim].name;
        self.log.push(format!("{name} goes on"));
        if let Some(begun) = self.interrupted.take() {
            if self.waited(&begun, COMMAND_LIMIT)? {
                let answer = self.stage.workers[victim].answer(begun.number);
                if let Some((answer, _)) = answer {
                    self.log
                        .push(format!("{name} {}: {}", begun.command, shown(&answer)));
                    let asked = Asked {
                        worker: victim,
                        command: &begun.command,
                        began: begun.began,
                        was_stopped: true,
                        is_first: false,
                    };
                    let wanted = self.wanted(begun.line);
                    if self.judge(&asked, wanted.as_deref(), answer).is_some() {
                        self.note_content(&begun.command, true);
                        self.note_open(victim, &begun.command);
                        self.facts.failed.remove(&begun.line);
                    }
                }
            } else {
                self.violation(format!("{name} {}: no answer after SIGCONT", begun.command));
            }
        }
        // The line that signals the gate may have been skipped. A driver's command that waits for a
        // signal that never comes keeps its resources forever.
        if self.script.made_by(name, "gate") {
            self.number(victim, "signal gate")?;
        }
        self.stage.run_until_quiet(QUIET)?;
        Ok(())
    }

    /// Checks that the surviving workers can still share new objects with each other.
    pub(super) fn fresh(&mut self) -> Result<(), Failure> {
        let living: Vec<_> = (0..self.stage.workers.len())
            .filter(|worker| !self.stage.workers[*worker].has_ended)
            .collect();
        let Some((&one, others)) = living.split_first() else {
            return Ok(());
        };
        let mut line = FRESH_LINE;
        let mut run = |player: &mut Self, worker: usize, command: &str| {
            line += 1;
            player.stage.begin_line(line);
            // Here, the fault does not excuse an error.
            let fault = player.fault.take();
            let words = player.run(worker, line as u64, command, None);
            player.fault = fault;
            words.map(|words| words.and_then(first).unwrap_or_default())
        };
        run(self, one, "event fresh-event")?;
        run(self, one, "allocate fresh-memory 4096")?;
        run(self, one, "write fresh-memory 0 77 4096")?;
        let event = run(self, one, "event-handle fresh-event")?;
        let memory = run(self, one, "memory-handle fresh-memory")?;
        if !self.violations.is_empty() {
            return Ok(());
        }
        for &other in others {
            run(self, other, &format!("open-event fresh-event {event}"))?;
            run(self, other, &format!("open-memory fresh-memory {memory}"))?;
            run(self, other, "check fresh-memory 0 77 4096")?;
            if !self.violations.is_empty() {
                return Ok(());
            }
        }
        for &other in others {
            let label = format!("fresh-{other}");
            let command = "wait-value fresh-event 1 30000".to_owned();
            self.begin(other, (FRESH_LINE + 500 + other) as u64, &label, command)?;
        }
        run(self, one, "signal fresh-event")?;
        for &other in others {
            let label = format!("fresh-{other}");
            let Some(begun) = self.begun.remove(&label) else {
                continue;
            };
            if self.waited(&begun, PROMPT)? {
                self.end(&label, &begun, false)?;
            } else {
                self.violation("a fresh event's waiter was not woken");
            }
        }
        if let Some(&last) = others.last() {
            run(self, last, "signal fresh-event")?;
            run(self, one, "wait-value fresh-event 2 5000")?;
        }
        Ok(())
    }

    /// Closes all objects, compares the remaining resources with `reference`, and waits until the
    /// workers end by themselves.
    pub(super) fn close(
        &mut self,
        reference: Option<&BTreeMap<char, Holdings>>,
    ) -> Result<BTreeMap<char, Holdings>, Failure> {
        let mut all = BTreeMap::new();
        if !self.violations.is_empty() {
            return Ok(all);
        }
        let living: Vec<_> = (0..self.stage.workers.len())
            .filter(|worker| !self.stage.workers[*worker].has_ended)
            .collect();
        // The exporter of the fresh objects closes last. After its context has ended, importers
        // release their resources when they next allocate or free memory.
        for &worker in living.iter().rev() {
            let line = CLOSE_LINE + 10 * worker;
            self.stage.begin_line(line);
            self.run(worker, line as u64, "close-all", None)?;
        }
        for &worker in &living {
            let line = CLOSE_LINE + 10 * worker;
            self.run(worker, line as u64 + 1, "allocate last 64", None)?;
            self.run(worker, line as u64 + 2, "close-all", None)?;
        }
        for &worker in &living {
            let (name, pid) = (
                self.stage.workers[worker].name,
                self.stage.workers[worker].pid,
            );
            let allowed = reference.and_then(|reference| reference.get(&name));
            let mut holdings = Holdings::of(pid);
            if let Some(allowed) = allowed {
                let end = Instant::now() + COMMAND_LIMIT * slowdown();
                while !holdings.beyond(allowed).is_empty() && Instant::now() < end {
                    self.stage.run_until(Duration::from_millis(5), |_| false)?;
                    holdings = Holdings::of(pid);
                }
                let more = holdings.beyond(allowed);
                if !more.is_empty() {
                    self.violation(format!("{name} keeps {}", more.join(", ")));
                }
            }
            all.insert(name, holdings);
        }
        for &worker in &living {
            self.stage.workers[worker].hang_up();
        }
        for &worker in &living {
            let mut status = None;
            let is_over = self.stage.run_until(COMMAND_LIMIT * slowdown(), |stage| {
                status = stage.workers[worker].try_wait();
                status.is_some()
            })?;
            let name = self.stage.workers[worker].name;
            match status {
                Some(status) if status.success() => {}
                _ if !is_over => self.violation(format!("{name} does not end")),
                status => self.violation(format!("{name} ended with {status:?}")),
            }
        }
        Ok(all)
    }
}
