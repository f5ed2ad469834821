//! Tests that need a GPU.
//!
//! Run them on a machine with a GPU, with
//! `cargo test -p crosshandle --lib cuda -- --include-ignored` or with the packed test program.

mod programs;

use super::device::{Gpu, first_gpu};
use super::driver::{DeviceAddress, Driver, FillWord, StreamHandle, WordOp};
use super::memory::{CudaPhysical, Reservation};
use crosshandle_hal::BackendObject;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{Access, MemoryKind};
use std::sync::Arc;

mod crowd;
mod dropped;
mod ended;
mod external;
mod fabric;
mod images;
mod native;
mod pieces;

fn gpu() -> Arc<Gpu> {
    first_gpu().expect("a GPU")
}

/// Waits until the stream has finished all its work.
fn finish(driver: &Driver, stream: StreamHandle) -> Result<()> {
    while !driver.is_stream_done(stream)? {
        std::thread::yield_now();
    }
    Ok(())
}

/// A stream that writes and reads device memory, and waits for the result.
struct Stream<'a> {
    gpu: &'a Gpu,
    stream: super::driver::Stream,
}

impl<'a> Stream<'a> {
    fn new(gpu: &'a Gpu) -> Self {
        let _current = gpu.enter().unwrap();
        let stream = gpu.driver().create_stream().unwrap();
        Self { gpu, stream }
    }

    fn fill(&self, to: DeviceAddress, byte: u8, len: usize) -> Result<()> {
        let _current = self.gpu.enter()?;
        let (driver, stream) = (self.gpu.driver(), self.stream.handle());
        // SAFETY: the tests pass mapped memory, and the stream finishes below.
        unsafe { driver.fill(stream, to, FillWord::Byte(byte), len)? };
        finish(driver, stream)
    }

    fn read(&self, from: DeviceAddress) -> Result<u8> {
        let _current = self.gpu.enter()?;
        let (driver, stream) = (self.gpu.driver(), self.stream.handle());
        let mut byte = 0_u8;
        let to = (&raw mut byte).addr() as DeviceAddress;
        // SAFETY: the tests pass mapped memory. The byte lives until the stream has finished.
        unsafe { driver.copy(stream, to, from, 1)? };
        finish(driver, stream)?;
        // SAFETY: the byte is a live local. The compiler does not see that the device wrote it.
        Ok(unsafe { (&raw const byte).read_volatile() })
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn exported_memory_is_the_same_when_imported() {
    let gpu = gpu();
    let unit = gpu.info().granularity;
    let memory = CudaPhysical::create(&gpu, 2 * unit).unwrap();
    let file = memory.descriptor(Access::ReadWrite).unwrap();
    let again = memory.descriptor(Access::ReadOnly).unwrap();
    assert!(Arc::ptr_eq(&file, &again), "it is exported once");
    let imported = CudaPhysical::import(&gpu, &file, 2 * unit).unwrap();
    let [one, two] = [&memory, &imported].map(|memory| {
        let place = Reservation::new(&gpu, 0, 2 * unit, unit).unwrap();
        // SAFETY: the range was just reserved.
        unsafe {
            place
                .map(0, memory, 0, 2 * unit, Access::ReadWrite)
                .unwrap()
        };
        place
    });
    drop((memory, imported, file, again));
    let stream = Stream::new(&gpu);
    stream.fill(one.address(unit), 0x5A, 1).unwrap();
    assert_eq!(stream.read(two.address(unit)).unwrap(), 0x5A);
    for place in [&one, &two] {
        unmap(place, 2 * unit);
    }
}

fn unmap(place: &Reservation, len: usize) {
    let _current = place.gpu().enter().unwrap();
    // SAFETY: the tests mapped exactly this range, and wait for the work that uses it.
    unsafe { place.gpu().driver().unmap(place.address(0), len).unwrap() };
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn parts_can_be_mapped_if_the_capabilities_say_so() {
    let gpu = gpu();
    let unit = gpu.info().granularity;
    let memory = CudaPhysical::create(&gpu, 3 * unit).unwrap();
    let mut results = Vec::new();
    for (offset, len) in [(0, unit), (unit, unit), (unit, 2 * unit)] {
        let place = Reservation::new(&gpu, 0, 3 * unit, unit).unwrap();
        // SAFETY: the range was just reserved.
        let mapped = unsafe { place.map(0, &memory, offset, len, Access::ReadWrite) };
        if mapped.is_ok() {
            unmap(&place, len);
        }
        results.push((offset / unit, len / unit, mapped));
    }
    let all = results.iter().all(|(_, _, mapped)| mapped.is_ok());
    assert_eq!(
        all,
        gpu.info().capabilities.partial_mappings,
        "offset, length, result: {results:?}"
    );
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn more_than_there_is_cannot_be_mapped() {
    let gpu = gpu();
    let unit = gpu.info().granularity;
    let memory = CudaPhysical::create(&gpu, unit).unwrap();
    let file = memory.descriptor(Access::ReadWrite).unwrap();
    let liar = CudaPhysical::import(&gpu, &file, 2 * unit).unwrap();
    let place = Reservation::new(&gpu, 0, 2 * unit, unit).unwrap();
    // SAFETY: the range was just reserved.
    let mapped = unsafe { place.map(0, &liar, 0, 2 * unit, Access::ReadWrite) };
    assert!(matches!(mapped, Err(Error::Driver { .. })), "{mapped:?}");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn foreign_descriptors_are_refused() {
    let gpu = gpu();
    let unit = gpu.info().granularity;
    for path in ["/dev/null", "/proc/self/exe", "/", "/dev/nvidiactl"] {
        let file = std::fs::File::open(path).unwrap().into();
        let refused = CudaPhysical::import(&gpu, &file, unit).map(drop);
        assert!(
            matches!(
                refused,
                Err(Error::Protocol(_) | Error::Driver { .. } | Error::OutOfMemory { .. })
            ),
            "{path}: {refused:?}"
        );
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn host_memory_is_shared_with_the_device_and_read_only_if_wanted() {
    let gpu = gpu();
    let stream = Stream::new(&gpu);
    let memory = super::memory::create(&gpu, MemoryKind::Host, 4 << 20).unwrap();
    let address = memory.start().get() as DeviceAddress;
    stream.fill(address + 5, 0x77, 3).unwrap();
    let mut bytes = [0; 9];
    memory.host_bytes().unwrap().read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0, 0, 0, 0, 0, 0x77, 0x77, 0x77, 0]);
    let file = memory.descriptor(Access::ReadOnly).unwrap();
    let view = super::memory::import(&gpu, &file, 4 << 20, Access::ReadOnly).unwrap();
    let address = view.start().get() as DeviceAddress;
    assert_eq!(stream.read(address + 6).unwrap(), 0x77);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_callers_context_comes_back() {
    let gpu = gpu();
    // A new thread has no current context.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert!(!gpu.is_current().unwrap());
            let outer = gpu.enter().unwrap();
            assert!(gpu.is_current().unwrap());
            drop(gpu.enter().unwrap());
            assert!(gpu.is_current().unwrap());
            drop(outer);
            assert!(!gpu.is_current().unwrap());
        });
    });
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn streams_wait_cyclically_and_write_upper_halves_alone() {
    let gpu = gpu();
    let driver: &Driver = gpu.driver();
    let memory = super::memory::create(&gpu, MemoryKind::Host, 2 << 20).unwrap();
    let words = memory.host_bytes().unwrap().atomics().unwrap();
    let address = memory.start().get() as DeviceAddress;
    let stream = Stream::new(&gpu);
    let handle = stream.stream.handle();
    let relaxed = std::sync::atomic::Ordering::Relaxed;
    // The value is just before the numbers wrap around, and the lower half is not zero.
    words[0].store(0xFFFF_FFFE << 32 | 0x1234, relaxed);
    let _current = gpu.enter().unwrap();
    // SAFETY: the words are aligned, and alive until the stream has finished.
    let do_op = |op| unsafe { driver.word_ops(handle, &[op]).unwrap() };
    do_op(WordOp::Wait(address + 4, 1));
    do_op(WordOp::Write(address + 12, 7));
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(!driver.is_stream_done(handle).unwrap());
    words[0].store(1 << 32 | 0x1234, relaxed);
    finish(driver, handle).unwrap();
    assert_eq!(words[1].load(relaxed), 7 << 32);
    do_op(WordOp::Write(address + 4, 9));
    finish(driver, handle).unwrap();
    assert_eq!(words[0].load(relaxed), 9 << 32 | 0x1234);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn queues_of_the_host_refuse_memory_that_it_cannot_access() {
    let context = native::context();
    let host = crosshandle::Context::new(&crosshandle::Device::find("host").unwrap()).unwrap();
    let queue = host.create_queue().unwrap();
    let (there, here) = (context.allocate(64).unwrap(), host.allocate(64).unwrap());
    for command in [
        crosshandle::Command::copy(there.all(), here.all()).unwrap(),
        crosshandle::Command::copy(here.all(), there.all()).unwrap(),
        crosshandle::Command::fill(there.range(8..16).unwrap(), &[1]).unwrap(),
    ] {
        let refused = queue.submit(command);
        assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
    }
    let pinned =
        crosshandle_types::AllocationOptions::new(64).kind(crosshandle_types::MemoryKind::Host);
    let pinned = context.allocate_with(pinned).unwrap();
    let copy = crosshandle::Command::copy(pinned.all(), here.all()).unwrap();
    queue.submit(copy).unwrap();
    queue.finish_timeout(native::SOON).unwrap();
}
