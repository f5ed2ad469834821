//! Addresses at which memory of this process starts.

use crate::sync::Mutex;
use std::collections::BTreeSet;

/// The starts of all memory that was allocated and opened in this process.
///
/// An exporter's handle is partly bytes that only the driver understands, and Intel's driver adds a
/// number in it to the address that it opens. So a hostile exporter could have this process take other
/// memory of its own for the opened one, and free it on closing.
#[derive(Default)]
pub(crate) struct KnownMemory(Mutex<BTreeSet<usize>>);

impl KnownMemory {
    /// Notes memory; returns `false` if memory is known to start there. Opened memory never does: the
    /// driver opens nothing twice at one address.
    pub(crate) fn add(&self, start: usize) -> bool {
        self.0.lock().insert(start)
    }

    /// Forgets memory. To be called before it is freed, since the driver may then give its address to
    /// the next allocation.
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
