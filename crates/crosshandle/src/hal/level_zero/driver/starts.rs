//! Where memory starts that this process has of a driver.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What was allocated and opened here. An exporter's handle is partly bytes that only the driver
/// understands, and Intel's adds a number in it, unseen, to the address that it opens. So whoever
/// makes handles up could have this process take other memory of its own for what was opened, and
/// end that with it.
#[derive(Default)]
pub(crate) struct Starts(Mutex<HashSet<usize>>);

impl Starts {
    fn starts(&self) -> MutexGuard<'_, HashSet<usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is none that is known; it is from now on. What is opened starts nowhere else: the
    /// driver opens nothing twice at one address.
    pub(crate) fn add(&self, start: usize) -> bool {
        self.starts().insert(start)
    }

    /// Before the memory ends, since the driver may give its address to the next.
    pub(crate) fn remove(&self, start: usize) {
        self.starts().remove(&start);
    }
}

#[cfg(test)]
mod tests {
    use super::Starts;

    #[test]
    fn what_was_allocated_is_not_opened() {
        let starts = Starts::default();
        assert!(starts.add(0x1000));
        assert!(!starts.add(0x1000));
        starts.remove(0x1000);
        assert!(starts.add(0x1000));
    }
}
