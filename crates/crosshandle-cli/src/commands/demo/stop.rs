//! Points at which a test can make one process stand still.
//!
//! The test then kills that process or leaves it alone, and looks at what the other process does.

use super::pattern::Side;
use std::io::{self, Write};

/// Environment variable that names the process and the point: `first:POINT` or `second:POINT`.
const VARIABLE: &str = "CROSSHANDLE_DEMO_STOP";

/// Step of the demo that a process has reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StopPoint {
    /// The second process has started, and nothing is shared yet.
    Started,
    /// First process: the handles are sent. Second process: the handles are opened, but the answer
    /// is not sent yet.
    Shared,
    /// The process has written its half in the second round, and has not signalled yet.
    Exchange,
    /// The process is in the middle of the ping-pong.
    Latency,
    /// The second process is about to read at full speed; the first process waits for it.
    Bandwidth,
    /// The process has done its work, and has not told the other process.
    Done,
}

/// Prints a line and stands still for ever if the environment names this process and point.
/// `other` is the id of the other process.
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
