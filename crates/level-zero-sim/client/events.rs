//! Scenarios of two processes that share events.

use std::ptr;

use level_zero_sys::*;
use rustix::process::{PTracer, set_ptracer};

use crate::link::Link;
use crate::session::{
    INVALID_ARGUMENT, LONG, NOT_READY, SHORT, SUCCESS, Session, bytes, descriptor, handle,
    is_fetched, ok, patch, ze,
};

fn send(session: &Session, link: &Link, event: ze_event_handle_t) {
    let handle = session.event_handle(event);
    if is_fetched(&handle) {
        // The kernel may require this before another process can fetch a descriptor. A kernel
        // without this restriction has no such call.
        let _ = set_ptracer(PTracer::Any);
    }
    link.send(&bytes(&handle), Some(descriptor(&handle)));
}

fn receive(session: &Session, link: &Link) -> ze_event_handle_t {
    let (message, received) = link.receive();
    let mut handle = handle(&message);
    // The received descriptor stays open until the driver has duplicated it.
    let received = received.expect("a descriptor");
    if !is_fetched(&handle) {
        patch(&mut handle, &received);
    }
    session.open_event(handle).expect("an event")
}

/// Both processes signal the event and wait for it, on command lists and on the host.
pub(crate) fn share(session: &Session) {
    let link = Link::start("events", &[]);
    let event = session.shared_event();
    let list = session.in_order();
    ok!(session.zeEventQueryStatus(event));
    send(session, &link, event);
    link.wait();

    // The list here signals as soon as the gate opens, and the other process waits.
    let (pool, gate) = session.pooled_event();
    let mut waits = [gate];
    ok!(session.zeCommandListAppendBarrier(list, event, 1, waits.as_mut_ptr()));
    link.go();
    link.wait();
    ok!(session.zeEventHostSignal(gate));
    // By now the latest signal is one of the other process.
    link.wait();

    // The other process signals, and a list here waits.
    let memory = session.alloc(64);
    let done = session.shared_event();
    let mut waits = [event];
    let byte = (&raw const *b"z").cast();
    ok!(session.zeCommandListAppendMemoryFill(
        list,
        memory,
        byte,
        1,
        64,
        done,
        1,
        waits.as_mut_ptr()
    ));
    assert_eq!(ze!(session.zeEventHostSynchronize(done, SHORT)), NOT_READY);
    link.go();
    ok!(session.zeEventHostSynchronize(done, LONG));
    assert_eq!(session.read(memory, 64), [b'z'; 64]);

    link.wait();
    ok!(session.zeEventDestroy(done));
    ok!(session.zeEventDestroy(event));
    ok!(session.zeEventDestroy(gate));
    ok!(session.zeEventPoolDestroy(pool));
    ok!(session.zeCommandListDestroy(list));
    session.free(memory);
    link.go();
    link.end();
}

pub(crate) fn share_peer(session: &Session, link: &Link) {
    let event = receive(session, link);
    let list = session.in_order();
    ok!(session.zeEventQueryStatus(event));
    link.go();

    link.wait();
    assert_eq!(ze!(session.zeEventHostSynchronize(event, SHORT)), NOT_READY);
    link.go();
    ok!(session.zeEventHostSynchronize(event, LONG));
    // Submits a signal that is still pending when the other process learns of it.
    let (pool, gate) = session.pooled_event();
    let mut waits = [gate];
    ok!(session.zeCommandListAppendBarrier(list, event, 1, waits.as_mut_ptr()));
    link.go();
    link.wait();
    ok!(session.zeEventHostSignal(gate));
    ok!(session.zeEventHostSynchronize(event, LONG));

    link.go();
    link.wait();
    // The exporter has destroyed the event, and the opened event still works.
    ok!(session.zeCommandListAppendSignalEvent(list, event));
    ok!(session.zeEventHostSynchronize(event, LONG));
    assert_eq!(session.close_event(event), SUCCESS);
    ok!(session.zeEventDestroy(gate));
    ok!(session.zeEventPoolDestroy(pool));
    ok!(session.zeCommandListDestroy(list));
}

/// Two processes signal one event many times in turns, and open it often.
pub(crate) fn rounds(session: &Session) {
    let link = Link::start("event-rounds", &[]);
    let (ping, pong) = (session.shared_event(), session.shared_event());
    send(session, &link, ping);
    send(session, &link, pong);
    let list = session.in_order();
    for _ in 0..200 {
        ok!(session.zeCommandListAppendSignalEvent(list, ping));
        link.go();
        link.wait();
        ok!(session.zeEventHostSynchronize(pong, LONG));
    }
    // More signals at once than the driver keeps track of.
    for _ in 0..1000 {
        ok!(session.zeCommandListAppendSignalEvent(list, ping));
    }
    ok!(session.zeEventHostSynchronize(ping, LONG));
    for _ in 0..100 {
        send(session, &link, ping);
        link.wait();
    }
    ok!(session.zeCommandListDestroy(list));
    ok!(session.zeEventDestroy(ping));
    ok!(session.zeEventDestroy(pong));
    link.end();
}

pub(crate) fn rounds_peer(session: &Session, link: &Link) {
    let (ping, pong) = (receive(session, link), receive(session, link));
    let list = session.in_order();
    let mut waits = [ping];
    for _ in 0..200 {
        link.wait();
        ok!(session.zeCommandListAppendBarrier(list, pong, 1, waits.as_mut_ptr()));
        link.go();
    }
    ok!(session.zeEventHostSynchronize(pong, LONG));
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    for _ in 0..100 {
        let event = receive(session, link);
        assert_eq!(session.close_event(event), SUCCESS);
        link.go();
    }
    assert_eq!(open(), before);
    ok!(session.zeCommandListDestroy(list));
    assert_eq!(session.close_event(ping), SUCCESS);
    assert_eq!(session.close_event(pong), SUCCESS);
}

/// With `TRANSPORT=pidfd`, the driver takes a number that was put into an event's handle for the
/// exporter's descriptor number.
pub(crate) fn patched(session: &Session) {
    println!("expect foreign-descriptor");
    let link = Link::start("patched-event", &[]);
    let event = session.shared_event();
    send(session, &link, event);
    link.wait();
    ok!(session.zeEventDestroy(event));
    link.end();
}

pub(crate) fn patched_peer(session: &Session, link: &Link) {
    let (message, received) = link.receive();
    let mut handle = handle(&message);
    assert!(is_fetched(&handle));
    // The other process has no descriptor with this number.
    let high = rustix::io::fcntl_dupfd_cloexec(received.expect("a descriptor"), 900).unwrap();
    patch(&mut handle, &high);
    let code = ze_result_t::ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY;
    assert_eq!(session.open_event(handle), Err(code));
    link.go();
}

/// Shares pools of events, which another process can open too.
pub(crate) fn pools(session: &Session) {
    let link = Link::start("event-pools", &[]);
    let pool = session.pool(ZE_EVENT_POOL_FLAG_HOST_VISIBLE | ZE_EVENT_POOL_FLAG_IPC, 4);
    let event = session.event_of(pool, 3);
    let mut shared = ze_ipc_event_pool_handle_t { data: [0; 64] };
    ok!(session.zeEventPoolGetIpcHandle(pool, &mut shared));
    link.send(&bytes(&shared.data), Some(descriptor(&shared.data)));
    ok!(session.zeEventHostSynchronize(event, LONG));
    ok!(session.zeEventHostReset(event));
    assert_eq!(ze!(session.zeEventQueryStatus(event)), NOT_READY);
    // One list command signals the event, and another one resets it.
    let list = session.out_of_order();
    ok!(session.zeCommandListAppendSignalEvent(list, event));
    ok!(session.zeEventHostSynchronize(event, LONG));
    let done = session.event_of(pool, 0);
    ok!(session.zeCommandListAppendEventReset(list, event));
    ok!(session.zeCommandListAppendBarrier(list, done, 0, ptr::null_mut()));
    ok!(session.zeEventHostSynchronize(done, LONG));
    assert_eq!(ze!(session.zeEventQueryStatus(event)), NOT_READY);
    ok!(session.zeCommandListDestroy(list));
    ok!(session.zeEventDestroy(done));
    ok!(session.zeEventDestroy(event));
    ok!(session.zeEventPoolDestroy(pool));
    link.end();
}

pub(crate) fn pools_peer(session: &Session, link: &Link) {
    let (message, received) = link.receive();
    let mut data = handle(&message);
    let received = received.expect("a descriptor");
    patch(&mut data, &received);
    let mut pool = ptr::null_mut();
    let shared = ze_ipc_event_pool_handle_t { data };
    ok!(session.zeEventPoolOpenIpcHandle(session.context, shared, &mut pool));
    let event = session.event_of(pool, 3);
    assert_eq!(ze!(session.zeEventQueryStatus(event)), NOT_READY);
    ok!(session.zeEventHostSignal(event));
    ok!(session.zeEventDestroy(event));
    let mut again = ze_ipc_event_pool_handle_t { data: [0; 64] };
    let code = ze!(session.zeEventPoolGetIpcHandle(pool, &mut again));
    assert_eq!(code, INVALID_ARGUMENT);
    ok!(session.zeEventPoolCloseIpcHandle(pool));
}
