//! Points at which a test can stop one side, to kill it there and see what the other side does.

use super::pattern::Side;
use std::io::{self, Write};

/// Environment variable of the form `first:POINT` or `second:POINT`.
const VARIABLE: &str = "CROSSHANDLE_DEMO_STOP";

/// A point in the course of the demo.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Point {
    /// The second process has started; nothing is shared yet.
    Started,
    /// First process: the offer has been sent. Second: everything is open, and the answer not yet
    /// sent.
    Shared,
    /// In the second round, between writing and signalling.
    Exchange,
    /// In the middle of the ping-pong.
    Latency,
    /// The second process reads at full speed, and the first waits for it.
    Bandwidth,
    /// Everything is done, and the other side does not know that.
    Done,
}

/// Reports the point and stops for ever, if the environment names this point.
pub(super) fn at(side: Side, point: Point, other: u32) {
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
