//! Callbacks for events.
//!
//! `crosshandle` waits for the event, and calls the program's functions one after another on a
//! background thread. It holds no lock during a call, so a function may call the adapter, release
//! the event, or set another callback. A function that blocks delays the other functions. The
//! callback runs when a wait for the event would end: after the signal, after a failure of the
//! command, or after the death of the process that should signal.
//!
//! Callbacks prevent neither the exit of the process nor the release of other objects. A callback
//! holds a reference to its event, and the event holds references to the objects that it needs. A
//! callback that is still pending when the process exits may run during the exit or not at all.

use super::Event;
use crate::abi::boundary::entry_points;
use crate::abi::failure::{Failure, Result};
use crate::abi::object::{Handle, Ref};
use std::ffi::c_void;
use unified_runtime_sys::{
    ur_event_callback_t, ur_event_handle_t, ur_event_status_t, ur_execution_info_t, ur_result_t,
};

/// A function that is called when an event reaches a status.
struct Callback {
    /// The event. The callback keeps it alive until the function returns, even if the caller
    /// releases it earlier.
    event: Ref<Event>,
    /// The number of the signal that was the latest when the callback was set.
    signal: u64,
    status: ur_execution_info_t,
    function: unsafe extern "C" fn(ur_event_handle_t, ur_execution_info_t, *mut c_void),
    user_data: *mut c_void,
}

// SAFETY: the adapter only passes the user data to the function. The caller of `urEventSetCallback`
// allows the call on any thread, as UR requires.
unsafe impl Send for Callback {}

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
                "an event is always at least queued, so this status needs no callback",
            ));
        }
        let callback = Callback {
            event: event.to_ref(),
            signal: event.inner()?.submitted(),
            status,
            function,
            user_data,
        };
        callback.set()
    }
}

impl Callback {
    /// Registers the callback with the event.
    ///
    /// # Errors
    /// Returns `OUT_OF_RESOURCES` if the system cannot start the thread that waits for the event.
    /// In this case the function is never called. Returns `GRAPH_INTERNAL_EVENT` for an event of a
    /// captured command.
    fn set(self) -> Result<()> {
        let event = self.event.inner()?.clone();
        let inner = event.clone();
        let awaited = match self.is_early() {
            // Signal 0 is always complete, so the function is called as soon as possible.
            true => 0,
            false => self.signal,
        };
        let call = move |result: crosshandle::Result<()>| {
            let signal = self.signal;
            let result = match awaited == signal {
                true => result,
                false => inner.try_wait_value(signal).map(drop),
            };
            self.call(result);
        };
        event.on_signal(awaited, call)?.detach();
        Ok(())
    }

    /// Returns whether the event already has the requested status, even if its signal is pending.
    ///
    /// Nothing notifies the adapter when a command starts. Therefore, if a command has not started
    /// yet, its `RUNNING` callback is called when the command is complete.
    fn is_early(&self) -> bool {
        match self.status {
            ur_execution_info_t::UR_EXECUTION_INFO_SUBMITTED => true,
            ur_execution_info_t::UR_EXECUTION_INFO_RUNNING => self.event.has_started(),
            _ => false,
        }
    }

    /// Calls the function. The status that it receives depends on the result of the awaited signal.
    fn call(self, result: crosshandle::Result<()>) {
        let status = match result {
            Ok(()) => self.status,
            Err(_) => ur_execution_info_t(ur_event_status_t::UR_EVENT_STATUS_ERROR.0),
        };
        // SAFETY: the caller of `urEventSetCallback` guarantees that the function may be called
        // with this user data. `self` keeps the event alive until the function returns.
        unsafe { (self.function)(self.event.handle(), status, self.user_data) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::object::{release, retain};
    use crate::event::{Kind, Origin};
    use crate::testing::{Scene, check};
    use crosshandle::{Command, EventOptions};
    use std::ptr::from_ref;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;
    use std::time::Duration;

    const COMPLETE: ur_execution_info_t = ur_execution_info_t::UR_EXECUTION_INFO_COMPLETE;
    const RUNNING: ur_execution_info_t = ur_execution_info_t::UR_EXECUTION_INFO_RUNNING;
    const SUBMITTED: ur_execution_info_t = ur_execution_info_t::UR_EXECUTION_INFO_SUBMITTED;
    const ERROR: ur_execution_info_t =
        ur_execution_info_t(ur_event_status_t::UR_EVENT_STATUS_ERROR.0);
    const SOON: Duration = Duration::from_secs(20);

    type Called = Sender<(ur_execution_info_t, Option<String>)>;

    /// Reports to the test that the callback was called.
    unsafe extern "C" fn report(
        _event: ur_event_handle_t,
        status: ur_execution_info_t,
        data: *mut c_void,
    ) {
        // SAFETY: the data is the address of a sender that the test keeps alive.
        let called = unsafe { &*data.cast::<Called>().cast_const() };
        let name = thread::current().name().map(str::to_owned);
        called.send((status, name)).expect("the test listens");
    }

    /// Sets another callback, releases the event, and reports the call to the test.
    unsafe extern "C" fn again(
        event: ur_event_handle_t,
        status: ur_execution_info_t,
        data: *mut c_void,
    ) {
        // SAFETY: the event is alive, and UR holds a reference to it. `data` satisfies the contract
        // of `report`.
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
        // The long pause lets the background thread that calls the functions exit before the next
        // round.
        for pause in [Duration::ZERO, Duration::from_millis(20), Duration::ZERO] {
            let options = EventOptions::new().shareable(false);
            let context = scene.context();
            let inner = context.first().1.create_event_with(options).unwrap();
            let hold = scene.hold();
            let signal = Command::marker().signal(&inner);
            scene.queue().inner().submit(signal).unwrap();
            let event = Event::hand_out(context.to_ref(), inner, Origin::Reusable(Kind::Plain));
            // SAFETY: the event is alive until `again` releases it.
            unsafe {
                check(set(event, COMPLETE, Some(report), data));
                check(set(event, COMPLETE, Some(again), data));
                check(set(event, SUBMITTED, Some(report), data));
                assert_eq!(calls.recv_timeout(SOON).unwrap().0, SUBMITTED);
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
    /// Submits a command to the scene's queue, and returns an event that the command signals.
    fn event_of(scene: &Scene, command: Command, options: EventOptions) -> ur_event_handle_t {
        let context = scene.context();
        let options = options.shareable(false);
        let inner = context.first().1.create_event_with(options).unwrap();
        let submitted = scene.queue().inner().submit(command.signal(&inner));
        submitted.unwrap();
        Event::hand_out(context.to_ref(), inner, Origin::Reusable(Kind::Plain))
    }

    fn status_of(calls: &Receiver<(ur_execution_info_t, Option<String>)>) -> ur_execution_info_t {
        calls.recv_timeout(SOON).unwrap().0
    }

    type Numbered = (
        usize,
        Sender<(usize, ur_event_handle_t, ur_execution_info_t)>,
    );

    /// Reports the number of the callback to the test.
    unsafe extern "C" fn report_number(
        event: ur_event_handle_t,
        status: ur_execution_info_t,
        data: *mut c_void,
    ) {
        // SAFETY: the data is the address of a `Numbered` that the test keeps alive.
        let (number, called) = unsafe { &*data.cast::<Numbered>().cast_const() };
        called
            .send((*number, event, status))
            .expect("the test listens");
    }

    #[test]
    fn each_of_many_functions_is_called_once() {
        // More events than one system call can wait for.
        const EVENTS: usize = 300;
        let scene = Scene::new();
        let (called, calls) = channel();
        let hold = scene.hold();
        let numbered: Vec<Numbered> = (0..EVENTS).map(|number| (number, called.clone())).collect();
        drop(called);
        let events: Vec<_> = numbered
            .iter()
            .map(|numbered| {
                let event = event_of(&scene, Command::marker(), EventOptions::new());
                let data = from_ref(numbered).cast_mut().cast();
                // SAFETY: the event is alive. After its release here, the callback keeps it alive.
                unsafe {
                    check(set(event, COMPLETE, Some(report_number), data));
                    check(release::<Event>(event));
                }
                event
            })
            .collect();
        assert!(calls.try_recv().is_err(), "the signals are pending");
        hold.signal().unwrap();
        let mut is_called = [false; EVENTS];
        for _ in 0..EVENTS {
            let (number, event, status) = calls.recv_timeout(SOON).unwrap();
            assert_eq!((event, status), (events[number], COMPLETE));
            assert!(!std::mem::replace(&mut is_called[number], true));
        }
        assert!(calls.try_recv().is_err());
    }

    #[test]
    fn a_failure_calls_back_whatever_was_asked_for() {
        let scene = Scene::new();
        let (called, calls) = channel();
        let called: Called = called;
        let data = from_ref(&called).cast_mut().cast();
        let hold = scene.hold();
        let fails = Command::call(|| Err("on purpose"));
        let event = event_of(&scene, fails, EventOptions::new());
        // SAFETY: the event is alive until it is released.
        unsafe {
            check(set(event, COMPLETE, Some(report), data));
            check(set(event, RUNNING, Some(report), data));
            hold.signal().unwrap();
            assert_eq!([status_of(&calls), status_of(&calls)], [ERROR; 2]);
            for status in [SUBMITTED, RUNNING, COMPLETE] {
                check(set(event, status, Some(report), data));
                assert_eq!(status_of(&calls), ERROR);
            }
            check(release::<Event>(event));
        }
        assert!(calls.try_recv().is_err());
    }

    #[test]
    fn a_command_that_runs_or_has_run_calls_back_those_who_asked_for_that() {
        let scene = Scene::new();
        let (called, calls) = channel();
        let called: Called = called;
        let data = from_ref(&called).cast_mut().cast();
        let hold = scene.hold();
        let (started, has_started) = channel();
        let (end, may_end) = channel::<()>();
        let command = Command::call(move || {
            started.send(()).unwrap();
            let _ = may_end.recv_timeout(SOON);
            Ok::<_, std::convert::Infallible>(())
        });
        let event = event_of(&scene, command, EventOptions::new().profiling(true));
        // SAFETY: the event is alive until it is released.
        unsafe {
            check(set(event, RUNNING, Some(report), data));
            hold.signal().unwrap();
            has_started.recv_timeout(SOON).unwrap();
            check(set(event, COMPLETE, Some(report), data));
            check(set(event, RUNNING, Some(report), data));
            // Only the callback that was set while the command was running receives this status
            // now.
            assert_eq!(status_of(&calls), RUNNING);
            assert!(calls.try_recv().is_err(), "the command has not ended");
            drop(end);
            assert_eq!([status_of(&calls), status_of(&calls)], [RUNNING, COMPLETE]);
            check(release::<Event>(event));
        }
    }
}
