//! Events: signals and waits on the host.

use crate::boundary::{entry, entry_object, entry_value, given, list, place, put, text, timeout};
use crate::context::crosshandle_context;
use crate::error::{Failure, Result, crosshandle_result};
use crate::handle::crosshandle_event_handle;
use crate::object::{close, get, object};
use crosshandle::event::EventSet;
use crosshandle::{Event, EventOptions};
use std::ffi::c_char;

/// A counter of signals, shared by all processes that have it open. Any thread may use it.
pub struct crosshandle_event {}
object!(crosshandle_event, Event, 4, "event");

/// The latest signal, or the first one if none was submitted: a value for waits.
pub const CROSSHANDLE_LATEST: u64 = 0;
/// The latest signal, or no signal if none was submitted: a value for waits.
pub const CROSSHANDLE_SUBMITTED: u64 = u64::MAX;

/// The options of an event. A structure of zeros, with `size` set, has the defaults.
#[repr(C)]
pub struct crosshandle_event_options {
    /// The size of this structure in bytes. Later versions of the structure are larger.
    pub size: usize,
    /// Whether a wait sleeps at once instead of spinning first.
    pub low_power: bool,
    /// Whether the counters of the event are in memory of their own, so that its importers cannot
    /// disturb other events. Only the creator of the event can choose this.
    pub isolated: bool,
    /// Whether only code on devices of this process signals the event. Only the creator of the
    /// event can choose this.
    pub single_signaller: bool,
}

/// Converts the options of a program, or returns the defaults for null.
unsafe fn read_options(options: *const crosshandle_event_options) -> Result<EventOptions> {
    // SAFETY: promised by the caller.
    let Ok(options) = (unsafe { given(options) }) else {
        return Ok(EventOptions::new());
    };
    if options.size != size_of::<crosshandle_event_options>() {
        return Err(Failure::invalid(
            "set `size` to the size of crosshandle_event_options",
        ));
    }
    Ok(EventOptions::new()
        .low_power(options.low_power)
        .isolated(options.isolated)
        .single_signaller(options.single_signaller))
}

/// Creates an event that can be shared. `options` may be null for the defaults.
///
/// Errors: `CROSSHANDLE_EXHAUSTED` if the context already shares a million objects. The caller
/// closes the event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_event_create(
    context: *const crosshandle_context,
    options: *const crosshandle_event_options,
    event: *mut *mut crosshandle_event,
) -> crosshandle_result {
    entry_object! { event;
        get(context)?.create_event_with(read_options(options)?)?
    }
}

/// Opens an event of another process by its handle. The call waits for the exporter for at most
/// `timeout_ns` nanoseconds.
///
/// Errors: `CROSSHANDLE_BAD_HANDLE`, `CROSSHANDLE_STALE` if the exporter has closed the event,
/// `CROSSHANDLE_PEER_DIED` if the exporter has ended, `CROSSHANDLE_TIMED_OUT`,
/// `CROSSHANDLE_EXHAUSTED`. The caller closes the event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_event_open(
    context: *const crosshandle_context,
    handle: *const crosshandle_event_handle,
    timeout_ns: u64,
    event: *mut *mut crosshandle_event,
) -> crosshandle_result {
    entry_object! { event;
        let handle = crosshandle_event_handle::read(handle)?;
        get(context)?.open_event_timeout(&handle, timeout(timeout_ns))?
    }
}

/// Returns a handle to the event. Only the process that created the event can make handles.
///
/// Errors: `CROSSHANDLE_INVALID_ARGUMENT` for an event that was opened from a handle; pass that
/// handle on instead. `CROSSHANDLE_EXHAUSTED` if a limit is reached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_event_get_handle(
    event: *const crosshandle_event,
    handle: *mut crosshandle_event_handle,
) -> crosshandle_result {
    entry! {
        let handle = place(handle)?;
        let made = get(event)?.handle()?;
        handle.write(crosshandle_event_handle::new(&made));
        Ok(())
    }
}

/// Submits a signal from the host, and stores its number in `value` unless that is null. This call
/// never blocks. Memory that was written before the signal is visible after a wait for it.
///
/// Errors: `CROSSHANDLE_EXHAUSTED` if too many signals are unfinished.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_event_signal(
    event: *const crosshandle_event,
    value: *mut u64,
) -> crosshandle_result {
    entry! {
        put(value, get(event)?.signal()?);
        Ok(())
    }
}

/// Submits all signals up to `value` from the host at once.
///
/// Errors: those of `crosshandle_event_signal`, and `CROSSHANDLE_INVALID_ARGUMENT` for a value that
/// is not greater than the latest signal, or exceeds it by more than 2^29.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_event_signal_value(
    event: *const crosshandle_event,
    value: u64,
) -> crosshandle_result {
    entry!(Ok(get(event)?.signal_value(value)?))
}

/// Submits all signals up to `value` at once, as failed. Waits for these signals, in all processes,
/// return `CROSSHANDLE_COMMAND_FAILED`. In this process, their error contains `message`.
///
/// Errors: those of `crosshandle_event_signal_value`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_event_fail_value(
    event: *const crosshandle_event,
    value: u64,
    message: *const c_char,
) -> crosshandle_result {
    entry!(Ok(get(event)?.fail_value(value, text(message)?)?))
}

/// Waits for signal `value`, which need not be submitted yet, for at most `timeout_ns` nanoseconds.
/// The value may also be `CROSSHANDLE_LATEST` or `CROSSHANDLE_SUBMITTED`.
///
/// Errors: `CROSSHANDLE_TIMED_OUT`; `CROSSHANDLE_PEER_DIED` if the process that was to signal has
/// ended; `CROSSHANDLE_COMMAND_FAILED` if the command that was to signal has failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_event_wait(
    event: *const crosshandle_event,
    value: u64,
    timeout_ns: u64,
) -> crosshandle_result {
    entry! {
        let (event, timeout) = (get(event)?, timeout(timeout_ns));
        match value {
            CROSSHANDLE_LATEST => event.wait_timeout(timeout)?,
            CROSSHANDLE_SUBMITTED => event.wait_submitted_timeout(timeout)?,
            value => event.wait_value_timeout(value, timeout)?,
        }
        Ok(())
    }
}

/// Stores in `complete` whether signal `value` is complete, without waiting. The value may also be
/// `CROSSHANDLE_LATEST` or `CROSSHANDLE_SUBMITTED`.
///
/// Errors: those of `crosshandle_event_wait`, except `CROSSHANDLE_TIMED_OUT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_event_try_wait(
    event: *const crosshandle_event,
    value: u64,
    complete: *mut bool,
) -> crosshandle_result {
    entry! {
        let (event, complete) = (get(event)?, place(complete)?);
        complete.write(match value {
            CROSSHANDLE_LATEST => event.try_wait()?,
            CROSSHANDLE_SUBMITTED => event.try_wait_submitted()?,
            value => event.try_wait_value(value)?,
        });
        Ok(())
    }
}

/// An event and the signal of it to wait for.
#[repr(C)]
pub struct crosshandle_awaited {
    /// The event.
    pub event: *const crosshandle_event,
    /// The number of the signal, `CROSSHANDLE_LATEST` or `CROSSHANDLE_SUBMITTED`.
    pub value: u64,
}

/// Returns the number of the signal that a value of the program means now.
pub(crate) fn number(event: &Event, value: u64) -> u64 {
    match value {
        CROSSHANDLE_LATEST => event.latest_or_first(),
        CROSSHANDLE_SUBMITTED => event.submitted(),
        value => value,
    }
}

/// Converts a list of awaited signals.
unsafe fn read_awaited<'a>(
    awaited: *const crosshandle_awaited,
    count: usize,
) -> Result<Vec<(&'a Event, u64)>> {
    // SAFETY: promised by the caller.
    let awaited = unsafe { list(awaited, count) }?;
    let read = |awaited: &crosshandle_awaited| {
        // SAFETY: promised by the caller.
        let event = unsafe { get(awaited.event) }?;
        Ok((event, number(event, awaited.value)))
    };
    awaited.iter().map(read).collect()
}

/// Waits until all `count` signals are complete, for at most `timeout_ns` nanoseconds.
///
/// Errors: those of `crosshandle_event_wait`, as soon as one of the signals fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_wait_all(
    awaited: *const crosshandle_awaited,
    count: usize,
    timeout_ns: u64,
) -> crosshandle_result {
    entry! {
        let set = EventSet::values(read_awaited(awaited, count)?);
        Ok(set.wait_all_timeout(timeout(timeout_ns))?)
    }
}

/// Waits until one of `count` signals is complete, for at most `timeout_ns` nanoseconds. Stores its
/// index in the list in `index`.
///
/// Errors: those of `crosshandle_event_wait` for the signal that finished first, and
/// `CROSSHANDLE_INVALID_ARGUMENT` for an empty list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_wait_any(
    awaited: *const crosshandle_awaited,
    count: usize,
    timeout_ns: u64,
    index: *mut usize,
) -> crosshandle_result {
    entry! {
        let index = place(index)?;
        let set = EventSet::values(read_awaited(awaited, count)?);
        index.write(set.wait_any_timeout(timeout(timeout_ns))?);
        Ok(())
    }
}

/// Returns the number of the latest submitted signal. Returns 0 if there is none, and on an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_event_submitted(event: *const crosshandle_event) -> u64 {
    entry_value!(or 0; Ok(get(event)?.submitted()))
}

/// Returns the largest number such that all signals up to it have succeeded or failed. Returns 0 on
/// an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_event_completed(event: *const crosshandle_event) -> u64 {
    entry_value!(or 0; Ok(get(event)?.completed()))
}

/// Gives the event a name, which tools and errors of all processes that share it show. Names are
/// cut to 32 bytes. Only the process that created the event can name it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_event_set_name(
    event: *const crosshandle_event,
    name: *const c_char,
) -> crosshandle_result {
    entry! {
        get(event)?.set_name(text(name)?);
        Ok(())
    }
}

/// Closes the event in this process. Closing null does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_event_close(
    event: *mut crosshandle_event,
) -> crosshandle_result {
    entry!(close(event).map(drop))
}
