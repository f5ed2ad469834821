//! The core of an event: its slot, the owner number that this process signals with, and the objects
//! that keep the slot valid.
//!
//! `device` is for queues of devices. `native_mirror` is for queues whose driver has its own
//! events. `late_completion` keeps signals that were completed before their turn.

pub mod awaiting;
mod device;
mod driver_event;
pub mod late_completion;
mod native_mirror;
mod profile;
mod signal;
mod wait;

pub use driver_event::{BackendEvent, BackendEvents, Import};
pub use native_mirror::MirrorHold;
pub use profile::{BackendTimestamps, Profile};
pub use wait::wait_any;

use super::attachment::Attachment;
use super::broker::{OpenDeadline, address};
use super::chunks::Ledger;
use super::event_arena::{EventArena, SlotPlace};
use super::exporter::Exporter;
use super::record::{Credential, Record};
use super::records::AtomicKey;
use crate::platform::Slot;
use crosshandle_events::{Liveness, Owner, WaitMode};
use crosshandle_handle::HandleKind;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::observe;
use crosshandle_types::observe::trace::{self, Step};
use crosshandle_types::sync::Mutex;
use native_mirror::NativeMirror;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// An event that this process created or opened. Parts that few events need are boxed, so that
/// opening and closing touches at most two cache lines.
pub struct EventCore {
    role: Role,
    slot: SlotPlace,
    // The fields of a `Record`, without its padding.
    index: u32,
    generation: u64,
    owner: Owner,
    mode: WaitMode,
    /// Whether only device code of the creator signals.
    is_single_signaller: bool,
    /// Whether the creator of the event has made a handle of it. `key` is then the handle's key.
    exported: AtomicBool,
    key: AtomicKey,
    /// The parts that few events have, or `None` if the event has no such part.
    extras: Option<Box<Extras>>,
    /// Whether this process may have late signals of the event. `late_completion` sets and clears
    /// it.
    has_late: AtomicBool,
    /// The latest number that this process signalled, from which the next signal usually starts.
    latest: AtomicU64,
    /// The backends whose devices can access the slot, one bit each.
    pinned: AtomicU32,
    /// The reason for the failure of this process's latest failed command.
    failure: Mutex<Option<Box<Failure>>>,
    mirror: Option<Arc<NativeMirror>>,
}

// With the two counts of its `Arc`, this is 120 bytes, the largest size that glibc frees without
// examining adjacent free memory. A larger one took 50 % longer to close and 17 % longer to open.
const _: () = assert!(size_of::<EventCore>() <= 104);

/// Parts that few events have.
struct Extras {
    /// The event's own arena, if it has one.
    isolated: Option<Arc<EventArena>>,
    /// Present if the event can take timestamps. Such an event cannot be shared.
    profile: Option<Profile>,
}

impl Extras {
    /// Returns the parts in a box, or `None` if there are none.
    #[inline]
    fn boxed(isolated: Option<Arc<EventArena>>, profile: Option<Profile>) -> Option<Box<Self>> {
        let has_some = isolated.is_some() || profile.is_some();
        has_some.then(|| Box::new(Self { isolated, profile }))
    }
}

/// The reason for the failure of a command.
struct Failure {
    /// The number of the command's signal.
    number: u64,
    message: Arc<str>,
}

/// This process's role for an event, and the object that keeps the event's arena.
enum Role {
    /// The process created the event.
    Creator(Arc<Exporter>),
    /// The process opened a handle to the event.
    Opener(Arc<Attachment>),
}

impl EventCore {
    /// Creates an event that no other process knows yet. If `isolated`, the event has an arena to
    /// itself.
    pub fn create(
        exporter: &Arc<Exporter>,
        mode: WaitMode,
        isolated: bool,
        profiling: bool,
        single_signaller: bool,
        mirror: Option<Arc<dyn BackendEvents>>,
    ) -> Result<Arc<Self>> {
        let arena = match isolated {
            true => Some(Arc::new(EventArena::create(1)?)),
            false => None,
        };
        let record = exporter.create_event_record(isolated)?;
        let slot = match &arena {
            Some(arena) => {
                arena.slot(0).reset();
                arena.slot(0)
            }
            None => {
                let (common, index) = exporter.arenas().common(record.index).expect("just made");
                common.slot(index)
            }
        };
        if single_signaller {
            slot.make_single_signaller(Owner::EXPORTER);
        }
        // SAFETY: `Self` keeps the exporter, which keeps its arenas, or it keeps the event's own
        // arena.
        let slot = unsafe { SlotPlace::new(slot) };
        let role = Role::Creator(Arc::clone(exporter));
        let extras = Extras::boxed(arena, profiling.then(Profile::default));
        let mirror = mirror.map(|events| NativeMirror::new(events, None));
        Ok(Self::new(role, slot, extras, record, mode, mirror))
    }

    /// Opens an event of another context. If `isolated`, the event has an arena to itself.
    pub fn open(
        attachment: Arc<Attachment>,
        credential: Credential,
        isolated: bool,
        mode: WaitMode,
        mirror: Option<Arc<dyn BackendEvents>>,
        deadline: &OpenDeadline,
    ) -> Result<Arc<Self>> {
        let begun = trace::begin();
        let (slot, arena) = if isolated {
            let arena = attachment.isolated_event(&credential, deadline)?;
            arena.mark_shared(0);
            // SAFETY: `Self` keeps the event's own arena.
            (unsafe { SlotPlace::new(arena.slot(0)) }, Some(arena))
        } else {
            let (common, index) = attachment.event(&credential, deadline)?;
            common.mark_shared(index);
            // SAFETY: `Self` keeps the attachment, which keeps its arenas.
            (unsafe { SlotPlace::new(common.slot(index)) }, None)
        };
        attachment.hold(&credential, deadline)?;
        let (index, from) = (credential.record.index, &*attachment);
        let name = move || from.name_of(index);
        observe::opened(HandleKind::Event, from.context(), index, 0, name);
        let mirror = mirror.map(|events| NativeMirror::new(events, Some(credential)));
        let role = Role::Opener(attachment);
        let extras = Extras::boxed(arena, None);
        let record = credential.record;
        let core = Self::new(role, slot, extras, record, mode, mirror);
        begun.end(|| Step::Open(HandleKind::Event, core.traced(), 0));
        Ok(core)
    }

    #[inline]
    fn new(
        role: Role,
        slot: SlotPlace,
        extras: Option<Box<Extras>>,
        record: Record,
        mode: WaitMode,
        mirror: Option<Arc<NativeMirror>>,
    ) -> Arc<Self> {
        let owner = match &role {
            Role::Creator(_) => Owner::EXPORTER,
            Role::Opener(attachment) => attachment.owner(),
        };
        Arc::new(Self {
            is_single_signaller: slot.get().is_single_signaller(),
            slot,
            role,
            index: record.index,
            generation: record.generation,
            owner,
            mode,
            exported: AtomicBool::new(false),
            key: AtomicKey::default(),
            extras,
            has_late: AtomicBool::new(false),
            latest: AtomicU64::new(0),
            pinned: AtomicU32::new(0),
            failure: Mutex::default(),
            mirror,
        })
    }

    /// Returns the credential for a handle, or `None` unless this process created the event.
    pub fn export(&self) -> Result<Option<Credential>> {
        let Role::Creator(exporter) = &self.role else {
            return Ok(None);
        };
        self.check_birth()?;
        let record = self.record();
        if self.is_exported() {
            let key = self.key.load();
            return Ok(Some(Credential { record, key }));
        }
        let begun = trace::begin();
        let mirror = self.mirror.as_ref().map(|mirror| Arc::clone(mirror) as _);
        let credential = exporter.export_event(record, self.isolated(), mirror)?;
        // A thread that exports the event at the same time gets the same key.
        self.key.store(credential.key);
        self.exported.store(true, Ordering::Release);
        begun.end(|| Step::Get(HandleKind::Event, self.traced(), 0));
        Ok(Some(credential))
    }

    /// Returns whether a process that this one was forked from created or opened the event.
    #[inline]
    pub(super) fn is_inherited(&self) -> bool {
        match &self.role {
            Role::Creator(exporter) => exporter.is_inherited(),
            Role::Opener(attachment) => attachment.is_inherited(),
        }
    }

    /// Rejects an event that a forked child has inherited. The event's signals are counted for the
    /// parent, and only the parent is notified of deaths.
    #[inline]
    pub fn check_birth(&self) -> Result<()> {
        match self.is_inherited() {
            true => Err(Error::forked()),
            false => Ok(()),
        }
    }

    /// Returns the event's numbers for the timeline.
    #[cold]
    fn traced(&self) -> trace::Object {
        let (exporter, context) = match &self.role {
            Role::Creator(exporter) => (address::exporter_id().unwrap_or(0), exporter.number()),
            Role::Opener(attachment) => attachment.origin(),
        };
        trace::Object {
            exporter,
            context,
            record: self.index,
            generation: self.generation,
            name: self.name(),
        }
    }

    fn record(&self) -> Record {
        Record {
            index: self.index,
            generation: self.generation,
        }
    }

    /// Returns whether the event has an arena to itself.
    pub fn is_isolated(&self) -> bool {
        self.isolated().is_some()
    }

    /// Returns the event's arena, if it has one to itself.
    fn isolated(&self) -> Option<&Arc<EventArena>> {
        self.extras.as_ref()?.isolated.as_ref()
    }

    /// Returns whether a handle to this event was made.
    fn is_exported(&self) -> bool {
        self.exported.load(Ordering::Acquire)
    }

    /// Returns the event's timestamps, if they are currently enabled.
    #[inline]
    pub fn profile(&self) -> Option<&Profile> {
        let profile = self.extras.as_ref()?.profile.as_ref();
        profile.filter(|profile| profile.is_on())
    }

    /// Enables or disables timestamps for later signals, if the event can take any.
    pub fn set_profiling(&self, wanted: bool) {
        if let Some(Extras {
            profile: Some(profile),
            ..
        }) = self.extras.as_deref()
        {
            profile.switch(wanted);
        }
    }

    fn arena(&self) -> &EventArena {
        if let Some(arena) = self.isolated() {
            return arena;
        }
        let arenas = match &self.role {
            Role::Creator(exporter) => exporter.arenas(),
            Role::Opener(attachment) => attachment.arenas(),
        };
        let (arena, _) = arenas.common(self.index).expect("the slot is there");
        arena
    }

    /// Returns whether both use one counter in the memory of this process. Two openings of one
    /// handle do.
    pub fn is_same_counter(&self, other: &Self) -> bool {
        std::ptr::eq(self.slot(), other.slot())
    }

    #[inline]
    fn slot(&self) -> &Slot {
        self.slot.get()
    }

    /// Returns the owner number that this process signals the event with.
    #[inline]
    fn owner(&self) -> Owner {
        self.owner
    }

    fn liveness(&self) -> &dyn Liveness {
        self
    }

    /// Returns whether this process created the event.
    fn is_creator(&self) -> bool {
        matches!(self.role, Role::Creator(_))
    }

    /// Returns whether the event was created in the context of this exporter.
    pub fn is_created_in(&self, exporter: &Arc<Exporter>) -> bool {
        matches!(&self.role, Role::Creator(creator) if Arc::ptr_eq(creator, exporter))
    }

    /// Sets the event's name, if this process created it.
    pub fn set_name(&self, name: &str) {
        if let Role::Creator(exporter) = &self.role {
            exporter.set_name(self.record(), name);
        }
    }

    /// Returns the event's name, if it has one.
    pub fn name(&self) -> Option<String> {
        match &self.role {
            Role::Creator(exporter) => Some(exporter.catalog().name(self.index)),
            Role::Opener(attachment) => attachment.name_of(self.index),
        }
        .filter(|name| !name.is_empty())
    }
}

impl Drop for EventCore {
    #[inline]
    fn drop(&mut self) {
        let exported = *self.exported.get_mut();
        let is_given_back_later =
            *self.has_late.get_mut() && late_completion::give_back_later(self, exported);
        if !is_given_back_later {
            self.role
                .give_back(self.record(), exported, self.isolated());
        }
    }
}

impl Role {
    /// Releases an event's record, and the event's own arena if it has one. May call a driver.
    #[inline]
    fn give_back(&self, record: Record, exported: bool, isolated: Option<&Arc<EventArena>>) {
        match self {
            Self::Creator(exporter) => retire(exporter, record, exported, isolated),
            Self::Opener(attachment) => {
                attachment.release(record.index);
                observe::closed(HandleKind::Event);
            }
        }
    }

    /// Returns the ledger in which this process counts its opens.
    fn ledger(&self) -> Option<&Ledger> {
        match self {
            Self::Creator(exporter) => exporter.own_ledger_if_any(),
            Self::Opener(attachment) => Some(attachment.ledger()),
        }
    }

    fn liveness(&self) -> &dyn Liveness {
        match self {
            Self::Creator(exporter) => &**exporter,
            Self::Opener(attachment) => &**attachment,
        }
    }
}

/// Frees an event that this process created. May call a driver.
fn retire(exporter: &Exporter, record: Record, exported: bool, isolated: Option<&Arc<EventArena>>) {
    // The arena is kept until importers have closed the event, because deaths of importers are
    // recorded there.
    let keep = isolated.map(|arena| Box::new(Arc::clone(arena)) as _);
    exporter.retire(record, exported, keep);
    if exported {
        exporter.reclaim();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::PeerPolicy;
    use crate::describe::Label;

    #[test]
    fn an_isolated_arena_is_kept_until_importers_have_closed_the_event() {
        let name = format!("xh-isolated-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let exporter = Exporter::new(
            Label::default(),
            PeerPolicy::default(),
            Some(directory.clone()),
            false,
        );
        let exporter = exporter.expect("an exporter");
        let event = EventCore::create(&exporter, WaitMode::LowPower, true, false, false, None);
        let event = event.expect("an event");
        let exported = event.export().expect("exported").expect("ours");
        let Record { index, .. } = exported.record;
        let ledger = exporter.own_ledger().expect("a ledger");
        let count = ledger.count(index).expect("in the first chunk");
        count.store(1, Ordering::SeqCst);
        drop(event);
        assert!(exporter.arenas().isolated(exported.record).is_some());
        count.store(0, Ordering::SeqCst);
        exporter.reclaim();
        assert!(exporter.arenas().isolated(exported.record).is_none());
        drop(exporter);
        let _ = std::fs::remove_dir(directory);
    }
}
