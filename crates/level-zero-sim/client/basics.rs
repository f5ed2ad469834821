//! Scenarios of one process: devices and commands.

use std::ffi::{CStr, c_void};
use std::ptr;

use level_zero_sys::*;

use crate::session::{LONG, NO_EVENT, NOT_READY, SHORT, SUCCESS, Session, description, ok, ze};

pub(crate) fn devices(session: &Session) {
    let mut uuids = Vec::new();
    for &device in &session.devices {
        let mut version = description!(
            ze_device_ip_version_ext_t,
            ZE_STRUCTURE_TYPE_DEVICE_IP_VERSION_EXT
        );
        let mut properties =
            description!(ze_device_properties_t, ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES);
        properties.pNext = (&raw mut version).cast();
        ok!(session.zeDeviceGetProperties(device, &mut properties));
        assert_eq!(properties.type_, ze_device_type_t::ZE_DEVICE_TYPE_GPU);
        assert_eq!(properties.vendorId, 0x8086);
        assert!(version.ipVersion >= 0x0500_4000);
        uuids.push(properties.uuid.id);

        let mut groups = 0;
        ok!(session.zeDeviceGetCommandQueueGroupProperties(device, &mut groups, ptr::null_mut()));
        assert_eq!(groups, 2);
        let mut memories = 0;
        ok!(session.zeDeviceGetMemoryProperties(device, &mut memories, ptr::null_mut()));
        assert_eq!(memories, 1);
        ok!(session.zeDeviceGetStatus(device));
        let (mut host, mut here) = (0, 0);
        ok!(session.zeDeviceGetGlobalTimestamps(device, &mut host, &mut here));
        assert!(host > 0 && here >= host);
        let mut reaches = 0;
        ok!(session.zeDeviceCanAccessPeer(session.device, device, &mut reaches));
        assert_eq!(reaches, 1);
    }
    uuids.sort_unstable();
    uuids.dedup();
    assert_eq!(uuids.len(), session.devices.len());
    println!("{} devices", uuids.len());

    let mut ipc = description!(
        ze_driver_ipc_properties_t,
        ZE_STRUCTURE_TYPE_DRIVER_IPC_PROPERTIES
    );
    ok!(session.zeDriverGetIpcProperties(session.driver, &mut ipc));
    assert_eq!(
        ipc.flags,
        ZE_IPC_PROPERTY_FLAG_MEMORY | ZE_IPC_PROPERTY_FLAG_EVENT_POOL
    );
    assert!(
        extensions(session)
            .iter()
            .any(|name| name == "ZEX_counter_based_event")
    );
    assert!(session.counter_events().is_some());
    assert!(
        session
            .extension::<*mut c_void>(c"zexNoSuchFunction")
            .is_none()
    );
}

pub(crate) fn extensions(session: &Session) -> Vec<String> {
    let mut count = 0;
    ok!(session.zeDriverGetExtensionProperties(session.driver, &mut count, ptr::null_mut()));
    // SAFETY: zeros are a valid value.
    let one: ze_driver_extension_properties_t = unsafe { std::mem::zeroed() };
    let mut list = vec![one; count as usize];
    ok!(session.zeDriverGetExtensionProperties(session.driver, &mut count, list.as_mut_ptr()));
    let name = |one: &ze_driver_extension_properties_t| {
        // SAFETY: the driver ends the name with a zero.
        let name = unsafe { CStr::from_ptr(one.name.as_ptr()) };
        name.to_str().unwrap().to_owned()
    };
    list.iter().map(name).collect()
}

/// Runs copies, fills and events on immediate lists.
pub(crate) fn commands(session: &Session) {
    const SIZE: usize = 256 << 10;
    let (device, host) = (session.alloc(SIZE), session.alloc_host(SIZE));
    let list = session.in_order();
    let event = session.shared_event();
    let (pool, gate) = session.pooled_event();
    let mut waits = [gate];

    // No command runs until the gate opens.
    let pattern = 0x0102_0304_u32;
    let from = (&raw const pattern).cast();
    ok!(session.zeCommandListAppendMemoryFill(
        list,
        device,
        from,
        4,
        SIZE,
        NO_EVENT,
        1,
        waits.as_mut_ptr()
    ));
    let no = ptr::null_mut();
    ok!(session.zeCommandListAppendMemoryCopy(list, host, device, SIZE, event, 0, no));
    assert_eq!(ze!(session.zeEventQueryStatus(event)), NOT_READY);
    assert_eq!(ze!(session.zeEventHostSynchronize(event, SHORT)), NOT_READY);
    ok!(session.zeEventHostSignal(gate));
    ok!(session.zeEventHostSynchronize(event, LONG));
    // SAFETY: the memory is host memory of that size, and no command writes to it any more.
    let words = unsafe { std::slice::from_raw_parts(host.cast::<u32>(), SIZE / 4) };
    assert!(words.iter().all(|&word| word == pattern));

    // Copies a rectangle of 3 rows of 5 bytes, from rows of 64 bytes into rows of 16.
    let mut rows = [0_u8; 64 * 8];
    rows.iter_mut()
        .enumerate()
        .for_each(|(i, byte)| *byte = i as u8);
    let region = |x, y| ze_copy_region_t {
        originX: x,
        originY: y,
        originZ: 0,
        width: 5,
        height: 3,
        depth: 1,
    };
    let mut cut = [0_u8; 16 * 4];
    ok!(session.zeCommandListAppendMemoryCopyRegion(
        list,
        cut.as_mut_ptr().cast(),
        &region(1, 1),
        16,
        0,
        rows.as_ptr().cast(),
        &region(2, 4),
        64,
        0,
        event,
        0,
        no
    ));
    ok!(session.zeEventHostSynchronize(event, LONG));
    for row in 0..3 {
        let start = (4 + row) * 64 + 2;
        assert_eq!(cut[(row + 1) * 16 + 1..][..5], rows[start..][..5]);
    }
    assert_eq!(cut.iter().filter(|&&byte| byte != 0).count(), 15);

    let mut time = 0;
    ok!(session.zeCommandListAppendWriteGlobalTimestamp(list, &mut time, event, 0, no));
    ok!(session.zeEventHostSynchronize(event, LONG));
    assert!(time > 0);
    if let Some(synchronize) = session.loader.zeCommandListHostSynchronize {
        ok!(session.zeCommandListAppendBarrier(list, NO_EVENT, 0, no));
        // SAFETY: as the function wants it.
        assert_eq!(unsafe { synchronize(list, LONG) }, SUCCESS);
    }

    ok!(session.zeEventDestroy(event));
    ok!(session.zeEventDestroy(gate));
    ok!(session.zeEventPoolDestroy(pool));
    ok!(session.zeCommandListDestroy(list));
    times(session);
    session.free(device);
    session.free(host);
}

/// Reads the times of commands from their events.
fn times(session: &Session) {
    let list = session.in_order();
    let event = session
        .create_event(ZE_EVENT_COUNTER_BASED_FLAG_DEVICE_TIMESTAMP)
        .unwrap();
    ok!(session.zeCommandListAppendSignalEvent(list, event));
    ok!(session.zeEventHostSynchronize(event, LONG));
    let zeros = ze_kernel_timestamp_data_t {
        kernelStart: 0,
        kernelEnd: 0,
    };
    let mut result = ze_kernel_timestamp_result_t {
        global: zeros,
        context: zeros,
    };
    ok!(session.zeEventQueryKernelTimestamp(event, &mut result));
    assert!(result.global.kernelStart > 0 && result.global.kernelEnd >= result.global.kernelStart);
    ok!(session.zeEventDestroy(event));
    let both = ZE_EVENT_COUNTER_BASED_FLAG_DEVICE_TIMESTAMP | ZE_EVENT_COUNTER_BASED_FLAG_IPC;
    let code = session.create_event(both).unwrap_err();
    assert_eq!(code, ze_result_t::ZE_RESULT_ERROR_INVALID_ARGUMENT);
    ok!(session.zeCommandListDestroy(list));
}

/// Returns whether a list is immediate, and its context. Returns `None` under loaders for Level
/// Zero 1.4, which lack these functions.
fn asked(session: &Session, list: ze_command_list_handle_t) -> Option<(bool, ze_context_handle_t)> {
    let is_immediate = session.loader.zeCommandListIsImmediate?;
    let context_of = session.loader.zeCommandListGetContextHandle?;
    let (mut immediate, mut context) = (9, ptr::null_mut());
    // SAFETY: a live list, and live results.
    let codes = unsafe {
        [
            is_immediate(list, &mut immediate),
            context_of(list, &mut context),
        ]
    };
    assert_eq!(codes, [SUCCESS; 2]);
    Some((immediate == 1, context))
}

pub(crate) fn queues(session: &Session) {
    let desc = description!(
        ze_command_queue_desc_t,
        ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC
    );
    let (context, device) = (session.context, session.device);
    let mut queue = ptr::null_mut();
    ok!(session.zeCommandQueueCreate(context, device, &desc, &mut queue));
    let desc = description!(ze_command_list_desc_t, ZE_STRUCTURE_TYPE_COMMAND_LIST_DESC);
    let mut list = ptr::null_mut();
    ok!(session.zeCommandListCreate(context, device, &desc, &mut list));
    assert!(asked(session, list).is_none_or(|found| found == (false, context)));
    let immediate = session.in_order();
    assert!(asked(session, immediate).is_none_or(|found| found == (true, context)));
    ok!(session.zeCommandListDestroy(immediate));
    let desc = description!(ze_fence_desc_t, ZE_STRUCTURE_TYPE_FENCE_DESC);
    let mut fence = ptr::null_mut();
    ok!(session.zeFenceCreate(queue, &desc, &mut fence));

    let memory = session.alloc(4096);
    let no = ptr::null_mut();
    let byte = (&raw const *b"x").cast();
    ok!(session.zeCommandListAppendMemoryFill(list, memory, byte, 1, 4096, NO_EVENT, 0, no));
    ok!(session.zeCommandListClose(list));
    for _ in 0..2 {
        session.fill(memory, 0, 4096);
        assert_eq!(ze!(session.zeFenceQueryStatus(fence)), NOT_READY);
        ok!(session.zeCommandQueueExecuteCommandLists(queue, 1, &mut list, fence));
        ok!(session.zeFenceHostSynchronize(fence, LONG));
        assert_eq!(session.read(memory, 4096), [b'x'; 4096]);
        ok!(session.zeFenceReset(fence));
    }
    ok!(session.zeCommandQueueSynchronize(queue, LONG));
    ok!(session.zeCommandListReset(list));
    session.free(memory);
    ok!(session.zeFenceDestroy(fence));
    ok!(session.zeCommandListDestroy(list));
    ok!(session.zeCommandQueueDestroy(queue));
}

/// With `ZE_ENABLE_LOADER_INTERCEPT=1`, handles belong to the loader, as they do with several
/// drivers. Functions that only the driver knows need the driver's handles.
pub(crate) fn intercepted(session: &Session) {
    let translate = session
        .loader
        .zelLoaderTranslateHandle
        .expect("the function");
    let translated = |kind, handle: *mut c_void| {
        let mut own = ptr::null_mut();
        // SAFETY: as the function wants it.
        assert_eq!(unsafe { translate(kind, handle, &mut own) }, SUCCESS);
        assert_ne!(own, handle);
        own
    };
    let context: ze_context_handle_t =
        translated(ZEL_HANDLE_CONTEXT, session.context.cast()).cast();
    let device: ze_device_handle_t = translated(ZEL_HANDLE_DEVICE, session.device.cast()).cast();
    let create: <zex_pfnCounterBasedEventCreate2_t as Pointer>::Function = session
        .extension(ZEX_COUNTER_BASED_EVENT_CREATE2)
        .expect("the function");
    let mut desc = description!(
        ze_event_counter_based_desc_t,
        ZE_STRUCTURE_TYPE_EVENT_COUNTER_BASED_DESC
    );
    desc.stype = ZEX_STRUCTURE_COUNTER_BASED_EVENT_DESC;
    let mut event = ptr::null_mut();
    // SAFETY: as the function wants it.
    let code = unsafe { create(context, device, &desc, &mut event) };
    assert_eq!(code, SUCCESS);
    // The event stays alive, because the loader has no function that takes the driver's own handle.
    println!("expect outlived-context");
}

/// Runs threads that share only the context.
pub(crate) fn threads(session: &Session) {
    let work = |byte: u8| {
        let list = session.in_order();
        for _ in 0..100 {
            let memory = session.alloc(4096);
            let event = session.shared_event();
            let (pattern, no) = ((&raw const byte).cast(), ptr::null_mut());
            ok!(session.zeCommandListAppendMemoryFill(list, memory, pattern, 1, 4096, event, 0, no));
            let again = session
                .open_event(session.event_handle(event))
                .expect("an event");
            let opened = session
                .open_memory(session.memory_handle(memory))
                .expect("memory");
            ok!(session.zeEventHostSynchronize(again, LONG));
            // SAFETY: the memory is host memory of this process, and no command writes to it any
            // more.
            let bytes = unsafe { std::slice::from_raw_parts(opened.cast::<u8>(), 4096) };
            assert!(bytes.iter().all(|&found| found == byte));
            assert_eq!(session.close_event(again), SUCCESS);
            ok!(session.zeEventDestroy(event));
            ok!(session.zeMemCloseIpcHandle(session.context, opened));
            session.free(memory);
        }
        ok!(session.zeCommandListDestroy(list));
    };
    std::thread::scope(|scope| {
        for byte in 1..=8 {
            scope.spawn(move || work(byte));
        }
    });
}
