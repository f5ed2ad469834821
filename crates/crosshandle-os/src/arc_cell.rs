//! A cell for at most one shared object, which threads exchange without a lock.

use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A cell that holds at most one [`Arc`]. Putting an object in and taking it out are one atomic
/// operation each.
pub struct ArcCell<T> {
    /// The pointer of [`Arc::into_raw`], null if the cell is empty, or [`closed`].
    held: AtomicPtr<T>,
    _owns: PhantomData<Arc<T>>,
}

/// Returns the pointer of a closed cell. No object has this address, because an `Arc` aligns its
/// object's counts to more than one byte.
fn closed<T>() -> *mut T {
    ptr::without_provenance_mut(1)
}

impl<T> ArcCell<T> {
    /// Makes an empty cell.
    pub const fn new() -> Self {
        Self {
            held: AtomicPtr::new(ptr::null_mut()),
            _owns: PhantomData,
        }
    }

    /// Takes the object out of the cell, if there is one.
    #[inline]
    pub fn take(&self) -> Option<Arc<T>> {
        let held = self.held.load(Ordering::Relaxed);
        if held.is_null() || held == closed() {
            return None;
        }
        let taken =
            self.held
                .compare_exchange(held, ptr::null_mut(), Ordering::Acquire, Ordering::Relaxed);
        // SAFETY: `put` stored this pointer of `Arc::into_raw`, and the exchange has removed it, so
        // no other thread makes an `Arc` of it.
        taken.ok().map(|held| unsafe { Arc::from_raw(held) })
    }

    /// Puts an object into the cell that `cell` returns, which may be part of the object itself.
    /// Returns the object if the cell is closed or has one already.
    #[inline]
    pub fn put(object: Arc<T>, cell: impl FnOnce(&T) -> &Self) -> Result<(), Arc<T>> {
        let held = Arc::into_raw(object);
        // SAFETY: the pointer is that of an `Arc` whose count this function owns.
        let cell = &raw const cell(unsafe { &*held }).held;
        // SAFETY: the object keeps its cell alive until the exchange has stored the pointer. After
        // that, another thread may drop both, and nothing here uses them. An atomic operation may
        // free its own operand in this way, because a reference to an `UnsafeCell` does not assert
        // that the memory outlives the call.
        let stored = unsafe { &*cell }.compare_exchange(
            ptr::null_mut(),
            held.cast_mut(),
            Ordering::Release,
            Ordering::Relaxed,
        );
        match stored {
            Ok(_) => Ok(()),
            // SAFETY: the pointer is of `Arc::into_raw`, and was not stored.
            Err(_) => Err(unsafe { Arc::from_raw(held) }),
        }
    }

    /// Closes the cell for all later objects, and returns the object in it.
    pub fn close(&self) -> Option<Arc<T>> {
        let held = self.held.swap(closed(), Ordering::AcqRel);
        let is_object = !held.is_null() && held != closed();
        // SAFETY: as in `take`.
        is_object.then(|| unsafe { Arc::from_raw(held) })
    }
}

impl<T> Drop for ArcCell<T> {
    fn drop(&mut self) {
        drop(self.close());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// An object that contains the cell that it is put into.
    struct Item {
        cell: Arc<ArcCell<Item>>,
        number: u64,
    }

    fn put(item: Arc<Item>) -> Result<(), Arc<Item>> {
        ArcCell::put(item, |item| &item.cell)
    }

    fn item(cell: &Arc<ArcCell<Item>>, number: u64) -> Arc<Item> {
        let cell = Arc::clone(cell);
        Arc::new(Item { cell, number })
    }

    #[test]
    fn a_cell_holds_one_object() {
        let cell = Arc::new(ArcCell::new());
        assert!(cell.take().is_none());
        assert!(put(item(&cell, 1)).is_ok());
        assert_eq!(put(item(&cell, 2)).err().map(|item| item.number), Some(2));
        assert_eq!(cell.take().map(|item| item.number), Some(1));
        assert!(cell.take().is_none());
        assert!(put(item(&cell, 3)).is_ok());
        assert_eq!(cell.close().map(|item| item.number), Some(3));
        assert!(put(item(&cell, 4)).is_err());
        assert!(cell.take().is_none() && cell.close().is_none());
        assert_eq!(Arc::strong_count(&cell), 1, "no object is left");
    }

    /// Every object is taken by one thread, even if the last object drops the cell.
    #[test]
    fn threads_take_each_object_once() {
        const OBJECTS: u64 = 20_000;
        let cell = Arc::new(ArcCell::new());
        let all = thread::scope(|scope| {
            let threads = [0, 1, 2].map(|first| {
                let cell = &cell;
                scope.spawn(move || {
                    let mut taken = Vec::new();
                    for number in (first..OBJECTS).step_by(3) {
                        if let Err(item) = put(item(cell, number)) {
                            taken.push(item.number);
                        }
                        taken.extend(cell.take().map(|item| item.number));
                    }
                    taken
                })
            });
            threads.map(|thread| thread.join().expect("it ends"))
        });
        let mut all = all.concat();
        all.extend(cell.take().map(|item| item.number));
        all.sort_unstable();
        assert!(all.iter().copied().eq(0..OBJECTS));
        assert_eq!(Arc::strong_count(&cell), 1);
    }
}
