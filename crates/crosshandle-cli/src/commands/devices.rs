//! `crosshandle devices`.

use crate::failure::Result;
use crate::output;
use crate::units::bytes;
use crosshandle::{Device, device::Capabilities};
use serde::Serialize;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Print the devices as JSON
    #[arg(long)]
    json: bool,
}

/// A device, in the form of the JSON output.
#[derive(Serialize)]
struct DeviceReport {
    /// The device's name, as `--device` accepts it.
    device: String,
    name: String,
    vendor: String,
    driver_version: String,
    uuid: String,
    /// Size of the device's memory in bytes.
    total_memory: u64,
    compute_units: u32,
    /// Minimum size of physical memory, in bytes.
    granularity: usize,
    shares: Shares,
}

/// Objects that the device can share.
#[derive(Serialize)]
struct Shares {
    memory: bool,
    physical_memory: bool,
    events: bool,
    /// Whether exporters can restrict importers to reading.
    read_only: bool,
}

impl DeviceReport {
    fn new(device: &Device) -> Self {
        let info = device.info();
        let Capabilities {
            memory_sharing,
            physical_memory_sharing,
            event_sharing,
            read_only_memory,
            ..
        } = info.capabilities;
        Self {
            device: device.to_string(),
            name: info.name.clone(),
            vendor: info.vendor.clone(),
            driver_version: info.driver_version.clone(),
            uuid: info.uuid.to_string(),
            total_memory: info.total_memory,
            compute_units: info.compute_units,
            granularity: info.granularity,
            shares: Shares {
                memory: memory_sharing,
                physical_memory: physical_memory_sharing,
                events: event_sharing,
                read_only: read_only_memory,
            },
        }
    }

    /// Returns the cells of the device's row in the table.
    fn cells(&self) -> [String; 6] {
        let shares = [
            (self.shares.memory, "memory"),
            (self.shares.physical_memory, "physical memory"),
            (self.shares.events, "events"),
        ];
        let shares: Vec<_> = shares
            .into_iter()
            .filter_map(|(can, what)| can.then_some(what))
            .collect();
        [
            self.device.clone(),
            self.name.clone(),
            bytes(self.total_memory),
            self.compute_units.to_string(),
            self.driver_version.clone(),
            if shares.is_empty() {
                "nothing".to_owned()
            } else {
                shares.join(", ")
            },
        ]
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let rows: Vec<_> = Device::all().iter().map(DeviceReport::new).collect();
    if args.json {
        return output::json(&rows);
    }
    let mut table = output::table();
    table.set_header(["device", "name", "memory", "units", "driver", "shares"]);
    for row in &rows {
        output::add_row(&mut table, row.cells());
    }
    output::align_right(&mut table, 2);
    output::align_right(&mut table, 3);
    output::print_table(&mut table)
}
