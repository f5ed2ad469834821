//! Commands that make the kernel refuse calls from now on, as older kernels and sandboxes do.

use crate::request::{CommandError, Reply, Request, done};
use libc::{sock_filter, sock_fprog};
use std::mem::offset_of;

pub(crate) fn execute(request: &Request<'_>) -> Option<Reply> {
    Some(match request.command {
        "forbid-passrights" => forbid_passrights(),
        "forbid-calls" => forbid_calls(request),
        _ => return None,
    })
}

/// Makes the kernel refuse the socket option `SO_PASSRIGHTS`, as before Linux 6.16.
fn forbid_passrights() -> Reply {
    const SO_PASSRIGHTS: u32 = 83;
    /// Offset of the low half of the call's third argument.
    const OPTION: usize = offset_of!(libc::seccomp_data, args)
        + 2 * size_of::<u64>()
        + if cfg!(target_endian = "little") { 0 } else { 4 };
    install(&[
        load(offset_of!(libc::seccomp_data, nr)),
        unless(libc::SYS_setsockopt, 3),
        load(OPTION),
        unless(SO_PASSRIGHTS.into(), 1),
        refuse(libc::ENOPROTOOPT),
        answer(libc::SECCOMP_RET_ALLOW),
    ])
}

/// `forbid-calls CALL…`: makes the kernel refuse these calls, as container runtimes do.
fn forbid_calls(request: &Request<'_>) -> Reply {
    let mut filter = vec![load(offset_of!(libc::seccomp_data, nr))];
    for call in request.words_from(0) {
        let number = match *call {
            "io_uring_setup" => libc::SYS_io_uring_setup,
            "futex_waitv" => libc::SYS_futex_waitv,
            other => return Err(CommandError::usage(format!("the call {other:?}"))),
        };
        filter.extend([unless(number, 1), refuse(libc::EPERM)]);
    }
    filter.push(answer(libc::SECCOMP_RET_ALLOW));
    install(&filter)
}

/// Installs a filter for all threads of this process.
fn install(filter: &[sock_filter]) -> Reply {
    let program = sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: the calls read the filter, which is valid until they return.
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

fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    }
}

/// Returns an instruction that loads a word of the filter's input, at an offset in bytes.
fn load(at: usize) -> sock_filter {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at as u32)
}

/// Returns an instruction that skips `skipped` instructions unless the loaded word is `value`.
fn unless(value: i64, skipped: u8) -> sock_filter {
    let code = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    sock_filter {
        jf: skipped,
        ..statement(code, value as u32)
    }
}

fn refuse(errno: i32) -> sock_filter {
    answer(libc::SECCOMP_RET_ERRNO | errno as u32)
}

fn answer(value: u32) -> sock_filter {
    statement(libc::BPF_RET | libc::BPF_K, value)
}
