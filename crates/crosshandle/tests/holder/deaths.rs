//! Kills creators, readers, holders and successors at random.

use crate::common::{DEADLINE, Directory};
use crate::place::free_memory;
use crate::{Ahead, MAKER, Pair, READER, Random, check_held, number, place, role};
use std::fs;
use std::time::{Duration, Instant};

/// Returns whether a link in `/proc` refers to memory of the host or of a driver.
fn is_memory(link: &str) -> bool {
    let kinds = ["crosshandle-memory", "ze-sim", "/dev/nvidia", "dmabuf"];
    kinds.iter().any(|kind| link.contains(kind))
}

/// Waits until as much GPU memory is free as before. Drivers notice deaths late, and keep some
/// memory.
fn await_free_memory(before: u64) {
    const SLACK: u64 = 32 << 20;
    let begin = Instant::now();
    loop {
        let now = free_memory().unwrap_or(0);
        if now + SLACK >= before {
            println!("free memory of the device: {before} bytes before, {now} after");
            return;
        }
        assert!(
            begin.elapsed() < Duration::from_secs(10),
            "{before} bytes were free, now {now}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the number of memory descriptors of a process.
fn memory_descriptors(pid: u32) -> usize {
    let all = fs::read_dir(format!("/proc/{pid}/fd")).expect("it lives");
    let links = all
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok());
    links
        .filter(|link| is_memory(&link.to_string_lossy()))
        .count()
}

/// Kills creators, readers, holders and successors at random moments. Promised memory must not be
/// lost, changed or leaked. `CROSSHANDLE_HOLDER_CYCLES` sets the number of kills, and
/// `CROSSHANDLE_HOLDER_SECONDS` limits the duration.
#[test]
fn nothing_is_lost_whoever_dies_when() {
    const TEST: &str = "deaths::nothing_is_lost_whoever_dies_when";
    if role() {
        return;
    }
    let cycles = number("CROSSHANDLE_HOLDER_CYCLES").unwrap_or(40);
    let seconds = number("CROSSHANDLE_HOLDER_SECONDS").unwrap_or(u64::MAX);
    let begin = Instant::now();
    let directory = Directory::new();
    let place = place(&directory);
    let free = free_memory();
    let (mut readers, mut makers) = (
        Ahead::of(TEST, READER, &directory),
        Ahead::of(TEST, MAKER, &directory),
    );
    let pair = Pair::start(TEST, &directory);
    let mut random = Random(0x5EED);
    let mut promised = std::collections::BTreeMap::new();
    let mut maker = makers.take();
    maker.say("hand-over 0 bystander");
    assert_eq!(maker.hear(), "held 1 true");
    let mut bystander = readers.take();
    bystander.say("names");
    assert_eq!(bystander.hear(), "opened");
    let mut takeovers = 0;
    let mut done = 0;
    // A GPU's driver takes a while to end a process.
    let mut ending = Vec::new();
    for cycle in 1..=cycles {
        let status = pair.await_safe();
        let name = format!("name-{}", random.below(12));
        let mut reader = readers.take();
        reader.say("names");
        maker.say(&format!("publish {cycle} {name}"));
        random.moment();
        let victim = random.below(5);
        match victim {
            0 => Pair::kill(status.pid),
            1 => Pair::kill(status.successor.expect("a successor")),
            2 => drop(std::mem::replace(&mut maker, makers.take())),
            3 => drop(std::mem::replace(&mut reader, readers.take())),
            _ => {}
        }
        takeovers += u64::from(victim == 0);
        match victim {
            // A killed creator may have been heard even if it received no reply.
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
        for listed in pair.holder.list().expect("names") {
            let held = pair.holder.open(&listed.name).expect("held");
            let seed = held.label.parse().expect("a number");
            check_held(&place, &held, seed);
        }
        if random.below(3) == 0 {
            let name = format!("name-{}", random.below(12));
            if pair.holder.open(&name).is_ok() {
                pair.holder.remove(&name).expect("removed");
                promised.remove(&name);
            }
        }
        ending.push(std::thread::spawn(move || reader.kill()));
        ending.retain(|ending| !ending.is_finished());
        done = cycle;
        if cycle % 1_000 == 0 {
            println!("{cycle} cycles in {} s", begin.elapsed().as_secs());
        }
        if begin.elapsed().as_secs() >= seconds {
            break;
        }
    }
    println!("{done} cycles in {} s", begin.elapsed().as_secs());
    assert!(takeovers > 0 || done < 20, "the holder was killed, too");
    for name in pair.holder.list().expect("names") {
        pair.holder.remove(&name.name).expect("removed");
    }
    let status = pair.await_safe();
    assert_eq!((status.names, status.bytes), (0, 0));
    assert_eq!(status.takeovers, takeovers);
    let successor = status.successor.expect("a successor");
    // Descriptors that may belong to a driver are closed in the background.
    let end = Instant::now() + DEADLINE;
    loop {
        let left = [status.pid, successor].map(memory_descriptors);
        if left == [0, 0] {
            break;
        }
        assert!(Instant::now() < end, "descriptors are left: {left:?}");
        std::thread::yield_now();
    }
    bystander.say("check");
    assert_eq!(bystander.hear(), "good");
    drop((bystander, maker, makers, readers));
    for ending in ending {
        ending.join().expect("a reader was killed");
    }
    if let Some(free) = free {
        await_free_memory(free);
    }
}
