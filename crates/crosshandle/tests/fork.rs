//! A child made by `fork` has copies of its parent's objects and must take nothing from the parent,
//! nor make it seem alive after its death.

#[allow(dead_code, reason = "each program uses a part of it")]
mod common;

use common::{DEADLINE, Directory, Parent, Process, context, is};
use crosshandle::{Command, Context, ContextOptions, Device, Error, EventHandle, MemoryHandle};
use std::fs;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Far more than it takes to notice a death, and far less than [`DEADLINE`].
const SOON: Duration = Duration::from_secs(5);

#[test]
fn what_a_forked_child_drops_stays_with_its_parent() {
    let device = Device::find("host").expect("there is always a host");
    let context = Context::new(&device).expect("a context");
    let memory = context.allocate(4096).expect("memory");
    let handle = memory.handle().expect("a handle");
    let unshared = context.allocate(4096).expect("memory");
    let event = context.create_event().expect("an event");
    let event_handle = event.handle().expect("a handle");
    let queue = context.create_queue().expect("a queue");
    let opener = Context::new(&device).expect("a second context");
    let opened = opener.open_memory(&handle).expect("opened");
    opened.write(0, b"before").expect("written");
    event.set_name("before");

    // SAFETY: the child runs only code of this crate that is made for it, and `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_refused = queue.submit(Command::marker()).is_err()
            && queue.finish().is_err()
            && context.allocate(4096).is_err()
            && context.create_event().is_err()
            && unshared.handle().is_err()
            && opener.open_memory(&handle).is_err();
        event.set_name("after");
        drop((opened, memory, unshared, event, queue, context, opener));
        let refused = Context::new(&device);
        let as_expected = is_refused && matches!(refused, Err(Error::Unsupported(_)));
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(if as_expected { 0 } else { 1 }) };
    }
    assert_eq!(wait_for(child), 0, "the child's exit status");

    queue.finish().expect("the parent's queue");
    // Everything is as it was, and the parent's broker still answers.
    let mut bytes = [0; 6];
    let again = opener.open_memory(&handle).expect("not stale");
    again.read(0, &mut bytes).expect("read");
    assert_eq!(&bytes, b"before");
    let name = opener.open_event(&event_handle).expect("not stale").name();
    assert_eq!(name.as_deref(), Some("before"));
    drop((opened, again, memory, event));
    assert!(
        opener
            .open_memory(&handle)
            .is_err_and(|error| error.is_stale())
    );
}

/// The exit status of a child, which must end within ten seconds.
fn wait_for(child: libc::pid_t) -> libc::c_int {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let mut status = 0;
        // SAFETY: `status` is writable for the call.
        match unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } {
            0 if Instant::now() < end => std::thread::yield_now(),
            0 => {
                // SAFETY: our own child, not waited for yet.
                unsafe { libc::kill(child, libc::SIGKILL) };
                panic!("the forked child hangs");
            }
            _ => return status,
        }
    }
}

/// How a child is made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Fork,
    /// By a raw system call, which runs no handlers.
    Clone,
}

/// Makes a child that lives as long as this process's parent, and returns its number.
fn fork_child(way: Way) -> libc::pid_t {
    let child = match way {
        // SAFETY: the child makes system calls only, and has a copy of this stack.
        Way::Fork => unsafe { libc::fork() },
        // SAFETY: as above.
        Way::Clone => unsafe {
            libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as libc::pid_t
        },
    };
    assert_ne!(child, -1, "a child");
    if child == 0 {
        let mut byte = 0_u8;
        // SAFETY: one byte may be written there.
        while unsafe { libc::read(libc::STDIN_FILENO, (&raw mut byte).cast(), 1) } > 0 {}
        // SAFETY: ends the child without running anything of its parent's.
        unsafe { libc::_exit(0) };
    }
    child
}

/// Kills a process, and makes sure that its child lives.
fn kill_parent_of(child: &str, parent: &mut Process) {
    parent.kill_alone();
    let status = fs::read_to_string(Path::new("/proc").join(child).join("status"));
    assert!(!status.expect("a process").contains("zombie"));
}

/// Exports memory and an event, and forks.
fn export_and_fork(way: Way) {
    let context = context(ContextOptions::new());
    let memory = context.allocate(4 << 20).expect("memory");
    let event = context.create_event().expect("an event");
    let mut parent = Parent::new();
    parent.say(memory.handle().expect("a handle"));
    parent.say(event.handle().expect("a handle"));
    // With the importer's connection, too.
    assert_eq!(parent.hear().as_deref(), Some("fork"));
    parent.say(fork_child(way));
    parent.wait();
}

/// Kills an exporter whose child lives, and has a process connect that knew nothing of it.
fn check_newcomer(test: &str, way: Way) {
    if is("exporter") {
        return export_and_fork(way);
    }
    let directory = Directory::new();
    let mut exporter = Process::start(test, "exporter", &directory);
    let memory: MemoryHandle = exporter.hear().parse().expect("a handle");
    let _event = exporter.hear();
    exporter.say("fork");
    let child = exporter.hear();
    kill_parent_of(&child, &mut exporter);
    let newcomer = context(directory.options().exchange_timeout(DEADLINE));
    let began = Instant::now();
    let refused = newcomer.open_memory(&memory);
    let is_gone = matches!(refused, Err(Error::ExporterGone { .. }));
    assert!(is_gone, "{refused:?}");
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

#[test]
fn a_child_does_not_keep_its_dead_parents_socket() {
    check_newcomer("a_child_does_not_keep_its_dead_parents_socket", Way::Fork);
}

#[test]
fn a_dead_exporters_socket_is_known_by_its_lock() {
    check_newcomer("a_dead_exporters_socket_is_known_by_its_lock", Way::Clone);
}

#[test]
fn a_child_does_not_keep_its_dead_parents_connections() {
    const TEST: &str = "a_child_does_not_keep_its_dead_parents_connections";
    if is("exporter") {
        return export_and_fork(Way::Fork);
    }
    let directory = Directory::new();
    let mut exporter = Process::start(TEST, "exporter", &directory);
    let memory: MemoryHandle = exporter.hear().parse().expect("a handle");
    let event: EventHandle = exporter.hear().parse().expect("a handle");
    let importer = context(directory.options().exchange_timeout(DEADLINE));
    let _opened = importer.open_memory(&memory).expect("opened");
    let event = importer.open_event(&event).expect("opened");
    exporter.say("fork");
    let child = exporter.hear();
    let (ended, has_ended) = mpsc::channel();
    let waiter = thread::spawn(move || {
        let _ = ended.send(event.wait_value_timeout(1, DEADLINE));
    });
    kill_parent_of(&child, &mut exporter);
    let result = has_ended.recv_timeout(SOON).expect("the wait ends soon");
    assert!(
        result.as_ref().is_err_and(Error::is_peer_dead),
        "{result:?}"
    );
    waiter.join().expect("a thread");
    // A hang-up was noticed, and no answer is waited for.
    let began = Instant::now();
    let again = importer.open_memory(&memory);
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    drop(again);
}

/// The number of sockets that this process has.
fn sockets() -> usize {
    let files = fs::read_dir("/proc/self/fd").expect("procfs");
    let targets = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
    targets
        .filter(|target| target.to_string_lossy().starts_with("socket:"))
        .count()
}

#[test]
fn a_child_does_not_keep_a_dead_importer_attached() {
    const TEST: &str = "a_child_does_not_keep_a_dead_importer_attached";
    if is("importer") {
        let mut parent = Parent::new();
        let handle: MemoryHandle = parent.hear().expect("a handle").parse().expect("a handle");
        let context = context(ContextOptions::new());
        let _opened = context.open_memory(&handle).expect("opened");
        parent.say(fork_child(Way::Fork));
        return parent.wait();
    }
    common::alone(TEST, |directory| {
        let context = directory.context();
        let memory = context.allocate(4 << 20).expect("memory");
        let handle = memory.handle().expect("a handle");
        let mut importer = Process::start(TEST, "importer", directory);
        let before = sockets();
        importer.say(&handle.to_string());
        let child = importer.hear();
        assert_eq!(sockets(), before + 1, "it is connected");
        kill_parent_of(&child, &mut importer);
        let end = Instant::now() + SOON;
        while sockets() > before {
            assert!(Instant::now() < end, "its death is not noticed");
            thread::yield_now();
        }
    });
}
