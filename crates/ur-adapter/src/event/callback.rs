//! Callbacks.
//!
//! One job of the library's background service waits for all events with callbacks, and calls one
//! function after the other, without a lock. It runs while there are callbacks. Functions may do
//! anything: call the adapter, release the event, set another callback. The job waits for events as
//! every thread does, so that a command that fails and a process that dies call back too, and
//! nothing keeps the process from ending.

use super::Event;
use crate::abi::boundary::entry_points;
use crate::abi::failure::Failure;
use crate::abi::lock::Lock;
use crate::abi::object::{Handle, Ref};
use crate::tuning::CALLBACK_POLL;
use crosshandle::{EventOptions, adapter_support};
use std::ffi::c_void;
use unified_runtime_sys::{
    ur_event_callback_t, ur_event_handle_t, ur_event_status_t, ur_execution_info_t, ur_result_t,
};

/// A function to be called when an event reaches a status.
struct Callback {
    /// Kept, whatever the caller releases, until the function has returned.
    event: Ref<Event>,
    /// The latest signal when the callback was set.
    signal: u64,
    status: ur_execution_info_t,
    function: unsafe extern "C" fn(ur_event_handle_t, ur_execution_info_t, *mut c_void),
    user_data: *mut c_void,
}

// SAFETY: the user data is only passed to the function; the caller of `urEventSetCallback` has that
// called with it by a thread that is not his, as UR does.
unsafe impl Send for Callback {}

/// The messages of other threads to the job.
struct Inbox {
    added: Vec<Callback>,
    /// Whether a job runs, or is about to, that will look into `added`.
    is_served: bool,
    /// Ends the job's wait for events, while it waits for some.
    wake_up: Option<crosshandle::Event>,
}

static INBOX: Lock<Inbox> = Lock::new(Inbox {
    added: Vec::new(),
    is_served: false,
    wake_up: None,
});

entry_points! {
    pub(super) fn set(
        event: Handle<Event>,
        status: ur_execution_info_t,
        function: ur_event_callback_t,
        user_data: *mut c_void,
    ) {
        let function = function.ok_or(Failure::NULL_POINTER)?;
        if status.0 > ur_execution_info_t::UR_EXECUTION_INFO_QUEUED.0 {
            return Err(Failure::ENUMERATION);
        }
        if status == ur_execution_info_t::UR_EXECUTION_INFO_QUEUED {
            return Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_UNSUPPORTED_ENUMERATION,
                "every event is queued from the start",
            ));
        }
        add(Callback {
            event: event.to_ref(),
            signal: event.inner().submitted(),
            status,
            function,
            user_data,
        });
        Ok(())
    }
}

/// Hands a callback to the job, which is started if none runs.
fn add(callback: Callback) {
    let mut inbox = INBOX.lock();
    inbox.added.push(callback);
    if let Some(wake_up) = &inbox.wake_up {
        // It fails if another thread has signalled already.
        let _ = wake_up.signal();
    }
    if !inbox.is_served {
        inbox.is_served = true;
        drop(inbox);
        adapter_support::run_blocking(serve);
    }
}

/// Calls back until no callback is left.
fn serve() {
    let mut waiting: Vec<Callback> = Vec::new();
    loop {
        let mut inbox = INBOX.lock();
        waiting.append(&mut inbox.added);
        if waiting.is_empty() {
            inbox.is_served = false;
            return;
        }
        drop(inbox);
        let (due, later): (Vec<_>, _) = waiting
            .into_iter()
            .partition(|callback| callback.outcome().is_some());
        waiting = later;
        due.into_iter().for_each(Callback::call);
        wait_for_change(&waiting);
    }
}

/// Waits until one of the events may have changed, or a callback is added.
fn wait_for_change(waiting: &[Callback]) {
    let Some(first) = waiting.first() else {
        return;
    };
    let (_, context) = first.event.context().first();
    // Callbacks are in no hurry, so that this thread need not spin.
    let options = EventOptions::new().shareable(false).low_power(true);
    let Ok(wake_up) = context.create_event_with(options) else {
        // A million events are alive. One of them may go.
        std::thread::sleep(CALLBACK_POLL);
        return;
    };
    let mut inbox = INBOX.lock();
    if !inbox.added.is_empty() {
        return;
    }
    inbox.wake_up = Some(wake_up.clone());
    drop(inbox);
    let callbacks = waiting.iter();
    let signals = callbacks.map(|callback| (callback.event.inner(), callback.signal));
    let events: Vec<_> = std::iter::once((&wake_up, 1)).chain(signals).collect();
    // Whatever ended the wait, an error too, is found by looking again.
    let _ = crosshandle::Event::wait_any_value(&events, None);
    INBOX.lock().wake_up = None;
}

impl Callback {
    /// Returns the status to call with, if it is time.
    fn outcome(&self) -> Option<ur_execution_info_t> {
        let event = &self.event;
        let is_early = match self.status {
            ur_execution_info_t::UR_EXECUTION_INFO_SUBMITTED => true,
            ur_execution_info_t::UR_EXECUTION_INFO_RUNNING => {
                event.has_started() && event.inner().submitted() == self.signal
            }
            _ => false,
        };
        match event.inner().try_wait_value(self.signal) {
            Ok(is_complete) => (is_complete || is_early).then_some(self.status),
            Err(_) => Some(ur_execution_info_t(
                ur_event_status_t::UR_EVENT_STATUS_ERROR.0,
            )),
        }
    }

    /// Calls the function.
    fn call(self) {
        let status = self.outcome().unwrap_or(self.status);
        // SAFETY: the caller of `urEventSetCallback` vouches for the function and its data; the
        // event is kept until the function returns.
        unsafe { (self.function)(self.event.handle(), status, self.user_data) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::object::{release, retain};
    use crate::event::{Kind, Origin};
    use crate::testing::{Scene, check};
    use crosshandle::Command;
    use std::ptr::from_ref;
    use std::sync::mpsc::{Sender, channel};
    use std::thread;
    use std::time::Duration;

    const COMPLETE: ur_execution_info_t = ur_execution_info_t::UR_EXECUTION_INFO_COMPLETE;
    const SOON: Duration = Duration::from_secs(20);

    type Called = Sender<(ur_execution_info_t, Option<String>)>;

    /// Reports the call.
    unsafe extern "C" fn report(
        _event: ur_event_handle_t,
        status: ur_execution_info_t,
        data: *mut c_void,
    ) {
        // SAFETY: the test passes a sender, which it keeps.
        let called = unsafe { &*data.cast::<Called>().cast_const() };
        let name = thread::current().name().map(str::to_owned);
        called.send((status, name)).expect("the test listens");
    }

    /// Reports the call after it has set another callback and released the event.
    unsafe extern "C" fn again(
        event: ur_event_handle_t,
        status: ur_execution_info_t,
        data: *mut c_void,
    ) {
        // SAFETY: the event is alive, and UR refers to it once; the data is passed on.
        unsafe {
            check(set(event, COMPLETE, Some(report), data));
            check(release::<Event>(event));
            report(event, status, data);
        }
    }

    #[test]
    fn functions_are_called_when_their_event_is_complete() {
        let scene = Scene::new();
        let (called, calls) = channel();
        let called: Called = called;
        let data = from_ref(&called).cast_mut().cast();
        // The job ends between the rounds, or not.
        for pause in [Duration::ZERO, Duration::from_millis(20), Duration::ZERO] {
            let options = EventOptions::new().shareable(false);
            let context = scene.context();
            let inner = context.first().1.create_event_with(options).unwrap();
            let hold = scene.hold();
            let signal = Command::marker().signal(&inner);
            scene.queue().inner().submit(signal).unwrap();
            let event = Event::hand_out(context.to_ref(), inner, Origin::Reusable(Kind::Plain));
            // SAFETY: the event is alive, and released by `again`.
            unsafe {
                check(set(event, COMPLETE, Some(report), data));
                check(set(event, COMPLETE, Some(again), data));
                let submitted = ur_execution_info_t::UR_EXECUTION_INFO_SUBMITTED;
                check(set(event, submitted, Some(report), data));
                assert_eq!(calls.recv_timeout(SOON).unwrap().0, submitted);
                check(retain::<Event>(event));
                check(release::<Event>(event));
            }
            assert!(calls.try_recv().is_err(), "the signal is pending");
            hold.signal().unwrap();
            for _ in 0..3 {
                let (status, name) = calls.recv_timeout(SOON).unwrap();
                assert_eq!(status, COMPLETE);
                assert_eq!(name.as_deref(), Some("xh-background"));
            }
            thread::sleep(pause);
        }
        assert!(calls.try_recv().is_err());
    }
}
