//! Tests of buffers on a device whose memory the host cannot access. The host device simulates such
//! a device. The test clients cover buffers on real devices.

use super::{Buffer, Storage, late};
use crate::abi::object::Referent;
use crate::enqueue;
use crate::memory::object::{MemoryObject, TABLE};
use crate::memory::usm::{self, Request, allocate};
use crate::testing::{Scene, check};
use crosshandle::MemoryKind;
use std::ffi::c_void;
use std::ptr::{self, NonNull, null, null_mut};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use unified_runtime_sys::{
    UR_MAP_FLAG_READ, UR_MAP_FLAG_WRITE, UR_MAP_FLAG_WRITE_INVALIDATE_REGION,
    UR_MEM_FLAG_ALLOC_COPY_HOST_POINTER, UR_MEM_FLAG_ALLOC_HOST_POINTER,
    UR_MEM_FLAG_USE_HOST_POINTER, ur_map_flags_t, ur_mem_flags_t, ur_mem_handle_t,
    ur_mem_native_properties_t, ur_result_t, ur_structure_type_t,
};

const LEN: usize = 100;
const SOON: Duration = Duration::from_secs(10);

impl Scene {
    fn buffer(&self, flags: ur_mem_flags_t, user: Option<&mut [u8; LEN]>) -> ur_mem_handle_t {
        self.buffer_on((false, false), flags, user)
    }

    fn buffer_on(
        &self,
        sides: (bool, bool),
        flags: ur_mem_flags_t,
        user: Option<&mut [u8; LEN]>,
    ) -> ur_mem_handle_t {
        let pointer = user.map(|user| NonNull::from(user).cast());
        let context = self.context();
        let inner = context.first().1;
        // SAFETY: the tests keep the user's memory alive as long as the buffer.
        let storage = unsafe { Storage::create(inner, LEN, flags, pointer, sides, false) };
        let (context, storage) = (context.to_ref(), storage.expect("memory"));
        MemoryObject::Buffer(Buffer::new(context, storage, 0)).hand_out()
    }

    fn write(&self, buffer: ur_mem_handle_t, bytes: &[u8; LEN], is_blocking: bool) {
        let write = enqueue::TABLE.pfnMemBufferWrite.expect("filled");
        let from = bytes.as_ptr().cast();
        // SAFETY: the handles are alive, and the tests keep the bytes alive until the command is
        // complete.
        check(unsafe {
            let queue = self.queue;
            write(
                queue,
                buffer,
                is_blocking.into(),
                0,
                LEN,
                from,
                0,
                null(),
                null_mut(),
            )
        });
    }

    fn read(&self, buffer: ur_mem_handle_t) -> [u8; LEN] {
        let read = enqueue::TABLE.pfnMemBufferRead.expect("filled");
        let mut bytes = [0; LEN];
        let to = bytes.as_mut_ptr().cast();
        // SAFETY: the handles are alive, and `bytes` outlives the command, because the call blocks.
        check(unsafe { read(self.queue, buffer, 1, 0, LEN, to, 0, null(), null_mut()) });
        bytes
    }

    /// Maps the bytes 10 to 29 of a buffer.
    fn map(&self, buffer: ur_mem_handle_t, flags: ur_map_flags_t) -> *mut [u8; 20] {
        let map = enqueue::TABLE.pfnMemBufferMap.expect("filled");
        let mut pointer: *mut c_void = null_mut();
        // SAFETY: the handles are alive, and the pointer is valid for a write.
        check(unsafe {
            let (queue, pointer) = (self.queue, &mut pointer);
            map(
                queue,
                buffer,
                1,
                flags,
                10,
                20,
                0,
                null(),
                null_mut(),
                pointer,
            )
        });
        pointer.cast()
    }

    fn unmap(&self, buffer: ur_mem_handle_t, pointer: *mut [u8; 20]) -> ur_result_t {
        let unmap = enqueue::TABLE.pfnMemUnmap.expect("filled");
        // SAFETY: the handles are alive.
        unsafe { unmap(self.queue, buffer, pointer.cast(), 0, null(), null_mut()) }
    }
}

fn release(buffer: ur_mem_handle_t) {
    // SAFETY: the handle is alive and is not used afterwards.
    check(unsafe { TABLE.pfnRelease.expect("filled")(buffer) });
}

#[test]
fn mapped_regions_are_copies_there() {
    let scene = Scene::new();
    let buffer = scene.buffer(0, None);
    scene.write(buffer, &[1; LEN], true);
    let both = scene.map(buffer, UR_MAP_FLAG_READ | UR_MAP_FLAG_WRITE);
    let only_read = scene.map(buffer, UR_MAP_FLAG_READ);
    assert_ne!(both, only_read);
    // SAFETY: both regions are mapped for the host.
    unsafe {
        assert_eq!((*both, *only_read), ([1; 20], [1; 20]));
        *both = [2; 20];
        *only_read = [3; 20];
    }
    assert_eq!(scene.read(buffer), [1; LEN], "nothing is unmapped yet");
    check(scene.unmap(buffer, only_read));
    assert_eq!(scene.read(buffer), [1; LEN], "mapped for reading");
    check(scene.unmap(buffer, both));
    let mut wanted = [1; LEN];
    wanted[10..30].fill(2);
    assert_eq!(scene.read(buffer), wanted);

    let anew = scene.map(buffer, UR_MAP_FLAG_WRITE_INVALIDATE_REGION);
    // SAFETY: the region is mapped for the host.
    unsafe { *anew = [4; 20] };
    check(scene.unmap(buffer, anew));
    wanted[10..30].fill(4);
    assert_eq!(scene.read(buffer), wanted);
    assert_eq!(
        scene.unmap(buffer, anew),
        ur_result_t::UR_RESULT_ERROR_INVALID_MEM_OBJECT
    );
    release(buffer);
}

#[test]
fn host_memory_is_mapped_in_place_everywhere() {
    let scene = Scene::new();
    let buffer = scene.buffer(UR_MEM_FLAG_ALLOC_HOST_POINTER, None);
    let (one, two) = (scene.map(buffer, 0), scene.map(buffer, 0));
    assert_eq!(one, two);
    check(scene.unmap(buffer, one));
    check(scene.unmap(buffer, two));
    release(buffer);
}

#[test]
fn contents_are_copied_when_a_buffer_is_made() {
    let scene = Scene::new();
    let mut user = [5; LEN];
    let buffer = scene.buffer(UR_MEM_FLAG_ALLOC_COPY_HOST_POINTER, Some(&mut user));
    user.fill(6);
    assert_eq!(scene.read(buffer), [5; LEN]);
    release(buffer);
    assert_eq!(user, [6; LEN]);
}

#[test]
fn memory_of_the_user_is_used_in_place_where_the_device_takes_it() {
    let scene = Scene::new();
    let mut user = Box::new([7; LEN]);
    let user = ptr::from_mut(&mut *user);
    // SAFETY: the memory is alive, and no other reference to it exists.
    let taken = Some(unsafe { &mut *user });
    let buffer = scene.buffer_on((false, true), UR_MEM_FLAG_USE_HOST_POINTER, taken);
    // SAFETY: the memory is alive, and no command uses it.
    unsafe { (*user).fill(3) };
    assert_eq!(scene.read(buffer), [3; LEN]);
    scene.write(buffer, &[8; LEN], true);
    // SAFETY: the memory is alive, and no command uses it.
    assert_eq!(unsafe { *user }, [8; LEN]);
    let mapped = scene.map(buffer, UR_MAP_FLAG_READ | UR_MAP_FLAG_WRITE);
    assert_eq!(mapped.addr(), user.addr() + 10);
    check(scene.unmap(buffer, mapped));
    release(buffer);
    // Buffers that do not use the user's memory directly have memory on the device.
    let mut copied = [5; LEN];
    let flags = UR_MEM_FLAG_ALLOC_COPY_HOST_POINTER;
    let buffer = scene.buffer_on((false, true), flags, Some(&mut copied));
    copied.fill(6);
    assert_eq!(scene.read(buffer), [5; LEN]);
    release(buffer);
}

#[test]
fn memory_of_the_user_follows_its_buffer() {
    let scene = Scene::new();
    let mut user = Box::new([7; LEN]);
    let user = ptr::from_mut(&mut *user);
    // SAFETY: the memory is alive, and no other reference to it exists.
    let buffer = scene.buffer(UR_MEM_FLAG_USE_HOST_POINTER, Some(unsafe { &mut *user }));
    // SAFETY: the memory is alive, and no command uses it.
    unsafe { (*user).fill(6) };
    assert_eq!(
        scene.read(buffer),
        [6; LEN],
        "the contents before the first command"
    );
    scene.write(buffer, &[8; LEN], true);
    let mapped = scene.map(buffer, UR_MAP_FLAG_READ | UR_MAP_FLAG_WRITE);
    assert_eq!(mapped.addr(), user.addr() + 10);
    let mut wanted = [8; LEN];
    // SAFETY: the region is mapped for the host.
    unsafe {
        assert_eq!(*mapped, [8; 20]);
        *mapped = [9; 20];
    }
    check(scene.unmap(buffer, mapped));
    wanted[10..30].fill(9);
    assert_eq!(scene.read(buffer), wanted);

    // A running command keeps the storage alive. The contents are written back after the command.
    let gate = scene.hold();
    let late = Box::new([10; LEN]);
    scene.write(buffer, &late, false);
    release(buffer);
    gate.signal().expect("signalled");
    scene.finish();
    // SAFETY: the memory is alive, and the last command is complete.
    assert_eq!(unsafe { *user }, [10; LEN]);
}

/// Waits until the last byte of the user's memory has the value `byte`.
fn wait_for_byte(user: *const [u8; LEN], byte: u8) {
    let began = Instant::now();
    // SAFETY: the memory is alive. The read is volatile, because the compiler does not know about
    // the writes.
    while unsafe { user.cast::<u8>().add(LEN - 1).read_volatile() } != byte {
        assert!(began.elapsed() < SOON, "byte {byte} is late");
        thread::yield_now();
    }
}

#[test]
fn late_contents_go_back_although_all_else_is_released() {
    let user = ptr::from_mut(Box::leak(Box::new([7; LEN])));
    for (byte, is_queue_first) in [(1, false), (2, true)] {
        let scene = Scene::new();
        // SAFETY: the memory is alive, and no other reference to it exists.
        let buffer = scene.buffer(UR_MEM_FLAG_USE_HOST_POINTER, Some(unsafe { &mut *user }));
        let gate = scene.hold();
        let late = Box::leak(Box::new([byte; LEN]));
        scene.write(buffer, late, false);
        // The release returns although the buffer is in use.
        if is_queue_first {
            drop(scene);
            release(buffer);
        } else {
            release(buffer);
            drop(scene);
        }
        gate.signal().expect("signalled");
        wait_for_byte(user, byte);
    }
}

#[test]
fn queues_tell_when_they_are_done_with_a_buffer() {
    static BYTES: [u8; LEN] = [2; LEN];
    let (held, dropped, idle) = (Scene::new(), Scene::new(), Scene::new());
    let mut user = Box::new([0; LEN]);
    let buffer = held.buffer(UR_MEM_FLAG_USE_HOST_POINTER, Some(&mut user));
    idle.write(buffer, &[1; LEN], true);
    let (held_gate, dropped_gate) = (held.hold(), dropped.hold());
    for scene in [&held, &dropped, &held] {
        scene.write(buffer, &BYTES, false);
    }
    drop((dropped, idle));
    // SAFETY: the handle is alive.
    let storage = unsafe { Buffer::behind(buffer) }.map(|buffer| &buffer.storage);
    let storage = storage.expect("a buffer");
    let (say, hear) = mpsc::channel();
    // When both queues have completed, the last clone of the function is dropped, which closes the
    // channel.
    late::call_at_ends(&storage.users, storage.context(), move || {
        say.send(()).expect("a listener");
    });
    assert!(hear.try_recv().is_err(), "both are held");
    dropped_gate.signal().expect("signalled");
    assert_eq!(hear.recv_timeout(SOON), Ok(()));
    assert!(hear.try_recv().is_err(), "one is held");
    held_gate.signal().expect("signalled");
    assert_eq!(hear.recv_timeout(SOON), Ok(()));
    assert_eq!(
        hear.recv_timeout(SOON),
        Err(mpsc::RecvTimeoutError::Disconnected),
        "there is one call for each"
    );
    release(buffer);
    assert_eq!(*user, BYTES);
}

/// Creates a buffer over new USM memory. The buffer owns the memory if `is_owned` is not 0.
fn buffer_of_memory(scene: &Scene, is_owned: u8) -> (ur_mem_handle_t, *mut c_void) {
    let context = scene.context();
    let request = Request {
        kind: MemoryKind::Device,
        len: LEN,
        align: 0,
    };
    let memory = allocate(context, context.first().0, None, &request).expect("memory");
    let properties = ur_mem_native_properties_t {
        stype: ur_structure_type_t::UR_STRUCTURE_TYPE_MEM_NATIVE_PROPERTIES,
        pNext: null_mut(),
        isNativeHandleOwned: is_owned,
    };
    let mut buffer = null_mut();
    let create = TABLE.pfnBufferCreateWithNativeHandle.expect("filled");
    // SAFETY: the handle is alive, and the pointers are valid.
    check(unsafe { create(memory.addr(), scene.context, &properties, &mut buffer) });
    (buffer, memory)
}

#[test]
fn any_byte_but_0_is_true() {
    let scene = Scene::new();
    let (buffer, memory) = buffer_of_memory(&scene, 2);
    // SAFETY: the handle is alive.
    let freed = unsafe { usm::TABLE.pfnFree.expect("filled")(scene.context, memory) };
    let wanted = ur_result_t::UR_RESULT_ERROR_INVALID_MEM_OBJECT;
    assert_eq!(freed, wanted, "the buffer owns it");
    release(buffer);
}

#[test]
fn memory_can_be_freed_before_its_buffer() {
    let scene = Scene::new();
    let (buffer, memory) = buffer_of_memory(&scene, 0);
    let (context, memory) = (
        scene.context.expose_provenance(),
        memory.expose_provenance(),
    );
    let (say, hear) = mpsc::channel();
    thread::spawn(move || {
        let (context, memory) = (
            ptr::with_exposed_provenance_mut(context),
            ptr::with_exposed_provenance_mut(memory),
        );
        // SAFETY: the handle is alive.
        let freed = unsafe { usm::TABLE.pfnFree.expect("filled")(context, memory) };
        say.send(freed).expect("a listener");
    });
    let freed = hear.recv_timeout(SOON);
    check(freed.expect("it does not wait for the buffer"));
    // The buffer keeps the freed memory alive.
    scene.write(buffer, &[3; LEN], true);
    assert_eq!(scene.read(buffer), [3; LEN]);
    release(buffer);
}

mod on_a_gpu {
    use super::*;

    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn late_contents_go_back() {
        let scene = Scene::on("cuda");
        let user = Box::leak(Box::new([7; LEN]));
        let user = ptr::from_mut(user);
        for round in 1..=10 {
            // SAFETY: the memory is alive, and no other reference to it exists.
            let buffer = scene.buffer(UR_MEM_FLAG_USE_HOST_POINTER, Some(unsafe { &mut *user }));
            let gate = scene.hold();
            let late = Box::leak(Box::new([round; LEN]));
            scene.write(buffer, late, false);
            // The release returns although the buffer is in use.
            release(buffer);
            gate.signal().expect("signalled");
            wait_for_byte(user, round);
        }
    }
}
