//! Commands for the process itself.

use crate::request::{Answer, CommandError, Request, done, one};
use crate::state::{Object, PeerState};
use crosshandle_conformance::raw;
use rustix::process::{self, DumpableBehavior, Resource, Rlimit, Signal};
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// Returns the id of the calling thread.
pub(crate) fn thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

pub(crate) fn execute(state: &Arc<PeerState>, request: &Request<'_>) -> Option<Answer> {
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
        "forbid-passrights" => forbid_passrights(),
        _ => return None,
    })
}

fn limit_files(request: &Request<'_>) -> Answer {
    let limit = Rlimit {
        current: Some(request.parsed(0)?),
        ..process::getrlimit(Resource::Nofile)
    };
    process::setrlimit(Resource::Nofile, limit).map_err(std::io::Error::from)?;
    done()
}

/// `take-files NAME LEFT`: opens files until no more than `LEFT` descriptors are left. Closing the
/// object `NAME` closes them.
fn take_files(state: &PeerState, request: &Request<'_>) -> Answer {
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
fn die() -> Answer {
    let _ = process::kill_process(process::getpid(), Signal::KILL);
    Err(CommandError::usage("still alive"))
}

/// Has the system refuse the socket option `SO_PASSRIGHTS` from now on, as before Linux 6.16.
fn forbid_passrights() -> Answer {
    const SO_PASSRIGHTS: u32 = 83;
    /// Offset of the low half of the third argument in what a filter sees, in bytes.
    const OPTION: u32 = if cfg!(target_endian = "little") {
        32
    } else {
        36
    };
    let statement = |code: u32, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    };
    let load = |at| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at);
    let unless = |k, jf| libc::sock_filter {
        jf,
        ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, k)
    };
    let refusal = libc::SECCOMP_RET_ERRNO | libc::ENOPROTOOPT as u32;
    let mut filter = [
        // The number of the call.
        load(0),
        unless(libc::SYS_setsockopt as u32, 3),
        load(OPTION),
        unless(SO_PASSRIGHTS, 1),
        statement(libc::BPF_RET | libc::BPF_K, refusal),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the calls read the filter, which is there until they return.
    let result = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_TSYNC,
            &raw const program,
        )
    };
    match result {
        0 => done(),
        _ => Err(std::io::Error::last_os_error().into()),
    }
}

/// Tries to open writable descriptors from those whose file name contains the given part. Answers
/// their number, and the number that could be opened writable.
/// Asks the exporter at a socket for its report; returns the status of the answer.
fn describe(request: &Request<'_>) -> Answer {
    let socket = raw::Socket::connect(Path::new(request.word(0)?)).map_err(std::io::Error::from)?;
    let message = raw::Request::describe().bytes();
    socket.send(&message, &[]).map_err(std::io::Error::from)?;
    let (answer, files) = socket.receive().map_err(std::io::Error::from)?;
    Ok(vec![
        raw::status(&answer).to_string(),
        files.len().to_string(),
    ])
}

fn reopen_writable(request: &Request<'_>) -> Answer {
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
