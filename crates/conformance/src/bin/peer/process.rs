//! Commands for the process itself.

use crate::request::{CommandError, Reply, Request, done, one};
use crate::state::{Object, PeerState};
use crosshandle_conformance::raw;
use rustix::process::{self, DumpableBehavior, Resource, Rlimit, Signal};
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// Returns the ID of the calling thread.
pub(crate) fn thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

pub(crate) fn execute(state: &Arc<PeerState>, request: &Request<'_>) -> Option<Reply> {
    Some(match request.command {
        "pid" => one(std::process::id()),
        "context" => state.new_context(request).and_then(|()| done()),
        "close" => request
            .words_from(0)
            .iter()
            .try_for_each(|name| state.remove(name))
            .and_then(|()| done()),
        "close-all" => {
            state.clear();
            done()
        }
        "trim" => state.context(request).and_then(|context| {
            context.trim();
            done()
        }),
        "limit-files" => limit_files(request),
        "take-files" => take_files(state, request),
        "undumpable" => process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
            .map_err(|errno| std::io::Error::from(errno).into())
            .and_then(|()| done()),
        "exit" => request.parsed(0).and_then(|code| std::process::exit(code)),
        "abort" => std::process::abort(),
        "die" => die(),
        "describe" => describe(request),
        "reopen-writable" => reopen_writable(request),
        _ => return None,
    })
}

fn limit_files(request: &Request<'_>) -> Reply {
    let limit = Rlimit {
        current: Some(request.parsed(0)?),
        ..process::getrlimit(Resource::Nofile)
    };
    process::setrlimit(Resource::Nofile, limit).map_err(std::io::Error::from)?;
    done()
}

/// `take-files NAME LEFT`: opens files until at most `LEFT` descriptors are free. Closing the
/// object `NAME` closes the files.
fn take_files(state: &PeerState, request: &Request<'_>) -> Reply {
    let mut files = Vec::new();
    while let Ok(file) = fs::File::open("/dev/null") {
        files.push(file);
    }
    let left: usize = request.parsed(1)?;
    files.truncate(files.len().saturating_sub(left));
    state.put(request.word(0)?, Object::Files(Arc::new(files)));
    done()
}

/// Kills this process with SIGKILL.
fn die() -> Reply {
    let _ = process::kill_process(process::getpid(), Signal::KILL);
    Err(CommandError::usage("still alive"))
}

/// Requests the report of the exporter at a socket, and returns the reply's status.
fn describe(request: &Request<'_>) -> Reply {
    let socket = raw::Socket::connect(Path::new(request.word(0)?)).map_err(std::io::Error::from)?;
    let message = raw::Request::describe().bytes();
    socket.send(&message, &[]).map_err(std::io::Error::from)?;
    let (answer, files) = socket.receive().map_err(std::io::Error::from)?;
    Ok(vec![
        raw::status(&answer).to_string(),
        files.len().to_string(),
    ])
}

/// Tries to reopen descriptors for writing if their file name contains the given part. Replies with
/// the number of such descriptors, and the number that could be opened for writing.
fn reopen_writable(request: &Request<'_>) -> Reply {
    let part = request.word(0)?;
    let (mut found, mut writable) = (0, 0);
    for entry in fs::read_dir("/proc/self/fd")?.flatten() {
        let Ok(target) = fs::read_link(entry.path()) else {
            continue;
        };
        if !target.to_string_lossy().contains(part) {
            continue;
        }
        found += 1;
        writable += u32::from(
            fs::OpenOptions::new()
                .write(true)
                .open(entry.path())
                .is_ok(),
        );
    }
    Ok(vec![found.to_string(), writable.to_string()])
}

/// Traps the calling thread, as soon as a process traces it.
pub(crate) fn trap() -> Result<(), CommandError> {
    let is_traced = || {
        let status = std::fs::read_to_string("/proc/thread-self/status")?;
        let tracer = status
            .lines()
            .find_map(|line| line.strip_prefix("TracerPid:"));
        Ok::<_, std::io::Error>(tracer.is_some_and(|tracer| tracer.trim() != "0"))
    };
    while !is_traced()? {
        std::thread::yield_now();
    }
    // SAFETY: raising a signal touches no memory. The tracer takes the signal.
    unsafe { libc::raise(libc::SIGTRAP) };
    Ok(())
}
