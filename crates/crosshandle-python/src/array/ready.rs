//! Keeps track of the signals after which an array's bytes are ready.
//!
//! When a bundle is opened, its signals are recorded with the opened memory, for each range of
//! bytes. Each array in that memory waits for the signals for its byte range. The same applies to
//! views and slices of the array, and to other libraries' tensors in the same memory. If any of
//! these is shared again, its bundle contains the same signals.

use crate::error::Result;
use crate::event::Event;
use crosshandle::EventHandle;
use crosshandle::handle::bundle::ReadyEvent;
use pyo3::prelude::*;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// One signal of an event. Any process may have created the event.
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

/// The signals after which some bytes are ready. Without signals, the bytes are ready immediately.
#[derive(Clone, Default)]
pub(crate) struct Ready(Vec<Arc<Signal>>);

impl Ready {
    pub(crate) fn new(signals: Vec<Arc<Signal>>) -> Self {
        Self(signals)
    }

    pub(crate) fn first(&self) -> Option<&Signal> {
        self.0.first().map(|signal| &**signal)
    }

    /// Returns the signals that are still pending or have failed.
    pub(crate) fn pending(&self) -> impl Iterator<Item = &Signal> {
        let signals = self.0.iter().map(|signal| &**signal);
        signals.filter(|signal| !matches!(signal.is_complete(), Ok(true)))
    }

    /// Waits on the host until all signals have completed. Fails if a signal fails, or if a wait
    /// for one signal takes longer than `timeout` seconds. Ctrl-C interrupts the wait.
    pub(crate) fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let mut signals = self.0.iter();
        signals.try_for_each(|signal| signal.event().wait_value(py, signal.value, timeout))
    }

    /// Returns the signals in the form that a bundle contains, so that the receiver of the bundle
    /// can wait for them. Fails if a signal has failed.
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

/// For one memory: the signals after which each recorded range of bytes is ready.
#[derive(Default)]
pub(crate) struct Arrivals(Mutex<Vec<(Range<usize>, Ready)>>);

impl Arrivals {
    pub(crate) fn add(&self, part: Range<usize>, ready: Ready) {
        if !ready.0.is_empty() {
            let mut parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            parts.push((part, ready));
        }
    }

    /// Returns the signals for all recorded ranges that overlap `bytes`.
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
