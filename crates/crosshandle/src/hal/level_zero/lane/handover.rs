//! How something gets from those who submit to the thread without a lock that both would wait for:
//! drivers take microseconds to append a command, and it is held meanwhile.

use crate::os::prefetch;
use rtrb::{Consumer, Producer, RingBuffer};
use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Of those who submit, under their lock.
pub(super) struct Giver<T> {
    ring: Producer<T>,
    /// A place for one that is made while the ring is full.
    spare: Box<MaybeUninit<T>>,
    /// What comes after what is in the ring, since that was full.
    more: VecDeque<T>,
    has_more: Arc<AtomicBool>,
}

/// Of the thread.
pub(super) struct Taker<T> {
    ring: Consumer<T>,
    has_more: Arc<AtomicBool>,
}

/// For so many that the thread, if it is awake, has taken them by then.
pub(super) fn create<T>(count: usize) -> (Giver<T>, Taker<T>) {
    let (producer, consumer) = RingBuffer::new(count);
    let has_more = Arc::new(AtomicBool::new(false));
    let giver = Giver {
        ring: producer,
        spare: Box::new(MaybeUninit::uninit()),
        more: VecDeque::new(),
        has_more: Arc::clone(&has_more),
    };
    let taker = Taker {
        ring: consumer,
        has_more,
    };
    (giver, taker)
}

impl<T> Giver<T> {
    /// A place for something that is about to be made: where the thread will find it, as a rule, so
    /// that it is moved no more.
    #[inline(always)]
    pub(super) fn place(&mut self) -> Operand<'_, T> {
        let (place, is_in_ring) = match self.ring.write_chunk_uninit(1) {
            Ok(mut chunk) if self.more.is_empty() => {
                (ptr::from_mut(&mut chunk.as_mut_slices().0[0]), true)
            }
            _ => (ptr::from_mut(&mut *self.spare), false),
        };
        Operand {
            giver: self,
            place,
            is_in_ring,
        }
    }

    pub(super) fn give(&mut self, item: T) {
        self.place().put(item).give();
    }
}

/// A place that nobody else has.
pub(super) struct Operand<'a, T> {
    giver: &'a mut Giver<T>,
    place: *mut MaybeUninit<T>,
    is_in_ring: bool,
}

impl<'a, T> Operand<'a, T> {
    #[inline(always)]
    pub(super) fn put(self, item: T) -> Put<'a, T> {
        // SAFETY: as long as the giver is borrowed, the place is nobody else's.
        unsafe { (*self.place).write(item) };
        Put(self)
    }
}

/// Something that is in its place. If this is dropped, nobody drops that.
pub(super) struct Put<'a, T>(Operand<'a, T>);

impl<T> Put<'_, T> {
    #[inline(always)]
    pub(super) fn item(&mut self) -> &mut T {
        // SAFETY: it is there, and nobody else's as long as the giver is borrowed.
        unsafe { (*self.0.place).assume_init_mut() }
    }

    /// Lets the thread have it.
    #[inline(always)]
    pub(super) fn give(self) {
        let giver = &mut *self.0.giver;
        if self.0.is_in_ring
            && let Ok(chunk) = giver.ring.write_chunk_uninit(1)
        {
            // The next place, which the thread's CPU had last. A guess, which is wrong where the
            // places begin anew.
            prefetch::for_writing(self.0.place.wrapping_add(1));
            // SAFETY: it is in this place.
            unsafe { chunk.commit_all() };
        } else {
            self.give_more();
        }
    }

    #[cold]
    fn give_more(self) {
        // SAFETY: it is there, and is read once.
        let item = unsafe { (*self.0.place).assume_init_read() };
        self.0.giver.more.push_back(item);
        self.0.giver.has_more.store(true, Ordering::Release);
    }

    /// Takes it back.
    pub(super) fn take_back(self) -> T {
        // SAFETY: it is there, and is read once, since nobody is given it.
        unsafe { (*self.0.place).assume_init_read() }
    }
}

impl<T> Taker<T> {
    /// The next one for which the ring had room, if it is one of these.
    pub(super) fn take_if(&mut self, is_wanted: impl FnOnce(&T) -> bool) -> Option<T> {
        let next = self.ring.peek().ok()?;
        is_wanted(next).then(|| self.ring.pop().ok())?
    }

    /// Whether there is more, for which the giver has to be asked.
    pub(super) fn has_more(&self) -> bool {
        self.has_more.load(Ordering::Acquire)
    }

    /// The next one, wherever it is.
    pub(super) fn take_from(&mut self, giver: &mut Giver<T>) -> Option<T> {
        self.take_if(|_| true).or_else(|| {
            let item = giver.more.pop_front();
            self.has_more
                .store(!giver.more.is_empty(), Ordering::Relaxed);
            item
        })
    }
}

#[cfg(test)]
mod tests {
    use super::create;

    #[test]
    fn all_comes_in_order_also_if_the_ring_is_full() {
        let (mut giver, mut taker) = create(4);
        for round in 0..3 {
            let all = (0..10).map(|number| 10 * round + number);
            all.clone().for_each(|number| giver.give(number));
            assert!(taker.has_more());
            let first: Vec<_> = std::iter::from_fn(|| taker.take_if(|_| true)).collect();
            let rest = std::iter::from_fn(|| taker.take_from(&mut giver));
            assert!(all.eq(first.into_iter().chain(rest)));
            assert!(!taker.has_more());
        }
    }

    #[test]
    fn what_is_taken_back_is_not_given() {
        let (mut giver, mut taker) = create(1);
        let text = |name: &str| name.to_owned();
        assert_eq!(
            giver.place().put(text("in the ring")).take_back(),
            "in the ring"
        );
        giver.give(text("first"));
        assert_eq!(
            giver.place().put(text("behind it")).take_back(),
            "behind it"
        );
        let mut place = giver.place().put(text("sec"));
        place.item().push_str("ond");
        place.give();
        assert_eq!(taker.take_from(&mut giver).as_deref(), Some("first"));
        assert_eq!(taker.take_from(&mut giver).as_deref(), Some("second"));
        assert_eq!(taker.take_from(&mut giver), None);
        assert!(!taker.has_more());
    }

    #[test]
    fn one_that_is_not_wanted_stays() {
        let (mut giver, mut taker) = create(4);
        giver.give(1);
        assert_eq!(taker.take_if(|number| *number > 1), None);
        assert_eq!(taker.take_if(|number| *number == 1), Some(1));
    }
}
