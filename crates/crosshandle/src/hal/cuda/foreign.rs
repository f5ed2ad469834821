//! Device memory that the program allocated without us.
//!
//! What was made with virtual memory management has a descriptor like ours. Other allocations only
//! have a *legacy handle*: 64 bytes with which another process maps all of the allocation, without
//! keeping it. Those travel in a *card*, a small file that stands where a descriptor of the memory
//! would.

use super::device::Gpu;
use super::driver::{DeviceAddress, Found, LegacyHandle};
use super::memory::CudaPhysical;
use crate::error::{Error, Result};
use crate::hal::Segment;
use crate::ipc::Shared;
use crate::os::memfd;
use crate::os::process;
use crate::types::SharedBytes;
use crate::types::{Access, Address};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// How a card begins, where its handle is, and a number that only its exporter's process knows the
/// allocation by.
const MAGIC: &[u8; 16] = b"crosshandle card";
const HANDLE: Range<usize> = 16..80;
const NUMBER: Range<usize> = 80..96;
/// Bytes of a card. No memory has so few: it comes in pages.
const CARD: usize = 96;

/// The allocation of the program's that `len` bytes at `address` lie in, and how far inside.
pub(super) fn adopt(
    gpu: &Arc<Gpu>,
    address: usize,
    len: usize,
) -> Result<(Arc<dyn Segment>, usize)> {
    let driver = gpu.driver();
    let _current = gpu.enter()?;
    let found = driver
        .look_at(address as DeviceAddress)?
        .ok_or_else(|| Error::invalid(format!("the driver has no memory at {address:#x}")))?;
    found.check_shareable()?;
    if found.device != gpu.handle().number() {
        return Err(Error::invalid(format!(
            "the memory at {address:#x} is another device's than {}",
            gpu.info().name
        )));
    }
    let offset = address - found.start as usize;
    if found.len - offset < len {
        return Err(Error::invalid(format!(
            "{len} bytes at {address:#x} are not all in one allocation of the driver, but only the \
             first {}; share each by itself",
            found.len - offset
        )));
    }
    let segment: Arc<dyn Segment> = if found.has_legacy_handle {
        Legacy::adopt(gpu, found)?
    } else {
        Arc::new(Retained::adopt(gpu, found)?)
    };
    Ok((segment, offset))
}

fn address(start: DeviceAddress) -> Result<Address> {
    let pointer = NonNull::new(ptr::with_exposed_provenance_mut(start as usize));
    pointer
        .map(Address::new)
        .ok_or_else(|| Error::invalid("there is no memory at address 0"))
}

/// Memory with a descriptor: its mapping is the program's, the memory itself is kept.
struct Retained {
    start: Address,
    memory: CudaPhysical,
}

impl Retained {
    /// The device's context is current.
    fn adopt(gpu: &Arc<Gpu>, found: Found) -> Result<Self> {
        let allocation = gpu.driver().retain_memory(found.start).map_err(|error| {
            Error::Unsupported(format!(
                "the driver can't share this memory, perhaps since it comes from one of its pools \
                 ({error})"
            ))
        })?;
        Ok(Self {
            start: address(found.start)?,
            memory: CudaPhysical::retained(gpu, allocation, found.len),
        })
    }
}

impl Shared for Retained {
    fn len(&self) -> usize {
        self.memory.len()
    }

    fn prepare(&self) -> Result<()> {
        self.memory.prepare()
    }

    fn descriptor(&self, access: Access) -> Result<Arc<OwnedFd>> {
        self.memory.descriptor(access)
    }
}

impl Segment for Retained {
    fn start(&self) -> Address {
        self.start
    }

    fn host_bytes(&self) -> Option<SharedBytes<'_>> {
        None
    }

    fn populate(&self, _offset: usize, _len: usize) {}
}

/// Memory with a legacy handle, in the process that allocated it.
struct Legacy {
    start: Address,
    len: usize,
    number: [u8; NUMBER.end - NUMBER.start],
    card: Arc<OwnedFd>,
}

/// What was adopted in this process, where the driver doesn't open its own handles.
fn own() -> MutexGuard<'static, Vec<Weak<Legacy>>> {
    static OWN: Mutex<Vec<Weak<Legacy>>> = Mutex::new(Vec::new());
    OWN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Legacy {
    /// The device's context is current.
    fn adopt(gpu: &Arc<Gpu>, found: Found) -> Result<Arc<Self>> {
        let mut number = [0; NUMBER.end - NUMBER.start];
        process::random(&mut number).map_err(Error::os("reading random bytes"))?;
        let mut card = [0; CARD];
        card[..MAGIC.len()].copy_from_slice(MAGIC);
        card[HANDLE].copy_from_slice(&gpu.driver().legacy_handle(found.start)?);
        card[NUMBER].copy_from_slice(&number);
        let card = memfd::create_constant("crosshandle-card", &card);
        let legacy = Arc::new(Self {
            start: address(found.start)?,
            len: found.len,
            number,
            card: Arc::new(card.map_err(Error::os("creating a card for memory"))?),
        });
        let mut own = own();
        own.retain(|legacy| legacy.strong_count() > 0);
        own.push(Arc::downgrade(&legacy));
        Ok(legacy)
    }
}

impl Shared for Legacy {
    fn len(&self) -> usize {
        self.len
    }

    fn descriptor(&self, _access: Access) -> Result<Arc<OwnedFd>> {
        Ok(Arc::clone(&self.card))
    }
}

impl Segment for Legacy {
    fn start(&self) -> Address {
        self.start
    }

    fn host_bytes(&self) -> Option<SharedBytes<'_>> {
        None
    }

    fn populate(&self, _offset: usize, _len: usize) {}
}

/// What a peer's file says, if it is a card.
pub(super) struct Card([u8; CARD]);

impl Card {
    /// Only sealed memory is one: reading a file of a file system that the peer serves himself could
    /// last for ever.
    pub(super) fn read(file: &OwnedFd) -> Result<Option<Self>> {
        let looking = Error::os("looking at imported memory");
        let (len, is_sealed) = memfd::check(file).map_err(&looking)?;
        if len != CARD as u64 || !is_sealed {
            return Ok(None);
        }
        let mut card = [0; CARD];
        let read = memfd::read_start(file.as_fd(), &mut card).map_err(&looking)?;
        let is_card = read == CARD && card.starts_with(MAGIC);
        Ok(is_card.then_some(Self(card)))
    }

    /// Maps the memory. `len` is the exporter's word.
    pub(super) fn open(&self, gpu: &Arc<Gpu>, len: usize) -> Result<Arc<dyn Segment>> {
        let own: Vec<_> = own().iter().filter_map(Weak::upgrade).collect();
        if let Some(own) = own.into_iter().find(|own| own.number == self.0[NUMBER]) {
            return Ok(own);
        }
        let mut handle: LegacyHandle = [0; 64];
        handle.copy_from_slice(&self.0[HANDLE]);
        // An allocation can be opened in one context of a process only.
        let gpu = gpu.lasting();
        let _current = gpu.enter()?;
        let start = gpu.driver().open_legacy(&handle)?;
        let opened = OpenedLegacy {
            gpu: Arc::clone(gpu),
            start: address(start)?,
            len,
        };
        let actual = gpu.driver().look_at(start)?.map_or(0, |found| found.len);
        if actual != len {
            return Err(Error::Extent {
                claimed: len as u64,
                actual: actual as u64,
            });
        }
        Ok(Arc::new(opened))
    }
}

/// Memory with a legacy handle, of another process.
struct OpenedLegacy {
    gpu: Arc<Gpu>,
    start: Address,
    len: usize,
}

// SAFETY: an address; whoever accesses memory there answers for that.
unsafe impl Send for OpenedLegacy {}
// SAFETY: as above.
unsafe impl Sync for OpenedLegacy {}

impl Drop for OpenedLegacy {
    fn drop(&mut self) {
        let gpu = Arc::clone(&self.gpu);
        let start = self.start.get() as DeviceAddress;
        // As soon as can be: its owner may free it then. But who drops this may be looking after
        // all queues, and the driver may wait for one.
        self.gpu.traffic().at_once(move || {
            gpu.release("memory of another process", |driver| {
                // SAFETY: opened when this was made; the driver counts. Commands keep the segments
                // they use.
                unsafe { driver.close_legacy(start) }
            });
        });
    }
}

impl Shared for OpenedLegacy {
    fn len(&self) -> usize {
        self.len
    }

    fn descriptor(&self, _access: Access) -> Result<Arc<OwnedFd>> {
        Err(Error::invalid("only the exporter of memory can share it"))
    }
}

impl Segment for OpenedLegacy {
    fn start(&self) -> Address {
        self.start
    }

    fn host_bytes(&self) -> Option<SharedBytes<'_>> {
        None
    }

    fn populate(&self, _offset: usize, _len: usize) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sealed_memory_of_a_cards_size_is_a_card() {
        let mut bytes = [7; CARD + 1];
        bytes[..MAGIC.len()].copy_from_slice(MAGIC);
        let is_card = |file: &OwnedFd| Card::read(file).unwrap().is_some();
        for (len, wanted) in [(CARD - 1, false), (CARD, true), (CARD + 1, false)] {
            let file = memfd::create_constant("card", &bytes[..len]).unwrap();
            assert_eq!(is_card(&file), wanted, "{len} bytes");
        }
        assert!(!is_card(
            &memfd::create_constant("card", &[7; CARD]).unwrap()
        ));
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let unsealed = rustix::fs::memfd_create("card", flags).unwrap();
        rustix::io::pwrite(&unsealed, &bytes[..CARD], 0).unwrap();
        assert!(!is_card(&unsealed));
    }
}
