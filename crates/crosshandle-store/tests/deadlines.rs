//! Every public function with a timeout returns in time while a writer, a holder or a successor is
//! stopped.

#[allow(dead_code, reason = "each program uses a part of it")]
mod holding;

use crosshandle::Memory;
use crosshandle::holder::{self, ClaimOptions, HoldOptions, ServeOptions};
use crosshandle_store::{Error, LoadOptions, OpenOptions, Store};
use holding::common::{DEADLINE, Directory, Parent, Process, context, is};
use holding::{named, start, store};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use std::collections::BTreeSet;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

const HOLDER: &str = "holder of two";
const SUCCESSOR: &str = "successor";
const WRITER: &str = "writer";

/// Timeout of each call.
const TIMEOUT: Duration = Duration::from_millis(200);
/// Maximum delay of a call beyond its timeout, on a busy machine.
const LATENESS: Duration = Duration::from_secs(1);

fn role() -> bool {
    if is(HOLDER) {
        let mut parent = Parent::new();
        let program = std::env::current_exe().expect("this program");
        let test = std::env::args().nth(1).expect("the test's name");
        let arguments = [
            format!("CROSSHANDLE_TEST_ROLE={SUCCESSOR}").into(),
            program.into_os_string(),
            test.into(),
            "--exact".into(),
        ];
        let options = ServeOptions::new()
            .socket_dir(Directory::inherited().path())
            .successor("/usr/bin/env", arguments);
        holder::serve(options, || parent.say("ready")).expect("it held");
    } else if is(SUCCESSOR) {
        holder::serve_as_successor(ServeOptions::new(), || ()).expect("it succeeded");
    } else if is(WRITER) {
        let mut parent = Parent::new();
        let store = store(&Directory::inherited());
        let mut updater = store.updater("model").expect("held");
        let mut update = updater.begin(LATENESS).expect("nobody else writes");
        update.write_part("t", 0, &[2]).expect("inside");
        parent.say("begun");
        // The process is stopped, and then killed.
        parent.hear();
    } else {
        return false;
    }
    true
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stopped {
    Writer,
    Holder,
    Successor,
    HolderAndSuccessor,
}

use Stopped::{Holder as TheHolder, HolderAndSuccessor as Both, Successor, Writer};

/// A call with a timeout.
struct Row<'a> {
    name: &'static str,
    /// The processes that the call needs. If one of these is stopped, the call can end only by its
    /// timeout.
    needs: &'static [Stopped],
    call: Box<dyn FnOnce() -> Result<(), Error> + Send + 'a>,
}

fn row<'a, T, E: Into<Error>>(
    name: &'static str,
    needs: &'static [Stopped],
    call: impl FnOnce() -> Result<T, E> + Send + 'a,
) -> Row<'a> {
    Row {
        name,
        needs,
        call: Box::new(|| call().map(drop).map_err(Into::into)),
    }
}

/// Names that calls change. The first one is the model that is updated.
const NAMES: [&str; 8] = [
    "model", "again", "claimed", "ended", "revoked", "pinned", "removed", "written",
];

/// Returns all functions of the store and of the holder's client that have a timeout. The last two
/// rows change names that earlier rows need.
fn rows<'a>(store: &'a Store, memory: &'a Memory) -> Vec<Row<'a>> {
    const NEVER: &[Stopped] = &[Writer, TheHolder, Successor, Both];
    const HELD: &[Stopped] = &[TheHolder, Both];
    const HELD_AND_WRITTEN: &[Stopped] = &[Writer, TheHolder, Both];
    let asked = || store.holder().clone().timeout(TIMEOUT);
    let of = |name: &str| store.holder().open_to_write(name).expect("held");
    let (again, kept) = (of("again"), of("model"));
    let options = OpenOptions::new().sleepable();
    let model = || store.open_with("model", &options).expect("held");
    let (stable, next, before) = (model(), model(), model());
    let (mut refreshed, mut asleep) = (model(), model());
    let number = next.seen();
    asleep.sleep().expect("nothing uses it");
    let mut updater = store.updater("model").expect("held");
    let open = OpenOptions::new().patience(TIMEOUT);
    // The timeout must be long enough for the claim.
    let lease = asked().timeout(LATENESS);
    let lease = lease.claim("ended", &ClaimOptions::new());
    let lease = lease.expect("nobody writes");
    let claim = || ClaimOptions::new().wait(TIMEOUT);
    vec![
        row("open_with", HELD_AND_WRITTEN, move || {
            store.open_with("model", &open)
        }),
        row("updater_timeout", HELD, || {
            store.updater_timeout("written", TIMEOUT)
        }),
        row("claim", HELD, move || store.claim("claimed", &claim())),
        row("await_next", NEVER, move || {
            store.await_next(&before, TIMEOUT)
        }),
        row("stable", &[Writer], move || stable.stable(TIMEOUT)),
        row("next_update", NEVER, move || {
            next.next_update(number, TIMEOUT)
        }),
        row("refresh", &[Writer], move || refreshed.refresh(TIMEOUT)),
        row("wake_within", HELD_AND_WRITTEN, move || {
            asleep.wake_within(TIMEOUT)
        }),
        row("Holder::open", HELD, move || asked().open("model")),
        row("Holder::open_to_write", HELD, move || {
            asked().open_to_write("model")
        }),
        row("Holder::list", HELD, move || asked().list()),
        row("Holder::remove", HELD, move || asked().remove("removed")),
        row("Holder::pin", HELD, move || asked().pin("pinned", true)),
        row("Holder::status", HELD, move || asked().status()),
        row("Holder::hand_over", NEVER, move || {
            asked().hand_over("new", &[("memory", memory)], HoldOptions::new())
        }),
        row("Holder::hold_as", HELD, move || {
            asked().hold_as(&again, "other", HoldOptions::new())
        }),
        row("Holder::await_version", NEVER, move || {
            asked().await_version("model", 9, TIMEOUT)
        }),
        row("Holder::await_epoch", NEVER, move || {
            asked().await_epoch("model", 9, TIMEOUT)
        }),
        row("Holder::claim", HELD, move || {
            asked().claim("revoked", &claim())?.end()
        }),
        row("Holder::back_up", HELD, move || asked().back_up(&kept)),
        row("Lease::end", HELD, move || lease.end()),
        row("begin", &[Writer], move || updater.begin(TIMEOUT).map(drop)),
        row("Holder::stop", HELD, move || asked().stop()),
    ]
}

/// A holder and its successor. Dropping the value continues and ends both.
struct Pair {
    store: Store,
    stopped: Vec<Pid>,
    successor: OwnedFd,
    holder: Option<Process>,
}

impl Pair {
    fn signal(pid: Pid, signal: Signal) {
        // The process may have ended.
        let _ = kill_process(pid, signal);
    }

    fn stop(&mut self, pid: Pid) {
        Self::signal(pid, Signal::STOP);
        self.stopped.push(pid);
        // The process may still reply until its threads have stopped.
        let begin = Instant::now();
        let status = format!("/proc/{}/stat", pid.as_raw_nonzero());
        while !fs::read_to_string(&status).is_ok_and(|text| text.contains(") T ")) {
            assert!(begin.elapsed() < DEADLINE, "it does not stop");
            std::thread::yield_now();
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for pid in &self.stopped {
            Self::signal(*pid, Signal::CONT);
        }
        // A holder with a pinned name does not end.
        let _ = self.store.holder().pin("pinned", false);
        let _ = self.store.holder().stop();
        let wait = Timespec::try_from(DEADLINE).expect("a short time");
        if poll(
            &mut [PollFd::new(&self.successor, PollFlags::IN)],
            Some(&wait),
        ) != Ok(1)
        {
            let _ = pidfd_send_signal(&self.successor, Signal::KILL);
        }
        drop(self.holder.take());
    }
}

/// Waits for a successor that has all descriptors.
fn successor_of(store: &Store) -> u32 {
    let end = Instant::now() + DEADLINE;
    loop {
        let status = store.holder().status().expect("it answers");
        if let Some(successor) = status.successor.filter(|_| status.is_safe) {
            return successor;
        }
        assert!(Instant::now() < end, "no successor comes");
        std::thread::yield_now();
    }
}

/// Measures every row while a process is stopped.
fn measure(test: &str, stopped: Stopped) {
    let directory = Directory::new();
    let holder = start(test, HOLDER, &directory, "ready");
    let store = store(&directory);
    let status = store.holder().status().expect("it answers");
    let successor = Pid::from_raw(successor_of(&store).cast_signed()).expect("a process");
    let mut pair = Pair {
        store: store.clone(),
        stopped: Vec::new(),
        successor: pidfd_open(successor, PidfdFlags::empty()).expect("it runs"),
        holder: Some(holder),
    };
    for name in NAMES {
        let loaded = store.load_tensors("host", [named("t", &[1])], &LoadOptions::new());
        let published = loaded.expect("loaded").publish(name, HoldOptions::new());
        assert!(published.expect("published").is_safe, "{name}");
    }
    let memory = context(directory.options().pooling(false)).allocate(4096);
    let memory = memory.expect("memory");
    let holder = Pid::from_raw(status.pid.cast_signed()).expect("a process");
    let mut rows = rows(&store, &memory);
    let mut writer = None;
    match stopped {
        Writer => {
            let process = writer.insert(start(test, WRITER, &directory, "begun"));
            process.stop();
        }
        TheHolder => pair.stop(holder),
        Successor => pair.stop(successor),
        Both => {
            pair.stop(successor);
            pair.stop(holder);
        }
    }
    let last = rows.split_off(rows.len() - 2);
    let check = |row: Row<'_>| {
        let begin = Instant::now();
        let result = (row.call)();
        let took = begin.elapsed();
        let name = row.name;
        assert!(
            took <= TIMEOUT + LATENESS,
            "{name} next to a stopped {stopped:?}: {took:?}, {result:?}"
        );
        if row.needs.contains(&stopped) && !(name == "Holder::hand_over" && stopped == Writer) {
            let error = result.expect_err(name);
            assert!(error.is_timeout(), "{name} next to {stopped:?}: {error}");
        }
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = rows
            .into_iter()
            .map(|row| scope.spawn(|| check(row)))
            .collect();
        for one in all {
            one.join().expect("within its time");
        }
    });
    last.into_iter().for_each(check);
}

#[test]
fn no_call_waits_longer_for_a_stopped_writer() {
    if !role() {
        measure("no_call_waits_longer_for_a_stopped_writer", Writer);
    }
}

#[test]
fn no_call_waits_longer_for_a_stopped_holder() {
    if !role() {
        measure("no_call_waits_longer_for_a_stopped_holder", TheHolder);
    }
}

#[test]
fn no_call_waits_longer_for_a_stopped_successor() {
    if !role() {
        measure("no_call_waits_longer_for_a_stopped_successor", Successor);
    }
}

#[test]
fn no_call_waits_longer_for_both() {
    if !role() {
        measure("no_call_waits_longer_for_both", Both);
    }
}

/// Collects the public functions with a timeout argument in the files of a directory.
fn with_timeouts(directory: &Path, found: &mut BTreeSet<String>) {
    const TIMEOUTS: [&str; 3] = ["timeout: Duration", "&OpenOptions", "&ClaimOptions"];
    for entry in fs::read_dir(directory).expect("the sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            with_timeouts(&path, found);
            continue;
        }
        let text = fs::read_to_string(&path).expect("a source");
        for function in text.split("\n    pub fn ").skip(1) {
            let (name, rest) = function.split_once('(').expect("its arguments");
            let arguments = rest.split_once(')').expect("their end").0;
            if TIMEOUTS.iter().any(|timeout| arguments.contains(timeout)) {
                found.insert(name.to_owned());
            }
        }
    }
}

#[test]
fn every_function_with_a_timeout_is_measured() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = BTreeSet::new();
    with_timeouts(&root.join("src"), &mut found);
    let mut of_holder = BTreeSet::new();
    with_timeouts(&root.join("../crosshandle/src/api/holder"), &mut of_holder);
    // This function sets the timeout of all calls.
    of_holder.remove("timeout");
    found.extend(of_holder.iter().map(|name| format!("Holder::{name}")));
    let own = fs::read_to_string(root.join("tests/deadlines.rs")).expect("this file");
    for name in found {
        assert!(
            own.contains(&format!("row(\"{name}\"")),
            "{name} has a timeout, and no row"
        );
    }
}
