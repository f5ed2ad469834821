//! Functions for queues: this library's own, and streams of the caller.

use crate::boundary::{done, enter, freed, given, made, time};
use crosshandle::{
    Command, Context, Event, Queue,
    native::{NativeObject, Ownership},
};

/// Creates a queue that runs its commands in order.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_queue_new(context: Option<&Context>) -> Option<Box<Queue>> {
    made(|| Ok(given(context)?.create_queue()?))
}

/// Adopts a queue of the driver, for example a stream.
///
/// # Safety
/// `native` must be a queue of the driver. It must live until the result is freed and all its
/// commands are complete.
#[unsafe(no_mangle)]
unsafe extern "C" fn crosshandle_queue_adopt(
    context: Option<&Context>,
    native: usize,
) -> Option<Box<Queue>> {
    made(|| {
        let context = given(context)?;
        let native = NativeObject::new(context.device().info().backend, native);
        // SAFETY: the caller guarantees it.
        Ok(unsafe { Queue::adopt(context, native, Ownership::Borrowed)? })
    })
}

/// Returns the driver's queue as a number. Fails if the queue has none.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_queue_value(queue: Option<&Queue>) -> usize {
    enter(0, || {
        let native = given(queue)?.native();
        Ok(native.ok_or("no driver is behind this queue")?.raw())
    })
}

/// Signals an event after all earlier submissions.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_queue_signal(queue: Option<&Queue>, event: Option<&Event>) -> i32 {
    done(|| Ok(given(queue)?.signal(given(event)?)?))
}

/// Makes all later submissions wait for signal `value` of an event. The signal need not be
/// submitted yet.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_queue_wait(
    queue: Option<&Queue>,
    event: Option<&Event>,
    value: u64,
) -> i32 {
    done(|| {
        let wait = Command::barrier().after_value(given(event)?, value);
        Ok(given(queue)?.submit(wait)?)
    })
}

/// Waits until all submissions are complete. The timeout is in seconds.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_queue_finish(queue: Option<&Queue>, seconds: f64) -> i32 {
    done(|| Ok(given(queue)?.finish_timeout(time(seconds)?)?))
}

/// Frees a queue. Submitted commands still run.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_queue_free(queue: Option<Box<Queue>>) {
    freed(queue);
}
