//! Importers that write arbitrary data into the files that they received, and hang up.

use super::{Report, Stop, Victim, socket};
use crate::failure::Failure;
use crate::pattern;
use crate::pattern::Random;
use crate::raw::{self, Request};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// Pause between two rounds, in which other programs can run.
const PAUSE: Duration = Duration::from_millis(1);

/// Repeatedly fills arena and ledger with false words, and hangs up. At each hang-up, the exporter
/// examines what the importer has left behind.
pub(super) fn forged_words(victim: &Victim, stop: &Stop) -> Result<Report, Failure> {
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

fn forge(victim: &Victim, event: &[u8], random: &mut Random) -> Result<(), Failure> {
    let path = socket::path_of(victim, event);
    let connection = raw::Socket::connect(&path)?;
    let mut given: Vec<OwnedFd> = Vec::new();
    for request in [Request::attach(event), Request::about(raw::ARENA, event)] {
        connection.send(&request.bytes(), &[])?;
        let (_, files) = connection.receive()?;
        given.extend(files);
    }
    for file in given.into_iter().map(File::from) {
        let len = file.metadata()?.len() as usize;
        // All bits set, all bits clear, random bytes, or small numbers.
        let words = match random.below(4) {
            0 => vec![0xFF; len],
            1 => vec![0; len],
            2 => pattern::pattern(random.next(), len),
            _ => [3, 0, 0, 0, 2, 0, 0, 0].repeat(len / 8),
        };
        // Fails for files that only the exporter may write.
        let _ = file.write_all_at(&words, 0);
    }
    Ok(())
}
