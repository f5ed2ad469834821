//! Memory that outlives its maker, its holder and that one's successor.

#[allow(dead_code, reason = "each program uses a part of it")]
mod common;

use common::{DEADLINE, Directory, Parent, Process, is};
use crosshandle::holder::{
    self, ClaimOptions, HeldName, HoldOptions, Holder, ServeOptions, Status,
};
use crosshandle::{
    AllocationOptions, Context, Error, HolderFault, Memory, MemoryHandle, handle::AnyHandle,
};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

const HOLDER: &str = "holder";
const SUCCESSOR: &str = "successor";
const MAKER: &str = "maker";
const READER: &str = "reader";
const WRITER: &str = "writer";

/// Runs the part of a second process, if this is one. All tests have the same.
fn role() -> bool {
    if is(HOLDER) {
        let directory = Directory::inherited();
        let mut parent = Parent::new();
        let program = std::env::current_exe().expect("this program");
        let test = std::env::args().nth(1).expect("the test's name");
        let arguments = [
            "CROSSHANDLE_TEST_ROLE=successor".into(),
            program.into_os_string(),
            test.into(),
            "--exact".into(),
            "--nocapture".into(),
            "--test-threads=1".into(),
        ];
        let options = ServeOptions::new()
            .socket_dir(directory.path())
            .successor("/usr/bin/env", arguments);
        holder::serve(options, || parent.say("ready")).expect("it held");
    } else if is(SUCCESSOR) {
        let program = std::env::current_exe().expect("this program");
        let arguments = std::env::args_os().skip(1);
        let options = ServeOptions::new().successor(program, arguments);
        holder::serve_as_successor(options, || ()).expect("it succeeded");
    } else if is(MAKER) {
        make();
    } else if is(READER) {
        read();
    } else if is(WRITER) {
        write();
    } else {
        return false;
    }
    true
}

/// Bytes that follow from a number.
fn contents(seed: u64, len: usize) -> Vec<u8> {
    let word = |index: u64| {
        (seed ^ index)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .rotate_left(29)
    };
    let words = (0..len as u64 / 8).map(word);
    words.flat_map(u64::to_le_bytes).collect()
}

const LEN: usize = 64 << 10;

fn alone(directory: &Directory) -> Context {
    common::context(directory.options().pooling(false))
}

fn make_memory(context: &Context, seed: u64) -> Memory {
    let memory = context.allocate(LEN).expect("memory");
    memory.write(0, &contents(seed, LEN)).expect("written");
    memory
}

fn holder_of(directory: &Directory) -> Holder {
    Holder::new().socket_dir(directory.path()).timeout(DEADLINE)
}

/// Makes memory and hands it over, as it is told: `make SEED`, `hand-over SEED NAME`, `publish SEED NAME`,
/// `drop SEED`.
fn make() {
    let directory = Directory::inherited();
    let (context, holder) = (alone(&directory), holder_of(&directory));
    let mut parent = Parent::new();
    let mut all = std::collections::BTreeMap::new();
    while let Some(line) = parent.hear() {
        let words: Vec<_> = line.split(' ').collect();
        let seed: u64 = words[1].parse().expect("a number");
        match words[0] {
            "make" => {
                let memory = make_memory(&context, seed);
                parent.say(memory.handle().expect("a handle"));
                all.insert(seed, memory);
            }
            "handles" => {
                let memory = all
                    .entry(seed)
                    .or_insert_with(|| make_memory(&context, seed));
                let writes = memory.handle().expect("a handle");
                let reads = memory.handle_read_only().expect("a handle");
                parent.say(format_args!("{writes} {reads}"));
            }
            "drop" => {
                all.remove(&seed);
                parent.say("dropped");
            }
            verb => {
                let memory = all
                    .entry(seed)
                    .or_insert_with(|| make_memory(&context, seed));
                let options = HoldOptions::new()
                    .label(words[1])
                    .replaces(verb == "publish");
                let done = holder.hand_over(words[2], &[("memory", memory)], options);
                match done {
                    Ok(done) => parent.say(format_args!("held {} {}", done.version, done.is_safe)),
                    Err(error) => parent.say(format_args!("refused {error}")),
                }
            }
        }
    }
}

/// Claims a name and writes, as it is told: `claim NAME WAIT_MS FORCE`, `fill` until it is killed, `fork`,
/// `end`, `drop`.
fn write() {
    let directory = Directory::inherited();
    let (context, holder) = (directory.context(), holder_of(&directory));
    let mut parent = Parent::new();
    let mut claimed = None;
    while let Some(line) = parent.hear() {
        let words: Vec<_> = line.split(' ').collect();
        match words[0] {
            "claim" => {
                let wait = Duration::from_millis(words[2].parse().expect("a number"));
                let options = ClaimOptions::new().wait(wait).force(words[3] == "true");
                match holder.claim(words[1], &options) {
                    Ok(lease) => {
                        let handle = lease.held().parts[0].handle.expect("for writing");
                        let memory = context.open_memory(&handle).expect("opened");
                        parent.say(format_args!("epoch {} {handle}", lease.epoch()));
                        claimed = Some((Some(lease), Some(memory)));
                    }
                    Err(error) => parent.say(format_args!("refused {error}")),
                }
            }
            "fill" => {
                let (lease, memory) = claimed.take().expect("claimed");
                let (epoch, memory) = (lease.expect("it").epoch(), memory.expect("it"));
                // What the writer before wrote last stays: nobody else writes.
                let (mut last, mut now) = ([0; 8], [0; 8]);
                memory.read(0, &mut last).expect("readable");
                for _ in 0..200 {
                    std::thread::yield_now();
                    memory.read(0, &mut now).expect("readable");
                    assert_eq!(now, last, "somebody else writes");
                }
                memory.write(8, &epoch.to_le_bytes()).expect("written");
                parent.say("filling");
                for count in 0_u64.. {
                    memory.write(0, &count.to_le_bytes()).expect("written");
                    memory.read(8, &mut now).expect("readable");
                    assert_eq!(u64::from_le_bytes(now), epoch, "another epoch's writer");
                }
            }
            "fork" => {
                // SAFETY: the child calls nothing but pause(2) and _exit(2).
                let child = unsafe { libc::fork() };
                if child == 0 {
                    // SAFETY: both are safe in a forked child.
                    unsafe {
                        libc::pause();
                        libc::_exit(0);
                    }
                }
                assert!(child > 0, "a child");
                parent.say(child);
            }
            "end" => {
                let (lease, _) = claimed.as_mut().expect("claimed");
                lease.take().expect("not ended").end().expect("ended");
                parent.say("ended");
            }
            _ => {
                claimed = None;
                parent.say("dropped");
            }
        }
    }
}

/// Opens and checks memory, as it is told: `open HANDLE SEED`, `check`, `names`.
fn read() {
    let directory = Directory::inherited();
    let mut parent = Parent::new();
    let context = directory.context();
    let mut open: Vec<(u64, Memory)> = Vec::new();
    while let Some(line) = parent.hear() {
        let words: Vec<_> = line.split(' ').collect();
        match words[0] {
            "open" => {
                let handle: MemoryHandle = words[1].parse().expect("a handle");
                match context.open_memory_read_only(&handle) {
                    Ok(memory) => {
                        open.push((words[2].parse().expect("a number"), memory));
                        parent.say("opened");
                    }
                    Err(error) => parent.say(format_args!("refused {error:?}")),
                }
            }
            "names" => {
                let names = holder_of(&directory).list().expect("names");
                for name in names {
                    // It may be gone, or replaced, by now.
                    if let Ok(held) = holder_of(&directory).open(&name.name)
                        && let Ok(memory) = open_held(&context, &held)
                    {
                        open.push((held.label.parse().expect("a number"), memory));
                    }
                }
                parent.say("opened");
            }
            _ => {
                for (seed, memory) in &open {
                    check(memory, *seed);
                }
                parent.say("good");
            }
        }
    }
}

fn check(memory: &Memory, seed: u64) {
    let mut bytes = vec![0; LEN];
    memory.read(0, &mut bytes).expect("readable");
    assert!(
        bytes == contents(seed, LEN),
        "the bytes of {seed} are others"
    );
}

fn open_held(context: &Context, held: &HeldName) -> crosshandle::Result<Memory> {
    let handle = held.parts[0].read_only.expect("a handle for reading");
    context.open_memory_read_only(&handle)
}

/// A holder and its successor, ended with the test.
struct Pair {
    _first: Process,
    holder: Holder,
}

impl Pair {
    fn start(test: &str, directory: &Directory) -> Self {
        Self::start_by(&[], test, directory)
    }

    fn start_by(by: &[&str], test: &str, directory: &Directory) -> Self {
        let mut first = Process::start_by(by, test, HOLDER, directory);
        assert_eq!(first.hear(), "ready");
        let holder = holder_of(directory);
        let pair = Self {
            _first: first,
            holder,
        };
        pair.await_safe();
        pair
    }

    /// Waits until a successor has everything.
    fn await_safe(&self) -> Status {
        let begin = Instant::now();
        loop {
            let status = self.holder.status().expect("a holder");
            if status.is_safe {
                return status;
            }
            assert!(begin.elapsed() < DEADLINE, "no successor: {status:?}");
            std::thread::yield_now();
        }
    }

    fn kill(pid: u32) {
        let pid = Pid::from_raw(pid.try_into().expect("a process")).expect("a process");
        kill_process(pid, Signal::KILL).expect("it lives");
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for name in self.holder.list().unwrap_or_default() {
            let _ = self.holder.pin(&name.name, false);
        }
        let _ = self.holder.clone().token("admin").stop();
    }
}

#[test]
fn handed_over_memory_outlives_its_maker() {
    const TEST: &str = "handed_over_memory_outlives_its_maker";
    if role() {
        return;
    }
    let directory = Directory::new();
    let pair = Pair::start(TEST, &directory);
    let mut maker = Process::start(TEST, MAKER, &directory);
    let mut before = Process::start(TEST, READER, &directory);
    let open = |reader: &mut Process, handle: &str, seed: u64| {
        reader.say(&format!("open {handle} {seed}"));
        reader.hear()
    };
    maker.say("make 1");
    let handle = maker.hear();
    maker.say("make 2");
    let other = maker.hear();
    assert_eq!(open(&mut before, &handle, 1), "opened");
    maker.say("hand-over 1 one");
    assert_eq!(maker.hear(), "held 1 true");
    // Who has it open, opens it again, or opens it now.
    assert_eq!(open(&mut before, &handle, 1), "opened");
    let mut during = Process::start(TEST, READER, &directory);
    assert_eq!(open(&mut during, &handle, 1), "opened");
    assert_eq!(open(&mut during, &other, 2), "opened", "the maker's own");
    maker.say("drop 1");
    assert_eq!(maker.hear(), "dropped");
    let mut dropped = Process::start(TEST, READER, &directory);
    assert_eq!(open(&mut dropped, &handle, 1), "opened");
    // Both makers' numbers are in use still.
    maker.say("make 3");
    let third = maker.hear();
    assert_eq!(open(&mut dropped, &third, 3), "opened");
    maker.kill();
    let mut after = Process::start(TEST, READER, &directory);
    assert_eq!(open(&mut after, &handle, 1), "opened");
    let gone = open(&mut after, &other, 2);
    assert!(gone.contains("ExporterGone"), "{gone}");
    let again = open(&mut before, &handle, 1);
    assert_eq!(again, "opened", "whose attachment has hung up");
    for reader in [&mut before, &mut during, &mut dropped, &mut after] {
        reader.say("check");
        assert_eq!(reader.hear(), "good");
    }
    // Access is what the handle says, and its key is needed.
    let held = pair.holder.open("one").expect("held");
    assert_eq!(held.parts[0].handle, None);
    let read_only = held.parts[0].read_only.expect("a handle");
    let context = directory.context();
    let refused = context
        .open_memory(&read_only)
        .expect_err("it is for reading");
    assert!(matches!(refused, Error::ReadOnly), "{refused}");
    let mut forged = *read_only.as_bytes();
    // Neither the flag nor the record of the handle for writing can be had by editing this one.
    forged[7] ^= 1;
    assert!(MemoryHandle::from_bytes(&forged).is_err());
    let writable = pair.holder.open_to_write("one").expect("held").parts[0].handle;
    let memory = context
        .open_memory(&writable.expect("a handle"))
        .expect("opened");
    memory.write(0, &[7; 8]).expect("writable");
    let reading = context.open_memory_read_only(&read_only).expect("opened");
    let mut word = [0; 8];
    reading.read(0, &mut word).expect("readable");
    assert_eq!(word, [7; 8], "one memory");
    // Nobody can open it once it is let go of; who has it keeps it.
    pair.holder.remove("one").expect("removed");
    let mut late = Process::start(TEST, READER, &directory);
    let refused = open(&mut late, &handle, 1);
    assert!(refused.starts_with("refused"), "{refused}");
    reading.read(0, &mut word).expect("readable");
    assert_eq!(word, [7; 8]);
}

#[test]
fn a_killed_holder_has_a_successor_and_readers_notice_nothing() {
    const TEST: &str = "a_killed_holder_has_a_successor_and_readers_notice_nothing";
    if role() {
        return;
    }
    let directory = Directory::new();
    let pair = Pair::start(TEST, &directory);
    let mut maker = Process::start(TEST, MAKER, &directory);
    for seed in 1..=20 {
        maker.say(&format!("hand-over {seed} name-{seed}"));
        assert_eq!(maker.hear(), "held 1 true");
    }
    maker.kill();
    let mut reader = Process::start(TEST, READER, &directory);
    let bystander = directory.context();
    let mut slowest = Duration::ZERO;
    for takeover in 1..=5 {
        let status = pair.await_safe();
        reader.say("names");
        assert_eq!(reader.hear(), "opened");
        Pair::kill(status.pid);
        let begin = Instant::now();
        let held = pair.holder.open("name-7").expect("held still");
        slowest = slowest.max(begin.elapsed());
        check(&open_held(&bystander, &held).expect("opened"), 7);
        check(&open_held(&directory.context(), &held).expect("opened"), 7);
        let after = pair.holder.status().expect("a holder");
        assert_eq!((after.takeovers, after.names), (takeover, 20));
        assert_eq!(Some(after.pid), status.successor);
        reader.say("check");
        assert_eq!(reader.hear(), "good");
    }
    // A hundred milliseconds are the promise; a busy machine is no fault.
    assert!(slowest < Duration::from_secs(2), "{slowest:?}");
    // The successor's death is nobody's business either.
    let status = pair.await_safe();
    Pair::kill(status.successor.expect("a successor"));
    maker = Process::start(TEST, MAKER, &directory);
    maker.say("hand-over 21 name-21");
    assert_eq!(maker.hear(), "held 1 true");
    let after = pair.await_safe();
    assert_eq!(after.pid, status.pid);
    assert_ne!(after.successor, status.successor);
}

#[test]
fn only_whole_memory_of_its_own_is_handed_over() {
    const TEST: &str = "only_whole_memory_of_its_own_is_handed_over";
    if role() {
        return;
    }
    let directory = Directory::new();
    let context = directory.context();
    let without = holder_of(&directory);
    let refused = make_memory(&alone(&directory), 1)
        .hand_over(&without, "a")
        .expect_err("no holder");
    assert!(
        matches!(
            refused,
            Error::Holder {
                fault: HolderFault::NoHolder,
                ..
            }
        ),
        "{refused}"
    );
    let pair = Pair::start(TEST, &directory);
    let pooled = make_memory(&context, 1).hand_over(&pair.holder, "a");
    let pooled = pooled.expect_err("it shares its segment").to_string();
    assert!(pooled.contains("pooling(false)"), "{pooled}");
    // Large memory has a segment alone in every context.
    let options = AllocationOptions::new(96 << 20);
    let large = context.allocate_with(options).expect("memory");
    large.hand_over(&pair.holder, "large").expect("handed over");
    let memory = make_memory(&alone(&directory), 2);
    let opened = context
        .open_memory(&memory.handle().expect("a handle"))
        .expect("opened");
    let opened = opened
        .hand_over(&pair.holder, "b")
        .expect_err("not its own")
        .to_string();
    assert!(opened.contains("opened from a handle"), "{opened}");
    for bad in ["xhm2.abc", "", "a b", "-x"] {
        let refused = memory.hand_over(&pair.holder, bad).expect_err("no name");
        assert!(refused.to_string().contains("no name"), "{refused}");
    }
    let refused = memory.hand_over(&pair.holder, "large").expect_err("in use");
    assert!(
        matches!(
            refused,
            Error::Holder {
                fault: HolderFault::NameTaken,
                ..
            }
        ),
        "{refused}"
    );
    // After a refusal it is the maker's own as before.
    let handle = memory.handle().expect("a handle");
    check(
        &directory.context().open_memory(&handle).expect("opened"),
        2,
    );
    memory.hand_over(&pair.holder, "b").expect("handed over");
    check(
        &directory.context().open_memory(&handle).expect("opened"),
        2,
    );
    // Under two names, and let go of with the last.
    memory
        .hand_over(&pair.holder, "c")
        .expect("handed over again");
    pair.holder.remove("b").expect("removed");
    check(
        &directory.context().open_memory(&handle).expect("opened"),
        2,
    );
    pair.holder.remove("c").expect("removed");
    assert!(directory.context().open_memory(&handle).is_err());
    let second = ServeOptions::new().socket_dir(directory.path());
    let second = holder::serve(second, || ()).expect_err("there is one");
    assert!(
        matches!(
            second,
            Error::Holder {
                fault: HolderFault::SecondHolder,
                ..
            }
        ),
        "{second}"
    );
}

#[test]
fn names_have_versions_tokens_and_pins() {
    const TEST: &str = "names_have_versions_tokens_and_pins";
    if role() {
        return;
    }
    let directory = Directory::new();
    let pair = Pair::start(TEST, &directory);
    let (holder, context) = (&pair.holder, alone(&directory));
    let fault = |result: crosshandle::Result<HeldName>| match result {
        Err(Error::Holder { fault, .. }) => fault,
        other => panic!("{other:?}"),
    };
    let publish = |seed: u64, holder: &Holder| {
        let options = HoldOptions::new().label(seed.to_string()).replaces(true);
        holder.hand_over(
            "model",
            &[("memory", &make_memory(&context, seed))],
            options,
        )
    };
    assert_eq!(publish(1, holder).expect("published").version, 1);
    let first = holder.open("model").expect("held");
    let reading = open_held(&context, &first).expect("opened");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| holder.await_version("model", 1, DEADLINE));
        assert_eq!(publish(2, holder).expect("published").version, 2);
        let second = waiting.join().expect("no panic").expect("told");
        assert_eq!(second.version, 2);
        check(&open_held(&context, &second).expect("opened"), 2);
    });
    // Who has the version before keeps it; nobody else gets it.
    check(&reading, 1);
    assert!(open_held(&directory.context(), &first).is_err());
    let late = holder.await_version("model", 2, Duration::from_millis(20));
    assert!(late.expect_err("no third").is_timeout());
    // Waiting survives the holder.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| holder.await_version("model", 2, DEADLINE));
        Pair::kill(pair.await_safe().pid);
        assert_eq!(publish(3, holder).expect("published").version, 3);
        assert_eq!(waiting.join().expect("no panic").expect("told").version, 3);
    });
    holder.pin("model", true).expect("pinned");
    let refused = publish(4, holder).map(|_| first.clone());
    assert_eq!(fault(refused), HolderFault::Pinned);
    assert_eq!(
        fault(holder.remove("model").map(|()| first.clone())),
        HolderFault::Pinned
    );
    Pair::kill(pair.await_safe().pid);
    assert!(
        holder.open("model").expect("held").pinned,
        "the successor knows"
    );
    holder.pin("model", false).expect("unpinned");
    holder.remove("model").expect("removed");
    assert_eq!(fault(holder.open("model")), HolderFault::NoSuchName);
    // Tokens.
    let options = HoldOptions::new()
        .read_token("r")
        .write_token("w")
        .admin_token("admin");
    let memory = make_memory(&context, 5);
    holder
        .hand_over("secret", &[("memory", &memory)], options)
        .expect("handed over");
    assert_eq!(fault(holder.open("secret")), HolderFault::NotAllowed);
    let with = |token: &str| holder.clone().token(token);
    check(
        &open_held(&context, &with("r").open("secret").expect("allowed")).expect("opened"),
        5,
    );
    assert_eq!(
        fault(with("r").open_to_write("secret")),
        HolderFault::NotAllowed
    );
    assert!(
        with("w").open_to_write("secret").expect("allowed").parts[0]
            .handle
            .is_some()
    );
    let removed = with("w").remove("secret").map(|()| first.clone());
    assert_eq!(fault(removed), HolderFault::NotAllowed);
    let listed = &holder.list().expect("names")[0];
    assert!(
        listed.has_tokens && listed.parts[0].read_only.is_none(),
        "lists give no handles"
    );
    with("admin").remove("secret").expect("removed");
}

/// Sends something to a holder's socket as no program of this crate does.
fn send_raw(directory: &Directory, socket: &str, message: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let stream = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let address = SocketAddrUnix::new(directory.path().join(socket))?;
    rustix::net::connect(&stream, &address)?;
    rustix::net::send(&stream, message, SendFlags::NOSIGNAL)?;
    Ok(stream)
}

#[test]
fn a_holder_withstands_senseless_programs() {
    const TEST: &str = "a_holder_withstands_senseless_programs";
    if role() {
        return;
    }
    let directory = Directory::new();
    let pair = Pair::start(TEST, &directory);
    let memory = make_memory(&alone(&directory), 1);
    memory.hand_over(&pair.holder, "good").expect("handed over");
    let event = directory.context().create_event().expect("an event");
    let event = event.handle().expect("a handle").to_string();
    let dead = {
        let context = alone(&directory);
        let memory = make_memory(&context, 9);
        (
            memory.handle().expect("a handle"),
            memory.handle_read_only().expect("a handle"),
        )
    };
    let hold = |parts: &str| {
        format!(r#"{{"protocol":1,"question":{{"hold":{{"name":"bad","parts":[{parts}]}}}}}}"#)
    };
    let part = |handle: &str, read_only: &str, bytes: usize| {
        format!(
            r#"{{"role":"x","device":"host","kind":"device","bytes":{bytes},"handle":"{handle}","read_only":"{read_only}"}}"#
        )
    };
    let own = memory.handle().expect("a handle").to_string();
    let texts = [
        String::new(),
        "{".repeat(50_000),
        "null".into(),
        r#"{"protocol":2,"question":"status"}"#.into(),
        r#"{"protocol":1,"question":{"open":{"name":"../../etc/passwd","writes":true}}}"#.into(),
        r#"{"protocol":1,"question":{"list":{"after":"\u0000"}}}"#.into(),
        hold(""),
        hold(&part(&own, &own, LEN)),
        hold(&part(&event, &event, LEN)),
        hold(&part(&dead.0.to_string(), &dead.1.to_string(), LEN)),
        hold(&part(&own, &dead.1.to_string(), LEN)),
        hold(&part("xhm2.", "xhm2.", LEN)),
    ];
    let mut kept = Vec::new();
    for text in &texts {
        kept.extend(send_raw(&directory, "holder.sock", text.as_bytes()));
        kept.extend(send_raw(&directory, "holder.importers", text.as_bytes()));
    }
    // Many that say nothing, or wait for what never comes.
    for _ in 0..300 {
        kept.extend(send_raw(&directory, "holder.sock", b""));
        let wait =
            r#"{"protocol":1,"question":{"await":{"name":"good","writes":false,"version":9}}}"#;
        kept.extend(send_raw(&directory, "holder.sock", wait.as_bytes()));
    }
    let held = pair.holder.list().expect("it answers");
    let names: Vec<_> = held.iter().map(|name| &*name.name).collect();
    assert_eq!(names, ["good"]);
    let held = pair.holder.open("good").expect("it answers");
    check(&open_held(&directory.context(), &held).expect("opened"), 1);
    drop(kept);
    // And so does the successor.
    Pair::kill(pair.await_safe().pid);
    let held = pair.holder.open("good").expect("it answers");
    check(&open_held(&directory.context(), &held).expect("opened"), 1);
    assert!(AnyHandle::from_bytes(held.parts[0].read_only.expect("one").as_bytes()).is_ok());
}

/// The question by which a program hands memory over.
fn hold_text(name: &str, request: u64, writes: &str, reads: &str) -> String {
    format!(
        r#"{{"protocol":1,"question":{{"hold":{{"name":"{name}","request":{request},"parts":[{{"role":"memory","device":"host","kind":"device","bytes":{LEN},"handle":"{writes}","read_only":"{reads}"}}]}}}}}}"#
    )
}

/// Hears the answer to a question that [`send_raw`] has sent.
fn hear_raw(stream: &OwnedFd) -> String {
    let timeout = rustix::net::sockopt::Timeout::Recv;
    rustix::net::sockopt::set_socket_timeout(stream, timeout, Some(DEADLINE)).expect("a timeout");
    let mut answer = vec![0; 60 << 10];
    let flags = rustix::net::RecvFlags::empty();
    let (len, _) = rustix::net::recv(stream, &mut answer[..], flags).expect("an answer");
    String::from_utf8_lossy(&answer[..len]).into_owned()
}

#[test]
fn a_silent_maker_holds_up_no_other() {
    const TEST: &str = "a_silent_maker_holds_up_no_other";
    if role() {
        return;
    }
    let directory = Directory::new();
    let pair = Pair::start(TEST, &directory);
    let mut silent = Process::start(TEST, MAKER, &directory);
    let mut other = Process::start(TEST, MAKER, &directory);
    silent.say("handles 1");
    let handles = silent.hear();
    let (writes, reads) = handles.split_once(' ').expect("two handles");
    silent.stop();
    let mut kept = Vec::new();
    for number in 0..24 {
        let text = hold_text(&format!("silent-{number}"), 0, writes, reads);
        kept.push(send_raw(&directory, "holder.sock", text.as_bytes()).expect("sent"));
    }
    // All of them have been heard: it answers in turn.
    assert_eq!(pair.holder.list().expect("names").len(), 0);
    other.say("hand-over 2 other");
    assert_eq!(other.hear(), "held 1 true");
    drop(kept);
}

#[test]
fn a_holder_takes_no_more_than_its_successor_can_have() {
    const TEST: &str = "a_holder_takes_no_more_than_its_successor_can_have";
    if role() {
        return;
    }
    let directory = Directory::new();
    let limited = ["sh", "-c", "ulimit -n 520; exec \"$0\" \"$@\""];
    let pair = Pair::start_by(&limited, TEST, &directory);
    let context = alone(&directory);
    let mut held = 0;
    let refused = loop {
        let memory = context.allocate(LEN).expect("memory");
        memory.write(0, &contents(held, LEN)).expect("written");
        match memory.hand_over(&pair.holder, &format!("name-{held}")) {
            Ok(done) => assert!(done.is_safe, "the successor lives"),
            Err(error) => break error.to_string(),
        }
        held += 1;
        assert!(held < 260, "more than both can have");
    };
    assert!(refused.contains("ulimit -n"), "{refused}");
    assert!(held > 8, "{held}");
    for _ in 0..2 {
        Pair::kill(pair.await_safe().pid);
        for seed in [0, held - 1] {
            let name = pair.holder.open(&format!("name-{seed}")).expect("held");
            check(
                &open_held(&directory.context(), &name).expect("opened"),
                seed,
            );
        }
    }
}

#[test]
fn a_name_that_is_replaced_keeps_its_tokens() {
    const TEST: &str = "a_name_that_is_replaced_keeps_its_tokens";
    if role() {
        return;
    }
    let directory = Directory::new();
    let pair = Pair::start(TEST, &directory);
    let context = alone(&directory);
    let with = |token: &str| pair.holder.clone().token(token);
    let publish = |holder: &Holder, options: HoldOptions| {
        let memory = make_memory(&context, 1);
        holder.hand_over("secret", &[("memory", &memory)], options.replaces(true))
    };
    let tokens = |read: &str| {
        HoldOptions::new()
            .read_token(read)
            .write_token("w")
            .admin_token("admin")
    };
    let is_refused = |result: crosshandle::Result<HeldName>| {
        let refused = result.expect_err("a token is needed");
        assert!(
            matches!(
                refused,
                Error::Holder {
                    fault: HolderFault::NotAllowed,
                    ..
                }
            ),
            "{refused}"
        );
    };
    publish(&pair.holder, tokens("r")).expect("published");
    let next = publish(&with("w"), HoldOptions::new()).expect("published");
    assert_eq!(next.version, 2);
    is_refused(pair.holder.open("secret"));
    with("r").open("secret").expect("its token still");
    // Who may write may not say who may read.
    let taken = publish(&with("w"), tokens("mine"));
    is_refused(taken.map(|_| unreachable!("it has tokens")));
    publish(&with("w"), tokens("r")).expect("the same tokens");
    let next = publish(&with("admin"), tokens("other")).expect("published");
    assert_eq!(next.version, 4);
    is_refused(with("r").open("secret"));
    with("other").open("secret").expect("the new token");
    with("admin").remove("secret").expect("removed");
}

#[test]
fn a_hand_over_is_done_once_however_often_it_is_asked_for() {
    const TEST: &str = "a_hand_over_is_done_once_however_often_it_is_asked_for";
    if role() {
        return;
    }
    let directory = Directory::new();
    let pair = Pair::start(TEST, &directory);
    let mut maker = Process::start(TEST, MAKER, &directory);
    maker.say("handles 1");
    let handles = maker.hear();
    let (writes, reads) = handles.split_once(' ').expect("two handles");
    let ask = |request| {
        let text = hold_text("one", request, writes, reads);
        hear_raw(&send_raw(&directory, "holder.sock", text.as_bytes()).expect("sent"))
    };
    let first = ask(7);
    assert!(
        first.contains(r#""handed_over":{"version":1,"is_safe":true}"#),
        "{first}"
    );
    assert_eq!(ask(7), first);
    // As if the answer had been lost with the holder.
    Pair::kill(pair.await_safe().pid);
    pair.await_safe();
    assert_eq!(ask(7), first);
    assert_eq!(pair.holder.open("one").expect("held").version, 1);
    let other = ask(8);
    assert!(other.contains("name_taken"), "{other}");
}

#[test]
fn a_takeover_needs_no_names_in_the_directory() {
    const TEST: &str = "a_takeover_needs_no_names_in_the_directory";
    if role() {
        return;
    }
    let directory = Directory::new();
    let pair = Pair::start(TEST, &directory);
    let mut maker = Process::start(TEST, MAKER, &directory);
    maker.say("make 1");
    let handle = maker.hear();
    maker.say("hand-over 1 one");
    assert_eq!(maker.hear(), "held 1 true");
    maker.kill();
    for round in 0..3 {
        let status = pair.await_safe();
        // Whoever may write there can do that.
        for entry in fs::read_dir(directory.path()).expect("entries") {
            let path = entry.expect("an entry").path();
            let name = path
                .file_name()
                .expect("a name")
                .to_string_lossy()
                .into_owned();
            if round == 0 || name.contains("held") || name == "holder.importers" {
                fs::remove_file(&path).expect("removed");
            }
        }
        Pair::kill(status.pid);
        let begin = Instant::now();
        while pair.holder.status().is_err() {
            assert!(begin.elapsed() < DEADLINE, "nobody has taken over");
            std::thread::yield_now();
        }
        let held = pair.holder.open("one").expect("held still");
        check(&open_held(&directory.context(), &held).expect("opened"), 1);
        // By a handle from before.
        let handle: MemoryHandle = handle.parse().expect("a handle");
        check(
            &directory.context().open_memory(&handle).expect("opened"),
            1,
        );
        assert_eq!(pair.await_safe().takeovers, round + 1);
    }
    let second = ServeOptions::new().socket_dir(directory.path());
    holder::serve(second, || ()).expect_err("there is one");
}

/// Makes memory, hands it over, and ends its maker.
fn hold_region(test: &str, directory: &Directory) {
    let mut maker = Process::start(test, MAKER, directory);
    maker.say("hand-over 1 region");
    assert_eq!(maker.hear(), "held 1 true");
    maker.kill();
}

/// Has a writer claim the region. Returns its epoch and its handle, or why it was refused.
fn claim(writer: &mut Process, wait_ms: u64, forces: bool) -> Result<(u64, MemoryHandle), String> {
    writer.say(&format!("claim region {wait_ms} {forces}"));
    let answer = writer.hear();
    let words: Vec<_> = answer.split(' ').collect();
    match words[0] {
        "epoch" => Ok((
            words[1].parse().expect("a number"),
            words[2].parse().expect("a handle"),
        )),
        _ => Err(answer),
    }
}

#[test]
fn a_region_has_one_writer_at_a_time() {
    const TEST: &str = "a_region_has_one_writer_at_a_time";
    if role() {
        return;
    }
    let directory = Directory::new();
    let pair = Pair::start(TEST, &directory);
    let mut maker = Process::start(TEST, MAKER, &directory);
    maker.say("hand-over 1 region");
    assert_eq!(maker.hear(), "held 1 true");
    let mut first = Process::start(TEST, WRITER, &directory);
    let mut second = Process::start(TEST, WRITER, &directory);
    // Its maker has it mapped.
    let refused = claim(&mut first, 0, false).expect_err("it is open for writing");
    assert!(refused.contains("open for writing"), "{refused}");
    maker.kill();
    let (epoch, handle) = claim(&mut first, 0, false).expect("claimed");
    assert_eq!(epoch, 1);
    let refused = claim(&mut second, 0, false).expect_err("it has a writer");
    assert!(refused.contains("has not ended"), "{refused}");
    let refused = pair
        .holder
        .open_to_write("region")
        .expect_err("it has a writer");
    assert!(refused.to_string().contains("claim it"), "{refused}");
    // Reading needs no claim, and readers are told of the next writer.
    let reading = pair.holder.open("region").expect("held");
    assert_eq!((reading.epoch, reading.writer), (1, Some(first.id())));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| pair.holder.await_epoch("region", 1, DEADLINE));
        first.say("fill");
        assert_eq!(first.hear(), "filling");
        first.kill_alone();
        let (epoch, _) = claim(&mut second, 0, false).expect("the first has ended");
        assert_eq!(epoch, 2);
        let told = waiting.join().expect("no panic").expect("told");
        assert_eq!((told.epoch, told.version), (2, 1));
        check_open(&directory, &told);
    });
    // Another name would be another way to write it.
    let now = pair.holder.open("region").expect("held").parts[0].read_only;
    let reads = now.expect("a handle").to_string();
    let text = hold_text("other", 0, &handle.to_string(), &reads);
    let answer = hear_raw(&send_raw(&directory, "holder.sock", text.as_bytes()).expect("sent"));
    assert!(answer.contains("fenced"), "{answer}");
    // What the first one was given opens nothing any more.
    directory
        .context()
        .open_memory(&handle)
        .expect_err("of an epoch that is over");
    // Who has ended its claim must have let go of it.
    second.say("end");
    assert_eq!(second.hear(), "ended");
    let mut third = Process::start(TEST, WRITER, &directory);
    let refused = claim(&mut third, 0, false).expect_err("the second has it mapped");
    assert!(refused.contains("open for writing"), "{refused}");
    second.say("drop");
    assert_eq!(second.hear(), "dropped");
    // Dropped memory is unmapped soon.
    assert_eq!(claim(&mut third, 30_000, false).expect("claimed").0, 3);
    // The successor knows who writes.
    Pair::kill(pair.await_safe().pid);
    let refused = claim(&mut second, 0, false).expect_err("the third lives");
    assert!(refused.contains("has not ended"), "{refused}");
    assert_eq!(claim(&mut second, 0, true).expect("by force").0, 4);
    Pair::kill(pair.await_safe().pid);
    assert_eq!(pair.holder.open("region").expect("held").epoch, 4);
    // Force is for this claim alone: the next one asks for the end of both, also at the successor.
    for (order, answer) in [("end", "ended"), ("drop", "dropped")] {
        second.say(order);
        assert_eq!(second.hear(), answer);
    }
    let mut fourth = Process::start(TEST, WRITER, &directory);
    let refused = claim(&mut fourth, 0, false).expect_err("the third lives");
    assert!(
        refused.contains(&format!("process {}, has not ended", third.id())),
        "{refused}"
    );
    third.kill();
    assert_eq!(claim(&mut fourth, 30_000, false).expect("claimed").0, 5);
}

fn check_open(directory: &Directory, held: &HeldName) {
    let memory = open_held(&directory.context(), held).expect("readers open it as ever");
    assert_eq!(memory.len(), LEN);
}

#[test]
fn a_forked_child_of_a_writer_holds_its_fence() {
    const TEST: &str = "a_forked_child_of_a_writer_holds_its_fence";
    if role() {
        return;
    }
    let directory = Directory::new();
    let _pair = Pair::start(TEST, &directory);
    hold_region(TEST, &directory);
    let mut first = Process::start(TEST, WRITER, &directory);
    let mut second = Process::start(TEST, WRITER, &directory);
    assert_eq!(claim(&mut first, 0, false).expect("claimed").0, 1);
    first.say("fork");
    let child: u32 = first.hear().parse().expect("a process");
    first.kill_alone();
    let refused = claim(&mut second, 0, false).expect_err("its child lives");
    assert!(refused.contains("forked from its writer"), "{refused}");
    Pair::kill(child);
    assert_eq!(claim(&mut second, 30_000, false).expect("claimed").0, 2);
}

/// Writers are killed while they write, with two others waiting each time: one of them is let in, after the
/// last write, and no two have one epoch. `CROSSHANDLE_FENCE_CYCLES` says how often.
#[test]
fn writers_are_killed_and_no_two_have_one_epoch() {
    const TEST: &str = "writers_are_killed_and_no_two_have_one_epoch";
    if role() {
        return;
    }
    let cycles = std::env::var("CROSSHANDLE_FENCE_CYCLES").ok();
    let cycles: u64 = cycles.map_or(100, |text| text.parse().expect("a number"));
    let directory = Directory::new();
    let pair = Pair::start(TEST, &directory);
    hold_region(TEST, &directory);
    let mut random = Random(0xFE4CE);
    let (won, winners) = std::sync::mpsc::channel::<(Process, String)>();
    let contend = || {
        let (won, mut writer) = (won.clone(), Process::start(TEST, WRITER, &directory));
        writer.say("claim region 60000 false");
        std::thread::spawn(move || {
            let answer = writer.hear();
            let _ = won.send((writer, answer));
        });
    };
    contend();
    contend();
    for cycle in 1..=cycles {
        let (mut writer, answer) = winners.recv_timeout(DEADLINE).expect("one is let in");
        assert!(
            answer.starts_with(&format!("epoch {cycle} ")),
            "{cycle}: {answer}"
        );
        writer.say("fill");
        assert_eq!(writer.hear(), "filling");
        contend();
        if cycle % 8 == 0 {
            Pair::kill(pair.await_safe().pid);
        }
        random.moment();
        assert!(winners.try_recv().is_err(), "two writers at a time");
        assert_eq!(pair.holder.open("region").expect("held").epoch, cycle);
        writer.kill();
    }
    for _ in 0..2 {
        let (writer, answer) = winners.recv_timeout(DEADLINE).expect("the others");
        assert!(answer.starts_with("epoch "), "{answer}");
        writer.kill();
    }
}

/// Numbers that look random, the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    /// Goes on after a moment, at which somebody else may be anywhere.
    fn moment(&mut self) {
        let end = Instant::now() + Duration::from_micros(self.below(4_000));
        while Instant::now() < end {
            std::thread::yield_now();
        }
    }
}

/// Descriptors of memory that a process has.
fn memory_descriptors(pid: u32) -> usize {
    let all = fs::read_dir(format!("/proc/{pid}/fd")).expect("it lives");
    let links = all
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok());
    links
        .filter(|link| link.to_string_lossy().contains("crosshandle-memory"))
        .count()
}

/// Makers, readers, holders and successors are killed at random moments: no byte is lost that was promised,
/// none is wrong, none is leaked. `CROSSHANDLE_HOLDER_CYCLES` says how often.
#[test]
fn nothing_is_lost_whoever_dies_when() {
    const TEST: &str = "nothing_is_lost_whoever_dies_when";
    if role() {
        return;
    }
    let cycles = std::env::var("CROSSHANDLE_HOLDER_CYCLES").ok();
    let cycles: u64 = cycles.map_or(40, |text| text.parse().expect("a number"));
    let directory = Directory::new();
    let pair = Pair::start(TEST, &directory);
    let mut random = Random(0x5EED);
    let mut promised = std::collections::BTreeMap::new();
    let mut maker = Process::start(TEST, MAKER, &directory);
    maker.say("hand-over 0 bystander");
    assert_eq!(maker.hear(), "held 1 true");
    let mut bystander = Process::start(TEST, READER, &directory);
    bystander.say("names");
    assert_eq!(bystander.hear(), "opened");
    let mut takeovers = 0;
    for cycle in 1..=cycles {
        let status = pair.await_safe();
        let name = format!("name-{}", random.below(12));
        let mut reader = Process::start(TEST, READER, &directory);
        reader.say("names");
        maker.say(&format!("publish {cycle} {name}"));
        random.moment();
        let victim = random.below(5);
        match victim {
            0 => Pair::kill(status.pid),
            1 => Pair::kill(status.successor.expect("a successor")),
            2 => drop(std::mem::replace(
                &mut maker,
                Process::start(TEST, MAKER, &directory),
            )),
            3 => drop(std::mem::replace(
                &mut reader,
                Process::start(TEST, READER, &directory),
            )),
            _ => {}
        }
        takeovers += u64::from(victim == 0);
        match victim {
            // Killed before it was answered, it may have been heard.
            2 => {
                promised.remove(&name);
            }
            _ => {
                let answer = maker.hear();
                assert!(answer.starts_with("held "), "{answer}");
                promised.insert(name, cycle);
            }
        }
        if victim != 3 {
            assert_eq!(reader.hear(), "opened");
        }
        reader.say("check");
        assert_eq!(reader.hear(), "good");
        bystander.say("check");
        assert_eq!(bystander.hear(), "good");
        for (name, seed) in &promised {
            let held = pair
                .holder
                .open(name)
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(held.label, seed.to_string(), "{name}");
        }
        let context = directory.context();
        for listed in pair.holder.list().expect("names") {
            let held = pair.holder.open(&listed.name).expect("held");
            let seed = held.label.parse().expect("a number");
            check(&open_held(&context, &held).expect("opened"), seed);
        }
        if random.below(3) == 0 {
            let name = format!("name-{}", random.below(12));
            if pair.holder.open(&name).is_ok() {
                pair.holder.remove(&name).expect("removed");
                promised.remove(&name);
            }
        }
    }
    assert!(takeovers > 0 || cycles < 20, "the holder was killed, too");
    for name in pair.holder.list().expect("names") {
        pair.holder.remove(&name.name).expect("removed");
    }
    let status = pair.await_safe();
    assert_eq!((status.names, status.bytes), (0, 0));
    assert_eq!(status.takeovers, takeovers);
    let successor = status.successor.expect("a successor");
    assert_eq!(
        [
            memory_descriptors(status.pid),
            memory_descriptors(successor)
        ],
        [0, 0]
    );
    bystander.say("check");
    assert_eq!(bystander.hear(), "good");
}
