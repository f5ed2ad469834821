//! Programs of one and of two users that request everything a holder has. Other programs must still
//! get their share.

use crate::common::{DEADLINE, Directory, Parent, Process};
use crate::recovery::{await_back, kill_both, restart};
use crate::strangers::{hold_text, send_raw};
use crate::{
    FLOODER, FOREIGN_MAKER, HOLDER_OF_USERS, MAKER, Pair, READER, STRANGER, alone, check_held,
    holder_of, make_memory, number, place, role,
};
use crosshandle::holder::{HoldOptions, Holder};
use crosshandle::{Error, holder::HolderFault};
use std::fs;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Changes this process to another user.
pub(crate) fn become_stranger() {
    // SAFETY: the calls change only this process, which has done nothing yet.
    let changed = unsafe { libc::setgid(STRANGER) == 0 && libc::setuid(STRANGER) == 0 };
    assert!(changed, "the test runs as root");
}

/// Floods a holder as the parent says. `silent HANDLE HANDLE` hands over memory of an exporter that
/// does not reply. `stranger` changes to another user first. `all` sends every kind of request
/// until the parent ends.
pub(crate) fn flood() {
    let directory = Directory::inherited();
    let mut parent = Parent::new();
    let mut kept: Vec<OwnedFd> = Vec::new();
    while let Some(line) = parent.hear() {
        let words: Vec<_> = line.split(' ').collect();
        match words[0] {
            "stranger" => {
                become_stranger();
                parent.say("changed");
            }
            "silent" => {
                for number in 0..100 {
                    let name = format!("silent-{}-{number}", std::process::id());
                    let text = hold_text(&name, 0, words[1], words[2]);
                    kept.extend(send_raw(&directory, "holder.sock", text.as_bytes()));
                }
                parent.say("asked");
            }
            _ => {
                parent.say("floods");
                let path = directory.path().to_owned();
                let threads = (0..3).map(|kind| {
                    let directory = Directory::of(&path);
                    std::thread::spawn(move || flood_without_end(&directory, kind))
                });
                let _threads: Vec<_> = threads.collect();
                assert_eq!(parent.hear(), None);
                std::process::exit(0);
            }
        }
    }
}

fn flood_without_end(directory: &Directory, kind: usize) {
    let request = |request: &str| format!(r#"{{"protocol":2,"request":{request}}}"#);
    let texts = [
        request(r#""status""#),
        request(r#"{"await":{"name":"name-0","version":1000000}}"#),
        request(r#"{"list":{"after":null}}"#),
        "{".repeat(10_000),
        request(r#"{"claim":{"name":"name-0","forces":false,"request":7}}"#),
    ];
    let mut kept = std::collections::VecDeque::new();
    for number in 0_usize.. {
        let text = &texts[(number + kind) % texts.len()];
        kept.extend(send_raw(directory, "holder.sock", text.as_bytes()));
        if kept.len() > 200 {
            kept.pop_front();
        }
    }
}

/// Hands memory over several times, and returns the duration of each call.
fn hand_over_often(directory: &Directory, holder: &Holder, of: &str, times: u64) -> Vec<Duration> {
    let context = alone(directory);
    let mut took: Vec<_> = (0..times)
        .map(|number| {
            let memory = make_memory(&context, number);
            let begin = Instant::now();
            let done = memory.hand_over(holder, &format!("{of}-{number}"));
            let done = done.unwrap_or_else(|error| panic!("{of}-{number}: {error}"));
            assert!(done.is_safe, "{of}-{number}");
            begin.elapsed()
        })
        .collect();
    took.sort();
    took
}

#[test]
#[ignore = "needs root; `cargo xtask test` runs it"]
fn a_users_flood_costs_that_user_alone() {
    const TEST: &str = "floods::a_users_flood_costs_that_user_alone";
    if role() {
        return;
    }
    let directory = Directory::new();
    directory.set_mode(0o1777);
    // Another user has created the journal's names first.
    for name in [
        "holder.journal",
        "holder.journal.next",
        "holder.journal.0000000000000001.0000000000000000",
        "holder.journal.ffffffffffffffff.0000000000000000",
    ] {
        let path = directory.path().join(name);
        fs::write(&path, "squatted").expect("a file");
        std::os::unix::fs::chown(&path, Some(STRANGER), Some(STRANGER)).expect("root");
    }
    let mut pair = Pair::of(
        Process::start(TEST, HOLDER_OF_USERS, &directory),
        &directory,
    );
    let unloaded = hand_over_often(&directory, &pair.holder, "unloaded", 30);
    let mut makers = Vec::new();
    let mut flooders = Vec::new();
    for _ in 0..3 {
        let mut maker = Process::start(TEST, FOREIGN_MAKER, &directory);
        maker.say("handles 1");
        let handles = maker.hear();
        maker.stop();
        let mut flooder = Process::start(TEST, FLOODER, &directory);
        flooder.say("stranger");
        assert_eq!(flooder.hear(), "changed");
        flooder.say(&format!("silent {handles}"));
        assert_eq!(flooder.hear(), "asked");
        makers.push(maker);
        flooders.push(flooder);
    }
    let loaded = hand_over_often(&directory, &pair.holder, "loaded", 30);
    for name in ["unloaded-3", "loaded-3"] {
        check_held(
            &place(&directory),
            &pair.holder.open(name).expect("held"),
            3,
        );
    }
    let greatest = loaded.last().expect("some");
    println!("hand-overs: {unloaded:?} alone, {loaded:?} during the flood");
    assert!(*greatest < Duration::from_secs(2), "{loaded:?}");
    // The journal was written, so a name that a reader keeps comes back.
    let held = pair.holder.open("loaded-3").expect("held");
    let _kept = pair.holder.back_up(&held).expect("kept");
    drop((makers, flooders));
    kill_both(&pair);
    pair.first = Process::start(TEST, HOLDER_OF_USERS, &directory);
    assert_eq!(pair.first.hear(), "ready");
    await_back(&pair.holder, "loaded-3");
}

#[test]
fn one_process_takes_its_share_of_contexts_alone() {
    const TEST: &str = "floods::one_process_takes_its_share_of_contexts_alone";
    if role() {
        return;
    }
    let directory = Directory::new();
    let pair = Pair::start(TEST, &directory);
    let contexts: Vec<_> = (0..65).map(|_| alone(&directory)).collect();
    for (number, context) in contexts.iter().enumerate() {
        let done = make_memory(context, 1).hand_over(&pair.holder, &format!("name-{number}"));
        match done {
            Ok(_) => assert!(number < 64),
            Err(error) => {
                assert!(
                    number == 64 && error.to_string().contains("contexts"),
                    "{error}"
                );
            }
        }
    }
    let mut other = Process::start(TEST, MAKER, &directory);
    other.say("hand-over 2 other");
    assert_eq!(other.hear(), "held 1 true");
    // Removing a name makes room for another one.
    pair.holder.remove("name-0").expect("removed");
    let memory = make_memory(&contexts[64], 1);
    memory.hand_over(&pair.holder, "again").expect("room");
}

#[test]
fn one_process_takes_its_share_of_waits_alone() {
    const TEST: &str = "floods::one_process_takes_its_share_of_waits_alone";
    if role() {
        return;
    }
    let directory = Directory::new();
    let pair = Pair::start(TEST, &directory);
    let context = alone(&directory);
    let memory = make_memory(&context, 1);
    memory.hand_over(&pair.holder, "name").expect("held");
    let wait = r#"{"protocol":2,"request":{"await":{"name":"name","version":1}}}"#;
    let mut kept = Vec::new();
    for _ in 0..100 {
        kept.extend(send_raw(&directory, "holder.sock", wait.as_bytes()));
    }
    // This process has used its share, so the holder delays its next wait until the timeout.
    let holder = pair.holder.clone().timeout(Duration::from_millis(300));
    let begin = Instant::now();
    let late = holder.await_version("name", 1, Duration::from_millis(300));
    assert!(
        matches!(
            &late,
            Err(Error::Holder {
                fault: HolderFault::Busy,
                ..
            } | Error::TimedOut(_)
                | Error::NoAnswer { .. })
        ),
        "{late:?}"
    );
    assert!(
        begin.elapsed() < Duration::from_millis(1300),
        "{:?}",
        begin.elapsed()
    );
    let mut reader = Process::start(TEST, READER, &directory);
    reader.say("await name 1");
    assert_eq!(reader.hear(), "waits");
    let next = make_memory(&context, 2);
    let options = HoldOptions::new().replaces(true);
    let done = pair.holder.hand_over("name", &[("memory", &next)], options);
    assert_eq!(done.expect("published").version, 2);
    assert_eq!(reader.hear(), "version 2");
}

/// Both processes of a holder die, and readers restore everything. `CROSSHANDLE_RECOVERY_ROUNDS`
/// sets the number of rounds (3). `CROSSHANDLE_RECOVERY_READERS` sets the number of processes (20),
/// which keep 10 names each. In the last round, three hostile processes of the same user flood the
/// next holder.
#[test]
fn many_readers_bring_all_names_back_beside_a_flood() {
    const TEST: &str = "floods::many_readers_bring_all_names_back_beside_a_flood";
    const NAMES: u64 = 20;
    const KEPT: u64 = 10;
    const BOUND: Duration = Duration::from_secs(10);
    if role() {
        return;
    }
    let rounds = number("CROSSHANDLE_RECOVERY_ROUNDS").unwrap_or(3);
    let count = number("CROSSHANDLE_RECOVERY_READERS").unwrap_or(20);
    let directory = Directory::new();
    let mut pair = Pair::start(TEST, &directory);
    let context = alone(&directory);
    for seed in 0..NAMES {
        let name = format!("name-{seed}");
        let memory = make_memory(&context, seed);
        let options = HoldOptions::new().label(seed.to_string());
        let done = pair
            .holder
            .hand_over(&name, &[("memory", &memory)], options);
        assert!(done.expect("held").is_safe);
    }
    drop(context);
    let mut readers: Vec<_> = (0..count)
        .map(|_| Process::start(TEST, READER, &directory))
        .collect();
    for (first, reader) in (0..).zip(&mut readers) {
        for kept in 0..KEPT {
            reader.say(&format!("keep name-{}", (first + kept) % NAMES));
        }
    }
    for reader in &mut readers {
        for _ in 0..KEPT {
            assert_eq!(reader.hear(), "kept");
        }
    }
    let mut flooders: Vec<Process> = Vec::new();
    for round in 0..rounds {
        if round + 1 == rounds {
            flooders = (0..3)
                .map(|_| Process::start(TEST, FLOODER, &directory))
                .collect();
            for flooder in &mut flooders {
                flooder.say("all");
                assert_eq!(flooder.hear(), "floods");
            }
        }
        kill_both(&pair);
        restart(TEST, &directory, &mut pair);
        let begin = Instant::now();
        for seed in 0..NAMES {
            let name = format!("name-{seed}");
            let mut held = pair.holder.open(&name);
            while held.is_err() {
                assert!(begin.elapsed() < BOUND, "round {round}: {name}: {held:?}");
                std::thread::sleep(Duration::from_millis(5));
                held = pair.holder.open(&name);
            }
            assert_eq!(held.expect("back").label, seed.to_string());
        }
        println!("round {round}: all back after {:?}", begin.elapsed());
        let held = pair.holder.open("name-7").expect("back");
        check_held(&place(&directory), &held, 7);
        assert_eq!(pair.await_safe().lost, 0);
    }
    drop(flooders);
    for reader in &mut readers {
        reader.say("check");
    }
    for reader in &mut readers {
        assert_eq!(reader.hear(), "good");
    }
    let begin = Instant::now();
    while holder_of(&directory).list().expect("names").len() < NAMES as usize {
        assert!(begin.elapsed() < DEADLINE);
    }
}
