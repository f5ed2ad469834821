//! Handles as bytes and as text.

use crate::boundary::{entry, given, list, place, text};
use crate::error::{Failure, Result, crosshandle_result};
use crosshandle::handle::{ChannelHandle, HandleKind};
use crosshandle::{EventHandle, MemoryHandle};
use std::ffi::c_char;
use std::fmt::Display;

/// Size of a memory handle in bytes.
pub const CROSSHANDLE_MEMORY_HANDLE_SIZE: usize = 104;
/// Size of an event handle in bytes.
pub const CROSSHANDLE_EVENT_HANDLE_SIZE: usize = 64;
/// Size of a channel handle in bytes.
pub const CROSSHANDLE_CHANNEL_HANDLE_SIZE: usize = 104;
/// Size of a buffer for the text of any handle, with the terminating zero.
pub const CROSSHANDLE_HANDLE_TEXT_SIZE: usize = 145;

const _: () = {
    assert!(CROSSHANDLE_MEMORY_HANDLE_SIZE == crosshandle::handle::MEMORY_HANDLE_SIZE);
    assert!(CROSSHANDLE_EVENT_HANDLE_SIZE == crosshandle::handle::EVENT_HANDLE_SIZE);
    assert!(CROSSHANDLE_CHANNEL_HANDLE_SIZE == HandleKind::Channel.size());
    assert!(CROSSHANDLE_HANDLE_TEXT_SIZE > HandleKind::Memory.text_length());
    assert!(CROSSHANDLE_HANDLE_TEXT_SIZE > HandleKind::Channel.text_length());
};

/// A handle to memory: the bytes that one process sends to another. A process that has the bytes
/// can open the memory, so send them only to processes that may.
#[repr(C)]
pub struct crosshandle_memory_handle {
    /// The bytes.
    pub bytes: [u8; CROSSHANDLE_MEMORY_HANDLE_SIZE],
}

/// A handle to an event: the bytes that one process sends to another. A process that has the bytes
/// can open the event, so send them only to processes that may.
#[repr(C)]
pub struct crosshandle_event_handle {
    /// The bytes.
    pub bytes: [u8; CROSSHANDLE_EVENT_HANDLE_SIZE],
}

/// A handle to a channel: the bytes that one process sends to another. A process that has the bytes
/// can open the channel, so send them only to processes that may.
#[repr(C)]
pub struct crosshandle_channel_handle {
    /// The bytes.
    pub bytes: [u8; CROSSHANDLE_CHANNEL_HANDLE_SIZE],
}

impl crosshandle_memory_handle {
    pub(crate) fn new(handle: &MemoryHandle) -> Self {
        let bytes = *handle.as_bytes();
        Self { bytes }
    }

    /// Checks every field of a handle.
    pub(crate) unsafe fn read(handle: *const Self) -> Result<MemoryHandle> {
        // SAFETY: promised by the caller.
        let handle = unsafe { given(handle) }?;
        Ok(MemoryHandle::from_bytes(&handle.bytes)?)
    }
}

impl crosshandle_event_handle {
    pub(crate) fn new(handle: &EventHandle) -> Self {
        let bytes = *handle.as_bytes();
        Self { bytes }
    }

    /// Checks every field of a handle.
    pub(crate) unsafe fn read(handle: *const Self) -> Result<EventHandle> {
        // SAFETY: promised by the caller.
        let handle = unsafe { given(handle) }?;
        Ok(EventHandle::from_bytes(&handle.bytes)?)
    }
}

impl crosshandle_channel_handle {
    pub(crate) fn new(handle: &ChannelHandle) -> Self {
        let bytes = *handle.as_bytes();
        Self { bytes }
    }

    /// Checks every field of a handle.
    pub(crate) unsafe fn read(handle: *const Self) -> Result<ChannelHandle> {
        // SAFETY: promised by the caller.
        let handle = unsafe { given(handle) }?;
        Ok(ChannelHandle::from_bytes(&handle.bytes)?)
    }
}

/// Writes the text of a handle and a terminating zero to the program's buffer.
pub(crate) unsafe fn put_handle_text(
    handle: &dyn Display,
    to: *mut c_char,
    size: usize,
) -> Result<()> {
    if to.is_null() {
        return Err(Failure::NULL);
    }
    let text = format!("{handle}\0");
    if size < text.len() {
        return Err(Failure::invalid(
            "the buffer needs CROSSHANDLE_HANDLE_TEXT_SIZE bytes",
        ));
    }
    // SAFETY: the caller's pointer is valid for writes of `size` bytes, which hold the text.
    unsafe {
        to.cast::<u8>()
            .copy_from_nonoverlapping(text.as_ptr(), text.len())
    };
    Ok(())
}

/// Checks `size` bytes that another process has sent, and copies them to a memory handle.
///
/// Errors: `CROSSHANDLE_BAD_HANDLE` if they are not a memory handle. This call does not show
/// whether the memory still exists.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_memory_handle_from_bytes(
    bytes: *const u8,
    size: usize,
    handle: *mut crosshandle_memory_handle,
) -> crosshandle_result {
    entry! {
        let handle = place(handle)?;
        let checked = MemoryHandle::from_bytes(list(bytes, size)?)?;
        handle.write(crosshandle_memory_handle::new(&checked));
        Ok(())
    }
}

/// Converts the text of a memory handle to a handle.
///
/// Errors: `CROSSHANDLE_BAD_HANDLE` if the text is not a memory handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_memory_handle_from_text(
    word: *const c_char,
    handle: *mut crosshandle_memory_handle,
) -> crosshandle_result {
    entry! {
        let handle = place(handle)?;
        let checked: MemoryHandle = text(word)?.parse()?;
        handle.write(crosshandle_memory_handle::new(&checked));
        Ok(())
    }
}

/// Writes the text of a memory handle to a buffer of `size` bytes, with a terminating zero. A
/// buffer of `CROSSHANDLE_HANDLE_TEXT_SIZE` bytes is large enough.
///
/// Errors: `CROSSHANDLE_BAD_HANDLE` for damaged bytes, and `CROSSHANDLE_INVALID_ARGUMENT` for a
/// buffer that is too small.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_memory_handle_to_text(
    handle: *const crosshandle_memory_handle,
    text: *mut c_char,
    size: usize,
) -> crosshandle_result {
    entry!(put_handle_text(
        &crosshandle_memory_handle::read(handle)?,
        text,
        size
    ))
}

/// Returns the number of bytes of memory that a handle grants access to. Returns 0 for damaged
/// bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_memory_handle_length(
    handle: *const crosshandle_memory_handle,
) -> u64 {
    crate::boundary::entry_value!(or 0; Ok(crosshandle_memory_handle::read(handle)?.len()))
}

/// Checks `size` bytes that another process has sent, and copies them to an event handle.
///
/// Errors: `CROSSHANDLE_BAD_HANDLE` if they are not an event handle. This call does not show
/// whether the event still exists.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_event_handle_from_bytes(
    bytes: *const u8,
    size: usize,
    handle: *mut crosshandle_event_handle,
) -> crosshandle_result {
    entry! {
        let handle = place(handle)?;
        let checked = EventHandle::from_bytes(list(bytes, size)?)?;
        handle.write(crosshandle_event_handle::new(&checked));
        Ok(())
    }
}

/// Converts the text of an event handle to a handle.
///
/// Errors: `CROSSHANDLE_BAD_HANDLE` if the text is not an event handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_event_handle_from_text(
    word: *const c_char,
    handle: *mut crosshandle_event_handle,
) -> crosshandle_result {
    entry! {
        let handle = place(handle)?;
        let checked: EventHandle = text(word)?.parse()?;
        handle.write(crosshandle_event_handle::new(&checked));
        Ok(())
    }
}

/// Writes the text of an event handle to a buffer of `size` bytes, with a terminating zero. A
/// buffer of `CROSSHANDLE_HANDLE_TEXT_SIZE` bytes is large enough.
///
/// Errors: `CROSSHANDLE_BAD_HANDLE` for damaged bytes, and `CROSSHANDLE_INVALID_ARGUMENT` for a
/// buffer that is too small.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_event_handle_to_text(
    handle: *const crosshandle_event_handle,
    text: *mut c_char,
    size: usize,
) -> crosshandle_result {
    entry!(put_handle_text(
        &crosshandle_event_handle::read(handle)?,
        text,
        size
    ))
}

/// Checks `size` bytes that another process has sent, and copies them to a channel handle.
///
/// Errors: `CROSSHANDLE_BAD_HANDLE` if they are not a channel handle. This call does not show
/// whether the channel still exists.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_channel_handle_from_bytes(
    bytes: *const u8,
    size: usize,
    handle: *mut crosshandle_channel_handle,
) -> crosshandle_result {
    entry! {
        let handle = place(handle)?;
        let checked = ChannelHandle::from_bytes(list(bytes, size)?)?;
        handle.write(crosshandle_channel_handle::new(&checked));
        Ok(())
    }
}

/// Converts the text of a channel handle to a handle.
///
/// Errors: `CROSSHANDLE_BAD_HANDLE` if the text is not a channel handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_channel_handle_from_text(
    word: *const c_char,
    handle: *mut crosshandle_channel_handle,
) -> crosshandle_result {
    entry! {
        let handle = place(handle)?;
        let checked: ChannelHandle = text(word)?.parse()?;
        handle.write(crosshandle_channel_handle::new(&checked));
        Ok(())
    }
}

/// Writes the text of a channel handle to a buffer of `size` bytes, with a terminating zero. A
/// buffer of `CROSSHANDLE_HANDLE_TEXT_SIZE` bytes is large enough.
///
/// Errors: `CROSSHANDLE_BAD_HANDLE` for damaged bytes, and `CROSSHANDLE_INVALID_ARGUMENT` for a
/// buffer that is too small.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_channel_handle_to_text(
    handle: *const crosshandle_channel_handle,
    text: *mut c_char,
    size: usize,
) -> crosshandle_result {
    entry!(put_handle_text(
        &crosshandle_channel_handle::read(handle)?,
        text,
        size
    ))
}
