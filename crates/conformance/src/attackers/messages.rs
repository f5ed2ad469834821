//! Processes without a handle that send meaningless messages, or do not read replies.

use super::{Report, Stop, Victim, socket};
use crate::failure::Failure;
use crate::pattern::Random;
use crate::raw::Request;
use std::time::Duration;

/// Number of slow readers' connections at a time.
const SLOW: usize = 256;
/// Number of messages that are sent on a slow reader's connection before the next one is used.
const BURST: usize = 64;
/// Pause between two rounds.
const PAUSE: Duration = Duration::from_millis(5);
/// Maximum length of a meaningless message, in bytes. Longer than any valid message.
const LONGEST: usize = 600;

/// Returns a message with the form of a request and random contents.
pub(super) fn plausible(random: &mut Random) -> Vec<u8> {
    let key = random.next().to_le_bytes();
    let request = Request {
        operation: random.below(8) as u16,
        // Usually the number of an existing context.
        context: 1 + random.below(2) as u32,
        record: random.below(4) as u32,
        generation: random.next() & 31,
        key: [key, key].concat().try_into().expect("sixteen bytes"),
        access: random.below(2) as u32,
    };
    request.bytes()
}

/// Returns random bytes, or a damaged message, of random length.
fn senseless(random: &mut Random) -> Vec<u8> {
    let len = random.below(LONGEST);
    let mut bytes = match random.below(3) {
        0 => Vec::new(),
        _ => plausible(random),
    };
    bytes.resize_with(len, || random.next() as u8);
    // Damages one bit, possibly in the middle of a valid message.
    if let Some(byte) = bytes.get_mut(random.below(48)) {
        *byte ^= 1 << random.below(8);
    }
    bytes
}

/// Sends meaningless messages, and reads no reply.
pub(super) fn garbage(victim: &Victim, stop: &Stop) -> Result<Report, Failure> {
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

/// Sends requests on many connections, and never reads a reply.
pub(super) fn slow_readers(victim: &Victim, stop: &Stop) -> Result<Report, Failure> {
    let (mut random, mut other) = (Random(4), Random(5));
    let connect = || socket::connect(victim, &mut random);
    Ok(socket::keep_open(
        stop,
        SLOW,
        PAUSE,
        connect,
        |kept, report| {
            for connection in kept {
                for _ in 0..BURST {
                    report.attempts += 1;
                    match socket::send(connection, &plausible(&mut other), &[]) {
                        Ok(()) => report.landed += 1,
                        // The queue is full, or the connection is closed.
                        Err(_) => break,
                    }
                }
            }
        },
    ))
}
