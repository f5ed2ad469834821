//! Points at which one side can be made to stand still, so that a test can see what the other
//! side does when it is killed there, or not.

use super::pattern::Side;
use std::io::{self, Write};

/// `first:POINT` or `second:POINT`.
const VARIABLE: &str = "CROSSHANDLE_DEMO_STOP";

/// Where a side has got to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Point {
    /// The second process is started; nothing is shared yet.
    Started,
    /// First: what is shared has been sent. Second: it is open, which is not known yet.
    Shared,
    /// In the second round, between writing and signalling.
    Exchange,
    /// In the middle of the ping-pong.
    Latency,
    /// The second process reads at full speed; the first waits for it.
    Bandwidth,
    /// All is done, but the other side does not know that.
    Done,
}

/// Stands still for ever at the point that the environment names, after having said so.
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
