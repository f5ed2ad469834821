//! Callbacks.
//!
//! One thread waits for all events that somebody wants to be called back for, and calls one
//! function after the other, without a lock. It is started when it is needed, and ends when it has
//! had nothing to do for a while. Functions may do anything: call the adapter, release the event,
//! ask to be called again. It waits as everybody does, so that a command that fails and a process
//! that dies call back too, and nothing keeps the process from ending.

use super::Event;
use crate::boundary::enter;
use crate::failure::{Failure, Result};
use crate::object::{Ref, Shared};
use crosshandle::EventOptions;
use std::ffi::c_void;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use unified_runtime_sys::{
    ur_event_callback_t, ur_event_handle_t, ur_event_status_t, ur_execution_info_t, ur_result_t,
};

/// How long the thread stays without anything to do.
const IDLE: Duration = Duration::from_secs(1);
/// How often it looks where it cannot wait.
const POLL: Duration = Duration::from_millis(1);

/// Somebody to be called back.
struct Callback {
    /// Kept, whatever the caller releases, until the function has returned.
    event: Ref<Event>,
    /// The signal that was the latest when the callback was set.
    signal: u64,
    status: ur_execution_info_t,
    function: unsafe extern "C" fn(ur_event_handle_t, ur_execution_info_t, *mut c_void),
    user_data: *mut c_void,
}

// SAFETY: the user data is only passed to the function; whoever set both has it called from a
// thread of ours, as UR does.
unsafe impl Send for Callback {}

/// What the thread is told.
struct Inbox {
    added: Vec<Callback>,
    has_thread: bool,
    /// Ends the thread's wait for events, while it waits for some.
    bell: Option<crosshandle::Event>,
}

static INBOX: Mutex<Inbox> = Mutex::new(Inbox {
    added: Vec::new(),
    has_thread: false,
    bell: None,
});

/// Notified of what is added.
static ADDED: Condvar = Condvar::new();

fn inbox() -> MutexGuard<'static, Inbox> {
    INBOX.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) unsafe extern "C" fn set(
    handle: ur_event_handle_t,
    status: ur_execution_info_t,
    function: ur_event_callback_t,
    user_data: *mut c_void,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes an event's handle.
        let event = unsafe { Shared::<Event>::from_handle(handle) }?;
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
        })
    })
}

fn add(callback: Callback) -> Result<()> {
    let mut inbox = inbox();
    if !inbox.has_thread {
        std::thread::Builder::new()
            .name("crosshandle-call".into())
            .spawn(run)
            .map_err(|error| {
                Failure::new(
                    ur_result_t::UR_RESULT_ERROR_OUT_OF_RESOURCES,
                    format!("the thread for callbacks cannot be started: {error}"),
                )
            })?;
        inbox.has_thread = true;
    }
    inbox.added.push(callback);
    match &inbox.bell {
        // It has been rung already if this fails.
        Some(bell) => drop(bell.signal()),
        None => ADDED.notify_one(),
    }
    Ok(())
}

/// The thread.
fn run() {
    let mut waiting: Vec<Callback> = Vec::new();
    loop {
        let mut inbox = inbox();
        if waiting.is_empty() {
            let is_idle = |inbox: &mut Inbox| inbox.added.is_empty();
            let waited = ADDED.wait_timeout_while(inbox, IDLE, is_idle);
            inbox = waited.unwrap_or_else(PoisonError::into_inner).0;
            if inbox.added.is_empty() {
                inbox.has_thread = false;
                return;
            }
        }
        waiting.append(&mut inbox.added);
        drop(inbox);
        let (due, later): (Vec<_>, _) = waiting
            .into_iter()
            .partition(|callback| callback.outcome().is_some());
        waiting = later;
        due.into_iter().for_each(Callback::call);
        wait_for_change(&waiting);
    }
}

/// Waits until something happened to one of the events, or something is added.
fn wait_for_change(waiting: &[Callback]) {
    let Some(first) = waiting.first() else {
        return;
    };
    let (_, context) = first.event.context().first();
    // The thread has time: it need not spin.
    let options = EventOptions::new().shareable(false).low_power(true);
    let Ok(bell) = context.create_event_with(options) else {
        // A million events are alive. One of them may go.
        std::thread::sleep(POLL);
        return;
    };
    let mut inbox_now = inbox();
    if !inbox_now.added.is_empty() {
        return;
    }
    inbox_now.bell = Some(bell.clone());
    drop(inbox_now);
    let events: Vec<_> = std::iter::once((&bell, 1))
        .chain(
            waiting
                .iter()
                .map(|callback| (callback.event.inner(), callback.signal)),
        )
        .collect();
    // Whatever ended the wait, an error too, is found by looking again.
    let _ = crosshandle::Event::wait_any_value(&events, None);
    inbox().bell = None;
}

impl Callback {
    /// With what status to call, if it is time.
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

    fn call(self) {
        let status = self.outcome().unwrap_or(self.status);
        // SAFETY: the caller of `urEventSetCallback` vouches for the function; the event is alive.
        unsafe { (self.function)(self.event.handle(), status, self.user_data) };
    }
}
