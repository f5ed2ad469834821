//! Kernels signal events and wait for them, together with hosts, streams and other processes.

use crate::device_code::{DeviceCode, DeviceResult, LITMUS_WORDS};
use crate::failure::{Failure, Verdict};
use crate::harness::{Harness, deadline};
use crate::suite::{Outcome, PASSED};
use crosshandle::{AllocationOptions, Command, Context, Error, Event, EventOptions, MemoryKind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Timeout of a kernel's wait that should end.
const LONG: Duration = Duration::from_secs(8);

fn single(context: &Context) -> crosshandle::Result<Event> {
    context.create_event_with(EventOptions::new().single_signaller(true))
}

fn expect(result: DeviceResult, status: u64) -> Result<(), Failure> {
    match result.status == status {
        true => Ok(()),
        false => Err(Failure::new(format!("{result:?}, not status {status}"))),
    }
}

/// A kernel of each process signals its event and waits for the event of the other process.
/// Processes that share a GPU run one after the other, each for its time slice, so a round takes
/// milliseconds there.
pub(crate) fn kernels_take_turns(harness: &Harness) -> Verdict {
    const ROUNDS: u64 = 20;
    let (context, peer) = harness.with_peer()?;
    let code = DeviceCode::load(&context)?;
    let ping = single(&context)?;
    peer.ask("load-device-code code")?;
    peer.ask("event pong single=yes")?;
    peer.ask(format!("open-event ping {}", ping.handle()?))?;
    let pong = context.open_event(&peer.ask("event-handle pong")?.remove(0).parse()?)?;
    let millis = deadline().as_millis();
    peer.ask(format!("start-turns code pong ping {ROUNDS} {millis}"))?;
    code.start_turns(&ping, &pong, ROUNDS, true, deadline())?;
    let result = code.end(2 * deadline())?;
    expect(result, DeviceResult::COMPLETE)?;
    assert_eq!(result.rounds, ROUNDS);
    let theirs = peer.ask(format!("end-device-code code {millis}"))?;
    assert_eq!(theirs, ["0", &ROUNDS.to_string()]);
    assert_eq!((ping.submitted(), pong.completed()), (ROUNDS, ROUNDS));
    let status = ping.status();
    assert_eq!((status.submitted, status.completed), (ROUNDS, ROUNDS));
    assert!(matches!(status.latest, Some(Ok(()))), "{status:?}");
    let each = result.time / ROUNDS as u32;
    Ok(Outcome::Passed(format!("{each:.1?} a round")))
}

/// A kernel of the peer waits for this thread and signals it. This thread sleeps in between.
pub(crate) fn hosts_and_kernels_signal_each_other(harness: &Harness) -> Verdict {
    const ROUNDS: u64 = 50;
    let (context, peer) = harness.with_peer()?;
    let ping = context.create_event()?;
    // The words of these signals were never written, and the kernel starts after them.
    for _ in 0..10 {
        ping.signal()?;
    }
    peer.ask("load-device-code code")?;
    peer.ask("event pong single=yes")?;
    peer.ask(format!("open-event ping {}", ping.handle()?))?;
    let pong = context.open_event(&peer.ask("event-handle pong")?.remove(0).parse()?)?;
    assert!(!pong.try_wait()?);
    let millis = deadline().as_millis();
    peer.ask(format!("start-turns code pong ping {ROUNDS} {millis}"))?;
    let start = Instant::now();
    for round in 1..=ROUNDS {
        ping.signal()?;
        pong.wait_value_timeout(round, deadline())?;
    }
    let each = start.elapsed() / ROUNDS as u32;
    let theirs = peer.ask(format!("end-device-code code {millis}"))?;
    assert_eq!(theirs, ["0", &ROUNDS.to_string()]);
    assert!(pong.try_wait()? && pong.try_wait_submitted()?);
    assert_eq!(pong.latest_or_first(), ROUNDS);
    // The lateness of a thread that sleeps until a kernel signals.
    const SIGNALS: u64 = 20;
    const PAUSE: Duration = Duration::from_millis(4);
    let pause = PAUSE.as_micros();
    peer.ask(format!("start-signals code pong {SIGNALS} 0 {pause}"))?;
    let mut longest = Duration::ZERO;
    for number in 1..=SIGNALS {
        let before = Instant::now();
        pong.wait_value_timeout(ROUNDS + number, deadline())?;
        longest = longest.max(before.elapsed());
    }
    assert_eq!(pong.completed(), ROUNDS + SIGNALS);
    Ok(Outcome::Passed(format!(
        "{each:.1?} a round; signals every 4 ms, waited at most {longest:.1?}"
    )))
}

/// Kernels of two processes send items through a channel, in both directions, in device memory and
/// in host memory. Each tenth item is a failure. Then a thread of the host is the consumer.
pub(crate) fn channels_pass_items(harness: &Harness) -> Verdict {
    const ITEMS: u64 = 60;
    const DEPTH: u64 = 4;
    const SLOT_BYTES: usize = 64;
    let (context, peer) = harness.with_peer()?;
    let code = DeviceCode::load(&context)?;
    let millis = deadline().as_millis();
    peer.ask("load-device-code code")?;
    let mut report = Vec::new();
    let kinds = [("device", None), ("host", Some(MemoryKind::Host))];
    for (index, (name, kind)) in kinds.into_iter().enumerate() {
        let options = AllocationOptions::new(DEPTH as usize * SLOT_BYTES);
        let options = match kind {
            Some(kind) => options.kind(kind),
            None => options,
        };
        let slots = Arc::new(context.allocate_with(options)?);
        let is_producer = index == 0;
        let ours = single(&context)?;
        peer.ask(format!("event theirs-{name} single=yes"))?;
        peer.ask(format!("open-event ours-{name} {}", ours.handle()?))?;
        peer.ask(format!("open-memory slots-{name} {}", slots.handle()?))?;
        let handle = peer.ask(format!("event-handle theirs-{name}"))?.remove(0);
        let theirs = context.open_event(&handle.parse()?)?;
        let (full, empty) = match is_producer {
            true => (&ours, &theirs),
            false => (&theirs, &ours),
        };
        let channel = code.channel(full, empty, &slots, DEPTH)?;
        let names = match is_producer {
            true => format!("ours-{name} theirs-{name}"),
            false => format!("theirs-{name} ours-{name}"),
        };
        let produces = u64::from(!is_producer);
        peer.ask(format!(
            "start-items code {names} slots-{name} {DEPTH} {produces} {ITEMS} {millis}"
        ))?;
        code.start_items(channel, is_producer, ITEMS, deadline())?;
        let result = code.end(2 * deadline())?;
        let other = peer.ask(format!("end-device-code code {millis}"))?;
        assert_eq!((result.status, result.rounds), (0, ITEMS), "{name}");
        assert_eq!(other, ["0", &ITEMS.to_string()], "{name}");
        report.push(format!("{name} {:.1?} an item", result.time / ITEMS as u32));
    }
    // The producer's kernel waits for room, which a thread makes.
    let options = AllocationOptions::new(DEPTH as usize * SLOT_BYTES).kind(MemoryKind::Host);
    let slots = Arc::new(context.allocate_with(options)?);
    let (full, empty) = (single(&context)?, context.create_event()?);
    let channel = code.channel(&full, &empty, &slots, DEPTH)?;
    code.start_items(channel, true, ITEMS, deadline())?;
    for item in 1..=ITEMS {
        match (full.wait_value_timeout(item, deadline()), item % 10 == 0) {
            (Ok(()), false) | (Err(Error::CommandFailed(_)), true) => {}
            (result, _) => return Err(Failure::new(format!("item {item}: {result:?}"))),
        }
        let mut bytes = [0; 8];
        slots.read(((item - 1) % DEPTH) as usize * SLOT_BYTES, &mut bytes)?;
        assert_eq!(u64::from_ne_bytes(bytes), item * 8);
        assert!(
            full.completed() < item + DEPTH,
            "item {item} was overwritten"
        );
        empty.signal()?;
    }
    expect(code.end(deadline())?, DeviceResult::COMPLETE)?;
    Ok(Outcome::Passed(report.join(", ")))
}

/// A litmus test of the memory model: a wait makes the words visible that all threads of the other
/// side wrote before its signal. The threads access the words without synchronization.
pub(crate) fn writes_are_visible_after_waits(harness: &Harness) -> Verdict {
    /// Rounds with a thread of the host, and with another kernel, which may need a time slice each.
    const ROUNDS: u64 = 1000;
    const KERNEL_ROUNDS: u64 = 50;
    let (context, peer) = harness.with_peer()?;
    let code = DeviceCode::load(&context)?;
    let words = AllocationOptions::new(DeviceCode::LITMUS_BYTES).kind(MemoryKind::Host);
    let words = Arc::new(context.allocate_with(words)?);
    words.write(0, &[0; DeviceCode::LITMUS_BYTES])?;
    let (ping, single_ping) = (context.create_event()?, single(&context)?);
    peer.ask("load-device-code code")?;
    peer.ask("event pong single=yes")?;
    peer.ask(format!("open-memory words {}", words.handle()?))?;
    peer.ask(format!("open-event ping {}", ping.handle()?))?;
    peer.ask(format!("open-event single-ping {}", single_ping.handle()?))?;
    let pong = context.open_event(&peer.ask("event-handle pong")?.remove(0).parse()?)?;
    let millis = deadline().as_millis();
    peer.ask(format!(
        "start-litmus code pong ping words {ROUNDS} {millis}"
    ))?;
    let start = Instant::now();
    for round in 1..=ROUNDS {
        let all = words.bytes()?.atomics()?;
        let part = |side: usize| {
            let begin = (2 * side + round as usize % 2) * LITMUS_WORDS;
            let values = round * LITMUS_WORDS as u64..;
            all[begin..begin + LITMUS_WORDS].iter().zip(values)
        };
        part(0).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        ping.signal()?;
        pong.wait_value_timeout(round, deadline())?;
        for (word, value) in part(1) {
            assert_eq!(
                word.load(Ordering::Relaxed),
                value,
                "round {round} is stale"
            );
        }
    }
    let each = start.elapsed() / ROUNDS as u32;
    let theirs = peer.ask(format!("end-device-code code {millis}"))?;
    assert_eq!(theirs, ["0", &ROUNDS.to_string()]);
    // The same words, in a kernel of each process.
    let events = [&single_ping, &pong];
    // The count of waits begins before the other side's signals.
    let _counts = context.device_event(&pong)?;
    peer.ask(format!(
        "start-litmus code pong single-ping words {KERNEL_ROUNDS} {millis}"
    ))?;
    code.start_litmus(events, &words, 0, KERNEL_ROUNDS, deadline())?;
    let result = code.end(2 * deadline())?;
    expect(result, DeviceResult::COMPLETE)?;
    let theirs = peer.ask(format!("end-device-code code {millis}"))?;
    assert_eq!(theirs, ["0", &KERNEL_ROUNDS.to_string()]);
    assert_eq!(result.rounds, KERNEL_ROUNDS);
    Ok(Outcome::Passed(format!("{each:.1?} a round with a host")))
}

/// Streams wait for kernels' signals and kernels for streams' signals. Queues signal an event with
/// a single signaller by counting on the device.
pub(crate) fn streams_and_kernels_signal_each_other(harness: &Harness) -> Verdict {
    const SIGNALS: u64 = 30;
    let (context, transfer) = harness.transfer()?;
    let (code, peer) = (DeviceCode::load(&context)?, harness.peer()?);
    let (counted, done) = (single(&context)?, context.create_event()?);
    let memory = context.allocate(4096)?;
    peer.ask("queue q")?;
    peer.ask(format!("open-event counted {}", counted.handle()?))?;
    peer.ask(format!("open-event done {}", done.handle()?))?;
    // A stream of the peer waits for the kernel, and the kernel for the stream.
    peer.ask("submit q barrier after-value=counted:3 signal=done")?;
    assert!(!done.try_wait_value(1)?);
    code.start_signals(&counted, 3, 0, Duration::from_micros(50))?;
    code.end(deadline())?;
    done.wait_value_timeout(1, deadline())?;
    code.start_wait(&done, 2, deadline())?;
    peer.ask("submit q barrier signal=done")?;
    expect(code.end(deadline())?, DeviceResult::COMPLETE)?;
    // The host runs no kernels that count.
    if harness.is_host() {
        return PASSED;
    }
    // Signals of queues and kernels share one count.
    let queue = context.create_queue()?;
    for _ in 0..SIGNALS {
        let fill = Command::fill(memory.all(), &[7])?;
        queue.submit(fill.signal(&counted))?;
    }
    queue.signal(&counted)?;
    queue.finish_timeout(deadline())?;
    assert_eq!(counted.completed(), 3 + SIGNALS + 1);
    code.start_signals(&counted, 1, 0, Duration::ZERO)?;
    counted.wait_value_timeout(3 + SIGNALS + 2, deadline())?;
    code.end(deadline())?;
    let bytes = transfer.read(&memory, 0, 4096)?;
    assert!(bytes.iter().all(|byte| *byte == 7));
    PASSED
}

/// A kernel waits for a process that is killed. It gets the status of a death, whether the
/// process's kernels should have signalled or its host.
pub(crate) fn deaths_end_waits(harness: &Harness) -> Verdict {
    let mut report = Vec::new();
    for (what, options) in [("kernel", "single=yes"), ("host", "")] {
        let (context, peer) = harness.with_peer()?;
        let code = DeviceCode::load(&context)?;
        peer.ask("load-device-code code")?;
        peer.ask(format!("event theirs {options}"))?;
        let theirs = context.open_event(&peer.ask("event-handle theirs")?.remove(0).parse()?)?;
        if !options.is_empty() {
            // The kernel is still at work when the process is killed.
            peer.ask("start-signals code theirs 1000000 0 300")?;
            theirs.wait_value_timeout(3, deadline())?;
        }
        code.start_wait(&theirs, 1 << 20, LONG)?;
        assert!(!theirs.try_wait_value(1 << 20)?);
        let killed = Instant::now();
        peer.kill();
        let result = code.end(2 * LONG)?;
        let took = killed.elapsed();
        expect(result, DeviceResult::PEER_DIED)?;
        if took > harness.promptness() {
            return Err(Failure::new(format!("{what}: {took:?} after the kill")));
        }
        fails!(theirs.wait_value_timeout(1 << 20, deadline()), PeerDied);
        report.push(format!("{what} {took:.1?}"));
    }
    Ok(Outcome::Passed(report.join(", ")))
}

/// A kernel's wait ends at its deadline, or when the host tells it to stop.
pub(crate) fn deadlines_and_aborts_end_waits(harness: &Harness) -> Verdict {
    const SHORT: Duration = Duration::from_millis(20);
    let context = harness.context()?;
    let code = DeviceCode::load(&context)?;
    let event = single(&context)?;
    code.start_wait(&event, 1, SHORT)?;
    let result = code.end(deadline())?;
    expect(result, DeviceResult::TIMED_OUT)?;
    assert!(result.time >= SHORT, "{result:?}");
    if result.time > SHORT + Duration::from_secs(2) {
        return Err(Failure::new(format!("late: {result:?}")));
    }
    code.start_wait(&event, 1, LONG)?;
    context.abort_device_code()?;
    let aborted = code.end(deadline())?;
    expect(aborted, DeviceResult::ABORTED)?;
    context.clear_device_abort()?;
    code.start_wait(&event, 1, SHORT)?;
    expect(code.end(deadline())?, DeviceResult::TIMED_OUT)?;
    Ok(Outcome::Passed(format!("20 ms took {:.1?}", result.time)))
}

/// Signals that a kernel fails reach hosts, streams and kernels of both processes as failures.
pub(crate) fn failures_are_told(harness: &Harness) -> Verdict {
    let (context, peer) = harness.with_peer()?;
    let code = DeviceCode::load(&context)?;
    let event = single(&context)?;
    peer.ask(format!("open-event event {}", event.handle()?))?;
    // A stream waits for a signal that is not submitted yet, and that will fail.
    let (stream, done) = (context.create_queue()?, context.create_event()?);
    stream.submit(Command::barrier().after_value(&event, 6).signal(&done))?;
    // Numbers 1 to 5 succeed, 6 to 14 fail, and 15 to 25 succeed.
    code.start_signals(&event, 5, 9, Duration::ZERO)?;
    code.end(deadline())?;
    fails!(done.wait_timeout(deadline()), CommandFailed);
    code.start_signals(&event, 11, 0, Duration::ZERO)?;
    code.end(deadline())?;
    for number in 1..=25 {
        let is_failed = (6..=14).contains(&number);
        match (event.try_wait_value(number), is_failed) {
            (Ok(true), false) | (Err(Error::CommandFailed(_)), true) => {}
            (result, _) => return Err(Failure::new(format!("{number}: {result:?}"))),
        }
        let theirs = peer.ask(format!("wait-value event {number} 1000"));
        match (&theirs, is_failed) {
            (Ok(_), false) => {}
            (Err(refused), true) if refused.kind == "CommandFailed" => {}
            _ => return Err(Failure::new(format!("{number} in the peer: {theirs:?}"))),
        }
        code.start_wait(&event, number, LONG)?;
        let wanted = match is_failed {
            true => DeviceResult::FAILED,
            false => DeviceResult::COMPLETE,
        };
        expect(code.end(deadline())?, wanted)?;
    }
    PASSED
}

/// Hosts and other processes cannot signal an event with a single signaller.
pub(crate) fn other_signallers_are_refused(harness: &Harness) -> Verdict {
    let (context, peer) = harness.with_peer()?;
    let event = single(&context)?;
    fails!(event.signal(), InvalidArgument);
    fails!(event.signal_value(5), InvalidArgument);
    fails!(event.fail_value(5, "no"), InvalidArgument);
    peer.ask(format!("open-event event {}", event.handle()?))?;
    peer.ask("queue q")?;
    for question in ["signal event", "submit q barrier signal=event"] {
        match peer.ask(question) {
            Err(refused) if ["InvalidArgument", "Unsupported"].contains(&&*refused.kind) => {}
            reply => return Err(Failure::new(format!("{question}: {reply:?}"))),
        }
    }
    let options = EventOptions::new().single_signaller(true);
    fails!(
        context.open_event_with(&event.handle()?, options),
        InvalidArgument
    );
    let other = harness.context()?;
    assert!(!other.device_event(&event)?.can_signal());
    fails!(other.create_queue()?.signal(&event), Unsupported);
    assert!(context.device_event(&event)?.can_signal());
    assert_eq!((event.submitted(), event.completed()), (0, 0));
    fails!(event.wait_timeout(Duration::from_millis(1)), TimedOut);
    PASSED
}
