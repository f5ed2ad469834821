//! Tests the holder's safety guarantees. A successor that does not reply is replaced, a journal
//! that cannot be written is reported, and a holder that no program can reach ends.

use crate::common::{DEADLINE, Directory, Process};
use crate::recovery::{has_ended, kill_both, restart};
use crate::strangers::{hear_raw, send_raw};
use crate::{HOLDER, MAKER, Pair, alone, check_held, make_memory, place, role};
use crosshandle::holder::{ClaimOptions, HoldOptions};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.try_into().expect("a process")).expect("a process");
    kill_process(pid, signal).expect("it lives");
}

#[test]
fn a_successor_that_does_not_answer_is_replaced() {
    const TEST: &str = "safety::a_successor_that_does_not_answer_is_replaced";
    if role() {
        return;
    }
    let directory = Directory::new();
    let pair = Pair::start(TEST, &directory);
    let mut maker = Process::start(TEST, MAKER, &directory);
    for is_asked in [false, true] {
        let stopped = pair.await_safe().successor.expect("a successor");
        signal(stopped, Signal::STOP);
        let begin = Instant::now();
        if is_asked {
            maker.say("hand-over 1 one");
            assert_eq!(maker.hear(), "held 1 true");
            assert!(
                begin.elapsed() < Duration::from_millis(2500),
                "{:?}",
                begin.elapsed()
            );
        }
        while pair.holder.status().expect("a holder").successor == Some(stopped) {
            assert!(
                begin.elapsed() < Duration::from_secs(2),
                "it is not replaced"
            );
            std::thread::yield_now();
        }
        pair.await_safe();
    }
    pair.holder
        .claim("one", &ClaimOptions::new().wait(DEADLINE).force(true))
        .expect("granted")
        .end()
        .expect("ended");
    // The next holder has the memory.
    Pair::kill(pair.await_safe().pid);
    check_held(
        &place(&directory),
        &pair.holder.open("one").expect("held"),
        1,
    );
}

#[test]
fn versions_of_the_protocol_are_told_apart() {
    const TEST: &str = "safety::versions_of_the_protocol_are_told_apart";
    if role() {
        return;
    }
    let directory = Directory::new();
    let _pair = Pair::start(TEST, &directory);
    let ask =
        |text: &str| hear_raw(&send_raw(&directory, "holder.sock", text.as_bytes()).expect("sent"));
    for protocol in [1, 2] {
        let answer = ask(&format!(r#"{{"protocol":{protocol},"request":"status"}}"#));
        assert!(answer.contains("\"status\""), "{answer}");
    }
    // Other protocol versions are refused, even with a request that this version does not know.
    for (protocol, request) in [
        (0, "\"status\""),
        (3, "\"status\""),
        (9, r#"{"new":{"x":1}}"#),
    ] {
        let answer = ask(&format!(r#"{{"protocol":{protocol},"request":{request}}}"#));
        let expected = format!("speaks version {protocol} of the holder's protocol");
        assert!(
            answer.contains(&expected) && answer.contains("versions 1 to 2"),
            "{answer}"
        );
    }
}

/// A small file system that is mounted on a directory until it is dropped.
struct SmallDisk<'a>(&'a Directory);

impl<'a> SmallDisk<'a> {
    fn on(directory: &'a Directory) -> Self {
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", "size=256k,mode=0700", "none"]);
        let mounted = command.arg(directory.path()).output().expect("mount");
        assert!(mounted.status.success(), "{mounted:?}");
        Self(directory)
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).output();
    }
}

#[test]
#[ignore = "needs permission to mount; `cargo xtask test` runs it"]
fn what_a_full_disk_keeps_out_of_the_journal_is_not_safe() {
    const TEST: &str = "safety::what_a_full_disk_keeps_out_of_the_journal_is_not_safe";
    if role() {
        return;
    }
    let directory = Directory::new();
    let disk = SmallDisk::on(&directory);
    let mut pair = Pair::start(TEST, &directory);
    let context = alone(&directory);
    let label = "x".repeat(4000);
    let hold = |name: &str| {
        let memory = make_memory(&context, 1);
        let options = HoldOptions::new().label(&*label);
        let done = pair.holder.hand_over(name, &[("memory", &memory)], options);
        done.expect("it is held").is_safe
    };
    assert!(hold("before"));
    let filler = directory.path().join("filler");
    fs::write(&filler, vec![0; 1 << 20]).expect_err("the disk is full");
    // The rest of the last page has room for one line at most.
    let held = ["one", "two"].map(hold);
    assert!(!held[1], "it is not in the journal");
    let status = pair.holder.status().expect("a holder");
    let why = status.why_unsafe.expect("a reason");
    assert!(!status.is_safe && why.contains("No space left"), "{why}");
    fs::remove_file(&filler).expect("removed");
    // The journal is complete again once there is room.
    pair.await_safe();
    assert!(hold("after"));
    kill_both(&pair);
    restart(TEST, &directory, &mut pair);
    assert_eq!(pair.await_safe().lost, 4);
    for name in ["before", "one", "two", "after"] {
        pair.holder.remove(name).expect("given up");
    }
    drop(pair);
    drop(disk);
}

#[test]
fn what_is_removed_from_the_directory_is_made_again() {
    const TEST: &str = "safety::what_is_removed_from_the_directory_is_made_again";
    if role() {
        return;
    }
    let directory = Directory::new();
    let mut pair = Pair::start(TEST, &directory);
    let mut maker = Process::start(TEST, MAKER, &directory);
    maker.say("hand-over 1 one");
    assert_eq!(maker.hear(), "held 1 true");
    maker.kill();
    let files = || -> Vec<String> {
        let entries = fs::read_dir(directory.path()).expect("entries");
        let names = entries.map(|entry| entry.expect("an entry").file_name());
        names
            .map(|name| name.to_string_lossy().into_owned())
            .collect()
    };
    for file in files() {
        if file.starts_with("holder") || file.ends_with("held") {
            fs::remove_file(directory.path().join(file)).expect("removed");
        }
    }
    let begin = Instant::now();
    let is_there = |start: &str| files().iter().any(|file| file.starts_with(start));
    while !(is_there("holder.sock") && is_there("holder.lock") && is_there("holder.journal.")) {
        assert!(begin.elapsed() < DEADLINE, "{:?}", files());
        std::thread::yield_now();
    }
    // No successor took over. The same holder replies to requests by name and by handle.
    let status = pair.await_safe();
    assert_eq!((status.takeovers, status.pid), (0, pair.first.id()));
    check_held(
        &place(&directory),
        &pair.holder.open("one").expect("held"),
        1,
    );
    kill_both(&pair);
    restart(TEST, &directory, &mut pair);
    assert_eq!(pair.await_safe().lost, 1, "the journal was written again");
    pair.holder.remove("one").expect("given up");

    // No program can reach a holder without its directory, so both processes end.
    let successor = pair.await_safe().successor.expect("a successor");
    fs::remove_dir_all(directory.path()).expect("removed");
    let begin = Instant::now();
    while !(has_ended(pair.first.id()) && has_ended(successor)) {
        assert!(begin.elapsed() < DEADLINE, "they stay");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!directory.path().exists(), "it is not made again");
    // The holder uses a directory that is created again in time.
    fs::create_dir(directory.path()).expect("made");
    directory.set_mode(0o700);
    pair.first = Process::start(TEST, HOLDER, &directory);
    assert_eq!(pair.first.hear(), "ready");
    let pid = pair.await_safe().pid;
    fs::remove_dir_all(directory.path()).expect("removed");
    fs::create_dir(directory.path()).expect("made");
    directory.set_mode(0o700);
    let begin = Instant::now();
    while pair.holder.status().map_or(0, |status| status.pid) != pid {
        assert!(begin.elapsed() < DEADLINE, "it is not reached again");
        std::thread::yield_now();
    }
}
