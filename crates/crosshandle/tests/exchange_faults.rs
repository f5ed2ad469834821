//! Tests faults while a handle is made or opened. Each fault must be an error, and later calls must
//! succeed.

#[allow(dead_code, reason = "each program uses a part of it")]
mod common;

use common::{Directory, Parent, Process, alone, context, is, take_descriptors};
use crosshandle::{Context, ContextOptions, Error, EventHandle, MemoryHandle, PeerPolicy};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept, bind, connect, listen,
    socket_with,
};
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// Size of memory that does not share a segment, so that each open sends a request to the exporter.
const LARGE: usize = 4 << 20;

/// Shares two large allocations, and stays alive.
fn export() {
    let context = context(ContextOptions::new());
    let memory = [(); 2].map(|()| context.allocate(LARGE).expect("memory"));
    let mut parent = Parent::new();
    for memory in &memory {
        parent.say(memory.handle().expect("a handle"));
    }
    parent.wait();
}

/// Starts a process that runs [`export`], and returns it with its handles.
fn exporter(test: &str, directory: &Directory) -> (Process, [MemoryHandle; 2]) {
    let mut process = Process::start(test, "exporter", directory);
    let handles = [(); 2].map(|()| process.hear().parse().expect("a handle"));
    (process, handles)
}

fn is_limit<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::LimitReached { .. }))
}

#[test]
fn a_socket_that_cannot_be_named_is_an_error() {
    alone("a_socket_that_cannot_be_named_is_an_error", |directory| {
        let share = |context: &Context| {
            let memory = context.allocate(64).expect("memory");
            memory.handle().map(drop)
        };
        let first = directory.context();
        share(&first).expect("a handle");
        let entries = fs::read_dir(directory.path()).expect("a directory");
        let names: Vec<_> = entries
            .map(|entry| entry.expect("an entry").path())
            .collect();
        let [name] = &names[..] else {
            panic!("more than the socket: {names:?}");
        };
        drop(first);
        // A socket cannot replace a directory of the same name.
        fs::create_dir(name).expect("the name is free again");
        let second = directory.context();
        let refused = share(&second);
        assert!(matches!(refused, Err(Error::Os { .. })), "{refused:?}");
        assert_eq!(
            fs::read_dir(directory.path()).expect("a directory").count(),
            1,
            "the socket without a name is gone"
        );
        // Other socket directories still work, and so does this one later.
        let elsewhere = Directory::new();
        share(&elsewhere.context()).expect("a handle elsewhere");
        fs::remove_dir(name).expect("a directory");
        share(&second).expect("a handle after all");
    });
}

#[test]
fn too_few_descriptors_now_do_no_harm_later() {
    alone("too_few_descriptors_now_do_no_harm_later", |directory| {
        let context = directory.context();
        let memory = context.allocate(64).expect("memory");
        // The limit rises by one descriptor at a time, so that each step that needs a descriptor
        // fails once.
        let mut taken = take_descriptors(0);
        let mut refusals = 0;
        loop {
            match memory.handle() {
                Ok(_) => break,
                refused => assert!(is_limit(&refused), "{refused:?}"),
            }
            refusals += 1;
            taken.pop().expect("not even with all descriptors");
        }
        assert!(refusals >= 2, "a socket and an epoll: {refusals}");
    });
}

#[test]
fn an_exporter_without_descriptors_says_so() {
    const TEST: &str = "an_exporter_without_descriptors_says_so";
    if is("exporter") {
        let context = context(ContextOptions::new());
        let memory = context.allocate(64).expect("memory");
        let handle = memory.handle().expect("a handle");
        let mut parent = Parent::new();
        let mut taken = take_descriptors(0);
        parent.say(handle);
        while parent.hear().is_some() {
            taken.pop().expect("not even with all descriptors");
            parent.say("one more");
        }
        return;
    }
    let directory = Directory::new();
    let mut exporter = Process::start(TEST, "exporter", &directory);
    let handle: MemoryHandle = exporter.hear().parse().expect("a handle");
    let mut refusals = 0;
    loop {
        // The timeout is long, because a wait for a reply would be the bug under test.
        let options = directory.options();
        let context = context(options.exchange_timeout(Duration::from_secs(5)));
        match context.open_memory(&handle) {
            Ok(_) => break,
            refused => assert!(is_limit(&refused), "{refused:?}"),
        }
        refusals += 1;
        exporter.say("free");
        assert_eq!(exporter.hear(), "one more");
    }
    assert!(refusals >= 1);
}

extern "C" fn ignore(_: libc::c_int) {}

/// Calls `f` while signals interrupt its thread, for at most ten seconds.
fn interrupted<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: zeros are a valid `sigaction` without flags and with an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = ignore as extern "C" fn(libc::c_int) as usize;
    // SAFETY: the handler does nothing, so it may run on any thread. No other code here uses the
    // signal.
    let set = unsafe { libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut()) };
    assert_eq!(set, 0);
    // SAFETY: the call always succeeds.
    let waiter = unsafe { libc::pthread_self() };
    let (stop, stopped) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            let end = Instant::now() + Duration::from_secs(10);
            while Instant::now() < end {
                let tick = stopped.recv_timeout(Duration::from_millis(40));
                if tick != Err(RecvTimeoutError::Timeout) {
                    return;
                }
                // SAFETY: the waiting thread lives until this thread has been joined.
                unsafe { libc::pthread_kill(waiter, libc::SIGUSR2) };
            }
        });
        let result = f();
        drop(stop);
        result
    })
}

#[test]
fn signals_do_not_prolong_the_wait_for_an_answer() {
    const TEST: &str = "signals_do_not_prolong_the_wait_for_an_answer";
    if is("exporter") {
        return export();
    }
    let directory = Directory::new();
    let (exporter, handles) = exporter(TEST, &directory);
    let timeout = Duration::from_millis(300);
    let context = context(directory.options().exchange_timeout(timeout));
    let _connected = context.open_memory(&handles[0]).expect("opened");
    exporter.stop();
    let (taken, late) = interrupted(|| {
        let began = Instant::now();
        let late = context.open_memory(&handles[1]);
        (began.elapsed(), late)
    });
    assert!(late.as_ref().is_err_and(Error::is_timeout), "{late:?}");
    assert!(taken >= timeout, "{taken:?}");
    assert!(taken < Duration::from_secs(5), "{taken:?}");
}

#[test]
fn a_stuck_exporter_holds_up_no_other() {
    const TEST: &str = "a_stuck_exporter_holds_up_no_other";
    if is("exporter") {
        return export();
    }
    let directory = Directory::new();
    let (stuck, stuck_handles) = exporter(TEST, &directory);
    let (_healthy, handles) = exporter(TEST, &directory);
    let timeout = Duration::from_secs(2);
    let context = context(directory.options().exchange_timeout(timeout));
    let _connected = context.open_memory(&stuck_handles[0]).expect("opened");
    let _other = context.open_memory(&handles[0]).expect("opened");
    stuck.stop();
    thread::scope(|scope| {
        let open_stuck = || scope.spawn(|| context.open_memory(&stuck_handles[1]).map(drop));
        let waiters = [open_stuck(), open_stuck()];
        // The loop runs for as long as they wait, so the test need not know when the waits begin.
        while waiters.iter().any(|waiter| !waiter.is_finished()) {
            let began = Instant::now();
            context.open_memory(&handles[1]).expect("a healthy one");
            let taken = began.elapsed();
            assert!(taken < timeout / 2, "held up for {taken:?}");
        }
        for waiter in waiters {
            let late = waiter.join().expect("no panic");
            assert!(late.as_ref().is_err_and(Error::is_timeout), "{late:?}");
        }
    });
}

#[test]
#[ignore = "needs root; `cargo xtask test` runs it"]
fn contexts_keep_their_own_policies() {
    const TEST: &str = "contexts_keep_their_own_policies";
    const STRANGER: u32 = 1234;
    if is("stranger") {
        // SAFETY: the calls access no memory, and libc applies them to all threads.
        let changed = unsafe { libc::setgid(STRANGER) == 0 && libc::setuid(STRANGER) == 0 };
        assert!(changed);
        let context = context(ContextOptions::new().peers(PeerPolicy::Anyone));
        let memory = context.allocate(64).expect("memory");
        let mut parent = Parent::new();
        parent.say(memory.handle().expect("a handle"));
        return parent.wait();
    }
    let directory = Directory::new();
    directory.set_mode(0o1777);
    let mut stranger = Process::start(TEST, "stranger", &directory);
    let handle: MemoryHandle = stranger.hear().parse().expect("a handle");
    let strict = directory.context();
    let trusting = context(directory.options().peers(PeerPolicy::Anyone));
    let refused = |when: &str| match strict.open_memory(&handle) {
        Err(Error::NotAdmitted { uid: STRANGER }) => {}
        other => panic!("{when}: {other:?}"),
    };
    refused("first");
    let opened = trusting.open_memory(&handle).expect("anyone is trusted");
    refused("although the process is connected");
    drop(opened);
    refused("and after");
}

/// Locks places of importers in the arena that this process has open, as a hostile process may do.
/// It relies on the layout of the locks in `ipc::event_arena`.
fn lock_places(places: std::ops::Range<u64>) {
    const LOCKS_AT: u64 = 1 << 40;
    let is_arena = |entry: &fs::DirEntry| {
        let target = fs::read_link(entry.path());
        target.is_ok_and(|target| target.to_string_lossy().contains("crosshandle-liveness"))
    };
    let mut locked = 0;
    for entry in fs::read_dir("/proc/self/fd").expect("procfs").flatten() {
        if !is_arena(&entry) {
            continue;
        }
        let number = entry.file_name();
        let file: RawFd = number.to_str().and_then(|n| n.parse().ok()).expect("one");
        let lock = libc::flock {
            l_type: libc::F_WRLCK as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: (LOCKS_AT + places.start) as libc::off_t,
            l_len: (places.end - places.start) as libc::off_t,
            l_pid: 0,
        };
        // SAFETY: the arena stays open, and `lock` is a valid `flock`.
        let result = unsafe { libc::fcntl(file, libc::F_SETLK, &lock) };
        // The process may also have an arena of its own.
        locked += usize::from(result == 0);
    }
    assert!(locked > 0, "no event is open");
}

#[test]
fn places_that_are_held_keep_nobody_out() {
    const TEST: &str = "places_that_are_held_keep_nobody_out";
    if is("exporter") {
        let context = context(ContextOptions::new());
        let event = context.create_event().expect("an event");
        let mut parent = Parent::new();
        parent.say(event.handle().expect("a handle"));
        return parent.wait();
    }
    if is("holder") {
        let context = context(ContextOptions::new());
        let mut parent = Parent::new();
        let handle = parent.hear().expect("a handle").parse().expect("a handle");
        let _event = context.open_event(&handle).expect("opened");
        // Place 1 belongs to the exporter, and place 2 to this process.
        lock_places(3..8);
        parent.say("locked");
        return parent.wait();
    }
    let directory = Directory::new();
    let mut exporter = Process::start(TEST, "exporter", &directory);
    let text = exporter.hear();
    let handle: EventHandle = text.parse().expect("a handle");
    let mut holder = Process::start(TEST, "holder", &directory);
    holder.say(&text);
    assert_eq!(holder.hear(), "locked");
    let event = directory.context().open_event(&handle);
    event.expect("opened").signal().expect("signalled");
}

/// Creates the socket of an exporter, on which the test itself listens. It relies on the names of
/// sockets.
fn socket_of(exporter: u64, directory: &Directory) -> (OwnedFd, PathBuf) {
    let path = directory.path().join(format!("{exporter:016x}.sock"));
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let socket = socket.expect("a socket");
    let address = SocketAddrUnix::new(&path).expect("a short path");
    bind(&socket, &address).expect("a name");
    listen(&socket, 4).expect("listening");
    (socket, path)
}

/// Locks an exporter's byte of the socket directory. It relies on the layout of the locks in
/// `ipc::broker::sweep`.
fn lock_exporter(exporter: u64, directory: &fs::File) {
    let lock = libc::flock {
        l_type: libc::F_RDLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: (exporter >> 2) as libc::off_t,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: the directory stays open, and `lock` is a valid `flock`.
    let result = unsafe { libc::fcntl(directory.as_raw_fd(), libc::F_SETLK, &lock) };
    assert_eq!(result, 0);
}

#[test]
fn a_new_exporter_removes_dead_sockets_and_pokes_no_living_exporter() {
    const TEST: &str = "a_new_exporter_removes_dead_sockets_and_pokes_no_living_exporter";
    if is("exporter") {
        return export();
    }
    let directory = Directory::new();
    let locks = fs::File::open(directory.path()).expect("a directory");
    let living = [4_u64, 8, 12, u64::MAX].map(|number| {
        let (socket, path) = socket_of(number, &directory);
        lock_exporter(number, &locks);
        (socket, path)
    });
    // This exporter has no lock, as on a system without such locks. The sweep must try its socket
    // and leave it alone.
    let (unlocked, unlocked_path) = socket_of(16, &directory);
    let dead: Vec<_> = (100..140)
        .map(|number| socket_of(4 * number, &directory).1)
        .collect();
    // A socket with a full queue must not block the sweep.
    let (full, full_path) = socket_of(20, &directory);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let address = SocketAddrUnix::new(&full_path).expect("a short path");
    let mut waiting = Vec::new();
    loop {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let socket = socket.expect("a socket");
        if connect(&socket, &address).is_err() {
            break;
        }
        waiting.push(socket);
    }

    let _exporter = exporter(TEST, &directory);
    let left: Vec<_> = dead.iter().filter(|path| path.exists()).collect();
    assert!(left.is_empty(), "dead sockets are left: {left:?}");
    for (socket, path) in &living {
        assert!(path.exists());
        assert_eq!(
            accept(socket).err(),
            Some(Errno::AGAIN),
            "{path:?} was poked"
        );
    }
    assert!(unlocked_path.exists() && full_path.exists());
    accept(&unlocked).expect("it was tried whether it answers");
    drop(full);
}
