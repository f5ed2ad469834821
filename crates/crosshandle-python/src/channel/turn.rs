//! Turns of Python threads that use one producer or consumer.

use crate::interrupt::{SLICE, Slices};
use crosshandle::Error;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A producer or a consumer, which one thread at a time uses. A thread may wait for the channel
/// while it has the turn.
pub(super) struct Turn<T> {
    place: Mutex<Place<T>>,
    returned: Condvar,
    /// What the error says was closed.
    name: &'static str,
}

enum Place<T> {
    Here(T),
    /// A thread has the turn.
    Away,
    Closed,
}

impl<T: Send> Turn<T> {
    pub(super) fn new(value: T, name: &'static str) -> Self {
        Self {
            place: Mutex::new(Place::Here(value)),
            returned: Condvar::new(),
            name,
        }
    }

    fn place(&self) -> MutexGuard<'_, Place<T>> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the turn of this thread. Ctrl-C interrupts the wait.
    pub(super) fn take(&self, py: Python<'_>, slices: &Slices) -> PyResult<Taken<'_, T>> {
        loop {
            let mut place = self.place();
            match std::mem::replace(&mut *place, Place::Away) {
                Place::Here(value) => {
                    return Ok(Taken {
                        turn: self,
                        value: Some(value),
                    });
                }
                Place::Closed => {
                    *place = Place::Closed;
                    let text = format!("this {} was closed", self.name);
                    return Err(PyValueError::new_err(text));
                }
                Place::Away => {}
            }
            drop(place);
            let (slice, is_last) = slices.next(SLICE);
            py.detach(|| {
                let place = self.place();
                if matches!(*place, Place::Away) {
                    drop(self.returned.wait_timeout(place, slice));
                }
            });
            if is_last && matches!(*self.place(), Place::Away) {
                let error = Error::TimedOut("waiting for another thread that uses the channel");
                return Err(crate::error::exception(py, &error));
            }
            py.check_signals()?;
        }
    }

    /// Closes this object. If a thread has the turn, that thread drops the value.
    pub(super) fn close(&self, py: Python<'_>) {
        let former = std::mem::replace(&mut *self.place(), Place::Closed);
        self.returned.notify_all();
        py.detach(|| drop(former));
    }

    /// Returns whether [`close`](Self::close) was called.
    pub(super) fn is_closed(&self) -> bool {
        matches!(*self.place(), Place::Closed)
    }
}

/// The turn of a thread. Dropping it ends the turn.
pub(super) struct Taken<'a, T: Send> {
    turn: &'a Turn<T>,
    /// `None` only while the turn ends.
    value: Option<T>,
}

impl<T: Send> Deref for Taken<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("the turn has not ended")
    }
}

impl<T: Send> DerefMut for Taken<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("the turn has not ended")
    }
}

impl<T: Send> Drop for Taken<'_, T> {
    fn drop(&mut self) {
        let Some(value) = self.value.take() else {
            return;
        };
        let mut place = self.turn.place();
        if matches!(*place, Place::Away) {
            *place = Place::Here(value);
            drop(place);
            self.turn.returned.notify_one();
        }
    }
}
