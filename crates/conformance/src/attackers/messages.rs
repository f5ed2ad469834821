//! Strangers that send messages without sense, or read no answers.

use super::{Attacker, Report, Stop, Victim, socket};
use crate::failure::Failure;
use crate::pattern::Random;
use crate::raw::Request;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Connections of slow readers at a time.
const SLOW: usize = 256;
/// Messages sent before a slow reader's connection is looked at again.
const BURST: usize = 64;
/// Time between two rounds.
const PAUSE: Duration = Duration::from_millis(5);
/// Greatest length of a message without sense, in bytes: more than any that has sense.
const LONGEST: usize = 600;

/// Returns a message that a broker may take for a request: all but its contents are right.
pub(super) fn plausible(random: &mut Random) -> Vec<u8> {
    let key = random.next().to_le_bytes();
    let request = Request {
        operation: random.below(8) as u16,
        // A context that there is, as a rule.
        context: 1 + random.below(2) as u32,
        record: random.below(4) as u32,
        generation: random.next() & 31,
        key: [key, key].concat().try_into().expect("sixteen bytes"),
        access: random.below(2) as u32,
    };
    request.bytes()
}

/// Returns anything, of any length.
fn senseless(random: &mut Random) -> Vec<u8> {
    let len = random.below(LONGEST);
    let mut bytes = match random.below(3) {
        0 => Vec::new(),
        _ => plausible(random),
    };
    bytes.resize_with(len, || random.next() as u8);
    // Damage in the middle of what has sense.
    if let Some(byte) = bytes.get_mut(random.below(48)) {
        *byte ^= 1 << random.below(8);
    }
    bytes
}

/// Sends messages without sense, and reads no answer.
pub(super) struct Garbage;

impl Attacker for Garbage {
    fn name(&self) -> &'static str {
        "garbage"
    }

    fn run(&self, victim: &Victim, stop: &Stop) -> Result<Report, Failure> {
        let (mut random, mut report) = (Random(3), Report::default());
        while !stop.is_stopped() {
            let Ok(connection) = socket::connect(victim, &mut random) else {
                stop.pause(PAUSE);
                continue;
            };
            for _ in 0..1 + random.below(8) {
                report.attempts += 1;
                let message = senseless(&mut random);
                match socket::send(&connection, &message, &[]) {
                    Ok(()) => report.landed += 1,
                    Err(_) => break,
                }
            }
            stop.begun();
        }
        Ok(report)
    }
}

/// Asks and asks on many connections, and never reads an answer.
pub(super) struct SlowReaders;

impl Attacker for SlowReaders {
    fn name(&self) -> &'static str {
        "slow-readers"
    }

    fn run(&self, victim: &Victim, stop: &Stop) -> Result<Report, Failure> {
        let (mut random, mut report) = (Random(4), Report::default());
        let mut connections: Vec<OwnedFd> = Vec::new();
        loop {
            while connections.len() < SLOW {
                match socket::connect(victim, &mut random) {
                    Ok(connection) => connections.push(connection),
                    Err(_) => break,
                }
            }
            for connection in &connections {
                for _ in 0..BURST {
                    report.attempts += 1;
                    match socket::send(connection, &plausible(&mut random), &[]) {
                        Ok(()) => report.landed += 1,
                        // Full, or closed.
                        Err(_) => break,
                    }
                }
            }
            stop.begun();
            if stop.pause(PAUSE) {
                return Ok(report);
            }
            socket::retain_open(&mut connections);
        }
    }
}
