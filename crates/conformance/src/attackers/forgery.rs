//! Importers that write anything into what they were given, and hang up.

use super::{Attacker, Report, Stop, Victim};
use crate::failure::Failure;
use crate::pattern;
use crate::pattern::Random;
use crate::raw::{self, Request};
use crosshandle::handle::HANDLE_SIZE;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// Time between two rounds, in which others get their turn.
const PAUSE: Duration = Duration::from_millis(1);

/// Fills arena and ledger with words that say what is not so, and hangs up, again and again: each
/// hang-up has the exporter look for what the importer has left behind.
pub(super) struct ForgedWords;

impl Attacker for ForgedWords {
    fn name(&self) -> &'static str {
        "forged-words"
    }

    fn needs_handles(&self) -> bool {
        true
    }

    fn run(&self, victim: &Victim, stop: &Stop) -> Result<Report, Failure> {
        let event = victim.events.first().ok_or(Failure::new("no event"))?;
        let (mut random, mut report) = (Random(6), Report::default());
        while !stop.is_stopped() {
            report.attempts += 1;
            match forge(victim, event.as_bytes(), &mut random) {
                Ok(()) => report.landed += 1,
                Err(_) => drop(stop.pause(PAUSE)),
            }
            stop.begun();
            stop.pause(PAUSE);
        }
        Ok(report)
    }
}

fn forge(victim: &Victim, event: &[u8; HANDLE_SIZE], random: &mut Random) -> Result<(), Failure> {
    let connection = raw::Socket::connect_in(&victim.directory)?;
    let mut given: Vec<OwnedFd> = Vec::new();
    for request in [Request::attach(event), Request::about(raw::ARENA, event)] {
        connection.send(&request.bytes(), &[])?;
        let (_, files) = connection.receive()?;
        given.extend(files);
    }
    for file in given.into_iter().map(File::from) {
        let len = file.metadata()?.len() as usize;
        // All bits set, none, noise, and small numbers.
        let words = match random.below(4) {
            0 => vec![0xFF; len],
            1 => vec![0; len],
            2 => pattern::pattern(random.next(), len),
            _ => [3, 0, 0, 0, 2, 0, 0, 0].repeat(len / 8),
        };
        // Fails where only the exporter writes.
        let _ = file.write_all_at(&words, 0);
    }
    Ok(())
}
