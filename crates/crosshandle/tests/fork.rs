//! A forked child has copies of its parent's objects. It must not affect the parent, and must not
//! make the parent look alive after its death.

#[allow(dead_code, reason = "each program uses a part of it")]
mod common;

use common::{DEADLINE, Directory, Parent, Process, context, is};
use crosshandle::memory::{MemoryPool, MemoryPoolOptions};
use crosshandle::{Command, Context, ContextOptions, Device, Error, EventHandle, MemoryHandle};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// A time that is far longer than noticing a death takes, and far shorter than [`DEADLINE`].
const SOON: Duration = Duration::from_secs(5);

#[test]
fn what_a_forked_child_trims_stays_with_its_parent() {
    const BYTES: usize = 1 << 20;
    let device = Device::find("host").expect("there is always a host");
    let context = Context::new(&device).expect("a context");
    let pool = MemoryPool::new(&context, MemoryPoolOptions::new());
    let allocate = || {
        let memory = [context.allocate(BYTES), pool.allocate(BYTES)];
        memory.map(|memory| memory.expect("memory"))
    };
    // In the child's copy of the lists this memory stays free.
    drop(allocate());
    let (mut end, mut go) = std::io::pipe().expect("a pipe");
    // SAFETY: the child calls only functions of this crate that support a forked child, a read, and
    // `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let told = end.read_exact(&mut [0]).is_ok();
        context.trim();
        pool.trim_to(0);
        // SAFETY: the call ends the child without running the parent's code.
        unsafe { libc::_exit(if told { 0 } else { 1 }) };
    }
    let used = allocate();
    let contents = vec![7; BYTES];
    for memory in &used {
        memory.write(0, &contents).expect("written");
    }
    go.write_all(&[1]).expect("the child reads");
    assert_eq!(wait_for(child), 0, "the child's exit status");
    for memory in &used {
        let mut found = vec![0; BYTES];
        memory.read(0, &mut found).expect("read");
        assert!(found == contents, "the child returned the parent's pages");
    }
}

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

    // SAFETY: the child calls only functions of this crate that support a forked child, and
    // `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_refused = queue.submit(Command::marker()).is_err()
            && queue.finish().is_err()
            && context.allocate(4096).is_err()
            && context.create_event().is_err()
            && unshared.handle().is_err()
            && memory.handle().is_err()
            && event.signal().is_err()
            && event.handle().is_err()
            && event
                .wait_value_timeout(1, SOON)
                .is_err_and(|error| !error.is_timeout())
            && opener.open_memory(&handle).is_err();
        let may_write = opened.write(0, b"before").is_ok();
        event.set_name("after");
        drop((opened, memory, unshared, event, queue, context, opener));
        let as_expected = is_refused && may_write;
        // SAFETY: the call ends the child without running the parent's code.
        unsafe { libc::_exit(if as_expected { 0 } else { 1 }) };
    }
    assert_eq!(wait_for(child), 0, "the child's exit status");

    queue.finish().expect("the parent's queue");
    // The parent's objects are unchanged, and its broker still replies.
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

/// Threads that take the locks of this process as often as they can, until this value is dropped.
struct Busy(Arc<AtomicBool>, Vec<thread::JoinHandle<()>>);

impl Busy {
    fn start(context: &Context) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let work = || {
            let (context, is_over) = (context.clone(), Arc::clone(&is_over));
            thread::spawn(move || {
                let device = Device::find("host").expect("there is always a host");
                while !is_over.load(Ordering::Relaxed) {
                    let memory = context.allocate(4096).expect("memory");
                    let handle = memory.handle().expect("a handle");
                    let other = Context::new(&device).expect("a context");
                    let opened = other.open_memory(&handle).expect("opened");
                    let event = other.create_event().expect("an event");
                    let (told, is_told) = mpsc::channel();
                    let called = event.on_signal(1, move |_| told.send(()).unwrap_or(()));
                    called.expect("awaited").detach();
                    event.signal().expect("signalled");
                    is_told.recv_timeout(DEADLINE).expect("called");
                    drop((opened, other));
                }
            })
        };
        let threads = (0..3).map(|_| work()).collect();
        Self(is_over, threads)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        for thread in self.1.drain(..) {
            thread.join().expect("a thread");
        }
    }
}

/// Uses what the parent has sent, in a forked child. Returns `false` if any result is wrong.
fn start_afresh(memory: &MemoryHandle, event: &EventHandle, sender: &mut fs::File) -> bool {
    let mut try_all = || -> crosshandle::Result<bool> {
        let context = Context::new(&Device::find("host")?)?;
        // The child opens the parent's objects.
        let opened = context.open_memory(memory)?;
        let mut bytes = [0; 6];
        opened.read(0, &mut bytes)?;
        let event = context.open_event(event)?;
        // The parent opens the child's objects.
        let own = context.allocate(4096)?;
        own.write(0, b"child")?;
        let ready = context.create_event()?;
        let lines = format!("{} {}\n", own.handle()?, ready.handle()?);
        let is_sent = sender.write_all(lines.as_bytes()).is_ok();
        ready.wait_value_timeout(1, DEADLINE)?;
        // The child starts threads of its own.
        let (told, is_told) = mpsc::channel();
        let own_event = context.create_event()?;
        own_event
            .on_signal(1, move |_| told.send(()).unwrap_or(()))?
            .detach();
        own_event.signal()?;
        let queue = context.create_queue()?;
        queue.submit(Command::marker())?;
        queue.finish()?;
        let is_called = is_told.recv_timeout(DEADLINE).is_ok();
        event.signal()?;
        Ok(is_sent && is_called && &bytes == b"parent")
    };
    try_all().unwrap_or(false)
}

#[test]
fn a_forked_child_starts_afresh() {
    const TEST: &str = "a_forked_child_starts_afresh";
    common::alone(TEST, |directory| {
        // All contexts of this process and of its children find the directory through the variable.
        let context = directory.context();
        let busy = Busy::start(&context);
        let memory = context.allocate(4096).expect("memory");
        memory.write(0, b"parent").expect("written");
        let handle = memory.handle().expect("a handle");
        let forks =
            std::env::var("CROSSHANDLE_FORKS").map_or(24, |forks| forks.parse().expect("a number"));
        for _ in 0..forks {
            let event = context.create_event().expect("an event");
            let event_handle = event.handle().expect("a handle");
            let (reader, writer) = std::io::pipe().expect("a pipe");
            // SAFETY: the child calls functions of this library that support a forked child, and
            // ends by `_exit`.
            let child = unsafe { libc::fork() };
            assert_ne!(child, -1, "a child");
            if child == 0 {
                let mut sender = fs::File::from(std::os::fd::OwnedFd::from(writer));
                let is_well = start_afresh(&handle, &event_handle, &mut sender);
                // SAFETY: the call ends the child without running the parent's code.
                unsafe { libc::_exit(if is_well { 0 } else { 1 }) };
            }
            drop(writer);
            let mut line = String::new();
            BufReader::new(reader).read_line(&mut line).expect("a line");
            let (own, ready) = line.trim().split_once(' ').expect("two handles");
            let opened = context
                .open_memory(&own.parse().expect("a handle"))
                .expect("opened");
            let mut bytes = [0; 5];
            opened.read(0, &mut bytes).expect("read");
            assert_eq!(&bytes, b"child");
            let ready = context
                .open_event(&ready.parse().expect("a handle"))
                .expect("opened");
            ready.signal().expect("signalled");
            event
                .wait_value_timeout(1, DEADLINE)
                .expect("the child signals");
            assert_eq!(wait_for(child), 0, "the child's exit status");
        }
        drop(busy);
    });
}

/// Returns the exit status of a child, which must end within ten seconds.
fn wait_for(child: libc::pid_t) -> libc::c_int {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let mut status = 0;
        // SAFETY: `status` is writable during the call.
        match unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } {
            0 if Instant::now() < end => std::thread::yield_now(),
            0 => {
                // SAFETY: the process is our own child, which was not waited for yet.
                unsafe { libc::kill(child, libc::SIGKILL) };
                panic!("the forked child hangs");
            }
            _ => return status,
        }
    }
}

/// The way to create a child.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Fork,
    /// A raw system call, which runs no fork handlers.
    Clone,
}

/// Creates a child that lives as long as this process's parent, and returns its number.
fn fork_child(way: Way) -> libc::pid_t {
    let child = match way {
        // SAFETY: the child only makes system calls, and has a copy of this stack.
        Way::Fork => unsafe { libc::fork() },
        // SAFETY: the child only makes system calls, and has a copy of this stack.
        Way::Clone => unsafe {
            libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as libc::pid_t
        },
    };
    assert_ne!(child, -1, "a child");
    if child == 0 {
        let mut byte = 0_u8;
        // SAFETY: the byte is writable.
        while unsafe { libc::read(libc::STDIN_FILENO, (&raw mut byte).cast(), 1) } > 0 {}
        // SAFETY: the call ends the child without running its parent's code.
        unsafe { libc::_exit(0) };
    }
    child
}

/// Kills a process, and checks that its child is still alive.
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
    // The child also has a copy of the importer's connection.
    assert_eq!(parent.hear().as_deref(), Some("fork"));
    parent.say(fork_child(way));
    parent.wait();
}

/// Kills an exporter whose child is still alive. Then a process connects that has not seen the
/// exporter before.
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
    // The importer noticed the hang-up, so it does not wait for a reply.
    let began = Instant::now();
    let again = importer.open_memory(&memory);
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    drop(again);
}

/// Returns the number of sockets that this process has open.
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
