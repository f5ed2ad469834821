//! A driver's own event that rides along with one of ours.

use super::event::{EventCore, Home};
use super::exporter::Exporter;
use super::record::Shared;
use crate::backend::NativeEvents;
use crate::error::{Error, Result};
use crate::exchange::protocol::Note;
use crate::os::mapping::Access;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

/// What a record of an event has for a segment's number. No segment has it.
pub(super) const NATIVE: u32 = u32::MAX;

/// Made, or fetched from the exporter, when a queue or another process first needs it: most events
/// never need one.
pub(super) struct Native {
    events: Arc<dyn NativeEvents>,
    /// `None` inside: it could not be had, and isn't tried again.
    made: OnceLock<Option<Arc<dyn Shared>>>,
}

impl Native {
    pub(super) fn new(events: Arc<dyn NativeEvents>) -> Self {
        Self {
            events,
            made: OnceLock::new(),
        }
    }

    fn get(
        &self,
        make: impl FnOnce(&dyn NativeEvents) -> Result<Arc<dyn Shared>>,
    ) -> Option<&Arc<dyn Shared>> {
        let make = || match make(&*self.events) {
            Ok(native) => Some(native),
            Err(error) => {
                tracing::debug!(%error, "an event goes without the driver's own");
                None
            }
        };
        self.made.get_or_init(make).as_ref()
    }

    /// In the process that created the event.
    fn created(&self) -> Option<&Arc<dyn Shared>> {
        self.get(|events| events.create())
    }
}

/// What importers fetch.
impl Shared for Native {
    fn len(&self) -> usize {
        1
    }

    fn descriptor(&self, access: Access) -> Result<Arc<OwnedFd>> {
        let native = self.created();
        let missing = || Error::Unsupported("the driver has no such event".into());
        native.ok_or_else(missing)?.descriptor(access)
    }

    fn note(&self) -> Note {
        self.created().map_or(Note::NONE, |native| native.note())
    }
}

impl EventCore {
    /// The driver's own event, made or fetched now if need be. May ask the exporter.
    pub(crate) fn native(&self) -> Option<&Arc<dyn Shared>> {
        let native = self.native.as_ref()?;
        match &self.home {
            Home::Created(_) => native.created(),
            Home::Opened(attachment) => native.get(|events| {
                let record = self.record;
                let fetched =
                    attachment.fetch_record(record.index, record.generation, Access::ReadWrite)?;
                if fetched.segment != NATIVE {
                    return Err(Error::Protocol("its event is memory"));
                }
                events.open(fetched.into())
            }),
        }
    }

    /// Lets importers fetch it.
    pub(super) fn offer_native(&self, exporter: &Exporter) {
        if let Some(native) = &self.native {
            exporter.offer(self.record, Arc::clone(native) as _);
        }
    }

    /// A queue has signalled the driver's own event for this number.
    pub(crate) fn note_native(&self, number: u64) {
        self.slot().note_native(number);
    }

    /// Whether waiting for the driver's own event is waiting for this number.
    pub(crate) fn is_native(&self, number: u64) -> bool {
        self.native.is_some() && self.slot().is_native(number)
    }
}
