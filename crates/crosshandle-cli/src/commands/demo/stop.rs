//! Points at which a test can stop a process of the demo.
//!
//! The test then kills the stopped process or leaves it stopped, and checks how the other process
//! reacts.

use super::pattern::Side;
use std::io::{self, Write};

/// Environment variable that names the process and the point: `first:POINT` or `second:POINT`.
const VARIABLE: &str = "CROSSHANDLE_DEMO_STOP";

/// A step of the demo that a process has reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StopPoint {
    /// The second process has started, and nothing is shared yet.
    Started,
    /// In the first process: the handles are sent. In the second process: the handles are opened,
    /// but the reply is not sent yet.
    Shared,
    /// The process has written its half in the second round, and has not signalled yet.
    Exchange,
    /// The process is in the middle of the ping-pong.
    Latency,
    /// The second process is about to read at full speed, and the first process waits for it.
    Bandwidth,
    /// The process has finished, and has not told the other process.
    Done,
}

/// If the environment variable selects this process and this point, prints a line and stops
/// forever. `other` is the ID of the other process.
pub(super) fn stop_at(side: Side, point: StopPoint, other: u32) {
    let Ok(wanted) = std::env::var(VARIABLE) else {
        return;
    };
    if wanted == format!("{side:?}:{point:?}").to_lowercase() {
        let own = std::process::id();
        let _ = writeln!(io::stderr(), "stopped at {wanted}: {own} of {other}");
        loop {
            std::thread::park();
        }
    }
}
