//! Channels, compared with iceoryx2's publish-subscribe services and with a raw ring.

pub(crate) mod iceoryx;
mod ours;
mod rate;
mod ring;
mod trip;

use crate::harness::scenario::Scenario;

/// The scenarios of channels, in the order of the table.
pub(crate) static SCENARIOS: &[&Scenario] = &[
    &trip::COPIED,
    &trip::IN_PLACE,
    &trip::SLEEPING,
    &trip::BROADCAST,
    &rate::ICEORYX,
    &rate::RING,
];

/// A sender of messages that another process receives.
trait Sender {
    /// Sends one message, which begins with `number`.
    fn send(&mut self, number: u64) -> anyhow::Result<()>;
}

/// A receiver of messages.
trait Receiver {
    /// Receives the next message, and returns its number.
    fn receive(&mut self) -> anyhow::Result<u64>;
}

/// The messages of a scenario.
#[derive(Clone, Copy)]
struct Messages {
    bytes: usize,
    /// Whether messages are copied into and out of shared memory. Otherwise only their first word
    /// is written and read.
    is_copied: bool,
    /// Whether receivers sleep while they wait.
    sleeps: bool,
    /// Number of messages that can wait to be received.
    depth: u32,
    /// Number of receivers, each of which gets every message.
    receivers: usize,
}
