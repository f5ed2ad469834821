//! Kills processes that use a GPU. Their memory must be released, waiting streams must resume, and
//! no resource may grow.
//!
//! `conformance gpu-deaths` kills processes that have a device's memory open or share it. In the
//! first part they have much memory and are killed one by one. The command measures the time until
//! the device's free memory has recovered. In the second part many processes are killed, several at
//! a time, in four situations ([`Way`]). After each batch, the command checks that this process's
//! descriptors, threads and resident memory and the device's free memory have not changed.

use crate::failure::Failure;
use crate::harness::{Devices, Harness, deadline};
use crate::{Kernels, Peer, Transfer, Usage};
use crosshandle::{Command, Context, Event, EventHandle, Memory, MemoryHandle, Queue};
use std::fmt;
use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Time within which a dead process's memory must be released. The driver itself takes 70 to 80 ms.
const PROMISED: Duration = Duration::from_millis(150);
/// Free memory that may be missing, in bytes. Drivers round sizes and keep some memory.
const SLACK: u64 = 32 << 20;
/// Number of descriptors and threads that may differ, because idle threads come and go.
const COMINGS_AND_GOINGS: usize = 4;
/// KiB by which resident memory may differ, because allocators keep some freed memory.
const RESIDENT_SLACK: usize = 32 << 10;
/// Number of batches before the first measurement of growth.
const WARM_UP: usize = 3;
/// Interval at which free memory is measured.
const LOOK: Duration = Duration::from_millis(1);
/// Number of kernels that a victim submits before it is killed. They run longer than the kill
/// takes.
const LAUNCHES: usize = 100;

/// Options of `conformance gpu-deaths`.
#[derive(clap::Args)]
pub struct Options {
    /// Device of the processes that are not killed
    #[arg(long, default_value = "cuda:0")]
    device: String,
    /// Device of the processes that are killed, if it is another one
    #[arg(long, value_name = "DEVICE")]
    peer_device: Option<String>,
    /// Memory of each process in the first part
    #[arg(long, value_name = "GIB", default_value = "10")]
    large: usize,
    /// Number of deaths of each kind in the first part
    #[arg(long, value_name = "N", default_value = "5")]
    large_cycles: usize,
    /// Memory of each process in the second part
    #[arg(long, value_name = "MIB", default_value = "64")]
    small: usize,
    /// Maximum number of deaths in the second part
    #[arg(long, value_name = "N", default_value = "1000")]
    cycles: usize,
    /// Maximum time of the second part
    #[arg(long, value_name = "SECONDS", default_value = "150")]
    seconds: u64,
    /// Number of processes that die at a time
    #[arg(long, value_name = "N", default_value = "8")]
    jobs: NonZeroUsize,
}

impl Options {
    fn large(&self) -> usize {
        self.large << 30
    }

    fn small(&self) -> usize {
        self.small << 20
    }

    fn limit(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}

/// Runs the command. `peer` is the program of the peers. Returns `false` if a part failed.
pub fn run(options: &Options, peer: &Path) -> bool {
    let own = options.device.clone();
    let devices = Devices {
        peer: options.peer_device.clone().unwrap_or_else(|| own.clone()),
        own,
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
    match Harness::new(&devices, peer) {
        Err(failure) => show("start", Err(failure)),
        Ok(harness) => {
            show(
                "a killed importer of much",
                large_importers(&harness, options),
            );
            show(
                "a killed exporter of much",
                large_exporters(&harness, options),
            );
            show("many deaths", many(&harness, options));
        }
    }
    let Devices { own, peer } = devices;
    println!("deaths on {own} with {peer}: {passed} passed, 0 skipped, {failed} failed");
    failed == 0
}

/// A device's free memory, compared with an earlier measurement. Not used for the host, where other
/// processes use memory too.
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

    /// Waits until as much memory is free as before, and returns that time.
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

/// Measured times, displayed as a summary.
struct Times(Vec<Duration>);

impl Times {
    fn slowest(&self) -> Duration {
        self.0.iter().max().copied().unwrap_or_default()
    }

    /// Fails if a time exceeds [`PROMISED`].
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

/// Kills importers that still have memory open that its exporter has freed.
fn large_importers(harness: &Harness, options: &Options) -> Result<String, Failure> {
    // No pool, because a pool would keep some of the released memory.
    let plain = harness.options().pooling(false);
    let context = Context::with_options(harness.device(), plain)?;
    let transfer = Transfer::new(&context)?;
    drop(context.allocate(options.small())?);
    let mut times = Vec::new();
    for _ in 0..options.large_cycles {
        let free = Free::of(harness);
        let memory = context.allocate(options.large())?;
        transfer.write(&memory, options.large() - 4, b"here")?;
        let importer = harness.peer()?;
        importer.ask(format!("open-memory m {}", memory.handle()?))?;
        drop(memory);
        if free.before.is_some() && free.missing() < options.large() as u64 {
            return Err(Failure::new("it is free though an importer has it open"));
        }
        let killed = importer.kill();
        times.push(free.is_back()?.saturating_duration_since(killed));
    }
    Times(times).check(&format!("{} GiB back after", options.large))
}

/// Kills exporters, and then lets the importer close its memory.
fn large_exporters(harness: &Harness, options: &Options) -> Result<String, Failure> {
    let context = harness.context()?;
    let (mut since_close, mut since_death) = (Vec::new(), Vec::new());
    for _ in 0..options.large_cycles {
        let free = Free::of(harness);
        let exporter = harness.peer()?;
        exporter.ask(format!("allocate m {}", options.large()))?;
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
        if free.before.is_some() && free.missing() < options.large() as u64 {
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

/// The situation in which a victim is killed.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// An importer that does nothing.
    Idle,
    /// An importer whose signal a stream of this process waits for.
    Awaited,
    /// An importer whose kernels write to this process's memory.
    Writing,
    /// An exporter whose signal a stream of this process waits for.
    Exporter,
}

const WAYS: [Way; 4] = [Way::Idle, Way::Awaited, Way::Writing, Way::Exporter];

/// Objects that the surviving process uses with all victims.
struct Survivor<'a> {
    harness: &'a Harness,
    context: Context,
    kernels: Option<Kernels>,
    small: usize,
}

/// Resources of this process and the device that may grow.
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

/// Kills many processes, and checks that no resource grows.
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
        small: options.small(),
    };
    let end = Instant::now() + options.limit();
    let (mut batches, mut deaths) = (0, 0);
    let mut first = None;
    let (mut told, mut back) = (Vec::new(), Vec::new());
    while deaths < options.cycles && Instant::now() < end {
        if batches == WARM_UP {
            survivor.context.trim();
            first = Some((Held::now()?, Free::of(harness)));
        }
        let next = AtomicUsize::new(deaths);
        let batch = options.jobs.get().min(options.cycles - deaths);
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
            options.limit()
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
    /// Kills one victim, and returns the time until this process's waiter was notified.
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

    /// Checks that the stream resumes, and that its writes are preserved. No kernel of the dead
    /// process may still write.
    fn go_on(&self, queue: &Queue, after: &Event, memory: &Memory) -> Result<(), Failure> {
        // Commands that waited for the victim's signal may have failed, but they must have ended.
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

/// Kills a process while a thread waits for its signal, and returns the time until the thread was
/// notified. If `may_finish` is `true`, the signal may complete before the kill.
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
