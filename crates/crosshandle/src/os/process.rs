//! This process and the machine it runs on.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Once, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the number of the CPU that runs the caller at the moment.
#[inline]
pub(crate) fn current_cpu() -> u32 {
    // SAFETY: takes no arguments and touches no memory of ours. With glibc it reads a word that
    // the kernel keeps up to date, without a call.
    let cpu = unsafe { libc::sched_getcpu() };
    // -1 where the kernel cannot say: then all threads seem to share one CPU and none spins.
    cpu as u32
}

/// Returns a number that is the same in all processes of one running kernel, containers included,
/// and differs between machines and boots. Never zero. Handles carry it;
/// [`AnyHandle::explain`](crate::handle::AnyHandle::explain) compares it.
pub fn host_identity() -> u64 {
    static IDENTITY: OnceLock<u64> = OnceLock::new();
    *IDENTITY.get_or_init(|| {
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        let digits: String = boot_id
            .unwrap_or_default()
            .chars()
            .filter(char::is_ascii_hexdigit)
            .take(16)
            .collect();
        // Without /proc all such processes count as one host; the broker still decides.
        u64::from_str_radix(&digits, 16).unwrap_or(1).max(1)
    })
}

/// Returns this process's number in its own PID namespace.
pub(crate) fn pid() -> u32 {
    std::process::id()
}

/// Returns the name of this process's program; empty if it cannot be told.
pub(crate) fn program() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Returns the present time in nanoseconds since 1970.
pub(crate) fn time() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

/// Fills `bytes` with random data of the kernel.
pub(crate) fn random(bytes: &mut [u8]) -> Result<(), rustix::io::Errno> {
    getrandom::fill(bytes).map_err(|error| {
        error
            .raw_os_error()
            .map_or(rustix::io::Errno::IO, rustix::io::Errno::from_raw_os_error)
    })
}

/// Returns the nanoseconds of the system's monotonic clock, which is the same in all processes.
pub(crate) fn monotonic_nanoseconds() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Calls `f` with all signals blocked, so that a thread that it starts never runs a handler.
pub(crate) fn without_signals<R>(f: impl FnOnce() -> R) -> R {
    /// Unblocks them, also when `f` panics.
    struct Restore(libc::sigset_t);
    impl Drop for Restore {
        fn drop(&mut self) {
            // SAFETY: the set is what pthread_sigmask has written, and nothing is to be returned.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, ptr::null_mut()) };
        }
    }
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: the first call fills `all`. The second one reads it and fills `before`; it fails
    // only for an unknown first argument.
    let _restore = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        Restore(before.assume_init())
    };
    f()
}

static FORKED: AtomicBool = AtomicBool::new(false);

/// Makes [`is_forked`] notice forks from now on.
pub(crate) fn watch_forks() {
    static WATCHING: Once = Once::new();
    extern "C" fn in_child() {
        FORKED.store(true, Ordering::Relaxed);
    }
    WATCHING.call_once(|| {
        // SAFETY: the handler only stores to an atomic, which is allowed after a fork.
        let result = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        if result != 0 {
            tracing::warn!(result, "a fork will not be noticed");
        }
    });
}

/// Returns whether this is a child made by `fork` without `exec`. It has copies of its parent's
/// objects, but what they share with other processes is still the parent's alone: the child must not
/// give it back, and locks may be held by threads that don't exist in the child.
#[inline]
pub(crate) fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}
