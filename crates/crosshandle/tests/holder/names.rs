//! Tests names and the memory behind them while processes end.

use crate::common::{DEADLINE, Directory, Process};
use crate::{
    MAKER, Pair, READER, alone, check, check_handle, check_held, holder_of, make_memory, open_held,
    place, role,
};
use crosshandle::holder::{self, HeldName, HoldOptions, Holder, ServeOptions};
use crosshandle::{AllocationOptions, Error, MemoryHandle, holder::HolderFault};
use std::fs;
use std::time::{Duration, Instant};

#[test]
fn handed_over_memory_outlives_its_maker() {
    const TEST: &str = "names::handed_over_memory_outlives_its_maker";
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
    // A reader that has the memory open opens it again, and a new reader opens it.
    assert_eq!(open(&mut before, &handle, 1), "opened");
    let mut during = Process::start(TEST, READER, &directory);
    assert_eq!(open(&mut during, &handle, 1), "opened");
    assert_eq!(open(&mut during, &other, 2), "opened", "the maker's own");
    maker.say("drop 1");
    assert_eq!(maker.hear(), "dropped");
    let mut dropped = Process::start(TEST, READER, &directory);
    assert_eq!(open(&mut dropped, &handle, 1), "opened");
    // The creator's next memory must not collide with the handed-over memory.
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
    // The handle decides the access, and opening needs its key.
    let held = pair.holder.open("one").expect("held");
    assert_eq!(held.parts[0].handle, None);
    let read_only = held.parts[0].read_only.expect("a handle");
    let context = place(&directory);
    let refused = context
        .open_memory(&read_only)
        .expect_err("it is for reading");
    assert!(matches!(refused, Error::ReadOnly), "{refused}");
    let mut forged = *read_only.as_bytes();
    // Editing a read-only handle must not yield the flag or the record of the writable handle.
    forged[7] ^= 1;
    assert!(MemoryHandle::from_bytes(&forged).is_err());
    let writable = pair.holder.open_to_write("one").expect("held").parts[0].handle;
    let memory = context
        .open_memory(&writable.expect("a handle"))
        .expect("opened");
    context.write(&memory, 0, &[7; 8]);
    let reading = context.open_memory_read_only(&read_only).expect("opened");
    assert_eq!(context.read(&reading, 0, 8), [7; 8], "one memory");
    // A removed name can no longer be opened. Readers that have the memory open keep it.
    pair.holder.remove("one").expect("removed");
    let mut late = Process::start(TEST, READER, &directory);
    let refused = open(&mut late, &handle, 1);
    assert!(refused.starts_with("refused"), "{refused}");
    assert_eq!(context.read(&reading, 0, 8), [7; 8]);
}

#[test]
fn a_killed_holder_has_a_successor_and_readers_notice_nothing() {
    const TEST: &str = "names::a_killed_holder_has_a_successor_and_readers_notice_nothing";
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
    let bystander = place(&directory);
    let mut slowest = Duration::ZERO;
    for takeover in 1..=5 {
        let status = pair.await_safe();
        reader.say("names");
        assert_eq!(reader.hear(), "opened");
        Pair::kill(status.pid);
        let begin = Instant::now();
        let held = pair.holder.open("name-7").expect("held still");
        slowest = slowest.max(begin.elapsed());
        check_held(&bystander, &held, 7);
        check_held(&place(&directory), &held, 7);
        let after = pair.holder.status().expect("a holder");
        assert_eq!((after.takeovers, after.names), (takeover, 20));
        assert_eq!(Some(after.pid), status.successor);
        reader.say("check");
        assert_eq!(reader.hear(), "good");
    }
    // The documented limit is 100 milliseconds. A busy machine is no failure.
    assert!(slowest < Duration::from_secs(2), "{slowest:?}");
    // The successor's death must not affect readers either.
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
    const TEST: &str = "names::only_whole_memory_of_its_own_is_handed_over";
    if role() {
        return;
    }
    let directory = Directory::new();
    let context = place(&directory);
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
    // Large memory has its own segment in every context.
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
    for bad in ["xhm3.abc", "", "a b", "-x"] {
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
    // After a refusal, the creator still owns the memory.
    let handle = memory.handle().expect("a handle");
    check_handle(&directory, &handle, 2);
    memory.hand_over(&pair.holder, "b").expect("handed over");
    check_handle(&directory, &handle, 2);
    // The memory gets a second name, and is released with the last one.
    memory
        .hand_over(&pair.holder, "c")
        .expect("handed over again");
    pair.holder.remove("b").expect("removed");
    check_handle(&directory, &handle, 2);
    pair.holder.remove("c").expect("removed");
    assert!(place(&directory).open_memory(&handle).is_err());
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
    const TEST: &str = "names::names_have_versions_tokens_and_pins";
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
        check_held(&context, &second, 2);
    });
    // A reader of the previous version keeps it, but it cannot be opened again.
    check(&context, &reading, 1);
    assert!(open_held(&place(&directory), &first).is_err());
    let late = holder.await_version("model", 2, Duration::from_millis(20));
    assert!(late.expect_err("no third").is_timeout());
    // A wait survives the holder's death.
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
    // Names with tokens.
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
    check_held(&context, &with("r").open("secret").expect("allowed"), 5);
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

#[test]
fn a_name_that_is_replaced_keeps_its_tokens() {
    const TEST: &str = "names::a_name_that_is_replaced_keeps_its_tokens";
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
    // A process with the write token may not change the tokens.
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
fn a_takeover_needs_no_names_in_the_directory() {
    const TEST: &str = "names::a_takeover_needs_no_names_in_the_directory";
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
        // Every process that may write to the directory can do this.
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
            assert!(begin.elapsed() < DEADLINE, "no successor has taken over");
            std::thread::yield_now();
        }
        let held = pair.holder.open("one").expect("held still");
        check_held(&place(&directory), &held, 1);
        // Opens a handle from before the takeovers.
        let handle: MemoryHandle = handle.parse().expect("a handle");
        check_handle(&directory, &handle, 1);
        assert_eq!(pair.await_safe().takeovers, round + 1);
    }
    let second = ServeOptions::new().socket_dir(directory.path());
    holder::serve(second, || ()).expect_err("there is one");
}
