//! A name has at most one writer at a time, whichever process is killed.

use crate::common::{DEADLINE, Directory, Process};
use crate::place::now_us;
use crate::strangers::{hear_raw, hold_text, send_raw};
use crate::{Ahead, LEN, MAKER, Pair, Random, WRITER, number, open_held, place, role};
use crosshandle::MemoryHandle;
use crosshandle::holder::HeldName;
use std::time::Instant;

/// Allocates memory, hands it over, and ends its creator.
fn hold_region(test: &str, directory: &Directory) {
    let mut maker = Process::start(test, MAKER, directory);
    maker.say("hand-over 1 region");
    assert_eq!(maker.hear(), "held 1 true");
    maker.kill();
}

/// Makes a writer claim the region. Returns its epoch and its handle, or the text of the refusal.
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

fn check_open(directory: &Directory, held: &HeldName) {
    let memory = open_held(&place(directory), held).expect("readers open it as ever");
    assert_eq!(memory.len(), LEN);
}

#[test]
fn a_region_has_one_writer_at_a_time() {
    const TEST: &str = "claims::a_region_has_one_writer_at_a_time";
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
    // The creator still has the memory mapped.
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
    // Reading needs no claim, and readers are notified of the next writer.
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
    // A second name for the same memory would give a second way to write it.
    let now = pair.holder.open("region").expect("held").parts[0].read_only;
    let reads = now.expect("a handle").to_string();
    let text = hold_text("other", 0, &handle.to_string(), &reads);
    let answer = hear_raw(&send_raw(&directory, "holder.sock", text.as_bytes()).expect("sent"));
    assert!(answer.contains("has_writer"), "{answer}");
    // The first writer's handle no longer opens the memory.
    directory
        .context()
        .open_memory(&handle)
        .expect_err("of an epoch that is over");
    // A writer that ended its claim must also have dropped the memory.
    second.say("end");
    assert_eq!(second.hear(), "ended");
    let mut third = Process::start(TEST, WRITER, &directory);
    let refused = claim(&mut third, 0, false).expect_err("the second has it mapped");
    assert!(refused.contains("open for writing"), "{refused}");
    second.say("drop");
    assert_eq!(second.hear(), "dropped");
    // Dropped memory is unmapped soon afterwards.
    assert_eq!(claim(&mut third, 30_000, false).expect("claimed").0, 3);
    // The successor knows the current writer.
    Pair::kill(pair.await_safe().pid);
    let refused = claim(&mut second, 0, false).expect_err("the third lives");
    assert!(refused.contains("has not ended"), "{refused}");
    assert_eq!(claim(&mut second, 0, true).expect("by force").0, 4);
    Pair::kill(pair.await_safe().pid);
    assert_eq!(pair.holder.open("region").expect("held").epoch, 4);
    // Force applies to this claim only. The next claim waits for the end of both writers, also at
    // the successor.
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

#[test]
fn a_forked_child_of_a_writer_keeps_others_out() {
    const TEST: &str = "claims::a_forked_child_of_a_writer_keeps_others_out";
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

/// Kills writers while they write, with two other writers waiting each time. One waiter is admitted
/// after the last write, and no two writers share an epoch. On a GPU, a kernel writes without end.
/// `CROSSHANDLE_CLAIM_CYCLES` sets the number of kills, and `CROSSHANDLE_CLAIM_SECONDS` limits the
/// duration.
#[test]
fn writers_are_killed_and_no_two_have_one_epoch() {
    const TEST: &str = "claims::writers_are_killed_and_no_two_have_one_epoch";
    if role() {
        return;
    }
    let cycles = number("CROSSHANDLE_CLAIM_CYCLES").unwrap_or(100);
    let seconds = number("CROSSHANDLE_CLAIM_SECONDS").unwrap_or(u64::MAX);
    let begin = Instant::now();
    let directory = Directory::new();
    let pair = Pair::start(TEST, &directory);
    hold_region(TEST, &directory);
    let mut random = Random(0xFE4CE);
    let (won, winners) = std::sync::mpsc::channel::<(Process, String)>();
    let mut writers = Ahead::in_batches_of(TEST, WRITER, &directory);
    let mut contend = || {
        let (won, mut writer) = (won.clone(), writers.take());
        writer.say("claim region 60000 false");
        std::thread::spawn(move || {
            let answer = writer.hear();
            let _ = won.send((writer, answer));
        });
    };
    contend();
    contend();
    let mut killed = None;
    let (mut granted, mut ended) = (Vec::new(), Vec::new());
    for cycle in 1..=cycles {
        let (mut writer, answer) = winners.recv_timeout(DEADLINE).expect("one is let in");
        assert!(
            answer.starts_with(&format!("epoch {cycle} ")),
            "{cycle}: {answer}"
        );
        if let Some(killed) = killed.take() {
            let at: u64 = answer
                .rsplit(' ')
                .next()
                .expect("a time")
                .parse()
                .expect("a time");
            granted.push(at - killed);
        }
        writer.say("fill");
        assert_eq!(writer.hear(), "filling");
        contend();
        if cycle % 8 == 0 {
            Pair::kill(pair.await_safe().pid);
        }
        random.moment();
        assert!(winners.try_recv().is_err(), "two writers at a time");
        assert_eq!(pair.holder.open("region").expect("held").epoch, cycle);
        let kill = now_us();
        writer.kill();
        ended.push(now_us() - kill);
        killed = Some(kill);
        if begin.elapsed().as_secs() >= seconds {
            break;
        }
    }
    for _ in 0..2 {
        let (writer, answer) = winners.recv_timeout(DEADLINE).expect("the others");
        assert!(answer.starts_with("epoch "), "{answer}");
        writer.kill();
    }
    println!(
        "{} writers killed in {} s; kill to their end: {}; kill to the next one's claim: {}",
        ended.len(),
        begin.elapsed().as_secs(),
        figures(&mut ended),
        figures(&mut granted),
    );
}

/// Formats times that are given in microseconds.
fn figures(times: &mut [u64]) -> String {
    times.sort_unstable();
    let ms = |us: u64| format!("{}.{} ms", us / 1_000, us % 1_000 / 100);
    let at = |share: usize| times.get((times.len() * share / 100).min(times.len().max(1) - 1));
    let [median, p99, greatest] = [50, 99, 100].map(|share| ms(at(share).copied().unwrap_or(0)));
    let late = times.iter().filter(|us| **us > 100_000).count();
    format!(
        "median {median}, p99 {p99}, greatest {greatest}, {late} of {} over 100 ms",
        times.len()
    )
}
