//! Reports on request: made by one background thread, one after another, however many ask.

use super::protocol::Refusal;
use crate::ipc::tuning::MAX_REPORT_BYTES;
use crate::os::fork::PerProcess;
use crate::os::memfd;
use crate::sync::Mutex;
use crate::threads::driver_jobs;
use crate::types::report::ProcessReport;
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The file of a report, or the reason why there is none.
type Made = Result<Arc<OwnedFd>, Refusal>;

/// What is to be done with a report once it is made.
type Asker = Box<dyn FnOnce(Made) + Send>;

/// Those who wait for a report.
struct Askers {
    waiting: Vec<Asker>,
    /// Whether a background thread makes reports.
    is_busy: bool,
}

static ASKERS: PerProcess<Mutex<Askers>> = PerProcess::new(|| {
    Mutex::new(Askers {
        waiting: Vec::new(),
        is_busy: false,
    })
});

/// Has a report made by `describe`, and calls `asker` with it; both on a background thread. All who
/// ask while one is made get the next one, so that many cost no more than one thread.
pub(super) fn make_for(describe: fn() -> ProcessReport, asker: impl FnOnce(Made) + Send + 'static) {
    let mut askers = ASKERS.lock();
    askers.waiting.push(Box::new(asker));
    if mem::replace(&mut askers.is_busy, true) {
        return;
    }
    drop(askers);
    // Contexts are let go of afterwards, which may call a driver.
    driver_jobs::run(move || make_all(describe));
}

fn make_all(describe: fn() -> ProcessReport) {
    /// Lets others make reports, also after a panic.
    struct Busy;
    impl Drop for Busy {
        fn drop(&mut self) {
            ASKERS.lock().is_busy = false;
        }
    }
    let busy = Busy;
    loop {
        let mut askers = ASKERS.lock();
        let waiting = mem::take(&mut askers.waiting);
        if waiting.is_empty() {
            // Under the lock, so that nobody is left waiting.
            askers.is_busy = false;
            mem::forget(busy);
            return;
        }
        drop(askers);
        let made = file_of(&describe());
        for asker in waiting {
            asker(made.clone());
        }
    }
}

/// Writes a report to a file that nobody can change.
fn file_of(report: &ProcessReport) -> Made {
    let json = serde_json::to_vec(report).map_err(|_| Refusal::NoRoom)?;
    if json.len() > MAX_REPORT_BYTES {
        return Err(Refusal::NoRoom);
    }
    let file = memfd::create_constant("crosshandle-report", &json);
    file.map(Arc::new).map_err(|_| Refusal::NoRoom)
}
