//! What all objects of a context have in common.

use super::import::Imports;
use super::options::ContextOptions;
use crate::api::device::Device;
use crate::api::memory::Allocation;
use crate::api::queue::Queue;
use crate::error::{Error, Result};
use crate::hal::{BackendContext, BackendDevice};
use crate::handle::{DeviceUuid, Fields};
use crate::ipc::broker::address;
use crate::ipc::{Attachment, Exporter, Origin, Record};
use crate::os::process;
use crate::pool;
use crate::pool::{PoolOptions, Trimmed, Usage};
use crate::types::Access;
use crate::types::MemoryKind;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};

/// A pool of allocations of one kind.
pub(crate) type Pool = pool::Pool<Arc<Allocation>>;

/// A pool for each kind of memory.
pub(crate) type Pools = [Arc<Pool>; 3];

pub(crate) struct ContextCore {
    device: Device,
    backend: Arc<dyn BackendContext>,
    exporter: Arc<Exporter>,
    pools: Pools,
    pool_options: PoolOptions,
    /// Allocations by where they start, to find those that a pointer points into. Only changed
    /// when a block is first used or finally let go.
    addresses: RwLock<BTreeMap<usize, Weak<Allocation>>>,
    numbers: Arc<AtomicU32>,
    pub(super) imports: Imports,
    /// Where events of the driver and ours meet.
    pub(super) native_events: OnceLock<Queue>,
    pub(super) origin: Origin,
    exporter_id: u64,
    pid: u32,
    host: u64,
    uuid: DeviceUuid,
}

impl ContextCore {
    /// `backend` makes what allocates and queues on the device.
    pub(super) fn new(
        device: Device,
        options: ContextOptions,
        backend: impl FnOnce(&dyn BackendDevice) -> Result<Arc<dyn BackendContext>>,
    ) -> Result<Self> {
        process::watch_forks();
        if process::is_forked() {
            return Err(Error::forked());
        }
        let exporter_id = address::exporter_id()?;
        let backend = backend(&*device.inner)?;
        let numbers = Arc::new(AtomicU32::new(0));
        let pool_options = options.pool();
        let origin = options.into_origin();
        let (policy, directory) = (origin.policy.clone(), origin.directory.clone());
        let exporter = Exporter::new(policy, directory, backend.reuses_shared_memory())?;
        let pools = new_pools(&backend, pool_options, None, &numbers);
        Ok(Self {
            uuid: device.info().uuid,
            device,
            backend,
            exporter,
            pools,
            pool_options,
            addresses: RwLock::default(),
            numbers,
            imports: Imports::default(),
            native_events: OnceLock::new(),
            origin,
            exporter_id,
            pid: process::pid(),
            host: process::host_identity(),
        })
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn backend(&self) -> &Arc<dyn BackendContext> {
        &self.backend
    }

    pub(crate) fn exporter(&self) -> &Arc<Exporter> {
        &self.exporter
    }

    #[inline]
    pub(crate) fn pool(&self, kind: MemoryKind) -> &Arc<Pool> {
        pool_of(&self.pools, kind)
    }

    /// How its own pools behave.
    pub(crate) fn pool_options(&self) -> PoolOptions {
        self.pool_options
    }

    /// Further pools, for a `MemoryPool`.
    pub(crate) fn new_pools(&self, options: PoolOptions, usage: Arc<Usage>) -> Pools {
        new_pools(&self.backend, options, Some(usage), &self.numbers)
    }

    /// Numbers for segments that no pool made.
    pub(crate) fn numbers(&self) -> &AtomicU32 {
        &self.numbers
    }

    /// What every handle of this context says.
    pub(crate) fn fields(&self, record: Record) -> Fields {
        Fields {
            backend: self.device.info().backend,
            read_only: false,
            host: self.host,
            exporter: self.exporter_id,
            pid: self.pid,
            segment: 0,
            secret: self.exporter.secret(),
            device: self.uuid,
            record: record.index,
            generation: record.generation,
            offset: 0,
            length: 0,
            segment_length: 0,
        }
    }

    /// Refuses handles to memory that cannot be opened in this context, before anybody is asked.
    #[inline]
    pub(crate) fn check_memory(&self, fields: &Fields, access: Access) -> Result<()> {
        self.check_event(fields)?;
        let backend = self.device.info().backend;
        if fields.backend != backend {
            return Err(Error::WrongBackend {
                handle: fields.backend,
                context: backend,
            });
        }
        if fields.device != self.uuid && !self.backend.reaches(fields.device) {
            return Err(Error::WrongDevice {
                handle: fields.device,
                context: self.uuid,
            });
        }
        if fields.read_only && access == Access::ReadWrite {
            return Err(Error::ReadOnly);
        }
        Ok(())
    }

    /// The same for events, whose state is host memory: their device doesn't matter.
    #[inline]
    pub(crate) fn check_event(&self, fields: &Fields) -> Result<()> {
        if process::is_forked() {
            return Err(Error::forked());
        }
        if fields.host == self.host {
            return Ok(());
        }
        Err(Error::WrongHost)
    }

    /// This process's place in the context that made a handle.
    #[inline]
    pub(crate) fn attachment(&self, fields: &Fields) -> Result<Arc<Attachment>> {
        self.imports.attachment(fields, &self.origin)
    }

    /// Lets `find` know of an allocation.
    pub(crate) fn note_address(&self, start: usize, allocation: &Arc<Allocation>) {
        let mut addresses = self
            .addresses
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        addresses.insert(start, Arc::downgrade(allocation));
    }

    pub(crate) fn forget_address(&self, start: usize) {
        let mut addresses = self
            .addresses
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        // The block may have been carved into something new already.
        if addresses
            .get(&start)
            .is_some_and(|allocation| allocation.strong_count() == 0)
        {
            addresses.remove(&start);
        }
    }

    /// The allocation that contains an address, and how far inside it is.
    pub(crate) fn find(&self, address: usize) -> Result<(Arc<Allocation>, usize)> {
        let addresses = self
            .addresses
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let found = addresses.range(..=address).next_back();
        let allocation = found.and_then(|(_, allocation)| allocation.upgrade());
        drop(addresses);
        allocation
            .and_then(|allocation| {
                let offset = address - allocation.start().get();
                (offset < allocation.len()).then_some((allocation, offset))
            })
            .ok_or_else(|| {
                Error::invalid(format!(
                    "{address:#x} points into no allocation of this context"
                ))
            })
    }

    pub(super) fn trim(&self) {
        self.exporter.reclaim_all();
        self.imports.drop_hung_up();
        drop(trim(&self.pools, usize::MAX));
    }

    pub(super) fn close(&self) {
        for pool in &self.pools {
            drop(pool.close());
        }
        self.exporter.close();
        self.backend.close();
    }
}

fn new_pools(
    backend: &Arc<dyn BackendContext>,
    options: PoolOptions,
    usage: Option<Arc<Usage>>,
    numbers: &Arc<AtomicU32>,
) -> Pools {
    KINDS.map(|kind| {
        let (backend, numbers) = (Arc::clone(backend), Arc::clone(numbers));
        Arc::new(Pool::new(backend, kind, options, usage.clone(), numbers))
    })
}

const KINDS: [MemoryKind; 3] = [MemoryKind::Device, MemoryKind::Host, MemoryKind::Shared];

/// The pool for a kind of memory.
#[inline]
pub(crate) fn pool_of(pools: &Pools, kind: MemoryKind) -> &Arc<Pool> {
    match kind {
        MemoryKind::Device => &pools[0],
        MemoryKind::Host => &pools[1],
        MemoryKind::Shared => &pools[2],
    }
}

/// Takes `excess` bytes of free memory, as far as there are so many, out of pools.
pub(crate) fn trim(pools: &Pools, mut excess: usize) -> Vec<Trimmed<Arc<Allocation>>> {
    let trim_one = |pool: &Arc<Pool>| {
        let (bytes, trimmed) = pool.trim(excess);
        excess = excess.saturating_sub(bytes);
        trimmed
    };
    pools.iter().map(trim_one).collect()
}

pub(crate) fn record_of(fields: &Fields) -> Record {
    Record {
        index: fields.record,
        generation: fields.generation,
    }
}
