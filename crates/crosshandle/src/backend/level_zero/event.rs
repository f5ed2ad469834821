//! Counter-based events of the driver's, which ride along with events of ours: lists signal and
//! wait for them on the device, in this process and in others.

use super::device::Gpu;
use super::driver::{Core, CreatedEvent, EventHandle, IPC_HANDLE, OpenedEvent, missing};
use super::memory::{Exported, with_own_number};
use super::note::{self, Subject};
use crate::backend::{DriverEvents, Import};
use crate::error::{Error, Result};
use crate::exchange::protocol::Note;
use crate::os::mapping::Access;
use crate::os::{descriptor, process};
use crate::sharing::{EventCore, Shared};
use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

/// Where they come from.
pub(super) struct LevelZeroEvents {
    pub(super) gpu: Arc<Gpu>,
    pub(super) core: Arc<Core>,
}

impl DriverEvents for LevelZeroEvents {
    fn create(&self) -> Result<Arc<dyn Shared>> {
        CreatedEvent::check_live(&self.core, self.gpu.handle())?;
        let created = CreatedEvent::create(&self.core, self.gpu.handle());
        Ok(Arc::new(LevelZeroEvent::Created {
            event: created.ok_or_else(missing)??,
            exported: OnceLock::new(),
        }))
    }

    fn open(&self, import: Import) -> Result<Arc<dyn Shared>> {
        let driver = self.core.driver;
        let handle = note::decode(driver, Subject::Event, &import.note)?;
        // The exporter has looked, but the two may differ in what they are allowed to do.
        CreatedEvent::check_live(&self.core, self.gpu.handle())?;
        let open = |bytes| OpenedEvent::open(&self.core, bytes).ok_or_else(missing)?;
        // Drivers that fetch the descriptor by themselves recognise none that is put in place.
        let event = if let Some(pid) = handle.fetched_from {
            check_fetch(pid, &handle.bytes, &import.file)?;
            open(handle.bytes)?
        } else {
            with_own_number(Subject::Event, &import.file, handle.bytes, open)?
        };
        Ok(Arc::new(LevelZeroEvent::Opened {
            event,
            may_signal: handle.fetched_from.is_none_or(|pid| pid == process::pid()),
        }))
    }
}

/// Refuses what the driver would fetch by itself, unless that is what was sent. It takes what it
/// finds: in another PID namespace, that is some descriptor of some process.
fn check_fetch(pid: u32, handle: &[u8; IPC_HANDLE], file: &OwnedFd) -> Result<()> {
    if descriptor::can_fetch(pid, note::number_in(Subject::Event, handle), file) {
        return Ok(());
    }
    Err(Error::Unsupported(format!(
        "the driver fetches descriptors by itself, and may not do so from process {pid}"
    )))
}

/// One of them, by who ends it.
enum LevelZeroEvent {
    Created {
        event: CreatedEvent,
        /// Made when another process first wants it.
        exported: OnceLock<Exported>,
    },
    Opened {
        event: OpenedEvent,
        /// Lists may signal it. Not where drivers fetch descriptors: those who wait would have to
        /// from this process, and end where they may not.
        may_signal: bool,
    },
}

/// What rides along with an event, if that is there or can be had.
fn companion(event: &EventCore) -> Option<&LevelZeroEvent> {
    let companion: &dyn Any = &**event.companion()?;
    companion.downcast_ref()
}

/// The driver's event for a list that signals; a list of this driver's.
pub(super) fn to_signal(event: &EventCore, core: &Arc<Core>) -> Option<EventHandle> {
    match companion(event)? {
        LevelZeroEvent::Opened {
            may_signal: false, ..
        } => None,
        companion => companion.handle(core),
    }
}

/// The same for one that waits.
pub(super) fn to_wait_for(event: &EventCore, core: &Arc<Core>) -> Option<EventHandle> {
    companion(event)?.handle(core)
}

impl LevelZeroEvent {
    /// The driver's handle, if it is this driver's.
    fn handle(&self, core: &Arc<Core>) -> Option<EventHandle> {
        let (handle, owner) = match self {
            Self::Created { event, .. } => (event.handle(), event.core()),
            Self::Opened { event, .. } => (event.handle(), event.core()),
        };
        Arc::ptr_eq(owner, core).then_some(handle)
    }

    fn export(&self) -> Result<(&CreatedEvent, &Exported)> {
        let Self::Created { event, exported } = self else {
            return Err(Error::invalid("only the creator of an event can share it"));
        };
        if let Some(exported) = exported.get() {
            return Ok((event, exported));
        }
        let made = Exported::new(Subject::Event, event.export()?)?;
        Ok((event, exported.get_or_init(|| made)))
    }
}

impl Shared for LevelZeroEvent {
    fn len(&self) -> usize {
        1
    }

    fn descriptor(&self, _access: Access) -> Result<Arc<OwnedFd>> {
        Ok(Arc::clone(&self.export()?.1.file))
    }

    fn note(&self) -> Note {
        match self.export() {
            Ok((event, exported)) => {
                note::encode(event.core().driver, Subject::Event, exported.handle)
            }
            Err(_) => Note::NONE,
        }
    }
}
