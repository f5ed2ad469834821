use super::owners::{OwnerIdentity, UNSEEN_EXIT, lock_of};
use super::*;
use crosshandle_events::channel::{Delivery, Peers, WhenFull};
use crosshandle_os::{lock, process};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

struct Alone;

impl Peers for Alone {
    fn is_dead(&self, _: u16) -> bool {
        false
    }
}

/// The words of the ring have only 23 bits of a number.
#[test]
fn consumers_that_are_far_behind_receive_the_oldest_item() {
    const DEPTH: u32 = 4;
    // After the last of these items, the next word of the second consumer looks as if no item
    // had been published since it joined.
    const STEPS: [u64; 2] = [(1 << 22) + 100, 1 << 23];
    let (delivery, when_full) = (Delivery::Broadcast, WhenFull::DropOldest);
    let shape = Shape::new(delivery, when_full, DEPTH, (1, 1), (2, 1)).expect("valid");
    let words = |number: usize| Vec::from_iter((0..number).map(|_| AtomicU64::new(0)));
    let (ring, slots) = (words(DEPTH as usize), words(shape.slots().into()));
    let (head, producers, consumers) = (
        Head::default(),
        [Member::default()],
        [Member::default(), Member::default()],
    );
    let channel = Channel::<Os>::new(shape, &head, &ring, &slots, &producers, &consumers);
    let channel = channel.expect("the parts match the shape");
    channel.initialise();
    let mut producer = channel.join_producer(1, &Alone).expect("a place");
    let consumers = [(); 2].map(|()| channel.join_consumer(2, &Alone).expect("a place"));
    let mut published = 0;
    for (items, mut consumer) in STEPS.into_iter().zip(consumers) {
        while published < items {
            let slot = channel.reserve(&mut producer, &Alone).expect("a slot");
            let number = channel.publish(&mut producer, slot, &Alone, None);
            published = number.expect("never full") + 1;
        }
        let item = channel.receive(&mut consumer, &Alone, None);
        assert_eq!(item.expect("an item").number(), items - u64::from(DEPTH));
        assert_eq!(consumer.lost(), items - u64::from(DEPTH));
    }
}

/// The variable with the path of the file for a second process of a test.
const FILE: &str = "CROSSHANDLE_TEST_CHANNEL";

fn small() -> Shape {
    let (delivery, when_full) = (Delivery::Queue, WhenFull::Wait);
    Shape::new(delivery, when_full, 1, (1, 1), (1, 1)).expect("valid")
}

/// A second process that has joined a channel as a producer.
struct Second {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Second {
    /// Runs the test again. In the second process this function does not return: the process
    /// joins, and replaces itself by `cat`, which keeps its process id but not its lock.
    fn start(test: &str, file: &OwnedFd) -> Self {
        let path = format!("/proc/{}/fd/{}", process::pid(), file.as_raw_fd());
        let mut child = Command::new(std::env::current_exe().expect("a path"))
            .args(["--exact", "--nocapture", &format!("channel::tests::{test}")])
            .env(FILE, path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a second process");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, output }
    }

    fn run_if_second() {
        let Some(path) = std::env::var_os(FILE) else {
            return;
        };
        let file = File::options().read(true).write(true).open(path);
        let file = Arc::new(OwnedFd::from(file.expect("a file")));
        let control = ChannelControl::open(file, small(), true).expect("opened");
        // It is killed before it writes its card.
        let joined = control.words().join_producer(control.owner(), &Alone);
        drop(joined.expect("a place"));
        println!("owner={}", control.owner());
        let error = Command::new("cat").exec();
        panic!("{error}");
    }

    /// Returns the owner number, after the process has lost its lock.
    fn owner(&mut self) -> u16 {
        let mut line = String::new();
        let owner = loop {
            line.clear();
            assert!(self.output.read_line(&mut line).expect("a line") > 0);
            if let Some((_, owner)) = line.trim().rsplit_once("owner=") {
                break owner.parse().expect("a number");
            }
        };
        // The answer shows that the process has replaced itself.
        let input = self.child.stdin.as_mut().expect("piped");
        input.write_all(b"ping\n").expect("written");
        line.clear();
        self.output.read_line(&mut line).expect("a line");
        assert_eq!(line, "ping\n");
        owner
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn file() -> Arc<OwnedFd> {
    let len = ChannelControl::len_of(&small()) as u64;
    Arc::new(memfd::create("test", len).expect("a file"))
}

/// A process loses its lock before the kernel has released its device.
#[test]
fn an_opening_takes_no_number_of_a_process_that_still_exists() {
    Second::run_if_second();
    let file = file();
    let first = ChannelControl::create(Arc::clone(&file), small(), true).expect("created");
    let test = "an_opening_takes_no_number_of_a_process_that_still_exists";
    let mut second = Second::start(test, &file);
    let owner = second.owner();
    assert!(!lock::is_held(file.as_fd(), lock_of(owner)).expect("an answer"));
    let open = || ChannelControl::open(Arc::clone(&file), small(), true).expect("opened");
    assert_ne!(open().owner(), owner);
    assert!(!first.is_dead(owner));
    let members = || first.words().living_producers().count();
    assert_eq!(members(), 1);
    // It is treated as dead after some time if its end cannot be watched.
    let process = &first.owners[usize::from(owner) - 1];
    let identity = process.load().expect("an identity");
    process.store(&OwnerIdentity {
        namespace: identity.namespace ^ 1,
        ..identity
    });
    assert_ne!(open().owner(), owner);
    assert!(!first.is_dead(owner));
    let noticed = Instant::now();
    while !first.is_dead(owner) {
        assert!(noticed.elapsed() < 10 * UNSEEN_EXIT, "it lives for ever");
        std::thread::yield_now();
    }
    process.store(&identity);
    assert!(!first.is_dead(owner));
    drop(second);
    assert!(first.is_dead(owner));
    let next = open();
    assert_eq!((next.owner(), members()), (owner, 0));
}

#[test]
fn the_death_of_a_member_without_a_card_is_noticed() {
    Second::run_if_second();
    let file = file();
    let first = ChannelControl::create(Arc::clone(&file), small(), false).expect("created");
    let mut second = Second::start("the_death_of_a_member_without_a_card_is_noticed", &file);
    second.owner();
    let (departed, has_departed) = mpsc::channel();
    first.on_departure(Box::new(move || {
        let _ = departed.send(());
    }));
    first.watch_peers();
    assert!(first.watch_peers(), "the member is not watched");
    drop(second);
    let limit = Duration::from_secs(30);
    has_departed
        .recv_timeout(limit)
        .expect("the end is noticed");
    assert_eq!(first.words().living_producers().count(), 0);
}

/// The results of commands are known only for the latest item in a slot.
#[test]
fn a_late_result_is_not_that_of_a_later_item() {
    let control = ChannelControl::create(file(), small(), false).expect("created");
    let words = control.words();
    let mut producer = words
        .join_producer(control.owner(), &Alone)
        .expect("a place");
    let mut consumer = words
        .join_consumer(control.owner(), &Alone)
        .expect("a place");
    let mut latest = [None; 8];
    for _ in 0..8 {
        let slot = words.reserve(&mut producer, &Alone).expect("a slot");
        let number = words
            .publish(&mut producer, slot, &Alone, None)
            .expect("room");
        let received = words.receive(&mut consumer, &Alone, None).expect("an item");
        words.release(&mut consumer, received);
        let place = &mut latest[usize::from(slot)];
        assert_eq!(control.settled(slot, number), None);
        if let Some(earlier) = place.replace(number) {
            control.settle(slot, earlier, true);
            assert_eq!(control.settled(slot, number), None);
        }
        control.settle(slot, number, number.is_multiple_of(2));
        assert_eq!(
            control.settled(slot, number),
            Some(number.is_multiple_of(2))
        );
    }
}
