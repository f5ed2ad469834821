//! A live exporter that does not reply is late, not dead.

use super::faults::{event_of, leave_unfinished, memory_of};
use crate::failure::{Failure, Verdict};
use crate::harness::{Harness, deadline, eventually};
use crate::procfs;
use crate::suite::PASSED;
use crate::{Peer, Transfer, pattern};
use crosshandle::{Access, Error};
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// A stopped process, which resumes when this value is dropped.
pub(super) struct Stopped<'a>(&'a Peer);

impl<'a> Stopped<'a> {
    pub(super) fn new(peer: &'a Peer) -> Result<Self, Failure> {
        peer.send(Signal::STOP);
        let stopped = Self(peer);
        // The threads stop some time after the signal was sent.
        eventually("a process stops", || Ok(procfs::is_stopped(peer.pid())?))?;
        Ok(stopped)
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.send(Signal::CONT);
    }
}

/// A live exporter that does not reply costs an importer its timeout and nothing else.
pub(crate) fn costs_no_more_than_the_timeout(harness: &Harness) -> Verdict {
    let (exporter, importer) = (harness.peer()?, harness.peer()?);
    let event = event_of(&exporter, "e")?;
    let memory = memory_of(&exporter, "m", 1)?;
    importer.ask("context hasty timeout=200")?;
    let stopped = Stopped::new(&exporter)?;
    let began = Instant::now();
    importer.refused(format!("open-event e {event} context=hasty"), "TimedOut")?;
    importer.refused(format!("open-memory m {memory} context=hasty"), "TimedOut")?;
    let taken = began.elapsed();
    assert!(taken >= Duration::from_millis(400), "{taken:?}");
    drop(stopped);
    importer.ask(format!("open-event e {event} context=hasty"))?;
    importer.ask(format!("open-memory m {memory} context=hasty"))?;
    importer.ask("check m 0 1 100000")?;
    exporter.ask("signal e")?;
    importer.ask("wait-value e 1 10000")?;
    PASSED
}

/// A late reply does not cost an importer its objects, because the exporter still keeps them.
pub(crate) fn keeps_its_importers(harness: &Harness) -> Verdict {
    let context = {
        let options = harness
            .options()
            .exchange_timeout(Duration::from_millis(200));
        crosshandle::Context::with_options(harness.device(), options)?
    };
    let transfer = Transfer::new(&context)?;
    let exporter = harness.peer()?;
    let event = context.open_event(&event_of(&exporter, "e")?)?;
    let first = memory_of(&exporter, "first", 1)?;
    let held = context.open_memory(&first)?;
    // The allocation is large, so its descriptor must be fetched.
    exporter.ask("allocate large 5000000")?;
    let large = exporter.ask("memory-handle large")?.remove(0).parse()?;
    leave_unfinished(&exporter, "e")?;
    let stopped = Stopped::new(&exporter)?;
    for _ in 0..2 {
        let late = context.open_memory(&large).expect_err("it is stopped");
        assert!(late.is_timeout(), "{late:?}");
    }
    // These are more requests than the exporter's queue has room for.
    for _ in 0..400 {
        let timeout = Duration::from_millis(1);
        let late = context.open_memory_timeout(&large, Access::ReadWrite, timeout);
        let late = late.expect_err("it is stopped");
        assert!(late.is_timeout(), "{late:?}");
    }
    // The exporter is late, not dead.
    assert!(!event.try_wait()?, "the signal is still under way");
    drop(stopped);
    let opened = context.open_memory(&large)?;
    transfer.write(&opened, 0, &pattern(9, 1_000))?;
    exporter.ask("check large 0 9 1000")?;
    exporter.ask("signal gate-e")?;
    event.wait_timeout(deadline())?;
    // The exporter does not reuse memory that is open here.
    exporter.ask("close first")?;
    for round in 0..10 {
        exporter.ask(format!("allocate other{round} 100000"))?;
        exporter.ask(format!("write other{round} 0 7 100000"))?;
    }
    transfer.check(&held, 0, 1, 100_000)?;
    assert!(matches!(context.open_memory(&first), Err(Error::Stale)));
    PASSED
}
