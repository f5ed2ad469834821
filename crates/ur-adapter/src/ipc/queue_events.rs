//! Functions by which a program signals shared events on a SYCL queue, and makes a SYCL queue wait
//! for them.
//!
//! Libraries on top of SYCL, such as dpctl, do not know the Unified Runtime queue beneath a SYCL
//! queue. The program therefore *attaches* an action to the calling thread, and then submits a
//! barrier or a copy to the SYCL queue. The SYCL runtime calls this adapter on the same thread, and
//! the adapter does the action together with that command. [`UsmFunctions`](super::by_pointer)
//! contains the functions.

use super::HandleBytes;
use super::by_pointer::{enter, state_of};
use crate::abi::boundary::{Out, entry_points};
use crate::abi::failure::{Failure, Result};
use crate::abi::lock::Lock;
use crate::context::ContextState;
use crate::queue::Queue;
use crosshandle::{Command, EventHandle, EventOptions};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use unified_runtime_sys::ur_result_t;

/// The action that signals the event after the command.
const SIGNAL: u32 = 0;
/// The action that makes the command, and all later commands of the queue, wait for the event.
const WAIT: u32 = 1;

/// An event that a program has opened in the context of a SYCL queue.
struct Opened {
    context: Weak<ContextState>,
    event: crosshandle::Event,
}

/// The opened events, by numbers that are never reused.
static OPENED: Lock<BTreeMap<u64, Arc<Opened>>> = Lock::new(BTreeMap::new());

/// An action for the next barrier or copy of a thread.
struct Attached {
    opened: Arc<Opened>,
    action: u32,
    /// The signal to wait for. 0 is the latest signal, or the first one if there is none.
    value: u64,
}

thread_local! {
    /// Whether [`ATTACHED`] contains an action. Every barrier and copy reads this flag.
    static IS_ATTACHED: Cell<bool> = const { Cell::new(false) };
    static ATTACHED: RefCell<Option<Attached>> = const { RefCell::new(None) };
}

entry_points! {
    in enter;

    pub(super) fn open_event(
        beside: *const c_void,
        bytes(data, size): HandleBytes<*const c_void>,
        number: Out<u64>,
    ) {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let handle = EventHandle::from_bytes(bytes).map_err(crosshandle::Error::from)?;
        let (state, _) = state_of(beside)?;
        // As for `urIPCOpenEventHandleExp`, the context's first device opens every event.
        let (_, context) = state.device(0);
        let event = context.open_event(&handle)?;
        let opened = Opened { context: Arc::downgrade(&state), event };
        let new = NUMBERS.fetch_add(1, Ordering::Relaxed);
        OPENED.lock().insert(new, Arc::new(opened));
        number.put(new)
    }

    pub(super) fn close_event(number: u64) {
        let closed = OPENED.lock().remove(&number);
        closed.map(drop).ok_or_else(unknown)
    }

    pub(super) fn attach(number: u64, action: u32, value: u64) {
        if !matches!(action, SIGNAL | WAIT) {
            return Err(Failure::argument("the action is neither 0 (signal) nor 1 (wait)"));
        }
        let opened = OPENED.lock().get(&number).cloned().ok_or_else(unknown)?;
        ATTACHED.replace(Some(Attached { opened, action, value }));
        IS_ATTACHED.set(true);
        Ok(())
    }

    /// Removes the thread's action. Writes 1 if a command has done the action since the thread
    /// attached it, and 0 otherwise.
    pub(super) fn detach(is_done: Out<u32>) {
        is_done.put(u32::from(take().is_none()))
    }
}

fn unknown() -> Failure {
    Failure::argument("no event was opened with this number")
}

fn take() -> Option<Attached> {
    IS_ATTACHED.set(false);
    ATTACHED.take()
}

/// Submits a command by `submit`, together with the thread's attached action if there is one.
///
/// # Errors
/// Returns the error of `submit`. Returns `INVALID_CONTEXT` if the event was opened for another
/// context than the queue's, and an error of a capture that records the queue.
#[inline]
pub(crate) fn with_attached(queue: &Queue, submit: impl FnOnce() -> Result<()>) -> Result<()> {
    match IS_ATTACHED.get() {
        false => submit(),
        true => with(take(), queue, submit),
    }
}

#[cold]
fn with(
    attached: Option<Attached>,
    queue: &Queue,
    submit: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let Some(attached) = attached else {
        return submit();
    };
    if !std::ptr::eq(
        attached.opened.context.as_ptr(),
        Arc::as_ptr(queue.context().state()),
    ) {
        return Err(Failure::new(
            ur_result_t::UR_RESULT_ERROR_INVALID_CONTEXT,
            "the event was opened for the context of another queue",
        ));
    }
    if let Some(capture) = queue.capture_slot().capture() {
        return Err(capture.refuse("a graph does not record an action that a thread has attached"));
    }
    let event = &attached.opened.event;
    if attached.action == SIGNAL {
        submit()?;
        // The command is a barrier, or the queue is in order. So the signal follows the command.
        return Ok(queue.inner().submit(Command::marker().signal(event))?);
    }
    let wait = Command::marker().before_later();
    let wait = match attached.value {
        0 => wait.after(event),
        value => wait.after_value(event, value),
    };
    // A command that signals an event does not fail the next `urQueueFinish` if the awaited process
    // dies. dpctl would end this process then. The program learns of the death from the event.
    let options = EventOptions::new().shareable(false);
    let waited = queue
        .context()
        .on(queue.device())?
        .create_event_with(options)?;
    queue.inner().submit(wait.signal(&waited))?;
    submit()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::enqueue::TABLE;
    use crate::testing::{Scene, check};
    use crosshandle::handle::EVENT_HANDLE_SIZE;
    use std::ptr::{null, null_mut};

    fn barrier(scene: &Scene) -> ur_result_t {
        let barrier = TABLE.pfnEventsWaitWithBarrier.expect("filled");
        // SAFETY: the queue is alive, and the null pointers are allowed.
        unsafe { barrier(scene.queue, 0, null(), null_mut()) }
    }

    #[test]
    fn an_action_is_done_once_and_only_in_its_context() {
        let (scene, other) = (Scene::new(), Scene::new());
        let event = scene.context().first().1.create_event().expect("an event");
        let handle = event.handle().expect("a handle");
        let state = scene.context().state();
        let opened = Opened {
            context: Arc::downgrade(state),
            event: event.clone(),
        };
        let (number, mut is_done) = (u64::MAX, 7);
        OPENED.lock().insert(number, Arc::new(opened));
        // SAFETY: the pointers are valid. `open_event` looks addresses up and never dereferences
        // them.
        unsafe {
            check(attach(number, SIGNAL, 0));
            let refused = barrier(&other);
            assert_eq!(refused, ur_result_t::UR_RESULT_ERROR_INVALID_CONTEXT);
            // The action is removed all the same, and is not done by the next command.
            check(barrier(&scene));
            scene.finish();
            assert_eq!(event.submitted(), 0);
            check(attach(number, SIGNAL, 0));
            check(barrier(&scene));
            check(detach(&mut is_done));
            assert_eq!((is_done, event.submitted()), (1, 1));
            check(attach(number, WAIT, 2));
            check(detach(&mut is_done));
            assert_eq!(is_done, 0);
            check(barrier(&scene));
            scene.finish();
            let argument = ur_result_t::UR_RESULT_ERROR_INVALID_ARGUMENT;
            assert_eq!(attach(number, 2, 0), argument);
            check(close_event(number));
            assert_eq!(close_event(number), argument);
            assert_eq!(attach(number, SIGNAL, 0), argument);
            let bytes = handle.as_bytes().as_ptr().cast();
            let mut opened = 0;
            let unknown = open_event(null(), bytes, EVENT_HANDLE_SIZE, &mut opened);
            assert_eq!(unknown, ur_result_t::UR_RESULT_ERROR_INVALID_MEM_OBJECT);
            let short = open_event(null(), bytes, EVENT_HANDLE_SIZE - 1, &mut opened);
            assert_eq!(short, ur_result_t::UR_RESULT_ERROR_INVALID_VALUE);
        }
    }
}
