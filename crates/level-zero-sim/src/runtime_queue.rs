//! The queues of the OpenCL runtime that do the work of kernels and images, one for each engine.

use std::cell::RefCell;

use opencl_cpu::{Completion, Failure, Queue, Runtime};

/// Does work that the runtime has, and returns when it is done; `false` if the runtime has refused, which is the
/// end of the device.
pub(crate) fn run(
    runtime: &'static Runtime,
    submit: impl FnOnce(&Queue) -> Result<Completion, Failure>,
) -> bool {
    thread_local! {
        /// The runtime's queue of this engine.
        static QUEUE: RefCell<Option<Queue>> = const { RefCell::new(None) };
    }
    let done = QUEUE.with_borrow_mut(|queue| -> Result<(), Failure> {
        let queue = match queue {
            Some(queue) => queue,
            none => none.insert(Queue::new(&runtime.device())?),
        };
        submit(queue)?.wait()
    });
    if let Err(failure) = &done {
        eprintln!(
            "ze_sim[{}]: the device is lost: {failure}",
            std::process::id()
        );
    }
    done.is_ok()
}
