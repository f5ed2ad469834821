//! Waits without a thread for each: callbacks, and notifiers for event loops.

use crate::boundary::{entry, entry_object, entry_value, place, put};
use crate::error::{Failure, crosshandle_result};
use crate::event::{crosshandle_event, number};
use crate::memory::{Owner, crosshandle_release};
use crate::object::{close, get, object, open};
use crosshandle::Notifier;
use crosshandle::event::Subscription;
use std::ffi::{CString, c_char, c_void};
use std::os::fd::AsRawFd;

/// A registered callback. Any thread may use it.
pub struct crosshandle_subscription {}
object!(crosshandle_subscription, Subscription, 7, "subscription");

/// Awaits any number of signals for an event loop. Its descriptor becomes readable when one of them
/// has completed or failed. Any thread may use it.
pub struct crosshandle_notifier {}
object!(crosshandle_notifier, Notifier, 8, "notifier");

/// A function of the program that the library calls when a signal has completed or failed.
///
/// `result` is what a wait for the signal would return. `message` is the text of the error, or
/// empty. It is valid during the call. A background thread calls all callbacks of a process one
/// after the other. A callback may call any function of the library. It must not throw.
pub type crosshandle_callback = Option<
    unsafe extern "C" fn(user: *mut c_void, result: crosshandle_result, message: *const c_char),
>;

/// Registers a callback for signal `value` of an event, which need not be submitted yet. The value
/// may also be `CROSSHANDLE_LATEST` or `CROSSHANDLE_SUBMITTED`.
///
/// If `subscription` is null, the callback stays registered until it is called. Otherwise the
/// caller closes the subscription, which cancels the call unless it is already due.
///
/// `release` may be null. Otherwise it is called with `user` once, after the last use of `user`:
/// after the callback, after the cancellation, or if this call fails.
///
/// Errors: `CROSSHANDLE_EXHAUSTED` if the system cannot start a thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_event_on_signal(
    event: *const crosshandle_event,
    value: u64,
    callback: crosshandle_callback,
    release: crosshandle_release,
    user: *mut c_void,
    subscription: *mut *mut crosshandle_subscription,
) -> crosshandle_result {
    entry! {
        let user = Owner::new(release, user);
        let callback = callback.ok_or(Failure::NULL)?;
        let event = get(event)?;
        let call = move |result: crosshandle::Result<()>| {
            let (code, text) = match result {
                Ok(()) => (crosshandle_result::CROSSHANDLE_OK, String::new()),
                Err(error) => (crate::error::code_of(&error), error.to_string()),
            };
            let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
            callback(user.pointer(), code, text.as_ptr());
        };
        let subscribed = event.on_signal(number(event, value), call)?;
        match subscription.is_null() {
            true => subscribed.detach(),
            false => put(subscription, open(subscribed)),
        }
        Ok(())
    }
}

/// Closes a subscription without a cancellation: the callback stays registered until it is called.
/// Detaching null does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_subscription_detach(
    subscription: *mut crosshandle_subscription,
) -> crosshandle_result {
    entry! {
        if let Some(subscription) = close(subscription)? {
            subscription.detach();
        }
        Ok(())
    }
}

/// Cancels a callback, unless its call is already due. Closing null does nothing.
///
/// The callback may still run when this call returns. The `release` function shows when it cannot
/// run any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_subscription_close(
    subscription: *mut crosshandle_subscription,
) -> crosshandle_result {
    entry!(close(subscription).map(drop))
}

/// Creates a notifier that awaits nothing yet.
///
/// Errors: `CROSSHANDLE_EXHAUSTED` if the process has no descriptor left. The caller closes the
/// notifier.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_notifier_create(
    notifier: *mut *mut crosshandle_notifier,
) -> crosshandle_result {
    entry_object! { notifier;
        Notifier::new()?
    }
}

/// Awaits signal `value` of an event, which need not be submitted yet. The value may also be
/// `CROSSHANDLE_LATEST` or `CROSSHANDLE_SUBMITTED`. `crosshandle_notifier_next` returns `token`
/// when the signal has completed or failed.
///
/// Errors: `CROSSHANDLE_INVALID_ARGUMENT` if the token is in use, and `CROSSHANDLE_EXHAUSTED` if
/// the system cannot start a thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_notifier_add(
    notifier: *const crosshandle_notifier,
    event: *const crosshandle_event,
    value: u64,
    token: u64,
) -> crosshandle_result {
    entry! {
        let event = get(event)?;
        Ok(get(notifier)?.add(event, number(event, value), token)?)
    }
}

/// Cancels the signal with this token. Stores in `removed`, unless that is null, whether the token
/// was in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_notifier_remove(
    notifier: *const crosshandle_notifier,
    token: u64,
    removed: *mut bool,
) -> crosshandle_result {
    entry! {
        put(removed, get(notifier)?.remove(token));
        Ok(())
    }
}

/// Takes the next signal that has completed or failed, without waiting. Stores in `found` whether
/// there was one. If so, stores its token in `token`, and what a wait for the signal would return
/// in `result`. The text of a failed signal is this thread's latest error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_notifier_next(
    notifier: *const crosshandle_notifier,
    found: *mut bool,
    token: *mut u64,
    result: *mut crosshandle_result,
) -> crosshandle_result {
    entry! {
        let (found, token, result) = (place(found)?, place(token)?, place(result)?);
        let next = get(notifier)?.next();
        found.write(next.is_some());
        if let Some(next) = next {
            token.write(next.token);
            result.write(match next.result {
                Ok(()) => crosshandle_result::CROSSHANDLE_OK,
                Err(error) => Failure::from(error).store(),
            });
        }
        Ok(())
    }
}

/// Returns the descriptor of the notifier for `poll`, `epoll` and similar calls. It is valid until
/// the notifier is closed. The program reads nothing from it. Returns -1 on an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_notifier_fd(notifier: *const crosshandle_notifier) -> i32 {
    entry_value!(or -1; Ok(get(notifier)?.as_raw_fd()))
}

/// Closes the notifier, and cancels everything that it awaits. Closing null does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_notifier_close(
    notifier: *mut crosshandle_notifier,
) -> crosshandle_result {
    entry!(close(notifier).map(drop))
}
