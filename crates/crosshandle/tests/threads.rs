//! The library starts only the threads that `docs/threads.md` names.
//!
//! Two processes use everything that their devices offer, and meanwhile read the names of their
//! threads. A thread that the library starts without a name inherits the name of its creator, so
//! threads with the same name are counted.

#[allow(dead_code, reason = "each program uses a part of it")]
mod common;

use common::{DEADLINE, Directory, Parent, Process, is};
use crosshandle::event::EventSet;
use crosshandle::handle::AnyHandle;
use crosshandle::{Command, Context, Device, Event, EventHandle, MemoryHandle, QueueOrder};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Prefixes of the names of threads that do not belong to this library.
const OF_OTHERS: [&str; 4] = [
    // This test's own.
    "test-", // NVIDIA's driver.
    "cuda-", "cuda0", // The simulated Level Zero driver.
    "ze_sim",
];
/// Maximum time for which a new thread may have its creator's name.
const TO_BE_NAMED: Duration = Duration::from_secs(5);

/// Returns the names in the table of `docs/threads.md`.
fn documented() -> BTreeSet<String> {
    let rows = include_str!("../../../docs/threads.md").lines();
    rows.filter_map(|row| row.strip_prefix("| `")?.split('`').next())
        .filter(|name| name.starts_with("xh-"))
        .map(str::to_owned)
        .collect()
}

/// Returns the names of this process's threads, and how many threads have each name.
fn names() -> BTreeMap<String, usize> {
    let mut names = BTreeMap::new();
    for task in std::fs::read_dir("/proc/self/task").expect("procfs") {
        // A thread that has just ended has no name.
        if let Ok(name) = std::fs::read_to_string(task.expect("a task").path().join("comm")) {
            *names.entry(name.trim_end().to_owned()).or_default() += 1;
        }
    }
    names
}

/// Watches the threads of this process until it is ended.
struct Watch {
    /// The threads that existed before the library was used.
    before: BTreeMap<String, usize>,
    seen: Arc<Mutex<BTreeSet<String>>>,
    /// How often the thread names were read.
    looks: Arc<AtomicU32>,
    end: Arc<AtomicBool>,
    looking: JoinHandle<()>,
}

impl Watch {
    fn begin() -> Self {
        let before = names();
        let seen = Arc::new(Mutex::new(BTreeSet::new()));
        let looks = Arc::new(AtomicU32::new(0));
        let end = Arc::new(AtomicBool::new(false));
        let looking = thread::Builder::new().name("test-looks".into()).spawn({
            let (seen, looks, end) = (Arc::clone(&seen), Arc::clone(&looks), Arc::clone(&end));
            move || {
                while !end.load(Ordering::Relaxed) {
                    seen.lock().expect("the names").extend(names().into_keys());
                    looks.fetch_add(1, Ordering::Relaxed);
                    thread::sleep(Duration::from_micros(500));
                }
            }
        });
        Self {
            before,
            seen,
            looks,
            end,
            looking: looking.expect("a thread"),
        }
    }

    /// Waits until the names of all threads that run now have been read.
    ///
    /// A thread names itself after it has started, so a new one may still have its creator's name.
    fn look(&self) {
        let before = self.looks.load(Ordering::Relaxed);
        while self.looks.load(Ordering::Relaxed).wrapping_sub(before) < 2 {
            thread::sleep(Duration::from_micros(100));
        }
    }

    /// Waits for a thread of this name. Returns whether one was seen before the deadline.
    fn has_seen(&self, name: &str) -> bool {
        let deadline = Instant::now() + DEADLINE;
        while !self.seen.lock().expect("the names").contains(name) {
            if Instant::now() > deadline {
                return false;
            }
            thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Returns the names of all threads so far that no document and no known prefix explains.
    fn unexplained(&self) -> Vec<String> {
        let documented = documented();
        let seen = self.seen.lock().expect("the names");
        let of_others = |name: &String| OF_OTHERS.iter().any(|begin| name.starts_with(begin));
        seen.iter()
            .filter(|name| !documented.contains(*name))
            .filter(|name| !self.before.contains_key(*name) && !of_others(name))
            .cloned()
            .collect()
    }

    /// Returns the earlier names that more threads have now, and still have after a while.
    fn multiplied(&self) -> Vec<String> {
        let deadline = Instant::now() + TO_BE_NAMED;
        loop {
            let now = names().into_iter();
            let more: Vec<_> = now
                .filter(|(name, count)| self.before.get(name).is_some_and(|before| count > before))
                .map(|(name, _)| name)
                .collect();
            if more.is_empty() || Instant::now() > deadline {
                return more;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Stops watching. Returns the documented names that were seen.
    ///
    /// # Errors
    /// Describes the threads that nothing explains.
    fn end(self) -> Result<BTreeSet<String>, String> {
        // NVIDIA's driver starts threads without naming them.
        let multiplied = match has("cuda") {
            true => Vec::new(),
            false => self.multiplied(),
        };
        self.end.store(true, Ordering::Relaxed);
        let (unexplained, seen) = (self.unexplained(), Arc::clone(&self.seen));
        self.looking.join().expect("names");
        if !unexplained.is_empty() || !multiplied.is_empty() {
            return Err(format!(
                "threads without a documented name: {unexplained:?}; named as those who started \
                 them: {multiplied:?}"
            ));
        }
        let seen = seen.lock().expect("the names");
        Ok(seen.intersection(&documented()).cloned().collect())
    }
}

/// Uses a device in one process: queues of both orders, functions, commands that wait, late
/// signals, and drops of objects in use.
fn use_alone(context: &Context, watch: &Watch) {
    for order in [QueueOrder::InOrder, QueueOrder::OutOfOrder] {
        let queue = context.create_queue_with(order).expect("a queue");
        let memory = || context.allocate(1 << 16).expect("memory");
        let event = || context.create_event().expect("an event");
        let (here, there) = (memory(), memory());
        let (begins, ends, many) = (event(), event(), event());
        let submit = |command: Command| queue.submit(command).expect("submitted");
        let fill = Command::fill(here.all(), &[7]).expect("a fill");
        submit(fill.after_value(&begins, 1));
        // In an out-of-order queue, the last of these completes before the first, whose word it
        // shares.
        submit(Command::marker().after_value(&begins, 1).signal(&many));
        (0..7).for_each(|_| submit(Command::marker().signal(&many)));
        let copy = Command::copy(here.all(), there.all()).expect("a copy");
        submit(copy.before_later().after_earlier().signal(&ends));
        submit(Command::call(|| Ok::<_, std::io::Error>(())).after(&ends));
        // Commands still use the memory, and the queue is in use too.
        drop((here, there));
        // The queue cannot end before the signal, so its thread gets its name.
        let name = scheduler(context.device());
        assert!(watch.has_seen(name), "{name} was not seen");
        if order == QueueOrder::OutOfOrder {
            drop(queue);
            begins.signal().expect("a signal");
        } else {
            begins.signal().expect("a signal");
            queue.finish_timeout(DEADLINE).expect("all of it");
        }
        ends.wait_value_timeout(1, DEADLINE).expect("the copy");
        many.wait_value_timeout(8, DEADLINE).expect("eight signals");
    }
    let event = || context.create_event().expect("an event");
    let (one, other) = (event(), event());
    one.signal().expect("a signal");
    let two = EventSet::latest([&one, &other]);
    two.wait_any_timeout(DEADLINE).expect("one of two");
    let (tell, told) = std::sync::mpsc::channel();
    let call = other.on_signal(1, move |result| tell.send(result).expect("it is heard"));
    let call = call.expect("awaited");
    assert!(watch.has_seen("xh-await"), "no thread awaits the event");
    other.signal().expect("a signal");
    let called = told.recv_timeout(DEADLINE).expect("a call");
    called.expect("signalled");
    drop(call);
    // The memory is large enough for several threads.
    let memory = context.allocate(20 << 20).expect("memory");
    let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC);
    let file = std::fs::File::from(file.expect("a file"));
    let watched = |_| watch.look();
    let copied = memory.write_file(context, .., &file, 0, watched);
    copied.expect("a copy to a file");
}

fn open(context: &Context, words: &str) -> (crosshandle::Memory, Event, Event) {
    let mut words = words.split(' ');
    let mut next = || words.next().expect("a word");
    let memory: MemoryHandle = next().parse().expect("a handle");
    let mut event = || -> Event {
        let handle: EventHandle = next().parse().expect("a handle");
        context.open_event(&handle).expect("an event")
    };
    let events = (event(), event());
    let memory = context.open_memory(&memory).expect("memory");
    (memory, events.0, events.1)
}

/// Uses one device in two processes. The first exports, and the second opens, signals, and is
/// killed while a signal is pending.
fn use_together(context: &Context, other: &mut Process) {
    let memory = context.allocate(1 << 16).expect("memory");
    let (there, back) = (context.create_event(), context.create_event());
    let (there, back) = (there.expect("an event"), back.expect("an event"));
    let handles: [AnyHandle; 3] = [
        memory.handle().expect("a handle").into(),
        there.handle().expect("a handle").into(),
        back.handle().expect("a handle").into(),
    ];
    other.say(&handles.map(|handle| handle.to_string()).join(" "));
    let queue = context.create_queue().expect("a queue");
    let command = Command::fill(memory.all(), &[9]).expect("a fill");
    queue.submit(command.signal(&there)).expect("submitted");
    // The device waits for the other process's signal.
    let command = Command::fill(memory.all(), &[1]).expect("a fill");
    queue
        .submit(command.after_value(&back, 1))
        .expect("submitted");
    queue.finish_timeout(DEADLINE).expect("the other's signal");
    assert_eq!(other.hear(), "used");
}

fn opener(mut parent: Parent) {
    let watch = Watch::begin();
    for device in Device::all() {
        let context = Context::new(&device).expect("a context");
        let words = parent.hear().expect("handles");
        let (memory, there, back) = open(&context, &words);
        let queue = context.create_queue().expect("a queue");
        let command = Command::fill(memory.all(), &[2]).expect("a fill");
        let command = command.after_value(&there, 1).signal(&back);
        queue.submit(command).expect("submitted");
        queue.finish_timeout(DEADLINE).expect("the other's signal");
        use_alone(&context, &watch);
        parent.say("used");
    }
    match watch.end() {
        Ok(seen) => parent.say(Vec::from_iter(seen).join(" ")),
        Err(what) => parent.say(format!("FAILED {what}")),
    }
    parent.wait();
}

/// Uses all devices of this machine in this process and in a second one.
fn use_everything(test: &str, directory: &Directory) {
    let watch = Watch::begin();
    let mut other = Process::start(test, "opens", directory);
    let contexts = Device::all()
        .into_iter()
        .map(|device| Context::with_options(&device, directory.options()).expect("a context"));
    let contexts = Vec::from_iter(contexts);
    if std::env::var_os("ZE_ENABLE_ALT_DRIVERS").is_some() {
        assert!(has("level_zero"), "the simulated driver is not there");
    }
    for context in &contexts {
        use_alone(context, &watch);
        use_together(context, &mut other);
    }
    let theirs = other.hear();
    assert!(
        !theirs.starts_with("FAILED"),
        "the process that opens: {theirs}"
    );
    let theirs = BTreeSet::from_iter(theirs.split(' ').map(str::to_owned));
    // The library notices the second process's death and cleans up after it.
    other.kill();
    assert!(
        watch.has_seen("xh-background"),
        "nothing ran in the background"
    );
    let ours = watch
        .end()
        .unwrap_or_else(|what| panic!("the process that exports: {what}"));

    let mut expected = vec![
        "xh-exchange",
        "xh-liveness",
        "xh-await",
        "xh-host-queue",
        "xh-file-copy",
    ];
    let kinds = [("cuda", "xh-cuda-sched"), ("level_zero", "xh-ze-list")];
    expected.extend(
        kinds
            .iter()
            .filter(|(kind, _)| has(kind))
            .map(|(_, name)| *name),
    );
    for name in expected {
        assert!(ours.contains(name), "{name} was not seen, only {ours:?}");
        assert!(
            theirs.contains(name),
            "{name} was not seen, only {theirs:?}"
        );
    }
}

/// Returns the name of the threads that run the queues of a device.
fn scheduler(device: &Device) -> &'static str {
    match device.to_string().split(':').next() {
        Some("cuda") => "xh-cuda-sched",
        Some("level_zero") => "xh-ze-list",
        _ => "xh-host-queue",
    }
}

fn has(kind: &str) -> bool {
    Device::all()
        .iter()
        .any(|device| device.to_string().starts_with(kind))
}

#[test]
fn every_thread_of_the_library_has_a_documented_name() {
    const TEST: &str = "every_thread_of_the_library_has_a_documented_name";
    if is("opens") {
        return opener(Parent::new());
    }
    // This runs in a separate process, where no other test has threads.
    common::alone(TEST, |directory| use_everything(TEST, directory));
}

#[test]
fn there_are_ten_kinds_of_threads() {
    assert_eq!(documented().len(), 10, "{:?}", documented());
}

#[test]
#[ignore = "needs a Level Zero loader; `cargo xtask test` runs it"]
fn over_the_simulated_driver_every_thread_has_a_documented_name() {
    let loaders = std::env::var_os("ZE_LOADER_LIB_DIRS").filter(|value| !value.is_empty());
    let loaders = loaders.expect(
        "ZE_LOADER_LIB_DIRS is not set: run this test with `cargo xtask test`, which sets it",
    );
    let program = std::env::current_exe().expect("this program");
    let driver = program.with_file_name("libze_sim.so");
    assert!(driver.is_file(), "there is no {}", driver.display());
    for loader in std::env::split_paths(&loaders) {
        // A process chooses its loader when it starts.
        let output = std::process::Command::new(&program)
            .args([
                "every_thread_of_the_library_has_a_documented_name",
                "--exact",
            ])
            .env("LD_LIBRARY_PATH", &loader)
            .env("ZE_ENABLE_ALT_DRIVERS", &driver)
            .output()
            .expect("this program");
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{}: {printed}", loader.display());
        assert!(printed.contains("1 passed"), "{printed}");
    }
}

#[test]
fn a_thread_without_a_documented_name_is_found() {
    // This runs in a separate process, where no other thread starts or ends.
    common::alone("a_thread_without_a_documented_name_is_found", |_| {
        let start = |name: Option<&str>| {
            let (end, ends) = std::sync::mpsc::channel::<()>();
            let builder = match name {
                Some(name) => thread::Builder::new().name(name.into()),
                None => thread::Builder::new(),
            };
            let body = move || {
                let _ = ends.recv();
            };
            (end, builder.spawn(body).expect("a thread"))
        };
        for (name, complaint) in [
            (Some("xh-stray"), "[\"xh-stray\"]"),
            (Some("helper"), "[\"helper\"]"),
            (None, "named as those who started them: [\"a_"),
        ] {
            let watch = Watch::begin();
            let (end, thread) = start(name);
            thread::sleep(Duration::from_millis(50));
            let found = watch.end().expect_err("a fault");
            assert!(found.contains(complaint), "{name:?}: {found}");
            drop(end);
            thread.join().expect("a thread");
        }
    });
}
