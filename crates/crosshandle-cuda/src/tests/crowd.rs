//! Tests with waiting streams of the program, which this library does not know.

use super::gpu;
use super::native::{BYTES, SOON, Theirs, context, make_current};
use crate::memory;
use crosshandle::{Command, Context, EventOptions};
use crosshandle_types::{AllocationOptions, MemoryKind};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Streams that wait for a word until this is dropped.
pub(super) struct Crowd {
    _streams: Vec<Theirs>,
    /// `None` only during the drop.
    ends: Option<Sender<()>>,
    opener: Option<JoinHandle<()>>,
}

impl Crowd {
    /// Creates `count` waiting streams. The context is current.
    pub(super) fn new(context: &Context, count: usize) -> Self {
        let options = AllocationOptions::new(4).kind(MemoryKind::Host);
        let gate = context.allocate_with(options).unwrap();
        gate.write(0, &[0; 4]).unwrap();
        // All streams are created first, because the driver creates none while one waits.
        let streams: Vec<_> = (0..count).map(|_| Theirs::new()).collect();
        // Calls that release memory or create streams would otherwise block all threads.
        gpu().scheduler().make_room();
        streams.iter().for_each(|stream| stream.wait_for(&gate));
        // The streams wait by the end of this sleep.
        std::thread::sleep(Duration::from_millis(20));
        let (ends, ended) = channel::<()>();
        let open = move || {
            // If a test is stuck, the streams continue after this timeout.
            let _ = ended.recv_timeout(SOON);
            gate.write(0, &1_u32.to_le_bytes()).unwrap();
            // The streams pass the word before the memory is freed.
            std::thread::sleep(Duration::from_millis(50));
        };
        Self {
            _streams: streams,
            ends: Some(ends),
            opener: Some(std::thread::spawn(open)),
        }
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        drop(self.ends.take());
        self.opener.take().map(JoinHandle::join);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn signals_go_on_while_the_driver_waits_for_them() {
    let context = context();
    make_current(context.native().unwrap());
    let queue = context.create_queue().unwrap();
    let [gate, done] = [(); 2].map(|()| context.create_event().unwrap());
    // After these signals, the device knows the events' words. Nothing needs to be registered
    // later.
    for event in [&gate, &done] {
        queue.signal(event).unwrap();
        event.wait_timeout(SOON).unwrap();
    }
    let pinned = [(); 3].map(|()| memory::create(&gpu(), MemoryKind::Host, 2 << 20).unwrap());
    let crowd = Crowd::new(&context, 1);
    let began = Instant::now();
    // From here on, a driver call waits. Copies and host functions would not return.
    drop(pinned);
    for _ in 0..2 {
        // Commands stay pending in the queue, and no thread calls it.
        let next = gate.submitted() + 1;
        for _ in 0..1000 {
            let wait = Command::barrier().after_value(&gate, next);
            queue.submit(wait).unwrap();
        }
        queue.signal(&done).unwrap();
        gate.signal().unwrap();
        done.wait_timeout(SOON).unwrap();
    }
    assert!(began.elapsed() < SOON / 2, "{:?}", began.elapsed());
    drop(crowd);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn streams_are_made_without_waiting_for_others() {
    let context = context();
    make_current(context.native().unwrap());
    let gpu = gpu();
    let crowd = Crowd::new(&context, 1);
    let began = Instant::now();
    let take = || gpu.pool().try_take(&gpu);
    // The driver creates this many streams only while no stream waits.
    let taken: Vec<_> = (0..200).map_while(|_| take().unwrap()).collect();
    assert!(began.elapsed() < SOON / 2, "{:?}", began.elapsed());
    drop(crowd);
    while take().unwrap().is_none() {
        assert!(began.elapsed() < SOON);
    }
    drop(taken);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn commands_with_timestamps_are_submitted_behind_others() {
    let context = context();
    make_current(context.native().unwrap());
    let queue = context.create_queue().unwrap();
    let memory = context.allocate(BYTES).unwrap();
    let profiled = context
        .create_event_with(EventOptions::new().profiling(true))
        .unwrap();
    let crowd = Crowd::new(&context, 32);
    let began = Instant::now();
    let fill = Command::fill(memory.all(), &[1]).unwrap();
    queue.submit(fill.signal(&profiled)).unwrap();
    assert!(began.elapsed() < SOON / 2, "{:?}", began.elapsed());
    drop(crowd);
    profiled.wait_timeout(SOON).unwrap();
    let deadline = Instant::now() + SOON;
    let times = loop {
        let times = profiled.profile().unwrap();
        if times.ended.is_some() {
            break times;
        }
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(times.submitted <= times.started && times.started <= times.ended);
}
