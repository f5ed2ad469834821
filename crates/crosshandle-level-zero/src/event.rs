//! Native mirrors, which are counter-based events of the driver. Each mirror follows one event of
//! this library. Lists signal mirrors and wait for them on the device, in this process and in
//! others.

use super::device::Gpu;
use super::driver::{CreatedEvent, DriverContext, EventHandle, Handle, OpenedEvent, missing};
use super::ipc_handle::{self, Exported, ReceivedHandle, Subject};
use crosshandle_hal::{BackendBlob, BackendEvent, BackendEvents, BackendObject, Import};
use crosshandle_ipc::EventCore;
use crosshandle_os::{descriptor, process};
use crosshandle_types::Access;
use crosshandle_types::error::{Error, Result};
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::{Arc, OnceLock};

/// A factory of native mirrors in one context. It creates events of the driver, and opens those of
/// other processes.
pub(super) struct LevelZeroEvents {
    pub(super) gpu: Arc<Gpu>,
    pub(super) context: Arc<DriverContext>,
}

impl BackendEvents for LevelZeroEvents {
    fn create(&self) -> Result<BackendEvent> {
        CreatedEvent::check_live(&self.context, self.gpu.handle())?;
        let created = CreatedEvent::create(&self.context, self.gpu.handle());
        let event = created.ok_or_else(missing)??;
        let (handle, exported) = (event.handle(), OnceLock::new());
        let object = LevelZeroEvent::Created { event, exported };
        Ok(self.named(object, handle, true))
    }

    fn open(&self, import: Import) -> Result<BackendEvent> {
        let driver = self.context.driver;
        let handle = ipc_handle::decode(driver, Subject::Event, &import.note)?;
        // The exporter has made this check too, but the two processes may have different
        // permissions.
        CreatedEvent::check_live(&self.context, self.gpu.handle())?;
        let open = |bytes| OpenedEvent::open(&self.context, bytes).ok_or_else(missing)?;
        // For events, a driver that fetches descriptors does not notice an inserted number, so it
        // gets the handle unchanged.
        let event = if let Some(pid) = handle.fetched_from {
            check_fetch(pid, &handle, &import.file)?;
            open(handle.bytes)?
        } else {
            handle.open_with(&import.file, driver, open)?
        };
        // If this process signalled the event, the drivers of waiters would fetch a descriptor from
        // this process. A driver that is not permitted to do so ends the waiter's process.
        let may_signal = handle.fetched_from.is_none_or(|pid| pid == process::pid());
        let handle = event.handle();
        Ok(self.named(LevelZeroEvent::Opened(event), handle, may_signal))
    }
}

impl LevelZeroEvents {
    fn named(&self, object: LevelZeroEvent, handle: EventHandle, may_signal: bool) -> BackendEvent {
        BackendEvent {
            object: Arc::new(object),
            handle: handle.0.expose_provenance(),
            owner: address_of(&self.context),
            may_signal,
        }
    }
}

/// Returns the address that identifies a context.
fn address_of(context: &Arc<DriverContext>) -> usize {
    Arc::as_ptr(context).addr()
}

/// Checks that the driver would fetch the same descriptor that the broker sent. The driver accepts
/// any descriptor that it finds. In another PID namespace, that may be an unrelated descriptor of
/// an unrelated process.
fn check_fetch(pid: u32, handle: &ReceivedHandle, file: &OwnedFd) -> Result<()> {
    if descriptor::can_fetch(pid, handle.descriptor(), file) {
        return Ok(());
    }
    Err(Error::Unsupported(format!(
        "the driver fetches descriptors by itself, and may not do so from process {pid}"
    )))
}

/// An event of the driver. The variant decides how the event is released.
enum LevelZeroEvent {
    Created {
        event: CreatedEvent,
        /// The handle for other processes, which is created on the first request for the event.
        exported: OnceLock<Exported>,
    },
    #[expect(dead_code, reason = "closes the event when dropped")]
    Opened(OpenedEvent),
}

/// Returns the mirror that a list of `context` may signal. Creates the mirror if that is possible
/// without a request to another process.
#[inline]
pub(super) fn mirror_to_signal(
    event: &EventCore,
    context: &Arc<DriverContext>,
) -> Option<EventHandle> {
    let found = event.mirror().filter(|found| found.may_signal)?;
    handle_of(found, context)
}

/// Returns the mirror of an event that a list of `context` can wait for.
#[inline]
pub(super) fn mirror_to_wait_for(
    event: &EventCore,
    context: &Arc<DriverContext>,
) -> Option<EventHandle> {
    handle_of(event.mirror()?, context)
}

/// Returns the driver's handle of a mirror if the mirror belongs to `context`.
#[inline]
fn handle_of(event: &BackendEvent, context: &Arc<DriverContext>) -> Option<EventHandle> {
    (event.owner == address_of(context))
        .then(|| Handle(ptr::with_exposed_provenance_mut(event.handle)))
}

impl LevelZeroEvent {
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

impl BackendObject for LevelZeroEvent {
    fn len(&self) -> usize {
        1
    }

    fn descriptor(&self, _access: Access) -> Result<Arc<OwnedFd>> {
        Ok(Arc::clone(&self.export()?.1.file))
    }

    fn note(&self) -> BackendBlob {
        match self.export() {
            Ok((event, exported)) => {
                ipc_handle::encode(event.context().driver, Subject::Event, exported.handle)
            }
            Err(_) => BackendBlob::NONE,
        }
    }
}
