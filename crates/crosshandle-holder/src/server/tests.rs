use super::claims::tests::Bench;
use super::*;
use crosshandle_os::memfd;
use std::collections::BTreeSet;

fn bench(of: &str) -> Bench {
    let file = memfd::create("test", 4096).expect("memory");
    Bench::new(of, &file, std::process::id())
}

#[test]
fn a_holder_waits_for_the_lock_of_one_that_was_just_killed() {
    let path = std::env::temp_dir().join(format!("xh-lock-{}", std::process::id()));
    let directory = HolderDirectory::open(&path, false).expect("a directory");
    let lock = directory.lock().expect("a file").expect("no holder");
    // The socket of a killed holder remains, but no process listens on it.
    drop(directory.listen_for_programs().expect("a socket"));
    let begun = std::thread::spawn({
        let path = path.clone();
        move || {
            let terms = Terms {
                policy: PeerPolicy::SameUser,
                successor: None,
                stop: None,
                log: Arc::new(|_, _| {}),
                drivers: Drivers::OF_TESTS,
            };
            Server::begin(path, None, terms).map(drop)
        }
    });
    // This delay stands for the time in which the system ends the threads of the killed holder.
    std::thread::sleep(Duration::from_millis(100));
    drop(lock);
    begun.join().expect("no panic").expect("the lock is free");
    std::fs::remove_dir_all(path).expect("removed");
}

/// Adds the memory of the bench under another name, with a long label.
fn add(server: &mut Server, name: &str, label: usize) {
    let mut other = server.holdings.names()["region"].clone();
    other.name = name.into();
    other.label = format!("{label:0>4000}");
    other.index = std::sync::OnceLock::new();
    server.tell(Change::Name(Box::new(other.clone())), Vec::new());
    server.holdings.set_name(other);
    server.write_journal();
}

#[test]
fn a_journal_is_no_longer_than_what_counts_and_no_change_takes_long() {
    const NAMES: usize = 500;
    let mut bench = bench("journals");
    let server = &mut bench.server;
    let mut longest = Duration::ZERO;
    for change in 0..3 * NAMES {
        let begin = Instant::now();
        add(server, &format!("name-{}", change % NAMES), change);
        longest = longest.max(begin.elapsed());
    }
    for number in 0..10 {
        let name = format!("name-{number}");
        server.holdings.remove_name(&name);
        server.tell(Change::Forget { name }, Vec::new());
        server.write_journal();
    }
    let files = server.directory.journals();
    let lengths = files.iter().map(|(_, name)| {
        let file = std::fs::metadata(server.path.join(name));
        file.expect("a file").len()
    });
    let bytes: u64 = lengths.sum();
    // A line has about 5,000 bytes.
    let counts = NAMES as u64 * 5_000;
    assert!(bytes < 3 * counts, "{bytes} bytes in {} files", files.len());
    assert!(files.len() <= 5, "{files:?}");
    assert!(longest < Duration::from_secs(1), "{longest:?}");
    let empty = Holdings::new(server.terms.policy.clone());
    let lost = journal::read(&server.directory, &empty);
    let mut expected: BTreeSet<String> = (10..NAMES).map(|of| format!("name-{of}")).collect();
    for (name, lost) in lost.iter().filter(|(name, _)| *name != "region") {
        assert!(expected.remove(name), "{name}");
        let number: usize = name["name-".len()..].parse().expect("a number");
        let label = format!("{:0>4000}", number + 2 * NAMES);
        assert_eq!(lost.name.label, label, "the latest line counts");
    }
    assert_eq!(expected, BTreeSet::new());
}

#[test]
fn what_the_journal_lacks_is_called_unsafe_until_it_is_written() {
    let mut bench = bench("full");
    let server = &mut bench.server;
    server.write_journal();
    assert_eq!(server.journal.failure(), None);
    server.journal.fill_disk();
    add(server, "other", 1);
    let why = server.journal.failure().expect("it could not be written");
    assert!(why.contains("No space left"), "{why}");
    let begin = Instant::now();
    while server.journal.failure().is_some() {
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "it is tried again"
        );
        server.write_journal();
        std::thread::yield_now();
    }
    let empty = Holdings::new(server.terms.policy.clone());
    assert!(journal::read(&server.directory, &empty).contains_key("other"));
    // The journal writes removed files again.
    for (_, name) in server.directory.journals() {
        std::fs::remove_file(server.path.join(name)).expect("removed");
    }
    let state = State {
        directory: &server.directory,
        holdings: &server.holdings,
        lost: &server.lost,
    };
    server.journal.check(&state);
    server.write_journal();
    assert!(journal::read(&server.directory, &empty).contains_key("other"));
}
