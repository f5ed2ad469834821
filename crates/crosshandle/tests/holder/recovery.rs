//! A holder and its successor die at the same time, and readers that keep names restore them.

use crate::common::{DEADLINE, Directory, Process};
use crate::strangers::{hear_raw, send_raw};
use crate::{
    HOLDER, LEN, MAKER, Pair, READER, alone, check, check_held, make_memory, open_held, place, role,
};
use crosshandle::holder::{ClaimOptions, HeldName, HoldOptions, Holder, Recovered};
use crosshandle::{Error, Result, holder::HolderFault};
use rustix::process::{Pid, Signal, kill_process};
use std::time::Instant;

/// Kills a holder and its successor together, so that neither can start a replacement.
pub(crate) fn kill_both(pair: &Pair) {
    let status = pair.await_safe();
    let signal = |pid: u32, signal| {
        let pid = Pid::from_raw(pid.try_into().expect("a process")).expect("a process");
        kill_process(pid, signal).expect("it lives");
    };
    let successor = status.successor.expect("a successor");
    signal(status.pid, Signal::STOP);
    signal(successor, Signal::KILL);
    signal(status.pid, Signal::KILL);
    let begin = Instant::now();
    loop {
        match pair.holder.status() {
            Err(Error::Holder {
                fault: HolderFault::NoHolder,
                ..
            }) => break,
            other => assert!(begin.elapsed() < DEADLINE, "{other:?}"),
        }
        std::thread::yield_now();
    }
    // The kernel closes a process's sockets before it releases its lock.
    while ![status.pid, successor].into_iter().all(has_ended) {
        assert!(begin.elapsed() < DEADLINE, "they were killed");
        std::thread::yield_now();
    }
}

/// Returns whether a process has ended, even if its parent has not waited for it yet.
pub(crate) fn has_ended(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    status.map_or(true, |text| text.contains(") Z "))
}

/// Starts the next holder in the directory, after both processes of the previous one were killed.
pub(crate) fn restart(test: &str, directory: &Directory, pair: &mut Pair) {
    pair.first = Process::start(test, HOLDER, directory);
    assert_eq!(pair.first.hear(), "ready");
    pair.await_safe();
}

/// Waits until a name is restored.
pub(crate) fn await_back(holder: &Holder, name: &str) -> HeldName {
    let begin = Instant::now();
    loop {
        match holder.open(name) {
            Ok(held) => return held,
            Err(error) => assert!(begin.elapsed() < DEADLINE, "{error}"),
        }
        std::thread::yield_now();
    }
}

fn why(result: Result<impl Sized>) -> String {
    result.map(|_| ()).expect_err("refused").to_string()
}

#[test]
fn names_come_back_from_readers_when_both_holders_die() {
    const TEST: &str = "recovery::names_come_back_from_readers_when_both_holders_die";
    if role() {
        return;
    }
    let directory = Directory::new();
    let mut pair = Pair::start(TEST, &directory);
    let mut maker = Process::start(TEST, MAKER, &directory);
    for (seed, name) in [(1, "one"), (2, "two"), (3, "nobodys")] {
        maker.say(&format!("hand-over {seed} {name}"));
        assert_eq!(maker.hear(), "held 1 true");
    }
    maker.say("publish 4 two");
    assert_eq!(maker.hear(), "held 2 true");
    let of_one = pair.holder.open("one").expect("held").parts[0].read_only;
    let mut readers = [(), ()].map(|()| Process::start(TEST, READER, &directory));
    for reader in &mut readers {
        for name in ["one", "two"] {
            reader.say(&format!("keep {name}"));
            assert_eq!(reader.hear(), "kept");
        }
    }
    // The creator ends as well.
    maker.kill();
    for round in 0..2 {
        kill_both(&pair);
        assert!(why(pair.holder.open("one")).contains("no holder"));
        restart(TEST, &directory, &mut pair);
        for (name, seed, version) in [("one", 1, 1), ("two", 4, 2)] {
            let held = await_back(&pair.holder, name);
            assert_eq!((held.version, &*held.label), (version, &*seed.to_string()));
            check_held(&place(&directory), &held, seed);
            let known = match place(&directory).is_cuda() {
                true => Recovered::Unverified,
                false => Recovered::SameFiles,
            };
            assert_eq!(held.recovered, Some(known));
        }
        // The handle from before works too.
        let place = place(&directory);
        let handle = of_one.expect("a handle");
        let opened = place.open_memory_read_only(&handle).expect("opened");
        check(&place, &opened, 1);
        // The new holder knows of a name that no reader kept, and reports it as lost.
        let lost = why(pair.holder.open("nobodys"));
        assert!(lost.contains("died together with its successor"), "{lost}");
        assert_eq!(pair.await_safe().lost, 1);
        // The successor knows all names as well.
        Pair::kill(pair.await_safe().pid);
        let held = pair.holder.open("two").expect("held");
        assert!(held.recovered.is_some() && pair.await_safe().lost == 1);
        for reader in &mut readers {
            reader.say("check");
            assert_eq!(reader.hear(), "good");
        }
        if round == 0 {
            // One reader is enough, even one that did not restore the name last time.
            readers[0].say("forget");
            assert_eq!(readers[0].hear(), "forgotten");
        }
    }
    // No reader kept the writable handle.
    let refused = why(pair.holder.open_to_write("one"));
    assert!(refused.contains("publish its next version"), "{refused}");
    let refused = why(pair.holder.claim("one", &ClaimOptions::new().force(true)));
    assert!(refused.contains("publish its next version"), "{refused}");
    let next = make_memory(&alone(&directory), 9);
    let options = HoldOptions::new().label("9").replaces(true);
    let done = pair.holder.hand_over("one", &[("memory", &next)], options);
    assert_eq!(done.expect("published").version, 2);
    let held = pair.holder.open("one").expect("held");
    assert_eq!(held.recovered, None);
    check_held(&place(&directory), &held, 9);
    // A lost name that is published again continues its version numbers. A removed name is no
    // longer reported as lost.
    let done = next
        .hand_over(&pair.holder, "nobodys")
        .expect("loaded again");
    assert_eq!((done.version, pair.await_safe().lost), (2, 0));
    kill_both(&pair);
    restart(TEST, &directory, &mut pair);
    await_back(&pair.holder, "two");
    assert_eq!(pair.await_safe().lost, 2);
    pair.holder.remove("one").expect("removed");
    pair.holder.remove("nobodys").expect("removed");
    assert_eq!(pair.await_safe().lost, 0);
}

#[test]
fn only_what_was_held_comes_back() {
    const TEST: &str = "recovery::only_what_was_held_comes_back";
    if role() {
        return;
    }
    let directory = Directory::new();
    let mut pair = Pair::start(TEST, &directory);
    let mut maker = Process::start(TEST, MAKER, &directory);
    for seed in [1, 2] {
        maker.say(&format!("publish {seed} one"));
        assert_eq!(maker.hear(), format!("held {seed} true"));
    }
    let mut before = Process::start(TEST, READER, &directory);
    before.say("keep one");
    assert_eq!(before.hear(), "kept");
    maker.say("publish 3 one");
    assert_eq!(maker.hear(), "held 3 true");
    let held = pair.holder.open("one").expect("held");
    let mut reader = Process::start(TEST, READER, &directory);
    reader.say("keep one");
    assert_eq!(reader.hear(), "kept");
    let options = HoldOptions::new()
        .label("5")
        .read_token("r")
        .write_token("w");
    let secret = make_memory(&alone(&directory), 5);
    let parts = [("memory", &secret)];
    pair.holder
        .hand_over("secret", &parts, options)
        .expect("held");
    let with = |token: &str| crate::holder_of(&directory).token(token);
    let secret_held = with("r").open("secret").expect("its token");
    let backup = with("r").back_up(&secret_held).expect("a backup");
    assert_eq!((backup.name(), backup.version()), ("secret", 1));
    // Another process has memory of the same length.
    maker.say("handles 7");
    let theirs = maker.hear();
    let theirs = theirs.split_once(' ').expect("two handles").1;
    let own = held.parts[0].read_only.expect("a handle").to_string();
    let offer = |name: &str, version: u64, handle: &str, from: &str| {
        let text = format!(
            r#"{{"protocol":1,"request":{{"take_back":{{"name":"{name}","version":{version},"parts":[{{"handle":"{handle}","from":"{from}"}}]}}}}}}"#
        );
        hear_raw(&send_raw(&directory, "holder.sock", text.as_bytes()).expect("sent"))
    };
    // An offer never replaces a held name.
    assert_eq!(offer("one", 3, &own, theirs), "\"done\"");
    check_held(
        &place(&directory),
        &pair.holder.open("one").expect("held"),
        3,
    );
    let refused = offer("one", 4, &own, theirs);
    assert!(refused.contains("was held and lost"), "{refused}");
    let refused = offer("new", 1, &own, theirs);
    assert!(refused.contains("no_such_name"), "{refused}");
    // Neither a later version nor the previous one may be restored.
    reader.stop();
    kill_both(&pair);
    restart(TEST, &directory, &mut pair);
    before.say("offer");
    let refused = before.hear();
    assert!(
        refused.contains("version 2 of one is not what was held last"),
        "{refused}"
    );
    for (version, handle, from, expected) in [
        (3, &*own, theirs, "another file"),
        (4, &own, theirs, "is not what was held last"),
        (3, theirs, theirs, "its handle is not"),
        (3, &own, &own, ""),
        (3, &own, "xhm3.", ""),
    ] {
        let refused = offer("one", version, handle, from);
        assert!(
            refused.contains("refused") && refused.contains(expected),
            "{refused}"
        );
        assert!(pair.holder.open("one").is_err(), "{expected}");
    }
    // A process that may not replace the name may not publish it either.
    let memory = make_memory(&alone(&directory), 6);
    // This process has kept the name, so the name has been restored.
    let begin = Instant::now();
    while let Err(error) = with("r").open("secret") {
        assert!(begin.elapsed() < DEADLINE, "{error}");
        std::thread::yield_now();
    }
    assert!(why(pair.holder.open("secret")).contains("token"));
    check_held(
        &place(&directory),
        &with("r").open("secret").expect("back"),
        5,
    );
    drop(backup);
    kill_both(&pair);
    restart(TEST, &directory, &mut pair);
    let stolen = why(memory.hand_over(&pair.holder, "secret"));
    assert!(stolen.contains("token"), "{stolen}");
    assert!(why(pair.holder.remove("secret")).contains("token"));
    memory.hand_over(&with("w"), "secret").expect("its token");
    assert!(
        why(pair.holder.open("secret")).contains("token"),
        "it has kept its tokens"
    );
    // The genuine reader resumes.
    kill_process(
        Pid::from_raw(reader.id() as i32).expect("a process"),
        Signal::CONT,
    )
    .expect("it lives");
    let back = await_back(&pair.holder, "one");
    assert_eq!(back.version, 3);
    check_held(&place(&directory), &back, 3);
    assert_eq!(
        open_held(&place(&directory), &back).expect("opened").len(),
        LEN
    );
    // A deliberate end of the holder removes everything, so nothing is restored.
    with("w").remove("secret").expect("removed");
    pair.holder.stop().expect("ended");
    restart(TEST, &directory, &mut pair);
    assert_eq!(pair.await_safe().lost, 0);
    reader.say("offer");
    let refused = reader.hear();
    assert!(refused.contains("was held and lost"), "{refused}");
}
