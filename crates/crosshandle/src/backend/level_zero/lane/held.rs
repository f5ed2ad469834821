//! What a lane's thread does for commands that are held, or held up.
//!
//! A list that waits for a signal of a process that died never goes on. It is given up, with what
//! its commands use, and they are appended to a new one.

use super::Inner;
use super::end::Left;
use super::state::State;
use crate::backend::Work;
use crate::backend::level_zero::driver::List;
use crate::backend::level_zero::entry::call;
use crate::sharing::Profile;
use std::collections::HashSet;
use std::mem;
use std::sync::{Arc, MutexGuard};

impl Inner {
    /// Leaves a list that waits for ever, and appends its commands to a new one. What they use
    /// stays with the old list: the driver may look at it for as long as that exists.
    pub(super) fn give_up_list(&self) {
        let mut state = self.state_in_turn();
        let state = &mut *state;
        tracing::warn!(
            device = self.gpu.info().name,
            commands = state.appended,
            "a command list waits for a process that is gone; it is given up"
        );
        mem::forget(state.list.take());
        mem::forget(mem::take(&mut state.lingering));
        state.marks.lose_from(0);
        let mut revoked = HashSet::new();
        for entry in state.entries.iter_mut().take(state.appended) {
            entry.keep_for_ever();
            for wait in entry.waits.iter_mut() {
                wait.promise = None;
            }
            (entry.is_taken, entry.is_begun, entry.is_left) = (false, false, false);
            (entry.is_bare, entry.lingers) = (false, false);
            // Others may wait for what the old list would have signalled. Once for each event: what
            // counts this soon starts again.
            if mem::take(&mut entry.has_companion)
                && let Some((event, _)) = &entry.signal
                && revoked.insert(Arc::as_ptr(event))
            {
                event.revoke_companion();
            }
        }
        (state.appended, state.waiting) = (0, 0);
        state.set_marked();
        state.is_unsure = false;
        let (device, group) = (self.gpu.handle(), self.gpu.group());
        match List::create(&self.core, device, group) {
            Ok(list) => state.list = Some(list),
            Err(error) => tracing::error!(%error, "there is no new command list"),
        }
        self.append_more(state);
    }

    /// Does what the host has to for the first command, before which nothing is in the list, and
    /// ends it if it is over with that.
    pub(super) fn release(&self, mut state: MutexGuard<'_, State>, left: &mut Left) {
        let front = &mut state.entries[0];
        front.is_taken = true;
        let waits = mem::take(&mut front.waits);
        let after = front.rare.as_mut().map(|rare| mem::take(&mut rare.after));
        drop(state);
        after.iter().flatten().for_each(|over| over.wait());
        let failed = waits
            .iter()
            .find_map(|wait| wait.event.wait(wait.number, None).err());
        let mut state = self.state_in_turn();
        if let Some(error) = failed {
            return self.end(state, 1, Err(error), left);
        }
        let front = &mut state.entries[0];
        if let Work::Call(_) = front.work {
            if let Some(profile) = front.profile() {
                Profile::stamp(&profile.started);
            }
            let work = mem::replace(&mut front.work, Work::Nothing);
            drop(state);
            let result = match work {
                Work::Call(function) => call(function),
                _ => Ok(()),
            };
            return self.end(self.state_in_turn(), 1, result, left);
        }
        // All that it waits for is there, and was taken out.
        self.append_held(&mut state);
        self.append_more(&mut state);
        let goes_on = !state.is_closed;
        drop(state);
        if goes_on {
            // For the next time: submitting must not wait for another process to answer.
            for wait in waits.iter() {
                wait.event.fetch_companion();
                wait.event.ask_for_companion();
            }
        }
    }
}
