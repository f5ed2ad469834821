//! Deaths on a GPU: its memory comes back, its streams go on, and nothing grows.
//!
//! `conformance gpu-deaths` kills processes that have memory of a device open or share theirs, first
//! with much memory, one after the other, and measures after what time the device's free memory is back.
//! Then it kills many, several at a time, in four ways ([`Way`]), and looks after each batch whether
//! this process's descriptors, threads, resident memory and the device's free memory are as before.

use crate::failure::Failure;
use crate::harness::{Devices, Harness, deadline};
use crate::{Kernels, Peer, Transfer, Usage};
use crosshandle::{Command, Context, Event, EventHandle, Memory, MemoryHandle, Queue};
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const USAGE: &str = "usage: conformance gpu-deaths [--device D] [--peer-device D] [--large GIB] \
     [--large-cycles N] [--small MIB] [--cycles N] [--seconds S] [--jobs N]";

/// The time within which a dead process's memory is back. The driver itself takes 70 to 80 ms.
const PROMISED: Duration = Duration::from_millis(150);
/// Free memory that may be missing: drivers round, and keep some.
const SLACK: u64 = 32 << 20;
/// What may come and go without being lost: idle threads, and the descriptors of theirs.
const COMINGS_AND_GOINGS: usize = 4;
/// KiB by which resident memory may differ: allocators keep some of what was freed.
const RESIDENT_SLACK: usize = 32 << 10;
/// Batches before the first measurement of what may grow.
const WARM_UP: usize = 3;
/// Time between two looks at the free memory.
const LOOK: Duration = Duration::from_millis(1);
/// Kernels that a victim submits before it is killed: they take longer than the kill.
const LAUNCHES: usize = 100;

/// The options of the command line.
struct Options {
    devices: Devices,
    large: usize,
    large_cycles: usize,
    small: usize,
    cycles: usize,
    limit: Duration,
    jobs: usize,
}

impl Options {
    fn read(mut words: impl Iterator<Item = String>) -> Option<Self> {
        let (mut own, mut peer) = ("cuda:0".to_owned(), None);
        let [mut large, mut large_cycles, mut small] = [10, 5, 64];
        let [mut cycles, mut seconds, mut jobs] = [1000, 150, 8];
        while let Some(word) = words.next() {
            let value = words.next()?;
            let number = match word.as_str() {
                "--device" => {
                    own = value;
                    continue;
                }
                "--peer-device" => {
                    peer = Some(value);
                    continue;
                }
                "--large" => &mut large,
                "--large-cycles" => &mut large_cycles,
                "--small" => &mut small,
                "--cycles" => &mut cycles,
                "--seconds" => &mut seconds,
                "--jobs" => &mut jobs,
                _ => return None,
            };
            *number = value.parse().ok()?;
        }
        let peer = peer.unwrap_or_else(|| own.clone());
        Some(Self {
            devices: Devices { own, peer },
            large: large << 30,
            large_cycles,
            small: small << 20,
            cycles,
            limit: Duration::from_secs(seconds as u64),
            jobs: jobs.max(1),
        })
    }
}

/// Runs the command, with these options and this program as peer.
pub fn run(words: impl Iterator<Item = String>, peer: &Path) -> ExitCode {
    let Some(options) = Options::read(words) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let (mut passed, mut failed) = (0, 0);
    let mut show = |name: &str, result: Result<String, Failure>| match result {
        Ok(text) => {
            passed += 1;
            println!("ok           {name:<32} {text}");
        }
        Err(failure) => {
            failed += 1;
            println!("failed       {name:<32} {failure}");
        }
    };
    match Harness::new(&options.devices, peer) {
        Err(failure) => show("start", Err(failure)),
        Ok(harness) => {
            show(
                "a killed importer of much",
                large_importers(&harness, &options),
            );
            show(
                "a killed exporter of much",
                large_exporters(&harness, &options),
            );
            show("many deaths", many(&harness, &options));
        }
    }
    let Devices { own, peer } = &options.devices;
    println!("deaths on {own} with {peer}: {passed} passed, 0 skipped, {failed} failed");
    ExitCode::from(u8::from(failed > 0))
}

/// Free memory of a device, and how it was before. Not of the host, where everybody else takes some.
struct Free<'a> {
    harness: &'a Harness,
    before: Option<u64>,
}

impl<'a> Free<'a> {
    fn of(harness: &'a Harness) -> Self {
        Self {
            harness,
            before: match harness.is_host() {
                true => None,
                false => harness.peer_device().free_memory(),
            },
        }
    }

    fn missing(&self) -> u64 {
        let now = self.harness.peer_device().free_memory();
        self.before.unwrap_or(0).saturating_sub(now.unwrap_or(0))
    }

    /// Waits until as much is free as before, and returns the moment.
    fn is_back(&self) -> Result<Instant, Failure> {
        let end = Instant::now() + deadline();
        loop {
            let missing = self.missing();
            let now = Instant::now();
            if missing <= SLACK {
                return Ok(now);
            }
            if now >= end {
                let mib = missing >> 20;
                return Err(Failure::new(format!("{mib} MiB did not come back")));
            }
            thread::sleep(LOOK);
        }
    }
}

/// Times, as a summary of them.
struct Times(Vec<Duration>);

impl Times {
    fn slowest(&self) -> Duration {
        self.0.iter().max().copied().unwrap_or_default()
    }

    /// Fails if one is longer than promised.
    fn check(self, what: &str) -> Result<String, Failure> {
        let text = format!("{what} {self}");
        match self.slowest() <= PROMISED {
            true => Ok(text),
            false => Err(Failure::new(format!(
                "{text}, and {PROMISED:?} are promised"
            ))),
        }
    }
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let Some(last) = sorted.len().checked_sub(1) else {
            return f.write_str("never");
        };
        let [p50, p99] = [50, 99].map(|percent| sorted[last * percent / 100]);
        let slowest = sorted[last];
        write!(
            f,
            "p50 {p50:.1?}, p99 {p99:.1?}, max {slowest:.1?} of {}",
            last + 1
        )
    }
}

fn word(answer: crate::Reply) -> Result<String, Failure> {
    Ok(answer?.remove(0))
}

/// An importer is killed that holds what its exporter has freed.
fn large_importers(harness: &Harness, options: &Options) -> Result<String, Failure> {
    // Without a pool, which would keep some of what comes back.
    let plain = harness.options().pooling(false);
    let context = Context::with_options(harness.device(), plain)?;
    let transfer = Transfer::new(&context)?;
    drop(context.allocate(options.small)?);
    let mut times = Vec::new();
    for _ in 0..options.large_cycles {
        let free = Free::of(harness);
        let memory = context.allocate(options.large)?;
        transfer.write(&memory, options.large - 4, b"here")?;
        let importer = harness.peer()?;
        importer.ask(format!("open-memory m {}", memory.handle()?))?;
        drop(memory);
        if free.before.is_some() && free.missing() < options.large as u64 {
            return Err(Failure::new("it is free though an importer has it open"));
        }
        let killed = importer.kill();
        times.push(free.is_back()?.saturating_duration_since(killed));
    }
    Times(times).check(&format!("{} GiB back after", options.large >> 30))
}

/// An exporter is killed, and then its importer closes what it had open.
fn large_exporters(harness: &Harness, options: &Options) -> Result<String, Failure> {
    let context = harness.context()?;
    let (mut since_close, mut since_death) = (Vec::new(), Vec::new());
    for _ in 0..options.large_cycles {
        let free = Free::of(harness);
        let exporter = harness.peer()?;
        exporter.ask(format!("allocate m {}", options.large))?;
        let handle: MemoryHandle = word(exporter.ask("memory-handle m"))?.parse()?;
        let event: EventHandle = {
            exporter.ask("event e")?;
            word(exporter.ask("event-handle e"))?.parse()?
        };
        let memory = context.open_memory(&handle)?;
        let event = context.open_event(&event)?;
        let killed = thread::scope(|scope| {
            let told = scope.spawn(|| event.wait_value_timeout(1, deadline()));
            let killed = exporter.kill();
            match told.join().expect("no panic") {
                Err(error) if error.is_peer_dead() => Ok(killed),
                other => Err(Failure::new(format!("a waiter got {other:?}"))),
            }
        })?;
        if free.before.is_some() && free.missing() < options.large as u64 {
            return Err(Failure::new("it is free though an importer has it open"));
        }
        let closed = Instant::now();
        drop((memory, event));
        let back = free.is_back()?;
        since_close.push(back.saturating_duration_since(closed));
        since_death.push(back.saturating_duration_since(killed));
    }
    let death = Times(since_death);
    let close = Times(since_close).check("back after the last close")?;
    Ok(format!("{close}; after the kill {death}"))
}

/// The way of a victim.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// An importer that does nothing.
    Idle,
    /// An importer whose signal this process's stream waits for.
    Awaited,
    /// An importer whose kernels write to our memory.
    Writing,
    /// An exporter whose signal this process's stream waits for.
    Exporter,
}

const WAYS: [Way; 4] = [Way::Idle, Way::Awaited, Way::Writing, Way::Exporter];

/// What the survivor has for all of its victims.
struct Survivor<'a> {
    harness: &'a Harness,
    context: Context,
    kernels: Option<Kernels>,
    small: usize,
}

/// Bytes of a resource that may grow.
struct Held {
    usage: Usage,
    threads: usize,
}

impl Held {
    fn now() -> Result<Self, Failure> {
        Ok(Self {
            usage: Usage::of_self()?,
            threads: fs::read_dir("/proc/self/task")?.count(),
        })
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Usage {
            descriptors,
            mappings,
            resident,
        } = self.usage;
        let threads = self.threads;
        write!(
            f,
            "{descriptors} descriptors, {mappings} mappings, {threads} threads, {} MiB",
            resident >> 10
        )
    }
}

/// Kills many processes, and checks that nothing grows.
fn many(harness: &Harness, options: &Options) -> Result<String, Failure> {
    let context = harness.context()?;
    let kernels = match Kernels::run_on(harness.device()) && Kernels::run_on(harness.peer_device())
    {
        true => Some(Kernels::load(&context)?),
        false => None,
    };
    let survivor = Survivor {
        harness,
        context,
        kernels,
        small: options.small,
    };
    let end = Instant::now() + options.limit;
    let (mut batches, mut deaths) = (0, 0);
    let mut first = None;
    let (mut told, mut back) = (Vec::new(), Vec::new());
    while deaths < options.cycles && Instant::now() < end {
        if batches == WARM_UP {
            survivor.context.trim();
            first = Some((Held::now()?, Free::of(harness)));
        }
        let next = AtomicUsize::new(deaths);
        let batch = options.jobs.min(options.cycles - deaths);
        let results = thread::scope(|scope| {
            let one = || {
                let way = WAYS[next.fetch_add(1, Ordering::Relaxed) % WAYS.len()];
                let one = survivor.kill_one(way);
                one.map_err(|failure| Failure::new(format!("{way:?}: {failure}")))
            };
            let victims = Vec::from_iter((0..batch).map(|_| scope.spawn(one)));
            let ended = victims.into_iter();
            Vec::from_iter(ended.map(|victim| victim.join().expect("no panic")))
        });
        for result in results {
            told.extend(result?);
        }
        deaths += batch;
        batches += 1;
        survivor.context.trim();
        let all_dead = Instant::now();
        if let Some((_, free)) = &first {
            back.push(free.is_back()?.saturating_duration_since(all_dead));
        }
    }
    let Some((before, _)) = first else {
        return Err(Failure::new(format!(
            "only {deaths} deaths in {:?}",
            options.limit
        )));
    };
    let now = Held::now()?;
    let report = format!(
        "{deaths} deaths; waiters told p50/p99/max after the kill: {}; free memory back after the \
         batch: {}; before {before}; after {now}",
        Times(told),
        Times(back)
    );
    let has_grown = now.usage.descriptors > before.usage.descriptors + COMINGS_AND_GOINGS
        || now.threads > before.threads + COMINGS_AND_GOINGS
        || now.usage.resident > before.usage.resident + RESIDENT_SLACK;
    match has_grown {
        false => Ok(report),
        true => Err(Failure::new(format!("it has grown: {report}"))),
    }
}

impl Survivor<'_> {
    /// Kills one victim, and returns after what time this process's waiter knew.
    fn kill_one(&self, way: Way) -> Result<Option<Duration>, Failure> {
        let queue = self.context.create_queue()?;
        let after = self.context.create_event()?;
        let victim = self.harness.peer()?;
        let (memory, event) = match way {
            Way::Exporter => self.open_from(&victim)?,
            _ => self.give_to(&victim)?,
        };
        match (way, &self.kernels) {
            (Way::Idle, _) => {}
            (Way::Writing, Some(_)) => {
                victim.ask("load-kernels k")?;
                victim.ask("queue q")?;
                for number in 1..LAUNCHES {
                    victim.ask(format!("submit q fill-words k m {number}"))?;
                }
                victim.ask("submit q fill-words k m 0 signal=e")?;
            }
            _ => {
                victim.ask("event gate")?;
                victim.ask("queue q")?;
                victim.ask("submit q barrier after-value=gate:1 signal=e")?;
                queue.submit(Command::barrier().after(&event))?;
            }
        }
        let told = match way {
            Way::Idle => {
                victim.kill();
                None
            }
            way => Some(wait_beyond(&victim, &event, matches!(way, Way::Writing))?),
        };
        self.go_on(&queue, &after, &memory)?;
        Ok(told)
    }

    fn give_to(&self, victim: &Peer) -> Result<(Memory, Event), Failure> {
        let memory = self.context.allocate(self.small)?;
        let event = self.context.create_event()?;
        victim.ask(format!("open-memory m {}", memory.handle()?))?;
        victim.ask(format!("open-event e {}", event.handle()?))?;
        Ok((memory, event))
    }

    fn open_from(&self, victim: &Peer) -> Result<(Memory, Event), Failure> {
        victim.ask(format!("allocate m {}", self.small))?;
        victim.ask("event e")?;
        let memory: MemoryHandle = word(victim.ask("memory-handle m"))?.parse()?;
        let event: EventHandle = word(victim.ask("event-handle e"))?.parse()?;
        Ok((
            self.context.open_memory(&memory)?,
            self.context.open_event(&event)?,
        ))
    }

    /// Checks that the stream goes on, and that what it writes stays: no kernel of the dead writes
    /// any more.
    fn go_on(&self, queue: &Queue, after: &Event, memory: &Memory) -> Result<(), Failure> {
        // What waited for the victim's signal may have failed; it must have ended.
        match queue.finish_timeout(deadline()) {
            Err(error) if !error.is_peer_dead() => return Err(error.into()),
            _ => {}
        }
        let fill = match &self.kernels {
            Some(kernels) => kernels.fill(&memory.all(), u32::from_ne_bytes([9; 4]))?,
            None => Command::fill(memory.all(), &[9])?,
        };
        queue.submit(fill.signal(after))?;
        after.wait_value_timeout(1, deadline())?;
        let transfer = Transfer::new(&self.context)?;
        for offset in [0, self.small / 2, self.small - 4096] {
            let bytes = transfer.read(memory, offset, 4096)?;
            if bytes.iter().any(|byte| *byte != 9) {
                return Err(Failure::new(format!("wrong bytes from {offset} on")));
            }
        }
        Ok(())
    }
}

/// Kills a process while a thread waits for its signal, and returns after what time the thread knows.
/// `may_finish`: the signal may be given before the kill.
fn wait_beyond(victim: &Peer, event: &Event, may_finish: bool) -> Result<Duration, Failure> {
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let result = event.wait_value_timeout(1, deadline());
            (result, Instant::now())
        });
        let killed = victim.kill();
        let (result, told) = waiting.join().expect("no panic");
        match result {
            Err(error) if error.is_peer_dead() => Ok(told.saturating_duration_since(killed)),
            Ok(()) if may_finish => Ok(Duration::ZERO),
            other => Err(Failure::new(format!("a waiter got {other:?}"))),
        }
    })
}
