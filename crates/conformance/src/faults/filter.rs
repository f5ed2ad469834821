//! The seccomp filter with user notification by which a worker reports its steps to the supervisor.

use super::calls::{CALLS, STORE_MARK};
use crate::failure::Failure;
use libc::{seccomp_notif, seccomp_notif_resp, sock_filter, sock_fprog};
use rustix::io::IoSlice;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::collections::BTreeSet;
use std::io;
use std::mem::{MaybeUninit, offset_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Environment variable that makes `crosshandle-peer` install the filter when it starts.
pub(super) const VARIABLE: &str = "CROSSHANDLE_PEER_STEPS";

/// Highest descriptor that connects the worker to its supervisor. Calls on these descriptors are
/// not steps.
const LAST_STANDARD_DESCRIPTOR: u32 = 2;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xC000_00B7;

/// Installs the filter in this process if the supervisor requested it, and sends the listener
/// through standard input. Must be called before the process starts another thread.
///
/// # Errors
/// Fails if the kernel refuses the filter.
pub fn install_if_asked() -> io::Result<()> {
    if std::env::var_os(VARIABLE).is_none() {
        return Ok(());
    }
    let listener = install(&program())?;
    let descriptors = [listener.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    let hello = [IoSlice::new(b"filtered\n")];
    sendmsg(std::io::stdin(), &hello, &mut control, SendFlags::empty())?;
    // Closing this descriptor is the first step. No earlier call is a step, because the supervisor
    // does not listen yet.
    drop(listener);
    Ok(())
}

fn install(program: &[sock_filter]) -> io::Result<OwnedFd> {
    let program = sock_fprog {
        len: program.len() as u16,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the first call takes only numbers. The second call reads the program, which outlives
    // the call, and returns a descriptor that nothing else owns.
    unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 {
            return Err(io::Error::last_os_error());
        }
        let listener = libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &program,
        );
        if listener < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(listener as i32))
    }
}

fn statement(code: u32, value: u32) -> sock_filter {
    sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k: value,
    }
}

fn load(offset: usize) -> sock_filter {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset as u32)
}

fn answer(value: u32) -> sock_filter {
    statement(libc::BPF_RET | libc::BPF_K, value)
}

/// Compares the loaded word with `value`, and skips `if_true` or `if_false` instructions depending
/// on the result.
fn jump(condition: u32, value: u32, if_true: u8, if_false: u8) -> sock_filter {
    sock_filter {
        code: (libc::BPF_JMP | libc::BPF_K | condition) as u16,
        jt: if_true,
        jf: if_false,
        k: value,
    }
}

/// Returns the filter program. It notifies of the calls in [`CALLS`], with the exceptions below.
fn program() -> Vec<sock_filter> {
    const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
    const NOTIFY: u32 = libc::SECCOMP_RET_USER_NOTIF;
    // Loads the lower half of an argument, on a little-endian machine.
    let argument = |index: usize| load(offset_of!(libc::seccomp_data, args) + 8 * index);
    let mut program = vec![
        load(offset_of!(libc::seccomp_data, arch)),
        jump(libc::BPF_JEQ, ARCHITECTURE, 1, 0),
        answer(ALLOW),
        load(offset_of!(libc::seccomp_data, nr)),
    ];
    let numbers: BTreeSet<_> = CALLS.iter().map(|call| call.number).collect();
    for number in numbers {
        let body = match number {
            libc::SYS_getppid => vec![
                argument(0),
                jump(libc::BPF_JEQ, STORE_MARK, 0, 1),
                answer(NOTIFY),
                answer(ALLOW),
            ],
            // Calls on the connection to the supervisor are not steps.
            libc::SYS_read | libc::SYS_write | libc::SYS_sendmsg => vec![
                argument(0),
                jump(libc::BPF_JGT, LAST_STANDARD_DESCRIPTOR, 0, 1),
                answer(NOTIFY),
                answer(ALLOW),
            ],
            // The allocator's calls are not steps, because an error there would end any program.
            libc::SYS_mmap => vec![
                argument(3),
                jump(libc::BPF_JSET, libc::MAP_ANONYMOUS as u32, 0, 3),
                argument(2),
                jump(
                    libc::BPF_JEQ,
                    (libc::PROT_READ | libc::PROT_WRITE) as u32,
                    0,
                    1,
                ),
                answer(ALLOW),
                answer(NOTIFY),
            ],
            // Calls for private locks are not steps, because the thread that finds a lock taken
            // depends on timing.
            libc::SYS_futex => vec![
                argument(1),
                jump(libc::BPF_JSET, libc::FUTEX_PRIVATE_FLAG as u32, 0, 1),
                answer(ALLOW),
                answer(NOTIFY),
            ],
            _ => vec![answer(NOTIFY)],
        };
        program.push(jump(libc::BPF_JEQ, number as u32, 0, body.len() as u8));
        program.extend(body);
    }
    program.push(answer(ALLOW));
    program
}

/// A call that a worker's thread is about to make.
pub(super) struct Notification {
    pub(super) id: u64,
    pub(super) thread: i32,
    pub(super) number: i32,
    pub(super) arguments: [u64; 6],
}

/// Receives the next notification. Returns `None` if its thread has ended or was interrupted.
pub(super) fn receive(listener: BorrowedFd<'_>) -> Result<Option<Notification>, Failure> {
    // SAFETY: all zeros are a valid value of this structure, and the kernel requires zeros. The
    // kernel fills the structure during the call.
    let (result, notification) = unsafe {
        let mut notification: seccomp_notif = zeroed();
        let request = libc::SECCOMP_IOCTL_NOTIF_RECV;
        let result = libc::ioctl(listener.as_raw_fd(), request, &mut notification);
        (result, notification)
    };
    if result != 0 {
        let error = io::Error::last_os_error();
        return match error.raw_os_error() {
            Some(libc::ENOENT | libc::EINTR) => Ok(None),
            _ => Err(Failure::new(format!("receiving a step: {error}"))),
        };
    }
    Ok(Some(Notification {
        id: notification.id,
        thread: notification.pid as i32,
        number: notification.data.nr,
        arguments: notification.data.args,
    }))
}

/// Responds to a notification. The call continues, or fails with `error`. Returns whether the
/// thread still exists.
pub(super) fn respond(listener: BorrowedFd<'_>, id: u64, error: Option<i32>) -> bool {
    let response = seccomp_notif_resp {
        id,
        val: 0,
        error: error.map_or(0, |error| -error),
        flags: match error {
            None => libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
            Some(_) => 0,
        },
    };
    let request = libc::SECCOMP_IOCTL_NOTIF_SEND;
    // SAFETY: the kernel reads the response during the call.
    unsafe { libc::ioctl(listener.as_raw_fd(), request, &response) == 0 }
}

/// Makes responses wake the thread on the same processor if the kernel supports it (Linux 6.6).
pub(super) fn wake_on_this_processor(listener: BorrowedFd<'_>) {
    const SYNC_WAKE_UP: libc::c_ulong = 1;
    let request = libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS;
    // SAFETY: the call takes only numbers. An older kernel rejects it, and nothing depends on its
    // success.
    unsafe { libc::ioctl(listener.as_raw_fd(), request, SYNC_WAKE_UP) };
}
