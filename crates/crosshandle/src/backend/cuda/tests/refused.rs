//! Commands that are refused.

use super::native::{SOON, Theirs, context, make_current};
use crate::backend::Ownership;
use crate::{Command, Error, Queue};
use std::sync::Arc;

/// Asks a queue when it is dropped, as the user's code may.
struct Asks(Arc<Queue>);

impl Drop for Asks {
    fn drop(&mut self) {
        self.0.is_idle();
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn they_are_dropped_without_their_queues_lock() {
    let context = context();
    make_current(context.native_handle().unwrap());
    let stream = Theirs::new();
    // SAFETY: the stream lives until the end.
    let queue = unsafe { context.adopt_queue(stream.handle(), Ownership::Kept) };
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
