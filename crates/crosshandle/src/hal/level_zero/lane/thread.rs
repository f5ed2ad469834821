//! A lane's thread: it looks how far the list is, and ends commands.

use super::Inner;
use super::end::Left;
use super::front::{Front, Rest, Tip};
use super::marks::Moment;
use super::running::Running;
use crate::error::{Error, Result};
use crate::hal::WaitList;
use crate::hal::level_zero::driver::EventHandle;
use crate::hal::level_zero::entry::{complete_observed, copy_of};
use crate::hal::level_zero::leaving;
use crate::ipc::wait_notice;
use std::mem;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How late commands may end that nobody is known to wait for, and how long a submission finds the
/// thread awake.
const NAP: Duration = Duration::from_millis(5);
/// What comes within this time is looked at together: each look takes memory out of the caches of
/// whoever submits.
const PAUSE: Duration = Duration::from_micros(5);
/// As long as more comes within this time, it is looked at together too, but not for so many times
/// more.
const LONG_PAUSE: Duration = Duration::from_micros(8);
const LONG_PAUSES: u32 = 5;
/// How often it spins between two looks at the clock.
const SPINS: u32 = 16;
/// So many of these the thread stays awake with nothing to do: waking it takes the one who submits
/// longer than all the rest.
const PAUSES: u32 = 8;

/// What the thread does next.
enum Step {
    /// Its queue was dropped, and all is done.
    Exit,
    Rest(Rest),
    /// So many commands are over.
    End(usize, Result<()>),
    /// Waits for this mark: then the list has begun with this command.
    AwaitStart(usize, EventHandle),
    /// The same, and then it is done with that.
    AwaitEnd(usize, EventHandle),
    /// Waits until it is done with all, after which nothing lingers.
    AwaitRest,
    /// Does what the host has to for the first one.
    Release,
}

/// What there was when the thread looked.
#[derive(Default)]
struct Seen {
    submitted: u64,
    /// Up to here, it is to look at commands now.
    pressing: u64,
    is_closed: bool,
}

impl Inner {
    /// The thread. It ends when the queue is dropped and all its commands are done.
    pub(super) fn run(&self) {
        leaving::begin();
        let mut left = Left::default();
        let mut has_napped = false;
        let mut pauses = 0;
        // Up to here, it is to look at commands now, whoever asks for that.
        let mut pressing = 0;
        let mut seen = Seen::default();
        // So many waits of hosts had begun when it last looked because of them.
        let mut answered = 0;
        loop {
            if left.count > 0 {
                self.ended.0.add(left.count);
                pauses = PAUSES;
                if left.goes_on {
                    self.let_come(&seen, &mut answered);
                }
            }
            let mut running = self.running();
            self.take_in(&mut running, &mut left);
            seen = self.look_at(pressing);
            if pauses > 0 && seen.submitted == self.ended() && !seen.is_closed {
                pauses -= 1;
                drop(running);
                pause(PAUSE, || false);
                continue;
            }
            self.receive(&mut running);
            let step = self.next(&mut running, &seen, has_napped);
            has_napped = false;
            match step {
                Step::Exit => return self.exit(running),
                Step::Rest(rest) => {
                    drop(running);
                    has_napped = self.rest(rest, &seen);
                    if has_napped {
                        pressing = self.submitted();
                    }
                }
                Step::End(count, result) => self.end(running, count, result, &mut left),
                Step::AwaitStart(index, mark) => {
                    self.await_start(running, (index, mark), &mut left);
                }
                Step::AwaitEnd(index, mark) => self.await_end(running, (index, mark), &mut left),
                Step::AwaitRest => self.await_rest(running),
                Step::Release => self.release(running, &mut left),
            }
        }
    }

    /// What was submitted, before the thread receives it. After a nap, it is to look at all.
    fn look_at(&self, pressing: u64) -> Seen {
        // In the other order than Drop writes it.
        let is_closed = self.is_closed();
        let asked = self.submitted.0.pressing.load(Ordering::Acquire);
        Seen {
            is_closed,
            pressing: pressing.max(asked),
            submitted: self.submitted(),
        }
    }

    /// Takes in what is in the list.
    fn receive(&self, running: &mut Running) {
        if !running.receive() {
            running.receive_all(&mut self.front_in_turn());
        }
    }

    fn next(&self, running: &mut Running, seen: &Seen, has_napped: bool) -> Step {
        if running.entries.is_empty() {
            let is_past = running.lingering.is_empty() && running.late.is_empty();
            return match is_past {
                _ if self.ended() < seen.submitted => Step::Release,
                false => Step::AwaitRest,
                true if seen.is_closed => Step::Exit,
                true if has_napped => Step::Rest(Rest::Sleep),
                true => Step::Rest(Rest::Nap),
            };
        }
        let over = Self::over_from(running, 0);
        if over > 0 {
            return Step::End(over, Ok(()));
        }
        if self.ended() >= seen.pressing && !seen.is_closed {
            return Step::Rest(Rest::Nap);
        }
        if let Some(step) = Self::await_mark(running) {
            return step;
        }
        self.mark_all(running)
    }

    /// Waits for the first mark, if there is one.
    fn await_mark(running: &Running) -> Option<Step> {
        let (mark, moment) = running.marks.first()?;
        let index = (moment.command() - running.first) as usize;
        Some(match moment.is_start() {
            true => Step::AwaitStart(index, mark),
            false => Step::AwaitEnd(index, mark),
        })
    }

    /// Lets the list tell when it is done with all that it has.
    fn mark_all(&self, running: &mut Running) -> Step {
        let mut front = self.front_in_turn();
        running.receive_all(&mut front);
        if let Some(step) = Self::await_mark(running) {
            return step;
        }
        let mark = match self.append_mark(&mut front.tip) {
            Ok(mark) => mark,
            Err(error) => return self.fail_all(&mut front.tip, running, error),
        };
        let last = front.tip.appended - 1;
        front.tip.set_mark(mark, Moment::end_of(last));
        front.tip.tell_marks();
        running.receive_all(&mut front);
        Step::AwaitEnd((last - running.first) as usize, mark)
    }

    /// The list takes nothing any more, not even a mark: nobody will know when it is done.
    fn fail_all(&self, tip: &mut Tip, running: &mut Running, error: Error) -> Step {
        if !tip.is_lost(&error) {
            self.leave(running, running.entries.len());
        }
        tip.set_marked(None);
        Step::End(running.entries.len(), Err(error))
    }

    /// Ends the list, after all commands.
    fn exit(&self, running: MutexGuard<'_, Running>) {
        let list = self.front_in_turn().tip.list.take();
        let is_unsure = running.is_unsure;
        drop(running);
        match is_unsure {
            true => mem::forget(list),
            false => drop(list),
        }
    }

    /// Sleeps, unless more has come than was seen; whether it was a nap to its end.
    fn rest(&self, rest: Rest, seen: &Seen) -> bool {
        let mut front = self.front_in_turn();
        let now = self.look_at(seen.pressing);
        let is_more = now.pressing > seen.pressing || now.is_closed != seen.is_closed;
        if is_more || rest == Rest::Sleep && now.submitted > seen.submitted {
            return false;
        }
        front.rest = rest;
        let added = &self.added;
        let is_resting = |front: &mut Front| front.rest == rest;
        let mut front = match rest {
            Rest::Nap => {
                let waited = added.wait_timeout_while(front, NAP, is_resting);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            _ => added
                .wait_while(front, is_resting)
                .unwrap_or_else(PoisonError::into_inner),
        };
        mem::take(&mut front.rest) == Rest::Nap
    }

    fn await_end(
        &self,
        running: MutexGuard<'_, Running>,
        (index, done): (usize, EventHandle),
        left: &mut Left,
    ) {
        let last = running.marks.last_end();
        let looked_at = if running.is_any_waiting() {
            index + 1
        } else {
            0
        };
        let entries = running.entries.iter().take(looked_at);
        // Of those with a mark of their own, the list is past the waits.
        let waits = entries.filter(|entry| entry.waits_on_device() && !entry.is_begun);
        let waits: WaitList = waits
            .flat_map(|entry| entry.waits.iter())
            .map(copy_of)
            .collect();
        drop(running);
        let result = match self.wait_or_give_up(done, &waits) {
            Ok(true) => Ok(()),
            Ok(false) => return self.give_up_list(),
            Err(error) => Err(error),
        };
        // As a rule the device is faster than this thread, and done with all.
        let last = last.filter(|(mark, _)| result.is_ok() && *mark != done);
        let last = last.filter(|(mark, _)| self.is_past(*mark));
        let running = self.running();
        let index = match last {
            Some((_, moment)) => Self::latest_without_times(&running, index, moment.command()),
            None => index,
        };
        let count = Self::over_with(&running, index);
        self.end_marked(running, (index + 1, count), result, left);
    }

    /// Waits for the driver's own events, as the list does.
    fn await_start(
        &self,
        running: MutexGuard<'_, Running>,
        (index, started): (usize, EventHandle),
        left: &mut Left,
    ) {
        let entry = &running.entries[index];
        let waits: WaitList = entry.waits.iter().map(copy_of).collect();
        drop(running);
        let result = match self.wait_or_give_up(started, &waits) {
            Ok(true) => Ok(()),
            Ok(false) => return self.give_up_list(),
            Err(error) => Err(error),
        };
        let mut running = self.running();
        if result.is_err() {
            return self.end_marked(running, (index, index + 1), result, left);
        }
        complete_observed(&waits);
        running.marks.take_first();
        running.entries[index].is_begun = true;
        let count = index + Self::over_from(&running, index);
        self.end_marked(running, (index, count), Ok(()), left);
        self.refresh([started]);
    }

    /// Waits until the list is past all that it has, and lets go of what lingers.
    fn await_rest(&self, mut running: MutexGuard<'_, Running>) {
        let mut front = self.front_in_turn();
        // The mark must not be behind something that may wait for ever.
        running.receive_all(&mut front);
        if !running.entries.is_empty() {
            return;
        }
        let mark = self.append_mark(&mut front.tip);
        let lingering = mem::take(&mut running.lingering);
        let late = mem::take(&mut running.late);
        drop((front, running));
        let waited = mark.and_then(|mark| {
            let waited = self.wait_for(mark);
            waited.map(|()| mark).inspect_err(|_| self.lose([mark]))
        });
        match waited {
            Ok(mark) => self.refresh(late.into_iter().chain([mark])),
            Err(error) if self.front_in_turn().tip.is_lost(&error) => self.lose(late),
            Err(error) => {
                tracing::warn!(%error, "a command list's end is not known");
                self.lose(late);
                mem::forget(lingering);
                self.running().is_unsure = true;
            }
        }
    }

    /// Lets commands come together after those that were seen, unless somebody waits, who may do so
    /// for the latest one. Once for each wait that has begun.
    fn let_come(&self, seen: &Seen, answered: &mut u64) {
        let mut is_asked = || {
            let waits = wait_notice::count();
            let is_new = mem::replace(answered, waits) != waits;
            is_new || self.ended.0.is_awaited() && !self.is_idle()
        };
        let mut before = seen.submitted;
        let mut time = PAUSE;
        for _ in 0..=LONG_PAUSES {
            let is_over = pause(time, &mut is_asked);
            let now = self.submitted();
            if is_over || now == before {
                return;
            }
            (before, time) = (now, LONG_PAUSE);
        }
    }
}

/// Lets some time pass, awake: a sleep of some µs takes many times as long. Whether it was not to
/// its end.
fn pause(time: Duration, mut is_over: impl FnMut() -> bool) -> bool {
    // Whoever submits may have this CPU, or share its core.
    std::thread::yield_now();
    let end = Instant::now() + time;
    while Instant::now() < end {
        if is_over() {
            return true;
        }
        for _ in 0..SPINS {
            std::hint::spin_loop();
        }
    }
    false
}
