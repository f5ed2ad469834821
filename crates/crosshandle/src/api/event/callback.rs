//! Callbacks that run when a signal has completed.

use super::Event;
use crosshandle_ipc::awaiting::{Await, Waiter};
use crosshandle_os::fork::PerProcess;
use crosshandle_os::threads::background::{self, contain};
use crosshandle_types::error::Result;
use crosshandle_types::observe::waited;
use crosshandle_types::sync::Mutex;
use std::collections::VecDeque;

/// A registered callback, returned by [`Event::on_signal`]. Dropping it cancels the call, unless
/// the call is already due.
#[derive(Debug)]
#[must_use = "dropping it cancels the call"]
pub struct Subscription(Option<Await>);

impl Subscription {
    /// Keeps the callback registered without this object. The event stays open until the call.
    pub fn detach(mut self) {
        if let Some(awaited) = self.0.take() {
            awaited.detach();
        }
    }
}

type Call = Box<dyn FnOnce() + Send>;

/// The calls that are due. One job makes them, one after the other.
struct DueCalls {
    calls: VecDeque<Call>,
    has_job: bool,
}

static DUE: PerProcess<Mutex<DueCalls>> = PerProcess::new(|| {
    Mutex::new(DueCalls {
        calls: VecDeque::new(),
        has_job: false,
    })
});

/// Queues a call behind those that are already due.
fn call_in_turn(call: Call) {
    let mut due = DUE.lock();
    due.calls.push_back(call);
    let had_job = std::mem::replace(&mut due.has_job, true);
    drop(due);
    match had_job {
        // The job may still be waiting, because no thread could be started for it.
        true => {
            background::start_missing_threads();
        }
        false => background::run_blocking(make_calls),
    }
}

fn make_calls() {
    loop {
        let mut due = DUE.lock();
        let Some(call) = due.calls.pop_front() else {
            due.has_job = false;
            return;
        };
        drop(due);
        contain(call);
    }
}

type Function = Box<dyn FnOnce(Result<()>) + Send>;

/// A callback that awaits its signal.
struct Callback(Mutex<Option<Function>>);

impl Waiter for Callback {
    fn tell(&self, result: Result<()>) {
        if let Some(function) = self.0.lock().take() {
            call_in_turn(Box::new(move || function(waited(result))));
        }
    }
}

/// Registers a callback for the time when an event has reached a value.
pub(super) fn on_signal(event: &Event, value: u64, function: Function) -> Result<Subscription> {
    if let Some(result) = event.core.result(value) {
        // This function does not call `Await::begin`, which would report that no thread can be
        // started.
        background::ensure_thread()?;
        call_in_turn(Box::new(move || function(waited(result))));
        return Ok(Subscription(None));
    }
    let waiter = Box::new(Callback(Mutex::new(Some(function))));
    let awaited = Await::begin(&event.core, value, (waiter as Box<dyn Waiter>).into())?;
    Ok(Subscription(Some(awaited)))
}
