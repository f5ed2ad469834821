//! Reports of wrong use. A driver may do anything then; this one says so.

use std::fs::OpenOptions;
use std::io::Write;
use std::sync::Mutex;

use crate::call::{current, describe};
use crate::switches::switches;

/// A wrong use that the driver recognises.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Check {
    /// An opened object was destroyed, or a created one was closed.
    WrongClose,
    /// An object was closed or destroyed twice.
    DoubleClose,
    /// An address was freed twice, or was never allocated.
    DoubleFree,
    UseAfterDestroy,
    /// A value that is no handle, or a handle of another kind.
    WrongHandle,
    /// A counter-based event was to be signalled from a list that is not in order.
    OutOfOrderSignal,
    /// A handle's descriptor is not open in this process, or leads to another file.
    ForeignDescriptor,
    /// A descriptor of the driver was closed by its user.
    DescriptorClosed,
    /// Bytes reached the driver that no driver has made.
    GarbageHandle,
    /// A handle of another version of the driver.
    ForeignVersion,
    /// An object was destroyed while commands use it.
    DestroyInUse,
    /// A context was destroyed before the objects in it.
    OutlivedContext,
    /// Commands reach beyond an allocation.
    OutOfBounds,
    /// A defect of this driver.
    Panic,
}

impl Check {
    /// The name in reports and in the switch `TOLERATE`.
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

/// The number of findings of each check.
pub(crate) fn found() -> Vec<(Check, u64)> {
    FOUND.lock().map(|found| found.clone()).unwrap_or_default()
}

/// Reports a wrong use, after which the call fails. Ends the process if the switch says so.
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
