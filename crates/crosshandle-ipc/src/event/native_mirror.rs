//! Native mirrors: a driver's own events that mirror ours.

use super::{BackendEvent, BackendEvents, EventCore, Role};
use crate::attachment::Attachment;
use crate::broker::protocol::BackendBlob;
use crate::record::Credential;
use crate::records::BackendObject;
use crosshandle_events::Promise;
use crosshandle_types::Access;
use crosshandle_types::error::{Error, Result};
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

/// A native mirror of an event. It is created, or fetched from the exporter, when a queue or
/// another process first needs it. Most events never need one.
pub(super) struct NativeMirror {
    events: Arc<dyn BackendEvents>,
    /// The credential that opens the mirror, if another context created the event.
    credential: Option<Credential>,
    /// The mirror, once it was created or fetched. `None` inside the cell means that this failed,
    /// and it is not retried.
    made: OnceLock<Option<BackendEvent>>,
}

impl NativeMirror {
    pub(super) fn new(events: Arc<dyn BackendEvents>, credential: Option<Credential>) -> Arc<Self> {
        Arc::new(Self {
            events,
            credential,
            made: OnceLock::new(),
        })
    }

    fn get(
        &self,
        make: impl FnOnce(&dyn BackendEvents) -> Result<BackendEvent>,
    ) -> Option<&BackendEvent> {
        let make = || match make(&*self.events) {
            Ok(mirror) => Some(mirror),
            Err(error) => {
                tracing::debug!(%error, "an event goes without a native mirror");
                None
            }
        };
        self.made.get_or_init(make).as_ref()
    }

    /// Returns the mirror of an event that this process created.
    fn created(&self) -> Option<&BackendEvent> {
        self.get(|events| events.create())
    }
}

/// Shares the driver's event with importers.
impl BackendObject for NativeMirror {
    fn len(&self) -> usize {
        1
    }

    fn descriptor(&self, access: Access) -> Result<Arc<OwnedFd>> {
        let mirror = self.created();
        let missing = || Error::Unsupported("the driver has no such event".into());
        mirror.ok_or_else(missing)?.object.descriptor(access)
    }

    fn note(&self) -> BackendBlob {
        self.created()
            .map_or(BackendBlob::NONE, |mirror| mirror.object.note())
    }
}

impl EventCore {
    /// Returns the native event if it exists here or can be created without a request to another
    /// process.
    #[inline]
    pub fn mirror(&self) -> Option<&BackendEvent> {
        let mirror = self.mirror.as_ref()?;
        match &self.role {
            Role::Creator(_) => mirror.created(),
            Role::Opener(attachment) if attachment.is_local() => self.fetched(mirror, attachment),
            Role::Opener(_) => mirror.made.get()?.as_ref(),
        }
    }

    /// Asks queues to also signal the native event from now on. A queue calls this when it could
    /// have waited for the native event.
    ///
    /// Has no effect if the native event is not available in this process, or if the event was
    /// never shared.
    pub fn request_mirror(&self) {
        let Some(mirror) = &self.mirror else {
            return;
        };
        let made = mirror.made.get().map(Option::is_some);
        let is_here = match &self.role {
            Role::Creator(_) => self.is_exported() && made != Some(false),
            Role::Opener(_) => made == Some(true),
        };
        if is_here {
            self.slot().request_mirror();
        }
    }

    /// Fetches the native event from its exporter unless it exists here, and waits for the reply.
    pub fn fetch_mirror(&self) {
        if let (Some(mirror), Role::Opener(attachment)) = (&self.mirror, &self.role)
            && mirror.made.get().is_none()
        {
            self.fetched(mirror, attachment);
        }
    }

    fn fetched<'a>(
        &self,
        mirror: &'a NativeMirror,
        attachment: &Attachment,
    ) -> Option<&'a BackendEvent> {
        mirror.get(|events| {
            let credential = mirror.credential.ok_or(Error::Stale)?;
            events.open(attachment.fetch_mirror(credential)?.into())
        })
    }

    /// Returns whether queues also signal the native event. They do once a queue of any process
    /// could have waited for it. Hosts never signal it.
    pub fn is_mirror_requested(&self) -> bool {
        self.slot().is_mirror_requested()
    }

    /// Announces that a queue signals the native event, if that was requested and `find` finds the
    /// event. The caller must then call [`end_mirror_signal`](Self::end_mirror_signal). Returns
    /// `None` if the event cannot be signalled now.
    #[inline]
    pub fn begin_mirror_signal<T>(&self, find: impl FnOnce() -> Option<T>) -> Option<T> {
        let slot = self.slot();
        if !slot.is_mirror_requested() {
            return None;
        }
        let found = find()?;
        slot.begin_mirror_signal().then_some(found)
    }

    /// Records that the queue has signalled the native event for the signal `number`. A `number` of
    /// 0 records that the queue failed to do so.
    pub fn end_mirror_signal(&self, number: u64) {
        self.slot().end_mirror_signal(number);
    }

    /// Revokes the signals of the native event by queues of this process, because some of them will
    /// never come.
    pub fn revoke_mirror(&self) {
        self.slot().revoke_mirror();
    }

    /// Returns whether the latest signal of the native event stands for the signal `number`.
    pub fn has_mirror_signal(&self, number: u64) -> bool {
        self.mirror.is_some() && self.slot().has_mirror_signal(number)
    }

    /// Prevents further signals of the native event, so that a queue can wait for it instead of for
    /// the signal `number`. The prevention ends when the result is dropped. Returns `None` if the
    /// native event's latest signal stands for another signal.
    pub fn hold_mirror(&self, number: u64) -> Option<MirrorHold<'_>> {
        let promise = self.slot().begin_mirror_wait(number)?;
        Some(MirrorHold {
            event: self,
            promise,
        })
    }

    /// Returns whether the signal that a queue waits for was revoked, so that it may never come.
    pub fn is_revoked(&self, promise: Promise) -> bool {
        self.slot().is_revoked(promise)
    }

    /// Returns whether the latest signal of the event has this number and was submitted by this
    /// process.
    pub fn is_ours(&self, number: u64) -> bool {
        self.slot().is_latest_of(number, self.owner())
    }

    /// Completes a signal that a queue was observed to have signalled. Its submitter may not know
    /// yet. But no waiter must see it as unfinished after others have continued because of it.
    pub fn complete_observed(&self, number: u64) {
        let _ = self.slot().complete_observed(number);
    }
}

/// Prevents signals of a native event while a driver is told to wait for it.
pub struct MirrorHold<'a> {
    event: &'a EventCore,
    pub promise: Promise,
}

impl Drop for MirrorHold<'_> {
    fn drop(&mut self) {
        self.event.slot().end_mirror_wait();
    }
}

/// Tests of `crates/crosshandle-events/src/protocol/native_mirror.rs`. They are here because the
/// model checkers compile all files of that folder.
#[cfg(test)]
mod tests {
    use crate::platform::Slot;
    use crosshandle_events::{Completion, Outcome, Owner};

    fn signal(slot: &Slot, number: u64) -> bool {
        let begun = slot.begin_mirror_signal();
        if begun {
            slot.end_mirror_signal(number);
        }
        begun
    }

    #[test]
    fn only_a_latest_signal_is_waited_for() {
        let slot = Slot::new();
        assert!(!slot.has_mirror_signal(0));
        assert_eq!(slot.begin_mirror_wait(0), None);
        assert!(slot.begin_mirror_signal());
        assert_eq!(slot.begin_mirror_wait(1), None, "it is on its way");
        slot.end_mirror_signal(1);
        assert!(slot.has_mirror_signal(1) && !slot.has_mirror_signal(2));
        assert_eq!(slot.begin_mirror_wait(2), None);
        assert!(slot.begin_mirror_wait(1).is_some());
        slot.end_mirror_wait();
        assert!(signal(&slot, 3));
        assert_eq!(slot.begin_mirror_wait(1), None);
        assert!(slot.begin_mirror_signal());
        slot.end_mirror_signal(0);
        assert_eq!(slot.begin_mirror_wait(3), None, "that failed");
    }

    #[test]
    fn signals_and_waits_exclude_each_other() {
        let slot = Slot::new();
        assert!(slot.begin_mirror_signal());
        assert!(!slot.begin_mirror_signal(), "one at a time");
        slot.end_mirror_signal(2);
        assert!(slot.begin_mirror_wait(2).is_some());
        assert!(slot.begin_mirror_wait(2).is_some());
        slot.end_mirror_wait();
        assert!(!slot.begin_mirror_signal());
        assert!(slot.has_mirror_signal(2), "it is still the latest");
        slot.end_mirror_wait();
        slot.end_mirror_wait();
        assert!(signal(&slot, 3));
    }

    #[test]
    fn a_process_that_dies_on_the_way_ends_it() {
        let slot = Slot::new();
        assert!(slot.begin_mirror_signal());
        for number in 1..=40 {
            assert!(!signal(&slot, number));
            assert_eq!(slot.begin_mirror_wait(number), None);
        }
        let slot = Slot::new();
        assert!(signal(&slot, 1));
        for _ in 0..1_000 {
            slot.begin_mirror_wait(1);
        }
        assert!(!signal(&slot, 2) && slot.has_mirror_signal(1));
    }

    #[test]
    fn what_was_taken_back_is_told() {
        let slot = Slot::new();
        assert!(signal(&slot, 1));
        let promise = slot.begin_mirror_wait(1).expect("the latest");
        slot.end_mirror_wait();
        assert!(signal(&slot, 2));
        assert!(!slot.is_revoked(promise));
        slot.revoke_mirror();
        assert!(slot.is_revoked(promise));
        assert!(!slot.has_mirror_signal(2));
        assert!(signal(&slot, 1));
        let promise = slot.begin_mirror_wait(1).expect("once more");
        assert!(!slot.is_revoked(promise));
    }

    #[test]
    fn a_witness_completes_what_its_owner_will() {
        let slot = Slot::new();
        let owner = Owner::EXPORTER;
        let ticket = slot.issue(owner).expect("a number");
        slot.complete_observed(ticket.number);
        assert_eq!(slot.unfinished(), Some(1), "a number was taken");
        assert_eq!(slot.outcome(1), Outcome::Complete);
        assert_eq!(slot.complete(ticket), Completion::Superseded);
    }
}
