//! Memory that outlives its creator, its holder and the successor.
//!
//! The tests use host memory. Most of `names`, `claims` and `deaths` can also use memory of the
//! device that `CROSSHANDLE_HOLDER_DEVICE` names.

#[allow(dead_code, reason = "each program uses a part of it")]
#[path = "../common/mod.rs"]
mod common;

mod claims;
mod deaths;
mod floods;
mod names;
mod place;
mod recovery;
mod roles;
mod safety;
mod simulated;
mod strangers;

use common::{DEADLINE, Directory, Parent, Process, is};
use crosshandle::holder::{self, HeldName, Holder, ServeOptions, Status};
use crosshandle::{Context, Memory, MemoryHandle, PeerPolicy};
use place::Place;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};

const HOLDER: &str = "holder";
const HOLDER_OF_USERS: &str = "holder-of-users";
const SUCCESSOR: &str = "successor";
const SUCCESSOR_OF_USERS: &str = "successor-of-users";
const FOREIGN_MAKER: &str = "foreign-maker";
const FLOODER: &str = "flooder";
const MAKER: &str = "maker";
const READER: &str = "reader";
const WRITER: &str = "writer";

/// Another user, whom the holders of [`HOLDER_OF_USERS`] admit.
const STRANGER: u32 = 61_234;

/// Runs the role of a second process, if this is one. All tests share these roles.
fn role() -> bool {
    if is(HOLDER) || is(HOLDER_OF_USERS) {
        let has_users = is(HOLDER_OF_USERS);
        let directory = Directory::inherited();
        let mut parent = Parent::new();
        let program = std::env::current_exe().expect("this program");
        let test = std::env::args().nth(1).expect("the test's name");
        let successor = match has_users {
            true => SUCCESSOR_OF_USERS,
            false => SUCCESSOR,
        };
        let arguments = [
            format!("CROSSHANDLE_TEST_ROLE={successor}").into(),
            program.into_os_string(),
            test.into(),
            "--exact".into(),
            "--include-ignored".into(),
            "--nocapture".into(),
            "--test-threads=1".into(),
        ];
        let options = options_for(has_users)
            .socket_dir(directory.path())
            .successor("/usr/bin/env", arguments);
        holder::serve(options, || parent.say("ready")).expect("it held");
    } else if is(SUCCESSOR) || is(SUCCESSOR_OF_USERS) {
        let program = std::env::current_exe().expect("this program");
        let arguments = std::env::args_os().skip(1);
        let options = options_for(is(SUCCESSOR_OF_USERS)).successor(program, arguments);
        holder::serve_as_successor(options, || ()).expect("it succeeded");
    } else if is(MAKER) {
        roles::make();
    } else if is(FOREIGN_MAKER) {
        floods::become_stranger();
        roles::make();
    } else if is(FLOODER) {
        floods::flood();
    } else if is(READER) {
        roles::read();
    } else if is(WRITER) {
        roles::write();
    } else {
        return false;
    }
    true
}

fn options_for(has_users: bool) -> ServeOptions {
    match has_users {
        true => ServeOptions::new().peers(PeerPolicy::Users(vec![STRANGER])),
        false => ServeOptions::new(),
    }
}

/// Returns bytes that depend on a number.
fn contents(seed: u64, len: usize) -> Vec<u8> {
    let word = |index: u64| {
        (seed ^ index)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .rotate_left(29)
    };
    let words = (0..len as u64 / 8).map(word);
    words.flat_map(u64::to_le_bytes).collect()
}

const LEN: usize = 64 << 10;

/// Creates a place whose allocations have their own segments, so that each of them can be handed
/// over.
fn alone(directory: &Directory) -> Place {
    Place::new(directory.options().pooling(false))
}

fn place(directory: &Directory) -> Place {
    Place::new(directory.options())
}

fn make_memory(place: &Place, seed: u64) -> Memory {
    let memory = place.allocate(LEN).expect("memory");
    place.write(&memory, 0, &contents(seed, LEN));
    memory
}

fn holder_of(directory: &Directory) -> Holder {
    Holder::new().socket_dir(directory.path()).timeout(DEADLINE)
}

fn check(place: &Place, memory: &Memory, seed: u64) {
    assert!(
        place.read(memory, 0, LEN) == contents(seed, LEN),
        "the bytes of {seed} are others"
    );
}

fn open_held(context: &Context, held: &HeldName) -> crosshandle::Result<Memory> {
    let handle = held.parts[0].read_only.expect("a handle for reading");
    context.open_memory_read_only(&handle)
}

/// Opens a held name, and checks its bytes.
fn check_held(place: &Place, held: &HeldName, seed: u64) {
    check(place, &open_held(place, held).expect("opened"), seed);
}

/// Opens a handle in a new context, and checks its bytes.
fn check_handle(directory: &Directory, handle: &MemoryHandle, seed: u64) {
    let place = place(directory);
    check(&place, &place.open_memory(handle).expect("opened"), seed);
}

/// Returns the number in an environment variable, if it is set. Such variables limit the rounds or
/// the duration of a test.
fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().expect("a number"))
}

/// A holder and its successor, which end with the test.
struct Pair {
    first: Process,
    holder: Holder,
}

impl Pair {
    fn start(test: &str, directory: &Directory) -> Self {
        Self::start_by(&[], test, directory)
    }

    fn start_by(by: &[&str], test: &str, directory: &Directory) -> Self {
        Self::of(Process::start_by(by, test, HOLDER, directory), directory)
    }

    /// Returns the pair whose first holder is this process.
    fn of(mut first: Process, directory: &Directory) -> Self {
        assert_eq!(first.hear(), "ready");
        let holder = holder_of(directory);
        let pair = Self { first, holder };
        pair.await_safe();
        pair
    }

    /// Waits until a successor has a copy of everything.
    fn await_safe(&self) -> Status {
        let begin = Instant::now();
        loop {
            let status = self.holder.status().expect("a holder");
            if status.is_safe {
                return status;
            }
            assert!(begin.elapsed() < DEADLINE, "no successor: {status:?}");
            std::thread::yield_now();
        }
    }

    fn kill(pid: u32) {
        let pid = Pid::from_raw(pid.try_into().expect("a process")).expect("a process");
        match kill_process(pid, Signal::KILL) {
            // The process was a successor that was killed earlier. Its holder had not noticed that
            // when it reported the number.
            Ok(()) | Err(Errno::SRCH) => {}
            Err(errno) => panic!("killing {pid:?}: {errno}"),
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for name in self.holder.list().unwrap_or_default() {
            let _ = self.holder.pin(&name.name, false);
        }
        let _ = self.holder.clone().token("admin").stop();
    }
}

/// Pseudo-random numbers, which are the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    /// Spins for a random time, so that other processes may reach any point.
    fn moment(&mut self) {
        let end = Instant::now() + Duration::from_micros(self.below(4_000));
        while Instant::now() < end {
            std::thread::yield_now();
        }
    }
}

/// Processes of a role that are started ahead of time, because creating a GPU context takes a
/// while.
struct Ahead<'a> {
    start: Box<dyn Fn() -> Process + 'a>,
    waiting: std::collections::VecDeque<Process>,
    /// Number of processes that are started at a time when none is left, before any measurement. If
    /// it is 0, one is started for each that is taken.
    batch: usize,
}

impl<'a> Ahead<'a> {
    fn of(test: &'a str, role: &'a str, directory: &'a Directory) -> Self {
        let start = move || Process::start(test, role, directory);
        let ahead = if place::is_host() { 0 } else { 5 };
        Self {
            waiting: (0..ahead).map(|_| start()).collect(),
            start: Box::new(start),
            batch: 0,
        }
    }

    /// Starts processes in batches on a GPU. All processes of a batch have their contexts before
    /// the first one is taken. The driver creates contexts one after the other, and ends processes
    /// later while it does so.
    fn in_batches_of(test: &'a str, role: &'a str, directory: &'a Directory) -> Self {
        let batch = if place::is_host() { 0 } else { 16 };
        Self {
            batch,
            waiting: std::collections::VecDeque::new(),
            ..Self::of(test, role, directory)
        }
    }

    fn take(&mut self) -> Process {
        if self.batch > 0 {
            if self.waiting.is_empty() {
                self.waiting = (0..self.batch).map(|_| (self.start)()).collect();
                for process in &mut self.waiting {
                    process.say("ready?");
                    assert_eq!(process.hear(), "dropped", "a writer with nothing to drop");
                }
            }
            return self.waiting.pop_front().expect("some were started");
        }
        self.waiting.push_back((self.start)());
        self.waiting.pop_front().expect("one was added")
    }
}
