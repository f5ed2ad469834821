//! Plays a workload with one fault, and judges the behavior of its processes.

mod after;
mod judge;
pub(super) mod programs;
mod signals;

use self::judge::{Asked, Facts};
use super::bystanders::Bystanders;
use super::stage::{Plan, Stage};
use super::step::{Fault, Step};
use super::usage::Holdings;
use super::worker::{Reply, Worker};
use super::workload::{Action, Line, Workload};
use crate::failure::Failure;
use crate::harness::slowdown;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Maximum time of a command that does not wait. In the workloads, a message exchange times out
/// after one second.
const COMMAND_LIMIT: Duration = Duration::from_secs(8);
/// Maximum time until a waiter is notified that its wait has ended. It is shorter than the interval
/// at which waiters check by themselves, so a missing wake-up shows.
const PROMPT: Duration = Duration::from_millis(1_500);
/// Maximum time until a waiter notices the end of its wait if the process that should have woken it
/// was killed. In builds with `--cfg fault_steps`, waiters check by themselves every 3 s.
const BY_ITSELF: Duration = Duration::from_millis(5_000);
/// Maximum time until all threads sleep after a command.
const QUIET: Duration = Duration::from_millis(100);
/// Number of commands that other workers run while one worker is stopped.
const COMMANDS_WHILE_STOPPED: u32 = 6;
/// Time after which a stopped worker continues, even if others have run fewer commands. At most one
/// of these commands has waited for the stopped worker.
const LONGEST_STOP: Duration = Duration::from_millis(400);
/// Time for which a stopped worker may delay others before it continues.
const STOPPED_JOIN: Duration = Duration::from_millis(100);
/// First line number of the checks after the workload. `RELEASE_LINE` and `CLOSE_LINE` are those of
/// releases and of closing.
const FRESH_LINE: usize = 1_000;
const RELEASE_LINE: usize = 2_000;
const CLOSE_LINE: usize = 3_000;

/// The program, device and directory of the workers.
#[derive(Clone)]
pub(super) struct Scene {
    pub(super) program: PathBuf,
    pub(super) device: String,
    pub(super) directory: PathBuf,
}

impl Scene {
    pub(super) fn worker(&self, name: char, is_filtered: bool) -> Result<Worker, Failure> {
        let mut workers = self.workers([name].into(), is_filtered)?;
        workers.pop().ok_or_else(|| Failure::new("no worker"))
    }

    /// Starts several workers at the same time.
    pub(super) fn workers(
        &self,
        names: BTreeSet<char>,
        is_filtered: bool,
    ) -> Result<Vec<Worker>, Failure> {
        let program = &self.program;
        let start = |name| Worker::start(name, program, &self.device, &self.directory, is_filtered);
        let mut workers: Vec<_> = names.into_iter().map(start).collect::<Result<_, _>>()?;
        for worker in &mut workers {
            worker.meet(is_filtered)?;
        }
        Ok(workers)
    }
}

pub(super) struct Played {
    pub(super) trace: Vec<Step>,
    /// Whether the fault happened. If its step was not reached, the play is a divergence and not a
    /// failure.
    pub(super) is_injected: bool,
    /// Descriptions of broken promises.
    pub(super) violations: Vec<String>,
    /// Log of what the workers did.
    pub(super) log: Vec<String>,
    /// Resources of each worker at the end.
    pub(super) holdings: BTreeMap<char, Holdings>,
    /// Longest time between a kill and a waiter's answer.
    pub(super) notice: Option<Duration>,
}

/// A command that runs on its own thread, or that was running when its worker was stopped.
struct Begun {
    worker: usize,
    number: u64,
    command: String,
    /// Number of the workload's line that began the command.
    line: usize,
    began: Instant,
}

struct Player<'a> {
    stage: Stage,
    fault: Option<Fault>,
    script: &'a Workload,
    variables: HashMap<String, String>,
    /// Seeds of the contents of memory. `None` if a write was interrupted.
    contents: HashMap<String, Option<u64>>,
    /// Open memory, by worker and name.
    open: BTreeSet<(usize, String)>,
    /// Effects of earlier lines, which explain the errors of later lines.
    facts: Facts,
    begun: BTreeMap<String, Begun>,
    interrupted: Option<Begun>,
    while_stopped: u32,
    released: usize,
    violations: Vec<String>,
    log: Vec<String>,
    notice: Option<Duration>,
}

/// Plays a workload in the order of a seed, with a fault if `plan` contains one. `reference`
/// contains the resources that the workers have at the end of a play without a fault.
pub(super) fn play(
    scene: &Scene,
    script: &Workload,
    seed: u64,
    plan: Option<Plan>,
    reference: Option<&BTreeMap<char, Holdings>>,
    bystanders: Option<&mut Bystanders>,
) -> Result<Played, Failure> {
    let is_filtered = !matches!(plan, Some(Plan::AtTime { .. }));
    let workers = scene.workers(script.workers(), is_filtered)?;
    let fault = plan.as_ref().map(Plan::fault);
    let mut player = Player {
        stage: Stage::new(workers, seed, plan),
        fault,
        script,
        variables: HashMap::new(),
        contents: HashMap::new(),
        open: BTreeSet::new(),
        facts: Facts::default(),
        begun: BTreeMap::new(),
        interrupted: None,
        while_stopped: 0,
        released: 0,
        violations: Vec::new(),
        log: Vec::new(),
        notice: None,
    };
    let holdings = player.all(reference, bystanders)?;
    let Player {
        stage,
        violations,
        log,
        notice,
        ..
    } = player;
    Ok(Played {
        trace: stage.trace.clone(),
        is_injected: stage.injected.is_some(),
        violations,
        log,
        holdings,
        notice,
    })
}

impl Player<'_> {
    fn all(
        &mut self,
        reference: Option<&BTreeMap<char, Holdings>>,
        mut bystanders: Option<&mut Bystanders>,
    ) -> Result<BTreeMap<char, Holdings>, Failure> {
        self.stage.run_until_quiet(QUIET)?;
        let mut is_checked = false;
        for line in &self.script.lines {
            self.stage.begin_line(line.number);
            self.line(line)?;
            if !self.violations.is_empty() {
                return Ok(BTreeMap::new());
            }
            if self.stage.injected.is_some() && !std::mem::replace(&mut is_checked, true) {
                self.check_bystanders(bystanders.as_deref_mut());
            }
        }
        self.stage.is_called_off = true;
        self.go_on()?;
        self.stage.begin_line(RELEASE_LINE);
        let labels: Vec<_> = self.begun.keys().cloned().collect();
        for label in labels {
            self.join(&label)?;
        }
        self.check_all()?;
        self.fresh()?;
        self.check_bystanders(bystanders);
        let holdings = self.close(reference)?;
        self.complaints();
        Ok(holdings)
    }

    fn violation(&mut self, text: impl Into<String>) {
        let text = format!("line {}: {}", self.stage.line, text.into());
        self.log.push(format!("VIOLATION {text}"));
        self.violations.push(text);
    }

    fn check_bystanders(&mut self, bystanders: Option<&mut Bystanders>) {
        if let Some(bystanders) = bystanders
            && let Err(trouble) = bystanders.round()
        {
            self.violation(format!("a bystander was harmed: {trouble}"));
        }
    }

    fn complaints(&mut self) {
        for index in 0..self.stage.workers.len() {
            let worker = &mut self.stage.workers[index];
            let (name, text) = (worker.name, worker.complaints());
            if text.contains("panicked") || text.contains("misuse") {
                self.violation(format!("{name} said: {text}"));
            } else if !text.is_empty() {
                self.log.push(format!("{name} said: {text}"));
            }
        }
    }

    fn line(&mut self, line: &Line) -> Result<(), Failure> {
        match &line.action {
            Action::Join { label } => self.join(label),
            Action::Begin {
                worker,
                label,
                command,
            } => {
                let worker = self.stage.index(*worker)?;
                let Some(command) = self.prepared(worker, command) else {
                    return Ok(());
                };
                self.begin(worker, line.number as u64, label, command)
            }
            Action::Run {
                worker,
                command,
                variable,
                error,
            } => {
                let worker = self.stage.index(*worker)?;
                let Some(prepared) = self.prepared(worker, command) else {
                    self.note_failed(worker, command);
                    return Ok(());
                };
                let wanted = error.as_deref();
                let words = self.run(worker, line.number as u64, &prepared, wanted)?;
                if let (Some(name), Some(word)) = (variable, words.and_then(first)) {
                    self.variables.insert(name.clone(), word);
                }
                Ok(())
            }
        }
    }

    /// Returns a command with its variables and seeds filled in. Returns `None` if the worker is
    /// not running, or if an object that the command needs was never made.
    fn prepared(&mut self, worker: usize, command: &str) -> Option<String> {
        let state = &self.stage.workers[worker];
        if state.has_ended || state.is_stopped {
            return None;
        }
        let mut words: Vec<_> = command.split(' ').map(str::to_owned).collect();
        for word in &mut words {
            if let Some(name) = word.strip_prefix('$') {
                *word = self.variables.get(name)?.clone();
            }
        }
        if words[0].ends_with("check") && words.get(3).is_some_and(|seed| seed == "?") {
            // If a worker ended during a write, the contents are unknown.
            let seed = (*self.contents.get(&words[1])?)?;
            words[3] = seed.to_string();
        }
        Some(words.join(" "))
    }

    /// Runs a command until it ends, and judges its answer. Returns the words of a successful
    /// answer.
    fn run(
        &mut self,
        worker: usize,
        number: u64,
        command: &str,
        wanted: Option<&str>,
    ) -> Result<Option<Vec<String>>, Failure> {
        self.note_content(command, false);
        let is_first = self.note_sent(worker, command);
        let began = Instant::now();
        self.stage.workers[worker].send(number, false, command);
        let is_over = self.stage.run_until(COMMAND_LIMIT * slowdown(), |stage| {
            let worker = &stage.workers[worker];
            worker.is_answered(number) || worker.has_ended || worker.is_stopped
        })?;
        let state = &mut self.stage.workers[worker];
        let name = state.name;
        let answer = state.answer(number);
        let taken = began.elapsed();
        let mut words = None;
        match answer {
            Some((answer, _)) => {
                self.log.push(format!(
                    "{name} {command}: {} ({taken:.1?})",
                    shown(&answer)
                ));
                let asked = Asked {
                    worker,
                    command,
                    began,
                    was_stopped: false,
                    is_first,
                };
                words = self.judge(&asked, wanted, answer);
            }
            None if self.stage.workers[worker].is_stopped => {
                self.log.push(format!("{name} {command}: stopped"));
                let command = command.to_owned();
                self.interrupted = Some(Begun {
                    worker,
                    number,
                    command,
                    line: self.stage.line,
                    began,
                });
            }
            None if !is_over => self.violation(format!("{name} {command}: no answer in {taken:?}")),
            None => {
                self.log.push(format!("{name} {command}: ended"));
                if !self.is_killed(worker) {
                    let complaints = self.stage.workers[worker].complaints();
                    self.violation(format!("{name} {command}: it ended; it said: {complaints}"));
                }
            }
        }
        if words.is_some() {
            self.note_content(command, true);
            self.note_open(worker, command);
        } else {
            self.note_failed(worker, command);
        }
        self.stage.run_until_quiet(QUIET)?;
        if self.stage.victim != Some(worker) {
            self.while_stopped += u32::from(self.stage.injected.is_some());
            let stopped = self
                .stage
                .injected
                .map_or(Duration::ZERO, |at| at.elapsed());
            if self.while_stopped >= COMMANDS_WHILE_STOPPED || stopped >= LONGEST_STOP {
                self.go_on()?;
            }
        }
        Ok(words)
    }

    /// Begins a command on its own thread, and waits until the worker has started it.
    fn begin(
        &mut self,
        worker: usize,
        number: u64,
        label: &str,
        command: String,
    ) -> Result<(), Failure> {
        let began = Instant::now();
        self.stage.workers[worker].send(number, true, &command);
        self.stage.run_until(COMMAND_LIMIT * slowdown(), |stage| {
            let worker = &stage.workers[worker];
            worker.thread(number).is_some()
                || worker.is_answered(number)
                || worker.has_ended
                || worker.is_stopped
        })?;
        let name = self.stage.workers[worker].name;
        self.log.push(format!("{name} &{label} {command}"));
        if self.stage.workers[worker].has_ended && !self.is_killed(worker) {
            self.violation(format!("{name} {command}: it ended"));
        }
        let begun = Begun {
            worker,
            number,
            command,
            line: self.stage.line,
            began,
        };
        self.begun.insert(label.to_owned(), begun);
        self.stage.run_until_quiet(QUIET)?;
        Ok(())
    }

    /// Waits until a command that was begun ends. If the fault prevented the signal that the
    /// command waits for, releases the command.
    fn join(&mut self, label: &str) -> Result<(), Failure> {
        let Some(begun) = self.begun.remove(label) else {
            return Ok(());
        };
        if self.waited(&begun, STOPPED_JOIN)? {
            return self.end(label, &begun, false);
        }
        self.go_on()?;
        if self.stage.injected.is_some() {
            return self.release(label, &begun);
        }
        if self.waited(&begun, PROMPT)? {
            return self.end(label, &begun, false);
        }
        let name = self.stage.workers[begun.worker].name;
        self.violation(format!("{name} &{label} {}: not woken", begun.command));
        Ok(())
    }

    fn waited(&mut self, begun: &Begun, limit: Duration) -> Result<bool, Failure> {
        let (worker, number) = (begun.worker, begun.number);
        self.stage.run_until(limit * slowdown(), |stage| {
            let worker = &stage.workers[worker];
            worker.is_answered(number) || worker.has_ended
        })
    }

    /// Judges the result of a command that was begun.
    fn end(&mut self, label: &str, begun: &Begun, was_late: bool) -> Result<(), Failure> {
        let worker = &mut self.stage.workers[begun.worker];
        let name = worker.name;
        let Some((answer, when)) = worker.answer(begun.number) else {
            if !self.is_killed(begun.worker) {
                let complaints = self.stage.workers[begun.worker].complaints();
                self.violation(format!("{name} &{label}: it ended; it said: {complaints}"));
            }
            return Ok(());
        };
        self.log
            .push(format!("{name} &{label}: {}", shown(&answer)));
        if let (Some(killed), Err((kind, _))) = (self.stage.injected, &answer)
            && self.fault == Some(Fault::Kill)
            && kind == "PeerDied"
        {
            let taken = when.saturating_duration_since(killed);
            self.notice = Some(self.notice.map_or(taken, |notice| notice.max(taken)));
        }
        if was_late {
            self.violation(format!("{name} &{label} {}: told too late", begun.command));
        }
        let asked = Asked {
            worker: begun.worker,
            command: &begun.command,
            began: begun.began,
            was_stopped: false,
            is_first: false,
        };
        // The timeout of the wait is longer than any case.
        if matches!(&answer, Err((kind, _)) if kind == "TimedOut") {
            self.violation(format!("{name} &{label} {}: TimedOut", begun.command));
        } else {
            self.judge(&asked, None, answer);
        }
        self.stage.run_until_quiet(QUIET)?;
        Ok(())
    }

    /// Ends a wait for a signal that may never come because the submitter's line did not run.
    fn release(&mut self, label: &str, begun: &Begun) -> Result<(), Failure> {
        let words: Vec<_> = begun.command.split(' ').collect();
        let events: Vec<(String, Option<u64>)> = match words[0] {
            "wait-value" | "await" | "await-callback" => {
                vec![(words[1].to_owned(), words[2].parse().ok())]
            }
            "await-notified" => {
                let pairs = words[2..].iter().filter_map(|word| word.split_once(':'));
                pairs
                    .map(|(event, number)| (event.to_owned(), number.parse().ok()))
                    .collect()
            }
            "wait-any" | "wait-all" => {
                let events = words[2..].iter();
                events.map(|event| ((*event).to_owned(), None)).collect()
            }
            _ => vec![(words[1].to_owned(), None)],
        };
        let name = self.stage.workers[begun.worker].name;
        let mut is_due = false;
        for (event, number) in &events {
            let Some(submitted) = self.number(begun.worker, &format!("value {event}"))? else {
                continue;
            };
            // A wait without a number waits at least for the first signal.
            let missing = number.unwrap_or(1).saturating_sub(submitted);
            let is_orphaned = self.is_exporter_dead(event);
            if missing == 0 || is_orphaned {
                is_due = true;
                continue;
            }
            self.number(begun.worker, &format!("signal {event} {missing}"))?;
        }
        if self.waited(begun, STOPPED_JOIN)? {
            return self.end(label, begun, false);
        }
        self.open_gates()?;
        if self.waited(begun, PROMPT)? {
            return self.end(label, begun, false);
        }
        // The waiter should have been notified by now. If the worker that should have woken it was
        // killed between its signal and the wake-up, the waiter checks by itself.
        let is_told = self.waited(begun, BY_ITSELF)?;
        if !is_told {
            self.violation(format!("{name} &{label} {}: never told", begun.command));
            return Ok(());
        }
        let is_signalled = self.stage.workers[begun.worker].has_succeeded(begun.number);
        let may_be_late = is_due && is_signalled && self.fault == Some(Fault::Kill);
        self.end(label, begun, !may_be_late)
    }

    /// Signals the gates that commands of living workers wait for, because the line that signals
    /// them may have been skipped.
    fn open_gates(&mut self) -> Result<(), Failure> {
        for worker in 0..self.stage.workers.len() {
            let name = self.stage.workers[worker].name;
            let is_there = !self.stage.workers[worker].has_ended;
            if is_there && self.script.made_by(name, "gate") {
                self.number(worker, "signal gate")?;
            }
        }
        Ok(())
    }

    fn is_exporter_dead(&self, event: &str) -> bool {
        let Some(victim) = self.stage.victim.filter(|victim| self.is_killed(*victim)) else {
            return false;
        };
        self.script.made_by(self.stage.workers[victim].name, event)
    }

    /// Runs a command that answers with a number. The command is not a line of the workload.
    fn number(&mut self, worker: usize, command: &str) -> Result<Option<u64>, Failure> {
        self.released += 1;
        let number = (RELEASE_LINE + self.released) as u64;
        let words = self.run(worker, number, command, None)?;
        Ok(words.and_then(first).and_then(|word| word.parse().ok()))
    }
}

fn first(words: Vec<String>) -> Option<String> {
    words.into_iter().next()
}

fn shown(answer: &Reply) -> String {
    match answer {
        Ok(words) => format!(
            "ok {}",
            words.join(" ").chars().take(60).collect::<String>()
        ),
        Err((kind, text)) => format!("{kind}: {text}"),
    }
}
