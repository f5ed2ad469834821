//! Tests of memory that the program allocated without this library.

use super::super::driver::sys;
use super::crowd::Crowd;
use super::native::{BYTES, SOON, context, ends, make_current};
use crosshandle::{Command, Memory};
use crosshandle_handle::MemoryHandle;
use crosshandle_types::error::Error;
use std::process::Stdio;
use std::ptr::{self, NonNull};
use std::time::Instant;

/// Allocates memory of the driver, as programs do.
fn allocate() -> NonNull<u8> {
    let mut start = 0;
    // SAFETY: the result is live.
    let code = unsafe { sys::cuMemAlloc_v2(&mut start, 4 * BYTES) };
    assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
    NonNull::new(ptr::with_exposed_provenance_mut(start as usize)).unwrap()
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn memory_of_the_program_is_shared() {
    let context = context();
    make_current(context.native().unwrap());
    let queue = context.create_queue().unwrap();
    let start = allocate();
    // SAFETY: the memory lives until the end of the test.
    let place = unsafe { start.add(4096) };
    // SAFETY: the memory lives until the end of the test.
    let legacy = unsafe { Memory::adopt(&context, place, BYTES).unwrap() };
    let found = context.allocation_at(place.as_ptr()).unwrap().unwrap();
    assert_eq!((found.address, found.len), (start.addr().get(), 4 * BYTES));
    assert!(found.number != 0);
    assert_eq!(
        context
            .allocation_at(ptr::from_ref(&context).cast())
            .unwrap(),
        None
    );
    // Memory of this library has descriptors. Here it is treated as memory of unknown origin.
    let other = context.allocate(8 * BYTES).unwrap();
    let inside = NonNull::new(other.as_ptr()).unwrap();
    // SAFETY: the memory lives until the end of the test.
    let retained = unsafe { Memory::adopt(&context, inside, 4 * BYTES).unwrap() };
    for (byte, memory) in [(0x11, &legacy), (0x22, &retained)] {
        let handle = memory.handle_at(1000).unwrap();
        queue
            .submit(Command::fill(memory.all(), &[byte]).unwrap())
            .unwrap();
        queue.finish_timeout(SOON).unwrap();
        // The memory is checked in this process, and then in another process, which increments the
        // bytes.
        let opened = context.open_memory(&handle).unwrap();
        assert_eq!(opened.len(), memory.len() - 1000);
        assert_eq!(ends(&queue, &opened), [byte; 2]);
        drop(opened);
        let peer = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "tests::external::peer",
                "--exact",
                "--ignored",
                "--nocapture",
            ])
            .env("CROSSHANDLE_TEST_HANDLE", handle.to_string())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&peer.stdout);
        assert!(
            peer.status.success(),
            "{said}{}",
            String::from_utf8_lossy(&peer.stderr)
        );
        assert!(said.contains("opened"), "{said}");
        assert_eq!(
            ends(&queue, memory),
            [byte, byte + 1],
            "the rest is the peer's"
        );
    }
    // SAFETY: the memory is refused.
    let adopt = |start, len| unsafe { Memory::adopt(&context, start, len) };
    assert!(
        adopt(place, 4 * BYTES)
            .unwrap_err()
            .to_string()
            .contains("one allocation")
    );
    let refused = adopt(NonNull::from(&context).cast(), 1);
    assert!(
        matches!(refused, Err(Error::InvalidArgument(_))),
        "{refused:?}"
    );
    assert!(adopt(place, 0).is_err());
    drop(legacy);
    // SAFETY: nothing uses the memory any more.
    unsafe { sys::cuMemFree_v2(start.addr().get() as sys::CUdeviceptr) };
}

/// The other process of `memory_of_the_program_is_shared`. Does nothing when it is run on its own.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn peer() {
    let Ok(handle) = std::env::var("CROSSHANDLE_TEST_HANDLE") else {
        return;
    };
    let handle: MemoryHandle = handle.parse().unwrap();
    let context = context();
    let queue = context.create_queue().unwrap();
    let memory = context.open_memory(&handle).unwrap();
    let again = context.open_memory(&handle).unwrap();
    let [byte, same] = ends(&queue, &memory);
    assert_eq!(byte, same);
    drop(memory);
    queue
        .submit(Command::fill(again.all(), &[byte + 1]).unwrap())
        .unwrap();
    queue.finish_timeout(SOON).unwrap();
    // No thread waits for the driver here, even if the driver waits for other streams.
    make_current(context.native().unwrap());
    let crowd = Crowd::new(&context, 1);
    let began = Instant::now();
    drop(again);
    assert!(began.elapsed() < SOON / 2, "{:?}", began.elapsed());
    drop(crowd);
    println!("opened");
}
