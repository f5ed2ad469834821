//! Processes that connect to an exporter without a handle must only harm themselves.

#[allow(dead_code, reason = "each program uses a part of it")]
mod common;

use common::{DEADLINE, Directory, Parent, Process, alone, context, is};
use crosshandle::{ContextOptions, MemoryHandle};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

/// Maximum number of descriptors of the exporter. Most systems use this limit.
const LIMIT: u64 = 1024;

fn limit_descriptors(current: u64) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let current = Some(current);
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).expect("a limit");
}

/// Connects to the only socket of a directory, and sends nothing.
fn connect_silently(directory: &Directory) -> OwnedFd {
    let mut entries = fs::read_dir(directory.path()).expect("a directory");
    let socket = entries.next().expect("a socket").expect("a socket").path();
    let flags = SocketFlags::CLOEXEC;
    let stream = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let stream = stream.expect("a socket");
    let address = SocketAddrUnix::new(socket).expect("an address");
    connect(&stream, &address).expect("connected");
    stream
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("procfs").count()
}

#[test]
fn connections_that_say_nothing_are_few_and_short() {
    const TEST: &str = "connections_that_say_nothing_are_few_and_short";
    if is("exporter") {
        limit_descriptors(LIMIT);
        let context = context(ContextOptions::new());
        let memory = [(); 2].map(|()| context.allocate(4 << 20).expect("memory"));
        let mut parent = Parent::new();
        for memory in &memory {
            parent.say(memory.handle().expect("a handle"));
        }
        let before = descriptors();
        while parent.hear().is_some() {
            // These calls need descriptors of their own.
            let other = common::context(ContextOptions::new());
            let more = other.allocate(4 << 20).and_then(|memory| memory.handle());
            let opened = context.create_event().and_then(|event| event.handle());
            parent.say(format!(
                "{} {}",
                more.is_ok() && opened.is_ok(),
                descriptors().saturating_sub(before)
            ));
        }
        return;
    }
    alone(TEST, |directory| {
        limit_descriptors(4 * LIMIT);
        let mut exporter = Process::start(TEST, "exporter", directory);
        let handles = [(); 2].map(|()| exporter.hear());
        let handles = handles.map(|handle| handle.parse::<MemoryHandle>().expect("a handle"));
        let importer = directory.context();
        let mut state = || {
            exporter.say("look");
            let state = exporter.hear();
            let (works, more) = state.split_once(' ').expect("two words");
            (works == "true", more.parse::<usize>().expect("a number"))
        };
        let strangers: Vec<_> = (0..3 * LIMIT)
            .map(|_| connect_silently(directory))
            .collect();
        let opened = importer.open_memory(&handles[0]).expect("opened");
        let (works, more) = state();
        assert!(works, "the exporter is out of descriptors");
        assert!(more < 100, "{more} more descriptors");
        // The exporter closes idle connections even without new ones, and keeps attached importers.
        let end = Instant::now() + DEADLINE;
        while state().1 > 10 {
            assert!(Instant::now() < end, "they stay");
            thread::sleep(Duration::from_millis(50));
        }
        let again = importer.open_memory(&handles[1]).expect("still attached");
        drop((strangers, opened, again));
    });
}
