//! Queues: this library's own, and streams of the caller.

use crate::boundary::{done, enter, freed, given, made, time};
use crosshandle::{Command, Context, Event, NativeObject, Ownership, Queue};

/// Makes a queue that runs its commands in order.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_queue_new(context: Option<&Context>) -> Option<Box<Queue>> {
    made(|| Ok(given(context)?.create_queue()?))
}

/// Adopts a queue of the driver, for instance a stream.
///
/// # Safety
/// `native` is a queue of the driver, and lives until the result is freed and has nothing left to
/// do.
#[unsafe(no_mangle)]
unsafe extern "C" fn crosshandle_queue_adopt(
    context: Option<&Context>,
    native: usize,
) -> Option<Box<Queue>> {
    made(|| {
        let context = given(context)?;
        let native = NativeObject::new(context.device().info().backend, native);
        // SAFETY: promised by the caller.
        Ok(unsafe { context.adopt_queue(native, Ownership::Borrowed)? })
    })
}

/// Returns the driver's own queue. A queue without one is an error.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_queue_value(queue: Option<&Queue>) -> usize {
    enter(0, || {
        let native = given(queue)?.native();
        Ok(native.ok_or("no driver is behind this queue")?.raw())
    })
}

/// Signals an event after everything submitted before.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_queue_signal(queue: Option<&Queue>, event: Option<&Event>) -> i32 {
    done(|| Ok(given(queue)?.signal(given(event)?)?))
}

/// Makes everything submitted later wait for signal `value` of an event, which need not have been
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

/// Waits until everything submitted is done, for at most so many seconds.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_queue_finish(queue: Option<&Queue>, seconds: f64) -> i32 {
    done(|| Ok(given(queue)?.finish_timeout(time(seconds)?)?))
}

/// Frees a queue. What was submitted runs on.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_queue_free(queue: Option<Box<Queue>>) {
    freed(queue);
}
