//! Tests the timeline that `CROSSHANDLE_TRACE` names, across processes.

#[allow(dead_code, reason = "each program uses a part of it")]
mod common;

use common::{DEADLINE, Directory, Parent, Process, is};
use crosshandle::Context;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::path::Path;
use std::thread;

const LEN: usize = 4096;
const BURST_THREADS: usize = 4;
const BURST: u64 = 500;

fn maker(context: &Context, parent: &mut Parent) {
    let memory = context.allocate(LEN).expect("memory");
    memory.set_name("frame \"one\"");
    let ready = context.create_event().expect("an event");
    ready.set_name("ready");
    parent.say(memory.handle().expect("a handle"));
    parent.say(ready.handle().expect("a handle"));
    assert_eq!(parent.hear().as_deref(), Some("signal"));
    memory.write(0, &[1; 100]).expect("written");
    ready.signal().expect("signalled");
}

fn user(context: &Context, parent: &mut Parent) {
    let memory = parent.hear().expect("a handle").parse().expect("a handle");
    let ready = parent.hear().expect("a handle").parse().expect("a handle");
    let memory = context.open_memory(&memory).expect("opened");
    let ready = context.open_event(&ready).expect("opened");
    parent.say("waits");
    ready.wait_timeout(DEADLINE).expect("signalled");
    let mut bytes = [0; 100];
    memory.read(0, &mut bytes).expect("read");
    assert_eq!(bytes, [1; 100]);
}

/// Plays a role until the parent ends the process, or returns false in the test itself.
fn play() -> bool {
    let play = match () {
        () if is("maker") => maker,
        () if is("user") => user,
        () => return false,
    };
    let context = Directory::inherited().context();
    let mut parent = Parent::new();
    play(&context, &mut parent);
    // Both processes write at the same time, from several threads.
    thread::scope(|scope| {
        for _ in 0..BURST_THREADS {
            scope.spawn(|| {
                let event = context.create_event().expect("an event");
                (0..BURST).for_each(|number| {
                    assert_eq!(event.signal().expect("signalled"), number + 1);
                });
            });
        }
    });
    parent.say("done");
    parent.wait();
    true
}

/// Runs the exchange, and kills both processes at its end.
fn exchange(test: &str, file: Option<&Path>, directory: &Directory) -> [u32; 2] {
    let variable = format!(
        "CROSSHANDLE_TRACE={}",
        file.map_or("", |file| file.to_str().expect("UTF-8"))
    );
    let by = ["env", variable.as_str()];
    let mut maker = Process::start_by(&by, test, "maker", directory);
    let mut user = Process::start_by(&by, test, "user", directory);
    for _ in 0..2 {
        user.say(&maker.hear());
    }
    assert_eq!(user.hear(), "waits");
    maker.say("signal");
    assert_eq!((maker.hear(), user.hear()), ("done".into(), "done".into()));
    let ids = [maker.id(), user.id()];
    maker.kill();
    user.kill();
    ids
}

/// Reads a timeline as viewers do: the closing bracket may be missing.
fn events(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("a timeline");
    let list = text.trim_end().trim_end_matches(',').to_owned() + "]";
    let list: Vec<Value> = serde_json::from_str(&list).expect("JSON");
    assert_eq!(
        list.len() + 1,
        text.lines().count(),
        "one line for each event"
    );
    list
}

fn named<'a>(events: &'a [Value], pid: u32, name: &str) -> &'a Value {
    let mut found = events
        .iter()
        .filter(|event| event["pid"] == pid && event["name"] == name);
    let first = found.next();
    let first = first.unwrap_or_else(|| panic!("process {pid} has no {name:?}: {events:#?}"));
    assert!(found.next().is_none(), "{name} is there twice");
    first
}

fn time(event: &Value, key: &str) -> f64 {
    event[key].as_f64().expect("a number")
}

/// Clock ticks are nanoseconds, and times in the file are microseconds.
const TICK: f64 = 0.001;

/// Checks the rules of Chrome's trace event format that viewers rely on: the keys of each kind of
/// event, slices of a thread that nest, and arrows that have a start.
fn check_format(events: &[Value]) {
    let mut threads: BTreeMap<(u64, u64), Vec<&Value>> = BTreeMap::new();
    let mut starts: BTreeMap<&str, f64> = BTreeMap::new();
    for event in events {
        assert!(
            event["name"].is_string() && event["cat"].is_string(),
            "{event}"
        );
        assert!(
            event["args"].is_object() && time(event, "ts") >= 0.0,
            "{event}"
        );
        let id = |key: &str| {
            event[key]
                .as_u64()
                .unwrap_or_else(|| panic!("{key}: {event}"))
        };
        match event["ph"].as_str() {
            Some("X") => threads
                .entry((id("pid"), id("tid")))
                .or_default()
                .push(event),
            Some("M") => {
                let names = ["process_name", "thread_name"];
                assert!(names.map(Value::from).contains(&event["name"]), "{event}");
                assert!(event["args"]["name"].is_string(), "{event}");
            }
            _ => panic!("an unknown phase: {event}"),
        }
        if event.get("flow_out").is_some() {
            let id = event["bind_id"].as_str().expect("an arrow has an identity");
            assert!(
                id.starts_with("0x") && u64::from_str_radix(&id[2..], 16).is_ok(),
                "{id}"
            );
            let start = starts.entry(id).or_insert(f64::INFINITY);
            *start = start.min(time(event, "ts"));
        }
    }
    for event in events.iter().filter(|event| event.get("flow_in").is_some()) {
        let start = starts.get(event["bind_id"].as_str().expect("an identity"));
        let start = start.unwrap_or_else(|| panic!("an arrow without a start: {event}"));
        let end = time(event, "ts") + time(event, "dur");
        assert!(*start <= end + TICK, "an arrow leads back in time: {event}");
    }
    for slices in threads.values_mut() {
        // A thread writes a slice when it ends.
        let ends = slices
            .iter()
            .map(|slice| time(slice, "ts") + time(slice, "dur"));
        assert!(
            ends.is_sorted_by(|one, next| *one <= next + TICK),
            "{slices:#?}"
        );
        slices.sort_by(|one, other| {
            let by_start = time(one, "ts").total_cmp(&time(other, "ts"));
            by_start.then(time(other, "dur").total_cmp(&time(one, "dur")))
        });
        let mut open: Vec<f64> = Vec::new();
        for slice in slices {
            let (start, length) = (time(slice, "ts"), time(slice, "dur"));
            assert!(length >= 0.0, "{slice}");
            while open.last().is_some_and(|end| *end <= start + TICK) {
                open.pop();
            }
            let inside = open.last().is_none_or(|end| start + length <= end + TICK);
            assert!(inside, "slices of a thread overlap: {slice}");
            open.push(start + length);
        }
    }
}

#[test]
fn two_processes_write_one_timeline_and_are_killed() {
    if play() {
        return;
    }
    let directory = Directory::new();
    let file = directory.path().join("timeline.json");
    let test = "two_processes_write_one_timeline_and_are_killed";
    let [maker, user] = exchange(test, Some(&file), &directory);
    let all = events(&file);
    check_format(&all);

    let opened = named(&all, user, "open memory \"frame \"one\"\"");
    let got = format!("get memory #{}", opened["args"]["record"]);
    let got = named(&all, maker, &got);
    assert_eq!(
        (&got["flow_out"], &opened["flow_in"]),
        (&true.into(), &true.into())
    );
    assert_eq!(got["bind_id"], opened["bind_id"]);
    assert_eq!(
        (&got["args"]["bytes"], &opened["args"]["bytes"]),
        (&LEN.into(), &LEN.into())
    );
    named(&all, maker, "get event \"ready\"");
    named(&all, user, "open event \"ready\"");

    let signal = named(&all, maker, "signal \"ready\" 1");
    let wait = named(&all, user, "wait \"ready\" 1");
    let woken = named(&all, user, "woken \"ready\" 1");
    assert_eq!(signal["bind_id"], woken["bind_id"]);
    assert_eq!(
        (&signal["flow_out"], &woken["flow_in"]),
        (&true.into(), &true.into())
    );
    assert!(
        wait.get("bind_id").is_none(),
        "only the end of the wait has an arrow"
    );
    assert!(time(signal, "ts") <= time(woken, "ts"));
    let end = time(wait, "ts") + time(wait, "dur");
    assert!((end - time(woken, "ts")).abs() < 1.0);
    for pid in [maker, user] {
        assert_eq!(named(&all, pid, "copy")["args"]["bytes"], 100);
        let burst = all
            .iter()
            .filter(|event| event["pid"] == pid && event["ph"] == "X");
        let threads: HashSet<_> = burst.clone().map(|event| event["tid"].as_u64()).collect();
        assert!(threads.len() > BURST_THREADS);
        assert!(burst.count() as u64 > BURST_THREADS as u64 * BURST);
    }
    let ids: BTreeSet<_> = all.iter().map(|event| event["pid"].as_u64()).collect();
    assert_eq!(ids, BTreeSet::from([maker, user].map(|id| Some(id.into()))));
}

#[test]
fn each_process_writes_a_timeline_of_its_own() {
    if play() {
        return;
    }
    let directory = Directory::new();
    let file = directory.path().join("timeline-%p.json");
    let test = "each_process_writes_a_timeline_of_its_own";
    for pid in exchange(test, Some(&file), &directory) {
        let own = directory.path().join(format!("timeline-{pid}.json"));
        let own = events(&own);
        assert!(own.len() as u64 > BURST && own.iter().all(|event| event["pid"] == pid));
    }
}

/// Without the variable no file is made, and a file that cannot be opened changes nothing.
#[test]
fn exchanges_need_no_timeline() {
    if play() {
        return;
    }
    let directory = Directory::new();
    exchange("exchanges_need_no_timeline", None, &directory);
    let missing = directory.path().join("missing/timeline.json");
    exchange("exchanges_need_no_timeline", Some(&missing), &directory);
    let json = |entry: fs::DirEntry| entry.path().extension().is_some_and(|end| end == "json");
    let entries = fs::read_dir(directory.path()).expect("a directory");
    assert!(!entries.map(|entry| entry.expect("an entry")).any(json));
}
