//! Objects that a driver may use for the rest of the process's life.
//!
//! If a driver refused half of a command, or if a command list waits forever, no process can tell
//! when the driver has finished with the command's memory. This module leaks that memory.
//! `Memory::is_in_use` subtracts the number of leaked uses. No command that can end uses leaked
//! memory, so the owner of the memory need not wait.

use crosshandle_os::fork::PerProcess;
use crosshandle_types::sync::Mutex;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

type KeepAlive = Arc<dyn Any + Send + Sync>;

static LEAKED: PerProcess<Mutex<Vec<KeepAlive>>> = PerProcess::new(Mutex::default);
/// Whether anything was leaked. While nothing was leaked, `count` needs no lock.
static IS_ANY: AtomicBool = AtomicBool::new(false);

/// Keeps an object until the process ends.
pub fn leak(keep: KeepAlive) {
    LEAKED.lock().push(keep);
    IS_ANY.store(true, Ordering::Release);
}

/// Returns the number of times that an object was leaked.
pub fn count<T>(object: &Arc<T>) -> usize {
    if !IS_ANY.load(Ordering::Acquire) {
        return 0;
    }
    let leaked = LEAKED.lock();
    let address = Arc::as_ptr(object).addr();
    let is_it = |keep: &&KeepAlive| Arc::as_ptr(keep).cast::<()>().addr() == address;
    leaked.iter().filter(is_it).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_leaked_is_counted_and_kept() {
        let (object, other) = (Arc::new(1), Arc::new(2));
        leak(Arc::clone(&object) as _);
        leak(Arc::clone(&object) as _);
        assert_eq!((count(&object), count(&other)), (2, 0));
        let weak = Arc::downgrade(&object);
        drop(object);
        assert!(weak.upgrade().is_some());
    }
}
