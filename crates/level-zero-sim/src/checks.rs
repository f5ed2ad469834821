//! Reports of wrong use. The specification leaves the outcome of wrong use open, and this driver
//! reports it.

use std::fs::OpenOptions;
use std::io::Write;
use std::sync::Mutex;

use crate::call::current;
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
    /// A value is no handle, or is a handle of another kind.
    WrongHandle,
    /// A list that is not in order was asked to signal a counter-based event.
    OutOfOrderSignal,
    /// A handle's descriptor is not open in this process, or refers to another file.
    ForeignDescriptor,
    /// The program closed a descriptor that belongs to the driver.
    DescriptorClosed,
    /// The driver received bytes that no driver has made.
    GarbageHandle,
    /// A handle comes from another version of the driver.
    ForeignVersion,
    /// An object was destroyed while commands used it.
    DestroyInUse,
    /// A context was destroyed before the objects in it.
    OutlivedContext,
    /// A command accesses bytes beyond an allocation.
    OutOfBounds,
    /// This driver has a bug.
    Panic,
}

impl Check {
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

/// Returns the number of findings of each check.
pub(crate) fn found() -> Vec<(Check, u64)> {
    FOUND.lock().map(|found| found.clone()).unwrap_or_default()
}

/// Reports a wrong use. The caller then returns an error, or the switch `MISUSE` ends the process
/// here.
pub(crate) fn misuse(check: Check, what: &str) {
    if let Ok(mut found) = FOUND.lock() {
        match found.iter_mut().find(|(known, _)| *known == check) {
            Some((_, count)) => *count += 1,
            None => found.push((check, 1)),
        }
    }
    let message = format!("{}: {}: {what}", check.name(), current());
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
