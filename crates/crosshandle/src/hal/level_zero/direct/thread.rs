//! The thread of such a list, and the ends of commands.

use super::{Appended, Gate, Inner, Left};
use crate::error::Result;
use crate::hal::level_zero::entry::{Over, call, copy_of, discard, text_of};
use crate::hal::level_zero::leaving;
use crate::hal::level_zero::pooled::Pooled;
use crate::hal::level_zero::queue::Notes;
use crate::hal::{WaitPoint, Work};
use crate::ipc::Profile;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// How long to wait for the device at a time.
const SLICE: Duration = Duration::from_secs(1);

impl Inner {
    /// The thread. It ends when the queue is dropped and all its commands are done.
    pub(super) fn run(self: Arc<Self>) {
        leaving::begin();
        loop {
            let mut state = self.state();
            while state.commands.is_empty() {
                if state.is_closed {
                    if !state.left.is_empty() {
                        // Nobody knows how far the list is with that.
                        std::mem::forget(Arc::clone(&self));
                    }
                    return;
                }
                state = self
                    .added
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            let front = &mut state.commands[0];
            let waits: Vec<_> = front.waits.iter().map(copy_of).collect();
            let after = std::mem::take(&mut front.after);
            let (gate, done) = (front.gate.clone(), Arc::clone(&front.done));
            let work = match &front.work {
                Work::Call(_) => std::mem::replace(&mut front.work, Work::Marker),
                _ => Work::Marker,
            };
            drop(state);
            let mut result = gate.map_or(Ok(()), |gate| self.let_on(&gate, &waits, after, work));
            for wait in &waits {
                result = result.and(wait.event.wait(wait.number, None));
            }
            let ended = self.wait_for(&done);
            drop(done);
            self.end_first(result, ended);
        }
    }

    /// Does what the host has to for a command, and lets the list go on.
    fn let_on(
        &self,
        gate: &Gate,
        waits: &[WaitPoint],
        after: Vec<Arc<Over>>,
        work: Work,
    ) -> Result<()> {
        let mut result = match &gate.reached {
            Some(reached) => self.wait_for(reached),
            None => Ok(()),
        };
        for over in after {
            over.wait();
        }
        for wait in waits {
            result = result.and(wait.event.wait(wait.number, None));
        }
        if let Some(profile) = self.state().commands[0].profile() {
            Profile::stamp(&profile.started);
        }
        if let Work::Call(function) = work {
            // What waits for something that failed is not called, but dropped.
            match result {
                Ok(()) => result = call(function),
                Err(_) => discard(function),
            }
        }
        gate.open();
        result
    }

    fn wait_for(&self, event: &Pooled) -> Result<()> {
        while !Pooled::wait_for(&self.core, event.handle(), SLICE)? {}
        Ok(())
    }

    /// Ends the first command, whose list has come to its end or will never do so.
    fn end_first(&self, result: Result<()>, ended: Result<()>) {
        let mut state = self.state();
        let Some(mut command) = state.commands.pop_front() else {
            return;
        };
        let used = command.take_used();
        // The list is past this, and so past all before, or nobody knows where it is.
        state.left.push(used);
        let past = match &ended {
            Err(error) if !self.list.is_lost(error) => Vec::new(),
            _ => std::mem::take(&mut state.left),
        };
        drop(state);
        past.into_iter().for_each(discard);
        command.end(&self.notes, result.and(ended));
        self.state().ended += 1;
        self.finished.notify_all();
    }
}

impl Appended {
    fn profile(&self) -> Option<&Profile> {
        self.signal.as_ref()?.0.profile()
    }

    /// What the list uses.
    fn take_used(&mut self) -> Left {
        let work = std::mem::replace(&mut self.work, Work::Marker);
        let waits = std::mem::take(&mut self.waits);
        let done = Arc::clone(&self.done);
        Box::new((work, self.extra.take(), waits, self.gate.take(), done))
    }

    /// Signals.
    fn end(self, notes: &Notes, result: Result<()>) {
        if let Some(profile) = self.profile() {
            Profile::stamp(&profile.ended);
        }
        // Ready for another one before anybody goes on.
        drop(self.done);
        match (self.signal, result) {
            (Some((event, ticket)), result) => event.complete(ticket, result.map_err(text_of)),
            (None, Err(error)) => notes.add(error),
            (None, Ok(())) => {}
        }
        self.over.set();
    }
}
