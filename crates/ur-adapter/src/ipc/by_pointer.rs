//! Functions that share USM by address, for libraries that are built on SYCL.
//!
//! Python's array libraries know the addresses of their arrays, but not the Unified Runtime
//! context. The functions in this file find the context to which an address belongs, and open
//! memory in that context. The SYCL runtime therefore accepts the address of the opened memory like
//! any other USM pointer. Each adapter exports the function `crosshandle_usm_functions`, which
//! returns a table of these functions.

use super::memory::open_on;
use super::{HandleBytes, queue_events};
use crate::abi::boundary::{self, Call, Out, entry_points};
use crate::abi::failure::{self, Failure, Result};
use crate::context::ContextState;
use crosshandle::handle::MEMORY_HANDLE_SIZE;
use crosshandle::{Error, MemoryHandle};
use std::ffi::{c_char, c_void};
use std::sync::Arc;
use unified_runtime_sys::ur_result_t;

/// The version of [`UsmFunctions`] that this adapter implements.
pub const USM_FUNCTIONS_VERSION: u32 = 2;

/// A table of functions that share USM by address. Any thread may call them. Each function except
/// `error` returns a Unified Runtime result, in which 0 means success.
#[repr(C)]
pub struct UsmFunctions {
    /// The version of this table, [`USM_FUNCTIONS_VERSION`]. In other versions, the fields that
    /// follow may be different.
    version: u32,
    /// Writes a handle for the device allocation that contains `pointer`, and the offset of
    /// `pointer` in that allocation. `size` is the size of the handle in bytes and must be 104.
    handle: unsafe extern "C" fn(
        pointer: *const c_void,
        size: usize,
        handle: *mut [u8; MEMORY_HANDLE_SIZE],
        offset: *mut usize,
    ) -> ur_result_t,
    /// Opens memory by its handle. The memory is opened in the context, and on the device, of the
    /// allocation that contains `beside`. Writes the address of the opened memory and the number of
    /// the context.
    open: unsafe extern "C" fn(
        beside: *const c_void,
        handle: *const c_void,
        size: usize,
        memory: *mut *mut c_void,
        context: *mut u64,
    ) -> ur_result_t,
    /// Closes memory that `open` has opened. Commands that use the memory keep it alive until they
    /// are complete. If the context has been destroyed, its memory is already closed and the result
    /// is `INVALID_CONTEXT`.
    close: unsafe extern "C" fn(context: u64, memory: *mut c_void) -> ur_result_t,
    /// Returns the message of the latest failure on this thread. The text stays valid until the
    /// thread's next failure.
    error: unsafe extern "C" fn() -> *const c_char,
    /// Opens an event by its handle, in the context of the allocation that contains `beside`.
    /// Writes the number by which `attach` and `close_event` identify the event.
    open_event: unsafe extern "C" fn(
        beside: *const c_void,
        handle: *const c_void,
        size: usize,
        event: *mut u64,
    ) -> ur_result_t,
    /// Closes an event that `open_event` has opened. Submitted commands are not affected.
    close_event: unsafe extern "C" fn(event: u64) -> ur_result_t,
    /// Attaches an action to the calling thread. The thread's next barrier or copy of USM does the
    /// action: 0 signals the event after the command. 1 makes the command, and all later commands
    /// of the queue, wait for signal `value`, or for the latest signal if `value` is 0. Replaces an
    /// attached action.
    attach: unsafe extern "C" fn(event: u64, action: u32, value: u64) -> ur_result_t,
    /// Removes the action from the calling thread. Writes 1 if a command has done the action, and 0
    /// otherwise.
    detach: unsafe extern "C" fn(is_done: *mut u32) -> ur_result_t,
}

/// The table of functions that share USM by address.
pub static USM_FUNCTIONS: UsmFunctions = UsmFunctions {
    version: USM_FUNCTIONS_VERSION,
    handle,
    open,
    close,
    error,
    open_event: queue_events::open_event,
    close_event: queue_events::close_event,
    attach: queue_events::attach,
    detach: queue_events::detach,
};

/// Runs the body of a function. If the body fails without a message, adds a message. Otherwise
/// `error` would return the message of an earlier failure.
pub(super) fn enter(body: impl FnOnce(&Call) -> Result<()>) -> ur_result_t {
    boundary::enter(|call| {
        body(call).map_err(|failure| failure.with_text("a required pointer is null"))
    })
}

entry_points! {
    in enter;

    fn handle(
        pointer: *const c_void,
        size: usize,
        written: Out<[u8; MEMORY_HANDLE_SIZE]>,
        offset: Out<usize>,
    ) {
        if size != MEMORY_HANDLE_SIZE {
            return Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_SIZE,
                format!("a handle takes {MEMORY_HANDLE_SIZE} bytes, not {size}"),
            ));
        }
        let (state, inside) = state_of(pointer)?;
        let start = pointer.wrapping_byte_sub(inside);
        let bytes = state.usm.with_handle(start, |bytes| *bytes)?;
        written.put(bytes)?;
        offset.put(inside)
    }

    fn open(
        beside: *const c_void,
        bytes(data, size): HandleBytes<*const c_void>,
        memory: Out<*mut c_void>,
        number: Out<u64>,
    ) {
        let handle = MemoryHandle::from_bytes(bytes).map_err(Error::from)?;
        let (state, _) = state_of(beside)?;
        let device = state.usm.with(beside, |_, found| found.thing.device());
        let (device, context) = state.on_or_first(device.unwrap_or(std::ptr::null_mut()));
        let opened = open_on(context, &handle).map_err(|error| match error {
            // If the exporting process has ended, the result differs from that for an invalid
            // handle. The caller may then request another handle.
            Error::ExporterGone { .. } => Failure::from(error)
                .with_result(ur_result_t::UR_RESULT_ERROR_IN_EVENT_LIST_EXEC_STATUS),
            error => error.into(),
        })?;
        number.put(state.number)?;
        memory.put(state.usm.add_opened(device, opened))
    }

    fn close(context: u64, memory: *mut c_void) {
        let state = ContextState::find(context).ok_or_else(|| {
            Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_CONTEXT,
                "no living context has this number",
            )
        })?;
        state.usm.close(memory).map(drop).ok_or_else(|| {
            Failure::argument("no memory that was opened in this context starts at this address")
        })
    }
}

unsafe extern "C" fn error() -> *const c_char {
    failure::with_last(|text, _| text.as_ptr())
}

/// Returns the context whose memory contains an address, and the offset of the address in its
/// allocation.
///
/// # Errors
/// Returns `INVALID_MEM_OBJECT` if the address is not in the memory of any context.
pub(super) fn state_of(pointer: *const c_void) -> Result<(Arc<ContextState>, usize)> {
    ContextState::all()
        .into_iter()
        .find_map(|state| {
            let inside = state.usm.with(pointer, |offset, _| offset)?;
            Some((state, inside))
        })
        .ok_or_else(|| {
            Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_MEM_OBJECT,
                "this pointer is not inside an allocation of this adapter",
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::usm;
    use crate::testing::{Scene, check};
    use std::ffi::CStr;
    use std::ptr::{null, null_mut};

    const BYTES: usize = 4096;

    /// Allocates memory on the scene's device.
    fn allocate(scene: &Scene) -> *mut c_void {
        let mut memory = null_mut();
        let device = scene.context().first().0.handle();
        let allocate = usm::TABLE.pfnDeviceAlloc.expect("filled");
        // SAFETY: the handles are alive, and the pointers are valid.
        check(unsafe {
            allocate(
                scene.context,
                device,
                null(),
                null_mut(),
                BYTES,
                &mut memory,
            )
        });
        memory
    }

    fn text() -> String {
        // SAFETY: the text is null-terminated, and is valid until the next failure on this thread.
        let text = unsafe { CStr::from_ptr(error()) };
        text.to_str().expect("a text").to_owned()
    }

    fn handle_of(pointer: *const c_void) -> ([u8; MEMORY_HANDLE_SIZE], usize) {
        let (mut bytes, mut offset) = ([0; MEMORY_HANDLE_SIZE], 0);
        // SAFETY: the pointers are valid.
        check(unsafe { handle(pointer, MEMORY_HANDLE_SIZE, &mut bytes, &mut offset) });
        (bytes, offset)
    }

    #[test]
    fn memory_opens_beside_a_pointer_of_another_context() {
        let (maker, taker) = (Scene::new(), Scene::new());
        let (made, beside) = (allocate(&maker), allocate(&taker));
        // SAFETY: the allocation has `BYTES` bytes, and no other thread or command uses it.
        unsafe { made.cast::<u8>().write_bytes(7, BYTES) };
        let (bytes, offset) = handle_of(made.wrapping_byte_add(100));
        assert_eq!(offset, 100);
        let (mut memory, mut number) = (null_mut(), 0);
        // SAFETY: the bytes and the pointers are valid.
        let opened = unsafe {
            let bytes = bytes.as_ptr().cast();
            open(
                beside.wrapping_byte_add(9),
                bytes,
                MEMORY_HANDLE_SIZE,
                &mut memory,
                &mut number,
            )
        };
        check(opened);
        assert_eq!(number, taker.context().state().number);
        // SAFETY: the memory is open and has `BYTES` bytes.
        assert_eq!(unsafe { memory.cast::<u8>().add(BYTES - 1).read() }, 7);
        // A process that shares opened memory again must pass on the handle with which it opened
        // the memory.
        let mut refused = [0; MEMORY_HANDLE_SIZE];
        // SAFETY: the pointers are valid.
        let result = unsafe { handle(memory, MEMORY_HANDLE_SIZE, &mut refused, &mut 0) };
        assert_eq!(result, ur_result_t::UR_RESULT_ERROR_INVALID_ARGUMENT);
        assert!(text().contains("pass that handle on"), "{}", text());
        // SAFETY: no thread or command uses the memory any more.
        unsafe {
            check(close(number, memory));
            let again = close(number, memory);
            assert_eq!(again, ur_result_t::UR_RESULT_ERROR_INVALID_ARGUMENT);
            drop(taker);
            let gone = close(number, memory);
            assert_eq!(gone, ur_result_t::UR_RESULT_ERROR_INVALID_CONTEXT);
        }
    }

    #[test]
    fn what_no_context_knows_is_refused() {
        let scene = Scene::new();
        let made = allocate(&scene);
        let (bytes, _) = handle_of(made);
        let unknown = ur_result_t::UR_RESULT_ERROR_INVALID_MEM_OBJECT;
        let (mut memory, mut number) = (null_mut(), 0);
        let mut damaged = bytes;
        damaged[50] ^= 1;
        let elsewhere = (&raw const number).cast();
        // SAFETY: the pointers for results are valid. The addresses are looked up and never
        // dereferenced.
        unsafe {
            for pointer in [null(), elsewhere, made.wrapping_byte_add(BYTES)] {
                let result = handle(pointer, MEMORY_HANDLE_SIZE, &mut damaged.clone(), &mut 0);
                assert_eq!(result, unknown);
                let start = bytes.as_ptr().cast();
                let result = open(pointer, start, MEMORY_HANDLE_SIZE, &mut memory, &mut number);
                assert_eq!(result, unknown);
            }
            let result = handle(made, MEMORY_HANDLE_SIZE - 1, &mut damaged.clone(), &mut 0);
            assert_eq!(result, ur_result_t::UR_RESULT_ERROR_INVALID_SIZE);
            for (start, size) in [(bytes.as_ptr(), 7), (damaged.as_ptr(), MEMORY_HANDLE_SIZE)] {
                let result = open(made, start.cast(), size, &mut memory, &mut number);
                assert_eq!(result, ur_result_t::UR_RESULT_ERROR_INVALID_VALUE);
                assert!(!text().is_empty());
            }
            let result = handle(made, MEMORY_HANDLE_SIZE, null_mut(), &mut 0);
            assert_eq!(result, ur_result_t::UR_RESULT_ERROR_INVALID_NULL_POINTER);
            assert!(text().contains("is null"), "{}", text());
        }
        assert!(memory.is_null());
    }
}
