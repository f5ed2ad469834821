//! The bytes of handles that users of a context have: `Get` gives them, `Put` takes them back.

use crate::abi::failure::{Failure, Result};
use crate::abi::lock::ShortLock;
use crosshandle::PhysicalMemoryExport;
use crosshandle::handle::HANDLE_SIZE;
use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::NonNull;
use unified_runtime_sys::ur_result_t;

/// Buffers for the handles of a context. One that was put back serves the next `Get`, so that
/// getting and putting allocate nothing as a rule; all are freed with the context.
///
/// `Put` looks its pointer up and never follows it: a pointer to no taken buffer is `INVALID_VALUE`,
/// whatever it points to. The three `Put`s are one: each takes back a handle of
/// any kind.
#[derive(Default)]
pub(crate) struct HandleBuffers {
    buffers: ShortLock<Buffers>,
}

#[derive(Default)]
struct Buffers {
    /// Buffers that users have, by their addresses, each with the export that ends when the buffer is
    /// put back.
    taken: HashMap<usize, (Buffer, Option<Box<PhysicalMemoryExport>>)>,
    /// Buffers that were put back.
    free: Vec<Buffer>,
}

/// The bytes of a handle. Users have pointers to them, so no reference to them is ever made.
struct Buffer(NonNull<[u8; HANDLE_SIZE]>);

// SAFETY: a buffer owns what it points to, as a `Box` does.
unsafe impl Send for Buffer {}

impl Buffer {
    fn new() -> Self {
        Self(NonNull::from(Box::leak(Box::new([0; HANDLE_SIZE]))))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: `new` made the pointer of a box; this is the buffer's only drop, and users of a
        // context don't use the bytes after it.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl HandleBuffers {
    /// Gives the user the bytes of a handle.
    #[inline]
    pub(crate) fn hand_out(&self, bytes: &[u8; HANDLE_SIZE]) -> *mut c_void {
        self.take(bytes, None)
    }

    /// Gives the user the bytes of a handle that becomes stale when they are put back.
    pub(crate) fn hand_out_export(&self, export: PhysicalMemoryExport) -> *mut c_void {
        let bytes = *export.handle().as_bytes();
        self.take(&bytes, Some(Box::new(export)))
    }

    #[inline]
    fn take(
        &self,
        bytes: &[u8; HANDLE_SIZE],
        export: Option<Box<PhysicalMemoryExport>>,
    ) -> *mut c_void {
        let mut buffers = self.buffers.lock();
        let buffer = buffers.free.pop().unwrap_or_else(Buffer::new);
        let start = buffer.0;
        // SAFETY: the buffer is alive, and free, so that no other thread reads or writes it.
        unsafe { start.write(*bytes) };
        buffers.taken.insert(start.addr().get(), (buffer, export));
        start.as_ptr().cast()
    }

    /// Takes bytes back.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a pointer that is not to the bytes of a handle of this context, or to
    /// such as were put back already.
    #[inline]
    pub(crate) fn take_back(&self, data: *const c_void) -> Result<()> {
        let mut buffers = self.buffers.lock();
        let (buffer, export) = buffers.taken.remove(&data.addr()).ok_or_else(|| {
            Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_VALUE,
                "this is not the data of a handle got from this context",
            )
        })?;
        buffers.free.push(buffer);
        // Not under the lock, since ending the export may call the system.
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
                let mut bytes = [0; HANDLE_SIZE];
                bytes[..4].copy_from_slice(&number.to_le_bytes());
                let data = buffers.hand_out(&bytes);
                // SAFETY: it was just handed out.
                assert_eq!(unsafe { data.cast::<[u8; HANDLE_SIZE]>().read() }, bytes);
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
        let other = [0_u8; HANDLE_SIZE];
        assert!(buffers.take_back(other.as_ptr().cast()).is_err());
        let data = buffers.hand_out(&other);
        for offset in [1, HANDLE_SIZE, usize::MAX] {
            assert!(buffers.take_back(data.wrapping_byte_add(offset)).is_err());
        }
        buffers.take_back(data).expect("it was handed out");
    }
}
