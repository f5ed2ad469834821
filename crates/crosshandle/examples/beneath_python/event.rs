//! Functions for events of this library and of the driver.

use crate::boundary::{Text, done, enter, freed, given, made, text, time};
use crosshandle::{
    Context, Event, EventOptions,
    native::{NativeEvent, NativeObject, Ownership},
};
use std::ffi::c_char;

/// Creates an event that can be shared.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_event_new(context: Option<&Context>) -> Option<Box<Event>> {
    made(|| Ok(given(context)?.create_event()?))
}

/// Adopts an event of the driver in its latest recording. The result's signal 1 completes when the
/// driver's event does.
///
/// # Safety
/// `native` must be an event of the driver, and must live until the result is complete.
#[unsafe(no_mangle)]
unsafe extern "C" fn crosshandle_event_adopt(
    context: Option<&Context>,
    native: usize,
) -> Option<Box<Event>> {
    made(|| {
        let context = given(context)?;
        let native = NativeObject::new(context.device().info().backend, native);
        // SAFETY: the caller guarantees it.
        Ok(unsafe { Event::adopt(context, native, Ownership::Borrowed, EventOptions::new())? })
    })
}

/// Opens the event of a handle.
///
/// # Safety
/// `handle` must be null or text.
#[unsafe(no_mangle)]
unsafe extern "C" fn crosshandle_event_open(
    context: Option<&Context>,
    handle: *const c_char,
) -> Option<Box<Event>> {
    // SAFETY: the caller guarantees it.
    made(|| Ok(given(context)?.open_event(&unsafe { text(handle)? }.parse()?)?))
}

/// Writes the event's handle to `to`.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_event_handle(event: Option<&Event>, to: Option<&mut Text>) -> i32 {
    done(|| given(to)?.put(&given(event)?.handle()?))
}

/// Signals the event from the host.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_event_signal(event: Option<&Event>) -> i32 {
    done(|| Ok(given(event)?.signal().map(drop)?))
}

/// Waits for signal `value`. The timeout is in seconds.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_event_wait(event: Option<&Event>, value: u64, seconds: f64) -> i32 {
    done(|| Ok(given(event)?.wait_value_timeout(value, time(seconds)?)?))
}

/// Closes an event in this process.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_event_free(event: Option<Box<Event>>) {
    freed(event);
}

/// Creates an event of the driver that completes when the latest signal of `event` does.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_native_event_new(
    context: Option<&Context>,
    event: Option<&Event>,
) -> Option<Box<NativeEvent>> {
    made(|| Ok(NativeEvent::new(given(context)?, given(event)?)?))
}

/// Returns the driver's event as a number.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_native_event_value(event: Option<&NativeEvent>) -> usize {
    enter(0, || Ok(given(event)?.native().raw()))
}

/// Destroys an event of the driver.
#[unsafe(no_mangle)]
extern "C" fn crosshandle_native_event_free(event: Option<Box<NativeEvent>>) {
    freed(event);
}
