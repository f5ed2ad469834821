use super::claims::tests::Bench;
use super::*;
use crate::os::memfd;
use std::collections::BTreeSet;

fn bench(of: &str) -> Bench {
    let file = memfd::create("test", 4096).expect("memory");
    Bench::new(of, &file, std::process::id())
}

#[test]
fn users_are_answered_in_turn_and_so_are_their_processes() {
    let program = |uid: u32, pid: u32, number: u64| (Asker { uid, pid }, number);
    let mut ready: Vec<_> = (0..40).map(|number| program(1, 10, number)).collect();
    ready.extend([program(1, 11, 50), program(2, 20, 60), program(2, 20, 61)]);
    let turn = in_turn(ready.into_iter());
    assert_eq!(turn.len(), MAX_QUESTIONS_AT_ONCE);
    let place = |number: u64| turn.iter().position(|it| *it == number);
    assert!(place(60) <= Some(1) && place(61) <= Some(3), "{turn:?}");
    assert!(place(50).is_some_and(|place| place <= 3), "{turn:?}");
    // Of its own in the order in which they came.
    assert!(place(0) < place(1) && place(1) < place(2), "{turn:?}");
}

/// The bench's name again, under another one and with a long label.
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
    // A line is some 5,000 bytes.
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
    // Files that somebody removes are written again.
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
