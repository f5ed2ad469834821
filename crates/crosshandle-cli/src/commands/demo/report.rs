//! The results of the demo, as text and as JSON.

use super::measure::{Bandwidth, Opens, Percentiles};
use crate::failure::Result;
use crate::output;
use crate::units::{bytes, nanoseconds};
use serde::Serialize;

/// All results of a demo.
#[derive(Serialize)]
pub(super) struct Report {
    pub(super) device: String,
    pub(super) device_name: String,
    /// Name of the second process's device.
    pub(super) peer_device: String,
    /// Process IDs of the first and the second process.
    pub(super) processes: [u32; 2],
    pub(super) exchange: Exchange,
    /// Processors on which the first and the second process measured round trips, if there are two.
    pub(super) cpus: Option<[usize; 2]>,
    pub(super) nanoseconds: Times,
    pub(super) read_bandwidth: Bandwidth,
    /// Always `true`. A demo with a failed verification ends with an error instead.
    pub(super) verified: bool,
}

/// Amounts of shared and verified data.
#[derive(Serialize)]
pub(super) struct Exchange {
    /// Size of the shared memory in bytes.
    pub(super) size: u64,
    pub(super) rounds: u32,
    /// Number of bytes that one process wrote and the other process compared.
    pub(super) bytes_verified: u64,
    /// Number of signals that one process gave and the other process waited for.
    pub(super) signals_verified: u64,
}

/// Times in nanoseconds.
#[derive(Serialize)]
pub(super) struct Times {
    pub(super) round_trip: Percentiles,
    pub(super) round_trip_asleep: Percentiles,
    pub(super) signal: f64,
    pub(super) wait: f64,
    pub(super) handles: Handles,
}

/// Times to get and to open handles, in nanoseconds.
#[derive(Serialize)]
pub(super) struct Handles {
    pub(super) get_first: f64,
    pub(super) get_again: f64,
    pub(super) open: Opens,
}

/// A row of the results.
pub(super) struct Row {
    pub(super) what: &'static str,
    /// The mean or the median, with its unit.
    pub(super) value: String,
    pub(super) p99: String,
    pub(super) note: String,
    /// The value, if it is a time.
    pub(super) nanoseconds: Option<f64>,
}

impl Report {
    pub(super) fn print(&self, json: bool) -> Result<()> {
        if json {
            return output::json(self);
        }
        output::lines(format_args!("{}\n", self.begin()))?;
        let mut table = output::table();
        table.set_header(["", "p50 or mean", "p99", ""]);
        for Row {
            what,
            value,
            p99,
            note,
            ..
        } in self.rows()
        {
            output::add_row(&mut table, [what.to_owned(), value, p99, note]);
        }
        output::align_right(&mut table, 1);
        output::align_right(&mut table, 2);
        output::print_table(&mut table)?;
        output::lines(format_args!("\nverified: {}", self.verified()))
    }

    /// Returns the sentence that says what is shared.
    pub(super) fn begin(&self) -> String {
        let [first, second] = self.processes;
        let elsewhere = if self.peer_device == self.device {
            String::new()
        } else {
            format!("; the second one uses {}", self.peer_device)
        };
        format!(
            "Processes {first} and {second} share {} and two events on {} ({}){elsewhere}.",
            bytes(self.exchange.size),
            self.device,
            self.device_name
        )
    }

    /// Returns what was verified.
    pub(super) fn verified(&self) -> String {
        format!(
            "{} and {} signals, in {} rounds; every byte that one process wrote was compared by \
             the other",
            bytes(self.exchange.bytes_verified),
            self.exchange.signals_verified,
            self.exchange.rounds
        )
    }

    pub(super) fn rows(&self) -> Vec<Row> {
        let times = &self.nanoseconds;
        let spread = |what, of: &Percentiles, note: &str| Row {
            what,
            value: nanoseconds(of.p50),
            p99: nanoseconds(of.p99),
            note: note.to_owned(),
            nanoseconds: Some(of.p50),
        };
        let single = |what, time: f64, note: &str| Row {
            what,
            value: nanoseconds(time),
            p99: String::new(),
            note: note.to_owned(),
            nanoseconds: Some(time),
        };
        let spinning = match self.cpus {
            Some([first, second]) => {
                format!("with a word of memory each way, on CPUs {first} and {second}")
            }
            None => "with a word of memory each way, on one CPU".to_owned(),
        };
        let (get, open) = (&times.handles, &times.handles.open);
        let rate = self.read_bandwidth.bytes_per_second / 1e9;
        vec![
            spread("round trip", &times.round_trip, &spinning),
            spread(
                "round trip, asleep",
                &times.round_trip_asleep,
                "the same, waiting in the kernel at once",
            ),
            single("signal", times.signal, "nobody waits"),
            single("wait", times.wait, "signalled already"),
            single(
                "get a handle, first",
                get.get_first,
                "starts to answer importers",
            ),
            single("get a handle, again", get.get_again, ""),
            single(
                "open memory, first",
                open.memory_first,
                "connects, receives, maps",
            ),
            single("open memory, again", open.memory_again, "and close"),
            single(
                "open an event, first",
                open.event_first,
                "of the same exporter",
            ),
            single("open an event, again", open.event_again, "and close"),
            Row {
                what: "read shared memory",
                value: format!("{rate:.1} GB/s"),
                p99: String::new(),
                note: "what the other process wrote, into a small buffer".to_owned(),
                nanoseconds: None,
            },
        ]
    }
}
