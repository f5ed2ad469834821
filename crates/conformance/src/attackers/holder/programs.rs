//! Programs that use up a holder's time, connections and replies.

use super::{CALL, HOSTILE, KEPT, ask, context, holder, request};
use crate::attackers::{Report, Stop, Victim, socket};
use crate::failure::Failure;
use crate::raw::{self, Request};
use crosshandle::handle::MEMORY_HANDLE_SIZE;
use crosshandle::holder::HoldOptions;
use crosshandle::{Error, holder::HolderFault};
use rustix::net::{Shutdown, shutdown};
use rustix::process::{Signal, getpid, kill_process};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

/// Number of threads of one flooding process.
const THREADS: usize = 3;
/// Maximum number of connections that each of these threads keeps.
const KEPT_CONNECTIONS: usize = 200;
/// Number of connections that a process tries to have at the same time.
const CONNECTIONS: usize = 256;
/// Number of requests with unread replies that are sent on one connection before the next one is
/// used.
const BURST: usize = 64;
/// Number of memory requests with unread replies on one connection.
const UNREAD: usize = 512;
/// Number of names with the longest labels that one process has.
const LABELLED: usize = 200;
/// Length of the longest label, in bytes.
const LABEL: usize = 4096;
/// Pause between two rounds.
const PAUSE: Duration = Duration::from_millis(5);

/// Returns the requests of a flood: valid, expensive, and meaningless ones.
fn requests() -> Vec<Vec<u8>> {
    let name = format!("{KEPT}0");
    vec![
        request(r#""status""#),
        request(&format!(r#"{{"open":{{"name":"{name}","writes":false}}}}"#)),
        request(r#"{"list":{"after":null}}"#),
        request(&format!(
            r#"{{"await":{{"name":"{name}","version":1000000}}}}"#
        )),
        request(&format!(
            r#"{{"claim":{{"name":"{HOSTILE}none","forces":true,"request":7}}}}"#
        )),
        request(&format!(
            r#"{{"take_back":{{"name":"{name}","version":1,"parts":[]}}}}"#
        )),
        request(&format!(
            r#"{{"hold":{{"name":"{HOSTILE}none","parts":[]}}}}"#
        )),
        vec![b'{'; 50_000],
        vec![b'['; 60_000],
    ]
}

/// Leaves the holder alone and only takes processor time, with as many threads as
/// [`request_flood`]. Other attackers are compared with it.
pub(super) fn busy_loop(_: &Victim, stop: &Stop) -> Result<Report, Failure> {
    stop.begun();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| while !stop.is_stopped() {});
        }
    });
    Ok(Report::default())
}

/// Sends all kinds of requests without a pause, on many connections, and reads no reply.
pub(super) fn request_flood(victim: &Victim, stop: &Stop) -> Result<Report, Failure> {
    let requests = requests();
    let flood = |first: usize| {
        let (mut kept, mut report) = (VecDeque::new(), Report::default());
        for number in first.. {
            if stop.is_stopped() {
                break;
            }
            report.attempts += 1;
            if let Ok(connection) = ask(victim, &requests[number % requests.len()]) {
                kept.push_back(connection);
                report.landed += 1;
            }
            if kept.len() > KEPT_CONNECTIONS {
                kept.pop_front();
            }
            stop.begun();
        }
        report
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|first| scope.spawn(move || flood(first)))
            .collect();
        let mut all = Report::default();
        for thread in threads {
            let report = thread.join().unwrap_or_default();
            all.attempts += report.attempts;
            all.landed += report.landed;
        }
        Ok(all)
    })
}

/// Takes as many connections and waits as the holder allows.
pub(super) fn waits(victim: &Victim, stop: &Stop) -> Result<Report, Failure> {
    let wait = request(&format!(
        r#"{{"await":{{"name":"{KEPT}0","version":1000000}}}}"#
    ));
    let begin = || ask(victim, &wait);
    Ok(socket::keep_open(
        stop,
        CONNECTIONS,
        PAUSE,
        begin,
        |kept, report| {
            report.landed = report.landed.max(kept.len() as u64);
            // If a wait is put off, its connection stays open for a while, and the request is sent
            // again.
            kept.retain(|connection| socket::send(connection, &wait, &[]).is_ok());
        },
    ))
}

/// Requests long lists, and never reads a reply.
pub(super) fn unread_answers(victim: &Victim, stop: &Stop) -> Result<Report, Failure> {
    let list = request(r#"{"list":{"after":null}}"#);
    let begin = || ask(victim, &list);
    Ok(socket::keep_open(
        stop,
        CONNECTIONS,
        PAUSE,
        begin,
        |kept, report| {
            for connection in kept {
                for _ in 0..BURST {
                    report.attempts += 1;
                    match socket::send(connection, &list, &[]) {
                        Ok(()) => report.landed += 1,
                        Err(_) => break,
                    }
                }
            }
        },
    ))
}

/// A handle that the holder answers for, and the path of the holder's socket for it.
struct Held {
    handle: [u8; MEMORY_HANDLE_SIZE],
    socket: PathBuf,
}

impl Held {
    /// Returns the handle that an honest reader would open.
    fn of(victim: &Victim) -> Result<Self, Failure> {
        let held = holder(&victim.directory).open(&format!("{KEPT}0"))?;
        let part = held.parts.first().ok_or(Failure::new("no part"))?;
        let handle = *part.read_only.ok_or(Failure::new("no handle"))?.as_bytes();
        let exporter = socket::path_of(victim, &handle);
        Ok(Self {
            handle,
            socket: exporter.with_extension("held"),
        })
    }

    /// Attaches as an importer does, and sends `times` memory requests without reading a reply.
    fn ask(&self, times: usize) -> rustix::io::Result<OwnedFd> {
        let connection = socket::connect_to(&self.socket)?;
        socket::send(&connection, &Request::attach(&self.handle).bytes(), &[])?;
        let memory = Request::about(raw::MEMORY, &self.handle).bytes();
        for _ in 0..times {
            if socket::send(&connection, &memory, &[]).is_err() {
                break;
            }
        }
        Ok(connection)
    }
}

/// Requests memory that it may open, on many connections, and never receives the descriptors. Shuts
/// down the write side of every second connection.
pub(super) fn unread_memory(victim: &Victim, stop: &Stop) -> Result<Report, Failure> {
    let held = Held::of(victim)?;
    let memory = Request::about(raw::MEMORY, &held.handle).bytes();
    let mut is_shut = false;
    let begin = || {
        let connection = held.ask(UNREAD)?;
        is_shut = !is_shut;
        if is_shut {
            // The holder sees the end of the connection, but its replies stay in this process's
            // queue.
            let _ = shutdown(&connection, Shutdown::Write);
        }
        Ok(connection)
    };
    Ok(socket::keep_open(
        stop,
        CONNECTIONS,
        PAUSE,
        begin,
        |kept, report| {
            for connection in kept {
                while socket::send(connection, &memory, &[]).is_ok() {
                    report.landed += 1;
                }
            }
        },
    ))
}

/// Opens names, waits, requests lists and memory, and then stops itself permanently with SIGSTOP.
pub(super) fn stopped_reader(victim: &Victim, stop: &Stop) -> Result<Report, Failure> {
    let held = Held::of(victim)?;
    let asker = holder(&victim.directory);
    let context = context(&victim.directory)?;
    let mut opened = Vec::new();
    for name in asker.list()? {
        if let Ok(name) = asker.open(&name.name)
            && let Some(handle) = name.parts.first().and_then(|part| part.read_only)
        {
            opened.extend(context.open_memory_read_only(&handle));
        }
    }
    let requests = requests();
    let mut kept: Vec<_> = (0..CONNECTIONS / 4)
        .filter_map(|number| ask(victim, &requests[number % requests.len()]).ok())
        .collect();
    for times in 0..CONNECTIONS / 8 {
        kept.extend(held.ask(times));
    }
    let report = Report {
        attempts: 1,
        landed: kept.len() as u64,
    };
    stop.begun();
    // Leaves time for `begun` to be printed.
    stop.pause(10 * PAUSE);
    kill_process(getpid(), Signal::STOP)?;
    while !stop.pause(PAUSE) {}
    Ok(report)
}

/// Keeps the same memory under many names with the longest labels, and changes them constantly.
pub(super) fn long_labels(victim: &Victim, stop: &Stop) -> Result<Report, Failure> {
    let asker = holder(&victim.directory);
    let context = context(&victim.directory)?;
    let memory = context.allocate(4096)?;
    let prefix = format!("{HOSTILE}label-{}", std::process::id());
    // Each character takes six bytes of a message.
    let label = "\u{1}".repeat(LABEL);
    let first = format!("{prefix}-0");
    let mut report = Report::default();
    memory.hand_over(&asker.clone().timeout(10 * CALL), &first)?;
    stop.begun();
    let held = asker.open_to_write(&first)?;
    for number in 1_usize.. {
        if stop.is_stopped() {
            break;
        }
        report.attempts += 1;
        let options = HoldOptions::new().label(label.clone()).replaces(true);
        let name = format!("{prefix}-{}", number % LABELLED);
        match asker.hold_as(&held, &name, options) {
            Ok(_) => report.landed += 1,
            Err(Error::Holder {
                fault: HolderFault::Busy,
                ..
            }) => {}
            // Another process may be the holder by now, or this program's quota is used up.
            Err(_) => drop(stop.pause(PAUSE)),
        }
    }
    Ok(report)
}
