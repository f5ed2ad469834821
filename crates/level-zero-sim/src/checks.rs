//! Reports of wrong use. A driver may do anything then; this one says so.

use std::fs::OpenOptions;
use std::io::Write;
use std::sync::Mutex;

use crate::call::{current, describe};
use crate::switches::switches;

/// What a caller did that it must not do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Check {
    /// What was opened from a handle was destroyed, or what was created was closed.
    WrongClose,
    /// Something was closed or destroyed again.
    DoubleClose,
    /// Memory was freed again, or an address that is none was.
    DoubleFree,
    UseAfterDestroy,
    /// A handle that is none, or one of another kind.
    WrongHandle,
    /// A counter-based event was to be signalled from a list that is not in order.
    OutOfOrderSignal,
    /// A handle's descriptor is not open here, or leads to something else.
    ForeignDescriptor,
    /// A descriptor of the driver was closed by its user.
    DescriptorClosed,
    /// Bytes reached the driver that no driver has made.
    GarbageHandle,
    /// A handle of another version of the driver.
    ForeignVersion,
    /// Something was destroyed while commands use it.
    DestroyInUse,
    /// A context was destroyed before what lives in it.
    OutlivedContext,
    /// Commands reach beyond an allocation.
    OutOfBounds,
    /// Not the caller's fault.
    Panic,
}

impl Check {
    /// As reports and the switch `TOLERATE` have it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::WrongClose => "wrong-close",
            Self::DoubleClose => "double-close",
            Self::DoubleFree => "double-free",
            Self::UseAfterDestroy => "use-after-destroy",
            Self::WrongHandle => "wrong-handle",
            Self::OutOfOrderSignal => "out-of-order-signal",
            Self::ForeignDescriptor => "foreign-descriptor",
            Self::DescriptorClosed => "descriptor-closed",
            Self::GarbageHandle => "garbage-handle",
            Self::ForeignVersion => "foreign-version",
            Self::DestroyInUse => "destroy-in-use",
            Self::OutlivedContext => "outlived-context",
            Self::OutOfBounds => "out-of-bounds",
            Self::Panic => "panic",
        }
    }
}

static FOUND: Mutex<Vec<(Check, u64)>> = Mutex::new(Vec::new());

/// How often each check has found something.
pub(crate) fn found() -> Vec<(Check, u64)> {
    FOUND.lock().map(|found| found.clone()).unwrap_or_default()
}

/// Reports a wrong use. The call then fails, unless the switch says that the process is to.
pub(crate) fn misuse(check: Check, what: &str) {
    if switches().tolerated(check.name()) {
        return;
    }
    if let Ok(mut found) = FOUND.lock() {
        match found.iter_mut().find(|(known, _)| *known == check) {
            Some((_, count)) => *count += 1,
            None => found.push((check, 1)),
        }
    }
    let message = format!("{}: {}: {what}", check.name(), current());
    describe(&message);
    let pid = std::process::id();
    let line = format!("ze_sim[{pid}]: MISUSE {message}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(path) = &switches().log {
        let log = OpenOptions::new().append(true).create(true).open(path);
        let _ = log.and_then(|mut log| log.write_all(line.as_bytes()));
    }
    if switches().abort {
        std::process::abort();
    }
}
