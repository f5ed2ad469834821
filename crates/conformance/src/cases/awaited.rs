//! Cases about awaited signals of other processes: futures, streams, callbacks, notifiers and waits
//! for many events. `awaited_deaths.rs` contains the cases about deaths.

use super::awaited_deaths::{VICTIMS, die};
use super::faults::event_of;
use crate::failure::{Failure, Verdict};
use crate::harness::{Harness, deadline, eventually};
use crate::procfs::{self, Usage};
use crate::suite::{Outcome, PASSED};
use crate::{Peer, Pending, block_on, is_pending, next};
use crosshandle::{Command, Context, Error, Event, EventOptions, Notifier, event::Reached};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Timespec;
use std::collections::BTreeSet;
use std::sync::mpsc::{TryRecvError, channel};
use std::time::{Duration, Instant};

/// The name of the thread that awaits signals for its process.
const THREAD: &str = "xh-await";
/// The link in `/proc` of an io_uring's descriptor.
const IO_URING: &str = "[io_uring]";
/// Maximum usual delay. It is far less than the interval at which lost wake-ups are repaired.
const SOON: Duration = Duration::from_millis(20);
/// Number of events in one process that is too large for a single thread to sleep on directly.
pub(super) const MANY: usize = 200;

/// Starts to await a signal in this process. The signal must be pending.
pub(super) fn begin(event: &Event, value: u64) -> Result<Reached, Failure> {
    let mut future = event.reached(value);
    match is_pending(&mut future) {
        true => Ok(future),
        false => Err(Failure::new(format!("{value} is not pending: {event:?}"))),
    }
}

/// Waits for a future, and returns its result.
#[track_caller]
pub(super) fn end(future: Reached) -> Result<crosshandle::Result<()>, Failure> {
    let what = format!("{future:?} is late");
    block_on(future, deadline()).ok_or_else(|| Failure::new(what))
}

/// Waits until the awaiting thread of a process sleeps.
pub(super) fn awaiting(pid: u32) -> Result<(), Failure> {
    eventually(
        "a process awaits signals",
        || match procfs::threads_named(pid, THREAD)?[..] {
            [] => Ok(false),
            [thread] => Ok(procfs::is_asleep(pid, thread)?),
            _ => Err(Failure::new("several threads await signals")),
        },
    )
}

/// Makes a peer await signals, and returns when it does.
pub(super) fn begin_there<'a>(
    peer: &'a Peer,
    questions: &[String],
) -> Result<Vec<Pending<'a>>, Failure> {
    let begun = questions
        .iter()
        .map(|question| peer.begin_and_sleep(question))
        .collect::<Result<_, _>>()?;
    awaiting(peer.pid())?;
    Ok(begun)
}

/// Makes a peer open an event of this process under the name `e`.
fn open_as_e(peer: &Peer, event: &Event) -> Result<(), Failure> {
    peer.ask(format!("open-event e {}", event.handle()?))?;
    Ok(())
}

/// Creates events in a peer, under the names `e0`, `e1` and so on, and opens them in this process.
pub(super) fn events_of(
    peer: &Peer,
    context: &Context,
    count: usize,
) -> Result<Vec<Event>, Failure> {
    let open = |index| Ok(context.open_event(&event_of(peer, &format!("e{index}"))?)?);
    (0..count).map(open).collect()
}

/// Waits for notifications, takes them, and passes each token and result to `f`. Returns their
/// number.
pub(super) fn take(
    notifier: &Notifier,
    f: &mut impl FnMut(u64, crosshandle::Result<()>) -> Result<(), Failure>,
) -> Result<usize, Failure> {
    let limit = Timespec::try_from(deadline())?;
    let mut files = [PollFd::new(notifier, PollFlags::IN)];
    if poll(&mut files, Some(&limit))? == 0 {
        return Err(Failure::new("a notifier is late"));
    }
    let mut count = 0;
    while let Some(notification) = notifier.next() {
        count += 1;
        f(notification.token, notification.result)?;
    }
    Ok(count)
}

/// A peer awaits this process's signals in every way. Returns the median delay.
fn wake(context: &Context, peer: &Peer) -> Result<Duration, Failure> {
    let event = context.create_event()?;
    open_as_e(peer, &event)?;
    let mut taken = Vec::new();
    for round in 1..=30 {
        let before = round - 1;
        let questions = [
            format!("await e {round}"),
            format!("await-callback e {round}"),
            format!("await-notified 30000 e:{round}"),
            format!("await-stream e {before} {round}"),
        ];
        let awaited = begin_there(peer, &questions)?;
        assert!(!awaited.iter().any(Pending::is_answered));
        let sent = Instant::now();
        event.signal()?;
        for awaited in awaited {
            awaited.reply(deadline())?;
        }
        taken.push(sent.elapsed());
    }
    // The awaiting thread also checks at intervals, so a lost wake-up is only visible as a long
    // delay.
    taken.sort_unstable();
    let usual = taken[taken.len() / 2];
    assert!(usual < SOON, "usually known after {usual:?} only");
    Ok(usual)
}

/// A host's signal completes everything that awaits it in other processes.
pub(crate) fn a_signal_wakes_futures_elsewhere(harness: &Harness) -> Verdict {
    let (context, peer) = harness.with_peer()?;
    let usual = wake(&context, &peer)?;
    // In the other direction, a peer signals and this process awaits.
    let event = context.open_event(&event_of(&peer, "theirs")?)?;
    for round in 1..=30 {
        let future = begin(&event, round)?;
        awaiting(std::process::id())?;
        peer.ask("signal theirs")?;
        end(future)??;
    }
    Ok(Outcome::Passed(format!("usually known after {usual:?}")))
}

/// A peer and this process await signals of each other's queues.
fn signal_by_queues(context: &Context, peer: &Peer) -> Result<(), Failure> {
    let (gate, event) = (context.create_event()?, context.create_event()?);
    open_as_e(peer, &event)?;
    let queue = context.create_queue()?;
    queue.submit(Command::barrier().after_value(&gate, 1))?;
    let there = |numbers: &[u64]| {
        let questions = numbers.iter().map(|number| format!("await e {number}"));
        begin_there(peer, &Vec::from_iter(questions))
    };
    let here = |numbers: &[u64]| -> Result<Vec<Reached>, Failure> {
        numbers
            .iter()
            .map(|number| begin(&event, *number))
            .collect()
    };
    // One wait starts before its signal is submitted, and the others while the signals wait for the
    // gate. There are more signals than the event has words.
    let mut awaited = there(&[30])?;
    for _ in 0..30 {
        queue.signal(&event)?;
    }
    awaited.extend(there(&[8, 1, 15, 29])?);
    let own = here(&[29, 2, 9])?;
    assert!(!awaited.iter().any(Pending::is_answered));
    gate.signal()?;
    for awaited in awaited {
        awaited.reply(deadline())?;
    }
    for future in own {
        end(future)??;
    }
    queue.finish_timeout(deadline())?;
    // The peer's queue signals for this process and for the peer itself.
    peer.ask("event gate")?;
    peer.ask("queue q")?;
    peer.ask("submit q barrier after-value=gate:1")?;
    let own = here(&[31, 35, 40])?;
    for _ in 0..10 {
        peer.ask("submit q barrier signal=e")?;
    }
    let awaited = there(&[40, 33])?;
    assert!(!awaited.iter().any(Pending::is_answered));
    peer.ask("signal gate")?;
    for future in own {
        end(future)??;
    }
    for awaited in awaited {
        awaited.reply(deadline())?;
    }
    peer.ask("finish q 10000")?;
    Ok(())
}

/// A queue's signal completes everything that awaits it, in the queue's process and in others. This
/// also holds if a device signals, which wakes no thread.
pub(crate) fn queues_signal_what_is_awaited(harness: &Harness) -> Verdict {
    signal_by_queues(&harness.context()?, &harness.peer()?)?;
    PASSED
}

/// A peer awaits several values of one event that was not signalled yet.
fn several_values(context: &Context, peer: &Peer) -> Result<(), Failure> {
    let event = context.create_event()?;
    open_as_e(peer, &event)?;
    let values = [20, 3, 1, 9, 4, 3];
    let questions = values.map(|value| format!("await e {value}"));
    let mut awaited = Vec::from_iter(values.into_iter().zip(begin_there(peer, &questions)?));
    for reached in [1, 4, 5, 25] {
        event.signal_value(reached)?;
        let (due, later): (Vec<_>, _) = awaited
            .into_iter()
            .partition(|(value, _)| *value <= reached);
        for (_, due) in due {
            due.reply(deadline())?;
        }
        assert!(!later.iter().any(|(_, later)| later.is_answered()));
        awaited = later;
    }
    assert!(awaited.is_empty());
    Ok(())
}

/// Each value of an event completes what awaits it, and nothing that awaits a later value.
pub(crate) fn several_values_of_one_event(harness: &Harness) -> Verdict {
    several_values(&harness.context()?, &harness.peer()?)?;
    PASSED
}

/// The failure of a command reaches everything that awaits its signal, from a peer to this process
/// and back.
pub(crate) fn failed_commands_fail_futures(harness: &Harness) -> Verdict {
    let (context, peer) = harness.with_peer()?;
    let event = context.create_event()?;
    open_as_e(&peer, &event)?;
    peer.ask("queue q")?;
    let failed = |result: crosshandle::Result<()>| match result {
        Err(Error::CommandFailed(_)) => Ok(()),
        other => Err(Failure::new(format!("{other:?}"))),
    };
    let future = begin(&event, 1)?;
    let (tell, told) = channel();
    let subscription = event.on_signal(1, move |result| drop(tell.send(result)))?;
    let notifier = Notifier::new()?;
    notifier.add(&event, 1, 7)?;
    let mut values = event.values(0);
    peer.ask("submit q fail no-ink signal=e")?;
    failed(end(future)?)?;
    failed(told.recv_timeout(deadline())?)?;
    take(&notifier, &mut |token, result| {
        assert_eq!(token, 7);
        failed(result)
    })?;
    let mut item = || match next(&mut values, deadline()) {
        Some(Some(item)) => Ok(item),
        other => Err(Failure::new(format!("{other:?}"))),
    };
    failed(item()?.map(drop))?;
    // A failure does not end the stream.
    peer.ask("signal e")?;
    assert_eq!(item()??, 2);
    drop(subscription);

    let awaited = begin_there(
        &peer,
        &["await", "await-callback"].map(|command| format!("{command} e 3")),
    )?;
    let queue = context.create_queue()?;
    queue.submit(Command::call(|| Err::<(), _>("no paper")).signal(&event))?;
    for awaited in awaited {
        let refused = awaited.reply(deadline()).expect_err("it failed");
        assert_eq!(refused.kind, "CommandFailed", "{refused}");
    }
    queue.finish_timeout(deadline())?;
    PASSED
}

/// A function is called once for each of a peer's signals that it awaits, and not at all if it was
/// cancelled.
pub(crate) fn functions_are_called_once(harness: &Harness) -> Verdict {
    const COUNT: u64 = 50;
    let (context, peer) = harness.with_peer()?;
    let event = context.open_event(&event_of(&peer, "e")?)?;
    let (tell, told) = channel();
    let on_signal = |value: u64| {
        let tell = tell.clone();
        event.on_signal(value, move |result| drop(tell.send((value, result))))
    };
    for value in 1..=COUNT {
        on_signal(value)?.detach();
        drop(on_signal(value)?);
    }
    drop(on_signal(COUNT + 1)?);
    awaiting(std::process::id())?;
    peer.ask(format!("signal e {COUNT}"))?;
    let mut called = BTreeSet::new();
    for _ in 0..COUNT {
        let (value, result) = told.recv_timeout(deadline())?;
        result?;
        assert!(called.insert(value), "{value} again");
    }
    // Calls are made in order, so this call comes after any call that should not happen.
    let last = on_signal(COUNT + 1)?;
    peer.ask("signal e")?;
    let (value, result) = told.recv_timeout(deadline())?;
    assert_eq!((value, result.is_ok()), (COUNT + 1, true));
    let after = on_signal(COUNT)?;
    assert_eq!(told.recv_timeout(deadline())?.0, COUNT);
    assert_eq!(told.try_recv().err(), Some(TryRecvError::Empty));
    drop((last, after));
    PASSED
}

/// A notifier reports each of 300 events of a peer once, in any order of the signals.
pub(crate) fn a_notifier_over_many_events_of_a_peer(harness: &Harness) -> Verdict {
    const COUNT: usize = 300;
    /// This number and [`COUNT`] have no common divisor.
    const STRIDE: usize = 91;
    let (context, peer) = harness.with_peer()?;
    let events = events_of(&peer, &context, COUNT)?;
    let notifier = Notifier::new()?;
    for (token, event) in (0..).zip(&events) {
        notifier.add(event, 1, token)?;
    }
    awaiting(std::process::id())?;
    assert!(notifier.next().is_none());
    let mut tokens = BTreeSet::new();
    let mut note = |token, result: crosshandle::Result<()>| {
        result?;
        assert!(tokens.insert(token), "{token} again");
        Ok(())
    };
    std::thread::scope(|scope| {
        let signals = scope.spawn(|| -> Result<(), Failure> {
            for step in 0..COUNT {
                peer.ask(format!("signal e{}", step * STRIDE % COUNT))?;
            }
            Ok(())
        });
        let mut count = 0;
        while count < COUNT {
            count += take(&notifier, &mut note)?;
        }
        signals.join().expect("no panic")
    })?;
    assert!(tokens.into_iter().eq(0..COUNT as u64));
    let mut files = [PollFd::new(&notifier, PollFlags::IN)];
    assert_eq!(poll(&mut files, Some(&Timespec::default()))?, 0);
    PASSED
}

/// Streams of one event in two processes return increasing values up to the last one.
pub(crate) fn a_stream_of_a_peers_signals(harness: &Harness) -> Verdict {
    const COUNT: u64 = 100_000;
    let (context, peer) = harness.with_peer()?;
    let event = context.create_event()?;
    open_as_e(&peer, &event)?;
    let mut values = event.values(0);
    let there = peer.begin_and_sleep(format!("await-stream e 0 {}", 2 * COUNT))?;
    let signals = peer.begin(format!("signal e {COUNT}"));
    for _ in 0..COUNT {
        event.signal()?;
    }
    let (mut last, mut items) = (0, 0);
    while last < 2 * COUNT {
        let item = next(&mut values, deadline()).flatten();
        let value = item.ok_or_else(|| Failure::new(format!("nothing after {last}")))??;
        assert!(value > last && value <= 2 * COUNT, "{value} after {last}");
        last = value;
        items += 1;
    }
    signals.reply(deadline())?;
    let theirs = there.reply(deadline())?;
    Ok(Outcome::Passed(format!(
        "{items} items here, {} there",
        theirs.join(" ")
    )))
}

/// Events whose counters have their own memory can be awaited like others.
pub(crate) fn isolated_events(harness: &Harness) -> Verdict {
    let (context, peer) = harness.with_peer()?;
    let event = context.create_event_with(EventOptions::new().isolated(true))?;
    open_as_e(&peer, &event)?;
    peer.ask("event theirs isolated=yes")?;
    let handle = peer.ask("event-handle theirs")?.remove(0).parse()?;
    let theirs = context.open_event(&handle)?;
    for round in 1..=10 {
        let there = begin_there(&peer, &[format!("await e {round}")])?;
        let here = begin(&theirs, round)?;
        event.signal()?;
        peer.ask("signal theirs")?;
        end(here)??;
        for there in there {
            there.reply(deadline())?;
        }
    }
    // An awaited event stays alive even if no program has it open any more.
    let here = begin(&theirs, 11)?;
    drop(theirs);
    awaiting(std::process::id())?;
    peer.kill();
    fails!(end(here)?, PeerDied);
    PASSED
}

/// Futures and callbacks are dropped while a peer signals their events. Other waiters lose nothing.
pub(crate) fn cancelled_while_a_peer_signals(harness: &Harness) -> Verdict {
    const COUNT: u64 = 200_000;
    let (context, peer) = harness.with_peer()?;
    let event = context.create_event()?;
    open_as_e(&peer, &event)?;
    let kept = (1..=20)
        .map(|step| begin(&event, step * COUNT / 20))
        .collect::<Result<Vec<_>, _>>()?;
    let there = peer.begin(format!("await-dropped e {COUNT}"));
    there.begun()?;
    let signals = peer.begin(format!("signal e {COUNT}"));
    let mut dropped = 0;
    while event.completed() < COUNT {
        let next = event.completed() + 1;
        let mut futures = [next, next + 1, next + 7].map(|value| event.reached(value));
        dropped += futures.iter_mut().map(is_pending).filter(|it| *it).count();
        drop(event.on_signal(next, |_| ())?);
    }
    signals.reply(deadline())?;
    for future in kept {
        end(future)??;
    }
    let theirs = there.reply(deadline())?;
    Ok(Outcome::Passed(format!(
        "{dropped} were dropped here, {} there",
        theirs.join(" ")
    )))
}

/// Waits for any and for all of many events complete with a peer's signals. One thread could not
/// sleep on so many events.
pub(crate) fn waits_for_many_events_of_a_peer(harness: &Harness) -> Verdict {
    wait_for_many(harness, &harness.peer()?)?;
    PASSED
}

fn wait_for_many(harness: &Harness, witness: &Peer) -> Result<(), Failure> {
    let exporter = harness.peer()?;
    for index in 0..MANY {
        let handle = event_of(&exporter, &format!("e{index}"))?;
        witness.ask(format!("open-event e{index} {handle}"))?;
    }
    let names = Vec::from_iter((0..MANY).map(|index| format!("e{index}")));
    let (all, next) = (names.join(" "), names.join(":1 ") + ":1");
    witness.refused(format!("wait-all 0 {all}"), "TimedOut")?;
    witness.refused(format!("wait-any-value 20 {next}"), "TimedOut")?;
    let any = begin_there(witness, &[format!("wait-any-value 30000 {next}")])?;
    exporter.ask("signal e150")?;
    for any in any {
        assert_eq!(any.reply(deadline())?, ["150"]);
    }
    exporter.ask("event gate")?;
    exporter.ask("queue q")?;
    exporter.ask("submit q barrier after-value=gate:1")?;
    for name in &names {
        exporter.ask(format!("submit q barrier signal={name}"))?;
    }
    witness.refused(format!("wait-all 20 {all}"), "TimedOut")?;
    let awaited = begin_there(witness, &[format!("wait-all 30000 {all}")])?;
    exporter.ask("signal gate")?;
    for awaited in awaited {
        awaited.reply(deadline())?;
    }
    Ok(())
}

/// A peer awaits events in more arenas than one system call can watch words. Returns whether it
/// uses io_uring for this.
fn many_arenas(context: &Context, peer: &Peer) -> Result<bool, Failure> {
    let options = EventOptions::new().isolated(true);
    let mut events = Vec::new();
    for index in 0..MANY {
        let event = context.create_event_with(options)?;
        peer.ask(format!("open-event own{index} {}", event.handle()?))?;
        events.push(event);
    }
    let names = (0..MANY).map(|index| format!(" own{index}:1"));
    let question = format!("await-notified 30000{}", String::from_iter(names));
    let awaited = begin_there(peer, &[question])?;
    let by_ring = procfs::descriptors_named(peer.pid(), IO_URING)? > 0;
    for event in events.iter().rev() {
        event.signal()?;
    }
    for awaited in awaited {
        assert_eq!(awaited.reply(deadline())?.len(), MANY);
    }
    Ok(by_ring)
}

/// Any number of events with their own memory can be awaited at once.
pub(crate) fn many_isolated_events(harness: &Harness) -> Verdict {
    let (context, peer) = harness.with_peer()?;
    let means = match many_arenas(&context, &peer)? {
        true => "by io_uring",
        false => "without io_uring",
    };
    Ok(Outcome::Passed(means.to_owned()))
}

/// When everything awaited has completed or was dropped, no process has more descriptors, mappings
/// or threads than before.
pub(crate) fn nothing_is_left_behind(harness: &Harness) -> Verdict {
    const COUNT: u64 = 100;
    let (context, peer) = harness.with_peer()?;
    let pids = [std::process::id(), peer.pid()];
    let round = || -> Result<(), Failure> {
        let options = EventOptions::new();
        let mut events = Vec::new();
        for index in 0..COUNT {
            let options = options.isolated(index.is_multiple_of(4));
            let event = context.create_event_with(options)?;
            peer.ask(format!("open-event e{index} {}", event.handle()?))?;
            events.push(event);
        }
        let futures = events
            .iter()
            .flat_map(|event| [1, 2].map(|value| begin(event, value)))
            .collect::<Result<Vec<_>, _>>()?;
        let notifier = Notifier::new()?;
        let mut subscriptions = Vec::new();
        for (token, event) in (0..).zip(&events) {
            notifier.add(event, 1 + token % 2, token)?;
            subscriptions.push(event.on_signal(1 + token % 3, drop)?);
        }
        let all = (0..COUNT).map(|index| format!(" e{index}:1"));
        let question = format!("await-notified 30000{}", String::from_iter(all));
        let there = begin_there(&peer, &[question])?;
        for index in 0..COUNT {
            peer.ask(format!("signal e{index}"))?;
        }
        for (index, future) in futures.into_iter().enumerate() {
            // The other futures are dropped.
            if index.is_multiple_of(2) {
                end(future)??;
            }
        }
        for there in there {
            there.reply(deadline())?;
        }
        drop((notifier, subscriptions, events));
        for index in 0..COUNT {
            peer.ask(format!("close e{index}"))?;
        }
        Ok(())
    };
    let rest = || {
        eventually("no thread awaits a signal", || {
            let mut threads = 0;
            for pid in pids {
                threads += procfs::threads_named(pid, THREAD)?.len();
                threads += procfs::threads_named(pid, "xh-background")?.len();
            }
            Ok(threads == 0)
        })?;
        // The exporter notices that the peer has closed objects when it frees an exported object.
        for _ in 0..COUNT {
            context.create_event()?.handle()?;
        }
        Ok::<_, Failure>(())
    };
    let usage = |pid| -> Result<_, Failure> {
        let descriptors = Usage::of(pid)?.descriptors;
        // Mappings without a name are stacks and heaps of threads, which the C library keeps.
        let mut mappings = procfs::mappings(pid)?;
        mappings.retain(|name, _| name.contains(['/', ':']));
        Ok((descriptors, mappings, procfs::threads(pid)?))
    };
    for _ in 0..3 {
        round()?;
    }
    rest()?;
    let before = [usage(pids[0])?, usage(pids[1])?];
    for _ in 0..5 {
        round()?;
    }
    rest()?;
    for ((descriptors, mappings, threads), pid) in before.into_iter().zip(pids) {
        let (descriptors_after, mappings_after, threads_after) = usage(pid)?;
        let more = procfs::more_than(&mappings, &mappings_after);
        assert!(
            descriptors_after <= descriptors && more.is_empty() && threads_after <= threads,
            "{descriptors} descriptors became {descriptors_after}, {threads} threads became \
             {threads_after}, more mappings: {more:?}"
        );
    }
    PASSED
}

/// Signals, queues, many events and deaths reach a process that lacks some of the system calls for
/// watching many words.
fn without(harness: &Harness, calls: &str) -> Verdict {
    let context = harness.context()?;
    let refused = || -> Result<Peer, Failure> {
        let peer = harness.peer()?;
        peer.ask(format!("forbid-calls {calls}"))?;
        Ok(peer)
    };
    let peer = refused()?;
    let usual = wake(&context, &peer)?;
    signal_by_queues(&context, &peer)?;
    several_values(&context, &peer)?;
    wait_for_many(harness, &peer)?;
    assert!(!many_arenas(&context, &peer)?, "it may not use io_uring");
    let mut slowest = Duration::ZERO;
    for victim in VICTIMS {
        let times = die(harness, victim, refused()?)?;
        slowest = times.into_iter().fold(slowest, Duration::max);
    }
    assert!(
        slowest < harness.promptness(),
        "the slowest knew after {slowest:?}"
    );
    Ok(Outcome::Passed(format!(
        "signals usually known after {usual:?}, deaths at the latest after {slowest:?}"
    )))
}

/// A process that may not use io_uring, as in most containers, can still await signals.
pub(crate) fn without_io_uring(harness: &Harness) -> Verdict {
    without(harness, "io_uring_setup")
}

/// A process whose kernel cannot watch several words at all, as before Linux 5.16, polls them.
pub(crate) fn without_futexes_of_many(harness: &Harness) -> Verdict {
    without(harness, "io_uring_setup futex_waitv")
}
