//! Buffers for the bytes of handles. `Get` calls return a buffer to the user, and `Put` calls
//! return the buffer to the adapter.

use crate::abi::failure::{Failure, Result};
use crate::abi::lock::ShortLock;
use crosshandle::handle::MEMORY_HANDLE_SIZE;
use crosshandle::virtual_memory::PhysicalMemoryExport;
use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::NonNull;
use unified_runtime_sys::ur_result_t;

/// The handle buffers of a context. A `Get` call reuses a buffer that was returned by `Put`, so
/// both calls rarely allocate or free memory. All buffers are freed with the context.
///
/// A `Put` call looks up its pointer and never dereferences it. If the pointer is not the address
/// of a buffer in use, the result is `INVALID_VALUE`. All three `Put` calls accept handles of any
/// kind.
#[derive(Default)]
pub(crate) struct HandleBuffers {
    buffers: ShortLock<Buffers>,
}

#[derive(Default)]
struct Buffers {
    /// The buffers that users hold, indexed by address. If a buffer has an export, the export ends
    /// when the user returns the buffer.
    taken: HashMap<usize, (Buffer, Option<Box<PhysicalMemoryExport>>)>,
    /// The buffers that users have returned.
    free: Vec<Buffer>,
}

/// A buffer for the bytes of a handle of any kind. Users have pointers to the bytes, so the adapter
/// never creates a Rust reference to them.
struct Buffer(NonNull<[u8; MEMORY_HANDLE_SIZE]>);

// SAFETY: a buffer exclusively owns its memory.
unsafe impl Send for Buffer {}

impl Buffer {
    fn new() -> Self {
        Self(NonNull::from(Box::leak(Box::new([0; MEMORY_HANDLE_SIZE]))))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: `new` obtained the pointer from a box, and the buffer is dropped only once. Users
        // must not use the bytes after their context is destroyed.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl HandleBuffers {
    /// Copies a handle into a buffer, and returns the buffer's address for the user.
    #[inline]
    pub(crate) fn hand_out<const SIZE: usize>(&self, bytes: &[u8; SIZE]) -> *mut c_void {
        self.take(bytes, None)
    }

    /// Copies the handle of an export into a buffer, and returns the buffer's address for the user.
    /// The handle becomes stale when the user returns the buffer.
    pub(crate) fn hand_out_export(&self, export: PhysicalMemoryExport) -> *mut c_void {
        let bytes = *export.handle().as_bytes();
        self.take(&bytes, Some(Box::new(export)))
    }

    #[inline]
    fn take<const SIZE: usize>(
        &self,
        bytes: &[u8; SIZE],
        export: Option<Box<PhysicalMemoryExport>>,
    ) -> *mut c_void {
        const { assert!(SIZE <= MEMORY_HANDLE_SIZE) };
        let mut buffers = self.buffers.lock();
        let buffer = buffers.free.pop().unwrap_or_else(Buffer::new);
        let start = buffer.0;
        // SAFETY: the buffer is alive and has room for `SIZE` bytes, which the assertion shows. No
        // user holds it, so no other thread accesses it.
        unsafe { start.cast::<[u8; SIZE]>().write(*bytes) };
        buffers.taken.insert(start.addr().get(), (buffer, export));
        start.as_ptr().cast()
    }

    /// Takes back a buffer that the user returns.
    ///
    /// # Errors
    /// Returns `INVALID_VALUE` if `data` is not the address of a buffer from this context, or if
    /// the user has already returned the buffer.
    #[inline]
    pub(crate) fn take_back(&self, data: *const c_void) -> Result<()> {
        let mut buffers = self.buffers.lock();
        let (buffer, export) = buffers.taken.remove(&data.addr()).ok_or_else(|| {
            Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_VALUE,
                "this is not the data of a handle that this context returned",
            )
        })?;
        buffers.free.push(buffer);
        // Dropping the export may make a system call, so it happens after the lock is released.
        drop(buffers);
        drop(export);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn buffers_are_distinct_while_taken_and_come_back_when_put() {
        let buffers = HandleBuffers::default();
        for _ in 0..3 {
            let mut taken = HashSet::new();
            for number in 0..1000_u32 {
                let mut bytes = [0; MEMORY_HANDLE_SIZE];
                bytes[..4].copy_from_slice(&number.to_le_bytes());
                let data = buffers.hand_out(&bytes);
                // SAFETY: the pointer was just handed out.
                let found = unsafe { data.cast::<[u8; MEMORY_HANDLE_SIZE]>().read() };
                assert_eq!(found, bytes);
                assert!(taken.insert(data.addr()));
            }
            assert!(
                buffers.buffers.lock().free.is_empty(),
                "put buffers were not reused"
            );
            for data in taken {
                let data = std::ptr::without_provenance(data);
                buffers.take_back(data).expect("it was handed out");
                assert!(buffers.take_back(data).is_err(), "put twice");
            }
        }
    }

    #[test]
    fn what_is_no_buffer_is_refused() {
        let buffers = HandleBuffers::default();
        let other = [0_u8; MEMORY_HANDLE_SIZE];
        assert!(buffers.take_back(other.as_ptr().cast()).is_err());
        let data = buffers.hand_out(&other);
        for offset in [1, MEMORY_HANDLE_SIZE, usize::MAX] {
            assert!(buffers.take_back(data.wrapping_byte_add(offset)).is_err());
        }
        buffers.take_back(data).expect("it was handed out");
    }
}
