//! Where memory known_memory that this process has of a driver.

use crate::sync::{Mutex, MutexGuard};
use std::collections::HashSet;

/// What was allocated and opened here. An exporter's handle is partly bytes that only the driver
/// understands, and Intel's adds a number in it, unseen, to the address that it opens. So whoever
/// makes handles up could have this process take other memory of its own for what was opened, and
/// end that with it.
#[derive(Default)]
pub(crate) struct KnownMemory(Mutex<HashSet<usize>>);

impl KnownMemory {
    fn known_memory(&self) -> MutexGuard<'_, HashSet<usize>> {
        self.0.lock()
    }

    /// Whether it is none that is known; it is from now on. What is opened known_memory nowhere else: the
    /// driver opens nothing twice at one address.
    pub(crate) fn add(&self, start: usize) -> bool {
        self.known_memory().insert(start)
    }

    /// Before the memory ends, since the driver may give its address to the next.
    pub(crate) fn remove(&self, start: usize) {
        self.known_memory().remove(&start);
    }
}

#[cfg(test)]
mod tests {
    use super::KnownMemory;

    #[test]
    fn what_was_allocated_is_not_opened() {
        let known_memory = KnownMemory::default();
        assert!(known_memory.add(0x1000));
        assert!(!known_memory.add(0x1000));
        known_memory.remove(0x1000);
        assert!(known_memory.add(0x1000));
    }
}
