//! Checks of the kernel: its version, the host's identity, and a system call that older kernels
//! lack.

use super::check::Check;
use crosshandle::event::EventSet;
use crosshandle::{Context, Device, Error};
use std::fs;
use std::time::Duration;

/// Time that `doctor` waits for events that are not signalled.
///
/// The wait must reach the kernel, which takes microseconds. A longer wait would delay the report.
const DOCTOR_UNSIGNALLED_WAIT: Duration = Duration::from_millis(2);

/// Maximum time that `doctor` waits for an event that is already signalled.
///
/// The wait returns at once unless the system call does not work.
const DOCTOR_SIGNALLED_WAIT: Duration = Duration::from_secs(2);

/// First version with `futex_waitv`, which waits for several words.
const FUTEX_WAITV_VERSION: (u32, u32) = (5, 16);
/// First version with `MADV_COLLAPSE`, which collapses pages into huge pages.
const MADV_COLLAPSE_VERSION: (u32, u32) = (6, 1);

pub(super) fn version() -> Check {
    const CHECK: &str = "kernel";
    let release = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    let Some(version) = parse_release(&release) else {
        return Check::note(
            CHECK,
            format!("Linux {release}, an unknown version"),
            "the checks below show what works",
        );
    };
    if version < FUTEX_WAITV_VERSION {
        return Check::problem(
            CHECK,
            format!("Linux {release}, without futex_waitv (5.16)"),
            "waits for any of several events need Linux 5.16 or later; everything else works",
        );
    }
    if version < MADV_COLLAPSE_VERSION {
        return Check::note(
            CHECK,
            format!("Linux {release}, without MADV_COLLAPSE (6.1)"),
            "with Linux 6.1 or later large memory gets huge pages, and is several times faster \
             to allocate and to touch first",
        );
    }
    Check::ok(
        CHECK,
        format!("Linux {release}, with futex_waitv and MADV_COLLAPSE"),
    )
}

/// Parses the major and the minor version in a kernel release.
fn parse_release(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(str::parse::<u32>);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

pub(super) fn host_identity() -> Check {
    const CHECK: &str = "host identity";
    match fs::read_to_string("/proc/sys/kernel/random/boot_id") {
        Ok(_) => Check::ok(
            CHECK,
            format!(
                "{:016x}, of this boot; handles carry it",
                crosshandle::report::host_identity()
            ),
        ),
        Err(error) => Check::note(
            CHECK,
            format!("unknown, since the boot id cannot be read: {error}"),
            "mount /proc; without it, the error for a handle of another machine is less clear",
        ),
    }
}

/// Checks that a thread can wait for one of two events. The check makes such a wait, because a
/// container may forbid the system call even if the kernel supports it.
pub(super) fn wait_for_several() -> Check {
    const CHECK: &str = "wait for several";
    let wait = || -> crosshandle::Result<usize> {
        let context = Context::new(&Device::find("host")?)?;
        let (first, second) = (context.create_event()?, context.create_event()?);
        let signals = EventSet::latest([&first, &second]);
        match signals.wait_any_timeout(DOCTOR_UNSIGNALLED_WAIT) {
            Err(Error::TimedOut(_)) => {}
            other => return other,
        }
        second.signal()?;
        signals.wait_any_timeout(DOCTOR_SIGNALLED_WAIT)
    };
    match wait() {
        Ok(1) => Check::ok(CHECK, "a signal of one of two events is noticed"),
        Ok(_) => Check::problem(
            CHECK,
            "an event that was not signalled is reported as signalled",
            "please report this",
        ),
        Err(error) => {
            let advice = if error.raw_os_error().is_some() {
                "allow the system call futex_waitv in the container's seccomp profile"
            } else {
                "see the rows of the limits"
            };
            Check::problem(CHECK, error.to_string(), advice)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        assert_eq!(parse_release("6.18.44-fc"), Some((6, 18)));
        assert_eq!(parse_release("5.4.0"), Some((5, 4)));
        assert_eq!(parse_release("6.1-rc1"), Some((6, 1)));
        assert_eq!(parse_release("odd"), None);
        assert!((5, 15) < FUTEX_WAITV_VERSION && (10, 0) > MADV_COLLAPSE_VERSION);
    }
}
