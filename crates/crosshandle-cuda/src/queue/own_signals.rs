//! Records which signals a stream writes itself, so that the stream need not wait for them.

use std::sync::{Arc, Weak};

/// Number of events whose latest signals a stream remembers as its own. With a smaller number, a
/// stream that signals several events alternately waits for itself. With a larger one, each signal
/// searches more entries.
const OWN_SIGNAL_EVENTS: usize = 4;

/// A run: consecutive signals of one event that the stream writes.
struct Run<E> {
    event: Weak<E>,
    first: u64,
    last: u64,
}

/// The latest run of each of up to [`OWN_SIGNAL_EVENTS`] events.
pub(super) struct OwnSignals<E> {
    runs: Vec<Run<E>>,
    /// Index of the run that the next new event replaces.
    oldest: usize,
}

impl<E> OwnSignals<E> {
    pub(super) fn new() -> Self {
        Self {
            runs: Vec::with_capacity(OWN_SIGNAL_EVENTS),
            oldest: 0,
        }
    }

    fn find(&self, event: &Arc<E>) -> Option<usize> {
        let address = Arc::as_ptr(event);
        // The weak reference ensures that no other event has this address.
        let mut runs = self.runs.iter();
        runs.position(|run| Weak::as_ptr(&run.event) == address)
    }

    /// Notes that the stream will write a signal. Returns whether the stream writes `previous`
    /// before it.
    pub(super) fn note(&mut self, event: &Arc<E>, number: u64, previous: Option<u64>) -> bool {
        let fresh = |event| Run {
            event,
            first: number,
            last: number,
        };
        let Some(index) = self.find(event) else {
            let run = fresh(Arc::downgrade(event));
            if self.runs.len() < OWN_SIGNAL_EVENTS {
                self.runs.push(run);
            } else {
                self.runs[self.oldest] = run;
                self.oldest = (self.oldest + 1) % OWN_SIGNAL_EVENTS;
            }
            return false;
        };
        let run = &mut self.runs[index];
        if run.last + 1 != number {
            // Another stream or thread submitted a signal in between.
            run.first = number;
        }
        run.last = number;
        previous.is_some_and(|previous| previous >= run.first)
    }

    /// Forgets an event if one of its signals was not written after all.
    pub(super) fn forget(&mut self, event: &Arc<E>) {
        if let Some(index) = self.find(event) {
            self.runs.swap_remove(index);
            self.oldest = 0;
        }
    }

    /// Returns whether the stream is known to write the `count` latest signals of an event.
    pub(super) fn has(&self, event: &Arc<E>, count: u64) -> bool {
        self.find(event).is_some_and(|index| {
            let run = &self.runs[index];
            run.last - run.first + 1 >= count
        })
    }

    /// Returns whether the stream writes a signal before the work that is submitted now.
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
        let mut runs = OwnSignals::new();
        let event = Arc::new(());
        for number in 1..100_u64 {
            assert_eq!(runs.has(&event, 7), number > 7);
            let waits = !runs.note(&event, number, number.checked_sub(7));
            assert_eq!(waits, number < 8, "{number}");
            assert!(runs.contains(&event, number) && !runs.contains(&event, number + 1));
        }
    }

    #[test]
    fn a_signal_of_somebody_else_ends_the_run() {
        let mut runs = OwnSignals::new();
        let event = Arc::new(());
        for number in 1..=10_u64 {
            runs.note(&event, number, number.checked_sub(7));
        }
        // Another stream writes signal 11. So the stream knows the predecessor on a word only from
        // number 19 on.
        for number in 12..30_u64 {
            let own = runs.note(&event, number, Some(number - 7));
            assert_eq!(own, number - 7 >= 12, "{number}");
        }
        assert!(!runs.contains(&event, 10));
    }

    #[test]
    fn an_event_at_the_place_of_a_dropped_one_is_another_one() {
        let mut runs = OwnSignals::new();
        for _ in 0..100 {
            let event = Arc::new(0_u64);
            assert!(!runs.note(&event, 8, Some(1)));
            assert!(!runs.note(&event, 9, Some(2)));
        }
    }

    #[test]
    fn the_oldest_of_many_events_is_forgotten() {
        let mut runs = OwnSignals::new();
        let events: Vec<_> = (0..OWN_SIGNAL_EVENTS + 1).map(|_| Arc::new(0)).collect();
        for event in &events {
            runs.note(event, 1, None);
        }
        assert!(!runs.contains(&events[0], 1));
        assert!(events[1..].iter().all(|event| runs.contains(event, 1)));
        runs.forget(&events[2]);
        assert!(!runs.contains(&events[2], 1));
        runs.note(&events[0], 5, None);
        assert!(runs.contains(&events[0], 5) && runs.contains(&events[4], 1));
    }
}
