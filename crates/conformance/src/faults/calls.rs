//! The system calls that are steps, and the errors that each can return.

use libc::c_long;

/// Marker in the first argument of `getppid` that announces a store to shared memory. A library
/// built with `--cfg fault_steps` makes this call before each such store.
pub(super) const STORE_MARK: u32 = 0x7848_5354;

/// A system call that is a step.
pub(super) struct Call {
    pub(super) name: &'static str,
    pub(super) number: c_long,
    /// Whether the call may wake another thread.
    pub(super) wakes: bool,
    /// Errors that the call can return to a correct program. If the list is empty, only kills and
    /// stops are injected.
    pub(super) errors: &'static [(&'static str, i32)],
}

const EMFILE: (&str, i32) = ("EMFILE", libc::EMFILE);
const ENOMEM: (&str, i32) = ("ENOMEM", libc::ENOMEM);
const ENOBUFS: (&str, i32) = ("ENOBUFS", libc::ENOBUFS);
const EINTR: (&str, i32) = ("EINTR", libc::EINTR);
const EAGAIN: (&str, i32) = ("EAGAIN", libc::EAGAIN);
const ENOSPC: (&str, i32) = ("ENOSPC", libc::ENOSPC);
const EACCES: (&str, i32) = ("EACCES", libc::EACCES);
const ENOLCK: (&str, i32) = ("ENOLCK", libc::ENOLCK);
const ECONNREFUSED: (&str, i32) = ("ECONNREFUSED", libc::ECONNREFUSED);
const ECONNABORTED: (&str, i32) = ("ECONNABORTED", libc::ECONNABORTED);

const fn call(
    name: &'static str,
    number: c_long,
    wakes: bool,
    errors: &'static [(&'static str, i32)],
) -> Call {
    Call {
        name,
        number,
        wakes,
        errors,
    }
}

/// The system calls that are steps. `close` and `munmap` have no errors here. In reality `close`
/// always closes the descriptor, so an injected error without the call would be unrealistic.
pub(super) const CALLS: &[Call] = &[
    call("socket", libc::SYS_socket, false, &[EMFILE, ENOBUFS]),
    call("socketpair", libc::SYS_socketpair, false, &[EMFILE]),
    call("bind", libc::SYS_bind, false, &[ENOSPC, EACCES]),
    call("listen", libc::SYS_listen, false, &[ENOBUFS]),
    call(
        "connect",
        libc::SYS_connect,
        true,
        &[ECONNREFUSED, EINTR, EAGAIN],
    ),
    call(
        "accept4",
        libc::SYS_accept4,
        true,
        &[EMFILE, ECONNABORTED, EINTR],
    ),
    call(
        "sendmsg",
        libc::SYS_sendmsg,
        true,
        &[ENOBUFS, EAGAIN, EINTR],
    ),
    call("sendto", libc::SYS_sendto, true, &[ENOBUFS, EAGAIN, EINTR]),
    call("recvmsg", libc::SYS_recvmsg, true, &[ENOMEM, EINTR]),
    call("recvfrom", libc::SYS_recvfrom, true, &[ENOMEM, EINTR]),
    call("getsockopt", libc::SYS_getsockopt, false, &[ENOMEM]),
    call("setsockopt", libc::SYS_setsockopt, false, &[ENOMEM]),
    call("shutdown", libc::SYS_shutdown, true, &[]),
    call("mmap", libc::SYS_mmap, false, &[ENOMEM]),
    call("munmap", libc::SYS_munmap, false, &[]),
    call("mremap", libc::SYS_mremap, false, &[]),
    call("madvise", libc::SYS_madvise, false, &[ENOMEM, EAGAIN]),
    call(
        "memfd_create",
        libc::SYS_memfd_create,
        false,
        &[EMFILE, ENOMEM],
    ),
    call("ftruncate", libc::SYS_ftruncate, false, &[ENOSPC, EINTR]),
    call("fallocate", libc::SYS_fallocate, false, &[ENOSPC, EINTR]),
    call("fcntl", libc::SYS_fcntl, true, &[ENOMEM]),
    // The kernel returns no error when seals are read, or added to memory that nothing else uses.
    call("fcntl_seal", libc::SYS_fcntl, false, &[]),
    call("fcntl_lock", libc::SYS_fcntl, true, &[ENOLCK, EINTR]),
    call("fcntl_dup", libc::SYS_fcntl, false, &[EMFILE]),
    call("flock", libc::SYS_flock, true, &[ENOLCK, EINTR]),
    call("futex_wait", libc::SYS_futex, true, &[EINTR, EAGAIN]),
    call("futex_wake", libc::SYS_futex, true, &[]),
    call("futex", libc::SYS_futex, true, &[]),
    call("futex_waitv", libc::SYS_futex_waitv, true, &[EINTR, EAGAIN]),
    call("close", libc::SYS_close, true, &[]),
    call(
        "epoll_create1",
        libc::SYS_epoll_create1,
        false,
        &[EMFILE, ENOMEM],
    ),
    call("epoll_ctl", libc::SYS_epoll_ctl, true, &[ENOMEM, ENOSPC]),
    // Only adding a descriptor needs memory.
    call("epoll_change", libc::SYS_epoll_ctl, true, &[]),
    #[cfg(target_arch = "x86_64")]
    call("epoll_wait", libc::SYS_epoll_wait, true, &[EINTR]),
    call("epoll_pwait", libc::SYS_epoll_pwait, true, &[EINTR]),
    call("epoll_pwait2", libc::SYS_epoll_pwait2, true, &[EINTR]),
    #[cfg(target_arch = "x86_64")]
    call("poll", libc::SYS_poll, true, &[EINTR]),
    call("ppoll", libc::SYS_ppoll, true, &[EINTR]),
    call("eventfd2", libc::SYS_eventfd2, false, &[EMFILE, ENOMEM]),
    call("dup", libc::SYS_dup, false, &[EMFILE]),
    call("dup3", libc::SYS_dup3, false, &[]),
    call("openat", libc::SYS_openat, false, &[EMFILE, EINTR, EACCES]),
    #[cfg(target_arch = "x86_64")]
    call("unlink", libc::SYS_unlink, false, &[EACCES]),
    call("unlinkat", libc::SYS_unlinkat, false, &[EACCES]),
    #[cfg(target_arch = "x86_64")]
    call("mkdir", libc::SYS_mkdir, false, &[EACCES, ENOSPC]),
    call("mkdirat", libc::SYS_mkdirat, false, &[EACCES, ENOSPC]),
    call("statx", libc::SYS_statx, false, &[EACCES]),
    call("newfstatat", libc::SYS_newfstatat, false, &[]),
    call("getdents64", libc::SYS_getdents64, false, &[]),
    call("getrandom", libc::SYS_getrandom, false, &[EINTR]),
    call("clone3", libc::SYS_clone3, true, &[EAGAIN]),
    call("exit", libc::SYS_exit, true, &[]),
    call("read", libc::SYS_read, true, &[EINTR]),
    call("write", libc::SYS_write, true, &[EINTR]),
    call("store", libc::SYS_getppid, false, &[]),
];

pub(super) fn find(number: i32, arguments: &[u64; 6]) -> Option<&'static Call> {
    let number = c_long::from(number);
    let name = match number {
        libc::SYS_futex => match arguments[1] as i32 & 0x7f {
            libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET => "futex_wait",
            libc::FUTEX_WAKE | libc::FUTEX_WAKE_BITSET => "futex_wake",
            _ => "futex",
        },
        libc::SYS_epoll_ctl => match arguments[1] as i32 {
            libc::EPOLL_CTL_ADD => "epoll_ctl",
            _ => "epoll_change",
        },
        libc::SYS_fcntl => match arguments[1] as i32 {
            libc::F_ADD_SEALS | libc::F_GET_SEALS => "fcntl_seal",
            libc::F_OFD_SETLK | libc::F_OFD_SETLKW | libc::F_OFD_GETLK => "fcntl_lock",
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => "fcntl_dup",
            _ => "fcntl",
        },
        _ => return CALLS.iter().find(|call| call.number == number),
    };
    named(name)
}

/// Finds the call of a step by its name.
pub(super) fn named(name: &str) -> Option<&'static Call> {
    CALLS.iter().find(|call| call.name == name)
}

pub(super) fn error(name: &str) -> Option<(&'static str, i32)> {
    let mut all = CALLS.iter().flat_map(|call| call.errors);
    all.find(|(known, _)| *known == name).copied()
}
