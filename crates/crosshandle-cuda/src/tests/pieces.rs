//! Tests of adopted memory that consists of many allocations, like PyTorch's expandable segments.

use super::super::driver::sys;
use super::native::{SOON, context, make_current};
use crosshandle::{Command, Context, Memory, Queue};
use crosshandle_handle::MemoryHandle;
use crosshandle_types::error::Error;
use crosshandle_types::{AllocationOptions, MemoryKind};
use std::collections::BTreeMap;
use std::process::Stdio;
use std::ptr::{self, NonNull};

/// Reserved addresses into which the program maps allocations side by side.
struct Expandable {
    start: sys::CUdeviceptr,
    len: usize,
    piece: usize,
    mapped: BTreeMap<usize, sys::CUmemGenericAllocationHandle>,
}

fn check(code: sys::CUresult) {
    assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
}

fn location() -> sys::CUmemLocation {
    let mut device = 0;
    // SAFETY: the result is live.
    check(unsafe { sys::cuCtxGetDevice(&mut device) });
    sys::CUmemLocation {
        type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: device,
    }
}

impl Expandable {
    /// Reserves addresses for `places` pieces of `piece` bytes each. The context is current.
    fn reserve(places: usize, piece: usize) -> Self {
        let (mut start, len) = (0, places * piece);
        // SAFETY: the result is live.
        check(unsafe { sys::cuMemAddressReserve(&mut start, len, 0, 0, 0) });
        Self {
            start,
            len,
            piece,
            mapped: BTreeMap::new(),
        }
    }

    fn address(&self, place: usize) -> NonNull<u8> {
        let address = self.start as usize + place * self.piece;
        NonNull::new(ptr::with_exposed_provenance_mut(address)).expect("reserved")
    }

    /// Maps a new allocation at each of the places.
    fn map(&mut self, places: std::ops::Range<usize>) {
        // SAFETY: the structure consists of numbers, a null pointer, and enumerations in which zero
        // is a value.
        let mut properties: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
        properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.requestedHandleTypes =
            sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        properties.location = location();
        let access = sys::CUmemAccessDesc {
            location: location(),
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        for place in places.clone() {
            let mut handle = 0;
            let at = self.start + (place * self.piece) as sys::CUdeviceptr;
            // SAFETY: the results are live, and nothing is mapped at this place, which this object
            // reserved.
            unsafe {
                check(sys::cuMemCreate(&mut handle, self.piece, &properties, 0));
                check(sys::cuMemMap(at, self.piece, 0, handle, 0));
            }
            self.mapped.insert(place, handle);
        }
        let at = self.start + (places.start * self.piece) as sys::CUdeviceptr;
        let len = places.len() * self.piece;
        // SAFETY: all of the range was mapped above.
        check(unsafe { sys::cuMemSetAccess(at, len, &access, 1) });
    }

    /// Unmaps the piece at a place. Nothing uses the piece.
    fn unmap(&mut self, place: usize) {
        let handle = self.mapped.remove(&place).expect("mapped");
        let at = self.start + (place * self.piece) as sys::CUdeviceptr;
        // SAFETY: `map` mapped exactly this piece.
        unsafe {
            check(sys::cuMemUnmap(at, self.piece));
            check(sys::cuMemRelease(handle));
        }
    }
}

impl Drop for Expandable {
    fn drop(&mut self) {
        let places: Vec<_> = self.mapped.keys().copied().collect();
        places.into_iter().for_each(|place| self.unmap(place));
        // SAFETY: `reserve` reserved exactly this range, and nothing is mapped in it.
        check(unsafe { sys::cuMemAddressFree(self.start, self.len) });
    }
}

/// Reads a byte of device memory.
fn byte(context: &Context, queue: &Queue, memory: &Memory, at: usize) -> u8 {
    let options = AllocationOptions::new(1).kind(MemoryKind::Host);
    let staging = context.allocate_with(options).unwrap();
    let from = memory.range(at..at + 1).unwrap();
    queue
        .submit(Command::copy(from, staging.all()).unwrap())
        .unwrap();
    queue.finish_timeout(SOON).unwrap();
    let mut byte = [0];
    staging.read(0, &mut byte).unwrap();
    byte[0]
}

fn fill(queue: &Queue, memory: &Memory, range: std::ops::Range<usize>, byte: u8) {
    let range = memory.range(range).unwrap();
    queue
        .submit(Command::fill(range, &[byte]).unwrap())
        .unwrap();
    queue.finish_timeout(SOON).unwrap();
}

/// Starts another process that opens the handle and follows `variables`. Returns its output.
fn ask_peer(handle: &MemoryHandle, step: usize) {
    let peer = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["tests::pieces::peer", "--exact", "--ignored", "--nocapture"])
        .env("CROSSHANDLE_TEST_PIECES", handle.to_string())
        .env("CROSSHANDLE_TEST_STEP", step.to_string())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&peer.stdout);
    let errors = String::from_utf8_lossy(&peer.stderr);
    // The harness also succeeds if it finds no such test.
    let has_run = peer.status.success() && said.contains("opened");
    assert!(has_run, "{said}{errors}");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn ranges_over_many_allocations_are_shared() {
    let context = context();
    make_current(context.native().unwrap());
    let queue = context.create_queue().unwrap();
    let unit = context.device().info().granularity;
    let mut segment = Expandable::reserve(16, unit);
    segment.map(0..6);
    segment.map(6..10);
    // SAFETY: pieces in use exist longer than the memory that is adopted over them.
    let adopt = |place: NonNull<u8>, len| unsafe { Memory::adopt(&context, place, len) };
    // SAFETY: the address lies inside the reserved range.
    let place = unsafe { segment.address(1).add(4096) };
    let memory = adopt(place, 6 * unit).unwrap();
    let handle = memory.handle().unwrap();
    assert_eq!(handle.fields().offset, 4096);
    for piece in 0..6 {
        fill(
            &queue,
            &memory,
            piece * unit..(piece + 1) * unit,
            0x10 + piece as u8,
        );
    }
    // The memory is checked in this process, and then in another process, which increments each
    // byte that it reads.
    let opened = context.open_memory(&handle).unwrap();
    assert_eq!(opened.len(), 6 * unit);
    for piece in 0..6 {
        assert_eq!(
            byte(&context, &queue, &opened, piece * unit),
            0x10 + piece as u8
        );
    }
    drop(opened);
    ask_peer(&handle, unit);
    for piece in 0..6 {
        let [first, next] = [0, 1].map(|at| byte(&context, &queue, &memory, piece * unit + at));
        assert_eq!((first, next), (0x11 + piece as u8, 0x10 + piece as u8));
    }
    // A read-only handle is refused.
    let read_only = memory.handle_read_only().unwrap();
    let refused = context.open_memory(&read_only);
    assert!(matches!(refused, Err(Error::ReadOnly)), "{refused:?}");
    let opened = context.open_memory_read_only(&read_only).unwrap();
    assert_eq!(byte(&context, &queue, &opened, 5 * unit), 0x16);
    drop(opened);

    // Adopting the same allocations again, or parts of them, yields the same segment, so importers
    // map it once.
    let number = |memory: &Memory| memory.handle().unwrap().fields().segment;
    let again = adopt(place, 6 * unit).unwrap();
    assert_eq!(number(&again), number(&memory));
    let parts = [
        (segment.address(1), 3 * unit),
        (segment.address(3), 100),
        (segment.address(4), 3 * unit),
    ];
    // SAFETY: the pieces exist longer than the adopted memory.
    let parts = unsafe { Memory::adopt_parts(&context, &parts).unwrap() };
    let numbers: Vec<_> = parts.iter().map(number).collect();
    assert_eq!(numbers, [numbers[0]; 3]);
    let opened: Vec<_> = parts
        .iter()
        .map(|part| context.open_memory(&part.handle().unwrap()).unwrap())
        .collect();
    assert_eq!(
        opened[1].as_ptr().addr() - opened[0].as_ptr().addr(),
        2 * unit
    );
    assert_eq!(byte(&context, &queue, &opened[2], 4096), 0x14);
    drop((opened, parts, again));

    // The range includes a place without memory.
    let hole = adopt(segment.address(9), 2 * unit).unwrap_err().to_string();
    assert!(
        hole.contains("no memory at") && hole.contains("only the first"),
        "{hole}"
    );
    // Growth, or other memory in the place of a piece, does not change the existing handle.
    segment.map(10..12);
    let longer = adopt(place, 9 * unit).unwrap();
    assert_ne!(number(&longer), number(&memory));
    ask_peer(&longer.handle().unwrap(), unit);
    drop(longer);
    segment.unmap(3);
    segment.map(3..4);
    let other = adopt(place, 6 * unit).unwrap();
    assert_ne!(number(&other), number(&memory));
    fill(&queue, &other, 2 * unit..3 * unit, 0x77);
    let opened = context.open_memory(&handle).unwrap();
    assert_eq!(
        byte(&context, &queue, &opened, 2 * unit),
        0x14,
        "two peers added one each"
    );
    ask_peer(&handle, unit);
    assert_eq!(byte(&context, &queue, &opened, 2 * unit), 0x15);
    assert_eq!(byte(&context, &queue, &other, 2 * unit), 0x77);
    drop((opened, memory, other));
}

/// The other process of these tests, which increments a byte at each step. Does nothing when it is
/// run on its own.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn peer() {
    let Ok(handle) = std::env::var("CROSSHANDLE_TEST_PIECES") else {
        return;
    };
    let handle: MemoryHandle = handle.parse().unwrap();
    let step = std::env::var("CROSSHANDLE_TEST_STEP").unwrap();
    let step: usize = step.parse().unwrap();
    let context = context();
    let queue = context.create_queue().unwrap();
    let memory = context.open_memory(&handle).unwrap();
    let again = context.open_memory(&handle).unwrap();
    assert_eq!(memory.as_ptr(), again.as_ptr(), "they are mapped once");
    drop(memory);
    for at in (0..again.len()).step_by(step) {
        let byte = byte(&context, &queue, &again, at);
        fill(&queue, &again, at..at + 1, byte + 1);
    }
    println!("opened");
}
