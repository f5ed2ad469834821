//! Tests when objects are released, what stays alive until then, and who learns of a process's end.

#[allow(dead_code, reason = "each program uses a part of it")]
mod common;

use common::{DEADLINE, Directory, Parent, Process, alone, context, is};
use crosshandle::handle::AnyHandle;
use crosshandle::virtual_memory::{PhysicalMemory, VirtualRange};
use crosshandle::{
    Access, AllocationOptions, Command, ContextOptions, Error, EventHandle, EventOptions, Memory,
};
use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Returns the number of descriptors and of mappings of this process.
fn usage() -> (usize, usize) {
    let descriptors = fs::read_dir("/proc/self/fd").expect("procfs").count();
    let mappings = fs::read_to_string("/proc/self/maps").expect("procfs");
    (descriptors, mappings.lines().count())
}

#[test]
fn contexts_opened_in_their_own_process_leave_nothing() {
    const TEST: &str = "contexts_opened_in_their_own_process_leave_nothing";
    alone(TEST, |directory| {
        let opener = directory.context();
        let round = || {
            let context = directory.context();
            let memory = context.allocate(4096).expect("memory");
            let handle = memory.handle().expect("a handle");
            drop(opener.open_memory(&handle).expect("opened"));
        };
        // These rounds create everything that is created only once.
        (0..5).for_each(|_| round());
        let before = usage();
        (0..100).for_each(|_| round());
        let after = usage();
        assert!(
            after.0 <= before.0 + 4 && after.1 <= before.1 + 8,
            "(descriptors, mappings) {before:?} became {after:?}"
        );
    });
}

/// A value that reports in its drop whether commands use the memory.
struct Asks(Arc<Memory>, Sender<bool>);

impl Drop for Asks {
    fn drop(&mut self) {
        let _ = self.1.send(self.0.is_in_use());
    }
}

#[test]
fn memory_is_in_use_until_what_is_kept_with_it_has_gone() {
    let directory = Directory::new();
    let context = directory.context();
    let queue = context.create_queue().expect("a queue");
    let gate = context.create_event().expect("an event");
    let memory = Arc::new(context.allocate(64).expect("memory"));
    let (said, heard) = channel();
    let asks = Asks(Arc::clone(&memory), said);
    let fill = Command::fill(memory.all().keeping(Arc::new(asks)), &[1]);
    let fill = fill.expect("valid").after_value(&gate, 1);
    queue.submit(fill).expect("submitted");
    gate.signal().expect("signalled");
    assert_eq!(heard.recv_timeout(DEADLINE), Ok(true));
}

#[test]
fn records_of_physical_memory_are_used_again() {
    let directory = Directory::new();
    let (context, opener) = (directory.context(), directory.context());
    let unit = context.device().info().granularity;
    let mut greatest = 0;
    for _ in 0..1_000 {
        let memory = PhysicalMemory::new(&context, unit).expect("memory");
        let handle = memory.handle().expect("a handle");
        let opened = PhysicalMemory::open(&opener, &handle).expect("opened");
        // The exporter drops first, so the record is still open when it is retired.
        drop(memory);
        drop(opened);
        let explained = AnyHandle::PhysicalMemory(handle).explain(None);
        greatest = greatest.max(explained.record);
    }
    assert!(greatest < 100, "record {greatest} after 1,000 rounds");
}

/// A meeting point from which two threads continue at the same time, to within nanoseconds if
/// possible.
#[derive(Default)]
struct Meeting(AtomicUsize);

impl Meeting {
    /// Waits for the other thread. `number` counts from 1 in both threads.
    fn meet(&self, number: usize) {
        self.0.fetch_add(1, Ordering::SeqCst);
        let mut looks = 0_u32;
        while self.0.load(Ordering::SeqCst) < 2 * number {
            looks += 1;
            if looks < 10_000 {
                std::hint::spin_loop();
            } else {
                // The other thread may need this processor.
                thread::yield_now();
            }
        }
    }
}

#[test]
fn a_handle_made_while_its_memory_is_freed_opens_nothing_else() {
    // The separate process has a deadline, because a failing thread would leave the second
    // thread waiting.
    const TEST: &str = "a_handle_made_while_its_memory_is_freed_opens_nothing_else";
    alone(TEST, race_handles_against_frees);
}

fn race_handles_against_frees(directory: &Directory) {
    const ROUNDS: usize = 30_000;
    /// Time limit of the test. It is enough for all rounds unless the threads share a processor.
    const PATIENCE: Duration = Duration::from_secs(3);
    const DONE: usize = 0;
    let (context, opener) = (directory.context(), directory.context());
    // After this first export, the one-time work is done.
    let shared = context.allocate(4096).expect("memory");
    shared.handle().expect("a handle");
    let address = AtomicUsize::new(0);
    let made = Mutex::new(None);
    let meeting = Meeting::default();
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0.. {
                meeting.meet(3 * round + 1);
                let place = address.load(Ordering::SeqCst);
                if place == DONE {
                    return;
                }
                let pointer = std::ptr::without_provenance(place);
                meeting.meet(3 * round + 2);
                let handle = context.memory_handle(pointer).ok();
                *made.lock().expect("no panic") = handle;
                meeting.meet(3 * round + 3);
            }
        });
        let began = Instant::now();
        let (mut round, mut aliases) = (0, 0);
        while round < ROUNDS && began.elapsed() < PATIENCE {
            let memory = context.allocate(4096).expect("memory");
            address.store(memory.as_ptr().addr(), Ordering::SeqCst);
            meeting.meet(3 * round + 1);
            meeting.meet(3 * round + 2);
            // The memory is freed at a different point of the other thread's call in each round.
            (0..round % 100).for_each(|_| std::hint::spin_loop());
            drop(memory);
            meeting.meet(3 * round + 3);
            let next = context.allocate(4096).expect("memory");
            let handle = made.lock().expect("no panic").take();
            let opened = handle.and_then(|handle| opener.open_memory(&handle).ok());
            if let Some(opened) = opened {
                let (private, mut seen) = (round.to_ne_bytes(), [0; size_of::<usize>()]);
                opened.write(0, &[0xFF; 8]).expect("written");
                next.write(0, &private).expect("written");
                opened.read(0, &mut seen).expect("read");
                aliases += usize::from(seen == private);
            }
            round += 1;
        }
        address.store(DONE, Ordering::SeqCst);
        meeting.meet(3 * round + 1);
        assert_eq!(aliases, 0, "of {round} handles opened the next allocation");
    });
}

#[test]
fn mapped_bytes_can_be_used_twice_at_a_time_and_stay_mapped() {
    alone(
        "mapped_bytes_can_be_used_twice_at_a_time_and_stay_mapped",
        |directory| {
            let context = directory.context();
            let unit = context.device().info().granularity;
            let memory = PhysicalMemory::new(&context, 2 * unit).expect("memory");
            let range = VirtualRange::reserve(&context, 2 * unit).expect("addresses");
            range
                .map(0, &memory, ..2 * unit, Access::ReadWrite)
                .expect("mapped");
            let refused = |what: &str, result: Result<(), Error>| {
                let is_refused = matches!(result, Err(Error::InvalidArgument(_)));
                assert!(is_refused, "{what}: {result:?}");
            };
            let nested = range.with_bytes(..8, |first| {
                range.with_bytes(unit..unit + 8, |second| {
                    refused("unmap", range.unmap(..2 * unit));
                    refused("access", range.set_access(..2 * unit, Access::ReadOnly));
                    first.write(0, b"first").expect("still mapped");
                    second.write(0, b"second").expect("still mapped");
                })
            });
            nested.expect("the first").expect("the second");
            // A panic also ends the use.
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let _ = range.with_bytes(..8, |_| panic!("as asked"));
            }));
            assert!(panicked.is_err());
            range.unmap(..2 * unit).expect("no call uses it any more");
        },
    );
}

#[test]
fn alignment_is_kept_without_pooling() {
    let directory = Directory::new();
    let context = context(directory.options().pooling(false));
    for align in [64 << 10, 1 << 20, 2 << 20] {
        // Several allocations are checked, because a single one may be aligned by chance.
        let all = [(); 16].map(|()| {
            let options = AllocationOptions::new(4096).align(align);
            context.allocate_with(options).expect("memory")
        });
        for memory in &all {
            let start = memory.as_ptr().addr();
            assert!(start.is_multiple_of(align), "{start:#x}, not {align:#x}");
        }
    }
}

#[test]
fn a_death_after_the_exporters_is_noticed_without_a_wait() {
    const TEST: &str = "a_death_after_the_exporters_is_noticed_without_a_wait";
    if is("exporter") {
        let context = context(ContextOptions::new());
        let event = context.create_event().expect("an event");
        let mut parent = Parent::new();
        parent.say(event.handle().expect("a handle"));
        return parent.wait();
    }
    if is("signaller") {
        let context = context(ContextOptions::new());
        let mut parent = Parent::new();
        let handle = parent.hear().expect("a handle").parse().expect("a handle");
        let event = context.open_event(&handle).expect("opened");
        let never = context.create_event().expect("an event");
        let queue = context.create_queue().expect("a queue");
        let command = Command::barrier().after_value(&never, 1).signal(&event);
        queue.submit(command).expect("submitted");
        parent.say("submitted");
        return parent.wait();
    }
    let directory = Directory::new();
    let mut exporter = Process::start(TEST, "exporter", &directory);
    let text = exporter.hear();
    let handle: EventHandle = text.parse().expect("a handle");
    let event = directory.context().open_event(&handle).expect("opened");
    let mut signaller = Process::start(TEST, "signaller", &directory);
    signaller.say(&text);
    assert_eq!(signaller.hear(), "submitted");
    exporter.kill();
    // A signal that no process submitted fails once this process knows of the exporter's death.
    let future = event.wait_value_timeout(2, DEADLINE);
    assert!(matches!(future, Err(Error::PeerDied(_))), "{future:?}");
    let pending = event.try_wait();
    assert!(matches!(pending, Ok(false)), "it may come yet: {pending:?}");
    signaller.kill();
    let end = Instant::now() + DEADLINE;
    let last = loop {
        match event.try_wait() {
            Ok(false) if Instant::now() < end => thread::yield_now(),
            last => break last,
        }
    };
    assert!(matches!(last, Err(Error::PeerDied(_))), "{last:?}");
    let latest = event.status().latest;
    assert!(
        matches!(latest, Some(Err(Error::PeerDied(_)))),
        "{latest:?}"
    );
    let wait = event.wait_timeout(DEADLINE);
    assert!(matches!(wait, Err(Error::PeerDied(_))), "{wait:?}");
}

#[test]
fn short_waits_sleep() {
    alone("short_waits_sleep", |directory| {
        let processor_time = || {
            let time = clock_gettime(ClockId::ProcessCPUTime);
            Duration::try_from(time).expect("a positive time")
        };
        let options = EventOptions::new().low_power(true);
        let event = directory.context().create_event_with(options);
        let event = event.expect("an event");
        for (rounds, wait) in [(60, 5), (10, 30)] {
            let wait = Duration::from_millis(wait);
            let (began, used) = (Instant::now(), processor_time());
            for _ in 0..rounds {
                let late = event.wait_value_timeout(1, wait);
                assert!(matches!(late, Err(Error::TimedOut(_))), "{late:?}");
            }
            let (taken, used) = (began.elapsed(), processor_time() - used);
            assert!(
                used < taken / 2,
                "{used:?} on a processor in {taken:?} of waits for {wait:?}"
            );
        }
    });
}
