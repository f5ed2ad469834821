//! One event and the processes that share it.

use crate::event_protocol::{
    Completion, FailureReason, IssueError, Liveness, Outcome, Owner, Signalled, Slot, Target,
    Ticket, WaitError, WaitMode,
};
use crate::ledger::Ledger;
use crate::platform::{self, Instant};
use shuttle::thread::{JoinHandle, spawn, yield_now};
use std::sync::Arc;

/// An event, and the ledger of its history.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) slot: Arc<Slot>,
    pub(crate) ledger: Arc<Ledger>,
    start: u64,
}

impl World {
    /// Returns a new event.
    pub(crate) fn new() -> Self {
        Self::starting_at(0)
    }

    /// Returns an event that has already counted to `start`.
    pub(crate) fn starting_at(start: u64) -> Self {
        let slot = Slot::new();
        while slot.issued() < start {
            // The event advances in the longest possible jumps, so that the words lag far behind.
            match slot.signal_up_to(Owner::EXPORTER, start) {
                Ok(Signalled::Complete(number)) => assert_eq!(number, start),
                Err(IssueError::TooFarAhead(limit)) => {
                    let longest = slot.signal_up_to(Owner::EXPORTER, limit);
                    assert!(matches!(longest, Ok(Signalled::Complete(_))));
                }
                other => panic!("{other:?}"),
            }
        }
        Self {
            slot: Arc::new(slot),
            ledger: Arc::default(),
            start,
        }
    }

    /// Returns the process with number `owner`. Number 1 is the exporter.
    pub(crate) fn process(&self, owner: u16) -> Process {
        Process {
            world: self.clone(),
            owner: Owner::new(owner).unwrap(),
        }
    }

    /// Starts a thread for a process.
    pub(crate) fn start(
        &self,
        owner: u16,
        life: impl FnOnce(&Process) + Send + 'static,
    ) -> JoinHandle<()> {
        let process = self.process(owner);
        spawn(move || life(&process))
    }

    /// Starts a thread for a process that is killed after `steps` steps, unless it ends before.
    pub(crate) fn start_mortal(
        &self,
        owner: u16,
        steps: u32,
        life: impl FnOnce(&Process) + Send + 'static,
    ) -> JoinHandle<()> {
        let process = self.process(owner);
        spawn(move || {
            let _ = platform::live_for(steps, || life(&process));
            process.world.ledger.died(process.owner);
        })
    }

    /// Waits for all processes to end, fails the orphans, and checks every signal.
    pub(crate) fn finish(self, processes: impl IntoIterator<Item = JoinHandle<()>>) {
        for process in processes {
            process.join().unwrap();
        }
        self.slot.fail_orphans(&*self.ledger);
        self.ledger.check_all(self.start, &self.slot);
        // They are checked again when a later signal is the latest.
        let left = self.process(7).signal();
        assert!(left.is_empty(), "nothing is unfinished");
        self.ledger.check_all(self.start, &self.slot);
    }

    /// Returns the number at this distance after the event's first number.
    pub(crate) fn number(&self, distance: u64) -> u64 {
        self.start + distance
    }
}

impl Liveness for Ledger {
    fn is_dead(&self, owner: Owner) -> bool {
        self.ask_whether_dead(owner)
    }

    fn is_known_abandoned(&self) -> bool {
        // The notification of a death may come late.
        platform::one_in(2) && Ledger::is_dead(self, Owner::EXPORTER)
    }
}

/// A process. Its actions are recorded in the ledger and checked against it.
pub(crate) struct Process {
    pub(crate) world: World,
    pub(crate) owner: Owner,
}

impl Process {
    pub(crate) fn slot(&self) -> &Slot {
        &self.world.slot
    }

    fn ledger(&self) -> &Ledger {
        &self.world.ledger
    }

    /// Takes the next number for a signal that completes later.
    pub(crate) fn submit(&self) -> Ticket {
        self.try_submit().unwrap()
    }

    /// Takes the next number, or returns why that is impossible.
    pub(crate) fn try_submit(&self) -> Result<Ticket, IssueError> {
        let ticket = self.slot().issue(self.owner)?;
        self.ledger().submitted(self.owner, ticket);
        Ok(ticket)
    }

    /// Signals, immediately if possible, and otherwise returns the tickets to complete.
    pub(crate) fn signal(&self) -> Vec<Ticket> {
        let attempt = self.ledger().attempting();
        // Like a process that signals often, it guesses the latest number, which may be wrong.
        let latest = self.slot().issued();
        let result = match self.slot().try_signal_after(latest) {
            Some(number) => Ok(Signalled::Complete(number)),
            None => self.slot().signal(self.owner),
        };
        self.record_attempt(attempt, result, false).unwrap()
    }

    /// Signals all untaken numbers up to `value`, immediately if possible.
    pub(crate) fn signal_up_to(&self, value: u64) -> Vec<Ticket> {
        match self.try_signal_up_to(value) {
            Ok(tickets) => tickets,
            Err(IssueError::NotAhead(latest)) => {
                assert!(latest >= value);
                Vec::new()
            }
            Err(error) => panic!("no numbers: {error:?}"),
        }
    }

    /// Signals all numbers up to `value`, or returns why that is impossible.
    pub(crate) fn try_signal_up_to(&self, value: u64) -> Result<Vec<Ticket>, IssueError> {
        let attempt = self.ledger().attempting();
        let result = self.slot().signal_up_to(self.owner, value);
        self.record_attempt(attempt, result, true)
    }

    fn record_attempt(
        &self,
        attempt: usize,
        result: Result<Signalled, IssueError>,
        jumped: bool,
    ) -> Result<Vec<Ticket>, IssueError> {
        let ledger = self.ledger();
        match result {
            Ok(Signalled::Complete(number)) => {
                ledger.attempted(attempt, Some(number), jumped);
                Ok(Vec::new())
            }
            Ok(Signalled::Submitted(tickets)) => {
                ledger.attempted(attempt, None, jumped);
                for ticket in &tickets {
                    ledger.submitted(self.owner, *ticket);
                }
                Ok(tickets)
            }
            Err(error) => {
                ledger.attempted(attempt, None, jumped);
                Err(error)
            }
        }
    }

    /// Takes and fails all untaken numbers up to `value`.
    pub(crate) fn fail_untaken(&self, value: u64) {
        match self.slot().issue_up_to(self.owner, value) {
            Ok(tickets) => {
                for ticket in &tickets {
                    self.ledger().submitted(self.owner, *ticket);
                }
                for ticket in tickets {
                    self.ledger().failing(ticket);
                    let reason = FailureReason::OwnerDied(Some(Owner::EXPORTER));
                    while self.slot().fail(ticket, reason) == Completion::TooEarly {
                        self.pause();
                    }
                }
            }
            Err(IssueError::NotAhead(latest)) => assert!(latest >= value),
            Err(error) => panic!("no numbers: {error:?}"),
        }
    }

    /// Completes a signal. Returns `false` if an earlier signal of its word is unfinished.
    pub(crate) fn try_complete(&self, ticket: Ticket) -> bool {
        self.ledger().completing(ticket);
        match self.slot().complete(ticket) {
            Completion::Done => {
                self.ledger().completed(ticket);
                true
            }
            Completion::TooEarly => false,
            Completion::Superseded => panic!("a live process's signal was failed by another"),
        }
    }

    /// Fails a signal. Returns `false` if an earlier signal of its word is unfinished.
    pub(crate) fn try_fail(&self, ticket: Ticket) -> bool {
        self.ledger().failing(ticket);
        match self.slot().fail(ticket, FailureReason::CommandFailed) {
            Completion::Done => true,
            Completion::TooEarly => false,
            Completion::Superseded => panic!("a live process's signal was failed by another"),
        }
    }

    /// Completes a signal, after waiting for earlier signals of its word.
    pub(crate) fn complete(&self, ticket: Ticket) {
        while !self.try_complete(ticket) {
            self.pause();
        }
    }

    /// Fails a signal, after waiting for earlier signals of its word.
    pub(crate) fn fail(&self, ticket: Ticket) {
        while !self.try_fail(ticket) {
            self.pause();
        }
    }

    /// Completes signals in a random order.
    pub(crate) fn complete_all(&self, mut tickets: Vec<Ticket>) {
        while !tickets.is_empty() {
            let index = platform::pick(tickets.len() as u64) as usize;
            if self.try_complete(tickets[index]) {
                let _ = tickets.swap_remove(index);
            } else {
                self.pause();
            }
        }
    }

    /// Lets other processes run, as a submitter does while an earlier signal is unfinished.
    pub(crate) fn pause(&self) {
        if self.ledger().any_process_died() {
            self.slot().fail_orphans(self.ledger());
        }
        yield_now();
    }

    /// Waits for a signal, which may not be submitted yet.
    pub(crate) fn wait(&self, number: u64) -> Result<(), WaitError> {
        self.wait_until(number, None)
    }

    /// Waits for a signal until a deadline.
    pub(crate) fn wait_until(
        &self,
        number: u64,
        deadline: Option<Instant>,
    ) -> Result<(), WaitError> {
        let result = self
            .slot()
            .wait(number, WaitMode::Spin, deadline, self.ledger());
        if number > self.world.start {
            self.ledger().check(number, result, self.slot());
        }
        result
    }

    /// Polls a signal's state.
    pub(crate) fn poll(&self, number: u64) -> Outcome {
        let completed = self.ledger().is_completed(number);
        let outcome = self.slot().outcome(number);
        self.ledger()
            .check_poll(number, outcome, completed, self.slot());
        outcome
    }

    /// Returns a signal as a target of `wait_any`.
    pub(crate) fn target(&self, number: u64) -> Target<'_> {
        Target {
            slot: self.slot(),
            number,
            liveness: self.ledger(),
        }
    }
}
