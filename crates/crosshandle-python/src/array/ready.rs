//! The signals after which an array's bytes are ready.
//!
//! When a bundle is opened, its signals are recorded with the opened memory, by range of bytes.
//! Each array in that memory waits for the signals of its bytes. So do views, slices and tensors of
//! other libraries, and they are shared with the same signals.

use crate::error::Result;
use crate::event::Event;
use crosshandle::EventHandle;
use crosshandle::handle::bundle::ReadyEvent;
use pyo3::prelude::*;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// A signal of an event, which may belong to any process.
pub(crate) struct Signal {
    event: crosshandle::Event,
    handle: EventHandle,
    value: u64,
}

impl Signal {
    pub(crate) fn new(event: crosshandle::Event, handle: EventHandle, value: u64) -> Self {
        Self {
            event,
            handle,
            value,
        }
    }

    pub(crate) fn value(&self) -> u64 {
        self.value
    }

    /// Returns the event as a Python object.
    pub(crate) fn event(&self) -> Event {
        Event::new(self.event.clone(), Some(self.handle))
    }

    fn is_complete(&self) -> Result<bool> {
        Ok(self.event.try_wait_value(self.value)?)
    }
}

/// Signals after which bytes are ready. The list is empty if the bytes are ready already.
#[derive(Clone, Default)]
pub(crate) struct Ready(Vec<Arc<Signal>>);

impl Ready {
    pub(crate) fn new(signals: Vec<Arc<Signal>>) -> Self {
        Self(signals)
    }

    pub(crate) fn first(&self) -> Option<&Signal> {
        self.0.first().map(|signal| &**signal)
    }

    /// Returns the signals that have not completed or have failed.
    pub(crate) fn pending(&self) -> impl Iterator<Item = &Signal> {
        let signals = self.0.iter().map(|signal| &**signal);
        signals.filter(|signal| !matches!(signal.is_complete(), Ok(true)))
    }

    /// Waits on the host for all signals, for at most `timeout` seconds each.
    pub(crate) fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let mut signals = self.0.iter();
        signals.try_for_each(|signal| signal.event().wait_value(py, signal.value, timeout))
    }

    /// Returns the signals to put into a bundle, for the next process to wait for. Fails if a
    /// signal has failed.
    pub(crate) fn passed_on(&self) -> Result<Vec<ReadyEvent>> {
        let signals = self.0.iter().map(|signal| {
            let Signal { handle, value, .. } = **signal;
            Ok(ReadyEvent {
                handle,
                value,
                is_complete: signal.is_complete()?,
            })
        });
        signals.collect()
    }

    fn add(&mut self, other: &Self) {
        for signal in &other.0 {
            if !self.0.iter().any(|own| Arc::ptr_eq(own, signal)) {
                self.0.push(Arc::clone(signal));
            }
        }
    }
}

/// The signals after which the parts of one memory are ready, by range of bytes.
#[derive(Default)]
pub(crate) struct Arrivals(Mutex<Vec<(Range<usize>, Ready)>>);

impl Arrivals {
    pub(crate) fn add(&self, part: Range<usize>, ready: Ready) {
        if !ready.0.is_empty() {
            let mut parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            parts.push((part, ready));
        }
    }

    /// Returns the signals of all parts that overlap these bytes.
    pub(crate) fn of(&self, bytes: &Range<usize>) -> Ready {
        let parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ready = Ready::default();
        for (_, part) in parts
            .iter()
            .filter(|(part, _)| part.start < bytes.end && bytes.start < part.end)
        {
            ready.add(part);
        }
        ready
    }
}
