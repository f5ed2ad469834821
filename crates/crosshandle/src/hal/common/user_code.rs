//! Calls into the program's code: host functions, and drops of objects that the program gave.
//!
//! A panic there must not take a queue and its waiters down.

use crate::error::{Error, Result};
use crate::hal::HostFunction;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Calls a function of the program; its error or panic becomes [`Error::CommandFailed`].
pub(crate) fn call(function: HostFunction) -> Result<()> {
    // The text and the drop of its error are the program's code too.
    let call = || function().map_err(|error| error.to_string());
    let message = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(message)) => message,
        Err(panic) => {
            // Its drop may panic again.
            std::mem::forget(panic);
            "a host function panicked".into()
        }
    };
    Err(Error::CommandFailed(message.into()))
}

/// Drops a value, and ends a panic of its drop here.
pub(crate) fn drop_contained<T>(value: T) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
        std::mem::forget(panic);
    }
}

/// Returns an error's text, as the waiters for a failed command get to see it.
pub(crate) fn failure_text(error: Error) -> Arc<str> {
    match error {
        Error::CommandFailed(message) => message,
        error => error.to_string().into(),
    }
}
