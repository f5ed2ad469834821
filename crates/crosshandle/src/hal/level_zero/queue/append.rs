//! Appending of commands to the driver's list, with the fences behind them.
//!
//! A command is as few calls of the driver as it would be without this library. A fence stands for
//! its command and all before it: most short commands have none of their own, and end with a later
//! one. As long as a thread may wait for a command, there is at least one fence in flight; the list's
//! thread, when it comes to that, appends the next.

use super::command::Command;
use super::command_list::{Inner, ListEnd, ListState};
use super::fences::Position;
use super::work::{self, Target};
use crate::error::Result;
use crate::event_protocol::Outcome;
use crate::hal::WaitPoint;
use crate::hal::level_zero::driver::EventHandle;
use crate::hal::level_zero::event;
use crate::hal::level_zero::tuning::MAX_COMMANDS_PER_FENCE;
use crate::ipc::{EventCore, MirrorHold, Profile};
use smallvec::SmallVec;
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// A way for a list to wait for a signal.
enum DeviceWait<'a> {
    /// The signal has come.
    Done,
    /// Only the host can wait for the signal.
    Host,
    /// The native mirror, which no queue signals meanwhile.
    Mirror(EventHandle, MirrorHold<'a>),
}

impl Inner {
    /// Appends a command that comes right after those in flight. Gives it back if the host has to
    /// wait for something first. A command that the driver refuses fails when its turn comes.
    pub(super) fn append_next(&self, end: &mut ListEnd, command: Command) -> Option<Command> {
        if end.has_new_fences() {
            // There was a panic, and they are behind an unknown part of a command.
            self.lose_fences(end.take_back_fences(0));
        }
        // Once the list has a part of it, a panic must not drop what it uses.
        let mut command = ManuallyDrop::new(command);
        let is_appended = self.append(end, &mut command);
        let command = ManuallyDrop::into_inner(command);
        let mut in_flight = self.in_flight.lock();
        end.give_new_fences(&mut in_flight);
        if !is_appended {
            return Some(command);
        }
        end.appended += 1;
        in_flight.push(command);
        None
    }

    /// Appends a command; returns `false` if the host has to wait for something first.
    #[inline]
    fn append(&self, end: &mut ListEnd, command: &mut Command) -> bool {
        if command.has_failed() {
            command.ends_with_previous = true;
            return true;
        }
        let waited = match command.waits.is_empty() {
            true => Ok(true),
            false => self.append_waits(end, command),
        };
        let appended = match waited {
            Ok(false) => return false,
            Ok(true) => self.append_signalling(end, command),
            Err(error) => Err(error),
        };
        if let Err(error) = appended {
            command.extras().failure = Some(error);
            // The list has its waits.
            let is_fenced = end.fence_of_next().is_some();
            if command.waits_on_device() && !is_fenced && !command.may_be_partial {
                self.fence_or_leak(end, command);
            }
            command.ends_with_previous = end.fence_of_next().is_none_or(Position::is_start);
        }
        true
    }

    /// Lets the list wait for the mirrors of signals that have not come. Returns `false` if a signal
    /// has none, so that the host has to wait.
    fn append_waits(&self, end: &mut ListEnd, command: &mut Command) -> Result<bool> {
        let mut waits = command.waits.iter();
        if end.is_awaited && waits.any(|wait| wait.event.has_mirror_signal(wait.number)) {
            // A thread that waits for a command before may have to go on so that this wait ends.
            self.fence_awaited(end)?;
        }
        let mut handles = SmallVec::<[EventHandle; 4]>::new();
        let mut holds = SmallVec::<[MirrorHold<'_>; 4]>::new();
        let mut needs_host = false;
        for wait in &mut *command.waits {
            match self.device_wait(wait) {
                DeviceWait::Done => {}
                DeviceWait::Host => {
                    needs_host = true;
                    break;
                }
                DeviceWait::Mirror(handle, hold) => {
                    handles.push(handle);
                    holds.push(hold);
                }
            }
        }
        if handles.is_empty() && !needs_host {
            return Ok(true);
        }
        let waited = match needs_host {
            true => Ok(false),
            // With something long behind it, the list is to tell when it has started with that.
            false => self
                .append_wait(end, &handles, command.is_long)
                .map(|()| true),
        };
        drop(holds);
        if !matches!(waited, Ok(true)) {
            // The list has nothing of it.
            let waits = command.waits.iter_mut();
            waits.for_each(|wait| wait.promise = None);
        }
        waited
    }

    /// Finds out how the list can wait for a signal.
    fn device_wait<'a>(&self, wait: &'a mut WaitPoint) -> DeviceWait<'a> {
        let WaitPoint {
            event,
            number,
            promise,
            ..
        } = wait;
        let mirror = self.hold_mirror(event, *number);
        // It may have failed meanwhile, which lists don't know.
        match (event.outcome(*number), mirror) {
            (Outcome::Complete, _) => DeviceWait::Done,
            (Outcome::Pending, Some((handle, hold))) => {
                *promise = Some(hold.promise);
                DeviceWait::Mirror(handle, hold)
            }
            (Outcome::Pending, None) => {
                event.request_mirror();
                DeviceWait::Host
            }
            (Outcome::Failed(_), _) => DeviceWait::Host,
        }
    }

    /// Returns the mirror of an event, if its latest signal is number `number`. It stays so until
    /// the result is dropped.
    fn hold_mirror<'a>(
        &self,
        event: &'a Arc<EventCore>,
        number: u64,
    ) -> Option<(EventHandle, MirrorHold<'a>)> {
        if !event.has_mirror_signal(number) {
            return None;
        }
        let handle = event::mirror_to_wait_for(event, &self.queue.context)?;
        // Fails the signal of a process that died: to find what that has signalled with, Intel's
        // driver asks the process, and ends this one where that fails.
        if !event.is_ours(number) {
            event.help_device_wait(number);
        }
        Some((handle, event.hold_mirror(number)?))
    }

    /// Lets the list wait for events, with a fence behind the waits if `is_fenced`.
    fn append_wait(
        &self,
        end: &mut ListEnd,
        events: &[EventHandle],
        is_fenced: bool,
    ) -> Result<()> {
        let list = end.list()?;
        let context = &self.queue.context;
        let started = is_fenced.then(|| context.take_fence()).transpose()?;
        // SAFETY: the command has the events, and is kept until the list is past this, as the fence
        // is.
        if let Err(error) = unsafe { list.wait(events, started) } {
            started
                .into_iter()
                .for_each(|fence| context.return_fence(fence));
            return Err(error);
        }
        if let Some(started) = started {
            end.add_fence(started, Position::start_of(end.appended));
        } else {
            end.unfenced += 1;
            end.has_waits = true;
        }
        Ok(())
    }

    /// Appends a command's work and the signal of its event's mirror, if lists are to signal that.
    #[inline]
    fn append_signalling(&self, end: &mut ListEnd, command: &mut Command) -> Result<()> {
        if let Some(profile) = command.profile() {
            Profile::stamp(&profile.started);
        }
        let Some((event, number)) = &command.signal else {
            return self.append_work(end, command, None);
        };
        let find = || event::mirror_to_signal(event, &self.queue.context);
        let Some(mirror) = event.begin_mirror_signal(find) else {
            return self.append_work(end, command, None);
        };
        let number = *number;
        let appended = self.append_work(end, command, Some(mirror));
        command.signals_mirror = appended.is_ok();
        if let Some((event, _)) = &command.signal {
            event.end_mirror_signal(appended.as_ref().map_or(0, |()| number));
        }
        appended
    }

    /// Appends a command's work, and lets the list signal a mirror or a fence after it.
    #[inline]
    fn append_work(
        &self,
        end: &mut ListEnd,
        command: &mut Command,
        mirror: Option<EventHandle>,
    ) -> Result<()> {
        if work::bytes(&command.work) == 0 {
            return self.append_marker(end, command, mirror);
        }
        let is_awaited = command.is_awaited();
        if command.is_long {
            // Whether the list waits or is busy could not be told.
            end.is_awaited |= end.has_waits;
            self.fence_awaited(end)?;
        }
        // A fence beside a mirror is a call of its own, so the latest one will do.
        let fence_ahead = match mirror {
            Some(_) => end.last_fence,
            None => end.fence_before,
        };
        let wants_fence = command.is_long
            || is_awaited && !self.is_ahead(fence_ahead)
            || end.unfenced + 1 >= MAX_COMMANDS_PER_FENCE;
        let context = &self.queue.context;
        let list = end.list()?;
        let fence = match mirror {
            None if wants_fence => Some(context.take_fence()?),
            _ => None,
        };
        let mut target = Target::new(&self.queue.gpu, list);
        // SAFETY: the command has all that its work uses, and is kept until the list is past this;
        // if it never is, or that is not known, what it uses is leaked.
        let appended = unsafe { target.append(&command.work, command.staging(), fence.or(mirror)) };
        if appended.is_err() {
            match target.has_begun {
                false => fence
                    .into_iter()
                    .for_each(|fence| context.return_fence(fence)),
                // Whether the list has the fence is not known.
                true => {
                    self.lose_fences(fence);
                    self.fence_or_leak(end, command);
                }
            }
            return appended;
        }
        if let Some(fence) = fence {
            end.add_fence(fence, Position::end_of(end.appended));
            return Ok(());
        }
        end.unfenced += 1;
        end.is_awaited |= is_awaited;
        if wants_fence && let Err(error) = self.append_fence(end, end.appended) {
            // The thread appends one when it comes to the command.
            tracing::debug!(%error, "a command goes without a fence");
        }
        Ok(())
    }

    /// Appends a command without work. It ends with all before it, so it needs a fence only if
    /// nothing else tells that.
    fn append_marker(
        &self,
        end: &mut ListEnd,
        command: &mut Command,
        mirror: Option<EventHandle>,
    ) -> Result<()> {
        command.ends_with_previous = !command.waits_on_device() || end.fence_of_next().is_some();
        let is_awaited = command.is_awaited() && end.unfenced > 0;
        if let Some(mirror) = mirror {
            command.retains_mirror = true;
            // SAFETY: the event stays until the list is past this: the command has it, and then it
            // is retained.
            unsafe { end.list()?.signal(mirror)? };
        } else if is_awaited {
            return self.append_fence(end, end.appended);
        }
        end.is_awaited |= is_awaited;
        Ok(())
    }

    /// Makes sure that a thread that waits for a command in flight need not wait for the next one.
    fn fence_awaited(&self, end: &mut ListEnd) -> Result<()> {
        match end.is_awaited && self.completed.get() < end.appended {
            true => self.append_fence(end, end.appended - 1),
            false => Ok(()),
        }
    }

    /// Appends a fence behind a command of which the list has a part, or leaks what it uses.
    fn fence_or_leak(&self, end: &mut ListEnd, command: &mut Command) {
        let number = end.appended;
        if self.append_fence(end, number).is_err() {
            self.lose_fences(end.take_back_fences(number));
            command.leak_used();
            command.may_be_partial = true;
        }
    }

    /// Returns whether the thread is about to wait for a fence. After that a submitter appends
    /// another one; if none does, the thread, when it comes to the last command.
    fn is_ahead(&self, fence: Option<Position>) -> bool {
        fence.is_some_and(|position| self.completed.get() <= position.command())
    }

    /// Gives up fences: the list may signal them as long as it lives.
    pub(super) fn lose_fences(&self, fences: impl IntoIterator<Item = EventHandle>) {
        let context = &self.queue.context;
        fences
            .into_iter()
            .for_each(|fence| context.lose_fence(fence));
    }

    /// Appends a fence behind command number `command`, which is the last one.
    fn append_fence(&self, end: &mut ListEnd, command: u64) -> Result<()> {
        let fence = self.append_bare_fence(end)?;
        end.add_fence(fence, Position::end_of(command));
        Ok(())
    }

    /// Appends a fence that is not noted as one of the list's.
    pub(super) fn append_bare_fence(&self, end: &ListEnd) -> Result<EventHandle> {
        let list = end.list()?;
        let fence = self.queue.context.take_fence()?;
        // SAFETY: it is not given back before the list has signalled it.
        if let Err(error) = unsafe { list.signal(fence) } {
            self.queue.context.return_fence(fence);
            return Err(error);
        }
        Ok(fence)
    }

    /// Makes the list signal a fence when it is done with all that it has.
    pub(super) fn fence_all(&self, state: &mut ListState) -> Result<()> {
        let last = state.end.appended - 1;
        self.append_fence(&mut state.end, last)?;
        state.end.give_new_fences(&mut self.in_flight.lock());
        Ok(())
    }
}
