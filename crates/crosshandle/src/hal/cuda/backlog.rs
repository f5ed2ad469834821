//! What commands use, kept until a stream is past them.
//!
//! Nothing is known of a single command: asking the device to say that one is done costs as much
//! as a signal. So commands are put together in parts, and the device writes a mark, in memory
//! that no other process sees, after each.

use std::collections::VecDeque;

/// The weight of commands after which a part ends.
const PART: u32 = 64;
/// Entries for which there is always room, once there was.
const ROOM: usize = 256;

/// Entries in the order in which they are done.
pub(super) struct Backlog<T> {
    entries: VecDeque<T>,
    /// Ended parts: the mark that the device writes after each, and how many entries it has left.
    parts: VecDeque<(u32, usize)>,
    /// Entries after those.
    open: usize,
    weight: u32,
}

impl<T> Backlog<T> {
    pub(super) fn new() -> Self {
        Self {
            entries: VecDeque::new(),
            parts: VecDeque::new(),
            open: 0,
            weight: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether there are entries after the latest part.
    pub(super) fn is_open(&self) -> bool {
        self.open > 0
    }

    /// Whether it is time for a mark after one more entry; with a greater weight that is sooner.
    pub(super) fn is_mark_due(&self, weight: u32) -> bool {
        self.weight + weight >= PART
    }

    /// Adds an entry.
    pub(super) fn push(&mut self, entry: T, weight: u32) {
        self.entries.push_back(entry);
        self.open += 1;
        self.weight += weight;
    }

    /// Ends a part: the device will write `mark` now.
    pub(super) fn end_part(&mut self, mark: u32) {
        self.parts.push_back((mark, self.open));
        self.open = 0;
        self.weight = 0;
    }

    /// The next entry that is done, by the mark that the device wrote last.
    pub(super) fn pop_done(&mut self, written: u32) -> Option<T> {
        while let Some((mark, left)) = self.parts.front_mut() {
            if (written.wrapping_sub(*mark) as i32) < 0 {
                return None;
            }
            if *left > 0 {
                *left -= 1;
                return self.entries.pop_front();
            }
            self.parts.pop_front();
        }
        None
    }

    /// The entry that comes so many after the next one, if it is in the part that is done.
    pub(super) fn peek_done(&self, index: usize) -> Option<&T> {
        let (_, left) = self.parts.front()?;
        if index < *left {
            self.entries.get(index)
        } else {
            None
        }
    }

    /// Gives all entries, in order, to `end`: everything is done.
    pub(super) fn end_all(&mut self, end: impl FnMut(T)) {
        self.parts.clear();
        self.open = 0;
        self.weight = 0;
        self.entries.drain(..).for_each(end);
        self.entries.shrink_to(ROOM);
    }

    /// All entries, in order: for when nothing will be done.
    pub(super) fn take_all(&mut self) -> VecDeque<T> {
        self.parts.clear();
        self.open = 0;
        self.weight = 0;
        std::mem::take(&mut self.entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(backlog: &mut Backlog<u32>, written: u32) -> Vec<u32> {
        std::iter::from_fn(|| backlog.pop_done(written)).collect()
    }

    #[test]
    fn a_part_goes_when_its_mark_is_written() {
        let mut backlog = Backlog::new();
        for entry in 0..3 {
            assert!(!backlog.is_mark_due(1));
            backlog.push(entry, 1);
        }
        assert!(done(&mut backlog, 100).is_empty(), "no part has ended");
        // Around the end of all numbers.
        backlog.end_part(u32::MAX);
        backlog.push(3, 1);
        backlog.end_part(0);
        backlog.push(4, 1);
        assert!(done(&mut backlog, u32::MAX - 1).is_empty());
        assert_eq!(backlog.pop_done(u32::MAX), Some(0));
        assert_eq!(
            (backlog.peek_done(1), backlog.peek_done(2)),
            (Some(&2), None)
        );
        assert_eq!(done(&mut backlog, u32::MAX), [1, 2]);
        assert_eq!(done(&mut backlog, 0), [3]);
        assert!(!backlog.is_empty());
        assert_eq!(backlog.take_all(), [4]);
        assert!(backlog.is_empty());
    }

    #[test]
    fn heavy_commands_end_a_part_sooner() {
        let mut backlog = Backlog::new();
        let mut until_mark = |weight| {
            let mut count = 1;
            while !backlog.is_mark_due(weight) {
                backlog.push(count, weight);
                count += 1;
            }
            backlog.push(count, weight);
            backlog.end_part(1);
            count
        };
        assert_eq!(until_mark(1), PART);
        assert_eq!(until_mark(PART / 4), 4);
        assert_eq!(until_mark(PART), 1);
    }

    #[test]
    fn empty_parts_do_no_harm() {
        let mut backlog = Backlog::new();
        backlog.end_part(1);
        backlog.end_part(2);
        backlog.push(7, 1);
        backlog.end_part(3);
        assert!(done(&mut backlog, 2).is_empty());
        assert_eq!(done(&mut backlog, 3), [7]);
    }
}
