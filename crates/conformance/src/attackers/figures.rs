//! What attackers cost honest processes: the time of their opens, and the exporter's memory.

use super::attackers;
use crate::cases::attacked::{Attack, given, start};
use crate::failure::Failure;
use crate::harness::{Devices, Harness};
use crosshandle::{Context, MemoryHandle};
use std::path::Path;
use std::time::{Duration, Instant};

/// Opens for each row, after which a row ends unless its time isn't over.
const OPENS: usize = 1_000;
/// Least time of a row.
const ROW: Duration = Duration::from_secs(5);
/// Time between two opens: they are occasional.
const PAUSE: Duration = Duration::from_millis(1);
/// Descriptors that the exporter may have, as is usual.
const DESCRIPTORS: u64 = 1024;

/// What a row shows.
struct Row {
    opens: Vec<Duration>,
    /// The exporter's resident memory, in KiB: the most that was seen.
    resident: usize,
}

impl Row {
    fn percentile(&self, percent: usize) -> Duration {
        let last = self.opens.len().saturating_sub(1);
        self.opens
            .get(last * percent / 100)
            .copied()
            .unwrap_or_default()
    }
}

/// Prints the time of honest opens with no attacker and beside each one whose name contains `filter`, and
/// how much the exporter's memory grows. `peer`: the peers' program, beside that of the suite.
///
/// # Errors
/// Fails if an honest process fails.
pub fn figures(peer: &Path, filter: &str) -> Result<(), Failure> {
    let host = Devices {
        own: "host".into(),
        peer: "host".into(),
    };
    println!(
        "first opens of a context by a new context, in \u{b5}s, and the exporter's memory, in KiB"
    );
    println!(
        "{:<20} {:>6} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "attacker", "opens", "p50", "p99", "most", "p99 \u{d7}", "memory +"
    );
    let found = attackers().iter().filter(|of| of.name().contains(filter));
    for attacker in found {
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
        let usage = || Ok(exporter.usage()?.resident);
        // What the first opens take stays.
        measure(&harness, &handle, &usage)?;
        let alone = measure(&harness, &handle, &usage)?;
        let name = attacker.name();
        let attack: Attack = match start(&harness, name, &given(name, &handles), None)? {
            Ok(attack) => attack,
            Err(reason) => {
                println!("{name:<20} {reason}");
                continue;
            }
        };
        let beside = measure(&harness, &handle, &usage)?;
        drop(attack);
        show("\u{2026} alone", &alone, &alone);
        show(name, &beside, &alone);
    }
    Ok(())
}

fn show(name: &str, row: &Row, alone: &Row) {
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let (p99, unloaded) = (row.percentile(99), alone.percentile(99));
    println!(
        "{name:<20} {:>6} {:>8.0} {:>8.0} {:>8.0} {:>8.2} {:>8}",
        row.opens.len(),
        micros(row.percentile(50)),
        micros(p99),
        micros(row.percentile(100)),
        p99.as_secs_f64() / unloaded.as_secs_f64(),
        row.resident.saturating_sub(alone.resident)
    );
}

/// Opens again and again, by a context that is not attached yet: connecting, attaching and fetching.
fn measure(
    harness: &Harness,
    handle: &MemoryHandle,
    usage: &dyn Fn() -> Result<usize, Failure>,
) -> Result<Row, Failure> {
    let (mut opens, mut resident) = (Vec::new(), usage()?);
    let end = Instant::now() + ROW;
    while opens.len() < OPENS || Instant::now() < end {
        let context = Context::with_options(harness.device(), harness.options())?;
        let began = Instant::now();
        let memory = context.open_memory(handle)?;
        opens.push(began.elapsed());
        drop((memory, context));
        if opens.len() % 64 == 0 {
            resident = resident.max(usage()?);
        }
        std::thread::sleep(PAUSE);
    }
    opens.sort_unstable();
    Ok(Row { opens, resident })
}
