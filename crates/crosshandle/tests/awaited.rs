//! Tests of awaited signals in one process: futures, streams, callbacks, notifiers and waits for
//! many events. `crates/conformance/src/cases/awaited.rs` tests them across processes.

use crosshandle::event::EventSet;
use crosshandle::{Context, Device, Error, EventOptions, Notifier};
use std::pin::pin;
use std::sync::mpsc::channel;
use std::task::Waker;
use std::thread;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(20);

fn context() -> Context {
    Context::new(&Device::find("host").expect("the host")).expect("a context")
}

#[test]
fn a_dropped_future_keeps_nothing() {
    let context = context();
    let task = &mut std::task::Context::from_waker(Waker::noop());
    let events = Vec::from_iter((0..1000).map(|_| context.create_event().unwrap()));
    for _ in 0..3 {
        let mut reached = Vec::from_iter(events.iter().map(|event| Box::pin(event.reached(1))));
        for future in &mut reached {
            assert!(future.as_mut().poll(task).is_pending());
        }
        drop(reached);
    }
    let none = pin!(events[0].reached(0)).poll(task);
    assert!(none.is_ready(), "number 0 stands for no signal");
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
fn a_token_of_a_notifier_is_used_once() {
    let context = context();
    let events = [(); 3].map(|()| context.create_event().unwrap());
    let notifier = Notifier::new().unwrap();
    for (token, event) in (0..).zip(&events) {
        notifier.add(event, 1, token).unwrap();
    }
    let refused = notifier.add(&events[0], 2, 2).unwrap_err();
    assert!(matches!(refused, Error::InvalidArgument(_)), "{refused}");
    assert!(!poll(&notifier, Duration::ZERO));
    assert!(notifier.remove(1) && !notifier.remove(1));
    for event in &events {
        event.signal().unwrap();
    }
    let mut tokens = Vec::new();
    while tokens.len() < 2 {
        assert!(poll(&notifier, DEADLINE));
        tokens.extend(notifier.next().map(|notification| notification.token));
    }
    tokens.sort_unstable();
    assert_eq!(tokens, [0, 2]);
    assert!(notifier.next().is_none());
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
        let all = EventSet::latest(&events);
        let next = EventSet::values(events.iter().map(|event| (event, 1)));
        let late = next.wait_any_timeout(Duration::from_millis(20));
        assert!(late.unwrap_err().is_timeout());
        let late = all.wait_all_timeout(Duration::ZERO);
        assert!(
            late.is_err_and(|late| late.is_timeout()),
            "none is signalled"
        );
        let last = count - 1;
        thread::scope(|scope| {
            let any = scope.spawn(|| next.wait_any_timeout(DEADLINE));
            thread::sleep(Duration::from_millis(5));
            events[last].signal().unwrap();
            assert_eq!(any.join().unwrap().unwrap(), last);
        });
    }
}
