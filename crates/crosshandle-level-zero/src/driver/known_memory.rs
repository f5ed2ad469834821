//! Addresses at which memory of this process starts.

use crosshandle_types::sync::Mutex;
use std::collections::BTreeSet;

/// The start addresses of all memory that was allocated or opened in this process.
///
/// A part of an exporter's handle is bytes that only the driver understands. Intel's driver adds a
/// number from these bytes to the address that it opens. A hostile exporter could therefore make
/// this process mistake other memory of its own for the opened memory, and free it on closing.
#[derive(Default)]
pub(crate) struct KnownMemory(Mutex<BTreeSet<usize>>);

impl KnownMemory {
    /// Adds memory. Returns `false` if known memory already starts at this address. This never
    /// happens for memory that was opened correctly, because the driver opens nothing twice at one
    /// address.
    pub(crate) fn add(&self, start: usize) -> bool {
        self.0.lock().insert(start)
    }

    /// Removes memory. Must be called before the memory is freed, because the driver may then give
    /// its address to the next allocation.
    pub(crate) fn remove(&self, start: usize) {
        self.0.lock().remove(&start);
    }
}

#[cfg(test)]
mod tests {
    use super::KnownMemory;

    #[test]
    fn what_was_allocated_is_not_opened() {
        let known = KnownMemory::default();
        assert!(known.add(0x1000));
        assert!(!known.add(0x1000));
        known.remove(0x1000);
        assert!(known.add(0x1000));
    }
}
