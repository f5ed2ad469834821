//! Tests of awaited signals in one process: futures, streams, callbacks, notifiers and waits for
//! many events. `crates/conformance/src/cases/awaited.rs` tests them across processes.

use crosshandle::{Context, Device, Error, Event, EventOptions, Notifier, Result};
use futures_core::Stream;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::task::{Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(20);

fn context() -> Context {
    Context::new(&Device::find("host").expect("the host")).expect("a context")
}

/// A waker that unparks a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future to completion on this thread.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let began = Instant::now();
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match future
            .as_mut()
            .poll(&mut std::task::Context::from_waker(&waker))
        {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park_timeout(DEADLINE),
        }
        assert!(began.elapsed() < DEADLINE, "the future does not end");
    }
}

fn next<S: Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
    block_on(std::future::poll_fn(|task| {
        std::pin::Pin::new(&mut *stream).poll_next(task)
    }))
}

#[test]
fn a_future_ends_with_its_signal() {
    let event = context().create_event().unwrap();
    block_on(event.reached(0)).expect("number 0 stands for no signal");
    for round in 1..2000 {
        let reached = event.reached(round);
        thread::scope(|scope| {
            scope.spawn(|| event.signal().unwrap());
            block_on(reached).expect("signalled");
        });
        assert_eq!(event.completed(), round);
    }
}

#[test]
fn futures_of_one_event_end_in_order() {
    let event = context().create_event().unwrap();
    let waiting = Vec::from_iter((1..=100).rev().map(|value| {
        let event = event.clone();
        thread::spawn(move || {
            block_on(event.reached(value)).expect("signalled");
            assert!(event.completed() >= value);
        })
    }));
    for value in 1..=100 {
        event.signal_value(value).unwrap();
        thread::yield_now();
    }
    waiting
        .into_iter()
        .for_each(|waiting| waiting.join().unwrap());
}

#[test]
fn a_dropped_future_keeps_nothing() {
    let context = context();
    let waker = Waker::noop();
    let events = Vec::from_iter((0..1000).map(|_| context.create_event().unwrap()));
    for _ in 0..3 {
        let mut reached = Vec::from_iter(events.iter().map(|event| Box::pin(event.reached(1))));
        for future in &mut reached {
            let polled = future
                .as_mut()
                .poll(&mut std::task::Context::from_waker(waker));
            assert!(polled.is_pending());
        }
        drop(reached);
    }
    // Only the remaining waiters are notified.
    let (tell, told) = channel();
    let subscription = events[7].on_signal(1, move |result| tell.send(result).unwrap());
    for event in &events {
        event.signal().unwrap();
    }
    told.recv_timeout(DEADLINE).unwrap().unwrap();
    drop(subscription);
}

#[test]
fn a_stream_gives_the_latest_value() {
    let event = context().create_event().unwrap();
    let mut values = event.values(0);
    event.signal_value(3).unwrap();
    assert_eq!(next(&mut values).unwrap().unwrap(), 3);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 3..500 {
                event.signal().unwrap();
            }
        });
        let mut last = 3;
        while last < 500 {
            let value = next(&mut values).unwrap().unwrap();
            assert!(value > last && value <= 500);
            last = value;
        }
    });
}

#[test]
fn a_function_is_called_once_or_not_at_all() {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let event = context().create_event().unwrap();
    let (tell, told) = channel();
    let count = |result: Result<()>| {
        result.unwrap();
        CALLS.fetch_add(1, Ordering::SeqCst);
    };
    drop(event.on_signal(1, count).unwrap());
    event.on_signal(1, count).unwrap().detach();
    let kept = event.on_signal(1, count).unwrap();
    event.signal().unwrap();
    // The function is also called for a signal that has completed already, after earlier functions.
    event.on_signal(1, count).unwrap().detach();
    let last = event.on_signal(1, move |_| tell.send(()).unwrap()).unwrap();
    told.recv_timeout(DEADLINE).unwrap();
    let began = Instant::now();
    while CALLS.load(Ordering::SeqCst) < 3 {
        assert!(began.elapsed() < DEADLINE);
        thread::yield_now();
    }
    drop((kept, last));
    assert_eq!(CALLS.load(Ordering::SeqCst), 3);
}

#[test]
fn a_function_that_panics_holds_up_no_other() {
    let event = context().create_event().unwrap();
    let (tell, told) = channel();
    event
        .on_signal(1, |_| panic!("on purpose"))
        .unwrap()
        .detach();
    event
        .on_signal(1, move |_| tell.send(()).unwrap())
        .unwrap()
        .detach();
    event.signal().unwrap();
    told.recv_timeout(DEADLINE).unwrap();
}

/// A value whose drop runs code of the program.
struct AtDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for AtDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// The thread that serves all awaited signals drops what a cancelled function owns.
#[test]
fn a_cancelled_function_that_panics_holds_up_no_other() {
    let event = context().create_event().unwrap();
    let (tell, told) = channel();
    let panics = AtDrop(|| panic!("on purpose"));
    drop(event.on_signal(2, move |_| drop(panics)).unwrap());
    let function = move |result| tell.send(result).unwrap();
    event.on_signal(1, function).unwrap().detach();
    event.signal().unwrap();
    told.recv_timeout(DEADLINE).unwrap().unwrap();
}

#[test]
fn a_cancelled_function_may_await_more() {
    let event = context().create_event().unwrap();
    let (tell, told) = channel();
    let (begin, begun) = channel();
    let other = event.clone();
    let awaits = AtDrop(move || {
        let tell = tell.clone();
        let function = move |result| tell.send(result).unwrap();
        other.on_signal(1, function).unwrap().detach();
        begin.send(()).unwrap();
    });
    drop(event.on_signal(2, move |_| drop(awaits)).unwrap());
    begun.recv_timeout(DEADLINE).unwrap();
    event.signal().unwrap();
    told.recv_timeout(DEADLINE).unwrap().unwrap();
}

/// Waits until a notifier's descriptor is readable.
fn poll(notifier: &Notifier, timeout: Duration) -> bool {
    use rustix::event::{PollFd, PollFlags, poll};
    let mut files = [PollFd::new(notifier, PollFlags::IN)];
    poll(&mut files, Some(&timeout.try_into().unwrap())).unwrap() > 0
}

#[test]
fn a_notifier_says_what_has_come() {
    let context = context();
    let events = Vec::from_iter((0..300).map(|_| context.create_event().unwrap()));
    let notifier = Notifier::new().unwrap();
    for (token, event) in events.iter().enumerate() {
        notifier.add(event, 1, token as u64).unwrap();
    }
    let refused = notifier.add(&events[0], 2, 5).unwrap_err();
    assert!(matches!(refused, Error::InvalidArgument(_)), "{refused}");
    assert!(!poll(&notifier, Duration::ZERO));
    assert!(notifier.next().is_none());
    assert!(notifier.remove(17) && !notifier.remove(17));
    thread::scope(|scope| {
        scope.spawn(|| {
            for event in events.iter().rev() {
                event.signal().unwrap();
            }
        });
        let mut tokens = Vec::new();
        while tokens.len() < 299 {
            assert!(poll(&notifier, DEADLINE), "{} have come", tokens.len());
            while let Some(notification) = notifier.next() {
                notification.result.unwrap();
                tokens.push(notification.token);
            }
        }
        tokens.sort_unstable();
        assert!(
            tokens
                .iter()
                .copied()
                .eq((0..300).filter(|token| *token != 17))
        );
    });
    assert!(!poll(&notifier, Duration::ZERO));
    // If a token is removed while its notification is pending, the token is free and the
    // notification is discarded.
    notifier.add(&events[0], 1, 5).unwrap();
    assert!(poll(&notifier, DEADLINE));
    assert!(notifier.remove(5));
    notifier.add(&events[0], 9, 5).unwrap();
    assert!(notifier.next().is_none() && !poll(&notifier, Duration::ZERO));
    // The notifier is dropped while a signal is awaited.
    notifier.add(&events[1], 9, 6).unwrap();
}

#[test]
fn waits_for_many_events_end() {
    let context = context();
    let options = EventOptions::new().low_power(true);
    for count in [2, 127, 128, 1000] {
        let events =
            Vec::from_iter((0..count).map(|_| context.create_event_with(options).unwrap()));
        let all = Vec::from_iter(&events);
        let next = Vec::from_iter(events.iter().map(|event| (event, 1)));
        let late = Event::wait_any_value(&next, Some(Duration::from_millis(20)));
        assert!(late.unwrap_err().is_timeout());
        let late = Event::wait_all(&all, Some(Duration::ZERO));
        assert!(
            late.is_err_and(|late| late.is_timeout()),
            "none is signalled"
        );
        let last = count - 1;
        thread::scope(|scope| {
            let any = scope.spawn(|| Event::wait_any_value(&next, Some(DEADLINE)));
            thread::sleep(Duration::from_millis(5));
            events[last].signal().unwrap();
            assert_eq!(any.join().unwrap().unwrap(), last);
        });
    }
}
