//! Log messages from the adapter, which go to the loader's callback and to `tracing`.

use super::lock::Lock;
use std::ffi::{CString, c_char, c_void};
use unified_runtime_sys::{ur_logger_callback_t, ur_logger_level_t, ur_result_t};

/// The callback that receives log messages, and the lowest level that it receives.
struct Sink {
    callback: ur_logger_callback_t,
    user_data: *mut c_void,
    level: ur_logger_level_t,
}

// SAFETY: the adapter only passes the user data to the callback. The caller of
// `urAdapterSetLoggerCallback` allows calls from any thread, as UR requires.
unsafe impl Send for Sink {}

static SINK: Lock<Sink> = Lock::new(Sink {
    callback: None,
    user_data: std::ptr::null_mut(),
    level: ur_logger_level_t::UR_LOGGER_LEVEL_QUIET,
});

/// Sets the callback that receives messages of `level` and above.
pub(crate) fn set_callback(
    callback: ur_logger_callback_t,
    user_data: *mut c_void,
    level: ur_logger_level_t,
) {
    *SINK.lock() = Sink {
        callback,
        user_data,
        level,
    };
}

/// Sets the lowest level of messages that the callback receives.
pub(crate) fn set_level(level: ur_logger_level_t) {
    SINK.lock().level = level;
}

/// Logs the failure of an entry point.
pub(crate) fn failure(result: ur_result_t, message: &str) {
    tracing::debug!(result = result.0, "{message}");
    say(ur_logger_level_t::UR_LOGGER_LEVEL_ERROR, message);
}

/// Passes a message to the callback if its level is at or above the callback's level.
pub(crate) fn say(level: ur_logger_level_t, message: &str) {
    let sink = SINK.lock();
    // `QUIET` is greater than the level of any message, so it disables the callback.
    if level.0 < sink.level.0 {
        return;
    }
    let (callback, user_data) = (sink.callback, sink.user_data);
    // The lock is released before the call, because the callback may call the adapter.
    drop(sink);
    let (Some(callback), Ok(text)) = (callback, CString::new(message.replace('\0', " "))) else {
        return;
    };
    let text: *const c_char = text.as_ptr();
    // SAFETY: the caller of `urAdapterSetLoggerCallback` guarantees that the callback accepts these
    // arguments. The text lives until the callback returns.
    unsafe { callback(level, text, user_data) };
}
