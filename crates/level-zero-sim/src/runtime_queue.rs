//! Queues of the OpenCL runtime for the work of kernels and images. Each engine has one.

use std::cell::RefCell;

use opencl_cpu::{Completion, Failure, Queue, Runtime};

/// Submits work to the OpenCL runtime and waits for it. Returns `false` if the runtime refused it,
/// after which the device is lost.
pub(crate) fn run(
    runtime: &'static Runtime,
    submit: impl FnOnce(&Queue) -> Result<Completion, Failure>,
) -> bool {
    thread_local! {
        /// The OpenCL queue of this thread's engine.
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
