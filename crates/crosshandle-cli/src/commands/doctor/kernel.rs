//! Checks of the kernel: its version, its identity, and a system call that older ones lack.

use super::row::Row;
use crosshandle::{Context, Device, Error, Event};
use std::fs;
use std::time::Duration;

/// First version with `futex_waitv`, which waits for several words.
const HAS_FUTEX_WAITV: (u32, u32) = (5, 16);
/// First version with `MADV_COLLAPSE`, which collapses pages into huge ones.
const HAS_MADV_COLLAPSE: (u32, u32) = (6, 1);

pub(super) fn version() -> Row {
    const CHECK: &str = "kernel";
    let release = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    let Some(version) = parse(&release) else {
        return Row::note(
            CHECK,
            format!("Linux {release}, a version that says nothing"),
            "the checks below tell what works",
        );
    };
    if version < HAS_FUTEX_WAITV {
        return Row::problem(
            CHECK,
            format!("Linux {release}, without futex_waitv (5.16)"),
            "waits for any of several events need Linux 5.16 or later; the rest works",
        );
    }
    if version < HAS_MADV_COLLAPSE {
        return Row::note(
            CHECK,
            format!("Linux {release}, without MADV_COLLAPSE (6.1)"),
            "with Linux 6.1 or later large memory gets huge pages, and is several times faster \
             to allocate and to touch first",
        );
    }
    Row::ok(
        CHECK,
        format!("Linux {release}, with futex_waitv and MADV_COLLAPSE"),
    )
}

fn parse(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(str::parse::<u32>);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

pub(super) fn host_identity() -> Row {
    const CHECK: &str = "host identity";
    match fs::read_to_string("/proc/sys/kernel/random/boot_id") {
        Ok(_) => Row::ok(
            CHECK,
            format!(
                "{:016x}, of this boot; handles carry it",
                crosshandle::host_identity()
            ),
        ),
        Err(error) => Row::note(
            CHECK,
            format!("unknown, since the boot id cannot be read: {error}"),
            "mount /proc; until then a handle of another machine is refused less clearly",
        ),
    }
}

/// Waits for one of two events in fact, since a container may forbid the system call that the
/// kernel has.
pub(super) fn wait_for_several() -> Row {
    const CHECK: &str = "wait for several";
    let wait = || -> crosshandle::Result<usize> {
        let context = Context::new(&Device::find("host")?)?;
        let (first, second) = (context.create_event()?, context.create_event()?);
        let never = [(&first, 1), (&second, 1)];
        match Event::wait_any_value(&never, Some(Duration::from_millis(2))) {
            Err(Error::TimedOut(_)) => {}
            other => return other,
        }
        second.signal()?;
        Event::wait_any_value(&never, Some(Duration::from_secs(2)))
    };
    match wait() {
        Ok(1) => Row::ok(CHECK, "an event of two is noticed"),
        Ok(_) => Row::problem(
            CHECK,
            "an event that was not signalled counts as signalled",
            "please report this",
        ),
        Err(error) => {
            let advice = if error.raw_os_error().is_some() {
                "allow the system call futex_waitv in the container's seccomp profile"
            } else {
                "see the rows of the limits"
            };
            Row::problem(CHECK, error.to_string(), advice)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        assert_eq!(parse("6.18.44-fc"), Some((6, 18)));
        assert_eq!(parse("5.4.0"), Some((5, 4)));
        assert_eq!(parse("6.1-rc1"), Some((6, 1)));
        assert_eq!(parse("odd"), None);
        assert!((5, 15) < HAS_FUTEX_WAITV && (10, 0) > HAS_MADV_COLLAPSE);
    }
}
