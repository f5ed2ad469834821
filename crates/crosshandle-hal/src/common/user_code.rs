//! Calls into the program's code: host functions, and drops of objects that the program passed in.
//!
//! A panic in that code must not take down a queue and its waiters.

use crate::HostFunction;
use crosshandle_types::error::{Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Calls a function of the program. Its error or panic becomes [`Error::CommandFailed`].
pub fn call(function: HostFunction) -> Result<()> {
    // Formatting and dropping the error runs the program's code too.
    let call = || {
        let result = match function {
            HostFunction::Once(function) => function(),
            HostFunction::Repeatable(function) => function(),
        };
        result.map_err(|error| error.to_string())
    };
    let message = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(message)) => message,
        Err(panic) => {
            // Dropping the panic may panic again.
            std::mem::forget(panic);
            "a host function panicked".into()
        }
    };
    Err(Error::CommandFailed(message.into()))
}

/// Drops a value, and catches a panic of the drop.
pub fn drop_contained<T>(value: T) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
        std::mem::forget(panic);
    }
}

/// Returns an error's text in the form that waiters for a failed command receive.
pub fn failure_text(error: Error) -> Arc<str> {
    match error {
        Error::CommandFailed(message) => message,
        error => error.to_string().into(),
    }
}
