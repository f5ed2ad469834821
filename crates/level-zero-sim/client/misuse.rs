//! Wrong uses, one after the other. The driver must return an error for each one and report it.

use std::ffi::{c_char, c_void};
use std::ptr;

use level_zero_sys::*;

use crate::session::{
    INVALID_ARGUMENT, LONG, NO_EVENT, SUCCESS, Session, bytes, description, descriptor, handle,
    number, ok, patch, ze,
};

/// Prints which report comes next. The test compares this with the driver's log.
fn expect(check: &str) {
    println!("expect {check}");
}

pub(crate) fn all(session: &Session) {
    events(session);
    memory(session);
    descriptors(session);
    handles(session);
    lists(session);
    physical(session);
}

fn events(session: &Session) {
    let event = session.shared_event();
    let opened = session
        .open_event(session.event_handle(event))
        .expect("an event");
    expect("wrong-close");
    assert_eq!(ze!(session.zeEventDestroy(opened)), INVALID_ARGUMENT);
    expect("wrong-close");
    let code = session.close_event(event);
    assert_eq!(
        code,
        ze_result_t::ZE_RESULT_ERROR_INVALID_SYNCHRONIZATION_OBJECT
    );
    assert_eq!(session.close_event(opened), SUCCESS);
    expect("double-close");
    assert_eq!(session.close_event(opened), INVALID_ARGUMENT);
    expect("use-after-destroy");
    assert_eq!(ze!(session.zeEventQueryStatus(opened)), INVALID_ARGUMENT);

    let list = session.out_of_order();
    expect("out-of-order-signal");
    assert_eq!(
        ze!(session.zeCommandListAppendSignalEvent(list, event)),
        INVALID_ARGUMENT
    );
    // The event is unchanged.
    ok!(session.zeEventQueryStatus(event));
    // The list may wait for the event.
    let mut waits = [event];
    ok!(session.zeCommandListAppendWaitOnEvents(list, 1, waits.as_mut_ptr()));
    let (pool, gate) = session.pooled_event();
    ok!(session.zeCommandListAppendSignalEvent(list, gate));
    ok!(session.zeEventHostSynchronize(gate, LONG));
    ok!(session.zeCommandListDestroy(list));
    // The host cannot set a counter.
    let unsupported = ze_result_t::ZE_RESULT_ERROR_UNSUPPORTED_FEATURE;
    assert_eq!(ze!(session.zeEventHostSignal(event)), unsupported);
    assert_eq!(ze!(session.zeEventHostReset(event)), unsupported);
    ok!(session.zeEventDestroy(event));
    expect("double-close");
    assert_eq!(ze!(session.zeEventDestroy(event)), INVALID_ARGUMENT);
    ok!(session.zeEventDestroy(gate));
    ok!(session.zeEventPoolDestroy(pool));
}

fn memory(session: &Session) {
    let memory = session.alloc(4096);
    let opened = session
        .open_memory(session.memory_handle(memory))
        .expect("memory");
    expect("wrong-close");
    assert_eq!(
        ze!(session.zeMemFree(session.context, opened)),
        INVALID_ARGUMENT
    );
    expect("wrong-close");
    assert_eq!(
        ze!(session.zeMemCloseIpcHandle(session.context, memory)),
        INVALID_ARGUMENT
    );
    ok!(session.zeMemCloseIpcHandle(session.context, opened));
    expect("double-close");
    assert_eq!(
        ze!(session.zeMemCloseIpcHandle(session.context, opened)),
        INVALID_ARGUMENT
    );

    let list = session.synchronous();
    let mut bytes = vec![0_u8; 1 << 20];
    let (to, no) = (bytes.as_mut_ptr().cast(), ptr::null_mut());
    expect("out-of-bounds");
    let code =
        ze!(session.zeCommandListAppendMemoryCopy(list, to, memory, 1 << 20, NO_EVENT, 0, no));
    assert_eq!(code, INVALID_ARGUMENT);
    ok!(session.zeCommandListDestroy(list));

    session.free(memory);
    expect("double-free");
    assert_eq!(
        ze!(session.zeMemFree(session.context, memory)),
        INVALID_ARGUMENT
    );
}

fn descriptors(session: &Session) {
    let memory = session.alloc(4096);
    let good = session.memory_handle(memory);
    // A number that is not an open descriptor.
    let mut wrong = good;
    wrong[..4].copy_from_slice(&1_000_000_i32.to_ne_bytes().map(|byte| byte as c_char));
    expect("foreign-descriptor");
    assert_eq!(session.open_memory(wrong), Err(INVALID_ARGUMENT));
    // A descriptor of something else, then a descriptor of other memory.
    let other = session.alloc(4096);
    let null = std::fs::File::open("/dev/null").expect("a file").into();
    patch(&mut wrong, &null);
    expect("foreign-descriptor");
    assert_eq!(session.open_memory(wrong), Err(INVALID_ARGUMENT));
    let stranger = session.memory_handle(other);
    patch(
        &mut wrong,
        &descriptor(&stranger)
            .try_clone_to_owned()
            .expect("a descriptor"),
    );
    expect("foreign-descriptor");
    assert_eq!(session.open_memory(wrong), Err(INVALID_ARGUMENT));
    session.free(other);

    // The program closes the driver's own descriptor.
    close(number(&good));
    let mut again = ze_ipc_mem_handle_t { data: [0; 64] };
    expect("descriptor-closed");
    let code = ze!(session.zeMemGetIpcHandle(session.context, memory, &mut again));
    assert_eq!(code, INVALID_ARGUMENT);
    expect("descriptor-closed");
    session.free(memory);
}

fn close(number: i32) {
    use std::os::fd::{FromRawFd, OwnedFd};
    // SAFETY: this closes a descriptor of the driver, which is the misuse under test. No other code
    // of this process uses the number.
    drop(unsafe { OwnedFd::from_raw_fd(number) });
}

fn handles(session: &Session) {
    let memory = session.alloc(4096);
    let good = session.memory_handle(memory);
    expect("garbage-handle");
    assert_eq!(session.open_memory([7; 64]), Err(INVALID_ARGUMENT));
    for index in [8, 20, 24, 36, 56] {
        let mut flipped = good;
        flipped[index] ^= 1;
        expect("garbage-handle");
        assert_eq!(session.open_memory(flipped), Err(INVALID_ARGUMENT));
    }
    let mut older = good;
    older[32] ^= 1;
    expect("foreign-version");
    assert_eq!(session.open_memory(older), Err(INVALID_ARGUMENT));
    expect("garbage-handle");
    let device_memory = ze_result_t::ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY;
    assert_eq!(
        session.open_event(handle(&bytes(&good))),
        Err(device_memory)
    );
    session.free(memory);

    expect("wrong-handle");
    let list: ze_command_list_handle_t = session.context.cast();
    assert_eq!(ze!(session.zeCommandListClose(list)), INVALID_ARGUMENT);
    expect("wrong-handle");
    let event: ze_event_handle_t = ptr::without_provenance_mut(64);
    assert_eq!(ze!(session.zeEventQueryStatus(event)), INVALID_ARGUMENT);
    let null = ze_result_t::ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
    assert_eq!(ze!(session.zeEventQueryStatus(NO_EVENT)), null);
}

fn lists(session: &Session) {
    let (pool, gate) = session.pooled_event();
    let memory = session.alloc(4096);
    let list = session.in_order();
    let event = session.shared_event();
    let (mut waits, byte) = ([gate], (&raw const *b"x").cast::<c_void>());
    ok!(session.zeCommandListAppendMemoryFill(
        list,
        memory,
        byte,
        1,
        64,
        event,
        1,
        waits.as_mut_ptr()
    ));
    expect("destroy-in-use");
    session.free(memory);
    expect("destroy-in-use");
    ok!(session.zeEventDestroy(event));
    expect("destroy-in-use");
    ok!(session.zeEventDestroy(gate));
    expect("destroy-in-use");
    ok!(session.zeCommandListDestroy(list));
    ok!(session.zeEventPoolDestroy(pool));

    let desc = description!(ze_context_desc_t, ZE_STRUCTURE_TYPE_CONTEXT_DESC);
    let mut context = ptr::null_mut();
    ok!(session.zeContextCreate(session.driver, &desc, &mut context));
    let desc = description!(
        ze_host_mem_alloc_desc_t,
        ZE_STRUCTURE_TYPE_HOST_MEM_ALLOC_DESC
    );
    let mut memory = ptr::null_mut();
    ok!(session.zeMemAllocHost(context, &desc, 64, 0, &mut memory));
    // The memory belongs to another context.
    expect("double-free");
    assert_eq!(
        ze!(session.zeMemFree(session.context, memory)),
        INVALID_ARGUMENT
    );
    expect("outlived-context");
    ok!(session.zeContextDestroy(context));
    expect("use-after-destroy");
    assert_eq!(ze!(session.zeMemFree(context, memory)), INVALID_ARGUMENT);
}

fn physical(session: &Session) {
    const SIZE: usize = 64 << 10;
    let context = session.context;
    let mut desc = description!(ze_physical_mem_desc_t, ZE_STRUCTURE_TYPE_PHYSICAL_MEM_DESC);
    desc.size = SIZE;
    let mut memory = ptr::null_mut();
    ok!(session.zePhysicalMemCreate(context, session.device, &mut desc, &mut memory));
    let mut range = ptr::null_mut();
    let access = ze_memory_access_attribute_t::ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE;
    ok!(session.zeVirtualMemReserve(context, ptr::null(), SIZE, &mut range));
    ok!(session.zeVirtualMemMap(context, range, SIZE, memory, 0, access));
    expect("destroy-in-use");
    assert_eq!(
        ze!(session.zeVirtualMemFree(context, range, SIZE)),
        INVALID_ARGUMENT
    );
    expect("wrong-close");
    assert_eq!(ze!(session.zeMemFree(context, range)), INVALID_ARGUMENT);
    expect("destroy-in-use");
    ok!(session.zePhysicalMemDestroy(context, memory));
    ok!(session.zeVirtualMemUnmap(context, range, SIZE));
    expect("double-free");
    assert_eq!(
        ze!(session.zeVirtualMemUnmap(context, range, SIZE)),
        INVALID_ARGUMENT
    );
    ok!(session.zeVirtualMemFree(context, range, SIZE));

    let mut import = description!(
        ze_external_memory_import_fd_t,
        ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_IMPORT_FD
    );
    import.flags = ZE_EXTERNAL_MEMORY_TYPE_FLAG_OPAQUE_FD;
    import.fd = 0;
    desc.pNext = (&raw const import).cast();
    expect("foreign-descriptor");
    let code = ze!(session.zePhysicalMemCreate(context, session.device, &mut desc, &mut memory));
    assert_eq!(code, ze_result_t::ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY);
}
