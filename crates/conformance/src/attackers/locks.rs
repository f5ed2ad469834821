//! Holders of handles that lock the files they were given, byte by byte.

use super::{Attacker, Report, Stop, Victim};
use crate::failure::Failure;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Locks on each file. None touches the next one, so that the kernel can't merge them.
const LOCKS: i64 = 50_000;
/// Locks after which the attack counts as begun.
const FIRST: i64 = 5_000;
/// Time between two rounds.
const PAUSE: Duration = Duration::from_millis(10);

/// Keeps very many record locks, which everybody who asks about a lock has to walk.
pub(super) struct RecordLocks;

impl Attacker for RecordLocks {
    fn name(&self) -> &'static str {
        "record-locks"
    }

    fn needs_handles(&self) -> bool {
        true
    }

    fn run(&self, victim: &Victim, stop: &Stop) -> Result<Report, Failure> {
        let opened = victim.open()?;
        let files = shared_files()?;
        if files.is_empty() {
            return Err(Failure::new("no descriptor of a shared file can be opened"));
        }
        let mut report = Report::default();
        // From the end, where the kernel's list is longest for those who ask about its beginning too.
        for offset in (0..LOCKS).rev() {
            for file in &files {
                report.attempts += 1;
                report.landed += u64::from(lock(file, 2 * offset).is_ok());
            }
            if stop.is_stopped() {
                return Ok(report);
            }
            // The kernel walks the list for each new lock, too: all of them take minutes.
            if LOCKS - offset >= FIRST {
                stop.begun();
            }
        }
        while !stop.pause(PAUSE) {}
        drop(opened);
        Ok(report)
    }
}

/// Locks one byte, for this opening of the file; exclusively if it may be written.
fn lock(file: &File, offset: i64) -> io::Result<()> {
    let mut result = Ok(());
    for kind in [libc::F_WRLCK, libc::F_RDLCK] {
        let lock = libc::flock {
            l_type: kind as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: offset,
            l_len: 1,
            l_pid: 0,
        };
        // SAFETY: the descriptor is open, and the kernel only reads the structure.
        let status = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
        if status == 0 {
            return Ok(());
        }
        result = Err(io::Error::last_os_error());
    }
    result
}

/// Opens the shared files that this process has a descriptor of, in whichever thread's table it is:
/// writable if the system lets it.
fn shared_files() -> io::Result<Vec<File>> {
    let (mut files, mut known) = (Vec::new(), Vec::new());
    for task in fs::read_dir("/proc/self/task")?.flatten() {
        let Ok(entries) = fs::read_dir(task.path().join("fd")) else {
            continue;
        };
        for entry in entries.flatten() {
            let path = entry.path();
            let Ok(target) = fs::read_link(&path) else {
                continue;
            };
            if !target.to_string_lossy().contains("memfd:crosshandle") {
                continue;
            }
            let Ok(file) = File::options()
                .read(true)
                .write(true)
                .open(&path)
                .or_else(|_| File::open(&path))
            else {
                continue;
            };
            let number = std::os::unix::fs::MetadataExt::ino(&file.metadata()?);
            if !known.contains(&number) {
                known.push(number);
                files.push(file);
            }
        }
    }
    Ok(files)
}
