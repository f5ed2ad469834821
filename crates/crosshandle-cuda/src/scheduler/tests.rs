//! Tests of the scheduler with streams that need no driver.

use super::admission::{KnownWaits, Wait, connections, most_blocked};
use super::*;
use crate::tuning::{CALL_STUCK_AFTER, DEFERRED_CALL_WAIT, QUIET_MAX_BYTES};
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;

/// Timeout for everything that the tests expect to happen.
const SOON: Duration = Duration::from_secs(20);

type Flag = Arc<AtomicBool>;

fn flag() -> Flag {
    Flag::default()
}

fn is_set(flag: &Flag) -> bool {
    flag.load(Ordering::Relaxed)
}

fn set(flag: &Flag) {
    flag.store(true, Ordering::Relaxed);
}

/// Waits until the condition is true.
#[track_caller]
fn until(is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < SOON);
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn wait_for(flag: &Flag) -> [Wait; 1] {
    [Wait::Flag(Arc::clone(flag))]
}

/// Defers a quiet call of `bytes` bytes. Returns a flag that the call sets.
fn deferred_call(scheduler: &Arc<Scheduler>, bytes: usize) -> Flag {
    let is_done = flag();
    let done = Arc::clone(&is_done);
    scheduler.call(Urgency::WhenQuiet, bytes, move || set(&done));
    is_done
}

#[test]
fn so_many_wait_and_nothing_that_needs_quiet_is_done_meanwhile() {
    let scheduler = Scheduler::new();
    let most = most_blocked();
    let gates: Vec<_> = (0..=most).map(|_| flag()).collect();
    let streams: Vec<_> = (0..=most).map(|_| KnownWaits::new(&scheduler)).collect();
    let nobody_waits = deferred_call(&scheduler, 1);
    until(|| is_set(&nobody_waits));

    for (index, stream) in streams.iter().enumerate() {
        assert_eq!(stream.admit(wait_for(&gates[index])), index < most);
    }
    assert!(
        streams[0].admit(wait_for(&gates[0])),
        "who waits already may wait more"
    );
    let [small, large] = [1, QUIET_MAX_BYTES].map(|bytes| deferred_call(&scheduler, bytes));
    std::thread::sleep(Duration::from_millis(20));
    assert!(!is_set(&small) && !is_set(&large));
    set(&gates[0]);
    assert!(!streams[0].is_blocked() && streams[1].is_blocked());
    assert!(
        !streams[most].admit(wait_for(&gates[most])),
        "much is to be released"
    );

    gates[..most].iter().for_each(set);
    until(|| is_set(&small) && is_set(&large));
    until(|| streams[most].admit(wait_for(&gates[most])));
    assert_eq!(streams[most].pending().len(), 1);

    let kept = deferred_call(&scheduler, 1);
    scheduler.make_room();
    assert!(!is_set(&kept), "it waits only a while");
    drop(streams);
    until(|| is_set(&kept));
}

/// Returns a function that blocks until a message arrives, as a driver call does that waits for a
/// stream of the program. Also returns the sender of the message, and a flag that the function sets
/// at its end.
fn held_up() -> (impl FnOnce() + Send + 'static, mpsc::Sender<()>, Flag) {
    let (let_go, blocked) = mpsc::channel();
    let is_done = flag();
    let done = Arc::clone(&is_done);
    let act = move || {
        let _ = blocked.recv_timeout(SOON);
        set(&done);
    };
    (act, let_go, is_done)
}

#[test]
fn what_never_gets_quiet_holds_up_nobody() {
    let scheduler = Scheduler::new();
    let streams: Vec<_> = (0..2).map(|_| KnownWaits::new(&scheduler)).collect();
    let gate = flag();
    for is_urgent in [false, true] {
        let (act, let_go, is_done) = held_up();
        let began = Instant::now();
        match is_urgent {
            true => scheduler.call(Urgency::AtOnce, 0, act),
            false => scheduler.call(Urgency::WhenQuiet, 1, act),
        }
        let later = deferred_call(&scheduler, QUIET_MAX_BYTES + 1);
        scheduler.make_room();
        assert!(began.elapsed() < SOON / 2 && !is_set(&is_done) && !is_set(&later));
        std::thread::sleep(CALL_STUCK_AFTER);
        for stream in &streams {
            assert!(stream.admit(wait_for(&gate)));
            assert!(stream.admit(wait_for(&gate)));
        }
        let_go.send(()).unwrap();
        until(|| is_set(&is_done));
        assert!(!is_set(&later), "streams wait");
        set(&gate);
        until(|| is_set(&later));
        gate.store(false, Ordering::Relaxed);
        streams.iter().for_each(|stream| stream.clear());
    }
}

#[test]
fn contexts_are_counted_by_themselves() {
    let [here, there]: [Arc<Scheduler>; 2] = [(); 2].map(|()| Scheduler::new());
    let gate = flag();
    let known = |scheduler, count| {
        (0..count)
            .map(|_| KnownWaits::new(scheduler))
            .collect::<Vec<_>>()
    };
    let waiting = known(&here, connections());
    for stream in &waiting {
        stream.begin_anyway();
        stream.note(wait_for(&gate));
    }
    assert!(here.is_crowded() && !there.is_crowded());
    let [one, other] = [&here, &there].map(|scheduler| known(scheduler, 1).remove(0));
    assert!(!one.begin() && other.begin());
    assert_eq!(other.admit(wait_for(&gate)), most_blocked() > 0);
    other.clear();
    let elsewhere = deferred_call(&there, 1);
    until(|| is_set(&elsewhere));
    assert!(!is_set(&deferred_call(&here, 1)));
    set(&gate);
}

#[test]
fn where_no_thread_can_be_started_nobody_waits_for_one() {
    let scheduler = Scheduler::new();
    let [stream, other] = [(); 2].map(|()| KnownWaits::new(&scheduler));
    let gate = flag();
    scheduler.state().cannot_start = true;
    let began = Instant::now();
    let quiet = deferred_call(&scheduler, QUIET_MAX_BYTES + 1);
    let urgent = flag();
    let done = Arc::clone(&urgent);
    scheduler.call(Urgency::AtOnce, 0, move || set(&done));
    scheduler.make_room();
    assert!(!is_set(&quiet) && !is_set(&urgent));
    // The calls cannot begin, so no stream is held back for them.
    assert!(stream.admit(wait_for(&gate)) && other.admit(wait_for(&gate)));
    assert!(began.elapsed() < SOON / 2);

    scheduler.state().cannot_start = false;
    scheduler.prompt();
    until(|| is_set(&urgent));
    assert!(!is_set(&quiet), "streams wait");
    set(&gate);
    until(|| is_set(&quiet));
}

#[test]
fn much_that_needs_quiet_comes_before_streams_that_would_wait() {
    let scheduler = Scheduler::new();
    let [stream, other] = [(); 2].map(|()| KnownWaits::new(&scheduler));
    let [gate, next] = [(); 2].map(|()| flag());
    assert!(stream.admit(wait_for(&gate)));
    let late = deferred_call(&scheduler, 1);
    let much = deferred_call(&scheduler, QUIET_MAX_BYTES);
    // After this time the scheduler's thread checks only at long intervals.
    std::thread::sleep(Duration::from_millis(1_000));
    assert!(!is_set(&late) && !other.admit(wait_for(&next)));
    set(&gate);
    until(|| other.admit(wait_for(&next)));
    assert!(is_set(&late) && is_set(&much));
}

#[test]
fn what_is_as_slow_as_its_size_explains_is_not_taken_for_stuck() {
    let scheduler = Scheduler::new();
    let stream = KnownWaits::new(&scheduler);
    let [begun, gate] = [(); 2].map(|()| flag());
    let (let_go, blocked) = mpsc::channel::<()>();
    let started = Arc::clone(&begun);
    scheduler.call(Urgency::WhenQuiet, 64 << 30, move || {
        set(&started);
        let _ = blocked.recv_timeout(SOON);
    });
    until(|| is_set(&begun));
    std::thread::sleep(CALL_STUCK_AFTER + DEFERRED_CALL_WAIT);
    assert!(!stream.admit(wait_for(&gate)), "it would be in the way");
    let_go.send(()).unwrap();
    until(|| stream.admit(wait_for(&gate)));
}

#[test]
fn streams_get_their_turn_among_many_releases() {
    let scheduler = Scheduler::new();
    let stream = KnownWaits::new(&scheduler);
    let [gate, first] = [(); 2].map(|()| flag());
    assert!(stream.admit(wait_for(&first)));
    let done: Vec<_> = (0..100)
        .map(|_| {
            let is_done = flag();
            let done = Arc::clone(&is_done);
            scheduler.call(Urgency::WhenQuiet, 1, move || {
                std::thread::sleep(DEFERRED_CALL_WAIT / 5);
                set(&done);
            });
            is_done
        })
        .collect();
    set(&first);
    until(|| is_set(&done[0]));
    until(|| stream.admit(wait_for(&gate)));
    assert!(!is_set(&done[99]), "it need not wait for all");
    set(&gate);
    until(|| is_set(&done[99]));
}

#[test]
fn no_stream_begins_to_wait_while_something_is_done_that_needs_quiet() {
    let scheduler = Scheduler::new();
    let [stream, other] = [(); 2].map(|()| KnownWaits::new(&scheduler));
    let gate = flag();
    for is_urgent in [false, true] {
        let (act, let_go, is_done) = held_up();
        match is_urgent {
            true => scheduler.call(Urgency::AtOnce, 0, act),
            false => scheduler.call_later(Urgency::WhenQuiet, 0, act),
        }
        until(|| scheduler.state().is_halted());
        // Longer than a thread waits for the call, even on a slow machine.
        std::thread::sleep(5 * DEFERRED_CALL_WAIT);
        assert!(!stream.admit(wait_for(&gate)));
        let_go_later(let_go);
        // A hold-off waits until the call has returned, so that the stream can then wait without
        // admission.
        let hold_off = scheduler.hold_off();
        assert!(is_set(&is_done), "it would be in the way");
        let later = deferred_call(&scheduler, 1);
        assert!(!is_set(&later), "it is held off");
        other.note(wait_for(&gate));
        drop(hold_off);
        assert!(stream.admit(wait_for(&gate)));
        stream.clear();
        other.clear();
    }
}

#[test]
fn what_is_done_at_once_beside_streams_that_wait_keeps_no_others_from_it() {
    let scheduler = Scheduler::new();
    let [stream, other] = [(); 2].map(|()| KnownWaits::new(&scheduler));
    let gate = flag();
    assert!(stream.admit(wait_for(&gate)));
    // The call may wait for the first stream, which may wait for the other stream.
    let (act, let_go, _) = held_up();
    scheduler.call(Urgency::AtOnce, 0, act);
    assert!(other.admit(wait_for(&gate)));
    let_go.send(()).unwrap();
}

/// A thread that signals at once writes the word a moment later, and may be killed in between.
#[test]
fn a_stream_waits_until_the_word_is_written_and_gets_help_with_that() {
    let event = crosshandle_ipc::testing::event();
    // No thread has registered interest in the word, so the signal does not write it.
    event.signal().unwrap();
    let stream = KnownWaits::new(&Scheduler::new());
    stream.note([Wait::Event(Arc::clone(&event), 1)]);
    assert!(stream.is_blocked());
    let (blocker, number) = stream.first_event().unwrap();
    blocker.help_device_wait(number);
    assert!(!stream.is_blocked() && stream.first_event().is_none());
}

#[test]
fn functions_begin_in_the_end_although_much_is_to_be_released() {
    let scheduler = Scheduler::new();
    let [calling, stream, inner] = [(); 3].map(|()| KnownWaits::new(&scheduler));
    let gate = flag();
    assert!(calling.admit(wait_for(&gate)));
    scheduler.call(Urgency::WhenQuiet, QUIET_MAX_BYTES + 1, || {});
    assert!(
        !stream.admit(wait_for(&gate)),
        "it would only make it later"
    );
    assert!(!inner.admit_function());
    until(|| inner.admit_function());
    assert!(!stream.admit(wait_for(&gate)));
    set(&gate);
}

fn let_go_later(let_go: mpsc::Sender<()>) {
    std::thread::spawn(move || {
        std::thread::sleep(5 * DEFERRED_CALL_WAIT);
        let _ = let_go.send(());
    });
}

/// A queue that counts how often it is tended.
#[derive(Default)]
struct Counting(AtomicUsize);

impl Tended for Counting {
    fn tend(&self) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn feed(&self) -> Fed {
        Fed::default()
    }

    fn find_finished_streams(&self) {}
}

#[test]
fn what_was_dropped_is_looked_for_soon() {
    let scheduler = Scheduler::new();
    let queue = Arc::new(Counting::default());
    // Without a busy queue, this has no effect.
    scheduler.tend_soon();
    assert!(scheduler.state().tended_soon_until.is_none());
    scheduler.watch(Arc::clone(&queue) as _);
    let looks = || queue.0.load(Ordering::Relaxed);
    until(|| looks() > 0);
    // Ten checks at the usual interval would take ten intervals.
    let began = Instant::now();
    for _ in 0..10 {
        let before = looks();
        scheduler.tend_soon();
        until(|| looks() > before);
    }
    let taken = began.elapsed();
    assert!(taken < 7 * TEND_INTERVAL, "{taken:?}");
    scheduler.forget(&*queue);
}
