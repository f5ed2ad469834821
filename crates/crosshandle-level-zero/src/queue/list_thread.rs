//! The thread of a command list. It waits for fences, ends commands, and does the host's part of
//! pending commands.

use super::command::{Command, complete_observed, copy_of, is_decided, may_never_reach_device};
use super::command_list::{ListCore, ListState, Rest};
use super::drain;
use super::in_flight::InFlight;
use crate::driver::EventHandle;
use crate::tuning::FENCE_WAIT_SLICE;
use crosshandle_hal::common::user_code;
use crosshandle_hal::{WaitList, WaitPoint, Work};
use crosshandle_ipc::Profile;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::Deadline;
use std::collections::{BTreeSet, VecDeque};
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time that a list's thread stays awake without a command before it sleeps. Waking the thread
/// costs the submitter 2 to 10 µs, and an awake thread uses a CPU.
const AWAKE_TIME: Duration = Duration::from_micros(40);

/// Interval at which an awake thread checks for commands. Each check takes cache lines from the
/// submitter. A longer interval delays the end of the first command after a pause.
const LOOK_INTERVAL: Duration = Duration::from_micros(5);

/// Maximum delay with which the thread notices the end of commands that no thread is known to wait
/// for. The memory of such commands is kept that much longer.
const UNAWAITED_DELAY: Duration = Duration::from_millis(5);

/// Number of wait slices for which a list may make no progress, although everything that it waits
/// for has completed or failed, before the list is abandoned. With one slice, a list that is about
/// to continue would be abandoned.
const MAX_OVERDUE_SLICES: u32 = 2;

/// The next step of the thread. Indexes refer to the commands in flight.
enum Step {
    /// The queue was dropped, and all commands have ended, so the thread exits.
    Exit,
    Rest(Rest),
    /// Ends this number of commands, which need no more of the list.
    End(usize),
    /// Waits for the fence at the start of this command.
    AwaitStart(usize, EventHandle),
    /// Waits for the fence at the end of this command, and ends it with all earlier commands.
    AwaitEnd(usize, EventHandle),
    /// Appends a fence, because urgent commands have none.
    AppendFence,
    /// Waits until the list is done with all commands, so that no event stays retained.
    AwaitRest,
    /// Does the host's part of the first pending command.
    RunPending,
}

/// The submitters' counts at the thread's latest check.
#[derive(Clone, Copy)]
struct Seen {
    submitted: u64,
    urgent: u64,
    is_closed: bool,
}

/// The result of a wait for a fence.
enum Waited {
    Signalled,
    Failed(Error),
    /// The list will never signal the fence.
    InVain,
}

impl ListCore {
    /// Runs the thread until the queue is dropped and all commands have ended.
    pub(super) fn run(&self) {
        drain::begin_own_thread();
        let mut ended = VecDeque::new();
        let mut has_dozed = false;
        let mut last_busy = Instant::now();
        // The number of commands that must end now, even if they are not urgent.
        let mut due = 0;
        loop {
            let seen = self.look(due);
            let step = self.next_step(&seen, has_dozed);
            has_dozed = false;
            match step {
                Step::Exit => return self.destroy_list(),
                Step::Rest(_) if last_busy.elapsed() < AWAKE_TIME && self.is_idle() => {
                    pause(LOOK_INTERVAL);
                    continue;
                }
                Step::Rest(rest) => {
                    has_dozed = self.rest(rest, &seen);
                    if has_dozed {
                        due = self.submitted();
                    }
                    continue;
                }
                Step::End(count) => self.end_first(count, Ok(()), 0, &mut ended),
                Step::AwaitStart(index, fence) => self.await_start(index, fence, &mut ended),
                Step::AwaitEnd(index, fence) => self.await_end(index, fence, &mut ended),
                Step::AppendFence => self.append_last_fence(&mut ended),
                Step::AwaitRest => self.await_rest(),
                Step::RunPending => self.run_pending(&mut ended),
            }
            last_busy = Instant::now();
        }
    }

    /// Reads what was submitted. Values are read in the opposite order of their writing, so that a
    /// closed list is seen with all its commands.
    fn look(&self, due: u64) -> Seen {
        let is_closed = self.is_closed();
        let urgent = self.urgent().max(due);
        Seen {
            is_closed,
            urgent,
            submitted: self.submitted(),
        }
    }

    fn next_step(&self, seen: &Seen, has_dozed: bool) -> Step {
        let in_flight = self.in_flight.lock();
        if in_flight.commands.is_empty() {
            let has_retained =
                !in_flight.retained_events.is_empty() || !in_flight.late_fences.is_empty();
            return match () {
                () if self.completed.get() < seen.submitted => Step::RunPending,
                () if has_retained => Step::AwaitRest,
                () if seen.is_closed => Step::Exit,
                () if has_dozed => Step::Rest(Rest::Asleep),
                () => Step::Rest(Rest::Dozing),
            };
        }
        let count = in_flight.ended_from(0);
        if count > 0 {
            return Step::End(count);
        }
        if self.completed.get() >= seen.urgent && !seen.is_closed {
            return Step::Rest(Rest::Dozing);
        }
        let Some((fence, position)) = in_flight.fences.first() else {
            return Step::AppendFence;
        };
        let index = (position.command() - in_flight.first) as usize;
        match position.is_start() {
            true => Step::AwaitStart(index, fence),
            false => Step::AwaitEnd(index, fence),
        }
    }

    /// Sleeps, unless there is more to do than was seen. Returns whether the thread dozed until the
    /// timeout.
    fn rest(&self, rest: Rest, seen: &Seen) -> bool {
        let mut state = self.state.lock();
        let now = self.look(seen.urgent);
        let is_more = now.urgent > seen.urgent || now.is_closed != seen.is_closed;
        if is_more || rest == Rest::Asleep && now.submitted > seen.submitted {
            return false;
        }
        state.rest = rest;
        let is_resting = |state: &mut ListState| state.rest == rest;
        let mut state = match rest {
            Rest::Dozing => {
                let wake = &self.work_added;
                wake.wait_timeout_while(state, UNAWAITED_DELAY, is_resting)
                    .0
            }
            _ => self.work_added.wait_while(state, is_resting),
        };
        mem::take(&mut state.rest) == Rest::Dozing
    }

    /// Appends a fence at the end of the list, unless a submitter has appended one meanwhile.
    fn append_last_fence(&self, ended: &mut VecDeque<Command>) {
        self.queue.context.stock_fences();
        let mut state = self.state.lock();
        let has_fence = self.in_flight.lock().fences.first().is_some();
        if has_fence {
            return;
        }
        // The list may accept no more calls, not even for a fence. Then no fence can tell when the
        // list is done.
        if let Err(error) = self.fence_all(&mut state) {
            let is_lost = state.end.is_lost(&error);
            state.end.set_all_fenced(None);
            let mut in_flight = self.in_flight.lock();
            let count = in_flight.commands.len();
            if !is_lost {
                self.leak_first(&mut in_flight, count);
            }
            drop((in_flight, state));
            self.end_first(count, Err(error), 0, ended);
        }
    }

    /// Waits for the fence behind the waits of a command.
    fn await_start(&self, index: usize, fence: EventHandle, ended: &mut VecDeque<Command>) {
        let waits: WaitList = {
            let in_flight = self.in_flight.lock();
            in_flight.commands[index]
                .waits
                .iter()
                .map(copy_of)
                .collect()
        };
        match self.wait_or_give_up(fence, &waits) {
            Waited::InVain => self.give_up_list(),
            Waited::Failed(error) => self.end_fenced((index, index + 1), Err(error), ended),
            Waited::Signalled => {
                complete_observed(&waits);
                let mut in_flight = self.in_flight.lock();
                in_flight.fences.remove_first();
                in_flight.commands[index].has_started = true;
                let count = index + in_flight.ended_from(index);
                drop(in_flight);
                self.end_fenced((index, count), Ok(()), ended);
                self.queue.context.recycle_fence(fence);
            }
        }
    }

    /// Waits for the fence behind a command, and ends the command with all earlier ones.
    fn await_end(&self, index: usize, fence: EventHandle, ended: &mut VecDeque<Command>) {
        let (last, waits) = {
            let in_flight = self.in_flight.lock();
            (in_flight.fences.last_end(), waits_up_to(&in_flight, index))
        };
        let result = match self.wait_or_give_up(fence, &waits) {
            Waited::InVain => return self.give_up_list(),
            Waited::Failed(error) => Err(error),
            Waited::Signalled => Ok(()),
        };
        // Usually the device is faster than this thread and has completed all commands.
        let last = last.filter(|(last, _)| result.is_ok() && *last != fence);
        let last = last.filter(|(last, _)| self.is_signalled(*last));
        let in_flight = self.in_flight.lock();
        let index = match last {
            Some((_, position)) => in_flight.last_ending_with(index, position.command()),
            None => index,
        };
        let count = in_flight.ended_with(index);
        drop(in_flight);
        self.end_fenced((index + 1, count), result, ended);
    }

    /// Ends the first `count` commands, after a wait for a fence behind the first `seen` of them.
    fn end_fenced(
        &self,
        (seen, count): (usize, usize),
        result: Result<()>,
        ended: &mut VecDeque<Command>,
    ) {
        let Err(error) = &result else {
            // The list has passed the events that were retained until now, and the parts of refused
            // commands.
            let mut in_flight = self.in_flight.lock();
            let retained = mem::take(&mut in_flight.retained_events);
            let late = mem::take(&mut in_flight.late_fences);
            in_flight.is_unsure = false;
            drop(in_flight);
            self.end_first(count, result, seen, ended);
            self.recycle_fences(late);
            drop(retained);
            return;
        };
        if !self.state.lock().end.is_lost(error) {
            self.leak_first(&mut self.in_flight.lock(), count);
        }
        self.end_first(count, result, 0, ended);
    }

    /// Ends the first `count` commands. The list is known to have passed the first `seen` of them.
    fn end_first(
        &self,
        count: usize,
        result: Result<()>,
        seen: usize,
        ended: &mut VecDeque<Command>,
    ) {
        let mut in_flight = self.in_flight.lock();
        let end = in_flight.first + count as u64;
        let fences = in_flight.fences.take_before(end);
        in_flight.take_first(count, ended);
        let is_closed = self.is_closed();
        drop(in_flight);
        for command in ended.iter_mut().take(seen) {
            command.may_be_partial = false;
            complete_observed(&command.waits);
        }
        let mut is_unsure = false;
        let mut retained = Vec::new();
        for command in ended.drain(..) {
            is_unsure |= command.may_be_partial;
            retained.extend(command.end(&self.queue, result.clone(), is_closed));
        }
        self.recycle_fences(fences);
        if is_unsure || !retained.is_empty() {
            let mut in_flight = self.in_flight.lock();
            in_flight.is_unsure |= is_unsure;
            in_flight.retained_events.append(&mut retained);
        }
        self.completed.add(count as u64);
    }

    fn recycle_fences(&self, fences: Vec<EventHandle>) {
        let context = &self.queue.context;
        fences
            .into_iter()
            .for_each(|fence| context.recycle_fence(fence));
    }

    /// Leaks the objects that the first `count` commands use, because no fence will tell when the
    /// list is done with them.
    fn leak_first(&self, in_flight: &mut InFlight, count: usize) {
        let end = in_flight.first + count as u64;
        self.lose_fences(in_flight.fences.take_before(end));
        for command in in_flight.commands.iter_mut().take(count) {
            command.leak_used();
            command.may_be_partial = true;
        }
    }

    /// Waits until the list has passed all its commands, and drops the retained events.
    fn await_rest(&self) {
        self.queue.context.stock_fences();
        let (fence, retained, late) = {
            let state = self.state.lock();
            let mut in_flight = self.in_flight.lock();
            // The fence must not be behind a command that may wait forever.
            if !in_flight.commands.is_empty() {
                return;
            }
            let retained = mem::take(&mut in_flight.retained_events);
            let late = mem::take(&mut in_flight.late_fences);
            drop(in_flight);
            (self.append_bare_fence(&state.end), retained, late)
        };
        let waited = fence.and_then(|fence| {
            let waited = self.queue.wait_for_fence(fence);
            waited
                .map(|()| fence)
                .inspect_err(|_| self.lose_fences([fence]))
        });
        match waited {
            Ok(fence) => self.recycle_fences(late.into_iter().chain([fence]).collect()),
            Err(error) if self.state.lock().end.is_lost(&error) => self.lose_fences(late),
            Err(error) => {
                tracing::warn!(%error, "a command list's end is not known");
                self.lose_fences(late);
                mem::forget(retained);
                self.in_flight.lock().is_unsure = true;
            }
        }
    }

    /// Does the host's part of the first pending command, if nothing is in flight before it. Ends
    /// the command if it has no other part.
    fn run_pending(&self, ended: &mut VecDeque<Command>) {
        let mut state = self.state.lock();
        // A submitter may have appended the command.
        let is_first = self.in_flight.lock().commands.is_empty();
        let Some(first) = state.pending.front_mut().filter(|_| is_first) else {
            return;
        };
        first.is_claimed = true;
        let waits = mem::take(&mut first.waits);
        let extras = first.extras.as_mut();
        let after = extras.map(|extras| mem::take(&mut extras.after));
        drop(state);
        after.iter().flatten().for_each(|flag| flag.wait());
        let failed = waits
            .iter()
            .find_map(|wait| wait.event.wait(wait.number, Deadline::NEVER).err());
        if let Some(error) = failed {
            return self.end_pending(Err(error), ended);
        }
        self.queue.context.stock_fences();
        let mut state = self.state.lock();
        let Some(mut first) = state.pending.pop_front() else {
            return;
        };
        if let Work::Call(_) = first.work {
            if let Some(profile) = first.profile() {
                Profile::stamp(&profile.started);
            }
            let work = mem::replace(&mut first.work, Work::Marker);
            state.pending.push_front(first);
            drop(state);
            let result = match work {
                Work::Call(function) => user_code::call(function),
                _ => Ok(()),
            };
            return self.end_pending(result, ended);
        }
        // All signals that the command waits for have completed, and its list of waits is now
        // empty.
        if let Some(first) = self.append_next(&mut state.end, first) {
            state.pending.push_front(first);
        }
        self.append_pending(&mut state);
        drop(state);
        if !self.is_closed() {
            // Prepares the next wait, because a submission must not wait for the reply of another
            // process.
            for wait in waits.iter() {
                wait.event.fetch_mirror();
                wait.event.request_mirror();
            }
        }
    }

    /// Ends the first pending command. No command is in flight before it.
    fn end_pending(&self, result: Result<()>, ended: &mut VecDeque<Command>) {
        let mut state = self.state.lock();
        if let Some(first) = state.pending.pop_front() {
            state.end.appended += 1;
            self.in_flight.lock().push(first);
        }
        drop(state);
        self.end_first(1, result, 0, ended);
    }

    /// Abandons a list that waits forever, and appends its commands to a new list. The objects that
    /// the commands use are leaked, because the driver may access them as long as the old list
    /// exists.
    fn give_up_list(&self) {
        let new_list = self.create_list().inspect_err(|error| {
            tracing::error!(%error, "there is no new command list");
        });
        self.queue.context.stock_fences();
        let mut state = self.state.lock();
        let state = &mut *state;
        let mut in_flight = self.in_flight.lock();
        tracing::warn!(
            device = self.queue.gpu.info().name,
            commands = in_flight.commands.len(),
            "a command list waits for a process that is gone; it is given up"
        );
        mem::forget(mem::replace(&mut state.end.list, new_list.ok()));
        mem::forget(mem::take(&mut in_flight.retained_events));
        self.lose_fences(in_flight.fences.take_before(u64::MAX));
        self.lose_fences(mem::take(&mut in_flight.late_fences));
        let mut commands = in_flight.take_all();
        in_flight.is_unsure = false;
        state.end.appended = in_flight.first;
        drop(in_flight);
        let mut revoked = BTreeSet::new();
        for command in &mut commands {
            command.leak_used();
            for wait in command.waits.iter_mut() {
                wait.promise = None;
            }
            (command.is_claimed, command.has_started) = (false, false);
            (command.may_be_partial, command.ends_with_previous) = (false, false);
            command.retains_mirror = false;
            // Other lists may wait for the old list's signals. Each event is revoked only once,
            // because the signals of the new list are promised anew.
            if mem::take(&mut command.signals_mirror)
                && let Some((event, _)) = &command.signal
                && revoked.insert(Arc::as_ptr(event))
            {
                event.revoke_mirror();
            }
        }
        commands.append(&mut state.pending);
        state.pending = commands;
        state.end.set_all_fenced(None);
        self.append_pending(state);
    }

    /// Destroys the driver's list after all commands. Leaks the list if it is unknown whether it is
    /// done.
    fn destroy_list(&self) {
        let list = self.state.lock().end.list.take();
        let is_unsure = self.in_flight.lock().is_unsure;
        match is_unsure {
            true => mem::forget(list),
            false => drop(list),
        }
    }

    /// Returns whether the list has signalled a fence.
    fn is_signalled(&self, fence: EventHandle) -> bool {
        let waited = self.queue.context.wait_for_fence(fence, Duration::ZERO);
        matches!(waited, Ok(true))
    }

    /// Waits for a fence that is behind waits for mirrors. Stops if the fence will never be
    /// signalled.
    fn wait_or_give_up(&self, fence: EventHandle, waits: &[WaitPoint]) -> Waited {
        let mut overdue = 0;
        loop {
            match self.queue.context.wait_for_fence(fence, FENCE_WAIT_SLICE) {
                Ok(true) => return Waited::Signalled,
                Ok(false) => {}
                Err(error) => return Waited::Failed(error),
            }
            for wait in waits {
                // Fails the signal of a process that has died.
                wait.event.help_device_wait(wait.number);
            }
            if waits.iter().all(is_decided) && waits.iter().any(may_never_reach_device) {
                overdue += 1;
            }
            if overdue == MAX_OVERDUE_SLICES {
                return Waited::InVain;
            }
        }
    }
}

/// Returns the signals that the list waits for before the end of the command at `index`. It leaves
/// out commands whose start fence shows that the list has passed their waits.
fn waits_up_to(in_flight: &InFlight, index: usize) -> WaitList {
    let count = match in_flight.is_any_waiting() {
        true => index + 1,
        false => 0,
    };
    let commands = in_flight.commands.iter().take(count);
    commands
        .filter(|command| command.waits_on_device() && !command.has_started)
        .flat_map(|command| command.waits.iter())
        .map(copy_of)
        .collect()
}

/// Spins for a given time. A sleep of a few microseconds would take many times as long.
fn pause(time: Duration) {
    // The submitter may run on this CPU or share its core.
    std::thread::yield_now();
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}
