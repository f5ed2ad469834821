//! What a driver may use for as long as the process lives, since nobody will know when it is done
//! with it: after it refused half a command, or when a list waits for ever.
//!
//! Whoever owns such memory still lets go of it: it is in no command's use that could end. So what
//! is left is counted here, and not among the users.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

type KeepAlive = Arc<dyn Any + Send + Sync>;

static LEFT: Mutex<Vec<KeepAlive>> = Mutex::new(Vec::new());
/// Whether there is any, so that hardly anybody takes the lock.
static IS_ANY: AtomicBool = AtomicBool::new(false);

/// Keeps something for ever.
pub(crate) fn leave(keep: KeepAlive) {
    let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    left.push(keep);
    IS_ANY.store(true, Ordering::Release);
}

/// How often an object is kept here.
pub(crate) fn count<T>(object: &Arc<T>) -> usize {
    if !IS_ANY.load(Ordering::Acquire) {
        return 0;
    }
    let left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    let address = Arc::as_ptr(object).addr();
    let is_it = |keep: &&KeepAlive| Arc::as_ptr(keep).cast::<()>().addr() == address;
    left.iter().filter(is_it).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_counted_and_kept() {
        let (object, other) = (Arc::new(1), Arc::new(2));
        leave(Arc::clone(&object) as _);
        leave(Arc::clone(&object) as _);
        assert_eq!((count(&object), count(&other)), (2, 0));
        let weak = Arc::downgrade(&object);
        drop(object);
        assert!(weak.upgrade().is_some());
    }
}
