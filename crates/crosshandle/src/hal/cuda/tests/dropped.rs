//! What commands used, which is the user's and may do anything when it is dropped.

use super::native::{BYTES, SOON, Theirs, context, make_current};
use crate::types::Ownership;
use crate::{Command, Error, Queue};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Asks a queue when it is dropped, as the user's code may.
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
    // SAFETY: the stream lives until the end.
    let queue = unsafe { context.adopt_queue(stream.handle(), Ownership::Borrowed) };
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

/// Waits for somebody when it is dropped.
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
    // Nobody calls that queue again, but somebody looks after it.
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
