//! Hostile processes that hand memory over, or claim to do so. Some never reply, some have very
//! many contexts, and some act as an exporter that other processes claim to be too.

use super::{HOSTILE, ask, context, holder};
use crate::attackers::{Report, Stop, Victim, socket};
use crate::failure::Failure;
use crate::pattern::Random;
use crate::raw::{self, Socket};
use crate::tamper::{at, with};
use crosshandle::MemoryHandle;
use crosshandle::handle::MEMORY_HANDLE_SIZE;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

/// Maximum number of unfinished hand-overs of one process.
const HAND_OVERS: usize = 100;
/// Number of contexts that one process creates.
const CONTEXTS: usize = 100;
/// Number of the exporter that all squatters claim to be.
const SQUATTED: u64 = 0xBAD5_0CE7;
/// Number of records that squatters claim. It is small, so that the squatters contradict each
/// other.
const RECORDS: usize = 8;
/// Size of an attacker's memory, in bytes.
const LEN: u64 = 64 << 10;
/// Pause between two rounds.
const PAUSE: Duration = Duration::from_millis(5);

/// A genuine pair of handles of this process, from which others are forged.
struct Pattern {
    writes: [u8; MEMORY_HANDLE_SIZE],
    reads: [u8; MEMORY_HANDLE_SIZE],
}

impl Pattern {
    fn new(victim: &Victim) -> Result<Self, Failure> {
        let memory = context(&victim.directory)?.allocate(LEN as usize)?;
        Ok(Self {
            writes: *memory.handle()?.as_bytes(),
            reads: *memory.handle_read_only()?.as_bytes(),
        })
    }

    /// Returns the request that hands over memory in the name of `exporter`, with the given records
    /// and random keys.
    fn hold(
        &self,
        name: &str,
        exporter: u64,
        context: u32,
        records: [u32; 2],
        random: &mut Random,
    ) -> Result<Vec<u8>, Failure> {
        let mut forge = |handle: &[u8; MEMORY_HANDLE_SIZE], record: u32| {
            let key = [random.next().to_le_bytes(), random.next().to_le_bytes()].concat();
            let mut bytes = with(handle, at::EXPORTER, &exporter.to_le_bytes());
            bytes = with(&bytes, at::CONTEXT, &context.to_le_bytes());
            bytes = with(&bytes, at::RECORD, &record.to_le_bytes());
            bytes = with(&bytes, at::KEY, &key);
            Ok::<_, Failure>(MemoryHandle::from_bytes(&bytes)?.to_string())
        };
        let (writes, reads) = (
            forge(&self.writes, records[0])?,
            forge(&self.reads, records[1])?,
        );
        Ok(format!(
            r#"{{"protocol":2,"request":{{"hold":{{"name":"{name}","replaces":true,"parts":[{{"role":"memory","device":"host","kind":"device","bytes":{LEN},"handle":"{writes}","read_only":"{reads}"}}]}}}}}}"#
        )
        .into_bytes())
    }

    fn segment(&self) -> u32 {
        let part = &self.writes[at::SEGMENT..at::SEGMENT + 4];
        u32::from_le_bytes(part.try_into().unwrap_or_default())
    }
}

/// Creates the socket at which holders look for an exporter, and replaces an existing one.
fn answer_for(victim: &Victim, exporter: u64) -> Result<Socket, Failure> {
    let path = victim.directory.join(format!("{exporter:016x}.sock"));
    let other = path.with_extension(format!("{}", std::process::id()));
    let _ = fs::remove_file(&other);
    let socket = Socket::listen(&other)?;
    // The file's mode does not have the mark of a locked socket, because this process holds no such
    // lock.
    fs::set_permissions(&other, fs::Permissions::from_mode(0o666))?;
    fs::rename(&other, &path)?;
    Ok(socket)
}

struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Hands memory over that never arrives. The exporter accepts no connection, answers no request, or
/// answers only the first one.
pub(super) fn silent_makers(victim: &Victim, stop: &Stop) -> Result<Report, Failure> {
    let pattern = Pattern::new(victim)?;
    let mut random = Random(u64::from(std::process::id()));
    let exporter = random.next();
    let socket = answer_for(victim, exporter)?;
    let path = victim.directory.join(format!("{exporter:016x}.sock"));
    let _removed = Removed(path);
    let (mut asked, mut made) = (Vec::new(), Vec::new());
    let mut report = Report::default();
    let mut number = 0;
    loop {
        while asked.len() < HAND_OVERS && !stop.is_stopped() {
            number += 1;
            report.attempts += 1;
            let name = format!("{HOSTILE}silent-{}-{number}", std::process::id());
            // A separate context for each hand-over, so that no attachment is shared.
            let hold = pattern.hold(&name, exporter, number, [1, 2], &mut random)?;
            match ask(victim, &hold) {
                Ok(connection) => asked.push(connection),
                Err(_) => break,
            }
        }
        report.landed = report.landed.max(asked.len() as u64);
        stop.begun();
        // Accepts a third of the connections, and answers the first request of a third of
        // these.
        if random.below(3) == 0
            && let Ok(Some(connection)) = socket.accept_within(PAUSE)
        {
            if random.below(3) == 0 {
                let _ = answer(&connection, pattern.segment(), 1);
            }
            made.push(connection);
        }
        if stop.pause(PAUSE) {
            return Ok(report);
        }
        socket::retain_open(&mut asked);
    }
}

/// Answers `requests` requests of a holder, in the role of the memory's exporter.
fn answer(connection: &Socket, segment: u32, requests: usize) -> rustix::io::Result<()> {
    for _ in 0..requests {
        if !connection.is_ready(10 * PAUSE)? {
            return Ok(());
        }
        let (request, _) = connection.receive()?;
        if request.len() != raw::REQUEST {
            return Ok(());
        }
        let serial = raw::serial(&request);
        let (reply, files): (_, Vec<OwnedFd>) = match raw::operation(&request) {
            raw::ATTACH => {
                let mut handle = [0; MEMORY_HANDLE_SIZE];
                handle[at::RECORD..at::RECORD + 4].copy_from_slice(&request[12..16]);
                handle[at::GENERATION..at::GENERATION + 8].copy_from_slice(&request[16..24]);
                let books = vec![raw::catalog(&handle)?, raw::memfd(raw::LEDGER, true)?];
                (raw::attached(2, serial), books)
            }
            raw::MEMORY => {
                let memory = vec![raw::memfd(LEN, true)?];
                (raw::fetched(segment, LEN, serial), memory)
            }
            _ => return Ok(()),
        };
        connection.send(&reply, &raw::borrowed(&files))?;
    }
    Ok(())
}

/// Hands over names, each from its own context, until the holder refuses.
pub(super) fn context_hoarder(victim: &Victim, stop: &Stop) -> Result<Report, Failure> {
    let asker = holder(&victim.directory);
    let mut contexts = Vec::new();
    let mut report = Report::default();
    for number in 0_usize.. {
        if stop.is_stopped() {
            break;
        }
        if contexts.len() < CONTEXTS {
            contexts.push(context(&victim.directory)?);
        }
        let context = &contexts[number % contexts.len()];
        let name = format!("{HOSTILE}context-{}-{number}", std::process::id());
        report.attempts += 1;
        match context.allocate(4096)?.hand_over(&asker, &name) {
            Ok(_) => report.landed += 1,
            Err(_) => drop(stop.pause(PAUSE)),
        }
        stop.begun();
    }
    Ok(report)
}

/// Acts as an exporter that several squatters claim to be, in random turns. Each squatter takes the
/// exporter's socket path from the others, and then hands records over in the exporter's name.
pub(super) fn record_squatter(victim: &Victim, stop: &Stop) -> Result<Report, Failure> {
    let pattern = Pattern::new(victim)?;
    let mut random = Random(u64::from(std::process::id()));
    let path = victim.directory.join(format!("{SQUATTED:016x}.sock"));
    let _removed = Removed(path);
    let mut report = Report::default();
    let mut asked = Vec::new();
    while !stop.is_stopped() {
        let socket = answer_for(victim, SQUATTED)?;
        for _ in 0..1 + random.below(4) {
            let records = [random.below(RECORDS) as u32, random.below(RECORDS) as u32];
            let context = 1 + random.below(3) as u32;
            let name = format!("{HOSTILE}record-{}", random.below(2 * RECORDS));
            let hold = pattern.hold(&name, SQUATTED, context, records, &mut random)?;
            report.attempts += 1;
            asked.extend(ask(victim, &hold));
        }
        stop.begun();
        // The next connections may reach another squatter.
        for _ in 0..1 + random.below(6) {
            if let Ok(Some(connection)) = socket.accept_within(PAUSE)
                && answer(&connection, pattern.segment(), 2).is_ok()
            {
                report.landed += 1;
            }
        }
        if asked.len() > HAND_OVERS {
            asked.drain(..HAND_OVERS / 2);
        }
    }
    Ok(report)
}
