//! Tests of objects that commands used. They belong to the program, and their drop may do anything.

use super::native::{BYTES, SOON, Theirs, context, make_current};
use crosshandle::{Command, Queue};
use crosshandle_types::Ownership;
use crosshandle_types::error::Error;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Queries a queue in its drop, as a program's code may.
struct Asks(Arc<Queue>);

impl Drop for Asks {
    fn drop(&mut self) {
        self.0.is_idle();
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn refused_commands_are_dropped_without_their_queues_lock() {
    let context = context();
    make_current(context.native().unwrap());
    let stream = Theirs::new();
    // SAFETY: the stream lives until the end of the test.
    let queue = unsafe { Queue::adopt(&context, stream.handle(), Ownership::Borrowed) };
    let queue = Arc::new(queue.unwrap());
    let asks = Asks(Arc::clone(&queue));
    let call = Command::call(move || {
        let _asks = asks;
        Ok::<_, Error>(())
    });
    stream.begin_capture();
    let refused = queue.submit(call);
    stream.end_capture();
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("captured"), "{message}");
    queue.finish_timeout(SOON).unwrap();
}

/// Waits for a message in its drop.
struct Waits(Mutex<Receiver<()>>);

impl Drop for Waits {
    fn drop(&mut self) {
        let _ = self.0.lock().unwrap().recv_timeout(SOON);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn queues_are_looked_after_while_something_is_dropped() {
    let context = context();
    let [used, other] = [(); 2].map(|()| context.create_queue().unwrap());
    let [gate, done] = [(); 2].map(|()| context.create_event().unwrap());
    let memory = context.allocate(BYTES).unwrap();
    let (let_go, waits) = channel();
    let kept = memory.all().keeping(Arc::new(Waits(Mutex::new(waits))));
    used.submit(Command::fill(kept, &[1]).unwrap()).unwrap();
    // No thread calls the queue again, but the scheduler tends it.
    std::thread::sleep(Duration::from_millis(200));
    for _ in 0..1000 {
        let wait = Command::barrier().after_value(&gate, 1);
        other.submit(wait).unwrap();
    }
    other.signal(&done).unwrap();
    gate.signal().unwrap();
    let waited = done.wait_timeout(SOON / 2);
    let_go.send(()).unwrap();
    waited.unwrap();
}

/// An importer's memory is closed soon after the program has dropped it and a command has finished
/// with it, although no thread calls the queue.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn what_an_importer_drops_is_closed_soon() {
    let context = context();
    let queue = context.create_queue().unwrap();
    let memory = context.allocate(BYTES).unwrap();
    let handle = memory.handle().unwrap();
    let mut times: Vec<_> = (0..21)
        .map(|round| {
            let (opened, done) = (
                context.open_memory(&handle).unwrap(),
                context.create_event(),
            );
            let (done, kept) = (done.unwrap(), Arc::new(()));
            let keeping = memory.all().keeping(Arc::clone(&kept) as _);
            queue
                .submit(Command::fill(opened.all(), &[1]).unwrap())
                .unwrap();
            queue.submit(Command::fill(keeping, &[2]).unwrap()).unwrap();
            queue.signal(&done).unwrap();
            done.wait_timeout(SOON).unwrap();
            // The drop happens at different times between two regular checks.
            std::thread::sleep(Duration::from_millis(7 * round % 50));
            let began = Instant::now();
            drop(opened);
            while Arc::strong_count(&kept) > 1 {
                assert!(began.elapsed() < SOON);
                std::thread::yield_now();
            }
            began.elapsed()
        })
        .collect();
    times.sort();
    println!("closed after {:?}, at most {:?}", times[10], times[20]);
    assert!(times[18] < Duration::from_millis(10), "{times:?}");
}
