//! This process and the machine it runs on.

pub use super::fork::{is_forked, watch_forks};

use super::fork::PerProcess;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the number of the CPU that currently runs the caller.
#[inline]
pub fn current_cpu() -> u32 {
    // SAFETY: the function takes no arguments and touches no memory of ours. With glibc it reads a
    // word that the kernel keeps up to date, without a system call.
    let cpu = unsafe { libc::sched_getcpu() };
    // If the kernel cannot tell (-1), all threads seem to share one CPU, and none spins.
    cpu as u32
}

/// Returns the identity of the running kernel, which handles contain.
///
/// It is the same in all processes of one kernel, including containers, and differs between
/// machines and boots. The result is 1 if it is unknown, for example without `/proc`.
/// `AnyHandle::explain` compares it.
pub fn host_identity() -> u64 {
    static IDENTITY: PerProcess<u64> = PerProcess::new(|| {
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        let digits: String = boot_id
            .unwrap_or_default()
            .chars()
            .filter(char::is_ascii_hexdigit)
            .take(16)
            .collect();
        u64::from_str_radix(&digits, 16)
            .unwrap_or(UNKNOWN_HOST)
            .max(UNKNOWN_HOST)
    });
    *IDENTITY
}

/// The result of [`host_identity`] without `/proc`.
const UNKNOWN_HOST: u64 = 1;

/// Returns whether a process with host identity `host` may run on this host. If one of the two
/// identities is unknown, the sockets decide, because processes of different hosts cannot find each
/// other's sockets.
#[inline]
pub fn may_be_this_host(host: u64) -> bool {
    let own = host_identity();
    host == own || host == UNKNOWN_HOST || own == UNKNOWN_HOST
}

/// Returns whether a user id may stand for several users. The kernel shows all users that a user
/// namespace does not map as the same id.
pub fn is_nobody(uid: u32) -> bool {
    /// Used if kernel.overflowuid cannot be read.
    const USUAL_OVERFLOW_UID: u32 = 65534;
    // Every connection asks, and administrators set this id before programs start.
    static OVERFLOW_UID: LazyLock<u32> = LazyLock::new(|| {
        let overflow = std::fs::read_to_string("/proc/sys/kernel/overflowuid");
        let overflow = overflow.ok().and_then(|text| text.trim().parse().ok());
        overflow.unwrap_or(USUAL_OVERFLOW_UID)
    });
    if uid != *OVERFLOW_UID {
        return false;
    }
    // The result is not cached, because a process may enter another namespace, whose map is written
    // later.
    !std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| maps_all_users(&map))
}

/// Returns whether a map of user ids equals the map of the initial user namespace.
fn maps_all_users(map: &str) -> bool {
    let mut lines = map.lines();
    let numbers: Vec<_> = lines.next().unwrap_or("").split_whitespace().collect();
    numbers == ["0", "0", "4294967295"] && lines.next().is_none()
}

/// Returns this process's id in its own PID namespace.
pub fn pid() -> u32 {
    std::process::id()
}

/// Returns the name of this process's program, or an empty string if it is unknown.
pub fn program() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Returns the name of a process's program as the kernel reports it, at most 15 bytes. The name is
/// empty if it is unknown.
pub fn program_of(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    name.map_or(String::new(), |name| name.trim_end().to_owned())
}

/// Returns the time at which a process started, in clock ticks since boot. Returns `None` if no
/// process has this id, or if `/proc` is missing.
pub fn start_time(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name is in brackets and may contain any characters. The start time is field 22
    // of proc_pid_stat(5), and the first field after the name is field 3.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    fields.nth(22 - 3)?.parse().ok()
}

/// Returns the current time in nanoseconds since 1970.
pub fn time() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

/// Fills `bytes` with random data from the kernel.
pub fn random(bytes: &mut [u8]) -> Result<(), rustix::io::Errno> {
    getrandom::fill(bytes).map_err(|error| {
        error
            .raw_os_error()
            .map_or(rustix::io::Errno::IO, rustix::io::Errno::from_raw_os_error)
    })
}

/// Returns the system's monotonic clock in nanoseconds, which is the same in all processes.
pub fn monotonic_nanoseconds() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Returns the time in nanoseconds of the system's monotonic clock at its latest tick, at most 10
/// ms ago. Reading it takes a fraction of the time of [`monotonic_nanoseconds`].
#[inline]
pub fn coarse_nanoseconds() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Calls `f` with all signals blocked, so that a thread that `f` starts never runs a signal
/// handler.
pub fn without_signals<R>(f: impl FnOnce() -> R) -> R {
    /// Restores the signal mask, even if `f` panics.
    struct Restore(libc::sigset_t);
    impl Drop for Restore {
        fn drop(&mut self) {
            // SAFETY: pthread_sigmask has written the set, and a null pointer asks for no old set.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, ptr::null_mut()) };
        }
    }
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: the first call fills `all`. The second call reads it and fills `before`. It fails
    // only for an unknown first argument.
    let _restore = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        Restore(before.assume_init())
    };
    f()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_identity_maps_all_users() {
        assert!(maps_all_users("         0          0 4294967295\n"));
        for map in [
            "",
            "0 100000 65536\n",
            "0 0 1\n",
            "0 0 65534\n65534 65534 9\n",
        ] {
            assert!(!maps_all_users(map), "{map}");
        }
    }

    #[test]
    fn ordinary_users_are_somebody() {
        assert!(!is_nobody(0) && !is_nobody(1000));
        assert!(may_be_this_host(host_identity()) && may_be_this_host(UNKNOWN_HOST));
        assert!(!may_be_this_host(host_identity() ^ 2));
    }
}
