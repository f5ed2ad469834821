//! The core of a context, which all objects of the context share. This module does not use the
//! types of the objects.

mod allocation;
mod imports;
mod object_name;
mod options;

pub(crate) use allocation::Allocation;
pub(crate) use imports::Imported;
pub(crate) use object_name::ObjectName;
pub use options::ContextOptions;

use crate::api::device::Device;
use crate::pool;
use crate::pool::{PoolOptions, Trimmed, Usage};
use crosshandle_hal::{BackendContext, BackendDevice, BackendSegment};
use crosshandle_handle::{DeviceUuid, Fields};
use crosshandle_ipc::broker::address;
use crosshandle_ipc::{Attachment, Credential, Exporter, First, OpenDeadline};
use crosshandle_os::fork::Birth;
use crosshandle_os::process;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::{HashMap, Mutex};
use crosshandle_types::{Access, MemoryKind};
use imports::Imports;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

/// A pool of allocations of one kind.
pub(crate) type Pool = pool::Pool<Allocation>;

/// A pool for each kind of memory, in the order of [`KINDS`].
pub(crate) type Pools = [Arc<Pool>; 3];

/// A segment that the program allocated, and its number.
type AdoptedSegment = (Weak<dyn BackendSegment>, u32);

const KINDS: [MemoryKind; 3] = [MemoryKind::Device, MemoryKind::Host, MemoryKind::Shared];

/// The shared state of a context: the backend's context, the exports, and the imported memory.
/// Every object of a context keeps it alive.
pub(crate) struct ContextCore {
    device: Device,
    backend: Arc<dyn BackendContext>,
    exporter: Arc<Exporter>,
    pools: Pools,
    pool_options: PoolOptions,
    /// Allocations by their first address, to find the allocation that a pointer points into. It
    /// changes only when a block is first used and when a block is finally released.
    addresses: RwLock<BTreeMap<usize, Weak<Allocation>>>,
    segment_numbers: Arc<AtomicU32>,
    /// Segments that the program allocated, by their address in this process.
    adopted: Mutex<HashMap<usize, AdoptedSegment>>,
    imports: Imports,
    exporter_id: u64,
    pid: u32,
    host: u64,
    uuid: DeviceUuid,
    birth: Birth,
}

impl ContextCore {
    /// Creates a context on a device. `create` creates the backend's part of it.
    pub(crate) fn new(
        device: Device,
        options: ContextOptions,
        create: impl FnOnce(&dyn BackendDevice) -> Result<Arc<dyn BackendContext>>,
    ) -> Result<Self> {
        process::watch_forks();
        if process::is_forked() && !device.inner.survives_fork() {
            return Err(Error::forked());
        }
        let exporter_id = address::exporter_id()?;
        let backend = create(&*device.inner)?;
        let segment_numbers = Arc::new(AtomicU32::new(0));
        let pool_options = options.pool();
        let label = options.label(&device);
        let origin = options.into_origin();
        let (policy, directory) = (origin.policy.clone(), origin.directory.clone());
        let exporter = Exporter::new(label, policy, directory, backend.reuses_shared_memory())?;
        let pools = new_pools(&backend, pool_options, None, &segment_numbers);
        Ok(Self {
            uuid: device.info().uuid,
            device,
            backend,
            exporter,
            pools,
            pool_options,
            addresses: RwLock::default(),
            segment_numbers,
            adopted: Mutex::default(),
            imports: Imports::new(origin),
            exporter_id,
            pid: process::pid(),
            host: process::host_identity(),
            birth: Birth::here(),
        })
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Returns an error if the context was made before this process was forked.
    #[inline]
    pub(crate) fn check_birth(&self) -> Result<()> {
        match self.birth.is_inherited() {
            true => Err(Error::forked()),
            false => Ok(()),
        }
    }

    /// Returns whether the context was made before this process was forked.
    #[inline]
    pub(crate) fn is_inherited(&self) -> bool {
        self.birth.is_inherited()
    }

    pub(crate) fn backend(&self) -> &Arc<dyn BackendContext> {
        &self.backend
    }

    pub(crate) fn exporter(&self) -> &Arc<Exporter> {
        &self.exporter
    }

    /// Returns the context's own pool of a kind of memory.
    #[inline]
    pub(crate) fn pool(&self, kind: MemoryKind) -> &Arc<Pool> {
        pool_of(&self.pools, kind)
    }

    /// Returns the options of the context's own pools.
    pub(crate) fn pool_options(&self) -> PoolOptions {
        self.pool_options
    }

    /// Creates additional pools, whose memory is counted in `usage`.
    pub(crate) fn new_pools(&self, options: PoolOptions, usage: Arc<Usage>) -> Pools {
        new_pools(&self.backend, options, Some(usage), &self.segment_numbers)
    }

    /// Returns a number for a segment that belongs to no pool.
    pub(crate) fn next_segment_number(&self) -> u32 {
        pool::next_number(&self.segment_numbers, true)
    }

    /// Returns the number of a segment that the program allocated. All parts of a segment have the
    /// same number.
    pub(crate) fn number_of_adopted(&self, segment: &Arc<dyn BackendSegment>) -> u32 {
        let address = Arc::as_ptr(segment).addr();
        let mut adopted = self.adopted.lock();
        // No other segment can have this address while the table's segment still exists.
        if let Some((known, number)) = adopted.get(&address)
            && known.strong_count() > 0
        {
            return *number;
        }
        if adopted.len() == adopted.capacity() {
            adopted.retain(|_, (segment, _)| segment.strong_count() > 0);
        }
        let number = self.next_segment_number();
        adopted.insert(address, (Arc::downgrade(segment), number));
        number
    }

    /// Returns the fields that all handles to an object have in common, and this context's device.
    pub(crate) fn handle_fields(&self, credential: Credential) -> Fields {
        let Credential { record, key } = credential;
        Fields {
            backend: self.device.info().backend,
            read_only: false,
            isolated: false,
            host: self.host,
            exporter: self.exporter_id,
            pid: self.pid,
            context: self.exporter.number(),
            key,
            device: self.uuid,
            generation: record.generation,
            record: record.index,
            segment: 0,
            offset: 0,
            length: 0,
        }
    }

    /// Checks that this context can open a memory handle, before the exporter is asked.
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

    /// Checks that this process can open an event handle. The state of an event is host memory, so
    /// its device does not matter.
    #[inline]
    pub(crate) fn check_event(&self, fields: &Fields) -> Result<()> {
        self.check_birth()?;
        if fields.host == self.host || process::may_be_this_host(fields.host) {
            return Ok(());
        }
        Err(Error::WrongHost)
    }

    /// Returns the options of a context without pooling that exports and opens where this one does.
    pub(crate) fn companion_options(&self) -> ContextOptions {
        let origin = &self.imports.origin;
        let options = ContextOptions::new()
            .pooling(false)
            .peers(origin.policy.clone())
            .exchange_timeout(origin.timeout);
        match &origin.directory {
            Some(directory) => options.socket_dir(directory),
            None => options,
        }
    }

    /// Returns the deadline of an open that begins now.
    #[inline]
    pub(crate) fn deadline(&self) -> OpenDeadline {
        OpenDeadline::after(self.imports.origin.timeout)
    }

    /// Returns this process's attachment to the context that made a handle. `next` is what the
    /// caller fetches next.
    #[inline]
    pub(crate) fn attachment(
        &self,
        fields: &Fields,
        next: First,
        deadline: &OpenDeadline,
    ) -> Result<Arc<Attachment>> {
        self.imports.attachment(fields, next, deadline)
    }

    /// Calls `fetch` with the attachment to the exporter or holder that has the handle's memory.
    /// Also returns that attachment.
    pub(crate) fn ask_either<R>(
        &self,
        fields: &Fields,
        next: First,
        deadline: &OpenDeadline,
        fetch: impl FnMut(&Arc<Attachment>) -> Result<R>,
    ) -> Result<(Arc<Attachment>, R)> {
        self.imports.ask_either(fields, next, deadline, fetch)
    }

    /// Returns the segment of a handle's memory, and maps it first if it is not mapped yet.
    #[inline]
    pub(crate) fn imported(
        &self,
        fields: &Fields,
        access: Access,
        deadline: &OpenDeadline,
    ) -> Result<Arc<Imported>> {
        self.imports.segment(self, fields, access, deadline)
    }

    /// Maps the segments of several handles together. See [`Imports::map_ahead`].
    pub(crate) fn map_ahead(
        &self,
        handles: &[Fields],
        access: Access,
        deadline: &OpenDeadline,
    ) -> Vec<Arc<Imported>> {
        self.imports.map_ahead(self, handles, access, deadline)
    }

    /// Records an allocation for [`find`](Self::find).
    fn note_address(&self, start: usize, allocation: &Arc<Allocation>) {
        write(&self.addresses).insert(start, Arc::downgrade(allocation));
    }

    fn forget_address(&self, start: usize) {
        let mut addresses = write(&self.addresses);
        // A new allocation may already use the addresses of the block.
        if addresses
            .get(&start)
            .is_some_and(|allocation| allocation.strong_count() == 0)
        {
            addresses.remove(&start);
        }
    }

    /// Returns the allocation that contains an address, and the offset of the address in it.
    pub(crate) fn find(&self, address: usize) -> Result<(Arc<Allocation>, usize)> {
        let addresses = read(&self.addresses);
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

    /// Returns free memory to the system, and unmaps segments of exporters without open memory.
    pub(crate) fn trim(&self) {
        // In a forked child, the memory belongs to the parent, which may be using blocks that are
        // free in the child's copy of the lists.
        if self.is_inherited() {
            return;
        }
        self.exporter.reclaim_all();
        self.imports.drop_unused();
        for pool in &self.pools {
            pool.release();
        }
    }

    /// Empties the pools and stops the context's background work. Remaining objects stay usable.
    pub(crate) fn close(&self) {
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
    segment_numbers: &Arc<AtomicU32>,
) -> Pools {
    KINDS.map(|kind| {
        let (backend, numbers) = (Arc::clone(backend), Arc::clone(segment_numbers));
        Pool::new(backend, kind, options, usage.clone(), numbers)
    })
}

/// Returns the pool of a kind of memory.
#[inline]
pub(crate) fn pool_of(pools: &Pools, kind: MemoryKind) -> &Arc<Pool> {
    match kind {
        MemoryKind::Device => &pools[0],
        MemoryKind::Host => &pools[1],
        MemoryKind::Shared => &pools[2],
    }
}

/// Takes up to `excess` bytes of free memory out of the pools.
pub(crate) fn trim(pools: &Pools, mut excess: usize) -> Vec<Trimmed<Allocation>> {
    let trim_one = |pool: &Arc<Pool>| {
        let (bytes, trimmed) = pool.trim(excess);
        excess = excess.saturating_sub(bytes);
        trimmed
    };
    pools.iter().map(trim_one).collect()
}

// A panic leaves no inconsistent state under these locks, so poisoning can be ignored.

#[inline]
fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

#[inline]
fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
