//! Scenarios of two processes that share physical memory.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd};
use std::ptr;

use level_zero_sys::*;

use crate::link::Link;
use crate::session::{SUCCESS, Session, description, ok};

const SIZE: usize = 2 << 20;

fn create(session: &Session, chained: *const c_void) -> ze_physical_mem_handle_t {
    let mut desc = description!(ze_physical_mem_desc_t, ZE_STRUCTURE_TYPE_PHYSICAL_MEM_DESC);
    desc.size = SIZE;
    desc.pNext = chained;
    let mut memory = ptr::null_mut();
    ok!(session.zePhysicalMemCreate(session.context, session.device, &mut desc, &mut memory));
    memory
}

fn map(session: &Session, memory: ze_physical_mem_handle_t) -> *mut c_void {
    let mut range = ptr::null_mut();
    let access = ze_memory_access_attribute_t::ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE;
    ok!(session.zeVirtualMemReserve(session.context, ptr::null(), SIZE, &mut range));
    ok!(session.zeVirtualMemMap(session.context, range, SIZE, memory, 0, access));
    range
}

fn unmap(session: &Session, range: *mut c_void, memory: ze_physical_mem_handle_t) {
    ok!(session.zeVirtualMemUnmap(session.context, range, SIZE));
    ok!(session.zeVirtualMemFree(session.context, range, SIZE));
    ok!(session.zePhysicalMemDestroy(session.context, memory));
}

/// Shares memory by the descriptor that the driver returns among the memory's properties.
pub(crate) fn share(session: &Session) {
    let mut page = 0;
    let (context, device) = (session.context, session.device);
    ok!(session.zeVirtualMemQueryPageSize(context, device, SIZE, &mut page));
    assert_eq!(SIZE % page, 0);
    let mut export = description!(
        ze_external_memory_export_desc_t,
        ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_DESC
    );
    export.flags = ZE_EXTERNAL_MEMORY_TYPE_FLAG_OPAQUE_FD;
    let memory = create(session, (&raw const export).cast());
    let range = map(session, memory);
    session.fill(range, 1, SIZE);
    access(session, range);
    let mut exported = description!(
        ze_external_memory_export_fd_t,
        ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_FD
    );
    // The memory itself has these properties since Level Zero 1.15. A mapping has always had them.
    if let Some(properties_of) = session.loader.zePhysicalMemGetProperties {
        let mut properties = description!(
            ze_physical_mem_properties_t,
            ZE_STRUCTURE_TYPE_PHYSICAL_MEM_PROPERTIES
        );
        properties.pNext = (&raw mut exported).cast();
        // SAFETY: as the function wants it.
        let code = unsafe { properties_of(context, memory, &mut properties) };
        assert_eq!((code, properties.size), (SUCCESS, SIZE as u64));
    } else {
        let mut properties = description!(
            ze_memory_allocation_properties_t,
            ZE_STRUCTURE_TYPE_MEMORY_ALLOCATION_PROPERTIES
        );
        properties.pNext = (&raw mut exported).cast();
        let no = ptr::null_mut();
        ok!(session.zeMemGetAllocProperties(context, range, &mut properties, no));
        assert_eq!(properties.type_, ze_memory_type_t::ZE_MEMORY_TYPE_DEVICE);
    }
    let link = Link::start("physical", &[]);
    // SAFETY: the driver owns this descriptor and keeps it open as long as the memory.
    link.send(
        b"memory",
        Some(unsafe { BorrowedFd::borrow_raw(exported.fd) }),
    );
    link.wait();
    assert_eq!(session.read(range, 64), [2; 64]);
    unmap(session, range, memory);
    link.go();
    link.end();
}

fn access(session: &Session, range: *mut c_void) {
    let read_only = ze_memory_access_attribute_t::ZE_MEMORY_ACCESS_ATTRIBUTE_READONLY;
    let read_write = ze_memory_access_attribute_t::ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE;
    ok!(session.zeVirtualMemSetAccessAttribute(session.context, range, SIZE, read_only));
    let (mut found, mut size) = (read_write, 0);
    let context = session.context;
    ok!(session.zeVirtualMemGetAccessAttribute(context, range, SIZE, &mut found, &mut size));
    assert_eq!((found, size), (read_only, SIZE));
    ok!(session.zeVirtualMemSetAccessAttribute(context, range, SIZE, read_write));
}

pub(crate) fn share_peer(session: &Session, link: &Link) {
    let (_, received) = link.receive();
    let received = received.expect("a descriptor");
    let mut import = description!(
        ze_external_memory_import_fd_t,
        ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_IMPORT_FD
    );
    import.flags = ZE_EXTERNAL_MEMORY_TYPE_FLAG_OPAQUE_FD;
    import.fd = received.as_raw_fd();
    let memory = create(session, (&raw const import).cast());
    // The driver owns the descriptor from now on.
    let _ = received.into_raw_fd();
    let range = map(session, memory);
    assert_eq!(session.read(range, 64), [1; 64]);
    session.fill(range, 2, SIZE);
    link.go();
    link.wait();
    assert_eq!(session.read(range, SIZE), vec![2; SIZE]);
    unmap(session, range, memory);
}
