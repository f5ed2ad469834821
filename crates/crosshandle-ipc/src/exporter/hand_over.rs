//! Handing memory over: an exporter hands it over, and a holder then serves it.

use super::Exporter;
use crate::broker::{self, Exports, PeerPolicy};
use crate::describe::Label;
use crate::record::{Credential, Record};
use crate::records::{BackendObject, Export, Exported, ExportedMemory, Particulars};
use crosshandle_events::Owner;
use crosshandle_events::open_count;
use crosshandle_handle::{HandleKind, Key};
use crosshandle_os::fork::PerProcess;
use crosshandle_os::process;
use crosshandle_types::Access;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::observe::ExportedObject;
use crosshandle_types::sync::Mutex;
use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// Handing memory over, on the side of the exporting context and on the side of the holder.
impl Exporter {
    /// Records that a holder now serves a record's memory. Returns the exporter's last reference to
    /// the memory, which the caller drops, or `None` if the object was freed.
    pub fn hand_over(&self, record: Record) -> Option<Arc<dyn BackendObject>> {
        let mut records = self.records();
        if !self.is_current(record) {
            return None;
        }
        let export = records.export_mut(record.index)?;
        let Exported::Memory(memory) = &mut export.object else {
            return None;
        };
        memory.is_moved = true;
        if std::mem::take(&mut memory.is_sealed) {
            self.catalog.clear_sealed_handle(record.index);
        }
        let moved: Arc<dyn BackendObject> = Arc::new(Moved);
        Some(std::mem::replace(&mut memory.object, moved))
    }

    /// Makes empty exports for a context of another process. `number` is the context's number in
    /// that process.
    pub fn of_another(number: u32, label: Label, policy: PeerPolicy) -> Result<Arc<Self>> {
        let exporter = Self::numbered(number, label, policy, None, false)?;
        // The first chunk also describes the processes, so it is always needed.
        exporter.catalog.ensure(0)?;
        let program = process::program();
        (exporter.catalog).set_peer(Owner::EXPORTER, process::pid(), &program);
        Ok(exporter)
    }

    /// Starts to serve a record of another process's context. The record keeps its number,
    /// generation and key.
    pub fn hold(&self, credential: Credential, memory: HeldMemory, name: &str) -> Result<()> {
        let Credential { record, key } = credential;
        self.catalog.ensure(record.index)?;
        let HeldMemory {
            object,
            segment,
            access,
            particulars,
        } = memory;
        let export = Export {
            key,
            _counted: ExportedObject::new(HandleKind::Memory, particulars.len as usize),
            object: Exported::Memory(ExportedMemory {
                object,
                segment,
                access,
                is_prepared: true,
                is_moved: false,
                is_sealed: false,
                particulars,
            }),
        };
        self.records().set_export(record.index, export);
        if let Some(generation) = self.catalog.generation(record.index) {
            generation.store(record.generation, Ordering::SeqCst);
        }
        self.catalog.set_name(record.index, name);
        let this: Weak<dyn Exports> = self.this.clone();
        broker::hold(key, self.policy.clone(), this);
        Ok(())
    }

    /// Replaces the key of a record that [`hold`](Self::hold) serves. The old key is no longer
    /// accepted.
    pub fn rekey_held(&self, credential: Credential, key: Key) {
        broker::release_held(credential.key);
        if let Some(export) = self.records().export_mut(credential.record.index) {
            export.key = key;
        }
        let this: Weak<dyn Exports> = self.this.clone();
        broker::hold(key, self.policy.clone(), this);
    }

    /// Stops serving a record that [`hold`](Self::hold) serves. Processes that have the memory open
    /// keep it.
    pub fn release_held(&self, credential: Credential) {
        broker::release_held(credential.key);
        if let Some(generation) = self.catalog.generation(credential.record.index) {
            open_count::end_generation(generation);
        }
        let export = self.records().take_export(credential.record.index);
        // The lock is released first, because this may be the last descriptor of the memory.
        drop(export);
    }
}

/// Memory that was handed over and that the driver would reuse in this process although importers
/// have it open. It is kept until the process ends.
pub(super) static HANDED_OVER: PerProcess<Mutex<Vec<Box<dyn Any + Send + Sync>>>> =
    PerProcess::new(Mutex::default);

/// Memory that another process has handed over.
pub struct HeldMemory {
    pub object: Arc<dyn BackendObject>,
    pub segment: u32,
    pub access: Access,
    pub particulars: Particulars,
}

/// Replaces memory that was handed over, in the exporter.
struct Moved;

impl BackendObject for Moved {
    fn len(&self) -> usize {
        0
    }

    fn descriptor(&self, _: Access) -> Result<Arc<OwnedFd>> {
        Err(Error::HolderGone)
    }
}
