//! Events of this library and of the driver.

use crate::boundary::{Text, done, enter, freed, given, made, text, time};
use crosshandle::{Context, Event, EventOptions, NativeEvent, NativeObject, Ownership};
use std::ffi::c_char;

/// Makes an event that can be shared.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_event_new(context: Option<&Context>) -> Option<Box<Event>> {
    made(|| Ok(given(context)?.create_event()?))
}

/// Adopts an event of the driver, as it was recorded last: the result gets signal 1 when it happens.
///
/// # Safety
/// `native` is an event of the driver, and lives until the result is complete.
#[unsafe(no_mangle)]
unsafe extern "C" fn crosshandle_event_adopt(
    context: Option<&Context>,
    native: usize,
) -> Option<Box<Event>> {
    made(|| {
        let context = given(context)?;
        let native = NativeObject::new(context.device().info().backend, native);
        // SAFETY: promised by the caller.
        Ok(unsafe { context.adopt_event(native, Ownership::Borrowed, EventOptions::new())? })
    })
}

/// Opens the event of a handle.
///
/// # Safety
/// `handle` is null or text.
#[unsafe(no_mangle)]
unsafe extern "C" fn crosshandle_event_open(
    context: Option<&Context>,
    handle: *const c_char,
) -> Option<Box<Event>> {
    // SAFETY: promised by the caller.
    made(|| Ok(given(context)?.open_event(&unsafe { text(handle)? }.parse()?)?))
}

/// Writes a handle to `to`.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_event_handle(event: Option<&Event>, to: Option<&mut Text>) -> i32 {
    done(|| given(to)?.put(&given(event)?.handle()?))
}

/// Signals from the host.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_event_signal(event: Option<&Event>) -> i32 {
    done(|| Ok(given(event)?.signal().map(drop)?))
}

/// Waits for signal `value`, for at most so many seconds.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_event_wait(event: Option<&Event>, value: u64, seconds: f64) -> i32 {
    done(|| Ok(given(event)?.wait_value_timeout(value, time(seconds)?)?))
}

/// Closes an event in this process.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_event_free(event: Option<Box<Event>>) {
    freed(event);
}

/// Makes an event of the driver that happens when the latest signal of `event` is finished.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_native_event_new(
    context: Option<&Context>,
    event: Option<&Event>,
) -> Option<Box<NativeEvent>> {
    made(|| Ok(given(context)?.native_event(given(event)?)?))
}

/// Returns the driver's own event.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_native_event_value(event: Option<&NativeEvent>) -> usize {
    enter(0, || Ok(given(event)?.native().raw()))
}

/// Destroys an event of the driver.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_native_event_free(event: Option<Box<NativeEvent>>) {
    freed(event);
}
