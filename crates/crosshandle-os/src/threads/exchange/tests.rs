use super::*;
use crate::socket;
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(20);

fn pair() -> (OwnedFd, OwnedFd) {
    socket::pair().expect("two descriptors")
}

struct Resting(OwnedFd, Sender<Instant>);

impl Source for Resting {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn wants_messages(&self) -> bool {
        true
    }

    fn ready(&self, _: Registration) -> Next {
        let _ = self.1.send(Instant::now());
        Next::Rest
    }
}

#[test]
fn a_source_that_rests_is_called_again_later() {
    let (ours, theirs) = pair();
    let (called, calls) = channel();
    let _watch = watch(Arc::new(Resting(ours, called))).unwrap();
    rustix::io::write(&theirs, b"never read").unwrap();
    let first = calls.recv_timeout(DEADLINE).expect("it is called");
    let second = calls.recv_timeout(DEADLINE).expect("it is called again");
    assert!(second >= first + SOURCE_REST);
}

#[test]
fn a_source_that_panics_is_forgotten_and_others_are_not() {
    struct Panicking(
        OwnedFd,
        #[expect(dead_code, reason = "its drop tells")] Sender<()>,
    );
    impl Source for Panicking {
        fn descriptor(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }

        fn wants_messages(&self) -> bool {
            true
        }

        fn ready(&self, _: Registration) -> Next {
            panic!("on purpose")
        }
    }
    let (panicking, peer) = pair();
    let (kept, is_dropped) = channel();
    let _watch = watch(Arc::new(Panicking(panicking, kept))).unwrap();
    rustix::io::write(&peer, b"never read").unwrap();
    let dropped = is_dropped.recv_timeout(DEADLINE);
    assert_eq!(
        dropped,
        Err(RecvTimeoutError::Disconnected),
        "it is dropped"
    );
    let (other, peer) = pair();
    let (called, calls) = channel();
    let _watch = watch(Arc::new(Resting(other, called))).unwrap();
    rustix::io::write(&peer, b"never read").unwrap();
    calls.recv_timeout(DEADLINE).expect("others are called");
}

/// A source of a peer that sends its name when it is called, and then calls the function in
/// `then`, if any. It leaves its messages unread if it asks again and again.
struct Named {
    stream: OwnedFd,
    name: &'static str,
    peer: Option<Party>,
    repeats: bool,
    called: Sender<&'static str>,
    then: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Source for Named {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn wants_messages(&self) -> bool {
        true
    }

    fn peer(&self) -> Option<Party> {
        self.peer
    }

    fn ready(&self, _: Registration) -> Next {
        let _ = self.called.send(self.name);
        if let Some(then) = self.then.lock().take() {
            then();
        }
        if !self.repeats {
            let _ = rustix::io::read(&self.stream, &mut [0; 16]);
        }
        Next::Continue
    }
}

/// Returns the names of the first `count` sources that are called after all of these sources have
/// received a message at the same time, in the order of the calls. Each source has a name and a
/// party, and either reads its message or is always ready.
fn order(sources: &[(&'static str, Party, bool)], count: usize) -> Vec<&'static str> {
    let (called, calls) = channel();
    let (release, released) = channel::<()>();
    let watched = |name, peer, repeats, then| {
        let (stream, end) = pair();
        let source = Named {
            stream,
            name,
            peer,
            repeats,
            called: called.clone(),
            then: Mutex::new(then),
        };
        (watch(Arc::new(source)).expect("watched"), end)
    };
    // This source blocks the thread until all others have messages.
    let blocks: Box<dyn FnOnce() + Send> = Box::new(move || {
        let _ = released.recv();
    });
    let (_blocks, end) = watched("blocks", None, false, Some(blocks));
    let (_watches, ends): (Vec<_>, Vec<_>) = sources
        .iter()
        .map(|(name, party, repeats)| watched(name, Some(*party), *repeats, None))
        .unzip();
    rustix::io::write(&end, b"blocks").unwrap();
    assert_eq!(calls.recv_timeout(DEADLINE), Ok("blocks"));
    for end in &ends {
        rustix::io::write(end, b"ready").unwrap();
    }
    release.send(()).unwrap();
    let calls = (0..count).map(|_| calls.recv_timeout(DEADLINE).expect("called"));
    calls.collect()
}

/// More connections than the kernel reports in one call.
const CONNECTIONS: usize = 3 * EPOLL_EVENTS;

#[test]
fn a_peer_with_many_connections_takes_one_turn_of_many() {
    // One process has many connections, and two have one connection each, which are always ready.
    let mut sources = vec![("flood", Party::peer(1, 10), true); CONNECTIONS];
    sources.extend((11..13).map(|pid| ("repeats", Party::peer(1, pid), true)));
    // These two come last, as newcomers do.
    sources.push(("same user", Party::peer(1, 20), false));
    sources.push(("other user", Party::peer(2, 30), false));
    let order = order(&sources, 3 * MAX_TURNS);
    let place = |name| order.iter().position(|of| *of == name);
    // Each user has a turn before any has a second one, and so has each process of a user.
    assert!(place("other user") <= Some(1), "{order:?}");
    assert!(
        place("same user").is_some_and(|place| place <= 8),
        "{order:?}"
    );
    let count = |name| order.iter().filter(|of| **of == name).count();
    assert!(count("repeats") >= 4, "{order:?}");
}

/// Importers in other containers have the process id 0, so those of a user share its turns.
#[test]
fn connections_of_a_process_take_turns_even_if_its_id_is_unknown() {
    for pid in [10, 0] {
        for most in [MAX_TURNS, CONNECTIONS] {
            let party = Party::peer(1, pid);
            let mut sources = vec![("flood", party, true); most];
            sources.push(("newcomer", party, true));
            // Every connection has one turn in each round.
            let order = order(&sources, 3 * sources.len());
            for round in order.chunks(sources.len()) {
                let turns = round.iter().filter(|name| **name == "newcomer").count();
                assert_eq!(turns, 1, "{order:?}");
            }
        }
    }
}

/// A source that replies to each message, unless too many replies are unread.
struct Replying {
    stream: OwnedFd,
    calls: AtomicU64,
    hung_up: Sender<()>,
}

impl Replying {
    const REPLY: [u8; 4096] = [1; 4096];
    const MAX_UNREAD: usize = 16 << 10;
}

impl Source for Replying {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn wants_messages(&self) -> bool {
        true
    }

    fn must_read_first(&self) -> bool {
        socket::unread_bytes(&self.stream).expect("a socket") > Self::MAX_UNREAD
    }

    fn ready(&self, _: Registration) -> Next {
        rustix::io::read(&self.stream, &mut [0; 16]).expect("a message");
        self.calls.fetch_add(1, Ordering::Relaxed);
        socket::send(&self.stream, &Self::REPLY, &[]).expect("there is room");
        Next::Continue
    }

    fn hung_up(&self, _: Registration) -> Next {
        let _ = self.hung_up.send(());
        Next::Forget
    }
}

#[test]
fn who_does_not_read_gets_no_turn_until_it_reads() {
    const MESSAGES: u64 = 100;
    let (ours, theirs) = pair();
    let (hung_up, has_hung_up) = channel();
    let source = Arc::new(Replying {
        stream: ours,
        calls: AtomicU64::new(0),
        hung_up,
    });
    let _watch = watch(Arc::<Replying>::clone(&source)).unwrap();
    // Another source shows that the thread has had time for all that is ready.
    let (other, ping) = pair();
    let (called, calls) = channel();
    let _other = watch(Arc::new(Named {
        stream: other,
        name: "other",
        peer: None,
        repeats: false,
        called,
        then: Mutex::default(),
    }));
    let pass_turns = || {
        for _ in 0..MESSAGES {
            rustix::io::write(&ping, b"ping").unwrap();
            calls.recv_timeout(DEADLINE).expect("others are called");
        }
    };
    for _ in 0..MESSAGES {
        rustix::io::write(&theirs, b"a message").unwrap();
    }
    pass_turns();
    let most = Replying::MAX_UNREAD / Replying::REPLY.len();
    let first = source.calls.load(Ordering::Relaxed);
    assert!((1..=most as u64 + 1).contains(&first), "{first} calls");
    // Each reply that is read makes room for another one.
    let mut buffer = [0; Replying::REPLY.len()];
    for _ in 0..MESSAGES {
        let readable = PollFd::new(&theirs, PollFlags::IN);
        let limit = Timespec::try_from(DEADLINE).expect("short");
        assert_eq!(poll(&mut [readable], Some(&limit)), Ok(1), "a reply");
        rustix::io::read(&theirs, &mut buffer).unwrap();
    }
    assert_eq!(source.calls.load(Ordering::Relaxed), MESSAGES);
    // A peer that does not read is still noticed when it ends.
    for _ in 0..MESSAGES {
        rustix::io::write(&theirs, b"a message").unwrap();
    }
    pass_turns();
    drop(theirs);
    assert_eq!(has_hung_up.recv_timeout(DEADLINE), Ok(()));
}

#[test]
fn all_who_do_not_read_are_noticed_when_they_end_at_once() {
    let (hung_up, has_hung_up) = channel();
    let (ours, mut peers): (Vec<_>, Vec<_>) = (0..5 * MAX_TURNS).map(|_| pair()).unzip();
    let watches: Vec<_> = ours
        .into_iter()
        .map(|stream| {
            let calls = AtomicU64::new(0);
            let hung_up = hung_up.clone();
            let source = Arc::new(Replying {
                stream,
                calls,
                hung_up,
            });
            watch(source).unwrap()
        })
        .collect();
    for peer in &peers {
        for _ in 0..10 {
            rustix::io::write(peer, b"a message").unwrap();
        }
    }
    // This source is always ready. Its calls show that the thread has had time to find out who
    // does not read.
    let (stream, peer) = pair();
    let (called, calls) = channel();
    let other = Arc::new(Named {
        stream,
        name: "other",
        peer: None,
        repeats: true,
        called,
        then: Mutex::default(),
    });
    let _other = watch(Arc::<Named>::clone(&other));
    rustix::io::write(&peer, b"ready").unwrap();
    for _ in 0..20 * peers.len() {
        calls.recv_timeout(DEADLINE).expect("it is called");
    }
    // It blocks the thread until all peers have ended.
    let (blocks, is_blocked) = channel();
    let (release, released) = channel::<()>();
    *other.then.lock() = Some(Box::new(move || {
        let _ = blocks.send(());
        let _ = released.recv();
    }));
    is_blocked.recv_timeout(DEADLINE).expect("it is called");
    peers.clear();
    release.send(()).unwrap();
    for _ in &watches {
        assert_eq!(has_hung_up.recv_timeout(DEADLINE), Ok(()));
    }
}

/// A source that sets a deadline at each message, and clears it when it is called late.
struct Timed {
    stream: OwnedFd,
    deadline: Mutex<Option<Instant>>,
    rests: bool,
    called: Sender<Instant>,
    late: Sender<Instant>,
    panics: AtomicBool,
}

const LATE_AFTER: Duration = Duration::from_millis(100);

impl Source for Timed {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn wants_messages(&self) -> bool {
        true
    }

    fn ready(&self, _: Registration) -> Next {
        if !self.rests {
            let _ = rustix::io::read(&self.stream, &mut [0; 16]);
        }
        let now = Instant::now();
        self.deadline.lock().get_or_insert(now + LATE_AFTER);
        let _ = self.called.send(now);
        match self.rests {
            true => Next::Rest,
            false => Next::Continue,
        }
    }

    fn deadline(&self) -> Option<Instant> {
        *self.deadline.lock()
    }

    fn late(&self) {
        *self.deadline.lock() = None;
        let _ = self.late.send(Instant::now());
        assert!(!self.panics.load(Ordering::Relaxed), "on purpose");
    }
}

#[test]
fn a_source_is_told_of_its_deadline_also_while_it_rests() {
    for rests in [false, true] {
        let (ours, theirs) = pair();
        let (called, calls) = channel();
        let (late, is_late) = channel();
        let source = Arc::new(Timed {
            stream: ours,
            deadline: Mutex::default(),
            rests,
            called,
            late,
            panics: AtomicBool::new(false),
        });
        let _watch = watch(Arc::<Timed>::clone(&source)).unwrap();
        // No deadline is set before the first message.
        assert!(is_late.recv_timeout(2 * LATE_AFTER).is_err());
        rustix::io::write(&theirs, b"a message").unwrap();
        let first = calls.recv_timeout(DEADLINE).expect("it is called");
        let at = is_late.recv_timeout(DEADLINE).expect("it is late");
        assert!(at >= first + LATE_AFTER, "{:?}", at - first);
        if rests {
            continue;
        }
        // The source is called once for each deadline.
        assert!(is_late.recv_timeout(2 * LATE_AFTER).is_err());
        source.panics.store(true, Ordering::Relaxed);
        rustix::io::write(&theirs, b"a message").unwrap();
        is_late.recv_timeout(DEADLINE).expect("it is late again");
        // After the panic, the exchange thread drops the source.
        while Arc::strong_count(&source) > 1 {
            thread::yield_now();
        }
    }
}
