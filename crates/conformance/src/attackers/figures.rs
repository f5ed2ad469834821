//! Measures the cost of attackers for honest processes: the time of their opens, and the exporter's
//! memory.
//!
//! Attackers take two kinds of time: processor time, which any busy program could take, and the
//! exporter's own time. To tell them apart, each open is compared with a *bare exchange* of
//! descriptors, at the same moment, between two processes that are not attacked. In addition, each
//! attacker runs twice, the second time only with otherwise idle processor time.

use super::attackers;
use super::bare_exchange::BareExchange;
use crate::cases::attacked::{Attack, Terms, given, start};
use crate::failure::Failure;
use crate::harness::{Devices, Harness};
use crate::peer::Peer;
use crosshandle::{Context, MemoryHandle};
use std::path::Path;
use std::time::{Duration, Instant};

/// Minimum number of opens in each row. A row ends after these opens and after [`ROW`].
const OPENS: usize = 1_000;
/// Minimum time of a row.
const ROW: Duration = Duration::from_secs(5);
/// Pause between two opens, which are meant to be occasional.
const PAUSE: Duration = Duration::from_millis(1);
/// Limit of the exporter's descriptors. This is a usual limit.
const DESCRIPTORS: u64 = 1024;

struct Row {
    opens: Times,
    bare: Times,
    /// The highest measured resident memory of the exporter, in KiB.
    resident: usize,
}

/// Measured times, sorted.
struct Times(Vec<Duration>);

impl Times {
    fn new(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self(times)
    }

    fn percentile(&self, percent: usize) -> f64 {
        let last = self.0.len().saturating_sub(1);
        let found = self.0.get(last * percent / 100);
        found.copied().unwrap_or_default().as_secs_f64() * 1e6
    }
}

/// The processes of a row.
struct Scene {
    harness: Harness,
    exporter: Peer,
    bare: BareExchange,
    handle: MemoryHandle,
}

/// Prints the time of honest opens without an attacker, and with each attacker whose name contains
/// `filter`. Also prints how much the exporter's memory grows. `peer` is the program of the peers,
/// which is in the same directory as the test suite.
///
/// # Errors
/// Fails if an honest process fails.
pub fn figures(peer: &Path, filter: &str) -> Result<(), Failure> {
    println!(
        "first opens of a context by a new context, and bare exchanges of as many descriptors, in \u{b5}s; \
         the exporter's memory, in KiB\n\
         p99 \u{d7}: of the p99 alone; / bare: of the bare exchange's p99 in the same row; idle: the attacker \
         gets processor time that nobody else wants"
    );
    println!(
        "{:<24} {:>6} {:>8} {:>8} {:>8} {:>9} {:>9} {:>8} {:>8} {:>8}",
        "attacker",
        "opens",
        "p50",
        "p99",
        "most",
        "bare p50",
        "bare p99",
        "p99 \u{d7}",
        "/ bare",
        "memory +"
    );
    let found = attackers().iter().filter(|of| of.name.contains(filter));
    for name in found.map(|attacker| attacker.name) {
        for is_idle in [false, true] {
            compare(peer, name, is_idle)?;
        }
    }
    Ok(())
}

/// Prints the rows of one attacker.
fn compare(peer: &Path, name: &str, is_idle: bool) -> Result<(), Failure> {
    let host = Devices {
        own: "host".into(),
        peer: "host".into(),
    };
    let harness = Harness::new(&host, peer)?;
    let exporter = harness.peer()?;
    exporter.ask(format!("limit-files {DESCRIPTORS}"))?;
    exporter.ask("allocate m 100000")?;
    exporter.ask("context apart")?;
    exporter.ask("allocate given 100000 context=apart")?;
    exporter.ask("event given-event context=apart")?;
    let handle = exporter.ask("memory-handle m")?.remove(0).parse()?;
    let handles = [
        exporter.ask("memory-handle given")?.remove(0),
        exporter.ask("event-handle given-event")?.remove(0),
    ];
    let program = harness.program().with_file_name("conformance");
    // The bare exchange's socket is next to the directory in which attackers look for sockets.
    let socket = harness.directory().with_extension("bare");
    let scene = Scene {
        bare: BareExchange::start(&program, socket)?,
        handle,
        exporter,
        harness,
    };
    // The resources of the first opens are kept, so these opens are not part of the measurement.
    scene.measure()?;
    let alone = scene.measure()?;
    let terms = Terms {
        is_idle,
        ..Terms::default()
    };
    let attack: Attack = match start(&scene.harness, name, &given(name, &handles), terms)? {
        Ok(attack) => attack,
        Err(reason) => {
            println!("{name:<24} {reason}");
            return Ok(());
        }
    };
    let beside = scene.measure()?;
    drop(attack);
    show("\u{2026} alone", &alone, &alone);
    let idle = if is_idle { ", idle" } else { "" };
    show(&format!("{name}{idle}"), &beside, &alone);
    Ok(())
}

fn show(name: &str, row: &Row, alone: &Row) {
    let (opens, bare) = (&row.opens, &row.bare);
    println!(
        "{name:<24} {:>6} {:>8.0} {:>8.0} {:>8.0} {:>9.0} {:>9.0} {:>8.2} {:>8.2} {:>8}",
        opens.0.len(),
        opens.percentile(50),
        opens.percentile(99),
        opens.percentile(100),
        bare.percentile(50),
        bare.percentile(99),
        opens.percentile(99) / alone.opens.percentile(99),
        opens.percentile(99) / bare.percentile(99),
        row.resident.saturating_sub(alone.resident)
    );
}

impl Scene {
    /// Measures opens by a context that is not attached yet, each with connecting, attaching and
    /// fetching. Makes a bare exchange after each open.
    fn measure(&self) -> Result<Row, Failure> {
        let (mut opens, mut bare) = (Vec::new(), Vec::new());
        let mut resident = self.exporter.usage()?.resident;
        let end = Instant::now() + ROW;
        while opens.len() < OPENS || Instant::now() < end {
            let context = Context::with_options(self.harness.device(), self.harness.options())?;
            let began = Instant::now();
            let memory = context.open_memory(&self.handle)?;
            opens.push(began.elapsed());
            drop((memory, context));
            if opens.len() % 64 == 0 {
                resident = resident.max(self.exporter.usage()?.resident);
            }
            std::thread::sleep(PAUSE);
            bare.push(self.bare.measure()?);
            std::thread::sleep(PAUSE);
        }
        Ok(Row {
            opens: Times::new(opens),
            bare: Times::new(bare),
            resident,
        })
    }
}
