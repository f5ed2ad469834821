//! Queues, which run commands asynchronously and in order.

use crate::api::command::{Command, LATEST, SUBMITTED};
use crate::api::context::{Context, OpenContext};
use crate::api::event::device::{HostWord, Recorder};
use crate::api::event::{Event, EventOptions};
use crate::api::memory::Opened;
use crosshandle_events::Outcome;
use crosshandle_hal::{BackendQueue, HostFunction, Launch, Submission, WaitList, WaitPoint, Work};
use crosshandle_handle::BackendKind;
use crosshandle_ipc::EventCore;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::observe::trace::{self, Step};
use crosshandle_types::sync::Deadline;
use crosshandle_types::{NativeObject, QueueOrder};
use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A queue of commands for a device. Any thread may submit commands. Submitted commands still run
/// after the queue is dropped.
///
/// ```
/// use crosshandle::{Command, Context, Device};
/// use std::time::Duration;
///
/// # fn main() -> crosshandle::Result<()> {
/// let context = Context::new(&Device::find("host")?)?;
/// let (source, copy) = (context.allocate(4096)?, context.allocate(4096)?);
/// let queue = context.create_queue()?;
/// queue.submit(Command::fill(source.all(), &[7])?)?;
/// queue.submit(Command::copy(source.all(), copy.all())?)?;
/// queue.finish_timeout(Duration::from_secs(30))?;
/// let mut bytes = [0; 4096];
/// copy.read(0, &mut bytes)?;
/// assert!(bytes.iter().all(|byte| *byte == 7));
/// # Ok(())
/// # }
/// ```
pub struct Queue {
    inner: Box<dyn BackendQueue>,
    order: QueueOrder,
    backend: BackendKind,
    /// Whether commands can access only memory that the host can access.
    host_memory_only: bool,
    /// The context, if it is still open.
    context: Weak<OpenContext>,
    /// Whether the program may capture the driver's queue.
    pub(super) is_adopted: bool,
    /// Counts the bytes that commands of the context's queues copy.
    copied: Arc<AtomicU64>,
}

impl Queue {
    pub(crate) fn new(
        inner: Box<dyn BackendQueue>,
        order: QueueOrder,
        context: &Context,
        copied: &Arc<AtomicU64>,
    ) -> Self {
        let device = context.device().info();
        Self {
            inner,
            order,
            backend: device.backend,
            host_memory_only: device.capabilities.host_memory_only,
            context: context.downgrade(),
            is_adopted: false,
            copied: Arc::clone(copied),
        }
    }

    /// Returns the order in which the queue runs commands.
    pub fn order(&self) -> QueueOrder {
        self.order
    }

    /// Returns the driver's own queue, for programs that also submit work through the driver.
    /// Returns `None` if the backend has no such queue. The commands of this queue and the
    /// program's own work run in the order in which they were submitted. If this queue is out of
    /// order, only its barriers order them. After the first call of this function,
    /// [`finish`](Self::finish) and [`is_idle`](Self::is_idle) also cover the program's own work.
    pub fn native(&self) -> Option<NativeObject> {
        let native = self.inner.native()?;
        Some(NativeObject::new(self.backend, native.share()))
    }

    /// Submits a command.
    ///
    /// # Errors
    /// The errors that the driver or the system reports at once. A command that fails later fails
    /// the event that it signals. If it signals none, [`finish`](Self::finish) returns the error.
    #[inline]
    pub fn submit(&self, mut command: Command) -> Result<()> {
        if command.divided.is_some() {
            return self.submit_divided(command);
        }
        let result = self.resolve_and_run(&mut command.submission);
        if result.is_err() {
            drop(command.submission.take());
        }
        // The submission is empty now, and the command has no parts, so nothing in it needs to be
        // dropped.
        mem::forget(command);
        result
    }

    /// Submits the parts of a graph whose nodes have events or call functions.
    #[cold]
    fn submit_divided(&self, command: Command) -> Result<()> {
        let Command {
            mut submission,
            divided,
        } = command;
        let Some(run) = divided else {
            return Ok(());
        };
        let submit = |part: &mut Submission| self.resolve_and_run(part);
        run.submit(self.order, &self.copied, &mut submission, submit)
    }

    /// Resolves the waits of a command and submits it. Leaves the submission empty, unless it
    /// returns an error.
    fn resolve_and_run(&self, submission: &mut Submission) -> Result<()> {
        if let Some(capture) = self.capture()? {
            return self.record(&mut submission.take(), capture);
        }
        if !submission.waits.is_empty() {
            resolve_waits(submission);
        }
        self.run(submission)
    }

    /// Submits a command whose waits are resolved, and leaves the submission empty.
    #[inline(always)]
    fn run(&self, submission: &mut Submission) -> Result<()> {
        if let Some(event) = &submission.signal
            && event.is_single_signaller()
        {
            return self.run_and_count(submission.take());
        }
        let checked = self.check(submission);
        let result = checked.and_then(|()| self.inner.submit(submission));
        if !submission.is_taken() {
            drop(submission.take());
        }
        result
    }

    /// Checks that this queue can run the command, and marks events whose signal may fail.
    #[inline(always)]
    fn check(&self, submission: &mut Submission) -> Result<()> {
        match &submission.work {
            Work::Marker => {}
            Work::Call(_) => submission.may_fail = true,
            Work::Native(_) if self.inner.native().is_none() => {
                return Err(Error::Unsupported(
                    "there is no driver's queue behind this one".into(),
                ));
            }
            Work::Recorded(_) => {
                return Err(Error::Unsupported(
                    "commands that the program recorded by the driver run only in a graph; add them \
                     to one"
                        .into(),
                ));
            }
            Work::Graph(run) if !Arc::ptr_eq(&run.counter, &self.copied) => {
                return Err(Error::invalid(
                    "this graph was made in another context; a queue runs graphs of its own context",
                ));
            }
            Work::CopyImage(copy) if !Arc::ptr_eq(&copy.counter, &self.copied) => {
                return Err(Error::invalid(
                    "this image was made in another context; a queue copies pixels of its own context's",
                ));
            }
            _ if self.host_memory_only && !submission.is_on_host => {
                return Err(Error::Unsupported(
                    "the host cannot access this device's memory directly; copy it with a queue of \
                     the device"
                        .into(),
                ));
            }
            work => self.count_copied(work),
        }
        if submission.may_fail
            && let Some(event) = &submission.signal
        {
            event.mark_fallible();
        }
        Ok(())
    }

    /// Returns the driver's number of the capture that records submissions to this queue, if there
    /// is one.
    #[inline]
    fn capture(&self) -> Result<Option<u64>> {
        match self.is_adopted {
            true => self
                .inner
                .native()
                .map_or(Ok(None), |queue| queue.capture()),
            false => Ok(None),
        }
    }

    fn open_context(&self) -> Result<Context> {
        Context::upgrade(&self.context)
            .ok_or_else(|| Error::invalid("the context of this queue was dropped"))
    }

    /// Records a command in the graph that other code captures. The waits are not resolved.
    #[cold]
    fn record(&self, submission: &mut Submission, capture: u64) -> Result<()> {
        let context = self.open_context()?;
        let queue = self.inner.native().expect("captured");
        let is_next = |wait: &WaitPoint| matches!(wait.number, LATEST | SUBMITTED);
        if !submission.waits.iter().all(is_next) {
            return Err(Error::Unsupported(
                "this stream is being captured: replays would wait for the same number again; wait \
                 without a number, for the next signal"
                    .into(),
            ));
        }
        if !matches!(submission.work, Work::Marker | Work::Launch(_)) {
            return Err(Error::Unsupported(
                "this stream is being captured: only waits, launches of kernels and signals can be \
                 recorded"
                    .into(),
            ));
        }
        for wait in submission.waits.iter() {
            Recorder::record_wait(&context, queue, capture, &wait.event)?;
        }
        if let Work::Launch(launch) = mem::take(&mut submission.work) {
            queue.record(launch).map(drop)?;
        }
        if let Some(event) = &submission.signal {
            Recorder::record_signal(&context, queue, capture, event)?;
        }
        Ok(())
    }

    /// Submits a command whose signal is counted on the device.
    #[cold]
    fn run_and_count(&self, mut submission: Submission) -> Result<()> {
        let Some(event) = submission.signal.take() else {
            return self.run(&mut submission);
        };
        let context = self.open_context()?;
        let before_later = mem::take(&mut submission.before_later);
        let is_nothing = matches!(submission.work, Work::Marker) && submission.waits.is_empty();
        let is_fallible = submission.may_fail
            || !submission.waits.is_empty()
            || matches!(submission.work, Work::Call(_));
        let launch = if is_fallible {
            self.run_fallible(&context, submission, &event)?
        } else {
            let launch = Recorder::signal_once(&context, &event, None)?;
            if !is_nothing {
                self.run(&mut submission)?;
            }
            launch
        };
        let mut signal = Submission::new(Work::Launch(Box::new(launch)));
        signal.is_on_host = false;
        signal.after_earlier = true;
        signal.before_later = before_later;
        self.run(&mut signal)
    }

    /// Submits a command that may fail, and returns the launch that then signals `event`. The
    /// launch fails the event unless the command has succeeded.
    fn run_fallible(
        &self,
        context: &Context,
        mut submission: Submission,
        event: &Arc<EventCore>,
    ) -> Result<Launch> {
        let fault = Arc::new(HostWord::new(context)?);
        fault.set(1);
        let launch = Recorder::signal_once(context, event, Some(&fault))?;
        let step = Event::create(context.core(), EventOptions::new().shareable(false))?;
        submission.signal = Some(Arc::clone(step.core()));
        submission.may_fail = true;
        self.run(&mut submission)?;
        // This function is not called if the command has failed.
        let succeed = move || {
            fault.clear(1);
            Ok(())
        };
        let mut success = Submission::new(Work::Call(HostFunction::Once(Box::new(succeed))));
        success.waits = WaitList::One(WaitPoint::new(step.core(), 1));
        // The event takes the failure, which `finish` would return otherwise.
        success.signal = Some(Arc::clone(step.core()));
        self.run(&mut success)?;
        Ok(launch)
    }

    /// Counts the bytes that a command copies, for reports.
    #[inline]
    fn count_copied(&self, work: &Work) {
        let (bytes, to, from) = match work {
            Work::Copy { to, from, len } => (*len, to, from),
            Work::CopyRect(copy) => (copy.region.bytes(), &copy.to, &copy.from),
            Work::CopyImage(copy) => {
                self.copied.fetch_add(copy.bytes as u64, Ordering::Relaxed);
                let memory = [copy.to.operand(), copy.from.operand()];
                let memory = memory.into_iter().flatten();
                return memory.for_each(|memory| Opened::count_copied(memory, copy.bytes));
            }
            // The bytes are counted only for the graph's context. Finding the memory of each node
            // would cost time in every run.
            Work::Graph(run) => {
                self.copied.fetch_add(run.copied, Ordering::Relaxed);
                return;
            }
            _ => return,
        };
        self.copied.fetch_add(bytes as u64, Ordering::Relaxed);
        trace::begin().end(|| Step::Submit("submit copy", bytes));
        Opened::count_copied(to, bytes);
        Opened::count_copied(from, bytes);
    }

    /// Signals an event when all commands that were submitted before are complete.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn signal(&self, event: &Event) -> Result<()> {
        let mut barrier = Submission::barrier();
        barrier.signal = Some(Arc::clone(event.core()));
        let result = match self.capture()? {
            Some(capture) => self.record(&mut barrier.take(), capture),
            None => self.run(&mut barrier),
        };
        mem::forget(barrier);
        result
    }

    /// Signals as [`signal`](Self::signal) does, and returns the signal's number. The number is
    /// right even if other threads or processes signal the event at the same time.
    ///
    /// # Errors
    /// As [`submit`](Self::submit). Also [`Error::Unsupported`] for an event with a single
    /// signaller, whose signals the device counts.
    pub fn signal_numbered(&self, event: &Event) -> Result<u64> {
        if event.has_single_signaller() {
            return Err(Error::Unsupported(
                "the device counts the signals of an event with a single signaller, so this queue \
                 does not know their numbers"
                    .into(),
            ));
        }
        let number = event.core().number_issued_by(|| self.signal(event))?;
        // Every backend takes the number during the call, and records it.
        number.ok_or(crate::Error::Unsupported(
            "this queue does not tell the numbers of its signals".into(),
        ))
    }

    /// Makes all commands that are submitted later wait for the latest signal of an event. If the
    /// event has no signal yet, they wait for its first signal.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn wait(&self, event: &Event) -> Result<()> {
        let mut barrier = Submission::barrier();
        if let Some(capture) = self.capture()? {
            barrier.waits = WaitList::One(WaitPoint::new(event.core(), LATEST));
            return self.record(&mut barrier, capture);
        }
        if let Some(latest) = event.core().latest_pending() {
            barrier.waits = WaitList::One(WaitPoint::new(event.core(), latest));
            barrier.may_fail = event.core().is_fallible();
        }
        let result = self.run(&mut barrier);
        mem::forget(barrier);
        result
    }

    /// Makes sure that all submitted commands will run without further calls.
    ///
    /// # Errors
    /// [`Error::Driver`] if the driver refuses.
    pub fn flush(&self) -> Result<()> {
        self.inner.flush()
    }

    /// Waits until all submitted commands are complete. It may also wait for commands that other
    /// threads submit in the meantime.
    ///
    /// # Errors
    /// The first error of a command that signals no event, returned once.
    pub fn finish(&self) -> Result<()> {
        self.inner.finish(Deadline::NEVER)
    }

    /// Waits until all submitted commands are complete, for at most `timeout`.
    ///
    /// # Errors
    /// As [`finish`](Self::finish). Also [`Error::TimedOut`](crate::Error::TimedOut).
    pub fn finish_timeout(&self, timeout: Duration) -> Result<()> {
        self.inner.finish(Deadline::after(timeout))
    }

    /// Returns whether all submitted commands are complete.
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
    pub fn try_finish(&self) -> Result<bool> {
        if !self.is_idle() {
            return Ok(false);
        }
        match self.inner.finish(Deadline::after(Duration::ZERO)) {
            // Another thread has submitted a command.
            Err(Error::TimedOut(_)) => Ok(false),
            finished => finished.map(|()| true),
        }
    }

    /// Returns whether all submitted commands are complete. It leaves their errors to
    /// [`finish`](Self::finish).
    pub fn is_idle(&self) -> bool {
        self.inner.is_idle()
    }
}

/// Replaces each wait for the latest signal by a wait for its number, drops waits that have ended,
/// and determines whether the others may fail.
fn resolve_waits(submission: &mut Submission) {
    let signal = submission.signal.as_ref();
    submission.waits.retain(|wait| {
        let is_own = || signal.is_some_and(|signal| Arc::ptr_eq(signal, &wait.event));
        let latest = match wait.number {
            LATEST if !is_own() => wait.event.latest_pending(),
            // A command never waits for its own signal, which may be the first one.
            LATEST | SUBMITTED => wait.event.submitted_pending(),
            number => return wait.event.outcome(number) != Outcome::Complete,
        };
        let Some(latest) = latest else {
            return false;
        };
        wait.number = latest;
        true
    });
    let mut waits = submission.waits.iter();
    submission.may_fail = waits.any(|wait| wait.event.is_fallible());
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("order", &self.order)
            .field("is_idle", &self.is_idle())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Command, Context, Device, Error, EventOptions};
    use std::collections::BTreeSet;
    use std::sync::{Arc, Barrier, Mutex};
    use std::thread;

    /// A refused command is dropped, with everything that it keeps.
    #[test]
    fn refused_commands_are_dropped() {
        let context = Context::new(&Device::find("host").unwrap()).unwrap();
        let options = EventOptions::new().single_signaller(true);
        let event = context.create_event_with(options).unwrap();
        let queue = context.create_queue().unwrap();
        let kept = Arc::new(());
        let held = Arc::clone(&kept);
        let call = Command::call(move || {
            let _ = &held;
            Ok::<(), Error>(())
        });
        let refused = queue.submit(call.signal(&event));
        assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
        assert_eq!(Arc::strong_count(&kept), 1);
        let refused = queue.signal_numbered(&event);
        assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
        assert_eq!(event.submitted(), 0);
    }

    #[test]
    fn each_signal_of_a_queue_has_its_own_number() {
        const THREADS: u64 = 4;
        const SIGNALS: u64 = 1000;
        let context = Context::new(&Device::find("host").unwrap()).unwrap();
        let event = context.create_event().unwrap();
        let all = Mutex::new(BTreeSet::new());
        let barrier = Barrier::new(THREADS as usize);
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    let queue = context.create_queue().unwrap();
                    barrier.wait();
                    let numbers: Vec<_> = (0..SIGNALS)
                        .map(|_| queue.signal_numbered(&event).unwrap())
                        .collect();
                    assert!(numbers.is_sorted());
                    all.lock().unwrap().extend(numbers);
                    queue.finish().unwrap();
                    assert!(queue.try_finish().unwrap());
                });
            }
        });
        assert_eq!(all.into_inner().unwrap(), (1..=THREADS * SIGNALS).collect());
    }
}
