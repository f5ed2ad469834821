//! Device memory: physical memory with a descriptor, reserved addresses, and the two combined.

use crate::device::Gpu;
use crate::driver::{Allocation, DeviceAddress};
use crate::scheduler;
use crosshandle_hal::{BackendObject, BackendSegment};
use crosshandle_handle::DRIVER_HANDLE_SIZE;
use crosshandle_os::descriptor;
use crosshandle_os::descriptor::FileKind;
use crosshandle_os::mapping::HUGE_PAGE;
use crosshandle_os::process;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::Mutex;
use crosshandle_types::{Access, Address, SharedBytes};
use rustix::process::{Resource, getrlimit};
use std::mem;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The fraction (one in `KEPT_PART`) of the process's descriptors that are kept ready for importers
/// of memory of many pieces. If more pieces are imported, the exporter's driver creates each
/// descriptor on request, which takes about 25 µs.
const KEPT_PART: u64 = 4;

/// The major device number of all devices of the NVIDIA driver on Linux.
pub(crate) const NVIDIA_MAJOR: u32 = 195;

/// Physical memory of a GPU.
pub(crate) struct CudaPhysical {
    gpu: Arc<Gpu>,
    allocation: Allocation,
    len: usize,
    /// Created when the memory is first exported. The driver has only one kind of descriptor, which
    /// allows all access. An importer's own driver ensures that a read-only importer only reads.
    descriptor: OnceLock<Arc<OwnedFd>>,
    /// A descriptor that was created ahead for importers of many pieces.
    kept: OnceLock<(Arc<OwnedFd>, KeptSlot)>,
    is_imported: bool,
}

/// The right to keep one piece's descriptor ready.
struct KeptSlot;

/// The number of pieces whose descriptors are kept ready.
static KEPT: AtomicU64 = AtomicU64::new(0);

impl KeptSlot {
    /// Takes a slot, unless too many of this process's descriptors are kept already.
    fn take() -> Option<Self> {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let next = |kept: u64| (kept < limit / KEPT_PART).then_some(kept + 1);
        let taken = KEPT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        taken.is_ok().then_some(Self)
    }
}

impl Drop for KeptSlot {
    fn drop(&mut self) {
        KEPT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Allocates memory. If there is not enough, tries again after releasing some. The caller holds no
/// lock.
fn allocate(gpu: &Arc<Gpu>, allocate: impl Fn() -> Result<Allocation>) -> Result<Allocation> {
    match allocate() {
        Err(Error::OutOfMemory { .. }) => {
            // Finished commands may still keep memory, which this releases.
            scheduler::tend_every_queue();
            gpu.primary().scheduler().make_room();
            allocate()
        }
        made => made,
    }
}

impl CudaPhysical {
    /// Allocates memory. `len` is a multiple of the device's granularity.
    pub(crate) fn create(gpu: &Arc<Gpu>, len: usize) -> Result<Self> {
        if !gpu.info().capabilities.memory_sharing {
            return Err(Error::Unsupported(format!(
                "{} has no virtual memory management with descriptors, which device memory needs",
                gpu.info().name
            )));
        }
        let _current = gpu.enter()?;
        let driver = gpu.driver();
        let allocation = allocate(gpu, || driver.create_memory(gpu.handle(), len))?;
        Ok(Self {
            allocation,
            gpu: Arc::clone(gpu),
            len,
            descriptor: OnceLock::new(),
            kept: OnceLock::new(),
            is_imported: false,
        })
    }

    /// Imports memory of another process. The exporter claims `len`, and the driver refuses to map
    /// more memory than exists.
    pub(crate) fn import(gpu: &Arc<Gpu>, file: &OwnedFd, len: usize) -> Result<Self> {
        let kind = descriptor::kind(file).map_err(Error::os("looking at imported memory"))?;
        if !matches!(kind, FileKind::CharacterDevice { major } if major == NVIDIA_MAJOR) {
            return Err(Error::Protocol("its memory does not belong to the driver"));
        }
        if len == 0 || !len.is_multiple_of(gpu.info().granularity) {
            return Err(Error::Protocol("its memory is not of whole pages"));
        }
        let _current = gpu.enter()?;
        Ok(Self {
            allocation: gpu.driver().import_memory(file.as_fd())?,
            gpu: Arc::clone(gpu),
            len,
            // The driver keeps the memory now, so the descriptor is closed.
            descriptor: OnceLock::new(),
            kept: OnceLock::new(),
            is_imported: true,
        })
    }

    /// Allocates memory that other hosts of the fabric can import too, and returns the driver's
    /// handle for them.
    pub(crate) fn create_for_fabric(
        gpu: &Arc<Gpu>,
        len: usize,
    ) -> Result<(Self, [u8; DRIVER_HANDLE_SIZE])> {
        let _current = gpu.enter()?;
        let driver = gpu.driver();
        let unit = driver.fabric_granularity(gpu.handle())?;
        let len = len
            .checked_next_multiple_of(unit.max(gpu.info().granularity))
            .ok_or_else(|| Error::out_of_memory(len))?;
        let allocation = allocate(gpu, || driver.create_fabric_memory(gpu.handle(), len))?;
        let handle = driver.export_to_fabric(&allocation)?;
        let memory = Self {
            allocation,
            gpu: Arc::clone(gpu),
            len,
            descriptor: OnceLock::new(),
            kept: OnceLock::new(),
            is_imported: false,
        };
        Ok((memory, handle))
    }

    /// Imports memory of the fabric. The handle claims `len`, and the driver refuses to map more
    /// memory than exists.
    pub(crate) fn import_from_fabric(
        gpu: &Arc<Gpu>,
        handle: &[u8; DRIVER_HANDLE_SIZE],
        len: usize,
    ) -> Result<Self> {
        if len == 0 || !len.is_multiple_of(gpu.info().granularity) {
            return Err(Error::Protocol("its memory is not of whole pages"));
        }
        let _current = gpu.enter()?;
        Ok(Self {
            allocation: gpu.driver().import_from_fabric(handle)?,
            gpu: Arc::clone(gpu),
            len,
            descriptor: OnceLock::new(),
            kept: OnceLock::new(),
            is_imported: true,
        })
    }

    /// Wraps an allocation of the program. `len` bytes of it are mapped.
    pub(crate) fn retained(gpu: &Arc<Gpu>, allocation: Allocation, len: usize) -> Self {
        Self {
            gpu: Arc::clone(gpu),
            allocation,
            len,
            descriptor: OnceLock::new(),
            kept: OnceLock::new(),
            is_imported: false,
        }
    }

    pub(crate) fn allocation(&self) -> &Allocation {
        &self.allocation
    }

    /// Creates a descriptor.
    fn export(&self) -> Result<OwnedFd> {
        if self.is_imported {
            return Err(Error::invalid("only the exporter of memory can share it"));
        }
        let _current = self.gpu.enter()?;
        let file = self.gpu.driver().export_memory(&self.allocation)?;
        descriptor::close_on_exec(&file).map_err(Error::os("exporting device memory"))?;
        Ok(file)
    }
}

impl BackendObject for CudaPhysical {
    fn len(&self) -> usize {
        self.len
    }

    fn prepare(&self) -> Result<()> {
        self.descriptor(Access::ReadWrite).map(drop)
    }

    fn descriptor(&self, _access: Access) -> Result<Arc<OwnedFd>> {
        if let Some(file) = self.descriptor.get() {
            return Ok(Arc::clone(file));
        }
        // Two threads may do this at the same time. Both get the same descriptor.
        let file = self.export()?;
        Ok(Arc::clone(self.descriptor.get_or_init(|| Arc::new(file))))
    }

    fn prepare_to_lend(&self) -> Result<()> {
        // Importers wait for the descriptor, and the driver takes some time to create one. It is
        // therefore created ahead, unless too many descriptors are kept already.
        if self.lends_by_driver()
            && let Some(slot) = KeptSlot::take()
        {
            let _ = self.kept.set((Arc::new(self.export()?), slot));
        }
        Ok(())
    }

    fn lend(&self, _access: Access) -> Result<Arc<OwnedFd>> {
        match (self.descriptor.get(), self.kept.get()) {
            (Some(file), _) | (None, Some((file, _))) => Ok(Arc::clone(file)),
            (None, None) => self.export().map(Arc::new),
        }
    }

    fn lends_by_driver(&self) -> bool {
        self.descriptor.get().is_none() && self.kept.get().is_none()
    }
}

/// Maximum number of reserved ranges that a device keeps for later use. Reserving a range took 6 to
/// 43 µs on an H200, and freeing it 12 to 20 µs. A kept range only takes up addresses.
const MAX_KEPT_RANGES: usize = 16;

/// Reserved ranges of addresses that nothing uses.
#[derive(Default)]
pub(crate) struct KeptRanges(Mutex<Vec<(DeviceAddress, usize)>>);

impl KeptRanges {
    /// Takes a range of exactly `len` bytes at a multiple of `align`.
    fn take(&self, len: usize, align: usize) -> Option<DeviceAddress> {
        let mut ranges = self.0.lock();
        let fits =
            |(start, kept): &(DeviceAddress, usize)| *kept == len && *start as usize % align == 0;
        let found = ranges.iter().rposition(fits)?;
        Some(ranges.remove(found).0)
    }

    /// Keeps a range. Returns a range that must be freed instead.
    fn keep(&self, start: DeviceAddress, len: usize) -> Option<(DeviceAddress, usize)> {
        let mut ranges = self.0.lock();
        let oldest = (ranges.len() >= MAX_KEPT_RANGES).then(|| ranges.remove(0));
        ranges.push((start, len));
        oldest
    }

    fn take_all(&self) -> Vec<(DeviceAddress, usize)> {
        mem::take(&mut *self.0.lock())
    }
}

/// Reserved device addresses. Nothing may be mapped there at the drop.
pub(crate) struct Reservation {
    gpu: Arc<Gpu>,
    start: Address,
    len: usize,
    /// Whether the device may keep the addresses after the drop, because everything there was
    /// unmapped.
    is_keepable: AtomicBool,
}

impl Reservation {
    /// Reserves addresses at a multiple of `align`, which is a power of two and a multiple of the
    /// device's granularity.
    pub(crate) fn new(gpu: &Arc<Gpu>, wish: usize, len: usize, align: usize) -> Result<Self> {
        let _current = gpu.enter()?;
        let driver = gpu.driver();
        let start = match wish - wish % align {
            0 => match gpu.kept_ranges().and_then(|kept| kept.take(len, align)) {
                Some(start) => start,
                None => driver.reserve_addresses(0, len, align)?,
            },
            wish => {
                // The wished addresses may lie in a kept range.
                let kept = gpu.kept_ranges().map(KeptRanges::take_all);
                for (start, len) in kept.into_iter().flatten() {
                    free(gpu, start, len);
                }
                // The driver may fail although it could choose another place.
                driver
                    .reserve_addresses(wish, len, align)
                    .or_else(|_| driver.reserve_addresses(0, len, align))?
            }
        };
        let pointer = NonNull::new(ptr::with_exposed_provenance_mut(start as usize));
        Ok(Self {
            gpu: Arc::clone(gpu),
            start: pointer
                .map(Address::new)
                .ok_or_else(|| Error::out_of_memory(len))?,
            len,
            is_keepable: AtomicBool::new(false),
        })
    }

    pub(crate) fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    pub(crate) fn start(&self) -> Address {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn address(&self, offset: usize) -> DeviceAddress {
        (self.start.get() + offset) as DeviceAddress
    }

    /// Maps `len` bytes of memory at `offset`, and allows this device to access them.
    ///
    /// # Safety
    /// The place lies inside the reservation and has nothing mapped.
    pub(crate) unsafe fn map(
        &self,
        offset: usize,
        memory: &CudaPhysical,
        memory_offset: usize,
        len: usize,
        access: Access,
    ) -> Result<()> {
        let driver = self.gpu.driver();
        let start = self.address(offset);
        let _current = self.gpu.enter()?;
        // SAFETY: promised by the caller. The new mapping is not in use yet.
        unsafe {
            driver.map(start, len, memory.allocation(), memory_offset)?;
            let set = driver.set_access(start, len, self.gpu.handle(), access);
            if set.is_err()
                && let Err(error) = driver.unmap(start, len)
            {
                tracing::warn!(%error, "could not unmap what cannot be accessed");
            }
            set
        }
    }

    /// Allows the other devices of this process that can reach the memory to access it.
    pub(crate) fn open_to_peers(&self, offset: usize, len: usize, access: Access) {
        let gpu = &self.gpu;
        if gpu.peer_devices().is_empty() {
            return;
        }
        let Ok(_current) = gpu.enter() else {
            return;
        };
        for peer in gpu.peer_devices() {
            let start = self.address(offset);
            // SAFETY: this was just mapped, and no code of this process uses it from that device
            // yet.
            let set = unsafe { gpu.driver().set_access(start, len, *peer, access) };
            if let Err(error) = set {
                tracing::debug!(%error, "another device can't access this memory");
            }
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let (start, len) = (self.address(0), self.len);
        let kept = self.gpu.kept_ranges();
        let is_keepable = *self.is_keepable.get_mut() && !process::is_forked();
        let kept = kept.filter(|_| is_keepable);
        let unused = kept.map_or(Some((start, len)), |kept| kept.keep(start, len));
        if let Some((start, len)) = unused {
            free(&self.gpu, start, len);
        }
    }
}

/// Frees addresses that a [`Reservation`] reserved and that nothing uses any more.
fn free(gpu: &Gpu, start: DeviceAddress, len: usize) {
    gpu.release("reserved addresses", |driver| {
        // SAFETY: the addresses were reserved by one call, and are freed once, because they are in
        // no reservation and in no list. Nothing is mapped there.
        unsafe { driver.free_addresses(start, len) }
    });
}

/// Device memory at an address.
pub(super) struct CudaSegment {
    reservation: Reservation,
    memory: CudaPhysical,
}

impl CudaSegment {
    /// Allocates memory of a device and maps it, for the devices of this process that can reach it.
    pub(super) fn create(gpu: &Arc<Gpu>, len: usize) -> Result<Self> {
        Self::map_new(CudaPhysical::create(gpu, len)?)
    }

    /// Maps new memory, for the devices of this process that can reach it.
    pub(super) fn map_new(memory: CudaPhysical) -> Result<Self> {
        let segment = Self::map(memory, Access::ReadWrite)?;
        let reservation = &segment.reservation;
        reservation.open_to_peers(0, reservation.len, Access::ReadWrite);
        Ok(segment)
    }

    /// Maps the whole of `memory`, which may belong to another device.
    pub(super) fn map(memory: CudaPhysical, access: Access) -> Result<Self> {
        let len = memory.len;
        let align = memory.gpu.info().granularity.max(HUGE_PAGE);
        let reservation = Reservation::new(&memory.gpu, 0, len, align)?;
        // SAFETY: the addresses were reserved above for this mapping.
        unsafe { reservation.map(0, &memory, 0, len, access)? };
        Ok(Self {
            reservation,
            memory,
        })
    }
}

impl Drop for CudaSegment {
    fn drop(&mut self) {
        let reservation = &self.reservation;
        reservation.gpu.release("device memory", |driver| {
            // SAFETY: the whole reservation was mapped when the segment was created. Commands keep
            // the segments that they use.
            unsafe { driver.unmap(reservation.address(0), reservation.len)? };
            reservation.is_keepable.store(true, Ordering::Relaxed);
            Ok(())
        });
    }
}

impl BackendObject for CudaSegment {
    fn len(&self) -> usize {
        self.memory.len
    }

    fn prepare(&self) -> Result<()> {
        self.memory.prepare()
    }

    fn descriptor(&self, access: Access) -> Result<Arc<OwnedFd>> {
        self.memory.descriptor(access)
    }
}

impl BackendSegment for CudaSegment {
    fn start(&self) -> Address {
        self.reservation.start
    }

    fn host_bytes(&self) -> Option<SharedBytes<'_>> {
        None
    }

    fn populate(&self, _offset: usize, _len: usize) {
        // All of it is committed, in the best pages for the device.
    }

    fn release_finished(&self) {
        scheduler::tend_every_queue();
    }

    fn release_soon(&self) {
        scheduler::tend_every_queue_soon();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_ranges_are_used_again_and_the_oldest_is_freed() {
        let kept = KeptRanges::default();
        let unit: usize = 2 << 20;
        let place = |index: usize| (index * unit) as DeviceAddress;
        for index in 1..=MAX_KEPT_RANGES {
            assert_eq!(kept.keep(place(index), unit), None);
        }
        assert_eq!(kept.keep(place(50), unit), Some((place(1), unit)));
        assert_eq!(kept.take(2 * unit, unit), None);
        assert_eq!(kept.take(unit, 16 * unit), Some(place(16)));
        assert_eq!(kept.take(unit, unit), Some(place(50)));
        assert_eq!(kept.take(unit, 16 * unit), None);
        assert_eq!(kept.take_all().len(), MAX_KEPT_RANGES - 2);
        assert_eq!(kept.take(unit, unit), None);
    }
}
