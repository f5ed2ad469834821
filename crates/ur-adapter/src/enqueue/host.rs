//! Commands of the host: functions, and timestamps.

use super::Submission;
use crate::boundary::{enter, list, not_null};
use crate::failure::Failure;
use crosshandle::Command;
use std::cell::Cell;
use std::convert::Infallible;
use std::ffi::c_void;
use std::thread;
use std::time::{Duration, Instant};
use unified_runtime_sys::{
    UR_EXP_ENQUEUE_NATIVE_COMMAND_FLAGS_MASK, UR_EXP_HOST_TASK_FLAGS_MASK, ur_bool_t, ur_command_t,
    ur_event_handle_t, ur_exp_enqueue_native_command_function_t,
    ur_exp_enqueue_native_command_properties_t, ur_exp_host_task_function_t,
    ur_exp_host_task_properties_t, ur_mem_handle_t, ur_queue_handle_t, ur_result_t,
};

/// A function of the caller's, and what to pass to it.
struct Task {
    function: unsafe extern "C" fn(*mut c_void),
    data: *mut c_void,
}

// SAFETY: the data is only passed to the function; whoever passed both has it called from a thread
// of the queue, as UR does.
unsafe impl Send for Task {}

thread_local! {
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread runs a function for a queue, which does nothing else meanwhile.
fn is_inside_a_queue() -> bool {
    IS_INSIDE.get()
}

/// Waits while commands use something; not at all in a function of a queue, which they may be
/// behind.
pub(crate) fn wait_while(is_in_use: impl Fn() -> bool) {
    let began = Instant::now();
    while is_in_use() && !is_inside_a_queue() {
        // Late by an eighth of the time at most, which costs next to no time of the CPU.
        let nap = began.elapsed() / 8;
        thread::sleep(nap.clamp(Duration::from_micros(20), Duration::from_millis(1)));
    }
}

impl Task {
    fn run(self) -> Result<(), Infallible> {
        IS_INSIDE.set(true);
        // SAFETY: the caller of `urEnqueueHostTaskExp` vouches for the function.
        unsafe { (self.function)(self.data) };
        IS_INSIDE.set(false);
        Ok(())
    }
}

pub(super) unsafe extern "C" fn task(
    queue: ur_queue_handle_t,
    function: ur_exp_host_task_function_t,
    data: *mut c_void,
    properties: *const ur_exp_host_task_properties_t,
    count: u32,
    waits: *const ur_event_handle_t,
    event: *mut ur_event_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes handles and a place for one.
        let submission = unsafe { Submission::new(queue, count, waits, event) }?;
        let function = function.ok_or(Failure::NULL_POINTER)?;
        // SAFETY: the caller passes null or properties.
        let flags = unsafe { properties.as_ref() }.map_or(0, |properties| properties.flags);
        if flags & UR_EXP_HOST_TASK_FLAGS_MASK != 0 {
            return Err(Failure::ENUMERATION);
        }
        let task = Task { function, data };
        let command = Command::call(move || task.run());
        submission.submit(ur_command_t::UR_COMMAND_HOST_TASK_EXP, command, false)
    })
}

/// The function is called here and now. What it submits to the queue runs after the events to wait
/// for and before the event.
pub(super) unsafe extern "C" fn native_command(
    handle: ur_queue_handle_t,
    function: ur_exp_enqueue_native_command_function_t,
    data: *mut c_void,
    buffer_count: u32,
    buffers: *const ur_mem_handle_t,
    properties: *const ur_exp_enqueue_native_command_properties_t,
    count: u32,
    waits: *const ur_event_handle_t,
    event: *mut ur_event_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes handles and a place for one.
        let submission = unsafe { Submission::new(handle, count, waits, event) }?;
        let function = function.ok_or(Failure::NULL_POINTER)?;
        // SAFETY: the caller passes null or properties.
        let flags = unsafe { properties.as_ref() }.map_or(0, |properties| properties.flags);
        if flags & UR_EXP_ENQUEUE_NATIVE_COMMAND_FLAGS_MASK != 0 {
            return Err(Failure::ENUMERATION);
        }
        // SAFETY: the caller passes this many handles. What is done to buffers is done by commands,
        // so there is nothing to prepare.
        unsafe { list(buffers, buffer_count as usize) }?;
        let queue = submission.queue().inner();
        let mut before = Command::marker().before_later();
        if queue.native().is_some() {
            // What the function finds in the driver's queue is the place of barriers.
            before = before.after_earlier();
        }
        let before = submission.after_waits(before)?;
        queue.submit(before)?;
        // SAFETY: the caller vouches for the function.
        unsafe { function(handle, data) };
        if !submission.wants_event() {
            return Ok(());
        }
        let kind = ur_command_t::UR_COMMAND_ENQUEUE_NATIVE_EXP;
        submission
            .without_waits()
            .submit(kind, Command::marker().after_earlier(), false)
    })
}

pub(super) unsafe extern "C" fn timestamp(
    queue: ur_queue_handle_t,
    is_blocking: ur_bool_t,
    count: u32,
    waits: *const ur_event_handle_t,
    event: *mut ur_event_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes handles and a place for one.
        let submission = unsafe { Submission::new(queue, count, waits, event) }?;
        not_null(event)?;
        let kind = ur_command_t::UR_COMMAND_TIMESTAMP_RECORDING_EXP;
        submission
            .with_timestamps()
            .submit(kind, Command::marker(), is_blocking != 0)
    })
}
