//! Reports on request. One background thread makes them one after another, however many processes
//! ask.

use super::protocol::Refusal;
use crosshandle_os::fork::PerProcess;
use crosshandle_os::memfd;
use crosshandle_os::threads::driver_jobs;
use crosshandle_types::report::ProcessReport;
use crosshandle_types::sync::Mutex;
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Maximum size of a report in bytes. The receiver rejects a report that is four times as long.
const MAX_REPORT_BYTES: usize = 16 << 20;

/// The file of a report, or the reason why it could not be made.
type Made = Result<Arc<OwnedFd>, Refusal>;

/// A callback that receives a report.
type Asker = Box<dyn FnOnce(Made) + Send>;

/// The callbacks that wait for a report.
struct Askers {
    waiting: Vec<Asker>,
    /// Whether a background thread is making reports.
    is_busy: bool,
}

static ASKERS: PerProcess<Mutex<Askers>> = PerProcess::new(|| {
    Mutex::new(Askers {
        waiting: Vec::new(),
        is_busy: false,
    })
});

/// Calls `asker` with a report that `describe` makes, both on a background thread. All requests
/// that arrive while a report is being made share the next one, so that many requests need only one
/// thread.
pub(super) fn make_for(describe: fn() -> ProcessReport, asker: impl FnOnce(Made) + Send + 'static) {
    let mut askers = ASKERS.lock();
    askers.waiting.push(Box::new(asker));
    if mem::replace(&mut askers.is_busy, true) {
        return;
    }
    drop(askers);
    // Contexts are released after the report, which may call a driver.
    driver_jobs::run(move || make_all(describe));
}

fn make_all(describe: fn() -> ProcessReport) {
    /// Dropping this lets other threads make reports, even after a panic.
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
            // The lock is held, so that no callback is left waiting.
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

/// Writes a report to a file that no process can change.
fn file_of(report: &ProcessReport) -> Made {
    let json = serde_json::to_vec(report).map_err(|_| Refusal::NoRoom)?;
    if json.len() > MAX_REPORT_BYTES {
        return Err(Refusal::NoRoom);
    }
    let file = memfd::create_constant("crosshandle-report", &json);
    file.map(Arc::new).map_err(|_| Refusal::NoRoom)
}
