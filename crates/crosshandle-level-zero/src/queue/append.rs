//! Appends commands, and the fences behind them, to the driver's list.
//!
//! A command needs no more calls of the driver than it would without this library. A fence covers
//! its command and all earlier ones. Most short commands have no fence of their own and end with a
//! later one. As long as a thread may wait for a command, at least one fence is in flight. If no
//! submitter appends the next one, the list's thread does.

use super::command::Command;
use super::command_list::{ListCore, ListEnd, ListState};
use super::fences::Position;
use super::work::{self, Target};
use crate::driver::EventHandle;
use crate::event;
use crosshandle_events::Outcome;
use crosshandle_hal::WaitPoint;
use crosshandle_ipc::{EventCore, MirrorHold, Profile};
use crosshandle_types::error::Result;
use smallvec::SmallVec;
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// Maximum number of short commands that share one fence. The memory of the first command is kept
/// until all of them have finished.
const MAX_COMMANDS_PER_FENCE: u32 = 256;

/// The way in which a list waits for a signal.
enum DeviceWait<'a> {
    /// The signal has completed.
    Done,
    /// Only the host can wait for the signal.
    Host,
    /// The device waits for the native mirror. No queue signals the mirror while the hold lives.
    Mirror(EventHandle, MirrorHold<'a>),
}

impl ListCore {
    /// Appends a command that comes directly after those in flight. Returns the command if the host
    /// must first wait for something. A command that the driver refuses fails when its turn comes.
    pub(super) fn append_next(&self, end: &mut ListEnd, command: Command) -> Option<Command> {
        if end.has_new_fences() {
            // After a panic, these fences are behind an unknown part of a command.
            self.lose_fences(end.take_back_fences(0));
        }
        // Once the list has a part of the command, a panic must not drop the objects that it uses.
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

    /// Appends a command. Returns `false` if the host must first wait for something.
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
            // The list already has the command's waits.
            let is_fenced = end.fence_of_next().is_some();
            if command.waits_on_device() && !is_fenced && !command.may_be_partial {
                self.fence_or_leak(end, command);
            }
            command.ends_with_previous = end.fence_of_next().is_none_or(Position::is_start);
        }
        true
    }

    /// Makes the list wait for the mirrors of incomplete signals. Returns `false` if a signal has
    /// no mirror, so that the host must wait.
    fn append_waits(&self, end: &mut ListEnd, command: &mut Command) -> Result<bool> {
        let mut waits = command.waits.iter();
        if end.is_awaited && waits.any(|wait| wait.event.has_mirror_signal(wait.number)) {
            // This wait may end only after a thread that waits for an earlier command continues.
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
            // If the command is long, a fence after the wait shows when the list starts it.
            false => self
                .append_wait(end, &handles, command.is_long)
                .map(|()| true),
        };
        drop(holds);
        if !matches!(waited, Ok(true)) {
            // The list has no part of the command.
            let waits = command.waits.iter_mut();
            waits.for_each(|wait| wait.promise = None);
        }
        waited
    }

    /// Returns the way in which the list can wait for a signal.
    fn device_wait<'a>(&self, wait: &'a mut WaitPoint) -> DeviceWait<'a> {
        let WaitPoint {
            event,
            number,
            promise,
            ..
        } = wait;
        let mirror = self.hold_mirror(event, *number);
        // The signal may have failed meanwhile, and lists do not notice failures.
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

    /// Returns the mirror of an event if its latest signal has number `number`. No other signal
    /// follows until the result is dropped.
    fn hold_mirror<'a>(
        &self,
        event: &'a Arc<EventCore>,
        number: u64,
    ) -> Option<(EventHandle, MirrorHold<'a>)> {
        if !event.has_mirror_signal(number) {
            return None;
        }
        let handle = event::mirror_to_wait_for(event, &self.queue.context)?;
        // Fails the signal of a process that has died. Intel's driver would ask that process where
        // its signal is stored. If the request fails, the driver terminates this process.
        if !event.is_ours(number) {
            event.help_device_wait(number);
        }
        Some((handle, event.hold_mirror(number)?))
    }

    /// Makes the list wait for events. If `is_fenced` is set, a fence follows the waits.
    fn append_wait(
        &self,
        end: &mut ListEnd,
        events: &[EventHandle],
        is_fenced: bool,
    ) -> Result<()> {
        let list = end.list()?;
        let context = &self.queue.context;
        let started = is_fenced.then(|| context.take_fence()).transpose()?;
        // SAFETY: the command keeps the events, and the command and the fence are kept until the
        // list has passed the waits.
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

    /// Appends a command's work. If lists signal the mirror of its event, also appends that signal.
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

    /// Appends a command's work, and makes the list signal a mirror or a fence after it.
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
            // Without a fence, no thread could tell whether the list waits or is busy.
            end.is_awaited |= end.has_waits;
            self.fence_awaited(end)?;
        }
        // In addition to a mirror, a fence needs a call of its own. The latest fence is therefore
        // good enough.
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
        // SAFETY: the command keeps all objects that its work uses, and is kept until the list has
        // passed the work. If the list never does, or if that is unknown, the objects are leaked.
        let appended = unsafe { target.append(&command.work, command.staging(), fence.or(mirror)) };
        if appended.is_err() {
            match target.has_begun {
                false => fence
                    .into_iter()
                    .for_each(|fence| context.return_fence(fence)),
                // It is unknown whether the list has the fence.
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
            // The thread appends a fence when it reaches the command.
            tracing::debug!(%error, "a command goes without a fence");
        }
        Ok(())
    }

    /// Appends a command without work. Such a command ends with the earlier commands, so it needs a
    /// fence only if no other fence covers them.
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
            // SAFETY: the event lives until the list has passed this command. The command keeps it,
            // and it is retained after the command has ended.
            unsafe { end.list()?.signal(mirror)? };
        } else if is_awaited {
            return self.append_fence(end, end.appended);
        }
        end.is_awaited |= is_awaited;
        Ok(())
    }

    /// Ensures that a thread that waits for a command in flight need not wait for the next command
    /// too.
    fn fence_awaited(&self, end: &mut ListEnd) -> Result<()> {
        match end.is_awaited && self.completed.get() < end.appended {
            true => self.append_fence(end, end.appended - 1),
            false => Ok(()),
        }
    }

    /// Appends a fence behind a command of which the list has a part. If that fails, leaks the
    /// objects that the command uses.
    fn fence_or_leak(&self, end: &mut ListEnd, command: &mut Command) {
        let number = end.appended;
        if self.append_fence(end, number).is_err() {
            self.lose_fences(end.take_back_fences(number));
            command.leak_used();
            command.may_be_partial = true;
        }
    }

    /// Returns whether the thread is about to wait for a fence. After that wait, the next submitter
    /// appends another fence. If no submitter does, the thread appends one when it reaches the last
    /// command.
    fn is_ahead(&self, fence: Option<Position>) -> bool {
        fence.is_some_and(|position| self.completed.get() <= position.command())
    }

    /// Abandons fences, because the list may signal them as long as it lives.
    pub(super) fn lose_fences(&self, fences: impl IntoIterator<Item = EventHandle>) {
        let context = &self.queue.context;
        fences
            .into_iter()
            .for_each(|fence| context.lose_fence(fence));
    }

    /// Appends a fence behind command number `command`, which is the last command.
    fn append_fence(&self, end: &mut ListEnd, command: u64) -> Result<()> {
        let fence = self.append_bare_fence(end)?;
        end.add_fence(fence, Position::end_of(command));
        Ok(())
    }

    /// Appends a fence without recording it as one of the list's.
    pub(super) fn append_bare_fence(&self, end: &ListEnd) -> Result<EventHandle> {
        let list = end.list()?;
        let fence = self.queue.context.take_fence()?;
        // SAFETY: the fence is not returned before the list has signalled it.
        if let Err(error) = unsafe { list.signal(fence) } {
            self.queue.context.return_fence(fence);
            return Err(error);
        }
        Ok(fence)
    }

    /// Makes the list signal a fence after all its commands.
    pub(super) fn fence_all(&self, state: &mut ListState) -> Result<()> {
        let last = state.end.appended - 1;
        self.append_fence(&mut state.end, last)?;
        state.end.give_new_fences(&mut self.in_flight.lock());
        Ok(())
    }
}
