//! External memory: memory that the program allocated with the driver itself.
//!
//! Memory from virtual memory management has a descriptor, like this library's own memory. Other
//! allocations have only a *legacy IPC handle* of 64 bytes. Another process can map the whole
//! allocation with it, but the handle does not keep the allocation alive. The handle is sent
//! unchanged, with a number by which only the exporter's process knows the allocation.
//!
//! One range of addresses may contain many allocations that are mapped side by side, as in torch's
//! expandable segments. They are shared as pieces: the allocations that the range touches at the
//! time of sharing.

use super::device_memory::CudaPhysical;
use crate::device::Gpu;
use crate::driver::{DeviceAddress, Found, LegacyHandle};
use crate::scheduler::{self, Urgency};
use crosshandle_hal::{BackendBlob, BackendObject, BackendSegment};
use crosshandle_ipc::{Piece, PiecePart, PieceSet, PiecedMemory};
use crosshandle_os::process;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::Mutex;
use crosshandle_types::{Access, Address, DriverAllocation, SharedBytes};
use std::any::Any;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Weak};

/// Length in bytes of the random number that identifies an allocation of this process.
const NUMBER_BYTES: usize = 16;

/// Returns, for each range, the allocation of the program that contains it, and the range's offset
/// there. A range is an address and a length. Ranges in adjacent allocations share one segment.
pub(crate) fn adopt(
    gpu: &Arc<Gpu>,
    ranges: &[(usize, usize)],
) -> Result<Vec<(Arc<dyn BackendSegment>, usize)>> {
    let _current = gpu.enter()?;
    let mut touched = BTreeMap::new();
    for (address, len) in ranges {
        look_along(gpu, &mut touched, *address, *len)?;
    }
    let mut segments: BTreeMap<usize, Arc<dyn BackendSegment>> = BTreeMap::new();
    let mut allocations = touched.into_values().peekable();
    while let Some(first) = allocations.next() {
        let start = first.start as usize;
        let mut run = vec![first];
        while let (Some(last), Some(next)) = (run.last(), allocations.peek())
            && !last.has_legacy_handle
            && !next.has_legacy_handle
            && last.end() == next.start as usize
        {
            run.extend(allocations.next());
        }
        segments.insert(start, adopt_run(gpu, &run)?);
    }
    let place = |(address, _): &(usize, usize)| {
        let (start, segment) = segments
            .range(..=*address)
            .next_back()
            .expect("it was looked at");
        (Arc::clone(segment), address - start)
    };
    Ok(ranges.iter().map(place).collect())
}

/// Looks up the program's allocations that contain `len` bytes at `address`, and adds those that
/// are not known yet.
fn look_along(
    gpu: &Arc<Gpu>,
    known: &mut BTreeMap<usize, Found>,
    address: usize,
    len: usize,
) -> Result<()> {
    let end = address
        .checked_add(len)
        .ok_or_else(|| Error::invalid("the end of the bytes is beyond the address space"))?;
    let mut next = address;
    while next < end {
        let before = known.range(..=next).next_back();
        let found = match before.filter(|(_, found)| next < found.end()) {
            Some((_, found)) => *found,
            None => look_at(gpu, next, address)?,
        };
        known.insert(found.start as usize, found);
        if found.has_legacy_handle && found.end() < end {
            return Err(Error::invalid(format!(
                "{len} bytes at {address:#x} are not all in one allocation of the driver, but only the \
                 first {}; share each by itself",
                found.end() - address.min(found.end())
            )));
        }
        next = found.end();
    }
    Ok(())
}

/// Finds the allocation at an address. `start` is the start of the adopted memory, for the error
/// text.
fn look_at(gpu: &Arc<Gpu>, address: usize, start: usize) -> Result<Found> {
    let found = gpu.driver().look_at(address as DeviceAddress)?;
    let found = found.ok_or_else(|| match address == start {
        true => Error::invalid(format!("the driver has no memory at {address:#x}")),
        false => Error::invalid(format!(
            "the driver has no memory at {address:#x}, so only the first {} bytes at {start:#x} can be \
             shared as one",
            address - start
        )),
    })?;
    found.check_shareable()?;
    if found.device != gpu.handle().number() {
        return Err(Error::invalid(format!(
            "the memory at {address:#x} belongs to another device than {}",
            gpu.info().name
        )));
    }
    Ok(found)
}

/// Adopts adjacent allocations. There is only one if it has a legacy IPC handle. The device's
/// context is current.
fn adopt_run(gpu: &Arc<Gpu>, run: &[Found]) -> Result<Arc<dyn BackendSegment>> {
    let start = address_of(run[0].start)?;
    if let [found] = run {
        return match found.has_legacy_handle {
            true => Ok(LegacyExport::adopt(gpu, *found, start)?),
            false => {
                // The mapping belongs to the program. This library keeps only the memory itself.
                let memory = retain(gpu, *found)?;
                Ok(Arc::new(AddressSegment { start, memory }))
            }
        };
    }
    let pieces = run
        .iter()
        .map(|found| retain(gpu, *found))
        .collect::<Result<Vec<_>>>()?;
    // If the same memory is shared again, importers have already mapped the existing set.
    let known: Vec<_> = SETS.lock().iter().filter_map(Weak::upgrade).collect();
    if let Some(set) = known
        .iter()
        .find(|set| set.start == start && set.is_of(&pieces))
    {
        return Ok(Arc::clone(set) as _);
    }
    let piece = |memory: CudaPhysical| Piece {
        part: PiecePart {
            whole: memory.len() as u64,
            offset: 0,
            len: memory.len() as u64,
        },
        object: Arc::new(memory),
    };
    let memory = PiecedMemory(PieceSet::new(pieces.into_iter().map(piece).collect())?);
    let set = Arc::new(AddressSegment { start, memory });
    let mut sets = SETS.lock();
    sets.retain(|set| set.strong_count() > 0);
    sets.push(Arc::downgrade(&set));
    drop(sets);
    Ok(set)
}

/// The adopted memory of this process that consists of several allocations.
static SETS: Mutex<Vec<Weak<AddressSegment<PiecedMemory>>>> = Mutex::new(Vec::new());

impl AddressSegment<PiecedMemory> {
    /// Returns whether this memory consists of the same allocations as `pieces`.
    fn is_of(&self, pieces: &[CudaPhysical]) -> bool {
        let own = self.memory.0.pieces();
        let is_same = |(own, other): (&Piece, &CudaPhysical)| {
            let object: &dyn Any = &*own.object;
            let own = object.downcast_ref::<CudaPhysical>();
            own.is_some_and(|own| own.allocation().is_same(other.allocation()))
        };
        let is_as_long = |(own, other): (&Piece, &CudaPhysical)| own.part.len == other.len() as u64;
        own.len() == pieces.len()
            && own.iter().zip(pieces).all(is_as_long)
            && own.iter().zip(pieces).all(is_same)
    }
}

/// Returns the program's allocation at an address, if it belongs to this device.
pub(crate) fn find(gpu: &Arc<Gpu>, address: usize) -> Result<Option<DriverAllocation>> {
    let _current = gpu.enter()?;
    let found = gpu.driver().look_at(address as DeviceAddress)?;
    let own = found.filter(|found| found.device == gpu.handle().number());
    Ok(own.map(|found| DriverAllocation {
        address: found.start as usize,
        len: found.len,
        number: found.number,
    }))
}

fn address_of(start: DeviceAddress) -> Result<Address> {
    let pointer = NonNull::new(ptr::with_exposed_provenance_mut(start as usize));
    pointer
        .map(Address::new)
        .ok_or_else(|| Error::invalid("there is no memory at address 0"))
}

/// Memory of which this type knows only the address. `memory` knows how to share it.
struct AddressSegment<S> {
    start: Address,
    memory: S,
}

impl<S: BackendObject> BackendObject for AddressSegment<S> {
    fn len(&self) -> usize {
        self.memory.len()
    }

    fn prepare(&self) -> Result<()> {
        self.memory.prepare()
    }

    fn descriptor(&self, access: Access) -> Result<Arc<OwnedFd>> {
        self.memory.descriptor(access)
    }

    fn driver_handle(&self) -> Option<BackendBlob> {
        self.memory.driver_handle()
    }

    fn pieces(&self) -> Option<&PieceSet> {
        self.memory.pieces()
    }
}

impl<S: BackendObject> BackendSegment for AddressSegment<S> {
    fn start(&self) -> Address {
        self.start
    }

    fn host_bytes(&self) -> Option<SharedBytes<'_>> {
        None
    }

    fn populate(&self, _offset: usize, _len: usize) {}

    fn release_finished(&self) {
        scheduler::tend_every_queue();
    }

    fn release_soon(&self) {
        scheduler::tend_every_queue_soon();
    }
}

/// Returns a reference to memory that has a descriptor. The device's context is current.
fn retain(gpu: &Arc<Gpu>, found: Found) -> Result<CudaPhysical> {
    let allocation = gpu.driver().retain_memory(found.start).map_err(|error| {
        Error::Unsupported(format!(
            "the driver can't share this memory, perhaps because it comes from one of its pools \
             ({error})"
        ))
    })?;
    Ok(CudaPhysical::retained(gpu, allocation, found.len))
}

/// Memory with a legacy IPC handle, in the process that allocated it.
struct LegacyExport {
    len: usize,
    handle: LegacyHandle,
    number: [u8; NUMBER_BYTES],
}

/// The adopted memory of this process with legacy handles. It is needed because the driver does not
/// open this process's own handles.
static ADOPTED: Mutex<Vec<Weak<AddressSegment<LegacyExport>>>> = Mutex::new(Vec::new());

impl LegacyExport {
    /// Wraps an allocation that the driver knows. The device's context is current.
    fn adopt(
        gpu: &Arc<Gpu>,
        found: Found,
        start: Address,
    ) -> Result<Arc<AddressSegment<LegacyExport>>> {
        let mut number = [0; NUMBER_BYTES];
        process::random(&mut number).map_err(Error::os("reading random bytes"))?;
        let memory = Self {
            len: found.len,
            handle: gpu.driver().legacy_handle(found.start)?,
            number,
        };
        let segment = Arc::new(AddressSegment { start, memory });
        let mut adopted = ADOPTED.lock();
        // Searching only when the list would otherwise grow spreads the cost.
        if adopted.len() == adopted.capacity() {
            adopted.retain(|segment| segment.strong_count() > 0);
        }
        adopted.push(Arc::downgrade(&segment));
        Ok(segment)
    }
}

impl BackendObject for LegacyExport {
    fn len(&self) -> usize {
        self.len
    }

    fn descriptor(&self, _access: Access) -> Result<Arc<OwnedFd>> {
        Err(Error::invalid(
            "memory with a legacy handle has no descriptor",
        ))
    }

    fn driver_handle(&self) -> Option<BackendBlob> {
        let mut bytes = [0; LEGACY_BYTES + NUMBER_BYTES];
        bytes[..LEGACY_BYTES].copy_from_slice(&self.handle);
        bytes[LEGACY_BYTES..].copy_from_slice(&self.number);
        Some(BackendBlob::new(&bytes))
    }
}

/// Length in bytes of a legacy IPC handle.
const LEGACY_BYTES: usize = size_of::<LegacyHandle>();

/// Maps memory of another process. The exporter claims `handle` and `len`.
pub(crate) fn open_legacy(
    gpu: &Arc<Gpu>,
    handle: &BackendBlob,
    len: usize,
) -> Result<Arc<dyn BackendSegment>> {
    let bytes = handle.as_bytes();
    let Some((handle, number)) = bytes.split_first_chunk::<LEGACY_BYTES>() else {
        return Err(Error::Protocol("its handle of the driver is too short"));
    };
    if number.len() != NUMBER_BYTES {
        return Err(Error::Protocol("its handle of the driver has another size"));
    }
    let adopted: Vec<_> = {
        let mut adopted = ADOPTED.lock();
        adopted.retain(|segment| segment.strong_count() > 0);
        adopted.iter().filter_map(Weak::upgrade).collect()
    };
    let is_it = |own: &Arc<AddressSegment<LegacyExport>>| own.memory.number == number;
    if let Some(own) = adopted.into_iter().find(is_it) {
        return Ok(own);
    }
    // An allocation can be opened in only one context of a process.
    let gpu = gpu.primary();
    let _current = gpu.enter()?;
    let start = gpu.driver().open_legacy(handle)?;
    let memory = LegacyImport {
        gpu: Arc::clone(gpu),
        start,
        len,
    };
    let actual = gpu.driver().extent_at(start)?.map_or(0, |(_, len)| len);
    if actual != len {
        return Err(Error::Extent {
            end: len as u64,
            actual: actual as u64,
        });
    }
    let start = address_of(start)?;
    Ok(Arc::new(AddressSegment { start, memory }))
}

/// Memory of another process with a legacy IPC handle.
struct LegacyImport {
    gpu: Arc<Gpu>,
    start: DeviceAddress,
    len: usize,
}

impl Drop for LegacyImport {
    fn drop(&mut self) {
        let (gpu, start) = (Arc::clone(&self.gpu), self.start);
        let scheduler = Arc::clone(gpu.scheduler());
        // The memory is closed as soon as possible, because its owner may free it afterwards. It is
        // closed on another thread, because this drop may run on a scheduler thread, and the driver
        // may wait for a stream.
        scheduler.call(Urgency::AtOnce, 0, move || {
            gpu.release("memory of another process", |driver| {
                // SAFETY: opened when this object was created. The driver counts opens, and
                // commands keep the segments they use.
                unsafe { driver.close_legacy(start) }
            });
        });
    }
}

impl BackendObject for LegacyImport {
    fn len(&self) -> usize {
        self.len
    }

    fn descriptor(&self, _access: Access) -> Result<Arc<OwnedFd>> {
        Err(Error::invalid("only the exporter of memory can share it"))
    }
}
