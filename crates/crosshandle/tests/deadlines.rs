//! Calls every public function with a timeout while the exporter is stopped.
//!
//! `crates/crosshandle-store/tests/deadlines.rs` measures the functions of the holder's client and
//! of the store. With `CROSSHANDLE_LATENESS=ROUNDS`, the test measures each function that often and
//! prints how late the calls were.

#[allow(dead_code, reason = "each program uses a part of it")]
mod common;

use common::{Directory, Parent, Process, context, is};
use crosshandle::channel::{Channel, ChannelOptions, WhenFull};
use crosshandle::event::EventSet;
use crosshandle::handle::ChannelHandle;
use crosshandle::virtual_memory::VirtualRange;
use crosshandle::{
    Access, Command, Context, Error, Event, EventHandle, MemoryHandle, Result, report,
};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const EXPORTER: &str = "exporter";
/// Timeout of each call.
const TIMEOUT: Duration = Duration::from_millis(200);
/// Maximum time by which a call may exceed its timeout on a busy machine.
const LATENESS: Duration = Duration::from_secs(1);

fn export() {
    let mut parent = Parent::new();
    let context = Directory::inherited().context();
    let memory = context.allocate(4096).expect("memory");
    let event = context.create_event().expect("an event");
    parent.say(memory.handle().expect("a handle"));
    parent.say(event.handle().expect("a handle"));
    // The first channel has a producer and no item. The second channel has no room.
    let options = || ChannelOptions::new(64).depth(1).producers(8).consumers(8);
    let [empty, full] = [(); 2].map(|()| {
        let channel = Channel::create(&context, options()).expect("a channel");
        parent.say(channel.handle().expect("a handle"));
        channel
    });
    let _silent = empty.producer().expect("a producer");
    let mut producer = full.producer().expect("a producer");
    producer.send(b"item").expect("room for one");
    parent.say("full");
    // The test stops this process, and later kills it.
    parent.hear();
}

/// Creates a context that has sent no request to the exporter yet.
fn fresh(directory: &Directory) -> Context {
    directory.context()
}

/// Channels of the exporter.
struct Channels {
    /// The handle of a channel.
    handle: ChannelHandle,
    /// A channel with a producer and without items.
    empty: Channel,
    /// A channel without room.
    full: Channel,
}

/// Calls a function by its name. The call cannot succeed before the exporter resumes.
fn call(
    name: &str,
    directory: &Directory,
    memory: &MemoryHandle,
    (event, handle): &(Event, EventHandle),
    channels: &Channels,
) -> Result<()> {
    let timed_out = || Error::TimedOut("asking exporters");
    match name {
        "wait_timeout" => {
            // The signal is submitted and never completes.
            let context = fresh(directory);
            let (queue, own) = (context.create_queue()?, context.create_event()?);
            queue.submit(Command::barrier().after_value(event, 1).signal(&own))?;
            own.wait_timeout(TIMEOUT)
        }
        "wait_submitted_timeout" => {
            let context = fresh(directory);
            let (queue, own) = (context.create_queue()?, context.create_event()?);
            queue.submit(Command::barrier().after_value(event, 1).signal(&own))?;
            own.wait_submitted_timeout(TIMEOUT)
        }
        "wait_value_timeout" => event.wait_value_timeout(1, TIMEOUT),
        "wait_all_timeout" => {
            let context = fresh(directory);
            let (queue, own) = (context.create_queue()?, context.create_event()?);
            queue.submit(Command::barrier().after_value(event, 1).signal(&own))?;
            EventSet::latest([&own]).wait_all_timeout(TIMEOUT)
        }
        "wait_any_timeout" => {
            let set = EventSet::values([(event, 1); 200]);
            set.wait_any_timeout(TIMEOUT).map(drop)
        }
        "finish_timeout" => {
            let queue = fresh(directory).create_queue()?;
            queue.submit(Command::barrier().after_value(event, 1))?;
            assert!(!queue.try_finish()?);
            queue.finish_timeout(TIMEOUT)
        }
        "exporters" => {
            let directories = [directory.path().to_owned()];
            let answers = report::exporters(&directories, TIMEOUT);
            let is_silent = answers.iter().any(std::result::Result::is_err);
            if is_silent { Err(timed_out()) } else { Ok(()) }
        }
        "open_memory_timeout" => {
            let context = fresh(directory);
            let opened = context.open_memory_timeout(memory, Access::ReadWrite, TIMEOUT);
            assert!(opened.is_err(), "the exporter is stopped");
            let range = Arc::new(VirtualRange::reserve(&context, 4096)?);
            range
                .open_memory_timeout(memory, Access::ReadWrite, TIMEOUT / 2)
                .map(drop)
        }
        "open_memories_timeout" => {
            let handles = [*memory; 2];
            let context = fresh(directory);
            context
                .open_memories_timeout(&handles, Access::ReadWrite, TIMEOUT)
                .map(drop)
        }
        "open_event_timeout" => {
            let opened = fresh(directory).open_event_timeout(handle, TIMEOUT);
            opened.map(drop)
        }
        "exchange_timeout" => {
            let options = directory.options().exchange_timeout(TIMEOUT);
            context(options).open_memory(memory).map(drop)
        }
        "open_timeout" => {
            let opened = Channel::open_timeout(&fresh(directory), &channels.handle, TIMEOUT);
            opened.map(drop)
        }
        "receive_timeout" => channels
            .empty
            .consumer()?
            .receive_timeout(TIMEOUT)
            .map(drop),
        "receive_latest" => channels.empty.consumer()?.receive_latest(TIMEOUT).map(drop),
        "receive_on" => {
            let queue = fresh(directory).create_queue()?;
            let mut consumer = channels.empty.consumer()?;
            consumer.receive_on(&queue, TIMEOUT).map(drop)
        }
        "send_timeout" => channels
            .full
            .producer()?
            .send_timeout(b"", TIMEOUT)
            .map(drop),
        "reserve_timeout" => {
            // A queue writes every slot that the producer may reuse.
            let context = fresh(directory);
            let queue = context.create_queue()?;
            let options = ChannelOptions::new(8).depth(1).held(1).reserved(1);
            let channel = Channel::create(&context, options.when_full(WhenFull::DropOldest))?;
            let mut producer = channel.producer()?;
            queue.submit(Command::barrier().after_value(event, 1))?;
            loop {
                let slot = producer.reserve_timeout(TIMEOUT)?;
                producer.publish_on(&queue, slot, TIMEOUT)?;
            }
        }
        "publish_timeout" => {
            let mut producer = channels.full.producer()?;
            let slot = producer.reserve()?;
            Ok(producer.publish_timeout(slot, TIMEOUT).map(drop)?)
        }
        "publish_on" => {
            let queue = fresh(directory).create_queue()?;
            let mut producer = channels.full.producer()?;
            let slot = producer.reserve()?;
            Ok(producer.publish_on(&queue, slot, TIMEOUT).map(drop)?)
        }
        _ => panic!("{name} has a timeout, and is not measured"),
    }
}

/// Collects the names of the public functions with a timeout in a directory's files.
fn with_timeouts(directory: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(directory).expect("the sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            // The store's test measures these functions.
            if !path.ends_with("api/holder") {
                with_timeouts(&path, found);
            }
            continue;
        }
        let text = fs::read_to_string(&path).expect("a source");
        for function in text.split("pub fn ").skip(1) {
            let (name, rest) = function.split_once('(').expect("its arguments");
            let signature = rest.split('{').next().unwrap_or_default();
            let arguments = signature.split("->").next().unwrap_or_default();
            if arguments.contains("Duration") || arguments.contains(": Deadline") {
                found.insert(name.to_owned());
            }
        }
    }
}

#[test]
fn no_call_waits_longer_for_a_stopped_exporter() {
    if is(EXPORTER) {
        return export();
    }
    let directory = Directory::new();
    let test = "no_call_waits_longer_for_a_stopped_exporter";
    let mut exporter = Process::start(test, EXPORTER, &directory);
    let memory: MemoryHandle = exporter.hear().parse().expect("a handle");
    let handle: EventHandle = exporter.hear().parse().expect("a handle");
    let handles = [(); 2].map(|()| exporter.hear().parse::<ChannelHandle>().expect("a handle"));
    assert_eq!(exporter.hear(), "full");
    let members = fresh(&directory);
    let [empty, full] = handles.map(|handle| Channel::open(&members, &handle).expect("open"));
    let channels = Channels {
        handle: handles[0],
        empty,
        full,
    };
    // This event comes from another exporter, because a process that has one event of an exporter
    // open opens the next one without a request.
    let mut signaller = Process::start(test, EXPORTER, &directory);
    signaller.hear();
    let awaited: EventHandle = signaller.hear().parse().expect("a handle");
    let event = fresh(&directory).open_event(&awaited).expect("open");
    let event = (event, handle);
    exporter.stop();
    signaller.stop();

    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/api");
    let mut names = BTreeSet::new();
    with_timeouts(&sources, &mut names);
    assert!(names.len() >= 10, "all were found: {names:?}");
    let rounds = std::env::var("CROSSHANDLE_LATENESS");
    let rounds = rounds.map_or(1, |text| text.parse().expect("a number"));
    std::thread::scope(|scope| {
        for name in &names {
            let (directory, memory, event) = (&directory, &memory, &event);
            let channels = &channels;
            scope.spawn(move || {
                let mut late = Vec::new();
                for _ in 0..rounds {
                    let begin = Instant::now();
                    let result = call(name, directory, memory, event, channels);
                    let took = begin.elapsed();
                    // This case calls the function twice.
                    let given = match name.as_str() {
                        "open_memory_timeout" => TIMEOUT + TIMEOUT / 2,
                        _ => TIMEOUT,
                    };
                    assert!(took <= given + LATENESS, "{name}: {took:?}, {result:?}");
                    let error = result.expect_err(name);
                    assert!(error.is_timeout(), "{name}: {error}");
                    late.push(took.saturating_sub(given));
                }
                late.sort();
                if rounds > 1 {
                    let of = |percent: usize| late[(late.len() - 1) * percent / 100];
                    println!("{name}: late by {:?} (p50), {:?} (p99)", of(50), of(99));
                }
            });
        }
    });
    exporter.kill();
    signaller.kill();
}
