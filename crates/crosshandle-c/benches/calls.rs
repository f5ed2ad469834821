//! Compares calls of the C interface with the same calls in Rust, in one run:
//! `cargo bench --package crosshandle-c`. No call may cost more than 3 ns more in C.
//!
//! The C functions are called through pointers, as a program with the shared library calls them.

use crosshandle::channel::{Channel, ChannelOptions};
use crosshandle::{Context, Device, Event, Memory};
use crosshandle_c::*;
use std::ffi::c_void;
use std::hint::black_box;
use std::ptr;
use std::time::{Duration, Instant};

type TryWait = unsafe extern "C" fn(*const crosshandle_event, u64, *mut bool) -> crosshandle_result;
type Wait = unsafe extern "C" fn(*const crosshandle_event, u64, u64) -> crosshandle_result;
type Signal = unsafe extern "C" fn(*const crosshandle_event, *mut u64) -> crosshandle_result;
type Read = unsafe extern "C" fn(
    *const crosshandle_memory,
    usize,
    *mut c_void,
    usize,
) -> crosshandle_result;

/// Number of calls in one measurement.
const CALLS: u32 = 100_000;
/// Number of measurements of each side, of which the median counts.
const ROUNDS: usize = 101;

/// Measures two functions in turns, and prints their costs.
fn compare(name: &str, mut rust: impl FnMut(), mut c: impl FnMut()) {
    let measure = |call: &mut dyn FnMut()| {
        let started = Instant::now();
        call();
        started.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
    };
    let rounds = (0..ROUNDS).map(|_| (measure(&mut rust), measure(&mut c)));
    let (mut rust, mut c): (Vec<_>, Vec<_>) = rounds.unzip();
    let median = |costs: &mut Vec<f64>| {
        costs.sort_by(f64::total_cmp);
        costs[ROUNDS / 2]
    };
    let (rust, c) = (median(&mut rust), median(&mut c));
    println!("{name:<28} {rust:>7.2} ns {c:>7.2} ns {:>7.2} ns", c - rust);
}

/// Runs a call many times.
#[inline(always)]
fn repeat(mut call: impl FnMut()) {
    for _ in 0..CALLS {
        call();
    }
}

fn main() {
    let context = Context::new(&Device::find("host").expect("the host")).expect("a context");
    let memory: Memory = context.allocate(4096).expect("memory");
    let event: Event = context.create_event().expect("an event");
    event.signal().expect("a signal");

    let (mut c_device, mut c_context) = (ptr::null_mut(), ptr::null_mut());
    let (mut c_memory, mut c_event) = (ptr::null_mut(), ptr::null_mut());
    let ok = crosshandle_result::CROSSHANDLE_OK;
    // SAFETY: the pointers are to variables of the right types, and to objects of the library.
    unsafe {
        assert_eq!(crosshandle_device_find(c"host".as_ptr(), &mut c_device), ok);
        let created = crosshandle_context_create(c_device, ptr::null(), &mut c_context);
        assert_eq!(created, ok);
        let allocated = crosshandle_memory_allocate(c_context, 4096, ptr::null(), &mut c_memory);
        assert_eq!(allocated, ok);
        assert_eq!(
            crosshandle_event_create(c_context, ptr::null(), &mut c_event),
            ok
        );
        assert_eq!(crosshandle_event_signal(c_event, ptr::null_mut()), ok);
    }
    let size: unsafe extern "C" fn(*const crosshandle_memory) -> usize =
        black_box(crosshandle_memory_size);
    let try_wait: TryWait = black_box(crosshandle_event_try_wait);
    let wait: Wait = black_box(crosshandle_event_wait);
    let signal: Signal = black_box(crosshandle_event_signal);
    let read: Read = black_box(crosshandle_memory_read);

    println!("{:<28} {:>10} {:>10} {:>10}", "", "Rust", "C", "difference");
    compare(
        "size of memory",
        || {
            repeat(|| {
                black_box(black_box(&memory).len());
            });
        },
        || {
            repeat(|| {
                // SAFETY: the object is open.
                black_box(unsafe { size(black_box(c_memory).cast_const()) });
            });
        },
    );
    compare(
        "read 8 bytes",
        || {
            repeat(|| {
                let mut bytes = [0; 8];
                let _ = black_box(black_box(&memory).read(0, &mut bytes));
                black_box(bytes);
            });
        },
        || {
            repeat(|| {
                let mut bytes = [0_u8; 8];
                let to = bytes.as_mut_ptr().cast();
                // SAFETY: the object is open, and the result is a variable.
                black_box(unsafe { read(black_box(c_memory).cast_const(), 0, to, 8) });
                black_box(bytes);
            });
        },
    );
    compare(
        "try to wait, signalled",
        || repeat(|| drop(black_box(black_box(&event).try_wait_value(1)))),
        || {
            let mut complete = false;
            repeat(|| {
                // SAFETY: the object is open, and the result is a variable.
                black_box(unsafe { try_wait(black_box(c_event).cast_const(), 1, &mut complete) });
            });
        },
    );
    compare(
        "wait, signalled",
        || {
            let timeout = Duration::from_secs(1);
            repeat(|| drop(black_box(black_box(&event).wait_value_timeout(1, timeout))));
        },
        || {
            repeat(|| {
                // SAFETY: the object is open.
                black_box(unsafe { wait(black_box(c_event).cast_const(), 1, 1_000_000_000) });
            })
        },
    );
    compare(
        "signal, nobody waits",
        || repeat(|| drop(black_box(black_box(&event).signal()))),
        || {
            let mut value = 0;
            repeat(|| {
                // SAFETY: the object is open, and the result is a variable.
                black_box(unsafe { signal(black_box(c_event).cast_const(), &mut value) });
            });
        },
    );
    channel_calls(&context, c_context);
}

type Send = unsafe extern "C" fn(
    *const crosshandle_producer,
    *const c_void,
    usize,
    u64,
    *mut u64,
) -> crosshandle_result;
type Reserve = unsafe extern "C" fn(
    *const crosshandle_producer,
    *mut *mut crosshandle_slot,
) -> crosshandle_result;
type Publish = unsafe extern "C" fn(
    *const crosshandle_producer,
    *mut crosshandle_slot,
    u64,
    *mut u64,
) -> crosshandle_result;
type Receive = unsafe extern "C" fn(
    *const crosshandle_consumer,
    u64,
    *mut *mut crosshandle_item,
) -> crosshandle_result;

/// Compares items of 64 bytes that a thread sends and receives, copied and in place. C makes
/// objects for slots and items, and calls three or four functions for each item.
fn channel_calls(context: &Context, c_context: *mut crosshandle_context) {
    const LEN: usize = 64;
    let channel = Channel::create(context, ChannelOptions::new(LEN)).expect("a channel");
    let mut producer = channel.producer().expect("a producer");
    let mut consumer = channel.consumer().expect("a consumer");
    let ok = crosshandle_result::CROSSHANDLE_OK;
    let (mut c_channel, mut c_producer) = (ptr::null_mut(), ptr::null_mut());
    let mut c_consumer = ptr::null_mut();
    // SAFETY: any bytes are the options, whose pointers are then null.
    let mut options: crosshandle_channel_options = unsafe { std::mem::zeroed() };
    options.size = size_of::<crosshandle_channel_options>();
    options.slot_size = LEN;
    // SAFETY: the pointers are to variables of the right types, and to objects of the library.
    unsafe {
        assert_eq!(
            crosshandle_channel_create(c_context, &options, &mut c_channel),
            ok
        );
        assert_eq!(crosshandle_producer_create(c_channel, &mut c_producer), ok);
        assert_eq!(crosshandle_consumer_create(c_channel, &mut c_consumer), ok);
    }
    let send: Send = black_box(crosshandle_producer_send);
    let receive: Receive = black_box(crosshandle_consumer_receive);
    let close: unsafe extern "C" fn(*mut crosshandle_item) -> crosshandle_result =
        black_box(crosshandle_item_close);
    let bytes = [7_u8; LEN];
    compare(
        "send and receive 64 bytes",
        || {
            repeat(|| {
                producer.try_send(black_box(&bytes)).expect("room");
                drop(black_box(consumer.try_receive().expect("an item")));
            });
        },
        || {
            repeat(|| {
                let mut item = ptr::null_mut();
                // SAFETY: the objects are open, and the pointers are to variables.
                let results = unsafe {
                    [
                        send(c_producer, bytes.as_ptr().cast(), LEN, 0, ptr::null_mut()),
                        receive(c_consumer, 0, &mut item),
                        close(item),
                    ]
                };
                assert_eq!(results, [ok; 3]);
            });
        },
    );
    let reserve: Reserve = black_box(crosshandle_producer_reserve);
    let publish: Publish = black_box(crosshandle_producer_publish);
    compare(
        "the same in place",
        || {
            repeat(|| {
                let slot = producer.try_reserve().expect("a slot");
                drop(black_box(producer.try_publish(black_box(slot))));
                drop(black_box(consumer.try_receive().expect("an item")));
            });
        },
        || {
            repeat(|| {
                let (mut slot, mut item) = (ptr::null_mut(), ptr::null_mut());
                // SAFETY: the objects are open, and the pointers are to variables.
                let results = unsafe {
                    [
                        reserve(c_producer, &mut slot),
                        publish(c_producer, slot, 0, ptr::null_mut()),
                        receive(c_consumer, 0, &mut item),
                        close(item),
                    ]
                };
                assert_eq!(results, [ok; 4]);
            });
        },
    );
}
