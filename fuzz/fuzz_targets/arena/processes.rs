//! The processes, their operations, and the checks after each operation.

use crate::Slot;
use crate::input::Input;
use crate::platform::{Instant, end_attack, within};
use crate::writes::Writes;
use crosshandle_events::platform::Moment;
use crosshandle_events::{
    Completion, DeviceWait, FailureReason, Liveness, Outcome, Owner, Signalled, Target, Ticket,
    WaitError, WaitMode, wait_any,
};
use std::time::Duration;

/// Number of processes that are alive at a time.
const PROCESSES: usize = 4;
/// Maximum number of steps of an operation without a deadline.
const STEPS: u32 = 50_000;
/// Maximum number of steps of a wait.
const WAIT_STEPS: u32 = 500_000;
/// Maximum time by which a wait may exceed its deadline.
const LATENESS: Duration = Duration::from_millis(1);
/// Greatest signal number.
const MAX_NUMBER: u64 = (1 << 50) - 1;

/// A submitted signal.
#[derive(Clone, Copy)]
struct Held {
    ticket: Ticket,
    by_device: bool,
}

struct Process {
    owner: Owner,
    held: Vec<Held>,
}

/// The processes that are alive, as all processes see them.
struct Living([u16; PROCESSES], bool);

impl Liveness for Living {
    fn is_dead(&self, owner: Owner) -> bool {
        match owner {
            Owner::EXPORTER => self.1,
            owner => !self.0.contains(&owner.get()),
        }
    }

    fn is_known_abandoned(&self) -> bool {
        self.1
    }
}

pub(crate) struct World {
    slot: &'static Slot,
    other: &'static Slot,
    writes: Option<Writes>,
    processes: [Process; PROCESSES],
    next_owner: u16,
    exporter_is_dead: bool,
    /// Signals of dead processes that the processes' devices may still write.
    ghosts: Vec<Ticket>,
    /// The greatest signal number so far, if no process tampers with the event.
    issued: u64,
    /// The pending signal of the other event.
    others: Ticket,
    others_owner: Owner,
    turns: usize,
}

fn owner(number: u16) -> Owner {
    Owner::new(number).expect("in range")
}

impl World {
    pub(crate) fn new(
        slot: &'static Slot,
        other: &'static Slot,
        writes: Option<Writes>,
        mode: u8,
    ) -> Self {
        let others_owner = owner(2 + u16::from(mode & 1));
        let others = other.issue(others_owner).expect("the first number");
        let processes = std::array::from_fn(|index| Process {
            owner: owner(index as u16 + 1),
            held: Vec::new(),
        });
        Self {
            issued: slot.issued(),
            slot,
            other,
            writes,
            processes,
            next_owner: PROCESSES as u16 + 1,
            exporter_is_dead: false,
            ghosts: Vec::new(),
            others,
            others_owner,
            turns: 0,
        }
    }

    fn is_honest(&self) -> bool {
        self.writes.is_none()
    }

    fn living(&self) -> Living {
        let owners = std::array::from_fn(|index| self.processes[index].owner.get());
        Living(owners, self.exporter_is_dead)
    }

    /// Runs an operation while the hostile process writes.
    fn attacked<R>(&self, must_end: bool, steps: u32, operation: impl FnOnce() -> R) -> R {
        self.start_writes(must_end);
        let result = within(steps, None, operation).expect("it is not killed");
        end_attack();
        result
    }

    fn start_writes(&self, must_end: bool) {
        if let Some(writes) = &self.writes {
            writes.start(self.slot, must_end);
        }
    }

    /// Runs an operation of a process. The process is killed during the operation if the input says
    /// so.
    fn mortal<R>(
        &mut self,
        process: usize,
        life: u8,
        operation: impl FnOnce(Owner) -> R,
    ) -> Option<R> {
        let owner = self.processes[process].owner;
        let life = (life >= 0xc0).then_some(u32::from(life & 0x3f));
        self.start_writes(false);
        let result = within(STEPS, life, || operation(owner));
        end_attack();
        if result.is_none() {
            self.kill(process);
        }
        result
    }

    /// Kills a process and starts another one in its place.
    fn kill(&mut self, process: usize) {
        let dead = &mut self.processes[process];
        let by_device = dead.held.drain(..).filter(|held| held.by_device);
        self.ghosts.extend(by_device.map(|held| held.ticket));
        self.exporter_is_dead |= dead.owner == Owner::EXPORTER;
        dead.owner = owner(self.next_owner);
        self.next_owner = self.next_owner % Owner::MAX + 1;
    }

    fn hold(&mut self, process: usize, tickets: impl IntoIterator<Item = Ticket>, by_device: bool) {
        let held = &mut self.processes[process].held;
        held.extend(tickets.into_iter().map(|ticket| Held { ticket, by_device }));
    }

    pub(crate) fn step(&mut self, input: &mut Input<'_>) {
        let (operation, choice) = (input.byte(), input.byte());
        let process = usize::from(choice) % PROCESSES;
        let life = input.byte();
        let slot = self.slot;
        match operation % 24 {
            0 => {
                if let Some(Ok(Signalled::Submitted(tickets))) =
                    self.mortal(process, life, |owner| slot.signal(owner))
                {
                    self.hold(process, tickets, false);
                }
            }
            1 => {
                let value = input.number(slot.issued());
                if let Some(Ok(Signalled::Submitted(tickets))) =
                    self.mortal(process, life, |owner| slot.signal_up_to(owner, value))
                {
                    self.hold(process, tickets, false);
                }
            }
            2 => {
                let guess = input.number(slot.issued()) % MAX_NUMBER;
                let _ = self.mortal(process, life, |_| slot.try_signal_after(guess));
            }
            3 | 4 => {
                if let Some(Ok(ticket)) = self.mortal(process, life, |owner| slot.issue(owner)) {
                    self.hold(process, [ticket], false);
                }
            }
            5 => {
                let value = input.number(slot.issued());
                let issued = self.mortal(process, life, |owner| slot.issue_up_to(owner, value));
                if let Some(Ok(tickets)) = issued {
                    self.hold(process, tickets, false);
                }
            }
            6 | 7 => {
                let issued = self.mortal(process, life, |owner| {
                    slot.mark_device_signals();
                    slot.issue(owner)
                });
                if let Some(Ok(ticket)) = issued {
                    self.hold(process, [ticket], true);
                }
            }
            8..11 => self.finish(process, choice, life, None),
            11 => self.finish(process, choice, life, Some(FailureReason::CommandFailed)),
            12 => self.kill(process),
            13 => self.recover(),
            14 => self.haunt(choice),
            15 => self.wait(input, choice),
            16 => self.wait_any(input, choice),
            17 => self.look(input),
            18 => self.prepare(input, process, life),
            19 => {
                let number = input.number(slot.issued());
                let living = self.living();
                let _ = self.mortal(process, life, |_| slot.help_device_wait(number, &living));
            }
            20 => self.mirror(input, process, life),
            21 => {
                let _ = self.mortal(process, life, |_| {
                    slot.mark_fallible();
                    slot.request_mirror();
                });
            }
            22 => {
                let number = input.number(slot.issued());
                let observed = !self.is_honest();
                if observed {
                    let _ = self.mortal(process, life, |_| slot.complete_observed(number));
                }
            }
            _ => {
                if let Some(writes) = &self.writes {
                    writes.apply(slot, usize::from(choice));
                }
            }
        }
        self.turns += 1;
        self.check();
    }

    /// Completes or fails one of a process's signals, or has its device write it.
    fn finish(&mut self, process: usize, choice: u8, life: u8, failure: Option<FailureReason>) {
        let held = &self.processes[process].held;
        if held.is_empty() {
            return;
        }
        let index = usize::from(choice / 4) % held.len();
        let Held { ticket, by_device } = held[index];
        let slot = self.slot;
        if by_device {
            if !slot.may_write(ticket) {
                return;
            }
            slot.word_of(ticket.number)
                .write_upper(ticket.number as u32);
            self.processes[process].held.remove(index);
            let _ = self.mortal(process, life, |_| slot.record_finished(ticket.number));
            return;
        }
        let completion = self.mortal(process, life, |_| match failure {
            None => slot.complete(ticket),
            Some(reason) => slot.fail(ticket, reason),
        });
        match completion {
            // The process was killed, and its place now has the signals of a new process.
            None => {}
            Some(Completion::TooEarly) => {}
            Some(Completion::Superseded) => {
                assert!(
                    !self.is_honest(),
                    "{ticket:?} was failed though its process lives"
                );
                self.processes[process].held.remove(index);
            }
            Some(Completion::Done) => {
                self.processes[process].held.remove(index);
                if self.is_honest() {
                    let expected = failure.map_or(Outcome::Complete, Outcome::Failed);
                    assert_eq!(slot.outcome(ticket.number), expected, "{ticket:?}");
                }
            }
        }
    }

    /// Fails the signals of dead processes, first those of the event under test and then those of
    /// the other event.
    fn recover(&mut self) {
        let (slot, living) = (self.slot, self.living());
        self.attacked(true, STEPS, || slot.fail_orphans(&living));
        self.check_other();
        let is_idle = self.processes.iter().all(|process| process.held.is_empty());
        if self.is_honest() && is_idle {
            assert_eq!(slot.completed(), slot.issued(), "an orphan is left");
        }
    }

    /// Lets the device of a dead process write.
    fn haunt(&mut self, choice: u8) {
        if self.ghosts.is_empty() {
            return;
        }
        let ticket = self.ghosts.remove(usize::from(choice) % self.ghosts.len());
        if self.slot.may_write(ticket) {
            let word = self.slot.word_of(ticket.number);
            word.write_upper(ticket.number as u32);
        }
    }

    fn deadline(&self, choice: u8) -> Duration {
        match choice % 4 {
            0 => Duration::ZERO,
            1 => Duration::from_micros(30),
            2 => Duration::from_millis(2),
            _ if self.is_honest() => Duration::from_millis(100),
            _ => Duration::from_micros(300),
        }
    }

    fn wait(&mut self, input: &mut Input<'_>, choice: u8) {
        let slot = self.slot;
        let number = input.number(slot.issued());
        let mode = match choice & 0x80 {
            0 => WaitMode::Spin,
            _ => WaitMode::LowPower,
        };
        let (limit, living) = (self.deadline(choice), self.living());
        let began = Instant::now();
        let deadline = Some(began + limit);
        let result = self.attacked(true, WAIT_STEPS, || {
            slot.wait(number, mode, deadline, &living)
        });
        let taken = Instant::now().saturating_duration_since(began);
        assert!(taken <= limit + LATENESS, "{limit:?} took {taken:?}");
        if self.is_honest() {
            let expected = match slot.outcome(number) {
                Outcome::Complete => Ok(()),
                Outcome::Failed(reason) => Err(WaitError::Failed(reason)),
                Outcome::Pending if result == Err(WaitError::Abandoned) => {
                    assert!(self.exporter_is_dead && number > slot.issued());
                    return;
                }
                Outcome::Pending => Err(WaitError::TimedOut),
            };
            assert_eq!(result, expected);
        }
    }

    /// Waits for the event under test and the other event, whose signal is pending.
    fn wait_any(&mut self, input: &mut Input<'_>, choice: u8) {
        let number = input.number(self.slot.issued());
        let (limit, living) = (self.deadline(choice), self.living());
        let everybody = Living([self.others_owner.get(); PROCESSES], false);
        let mut targets = [
            Target {
                slot: self.slot,
                number,
                liveness: &living,
            },
            Target {
                slot: self.other,
                number: self.others.number,
                liveness: &everybody,
            },
        ];
        let of_other = usize::from(choice & 0x40 == 0);
        if of_other == 0 {
            targets.reverse();
        }
        let mode = match choice & 0x80 {
            0 => WaitMode::Spin,
            _ => WaitMode::LowPower,
        };
        let began = Instant::now();
        let deadline = Some(began + limit);
        let result = self.attacked(true, WAIT_STEPS, || {
            wait_any(&targets, None, mode, deadline)
        });
        let taken = Instant::now().saturating_duration_since(began);
        assert!(taken <= limit + LATENESS, "{limit:?} took {taken:?}");
        let (index, result) = result.expect("no process interrupts");
        assert!(
            index != of_other || result == Err(WaitError::TimedOut),
            "the other event's signal has not finished, but: {result:?}"
        );
        if self.is_honest() && result.is_ok() {
            assert_eq!(self.slot.outcome(number), Outcome::Complete);
        }
    }

    /// Calls every operation that only reads.
    fn look(&mut self, input: &mut Input<'_>) {
        let slot = self.slot;
        let number = input.number(slot.issued());
        self.attacked(true, STEPS, || {
            let _ = slot.outcome(number);
            let _ = slot.completed();
            let _ = slot.latest_pending();
            let _ = slot.unfinished();
            let _ = slot.is_written(number);
            let _ = slot.is_fallible();
            let _ = slot.has_mirror_signal(number);
            let _ = slot.is_latest_of(number % (1 << 50), Owner::EXPORTER);
        });
        if self.is_honest() {
            let (issued, completed) = (slot.issued(), slot.completed());
            assert!(completed <= issued);
            let is_pending = slot.outcome(number) == Outcome::Pending;
            assert!(is_pending || number <= issued, "{number} was never taken");
            assert!(!is_pending || number > completed, "{number} is complete");
        }
    }

    fn prepare(&mut self, input: &mut Input<'_>, process: usize, life: u8) {
        let slot = self.slot;
        let number = input.number(slot.issued());
        let prepared = self.mortal(process, life, |_| slot.prepare_device_wait(number));
        if !self.is_honest() {
            return;
        }
        match prepared {
            Some(DeviceWait::Ready) => {
                assert_eq!(slot.outcome(number), Outcome::Pending);
                assert!(number <= MAX_NUMBER, "{number} never comes");
                assert!(
                    !slot.is_written(number),
                    "the device would not wait for {number}"
                );
            }
            Some(DeviceWait::Finished) => assert_ne!(slot.outcome(number), Outcome::Pending),
            Some(DeviceWait::TooFarAhead) => assert!(number > slot.issued()),
            None => {}
        }
    }

    fn mirror(&mut self, input: &mut Input<'_>, process: usize, life: u8) {
        let slot = self.slot;
        let number = input.number(slot.issued());
        match input.byte() % 4 {
            0 => {
                let _ = self.mortal(process, life, |_| {
                    if slot.begin_mirror_signal() {
                        slot.end_mirror_signal(number);
                    }
                });
            }
            1 => {
                let _ = self.mortal(process, life, |_| {
                    if let Some(promise) = slot.begin_mirror_wait(number) {
                        slot.end_mirror_wait();
                        let _ = slot.is_revoked(promise);
                    }
                });
            }
            2 => {
                let _ = self.mortal(process, life, |_| slot.revoke_mirror());
            }
            _ => {
                let _ = self.mortal(process, life, |_| slot.end_mirror_wait());
            }
        }
    }

    /// Checks the rules that hold between operations.
    fn check(&mut self) {
        if !self.is_honest() {
            return;
        }
        let slot = self.slot;
        let issued = slot.issued();
        assert!(issued >= self.issued, "{issued} after {}", self.issued);
        self.issued = issued;
        let completed = slot.completed();
        for held in self.processes.iter().flat_map(|process| &process.held) {
            let number = held.ticket.number;
            assert_eq!(slot.outcome(number), Outcome::Pending, "{number}");
            assert!(
                completed < number,
                "{number} is not, but {completed} is complete"
            );
        }
    }

    /// Checks that the other event's signal is still pending.
    fn check_other(&self) {
        let outcome = self.other.outcome(self.others.number);
        assert_eq!(outcome, Outcome::Pending, "another event's");
    }

    /// Completes or fails the other event's signal, and checks that its waiters are notified in
    /// spite of the attack.
    pub(crate) fn end(&mut self) {
        self.check_other();
        let (slot, other, number) = (self.slot, self.other, self.others.number);
        let living = self.living();
        let expected = match self.turns % 2 {
            0 => {
                assert_eq!(other.complete(self.others), Completion::Done);
                Ok(())
            }
            _ => {
                let dead = Living([0; PROCESSES], false);
                // A survivor checks all events of an arena in this way.
                self.attacked(true, STEPS, || slot.fail_orphans(&dead));
                other.fail_orphans(&dead);
                Err(WaitError::Failed(FailureReason::OwnerDied(Some(
                    self.others_owner,
                ))))
            }
        };
        let began = Instant::now();
        let deadline = Some(began + Duration::from_millis(2));
        let targets = [
            Target {
                slot,
                number: slot.issued().saturating_add(1),
                liveness: &living,
            },
            Target {
                slot: other,
                number,
                liveness: &living,
            },
        ];
        let result = self.attacked(true, WAIT_STEPS, || {
            wait_any(&targets, None, WaitMode::LowPower, deadline)
        });
        match result.expect("no process interrupts") {
            (1, result) => assert_eq!(result, expected, "another event's"),
            (_, Err(WaitError::TimedOut)) => panic!("a waiter missed what had finished"),
            (_, _) => assert!(!self.is_honest(), "no process signalled that"),
        }
    }
}
