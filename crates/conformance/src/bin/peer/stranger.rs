//! Commands that use the broker's protocol directly, like programs that do not use the library.

use crate::request::{CommandError, Reply, Request};
use crosshandle::MemoryHandle;
use crosshandle_conformance::{Failure, raw};
use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

pub(crate) fn execute(request: &Request<'_>) -> Option<Reply> {
    Some(match request.command {
        "seize" => seize(request),
        "ask-report" => ask_report(request),
        _ => return None,
    })
}

impl From<Failure> for CommandError {
    fn from(failure: Failure) -> Self {
        Self::usage(failure.to_string())
    }
}

fn io(errno: rustix::io::Errno) -> CommandError {
    std::io::Error::from(errno).into()
}

/// Sends a request, and returns the reply's status and descriptors.
fn ask(socket: &raw::Socket, question: raw::Request) -> Result<(u16, Vec<OwnedFd>), CommandError> {
    socket.send(&question.bytes(), &[]).map_err(io)?;
    let (answer, files) = socket.receive().map_err(io)?;
    Ok((raw::status(&answer), files))
}

/// `seize DIRECTORY HANDLE`: fetches the memory descriptor of a handle, and tries all ways to write
/// through it. Replies with the ways that worked.
fn seize(request: &Request<'_>) -> Reply {
    let socket = raw::Socket::connect_in(Path::new(request.word(0)?))?;
    let handle: MemoryHandle = request.word(1)?.parse()?;
    let handle = handle.as_bytes();
    ask(&socket, raw::Request::attach(handle))?;
    let question = raw::Request::about(raw::MEMORY, handle);
    let mut ways = Vec::new();
    let (granted, _) = ask(&socket, question.writing())?;
    if granted == 0 {
        ways.push("ask");
    }
    let (_, mut files) = ask(&socket, question)?;
    let Some(file) = files.pop().map(File::from) else {
        return Err(CommandError::usage("no descriptor"));
    };
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the mapping is new, and no code accesses it.
    if unsafe {
        mmap(
            std::ptr::null_mut(),
            4096,
            access,
            MapFlags::SHARED,
            &file,
            0,
        )
    }
    .is_ok()
    {
        ways.push("map");
    }
    if file.write_at(b"x", 0).is_ok() {
        ways.push("write");
    }
    if file.set_len(1).is_ok() {
        ways.push("truncate");
    }
    let flags = rustix::fs::fcntl_getfl(&file).map_err(io)?;
    let _ = rustix::fs::fcntl_setfl(&file, flags | OFlags::RDWR);
    if file.write_at(b"x", 0).is_ok() {
        ways.push("flags");
    }
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let mut reopened = rustix::fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    if reopened.is_err() && rustix::fs::fchmod(&file, Mode::from_raw_mode(0o666)).is_ok() {
        reopened = rustix::fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    }
    if reopened.is_ok() {
        ways.push("reopen");
    }
    Ok(ways.into_iter().map(String::from).collect())
}

/// `ask-report DIRECTORY HANDLE`: requests the report before and after attaching. Replies with the
/// status and the number of descriptors of each reply.
fn ask_report(request: &Request<'_>) -> Reply {
    let socket = raw::Socket::connect_in(Path::new(request.word(0)?))?;
    let handle: MemoryHandle = request.word(1)?.parse()?;
    let question = raw::Request {
        operation: raw::DESCRIBE,
        ..raw::Request::default()
    };
    let (before, files) = ask(&socket, question)?;
    let mut answers = vec![format!("{before}:{}", files.len())];
    let (attached, _) = ask(&socket, raw::Request::attach(handle.as_bytes()))?;
    if attached != 0 {
        return Err(CommandError::usage("not let in"));
    }
    let (after, files) = ask(&socket, question)?;
    answers.push(format!("{after}:{}", files.len()));
    Ok(answers)
}
