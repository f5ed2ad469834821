//! Which signals a stream writes itself, so that it need not wait for them.

use std::sync::{Arc, Weak};

/// Events that are remembered: a queue rarely signals more of them in turns.
const EVENTS: usize = 4;

/// Signals of one event, without a gap, that the stream writes.
struct Run<E> {
    event: Weak<E>,
    first: u64,
    last: u64,
}

/// The latest run of each of a few events.
pub(super) struct Turns<E> {
    runs: Vec<Run<E>>,
    /// The one to forget next.
    oldest: usize,
}

impl<E> Turns<E> {
    pub(super) fn new() -> Self {
        Self {
            runs: Vec::with_capacity(EVENTS),
            oldest: 0,
        }
    }

    fn find(&self, event: &Arc<E>) -> Option<usize> {
        let address = Arc::as_ptr(event);
        // A weak reference keeps the address from being another event's.
        let mut runs = self.runs.iter();
        runs.position(|run| Weak::as_ptr(&run.event) == address)
    }

    /// Takes note that the stream will write a signal. Whether it writes `previous` before that.
    pub(super) fn note(&mut self, event: &Arc<E>, number: u64, previous: Option<u64>) -> bool {
        let fresh = |event| Run {
            event,
            first: number,
            last: number,
        };
        let Some(index) = self.find(event) else {
            let run = fresh(Arc::downgrade(event));
            if self.runs.len() < EVENTS {
                self.runs.push(run);
            } else {
                self.runs[self.oldest] = run;
                self.oldest = (self.oldest + 1) % EVENTS;
            }
            return false;
        };
        let run = &mut self.runs[index];
        if run.last + 1 != number {
            // Somebody else signals in between.
            run.first = number;
        }
        run.last = number;
        previous.is_some_and(|previous| previous >= run.first)
    }

    /// Forgets an event, of which a signal was not written after all.
    pub(super) fn forget(&mut self, event: &Arc<E>) {
        if let Some(index) = self.find(event) {
            self.runs.swap_remove(index);
            self.oldest = 0;
        }
    }

    /// Whether the stream writes the `turns` latest signals of an event, as far as it knows.
    pub(super) fn has(&self, event: &Arc<E>, turns: u64) -> bool {
        self.find(event).is_some_and(|index| {
            let run = &self.runs[index];
            run.last - run.first + 1 >= turns
        })
    }

    /// Whether the stream writes a signal, before whatever is submitted now.
    pub(super) fn contains(&self, event: &Arc<E>, number: u64) -> bool {
        self.find(event).is_some_and(|index| {
            let run = &self.runs[index];
            (run.first..=run.last).contains(&number)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_signals_alone_never_waits_for_itself() {
        let mut turns = Turns::new();
        let event = Arc::new(());
        for number in 1..100_u64 {
            assert_eq!(turns.has(&event, 7), number > 7);
            let waits = !turns.note(&event, number, number.checked_sub(7));
            assert_eq!(waits, number < 8, "{number}");
            assert!(turns.contains(&event, number) && !turns.contains(&event, number + 1));
        }
    }

    #[test]
    fn a_signal_of_somebody_else_ends_the_run() {
        let mut turns = Turns::new();
        let event = Arc::new(());
        for number in 1..=10_u64 {
            turns.note(&event, number, number.checked_sub(7));
        }
        // 11 is another's, so is 12 + 7's predecessor on its word known no earlier than at 19.
        for number in 12..30_u64 {
            let own = turns.note(&event, number, Some(number - 7));
            assert_eq!(own, number - 7 >= 12, "{number}");
        }
        assert!(!turns.contains(&event, 10));
    }

    #[test]
    fn an_event_at_the_place_of_a_dropped_one_is_another_one() {
        let mut turns = Turns::new();
        for _ in 0..100 {
            let event = Arc::new(0_u64);
            assert!(!turns.note(&event, 8, Some(1)));
            assert!(!turns.note(&event, 9, Some(2)));
        }
    }

    #[test]
    fn the_oldest_of_many_events_is_forgotten() {
        let mut turns = Turns::new();
        let events: Vec<_> = (0..EVENTS + 1).map(|_| Arc::new(0)).collect();
        for event in &events {
            turns.note(event, 1, None);
        }
        assert!(!turns.contains(&events[0], 1));
        assert!(events[1..].iter().all(|event| turns.contains(event, 1)));
        turns.forget(&events[2]);
        assert!(!turns.contains(&events[2], 1));
        turns.note(&events[0], 5, None);
        assert!(turns.contains(&events[0], 5) && turns.contains(&events[4], 1));
    }
}
