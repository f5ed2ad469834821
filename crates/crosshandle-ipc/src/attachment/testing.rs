//! Test helpers: an exporter in this process, and attachments to it like those of another process.

use super::{Attachment, ContextId, Location};
use crate::broker::protocol::{BackendBlob, ProgramName, Request};
use crate::broker::{Connection, FetchedHandle, OpenDeadline, PeerPolicy, Route, address};
use crate::describe::Label;
use crate::event::EventCore;
use crate::exporter::Exporter;
use crate::record::Credential;
use crate::records::{BackendObject, ExportCells, Particulars};
use crosshandle_events::WaitMode;
use crosshandle_handle::{BackendKind, DeviceUuid, Fields};
use crosshandle_types::Access;
use crosshandle_types::error::{Error, Result};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub const DEADLINE: Duration = Duration::from_secs(20);
pub const LEN: usize = 1 << 21;
/// Number of the first segment.
const SEGMENT: u32 = 1 << 31 | 5;

/// Creates an event of an exporter of its own.
pub fn event() -> Arc<EventCore> {
    let exporter = Exporter::new(Label::default(), PeerPolicy::default(), None, false);
    let event = EventCore::create(
        &exporter.unwrap(),
        WaitMode::LowPower,
        false,
        false,
        false,
        None,
    );
    event.expect("an event")
}

/// Memory without a descriptor.
pub struct HandleOnly(pub u8);

impl HandleOnly {
    pub fn handle(&self) -> BackendBlob {
        BackendBlob::new(&[self.0; 80])
    }

    /// Returns what importers receive for the first shared memory.
    pub fn found(&self) -> FetchedHandle {
        FetchedHandle {
            segment: SEGMENT + u32::from(self.0),
            len: LEN as u64,
            handle: self.handle(),
        }
    }
}

impl BackendObject for HandleOnly {
    fn len(&self) -> usize {
        LEN
    }

    fn descriptor(&self, _: Access) -> Result<Arc<OwnedFd>> {
        Err(Error::invalid("it has none"))
    }

    fn driver_handle(&self) -> Option<BackendBlob> {
        Some(self.handle())
    }
}

/// An exporter of memory that only a driver's handle can share.
pub struct Exporting {
    pub exporter: Arc<Exporter>,
    directory: PathBuf,
}

impl Exporting {
    pub fn new(name: &str) -> Self {
        let id = address::exporter_id().unwrap();
        let directory = std::env::temp_dir().join(format!("xh-attachment-{name}-{id}"));
        let (label, policy) = (Label::default(), PeerPolicy::default());
        let exporter = Exporter::new(label, policy, Some(directory.clone()), false).unwrap();
        exporter.go_public().unwrap();
        Self {
            exporter,
            directory,
        }
    }

    /// Shares memory, and returns the fields of its handle.
    pub fn share(&self, number: u8, access: Access) -> Fields {
        self.share_memory(number, Arc::new(HandleOnly(number)), access)
    }

    /// Shares memory of any kind as segment `SEGMENT + number`, and returns the fields of its
    /// handle.
    pub fn share_memory(
        &self,
        number: u8,
        memory: Arc<dyn BackendObject>,
        access: Access,
    ) -> Fields {
        self.share_segment(SEGMENT + u32::from(number), memory, access)
    }

    /// Shares memory of any kind as this segment, and returns the fields of its handle.
    pub fn share_segment(
        &self,
        segment: u32,
        memory: Arc<dyn BackendObject>,
        access: Access,
    ) -> Fields {
        let cells = ExportCells::default();
        let exported =
            self.exporter
                .export_at(&cells, Particulars::default(), memory, segment, access);
        let Credential { record, key } = exported.unwrap();
        Fields {
            backend: BackendKind::Cuda,
            read_only: access == Access::ReadOnly,
            isolated: false,
            host: 0,
            exporter: address::exporter_id().unwrap(),
            pid: 0,
            context: self.exporter.number(),
            key,
            device: DeviceUuid::from_bytes([0; 16]),
            generation: record.generation,
            record: record.index,
            segment,
            offset: 0,
            length: LEN as u64,
        }
    }

    pub fn attach(&self, fields: &Fields) -> Arc<Attachment> {
        let (policy, deadline) = (PeerPolicy::default(), OpenDeadline::after(DEADLINE));
        let directory = Some(self.directory.as_path());
        let route = Route::Exporter;
        let connection =
            Connection::open(fields.exporter, 0, route, directory, &policy, &deadline).unwrap();
        let request = Request::Attach {
            context: fields.context,
            credential: Credential::of(fields),
            program: ProgramName::default(),
        };
        let answer = connection.ask_for_memory(request, None, &deadline).unwrap();
        let context = ContextId::by(fields, route);
        Attachment::accepted(context, connection, DEADLINE, answer).unwrap()
    }

    /// Returns whether an importer has a record open.
    pub fn is_open(attachment: &Attachment, fields: &Fields) -> bool {
        attachment.ledger.is_open(fields.record)
    }
}

impl Attachment {
    /// Breaks the connection, like the exporter's death.
    pub fn break_off(&self) {
        match &self.location {
            Location::Remote { connection, .. } => connection.hang_up(),
            Location::Local(_) => panic!("it has no connection"),
        }
    }
}

impl Drop for Exporting {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
