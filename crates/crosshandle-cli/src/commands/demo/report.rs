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

impl Report {
    pub(super) fn print(&self, json: bool) -> Result<()> {
        if json {
            return output::json(self);
        }
        let [first, second] = self.processes;
        let elsewhere = if self.peer_device == self.device {
            String::new()
        } else {
            format!("; the second one uses {}", self.peer_device)
        };
        output::lines(format_args!(
            "Processes {first} and {second} share {} and two events on {} ({}){elsewhere}.\n",
            bytes(self.exchange.size),
            self.device,
            self.device_name
        ))?;
        let mut table = output::table();
        table.set_header(["", "p50 or mean", "p99", ""]);
        for row in self.rows() {
            output::add_row(&mut table, row);
        }
        output::align_right(&mut table, 1);
        output::align_right(&mut table, 2);
        output::print_table(&mut table)?;
        output::lines(format_args!(
            "\nverified: {} and {} signals, in {} rounds; every byte that one process wrote was \
             compared by the other",
            bytes(self.exchange.bytes_verified),
            self.exchange.signals_verified,
            self.exchange.rounds
        ))
    }

    fn rows(&self) -> Vec<[String; 4]> {
        let times = &self.nanoseconds;
        let spread = |what: &str, of: &Percentiles, note: &str| {
            let (p50, p99) = (nanoseconds(of.p50), nanoseconds(of.p99));
            [what.to_owned(), p50, p99, note.to_owned()]
        };
        let single = |what: &str, time: f64, note: &str| {
            [
                what.to_owned(),
                nanoseconds(time),
                String::new(),
                note.to_owned(),
            ]
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
            [
                "read shared memory".to_owned(),
                format!("{rate:.1} GB/s"),
                String::new(),
                "what the other process wrote, into a small buffer".to_owned(),
            ],
        ]
    }
}
