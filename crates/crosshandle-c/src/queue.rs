//! Queues: this library's own, and the program's streams and lists.

use crate::boundary::{entry, entry_object, entry_value, list, place, put, timeout};
use crate::context::crosshandle_context;
use crate::error::{Failure, crosshandle_result};
use crate::event::{CROSSHANDLE_LATEST, CROSSHANDLE_SUBMITTED, crosshandle_event};
use crate::memory::{Owner, crosshandle_memory, crosshandle_release, crosshandle_work};
use crate::native::native_object;
use crate::object::{close, get, object};
use crosshandle::memory::{Pitches, Region};
use crosshandle::native::Ownership;
use crosshandle::{Command, Memory, MemoryRange, Queue, QueueOrder};
use std::convert::Infallible;
use std::ffi::c_void;
use std::ptr;

/// A queue of commands for a device. Any thread may submit commands. Submitted commands still run
/// after the queue is closed.
pub struct crosshandle_queue {}
object!(crosshandle_queue, Queue, 5, "queue");

/// Returns a range of memory for a command.
fn range(memory: &Memory, offset: usize, size: usize) -> crosshandle::Result<MemoryRange> {
    // A range that overflows ends beyond the memory, which the library refuses.
    memory.range(offset..offset.saturating_add(size))
}

/// Creates a queue. The queue runs its commands in order, or each command as soon as possible if
/// `out_of_order` is true.
///
/// Errors: those of the driver or the operating system. The caller closes the queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_queue_create(
    context: *const crosshandle_context,
    out_of_order: bool,
    queue: *mut *mut crosshandle_queue,
) -> crosshandle_result {
    entry_object! { queue;
        let order = match out_of_order {
            false => QueueOrder::InOrder,
            true => QueueOrder::OutOfOrder,
        };
        get(context)?.create_queue_with(order)?
    }
}

/// Adopts a queue of the driver: a `cudaStream_t` or `CUstream`, or a `ze_command_list_handle_t` of
/// an immediate list. Signals and waits of the result are then ordered with the program's own work
/// on the stream, without waiting on the host.
///
/// The program destroys the stream after it has closed the result and all work is complete.
///
/// Errors: `CROSSHANDLE_UNSUPPORTED` if the device has no driver, and
/// `CROSSHANDLE_INVALID_ARGUMENT` for a queue of another context. The caller closes the queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_queue_adopt(
    context: *const crosshandle_context,
    native: *mut c_void,
    queue: *mut *mut crosshandle_queue,
) -> crosshandle_result {
    entry_object! { queue;
        let context = get(context)?;
        let native = native_object(context, native);
        Queue::adopt(context, native, Ownership::Borrowed)?
    }
}

/// Returns the driver's own queue, a `CUstream` or `ze_command_list_handle_t`, to which the program
/// can also submit. Returns null if there is none, and on an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_queue_native(queue: *const crosshandle_queue) -> *mut c_void {
    entry_value! { or ptr::null_mut();
        let native = get(queue)?.native();
        Ok(native.map_or(ptr::null_mut(), |native| ptr::with_exposed_provenance_mut(native.raw())))
    }
}

/// Signals an event when all earlier work of the queue is complete. Stores the number of the signal
/// in `value` unless that is null. Stores 0 for an event with a single signaller, which the device
/// counts. This call does not wait.
///
/// Errors: those that the driver or the system reports at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_queue_signal(
    queue: *const crosshandle_queue,
    event: *const crosshandle_event,
    value: *mut u64,
) -> crosshandle_result {
    entry! {
        let (queue, event) = (get(queue)?, get(event)?);
        if value.is_null() || event.has_single_signaller() {
            queue.signal(event)?;
            if !value.is_null() {
                put(value, 0);
            }
        } else {
            put(value, queue.signal_numbered(event)?);
        }
        Ok(())
    }
}

/// Makes all later work of the queue wait for signal `value` of an event, which need not be
/// submitted yet. The value may also be `CROSSHANDLE_LATEST` or `CROSSHANDLE_SUBMITTED`. This call
/// does not wait.
///
/// Errors: those that the driver or the system reports at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_queue_wait(
    queue: *const crosshandle_queue,
    event: *const crosshandle_event,
    value: u64,
) -> crosshandle_result {
    entry! {
        let (queue, event) = (get(queue)?, get(event)?);
        match value {
            CROSSHANDLE_LATEST => queue.wait(event)?,
            CROSSHANDLE_SUBMITTED => queue.submit(Command::barrier().after_submitted(event))?,
            value => queue.submit(Command::barrier().after_value(event, value))?,
        }
        Ok(())
    }
}

/// Copies `size` bytes from byte `source_offset` of `source` to byte `destination_offset` of
/// `destination`, after earlier work of the queue. The command keeps both until it is complete.
///
/// Errors: `CROSSHANDLE_INVALID_ARGUMENT` for ranges that are not inside the memory,
/// `CROSSHANDLE_PERMISSION_DENIED` for a destination that was opened read-only, and the errors that
/// the driver reports at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_queue_copy(
    queue: *const crosshandle_queue,
    destination: *const crosshandle_memory,
    destination_offset: usize,
    source: *const crosshandle_memory,
    source_offset: usize,
    size: usize,
) -> crosshandle_result {
    entry! {
        let from = range(get(source)?, source_offset, size)?;
        let to = range(get(destination)?, destination_offset, size)?;
        Ok(get(queue)?.submit(Command::copy(from, to)?)?)
    }
}

/// Copies `rows` rows of `width` bytes, after earlier work of the queue. The rows start every
/// `source_pitch` bytes from byte `source_offset` of `source`, and every `destination_pitch` bytes
/// from byte `destination_offset` of `destination`.
///
/// Errors: those of `crosshandle_queue_copy`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_queue_copy_rows(
    queue: *const crosshandle_queue,
    destination: *const crosshandle_memory,
    destination_offset: usize,
    destination_pitch: usize,
    source: *const crosshandle_memory,
    source_offset: usize,
    source_pitch: usize,
    width: usize,
    rows: usize,
) -> crosshandle_result {
    entry! {
        let copy = Command::copy_rect(
            get(source)?.range(source_offset..)?,
            Pitches::new_2d(source_pitch),
            get(destination)?.range(destination_offset..)?,
            Pitches::new_2d(destination_pitch),
            Region::new_2d(width, rows),
        )?;
        Ok(get(queue)?.submit(copy)?)
    }
}

/// Fills `size` bytes from byte `offset` of the memory with a pattern of `pattern_size` bytes,
/// after earlier work of the queue.
///
/// Errors: those of `crosshandle_queue_copy`, and `CROSSHANDLE_INVALID_ARGUMENT` if the range is
/// not a whole number of patterns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_queue_fill(
    queue: *const crosshandle_queue,
    memory: *const crosshandle_memory,
    offset: usize,
    size: usize,
    pattern: *const c_void,
    pattern_size: usize,
) -> crosshandle_result {
    entry! {
        let to = range(get(memory)?, offset, size)?;
        let pattern = list(pattern.cast(), pattern_size)?;
        Ok(get(queue)?.submit(Command::fill(to, pattern)?)?)
    }
}

/// Calls a function of the program with `user` on a thread of the library, after earlier work of
/// the queue. Later work of an in-order queue waits until the function returns. It must not throw.
///
/// If the command fails before its turn, the function is not called. `release` may be null.
/// Otherwise it is called with `user` once, after the last use of `user`: after the function, if
/// the command fails, or if this call fails.
///
/// Errors: those that the driver or the system reports at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_queue_call(
    queue: *const crosshandle_queue,
    function: crosshandle_work,
    release: crosshandle_release,
    user: *mut c_void,
) -> crosshandle_result {
    entry! {
        let user = Owner::new(release, user);
        let function = function.ok_or(Failure::NULL)?;
        let call = move || {
            function(user.pointer());
            Ok::<(), Infallible>(())
        };
        Ok(get(queue)?.submit(Command::call(call))?)
    }
}

/// Makes sure that all submitted work will run without further calls.
///
/// Errors: `CROSSHANDLE_DRIVER`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_queue_flush(
    queue: *const crosshandle_queue,
) -> crosshandle_result {
    entry!(Ok(get(queue)?.flush()?))
}

/// Waits until all submitted work is complete, for at most `timeout_ns` nanoseconds.
///
/// Errors: `CROSSHANDLE_TIMED_OUT`, and the first error of a command that signals no event, which
/// is returned once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_queue_finish(
    queue: *const crosshandle_queue,
    timeout_ns: u64,
) -> crosshandle_result {
    entry!(Ok(get(queue)?.finish_timeout(timeout(timeout_ns))?))
}

/// Stores in `finished` whether all submitted work is complete, without waiting.
///
/// Errors: those of `crosshandle_queue_finish`, except `CROSSHANDLE_TIMED_OUT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_queue_try_finish(
    queue: *const crosshandle_queue,
    finished: *mut bool,
) -> crosshandle_result {
    entry! {
        let finished = place(finished)?;
        finished.write(get(queue)?.try_finish()?);
        Ok(())
    }
}

/// Closes the queue. Submitted work still runs. Closing null does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_queue_close(
    queue: *mut crosshandle_queue,
) -> crosshandle_result {
    entry!(close(queue).map(drop))
}
