//! What a lane's thread does for commands that are held, or held up.
//!
//! A list that waits for a signal of a process that died never goes on. It is given up, with what
//! its commands use, and they are appended to a new one.

use super::Inner;
use super::end::Left;
use super::running::Running;
use crate::error::Result;
use crate::hal::Work;
use crate::hal::level_zero::driver::List;
use crate::hal::level_zero::entry::call;
use crate::ipc::Profile;
use std::collections::HashSet;
use std::mem;
use std::sync::{Arc, MutexGuard};

impl Inner {
    /// Leaves a list that waits for ever, and appends its commands to a new one. What they use
    /// stays with the old list: the driver may look at it for as long as that exists.
    pub(super) fn give_up_list(&self) {
        let mut running = self.running();
        let mut front = self.front_in_turn();
        let (running, front) = (&mut *running, &mut *front);
        running.receive_all(front);
        tracing::warn!(
            device = self.gpu.info().name,
            commands = running.entries.len(),
            "a command list waits for a process that is gone; it is given up"
        );
        mem::forget(front.tip.list.take());
        mem::forget(mem::take(&mut running.lingering));
        self.lose(running.marks.take_before(u64::MAX));
        self.lose(mem::take(&mut running.late));
        let mut entries = running.take_all();
        let mut revoked = HashSet::new();
        for entry in &mut entries {
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
                event.revoke_mirror();
            }
        }
        front.tip.appended = running.first;
        entries.append(&mut front.held);
        front.held = entries;
        front.tip.set_marked(None);
        running.is_unsure = false;
        let (device, group) = (self.gpu.handle(), self.gpu.group());
        match List::create(&self.core, device, group) {
            Ok(list) => front.tip.list = Some(list),
            Err(error) => tracing::error!(%error, "there is no new command list"),
        }
        self.append_more(front);
    }

    /// Does what the host has to for the first command that is held, if nothing is in the list
    /// before it, and ends it if it is over with that.
    pub(super) fn release(&self, mut running: MutexGuard<'_, Running>, left: &mut Left) {
        let mut front = self.front_in_turn();
        // Somebody may have appended what was held.
        running.receive_all(&mut front);
        let is_first = running.entries.is_empty();
        drop(running);
        let Some(first) = front.held.front_mut().filter(|_| is_first) else {
            return;
        };
        first.is_taken = true;
        let waits = mem::take(&mut first.waits);
        let after = first.rare.as_mut().map(|rare| mem::take(&mut rare.after));
        drop(front);
        after.iter().flatten().for_each(|over| over.wait());
        let failed = waits
            .iter()
            .find_map(|wait| wait.event.wait(wait.number, None).err());
        if let Some(error) = failed {
            return self.end_held(Err(error), left);
        }
        let mut front = self.front_in_turn();
        let Some(first) = front.held.front_mut() else {
            return;
        };
        if let Work::Call(_) = first.work {
            if let Some(profile) = first.profile() {
                Profile::stamp(&profile.started);
            }
            let work = mem::replace(&mut first.work, Work::Marker);
            drop(front);
            let result = match work {
                Work::Call(function) => call(function),
                _ => Ok(()),
            };
            return self.end_held(result, left);
        }
        // All that it waits for is there, and was taken out.
        self.append_held(&mut front);
        self.append_more(&mut front);
        drop(front);
        if !self.is_closed() {
            // For the next time: submitting must not wait for another process to answer.
            for wait in waits.iter() {
                wait.event.fetch_mirror();
                wait.event.request_mirror();
            }
        }
    }

    /// Ends the first command that is held, before which nothing is in the list.
    fn end_held(&self, result: Result<()>, left: &mut Left) {
        let mut running = self.running();
        let mut front = self.front_in_turn();
        if let Some(first) = front.held.pop_front() {
            front.tip.appended += 1;
            running.push(first);
        }
        drop(front);
        self.end(running, 1, result, left);
    }
}
