//! Streams without a driver.

use super::traffic::{LONGEST, PATIENCE};
use super::*;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Long enough for whatever should happen.
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

/// Waits until something is so.
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

/// Something to be done when it is quiet, and whether it was.
fn chore(traffic: &Arc<Traffic>, bytes: usize) -> Flag {
    let is_done = flag();
    let done = Arc::clone(&is_done);
    traffic.when_quiet(bytes, move || set(&done));
    is_done
}

#[test]
fn so_many_wait_and_nothing_that_needs_quiet_is_done_meanwhile() {
    let traffic = Arc::default();
    let most = most_blocked();
    let gates: Vec<_> = (0..=most).map(|_| flag()).collect();
    let streams: Vec<_> = (0..=most).map(|_| Known::new(&traffic)).collect();
    let nobody_waits = chore(&traffic, 1);
    until(|| is_set(&nobody_waits));

    for (index, stream) in streams.iter().enumerate() {
        assert_eq!(stream.admit(wait_for(&gates[index])), index < most);
    }
    assert!(
        streams[0].admit(wait_for(&gates[0])),
        "who waits already may wait more"
    );
    let [small, large] = [1, PATIENCE].map(|bytes| chore(&traffic, bytes));
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

    let kept = chore(&traffic, 1);
    traffic.make_room();
    assert!(!is_set(&kept), "it waits only a while");
    drop(streams);
    until(|| is_set(&kept));
}

#[test]
fn what_never_gets_quiet_holds_up_nobody() {
    let traffic: Arc<Traffic> = Arc::default();
    let streams: Vec<_> = (0..2).map(|_| Known::new(&traffic)).collect();
    let gate = flag();
    // As the driver, which waits for a stream of the program's.
    for is_urgent in [false, true] {
        let (let_go, blocked) = mpsc::channel::<()>();
        let is_done = flag();
        let done = Arc::clone(&is_done);
        let act = move || {
            let _ = blocked.recv_timeout(SOON);
            set(&done);
        };
        let began = Instant::now();
        match is_urgent {
            true => traffic.at_once(act),
            false => traffic.when_quiet(PATIENCE + 1, act),
        }
        let later = chore(&traffic, PATIENCE + 1);
        traffic.make_room();
        assert!(began.elapsed() < SOON / 2 && !is_set(&is_done) && !is_set(&later));
        std::thread::sleep(LONGEST);
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
    let [here, there]: [Arc<Traffic>; 2] = Default::default();
    let gate = flag();
    let known = |traffic, count| (0..count).map(|_| Known::new(traffic)).collect::<Vec<_>>();
    let waiting = known(&here, connections());
    for stream in &waiting {
        stream.begin_anyway();
        stream.add(wait_for(&gate));
    }
    assert!(here.is_crowded() && !there.is_crowded());
    let [one, other] = [&here, &there].map(|traffic| known(traffic, 1).remove(0));
    assert!(!one.begin() && other.begin());
    assert_eq!(other.admit(wait_for(&gate)), most_blocked() > 0);
    other.clear();
    let elsewhere = chore(&there, 1);
    until(|| is_set(&elsewhere));
    assert!(!is_set(&chore(&here, 1)));
    set(&gate);
}
