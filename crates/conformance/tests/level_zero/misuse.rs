//! Wrong uses of the simulated driver. It must return an error for each one, and report it.
//! Otherwise the other tests would not find wrong uses by the library.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use level_zero_sys::*;

use crate::roles::report;
use crate::session::{
    NO_EVENT, SUCCESS, Session, context, description, descriptor, ok, patch, patch_number, ze,
};

const INVALID_ARGUMENT: ze_result_t = ze_result_t::ZE_RESULT_ERROR_INVALID_ARGUMENT;
const OUT_OF_DEVICE_MEMORY: ze_result_t = ze_result_t::ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY;
/// Timeout that is long enough for everything, in nanoseconds.
const LONG: u64 = 20_000_000_000;

/// Runs a wrong use. Checks its result code, and that the driver reports exactly this wrong use.
#[track_caller]
fn wrong(check: &str, code: ze_result_t, wrong_use: impl FnOnce() -> ze_result_t) {
    let log = || {
        let path = std::env::var("CROSSHANDLE_SIM_LOG").unwrap();
        std::fs::read_to_string(path).unwrap_or_default()
    };
    let before = log().len();
    assert_eq!(wrong_use(), code, "{check}");
    let log = log();
    let told: Vec<_> = log[before..].lines().collect();
    let wanted = format!("MISUSE {check}: ");
    assert!(
        matches!(told[..], [line] if line.contains(&wanted)),
        "{check}: {told:?}"
    );
}

pub(crate) fn wrong_uses_are_reported() {
    let session = Session::open();
    events(&session);
    memory(&session);
    descriptors(&session);
    handles(&session);
    lists(&session);
    physical(&session);
    ok!(session.zeContextDestroy(session.context));
    for check in ["wrong-close 5", "double-close 3", "out-of-order-signal 1"] {
        assert!(report().contains(&format!("misuse {check}\n")), "{check}");
    }
}

fn events(session: &Session) {
    let event = session.shared_event();
    let opened = session.open_event(session.event_handle(event)).unwrap();
    wrong("wrong-close", INVALID_ARGUMENT, || {
        ze!(session.zeEventDestroy(opened))
    });
    let code = ze_result_t::ZE_RESULT_ERROR_INVALID_SYNCHRONIZATION_OBJECT;
    wrong("wrong-close", code, || session.close_event(event));
    assert_eq!(session.close_event(opened), SUCCESS);
    wrong("double-close", INVALID_ARGUMENT, || {
        session.close_event(opened)
    });
    wrong("use-after-destroy", INVALID_ARGUMENT, || {
        ze!(session.zeEventQueryStatus(opened))
    });

    let list = session.list(0);
    wrong("out-of-order-signal", INVALID_ARGUMENT, || {
        ze!(session.zeCommandListAppendSignalEvent(list, event))
    });
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
    wrong("double-close", INVALID_ARGUMENT, || {
        ze!(session.zeEventDestroy(event))
    });
    ok!(session.zeEventDestroy(gate));
    ok!(session.zeEventPoolDestroy(pool));
}

fn memory(session: &Session) {
    let (context, memory) = (session.context, session.alloc());
    let opened = session.open_memory(session.memory_handle(memory)).unwrap();
    wrong("wrong-close", INVALID_ARGUMENT, || {
        ze!(session.zeMemFree(context, opened))
    });
    wrong("wrong-close", INVALID_ARGUMENT, || {
        ze!(session.zeMemCloseIpcHandle(context, memory))
    });
    ok!(session.zeMemCloseIpcHandle(context, opened));
    wrong("double-close", INVALID_ARGUMENT, || {
        ze!(session.zeMemCloseIpcHandle(context, opened))
    });

    let list = session.list(ZE_COMMAND_QUEUE_FLAG_IN_ORDER);
    let mut bytes = vec![0_u8; 1 << 20];
    let (to, no) = (bytes.as_mut_ptr().cast(), ptr::null_mut());
    wrong("out-of-bounds", INVALID_ARGUMENT, || {
        ze!(session.zeCommandListAppendMemoryCopy(list, to, memory, 1 << 20, NO_EVENT, 0, no))
    });
    ok!(session.zeCommandListDestroy(list));

    session.free(memory);
    wrong("double-free", INVALID_ARGUMENT, || {
        ze!(session.zeMemFree(context, memory))
    });
}

fn descriptors(session: &Session) {
    let (memory, other) = (session.alloc(), session.alloc());
    let good = session.memory_handle(memory);
    let open = |handle| session.open_memory(handle).unwrap_err();
    let mut patched = good;
    patch_number(&mut patched, 1_000_000);
    wrong("foreign-descriptor", INVALID_ARGUMENT, || open(patched));
    // A descriptor of something else, then a descriptor of other memory.
    let null = std::fs::File::open("/dev/null").unwrap().into();
    patch(&mut patched, &null);
    wrong("foreign-descriptor", INVALID_ARGUMENT, || open(patched));
    let stranger = session.memory_handle(other);
    let stranger = descriptor(&stranger).try_clone_to_owned().unwrap();
    patch(&mut patched, &stranger);
    wrong("foreign-descriptor", INVALID_ARGUMENT, || open(patched));
    session.free(other);

    let number = descriptor(&good).as_raw_fd();
    // SAFETY: this closes a descriptor of the driver, which is the misuse under test. No other code
    // of this process uses the number.
    drop(unsafe { OwnedFd::from_raw_fd(number) });
    let mut again = ze_ipc_mem_handle_t { data: [0; 64] };
    wrong("descriptor-closed", INVALID_ARGUMENT, || {
        ze!(session.zeMemGetIpcHandle(session.context, memory, &mut again))
    });
    wrong("descriptor-closed", SUCCESS, || {
        ze!(session.zeMemFree(session.context, memory))
    });
}

/// The driver fetches descriptors. It takes a replaced number in the handle of an event for the
/// exporter's number, as Intel's newer drivers do.
pub(crate) fn wrong_uses_of_a_driver_that_fetches_are_reported() {
    let session = Session::open();
    let event = session.shared_event();
    let mut handle = session.event_handle(event);
    patch_number(&mut handle, 1_000_000);
    wrong("foreign-descriptor", OUT_OF_DEVICE_MEMORY, || {
        session.open_event(handle).unwrap_err()
    });
    ok!(session.zeEventDestroy(event));
    ok!(session.zeContextDestroy(session.context));
}

fn handles(session: &Session) {
    let memory = session.alloc();
    let good = session.memory_handle(memory);
    let open = |handle| session.open_memory(handle).unwrap_err();
    wrong("garbage-handle", INVALID_ARGUMENT, || open([7; 64]));
    for index in [8, 20, 24, 36, 56] {
        let mut flipped = good;
        flipped[index] ^= 1;
        wrong("garbage-handle", INVALID_ARGUMENT, || open(flipped));
    }
    let mut older = good;
    older[32] ^= 1;
    wrong("foreign-version", INVALID_ARGUMENT, || open(older));
    wrong("garbage-handle", OUT_OF_DEVICE_MEMORY, || {
        session.open_event(good).unwrap_err()
    });
    session.free(memory);

    let list: ze_command_list_handle_t = session.context.cast();
    wrong("wrong-handle", INVALID_ARGUMENT, || {
        ze!(session.zeCommandListDestroy(list))
    });
    let event: ze_event_handle_t = ptr::without_provenance_mut(64);
    wrong("wrong-handle", INVALID_ARGUMENT, || {
        ze!(session.zeEventQueryStatus(event))
    });
    let null = ze_result_t::ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
    assert_eq!(ze!(session.zeEventQueryStatus(NO_EVENT)), null);
}

fn lists(session: &Session) {
    let (pool, gate) = session.pooled_event();
    let (memory, event) = (session.alloc(), session.shared_event());
    let list = session.list(ZE_COMMAND_QUEUE_FLAG_IN_ORDER);
    let (waits, byte) = (&raw const gate, (&raw const *b"x").cast::<c_void>());
    ok!(session.zeCommandListAppendMemoryFill(
        list,
        memory,
        byte,
        1,
        64,
        event,
        1,
        waits.cast_mut()
    ));
    wrong("destroy-in-use", SUCCESS, || {
        ze!(session.zeMemFree(session.context, memory))
    });
    wrong("destroy-in-use", SUCCESS, || {
        ze!(session.zeEventDestroy(event))
    });
    wrong("destroy-in-use", SUCCESS, || {
        ze!(session.zeEventDestroy(gate))
    });
    wrong("destroy-in-use", SUCCESS, || {
        ze!(session.zeCommandListDestroy(list))
    });
    ok!(session.zeEventPoolDestroy(pool));

    let context = context(session, session.driver);
    let desc = description!(
        ze_host_mem_alloc_desc_t,
        ZE_STRUCTURE_TYPE_HOST_MEM_ALLOC_DESC
    );
    let mut memory = ptr::null_mut();
    ok!(session.zeMemAllocHost(context, &desc, 64, 0, &mut memory));
    // The memory belongs to another context.
    wrong("double-free", INVALID_ARGUMENT, || {
        ze!(session.zeMemFree(session.context, memory))
    });
    wrong("outlived-context", SUCCESS, || {
        ze!(session.zeContextDestroy(context))
    });
    wrong("use-after-destroy", INVALID_ARGUMENT, || {
        ze!(session.zeMemFree(context, memory))
    });
}

fn physical(session: &Session) {
    const SIZE: usize = 64 << 10;
    let (context, device) = (session.context, session.device);
    let mut desc = description!(ze_physical_mem_desc_t, ZE_STRUCTURE_TYPE_PHYSICAL_MEM_DESC);
    desc.size = SIZE;
    let (mut memory, mut range) = (ptr::null_mut(), ptr::null_mut());
    ok!(session.zePhysicalMemCreate(context, device, &mut desc, &mut memory));
    let access = ze_memory_access_attribute_t::ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE;
    ok!(session.zeVirtualMemReserve(context, ptr::null(), SIZE, &mut range));
    ok!(session.zeVirtualMemMap(context, range, SIZE, memory, 0, access));
    wrong("destroy-in-use", INVALID_ARGUMENT, || {
        ze!(session.zeVirtualMemFree(context, range, SIZE))
    });
    wrong("wrong-close", INVALID_ARGUMENT, || {
        ze!(session.zeMemFree(context, range))
    });
    wrong("destroy-in-use", SUCCESS, || {
        ze!(session.zePhysicalMemDestroy(context, memory))
    });
    ok!(session.zeVirtualMemUnmap(context, range, SIZE));
    wrong("double-free", INVALID_ARGUMENT, || {
        ze!(session.zeVirtualMemUnmap(context, range, SIZE))
    });
    ok!(session.zeVirtualMemFree(context, range, SIZE));

    let mut import = description!(
        ze_external_memory_import_fd_t,
        ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_IMPORT_FD
    );
    import.flags = ZE_EXTERNAL_MEMORY_TYPE_FLAG_OPAQUE_FD;
    import.fd = 0;
    desc.pNext = (&raw const import).cast();
    wrong("foreign-descriptor", OUT_OF_DEVICE_MEMORY, || {
        ze!(session.zePhysicalMemCreate(context, device, &mut desc, &mut memory))
    });
}
