//! The free blocks of one size.

/// Free bytes of one block size up to which a pool is not checked. Larger values spare more
/// programs the thread that checks. Smaller values keep less memory in programs that use many
/// sizes.
pub(super) const UNWATCHED_BYTES: usize = 512 << 10;
/// A stack of free blocks. The block that was freed last is reused first, so the oldest blocks are
/// at the start.
pub(super) struct FreeList<T> {
    items: Vec<T>,
    /// The minimum length since the last check. The blocks before this index were not used since
    /// then.
    lowest: usize,
    /// The number of blocks that were old at the last check and have not been used since.
    old: usize,
    /// The number of blocks whose pages have been returned to the system.
    released: usize,
    /// The length at which the list must be checked.
    alarm: usize,
    /// The size of a block in bytes.
    size: usize,
    ages: bool,
}

impl<T> FreeList<T> {
    /// Creates an empty list of blocks of `size` bytes. If `ages` is set, the list reports when it
    /// must be checked.
    pub(super) fn new(size: usize, ages: bool) -> Self {
        let mut list = Self {
            items: Vec::new(),
            lowest: 0,
            old: 0,
            released: 0,
            alarm: usize::MAX,
            size,
            ages,
        };
        list.set_alarm();
        list
    }

    /// Removes and returns the block that was freed last.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<T> {
        let item = self.items.pop()?;
        let len = self.items.len();
        if len < self.lowest {
            self.note_lowest(len);
        }
        Some(item)
    }

    fn note_lowest(&mut self, len: usize) {
        self.lowest = len;
        self.old = self.old.min(len);
        self.released = self.released.min(len);
    }

    /// Adds a block. Returns whether the list must be checked.
    #[inline]
    #[must_use]
    pub(super) fn push(&mut self, item: T) -> bool {
        self.items.push(item);
        let has_many = self.items.len() >= self.alarm;
        if has_many {
            // The list reports only once.
            self.alarm = usize::MAX;
        }
        has_many
    }

    /// Sets the length at which the blocks that still have their pages exceed [`UNWATCHED_BYTES`].
    fn set_alarm(&mut self) {
        if self.ages {
            self.alarm = self.released + 1 + UNWATCHED_BYTES / self.size;
        }
    }

    /// Checks the list. Blocks that were not used since the previous check become old. Returns
    /// whether the list is long enough for another check. If it is not, [`push`](Self::push)
    /// reports when it is.
    pub(super) fn look(&mut self) -> bool {
        self.old = self.lowest;
        self.lowest = self.items.len();
        self.set_alarm();
        let has_many = self.items.len() >= self.alarm;
        if has_many {
            self.alarm = usize::MAX;
        }
        has_many
    }

    /// Returns all blocks.
    pub(super) fn all(&self) -> &[T] {
        &self.items
    }

    /// Returns the blocks that were not used between the last two checks.
    pub(super) fn old(&self) -> &[T] {
        &self.items[..self.old]
    }

    /// Returns the size of one block in bytes.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Returns the total size of the blocks in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.items.len() * self.size
    }

    /// Returns the total size, in bytes, of the old blocks that still have their pages.
    pub(super) fn old_bytes(&self) -> usize {
        (self.old - self.released) * self.size
    }

    /// Removes and returns all blocks.
    pub(super) fn take_all(&mut self) -> Vec<T> {
        self.note_lowest(0);
        std::mem::take(&mut self.items)
    }

    /// Removes and returns the blocks for which `is_wanted` returns `true`.
    pub(super) fn extract(&mut self, is_wanted: impl Fn(&T) -> bool) -> Vec<T> {
        let mut index = 0;
        let (mut lowest, mut old, mut released) = (self.lowest, self.old, self.released);
        let taken = self
            .items
            .extract_if(.., |item| {
                let place = index;
                index += 1;
                let is_taken = is_wanted(item);
                if is_taken {
                    lowest -= usize::from(place < self.lowest);
                    old -= usize::from(place < self.old);
                    released -= usize::from(place < self.released);
                }
                is_taken
            })
            .collect();
        (self.lowest, self.old, self.released) = (lowest, old, released);
        taken
    }

    /// Removes and returns blocks that still have their pages. Takes only old blocks unless `all`
    /// is set.
    pub(super) fn take_unreleased(&mut self, all: bool) -> Vec<T> {
        let end = if all { self.items.len() } else { self.old };
        let taken: Vec<T> = self.items.drain(self.released..end).collect();
        self.lowest -= taken.len().min(self.lowest - self.released);
        self.old = self.released;
        taken
    }

    /// Puts blocks back after their pages were returned to the system.
    pub(super) fn put_released(&mut self, items: Vec<T>) {
        let count = items.len();
        self.items.splice(self.released..self.released, items);
        self.released += count;
        self.old += count;
        self.lowest += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(items: std::ops::Range<u32>) -> FreeList<u32> {
        let mut list = FreeList::new(UNWATCHED_BYTES / 2, true);
        for item in items {
            let _ = list.push(item);
        }
        list
    }

    #[test]
    fn what_was_not_used_between_two_looks_is_old() {
        let mut list = list(0..10);
        assert!(list.look());
        assert_eq!(list.old(), [0; 0], "the list was empty before");
        for _ in 0..4 {
            list.pop();
        }
        assert!(!list.push(20), "told before");
        assert!(list.look());
        assert_eq!(list.old(), [0, 1, 2, 3, 4, 5]);
        // Blocks 4 and later are used again, so they are no longer old.
        while list.pop() != Some(4) {}
        assert_eq!(list.old(), [0, 1, 2, 3]);
        assert_eq!(list.take_unreleased(false), [0, 1, 2, 3]);
        assert!(list.all().is_empty());
        let _ = list.push(30);
        list.put_released(vec![0, 1, 2, 3]);
        assert_eq!((list.all(), list.old_bytes()), (&[0, 1, 2, 3, 30][..], 0));
        assert!(!list.look(), "one is not enough");
        assert!(!list.push(31));
        assert!(list.push(32), "three are");
        // Two of the blocks without pages are used again.
        for _ in 0..5 {
            list.pop();
        }
        assert_eq!(list.take_unreleased(true), [0; 0]);
        assert_eq!(list.pop(), Some(1));
    }

    #[test]
    fn blocks_are_taken_out_of_the_middle() {
        let mut list = list(0..8);
        list.look();
        list.look();
        let taken = list.take_unreleased(false);
        list.put_released(taken);
        assert_eq!(list.extract(|item| item % 2 == 0), [0, 2, 4, 6]);
        assert_eq!(
            (list.all(), list.old()),
            (&[1, 3, 5, 7][..], &[1, 3, 5, 7][..])
        );
        assert_eq!(list.take_unreleased(true), [0; 0], "released still");
        assert_eq!(list.take_all(), [1, 3, 5, 7]);
        assert_eq!(list.pop(), None);
    }
}
