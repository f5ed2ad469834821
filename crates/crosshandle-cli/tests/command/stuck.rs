//! Processes that wait for each other. `ps` and `top` name the process that blocks the others. If
//! that process is killed, the error of the waiter names it too.

#[allow(dead_code, unreachable_pub, reason = "each program uses a part of it")]
#[path = "../../../crosshandle/tests/common/mod.rs"]
mod peers;

use crate::common::{STEP_TIMEOUT, Sandbox};
use crosshandle::{Command, Context, Error, Event};
use peers::{DEADLINE, Directory, Parent, Process, is};
use serde_json::Value;
use std::thread;
use std::time::Instant;

/// Returns the name of this program, as reports show it.
fn program() -> String {
    let path = std::env::current_exe().expect("this program");
    let name = path.file_name().expect("a name").to_string_lossy();
    name[..name.len().min(16)].to_owned()
}

/// Opens the event whose handle the parent sends.
fn opened(context: &Context, parent: &mut Parent) -> Event {
    let handle = parent.hear().expect("a handle").parse().expect("a handle");
    context.open_event(&handle).expect("opened")
}

/// Submits a signal of `event` that follows a signal of `gate`.
fn submit(context: &Context, event: &Event, gate: &Event) {
    let queue = context.create_queue().expect("a queue");
    let command = Command::barrier().after_value(gate, 1).signal(event);
    queue.submit(command).expect("submitted");
}

/// Shares two events and memory, and waits for the second event.
fn export() {
    let options = crosshandle::ContextOptions::new().name("model");
    let context = peers::context(options);
    let mut parent = Parent::new();
    let memory = context.allocate(4096).expect("memory");
    memory.set_name("weights");
    parent.say(memory.handle().expect("a handle"));
    let events = ["step", "ready"].map(|name| {
        let event = context.create_event().expect("an event");
        event.set_name(name);
        parent.say(event.handle().expect("a handle"));
        event
    });
    thread::scope(|scope| {
        let waiter = scope.spawn(|| events[1].wait_value_timeout(1, DEADLINE).is_ok());
        assert_eq!(parent.hear().as_deref(), Some("end"));
        parent.say(if waiter.join().expect("it ends") {
            "complete"
        } else {
            "failed"
        });
    });
    parent.wait();
}

/// Submits a signal that never finishes.
fn hold_up() {
    let context = peers::context(crosshandle::ContextOptions::new());
    let mut parent = Parent::new();
    let event = opened(&context, &mut parent);
    let gate = context.create_event().expect("an event");
    submit(&context, &event, &gate);
    parent.say("submitted");
    parent.wait();
}

/// Submits a signal of the second event that follows the first event, and waits for the first
/// event.
fn wait() {
    let context = peers::context(crosshandle::ContextOptions::new());
    let mut parent = Parent::new();
    let memory = parent.hear().expect("a handle").parse().expect("a handle");
    let _memory = context.open_memory(&memory).expect("opened");
    let (step, ready) = (opened(&context, &mut parent), opened(&context, &mut parent));
    submit(&context, &ready, &step);
    parent.say("waiting");
    let Err(Error::PeerDied(death)) = step.wait_value_timeout(1, DEADLINE) else {
        panic!("its submitter was to die");
    };
    parent.say(format!("{:?} {}", death.pid, death.program));
    parent.say(format!("{} {}", death.number, death.event));
    // The exporter may be the last process to notice the death.
    let deadline = Instant::now() + DEADLINE;
    let ended = loop {
        let Some(Err(Error::PeerDied(death))) = step.status().latest else {
            panic!("it stays dead");
        };
        if let Some(ended) = death.ended {
            break ended;
        }
        assert!(Instant::now() < deadline, "nobody says when it ended");
        thread::yield_now();
    };
    let ago = ended.elapsed().expect("in the past");
    parent.say(if ago < DEADLINE { "just now" } else { "once" });
    parent.wait();
}

/// Repeats `ps` until its output is complete.
fn ask_until(sandbox: &Sandbox, is_complete: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + STEP_TIMEOUT;
    loop {
        let json = sandbox.run(["ps", "--json"]).expect(0).json();
        if is_complete(&json) {
            return json;
        }
        assert!(Instant::now() < deadline, "{json:#}");
    }
}

/// Returns the context named "model".
fn model(json: &Value) -> &Value {
    let mut reports = json.as_array().expect("an array").iter();
    let contexts = reports.find_map(|report| {
        let mut contexts = report["contexts"].as_array()?.iter();
        contexts.find(|context| context["name"] == "model")
    });
    contexts.expect("it is shared")
}

fn named<'a>(objects: &'a Value, name: &str) -> &'a Value {
    let mut objects = objects.as_array().expect("an array").iter();
    objects.find(|of| of["name"] == name).expect("it is shared")
}

#[test]
fn the_process_that_holds_up_others_is_named() {
    const TEST: &str = "stuck::the_process_that_holds_up_others_is_named";
    for (role, act) in [
        ("exporter", export as fn()),
        ("culprit", hold_up),
        ("waiter", wait),
    ] {
        if is(role) {
            return act();
        }
    }
    let directory = Directory::new();
    let sandbox = Sandbox::with_sockets(directory.path());
    let mut exporter = Process::start(TEST, "exporter", &directory);
    let [memory, step, ready] = [(); 3].map(|()| exporter.hear());
    let mut culprit = Process::start(TEST, "culprit", &directory);
    culprit.say(&step);
    assert_eq!(culprit.hear(), "submitted");
    let mut waiter = Process::start(TEST, "waiter", &directory);
    for handle in [&memory, &step, &ready] {
        waiter.say(handle);
    }
    assert_eq!(waiter.hear(), "waiting");
    let (culprit_id, waiter_id) = (culprit.id(), waiter.id());

    let json = ask_until(&sandbox, |json| {
        let events = &model(json)["events"];
        let count = |name| {
            named(events, name)["waiters"]
                .as_array()
                .map_or(0, Vec::len)
        };
        // The waiter's queue also waits.
        count("step") == 2 && count("ready") == 1
    });
    let model = model(&json);
    let is_of = |signal: &Value, pid: u32| {
        signal["number"] == 1 && signal["pid"] == pid && signal["program"] == program()
    };
    let event = named(&model["events"], "step");
    assert_eq!(
        (&event["submitted"], &event["completed"]),
        (&1.into(), &0.into())
    );
    assert!(is_of(&event["unfinished"][0], culprit_id), "{event:#}");
    for waiting in event["waiters"].as_array().expect("an array") {
        assert!(is_of(&waiting["culprit"], culprit_id), "{event:#}");
        assert_eq!(waiting["pid"], waiter_id);
        assert!(waiting["waiting_ns"].as_u64() > Some(0), "{event:#}");
    }
    let event = named(&model["events"], "ready");
    let waiting = &event["waiters"][0];
    assert!(is_of(&waiting["culprit"], waiter_id), "{event:#}");
    assert_eq!(
        (&waiting["owner"], &waiting["pid"]),
        (&1.into(), &exporter.id().into())
    );
    let shared = named(&model["memory"], "weights");
    assert_eq!(
        (&shared["bytes"], &shared["kind"]),
        (&4096.into(), &"device".into())
    );
    assert_eq!(shared["opened_by"].as_array().map(Vec::len), Some(1));
    assert_eq!(model["device"], "host:0");
    assert_eq!(model["totals"]["events"], 2);
    assert_eq!(model["counters"]["attaches"], 2);
    assert_eq!(model["counters"]["signals"], 2);
    let mut importers: Vec<_> = model["importers"]
        .as_array()
        .expect("an array")
        .iter()
        .map(|importer| (importer["pid"].as_u64(), importer["objects"].as_u64()))
        .collect();
    importers.sort_unstable();
    let mut expected = [(waiter_id, 3), (culprit_id, 1)]
        .map(|(pid, objects)| (Some(u64::from(pid)), Some(objects)));
    expected.sort_unstable();
    assert_eq!(importers, expected);

    let program = program();
    let why = format!("for signal 1: {culprit_id} {program} has not finished it");
    let chain = format!(
        "for signal 1: {waiter_id} {program} has not finished it; {waiter_id} {program} waits for \
         signal 1 of event 1 \"step\" of {} ",
        exporter.id()
    );
    let listed = sandbox.run(["ps"]).expect(0);
    assert!(listed.text().contains(&why), "{}", listed.text());
    assert!(listed.text().contains(&chain), "{}", listed.text());
    let top = ["top", "--once", "--interval", "50ms", "--stuck", "1ms"];
    let picture = sandbox.run(top).expect(0);
    let why = format!("{culprit_id} {program} has not finished it");
    assert!(picture.text().contains(&why), "{}", picture.text());

    culprit.kill();
    assert_eq!(waiter.hear(), format!("Some({culprit_id}) {program}"));
    assert_eq!(waiter.hear(), "1 \"step\"");
    assert_eq!(waiter.hear(), "just now");
    // The failure spreads to the end of the chain.
    exporter.say("end");
    assert_eq!(exporter.hear(), "failed");
    let json = ask_until(&sandbox, |json| {
        self::model(json)["importers"].as_array().map(Vec::len) == Some(1)
    });
    let counters = &self::model(&json)["counters"];
    assert_eq!(
        (&counters["deaths"], &counters["signals"]),
        (&1.into(), &2.into())
    );
    let listed = sandbox.run(["ps"]).expect(0);
    assert!(!listed.text().contains("has waited"), "{}", listed.text());
}
