//! The bytes of handles that a context's users have: what `Get` gives and `Put` takes back.

use crate::failure::{Failure, Result};
use crate::lock::ShortLock;
use crosshandle::PhysicalMemoryExport;
use crosshandle::handle::HANDLE_SIZE;
use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::mem;
use unified_runtime_sys::ur_result_t;

/// Buffers for the handles of a context. One that was put back serves the next `Get`, so that
/// getting and putting allocate nothing as a rule; all are freed with the context.
///
/// `Put` looks its pointer up and never follows it: what is no buffer that somebody has is
/// `INVALID_VALUE`, whatever it points to. The three `Put`s are one: each takes back a handle of
/// any kind.
#[derive(Default)]
pub(crate) struct HandleBuffers {
    slab: ShortLock<Slab>,
}

struct Slab {
    /// Each twice as long as the one before. They stay where they are: users have pointers.
    chunks: Vec<Chunk>,
    /// The first of the list of free buffers.
    free: u32,
    /// What goes when a buffer is put back, by its number.
    exports: HashMap<u32, PhysicalMemoryExport>,
}

struct Chunk {
    /// Only touched here while free; whoever has a buffer may read it at any time.
    buffers: Vec<UnsafeCell<[u8; HANDLE_SIZE]>>,
    /// For each, the next one of the list that it is on, or that somebody has it.
    states: Vec<u32>,
}

/// The state of a buffer that somebody has.
const TAKEN: u32 = u32::MAX;
/// The end of the list.
const END: u32 = u32::MAX - 1;

/// Buffers in the first chunk.
const FIRST: usize = 64;

impl Default for Slab {
    fn default() -> Self {
        Self {
            chunks: Vec::new(),
            free: END,
            exports: HashMap::new(),
        }
    }
}

impl HandleBuffers {
    /// Gives the user the bytes of a handle.
    #[inline]
    pub(crate) fn hand_out(&self, bytes: &[u8; HANDLE_SIZE]) -> *mut c_void {
        self.slab.lock().take(bytes).1
    }

    /// Gives the user the bytes of a handle that shall be stale when they are put back.
    pub(crate) fn hand_out_export(&self, export: PhysicalMemoryExport) -> *mut c_void {
        let mut slab = self.slab.lock();
        let (number, buffer) = slab.take(export.handle().as_bytes());
        slab.exports.insert(number, export);
        buffer
    }

    /// Takes bytes back.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a pointer that is not to the bytes of a handle of this context, or to
    /// such as were put back already.
    #[inline]
    pub(crate) fn take_back(&self, data: *const c_void) -> Result<()> {
        // Dropped after the lock, since it may call the system.
        let _export = self.slab.lock().put(data.addr()).ok_or_else(|| {
            Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_VALUE,
                "this is not the data of a handle got from this context",
            )
        })?;
        Ok(())
    }
}

impl Slab {
    /// A buffer with these bytes, and its number.
    #[inline]
    fn take(&mut self, bytes: &[u8; HANDLE_SIZE]) -> (u32, *mut c_void) {
        if self.free == END {
            self.grow();
        }
        let number = self.free;
        let (chunk, place) = self.at(number);
        let buffer = chunk.buffers[place].get();
        // SAFETY: the buffer is on the list of free ones, so nobody else has it.
        unsafe { buffer.write(*bytes) };
        self.free = mem::replace(&mut chunk.states[place], TAKEN);
        (number, buffer.cast())
    }

    /// Frees the buffer at an address, if somebody has it, and returns what goes with it.
    #[inline]
    fn put(&mut self, address: usize) -> Option<Option<PhysicalMemoryExport>> {
        let mut first = 0;
        for chunk in &mut self.chunks {
            let offset = address.wrapping_sub(chunk.buffers.as_ptr().addr());
            let place = offset / HANDLE_SIZE;
            let Some(state) = chunk.states.get_mut(place) else {
                first += chunk.states.len();
                continue;
            };
            if !offset.is_multiple_of(HANDLE_SIZE) || *state != TAKEN {
                return None;
            }
            let number = (first + place) as u32;
            *state = mem::replace(&mut self.free, number);
            if self.exports.is_empty() {
                return Some(None);
            }
            return Some(self.exports.remove(&number));
        }
        None
    }

    /// One more chunk, all of whose buffers are free.
    #[cold]
    fn grow(&mut self) {
        let len = FIRST << self.chunks.len();
        let first = len - FIRST;
        let next = (first + 1..first + len).map(|number| number as u32);
        self.chunks.push(Chunk {
            buffers: (0..len)
                .map(|_| UnsafeCell::new([0; HANDLE_SIZE]))
                .collect(),
            states: next.chain([self.free]).collect(),
        });
        self.free = first as u32;
    }

    /// Where a buffer is.
    #[inline]
    fn at(&mut self, number: u32) -> (&mut Chunk, usize) {
        let number = number as usize + FIRST;
        let chunk = (number / FIRST).ilog2() as usize;
        (&mut self.chunks[chunk], number - (FIRST << chunk))
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
                buffers.slab.lock().chunks.len() <= 5,
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
        for offset in [1, HANDLE_SIZE, FIRST * HANDLE_SIZE, usize::MAX] {
            assert!(buffers.take_back(data.wrapping_byte_add(offset)).is_err());
        }
        buffers.take_back(data).expect("it was handed out");
    }
}
