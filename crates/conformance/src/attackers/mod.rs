//! Attackers: programs that act like hostile processes on the same machine, until they are told to
//! stop.
//!
//! Each attacker runs in its own process, `conformance attack NAME DIRECTORY [HANDLE…]`, at the
//! same time as processes that it must not disturb. It prints `begun` on standard output after its
//! first attempt. It ends when its standard input is closed, and then prints the number of its
//! attempts. Some attackers only get the socket directory. Others need handles, and do what only
//! processes with handles can do.
//!
//! Attackers use the protocol only through [`raw`](crate::raw).

mod bare_exchange;
mod connections;
pub(crate) mod descriptors;
mod figures;
mod forgery;
mod fuse;
mod holder;
mod link;
mod locks;
mod messages;
mod pair;
mod running;
mod sleepers;
mod socket;

pub use figures::figures;
pub use holder::{Siege, siege};
pub use link::{LinkSiege, siege as link_siege};

use holder::HONEST;

use crate::failure::Failure;
use crosshandle::{Context, ContextOptions, Device, Event, EventHandle, Memory, MemoryHandle};
use std::fmt;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// An attack on the processes that export in a directory.
#[derive(Debug)]
pub struct Attacker {
    /// Name that selects the attacker on the command line.
    pub name: &'static str,
    /// Whether the attacker needs handles.
    pub needs_handles: bool,
    /// Attacks until it is told to stop. Calls `Stop::begun` after the first attempt. Fails if this
    /// machine does not permit the attack.
    run: Attack,
}

type Attack = fn(&Victim, &Stop) -> Result<Report, Failure>;

impl Attacker {
    const fn new(name: &'static str, run: Attack) -> Self {
        Self {
            name,
            needs_handles: false,
            run,
        }
    }

    const fn with_handles(name: &'static str, run: Attack) -> Self {
        Self {
            needs_handles: true,
            ..Self::new(name, run)
        }
    }
}

/// Returns all attackers.
pub fn attackers() -> &'static [Attacker] {
    const ALL: &[Attacker] = &[
        Attacker::new("idle-connections", connections::idle_connections),
        Attacker::new("connection-flood", connections::connection_flood),
        Attacker::new("garbage", messages::garbage),
        Attacker::new("slow-readers", messages::slow_readers),
        Attacker::new("nasty-descriptors", descriptors::nasty_descriptors),
        Attacker::with_handles("nasty-importer", descriptors::nasty_importer),
        Attacker::with_handles("forged-words", forgery::forged_words),
        Attacker::with_handles("record-locks", locks::record_locks),
        Attacker::with_handles("requeue", sleepers::requeue),
        Attacker::with_handles("priority-locks", sleepers::priority_locks),
    ];
    ALL
}

/// What an attacker knows about its victims.
#[derive(Default)]
pub struct Victim {
    /// The victims' socket directory.
    pub directory: PathBuf,
    /// Memory handles for the attacker.
    pub memory: Vec<MemoryHandle>,
    /// Event handles for the attacker.
    pub events: Vec<EventHandle>,
}

/// The objects of the attacker's handles, opened in the regular way.
struct Opened {
    _context: Context,
    _memory: Vec<Memory>,
    events: Vec<Event>,
}

impl Victim {
    /// Returns the bytes of the first handle.
    fn handle(&self) -> Result<Vec<u8>, Failure> {
        let events = self.events.iter().map(EventHandle::as_ref);
        let mut all = events.chain(self.memory.iter().map(MemoryHandle::as_ref));
        let first: Option<&[u8]> = all.next();
        first.map(<[u8]>::to_vec).ok_or(Failure::new("no handle"))
    }

    /// Opens all objects on the device of the memory.
    fn open(&self) -> Result<Opened, Failure> {
        // Events have no device.
        let uuid = self.memory.first().map(MemoryHandle::device);
        let device = Device::all()
            .into_iter()
            .find(|device| uuid.is_none_or(|uuid| device.info().uuid == uuid))
            .ok_or(Failure::new("the device of the handle is not here"))?;
        let options = ContextOptions::new().socket_dir(&self.directory);
        let context = Context::with_options(&device, options)?;
        let memory = self.memory.iter().map(|handle| context.open_memory(handle));
        let events = self.events.iter().map(|handle| context.open_event(handle));
        Ok(Opened {
            _memory: memory.collect::<Result<_, _>>()?,
            events: events.collect::<Result<_, _>>()?,
            _context: context,
        })
    }
}

/// Counts of an attacker's attempts.
#[derive(Clone, Copy, Default, Debug)]
pub struct Report {
    /// Number of attempts.
    pub attempts: u64,
    /// Number of attempts that neither the system nor the victims prevented.
    pub landed: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} landed", self.landed, self.attempts)
    }
}

#[derive(Default)]
struct Told {
    begun: bool,
    stopped: bool,
}

/// Tells an attacker to stop, and tells other threads that the attacker has begun. All clones share
/// this state.
#[derive(Clone, Default)]
pub struct Stop(Arc<(Mutex<Told>, Condvar)>);

impl Stop {
    fn told(&self) -> MutexGuard<'_, Told> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, change: impl FnOnce(&mut Told)) {
        change(&mut self.told());
        self.0.1.notify_all();
    }

    fn wait(&self, limit: Duration, pending: impl Fn(&Told) -> bool) -> bool {
        let (_told, late) = self
            .0
            .1
            .wait_timeout_while(self.told(), limit, |told| pending(told))
            .unwrap_or_else(PoisonError::into_inner);
        !late.timed_out()
    }

    /// Tells the attacker to stop.
    pub fn stop(&self) {
        self.tell(|told| told.stopped = true);
    }

    /// Returns whether the attacker must stop.
    pub fn is_stopped(&self) -> bool {
        self.told().stopped
    }

    /// Waits until the attacker must stop, but not longer than `limit`. Returns whether the
    /// attacker must stop.
    fn pause(&self, limit: Duration) -> bool {
        self.wait(limit, |told| !told.stopped)
    }

    /// Reports that the first attempt was made.
    fn begun(&self) {
        self.tell(|told| told.begun = true);
    }

    /// Waits until the attacker has begun, but not longer than `limit`. Returns whether it has
    /// begun.
    pub fn wait_until_begun(&self, limit: Duration) -> bool {
        self.wait(limit, |told| !told.begun)
    }
}

/// Runs `attack NAME DIRECTORY [HANDLE…]` until standard input is closed, and returns the exit
/// code. The code is 1 if the attack is not possible, and 2 for an invalid command line.
pub fn serve(mut words: impl Iterator<Item = String>) -> ExitCode {
    let name = words.next().unwrap_or_default();
    if name == fuse::DAEMON {
        fuse::serve();
        return ExitCode::SUCCESS;
    }
    if name == bare_exchange::SERVER {
        return bare_exchange::serve(words.next().unwrap_or_default().as_ref());
    }
    if name == HONEST {
        return holder::serve_honest(words.next().unwrap_or_default().into());
    }
    if name == link::SERVER {
        return link::serve_server(words.next().unwrap_or_default().as_ref());
    }
    if name == link::CLIENT {
        return link::serve_client(words);
    }
    let all = attackers().iter().chain(holder::attackers());
    let found = all.clone().find(|attacker| attacker.name == name);
    let (Some(attacker), Some(directory)) = (found, words.next()) else {
        let names: Vec<_> = all.map(|attacker| attacker.name).collect();
        eprintln!("usage: conformance attack NAME DIRECTORY [HANDLE…]");
        eprintln!("names: {}", names.join(", "));
        return ExitCode::from(2);
    };
    let mut victim = Victim {
        directory: directory.into(),
        ..Victim::default()
    };
    for word in words {
        if let Ok(handle) = word.parse() {
            victim.memory.push(handle);
        } else if let Ok(handle) = word.parse() {
            victim.events.push(handle);
        } else {
            eprintln!("no handle of memory or of an event: {word}");
            return ExitCode::from(2);
        }
    }
    if attacker.needs_handles && victim.memory.is_empty() && victim.events.is_empty() {
        eprintln!("{name} needs handles");
        return ExitCode::from(2);
    }
    let stop = Stop::default();
    let stopper = stop.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        stopper.stop();
    });
    let teller = stop.clone();
    std::thread::spawn(move || {
        teller.wait_until_begun(Duration::MAX);
        say("begun");
    });
    match (attacker.run)(&victim, &stop) {
        Ok(report) => {
            say(&report.to_string());
            ExitCode::SUCCESS
        }
        Err(failure) => {
            say(&format!("not possible here: {failure}"));
            ExitCode::FAILURE
        }
    }
}

/// Prints a line. Ignores errors, because the reader may have ended.
fn say(line: &str) {
    let mut output = std::io::stdout().lock();
    let _ = writeln!(output, "{line}").and_then(|()| output.flush());
}
