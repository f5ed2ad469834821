//! Scenarios of two processes that share memory.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd};
use std::ptr;

use level_zero_sys::*;

use crate::link::Link;
use crate::session::{
    Handle, INVALID_ARGUMENT, SUCCESS, Session, bytes, description, descriptor, handle, number, ok,
    patch, ze,
};

const SIZE: usize = 128 << 10;

/// Puts a handle back, if the loader has the function.
fn put(session: &Session, data: Handle) {
    if let Some(put) = session.loader.zeMemPutIpcHandle {
        // SAFETY: as the function wants it.
        let code = unsafe { put(session.context, ze_ipc_mem_handle_t { data }) };
        assert_eq!(code, SUCCESS);
    }
}

/// Each process sees the other's writes, and the memory stays until both have closed it.
pub(crate) fn share(session: &Session) {
    let link = Link::start("memory", &[]);
    let memory = session.alloc(SIZE);
    session.fill(memory, 1, SIZE);
    let handle = session.memory_handle(memory);
    assert_eq!(
        handle,
        session.memory_handle(memory),
        "a descriptor for each allocation, not call"
    );
    // SAFETY: still within the allocation.
    let inside = unsafe { memory.byte_add(64) };
    let mut other = ze_ipc_mem_handle_t { data: [0; 64] };
    let code = ze!(session.zeMemGetIpcHandle(session.context, inside, &mut other));
    assert_eq!(code, INVALID_ARGUMENT);

    link.send(&bytes(&handle), Some(descriptor(&handle)));
    link.wait();
    assert_eq!(session.read(memory, SIZE), [2; SIZE]);
    session.fill(memory, 3, SIZE);
    put(session, handle);
    put(session, handle);
    session.free(memory);
    link.go();
    link.end();
}

pub(crate) fn share_peer(session: &Session, link: &Link) {
    let (message, received) = link.receive();
    let mut handle = handle(&message);
    let received = received.expect("a descriptor");
    patch(&mut handle, &received);
    let memory = session.open_memory(handle).expect("memory");
    // The driver has its own duplicate.
    drop(received);
    let mut size = 0;
    ok!(session.zeMemGetAddressRange(session.context, memory, ptr::null_mut(), &mut size));
    assert_eq!(size, SIZE);
    assert_eq!(session.read(memory, SIZE), [1; SIZE]);
    session.fill(memory, 2, SIZE);
    link.go();
    link.wait();
    // The exporter has freed the memory.
    assert_eq!(session.read(memory, SIZE), [3; SIZE]);
    ok!(session.zeMemCloseIpcHandle(session.context, memory));
}

pub(crate) fn rounds(session: &Session) {
    let link = Link::start("memory-rounds", &[]);
    for round in 0..200 {
        let memory = session.alloc(SIZE);
        session.fill(memory, round as u8, 64);
        let handle = session.memory_handle(memory);
        link.send(&bytes(&handle), Some(descriptor(&handle)));
        link.wait();
        put(session, handle);
        session.free(memory);
    }
    link.end();
}

pub(crate) fn rounds_peer(session: &Session, link: &Link) {
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    for round in 0..200 {
        let (message, received) = link.receive();
        let mut handle = handle(&message);
        let received = received.expect("a descriptor");
        patch(&mut handle, &received);
        let first = session.open_memory(handle).expect("memory");
        let second = session.open_memory(handle).expect("memory");
        assert_ne!(first, second);
        ok!(session.zeMemCloseIpcHandle(session.context, first));
        assert_eq!(session.read(second, 64), [round as u8; 64]);
        ok!(session.zeMemCloseIpcHandle(session.context, second));
        link.go();
    }
    assert_eq!(open(), before);
    assert!(
        session
            .report()
            .contains("\nlive opened-allocations 0 of 400 created\n")
    );
}

/// The exporter opens its own handle, unchanged and with another descriptor number.
pub(crate) fn same_number(session: &Session) {
    let memory = session.alloc(SIZE);
    let mut handle = session.memory_handle(memory);
    let again = session.open_memory(handle).expect("memory");
    ok!(session.zeMemCloseIpcHandle(session.context, again));
    let copy = descriptor(&handle).as_fd().try_clone_to_owned().unwrap();
    assert_ne!(copy.as_raw_fd(), number(&handle));
    patch(&mut handle, &copy);
    let again = session.open_memory(handle).expect("memory");
    ok!(session.zeMemCloseIpcHandle(session.context, again));
    session.free(memory);
}

/// Shares memory by a descriptor alone, without a handle around it.
pub(crate) fn external(session: &Session) {
    let mut desc = description!(
        ze_device_mem_alloc_desc_t,
        ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC
    );
    let mut export = description!(
        ze_external_memory_export_desc_t,
        ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_DESC
    );
    export.flags = ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF;
    desc.pNext = (&raw const export).cast();
    let (context, device) = (session.context, session.device);
    let mut first = ptr::null_mut();
    ok!(session.zeMemAllocDevice(context, &desc, SIZE, 0, device, &mut first));
    let mut exported = description!(
        ze_external_memory_export_fd_t,
        ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_FD
    );
    let mut properties = description!(
        ze_memory_allocation_properties_t,
        ZE_STRUCTURE_TYPE_MEMORY_ALLOCATION_PROPERTIES
    );
    properties.pNext = (&raw mut exported).cast();
    ok!(session.zeMemGetAllocProperties(context, first, &mut properties, ptr::null_mut()));

    let mut import = description!(
        ze_external_memory_import_fd_t,
        ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_IMPORT_FD
    );
    import.flags = ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF;
    // SAFETY: the driver owns this descriptor and keeps it open as long as the memory.
    let exported = unsafe { BorrowedFd::borrow_raw(exported.fd) };
    import.fd = exported.try_clone_to_owned().unwrap().into_raw_fd();
    desc.pNext = (&raw const import).cast();
    let mut second = ptr::null_mut();
    ok!(session.zeMemAllocDevice(context, &desc, SIZE, 0, device, &mut second));
    session.fill(first, 5, SIZE);
    session.free(first);
    assert_eq!(session.read(second, SIZE), [5; SIZE]);
    session.free(second);
}
