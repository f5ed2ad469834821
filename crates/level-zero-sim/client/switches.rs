//! Scenarios in which the driver misbehaves as the switches say. The tests set the switches.

use std::ptr;
use std::time::{Duration, Instant};

use level_zero_sys::*;

use crate::basics::extensions;
use crate::link::Link;
use crate::session::{
    INVALID_ARGUMENT, LONG, NO_EVENT, SUCCESS, Session, bytes, description, descriptor, handle, ok,
    patch, ze,
};

const OUT_OF_DEVICE_MEMORY: ze_result_t = ze_result_t::ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY;
const DEVICE_LOST: ze_result_t = ze_result_t::ZE_RESULT_ERROR_DEVICE_LOST;

/// Runs with `MISSING=ZEX_counter_based_event,zeMemGetIpcHandle,peer_access` and two devices.
pub(crate) fn missing(session: &Session) {
    assert!(
        !extensions(session)
            .iter()
            .any(|name| name == "ZEX_counter_based_event")
    );
    assert!(
        session
            .extension::<*mut u8>(ZEX_COUNTER_BASED_EVENT_CREATE2)
            .is_none()
    );
    let memory = session.alloc(64);
    let mut handle = ze_ipc_mem_handle_t { data: [0; 64] };
    let code = ze!(session.zeMemGetIpcHandle(session.context, memory, &mut handle));
    assert_eq!(code, ze_result_t::ZE_RESULT_ERROR_UNSUPPORTED_FEATURE);
    session.free(memory);
    let mut reaches = 1;
    let [first, second] = session.devices[..] else {
        panic!("two devices")
    };
    ok!(session.zeDeviceCanAccessPeer(first, second, &mut reaches));
    assert_eq!(reaches, 0);
}

/// With `API_VERSION=1.4`, later functions are missing even if the loader knows them.
pub(crate) fn older_driver(session: &Session) {
    assert_eq!(session.minor_version(), 4);
    if let Some(create) = session.loader.zeEventCounterBasedCreate {
        let desc = description!(
            ze_event_counter_based_desc_t,
            ZE_STRUCTURE_TYPE_EVENT_COUNTER_BASED_DESC
        );
        let mut event = ptr::null_mut();
        // SAFETY: as the function wants it.
        let code = unsafe { create(session.context, session.device, &desc, &mut event) };
        assert_ne!(code, SUCCESS);
    }
    let event = session.shared_event();
    ok!(session.zeEventDestroy(event));
}

/// Runs with `FAIL_ALLOCATIONS_AFTER=3`.
pub(crate) fn allocation_failure(session: &Session) {
    let memory = [session.alloc(64), session.alloc_host(64)];
    let event = session.shared_event();
    assert_eq!(session.create_event(0), Err(OUT_OF_DEVICE_MEMORY));
    let desc = description!(
        ze_device_mem_alloc_desc_t,
        ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC
    );
    let mut none = ptr::null_mut();
    let (context, device) = (session.context, session.device);
    let code = ze!(session.zeMemAllocDevice(context, &desc, 64, 0, device, &mut none));
    assert_eq!((code, none), (OUT_OF_DEVICE_MEMORY, ptr::null_mut()));
    ok!(session.zeEventDestroy(event));
    for memory in memory {
        session.free(memory);
    }
}

/// Runs with `LOST_AFTER=2`.
pub(crate) fn device_lost(session: &Session) {
    let (list, event) = (session.in_order(), session.shared_event());
    let memory = session.alloc(64);
    for _ in 0..2 {
        ok!(session.zeCommandListAppendSignalEvent(list, event));
        ok!(session.zeEventHostSynchronize(event, LONG));
    }
    ok!(session.zeDeviceGetStatus(session.device));
    ok!(session.zeCommandListAppendSignalEvent(list, event));
    // This wait would never end if the device were not lost.
    assert_eq!(
        ze!(session.zeEventHostSynchronize(event, u64::MAX)),
        DEVICE_LOST
    );
    assert_eq!(ze!(session.zeDeviceGetStatus(session.device)), DEVICE_LOST);
    assert_eq!(
        ze!(session.zeCommandListAppendSignalEvent(list, event)),
        DEVICE_LOST
    );
    let none = ptr::null_mut();
    assert_eq!(
        ze!(session.zeCommandListAppendBarrier(list, NO_EVENT, 0, none)),
        DEVICE_LOST
    );
    // Every object can still be destroyed.
    session.free(memory);
    ok!(session.zeEventDestroy(event));
    ok!(session.zeCommandListDestroy(list));
}

/// Runs with `COMMAND_DELAY_US=50000`.
pub(crate) fn slow(session: &Session) {
    let (list, event) = (session.in_order(), session.shared_event());
    let start = Instant::now();
    ok!(session.zeCommandListAppendSignalEvent(list, event));
    ok!(session.zeEventHostSynchronize(event, LONG));
    assert!(start.elapsed() >= Duration::from_millis(50));
    ok!(session.zeEventDestroy(event));
    ok!(session.zeCommandListDestroy(list));
}

/// Runs with `REFUSE=zeMemAllocHost:70010000,zeEventPoolCreate:0x78000004`.
pub(crate) fn refused_calls(session: &Session) {
    let desc = description!(
        ze_host_mem_alloc_desc_t,
        ZE_STRUCTURE_TYPE_HOST_MEM_ALLOC_DESC
    );
    let mut none = ptr::null_mut();
    let code = ze!(session.zeMemAllocHost(session.context, &desc, 64, 0, &mut none));
    let permissions = ze_result_t::ZE_RESULT_ERROR_INSUFFICIENT_PERMISSIONS;
    assert_eq!((code, none), (permissions, ptr::null_mut()));
    let desc = description!(ze_event_pool_desc_t, ZE_STRUCTURE_TYPE_EVENT_POOL_DESC);
    let mut none = ptr::null_mut();
    let devices = ptr::null_mut();
    let code = ze!(session.zeEventPoolCreate(session.context, &desc, 0, devices, &mut none));
    assert_eq!((code, none), (INVALID_ARGUMENT, ptr::null_mut()));
    // Other calls are not refused.
    session.free(session.alloc(64));
}

/// The peer runs with `REFUSE_DESCRIPTORS=1`.
pub(crate) fn refused(session: &Session) {
    offer(session, &[("CROSSHANDLE_SIM_REFUSE_DESCRIPTORS", "1")]);
}

/// The peer's driver has another version. It notices the difference and reports it.
pub(crate) fn other_driver(session: &Session) {
    println!("expect foreign-version");
    println!("expect foreign-version");
    offer(session, &[("CROSSHANDLE_SIM_DRIVER_VERSION", "7")]);
}

fn offer(session: &Session, variables: &[(&str, &str)]) {
    let link = Link::start("refused", variables);
    let (memory, event) = (session.alloc(64), session.shared_event());
    for handle in [session.memory_handle(memory), session.event_handle(event)] {
        link.send(&bytes(&handle), Some(descriptor(&handle)));
    }
    link.wait();
    session.free(memory);
    ok!(session.zeEventDestroy(event));
    link.end();
}

pub(crate) fn refused_peer(session: &Session, link: &Link) {
    let receive = || {
        let (message, received) = link.receive();
        let mut handle = handle(&message);
        let received = received.expect("a descriptor");
        patch(&mut handle, &received);
        (handle, received)
    };
    let (memory, _open) = receive();
    assert_eq!(session.open_memory(memory), Err(INVALID_ARGUMENT));
    let (event, _open) = receive();
    assert_eq!(session.open_event(event), Err(OUT_OF_DEVICE_MEMORY));
    link.go();
}
