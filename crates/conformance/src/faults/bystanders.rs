//! An exporter and an importer that are not involved in any fault, and that no fault may affect.

use super::play::Scene;
use super::usage::Holdings;
use super::worker::Worker;
use crate::failure::Failure;
use crate::harness::slowdown;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::time::{Duration, Instant};

/// Maximum time of a command.
const LIMIT: Duration = Duration::from_secs(4);
/// Time between two counts of the pair's resources.
const LOOK: Duration = Duration::from_millis(20);

/// An exporter and an importer in the workers' socket directory. They run during all cases.
pub(super) struct Bystanders {
    exporter: Worker,
    importer: Worker,
    requests: u64,
    signals: u64,
    /// Resources of both processes when they were ready.
    before: [Holdings; 2],
}

impl Bystanders {
    pub(super) fn start(scene: &Scene) -> Result<Self, Failure> {
        let mut pair = Self {
            exporter: scene.worker('P', false)?,
            importer: scene.worker('Q', false)?,
            requests: 0,
            signals: 0,
            before: Default::default(),
        };
        pair.begin().map_err(Failure::new)?;
        pair.round().map_err(Failure::new)?;
        pair.before = pair.holdings();
        Ok(pair)
    }

    fn holdings(&self) -> [Holdings; 2] {
        [&self.exporter, &self.importer].map(|worker| Holdings::of(worker.pid))
    }

    fn begin(&mut self) -> Result<(), String> {
        self.exporter("event e")?;
        self.exporter("allocate m 4096")?;
        let event = self.exporter("event-handle e")?;
        let memory = self.exporter("memory-handle m")?;
        self.importer(&format!("open-event e {event}"))?;
        self.importer(&format!("open-memory m {memory}"))?;
        Ok(())
    }

    /// Writes, reads, signals and waits once.
    pub(super) fn round(&mut self) -> Result<(), String> {
        self.signals += 1;
        let number = self.signals;
        self.exporter(&format!("write m 0 {number} 4096"))?;
        self.exporter("signal e")?;
        self.importer(&format!("wait-value e {number} 3000"))?;
        self.importer(&format!("check m 0 {number} 4096"))?;
        Ok(())
    }

    /// Returns the process ids of the exporter and of the importer.
    pub(super) fn pids(&self) -> [u32; 2] {
        [&self.exporter, &self.importer].map(|worker| worker.pid as u32)
    }

    /// Checks that the pair has no more resources than at the start. Waits until idle threads have
    /// ended.
    pub(super) fn check_holdings(&self) -> Result<(), String> {
        let end = Instant::now() + LIMIT * slowdown();
        loop {
            let holdings = self.holdings();
            let pairs = holdings.iter().zip(&self.before);
            let more: Vec<_> = pairs.flat_map(|(now, before)| now.beyond(before)).collect();
            if more.is_empty() {
                return Ok(());
            }
            if Instant::now() >= end {
                return Err(format!("the bystanders hold {}", more.join(", ")));
            }
            std::thread::sleep(LOOK);
        }
    }

    fn exporter(&mut self, command: &str) -> Result<String, String> {
        self.requests += 1;
        ask(&mut self.exporter, self.requests, command)
    }

    fn importer(&mut self, command: &str) -> Result<String, String> {
        self.requests += 1;
        ask(&mut self.importer, self.requests, command)
    }
}

/// Runs a command in a worker whose steps are not counted, and returns the first word of the
/// answer.
pub(super) fn ask(worker: &mut Worker, number: u64, command: &str) -> Result<String, String> {
    worker.send(number, false, command);
    let end = Instant::now() + LIMIT * slowdown();
    loop {
        worker.read();
        if let Some((answer, _)) = worker.answer(number) {
            let words = answer.map_err(|(kind, text)| format!("{command}: {kind}: {text}"))?;
            return Ok(words.into_iter().next().unwrap_or_default());
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || worker.has_ended {
            return Err(format!("{command}: no answer; {}", worker.complaints()));
        }
        let left = Timespec::try_from(left).ok();
        let _ = poll(
            &mut [PollFd::from_borrowed_fd(worker.socket(), PollFlags::IN)],
            left.as_ref(),
        );
    }
}
