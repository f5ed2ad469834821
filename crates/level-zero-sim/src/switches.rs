//! Switches that environment variables set. The crate's documentation lists them.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::LazyLock;
use std::time::Duration;

/// How a descriptor reaches the process that opens a handle.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    /// The opening process receives the descriptor and puts its number into the handle.
    Descriptor,
    /// The driver fetches the descriptor from the exporting process, unless the opening process has
    /// put another number into the handle.
    Pidfd,
}

/// The values of all switches. They are read once, at the first use.
pub(crate) struct Switches {
    pub(crate) devices: u32,
    /// The minor version of Level Zero 1.
    pub(crate) minor_version: u32,
    pub(crate) driver_version: u32,
    pub(crate) transport: Transport,
    pub(crate) refuse_descriptors: bool,
    /// The text of the refusal rules, which the module `refusals` parses.
    pub(crate) refuse: Option<String>,
    pub(crate) fail_allocations_after: Option<u64>,
    pub(crate) lost_after: Option<u64>,
    pub(crate) command_delay: Duration,
    /// Whether the next allocation of the same size reuses freed memory.
    pub(crate) reuse: bool,
    pub(crate) abort: bool,
    pub(crate) log: Option<PathBuf>,
    pub(crate) report: Option<PathBuf>,
    missing: Vec<String>,
}

static SWITCHES: LazyLock<Switches> = LazyLock::new(Switches::read);

pub(crate) fn switches() -> &'static Switches {
    &SWITCHES
}

impl Switches {
    fn read() -> Self {
        let minor = |text: &str| text.strip_prefix("1.").and_then(|minor| minor.parse().ok());
        Self {
            devices: number("DEVICES").unwrap_or(1).clamp(1, 16),
            minor_version: text("API_VERSION")
                .map_or(Some(17), |text| minor(&text))
                .unwrap_or(17),
            driver_version: number("DRIVER_VERSION").unwrap_or(0x0103_9876),
            transport: match text("TRANSPORT").as_deref() {
                Some("pidfd") => Transport::Pidfd,
                _ => Transport::Descriptor,
            },
            refuse_descriptors: number("REFUSE_DESCRIPTORS") == Some(1),
            refuse: text("REFUSE"),
            fail_allocations_after: number("FAIL_ALLOCATIONS_AFTER"),
            lost_after: number("LOST_AFTER"),
            command_delay: Duration::from_micros(number("COMMAND_DELAY_US").unwrap_or(0)),
            reuse: number("REUSE") == Some(1),
            abort: text("MISUSE").as_deref() == Some("abort"),
            log: text("LOG").map(PathBuf::from),
            report: text("REPORT").map(PathBuf::from),
            missing: list("MISSING"),
        }
    }

    /// Returns whether an extension, a function or a property must be missing.
    pub(crate) fn missing(&self, name: &str) -> bool {
        self.missing.iter().any(|missing| missing == name)
    }
}

fn text(name: &str) -> Option<String> {
    let value = std::env::var(format!("CROSSHANDLE_SIM_{name}")).ok()?;
    (!value.is_empty()).then_some(value)
}

fn number<T: FromStr>(name: &str) -> Option<T> {
    text(name)?.parse().ok()
}

fn list(name: &str) -> Vec<String> {
    let text = text(name).unwrap_or_default();
    text.split(',')
        .filter(|item| !item.is_empty())
        .map(str::to_owned)
        .collect()
}
