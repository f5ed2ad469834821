//! Events: counters of signals, visible in every process at once.

mod callback;
mod notifier;
mod reached;
mod wait_many;

pub use callback::Subscription;
pub use notifier::{Notification, Notifier};
pub use reached::{Reached, Values};

use crate::api::core::ContextCore;
use crate::error::{Error, Result};
use crate::event_protocol::WaitMode;
use crate::handle::{COMMON_ARENA, EventHandle, Fields, ISOLATED_ARENA};
use crate::ipc::{Credential, EventCore, First, OpenDeadline};
use crate::observe::waited;
use crate::sync::Deadline;
use crate::types::known;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A counter of signals, shared by all processes that have it open.
///
/// Each signal gets the next number when it is submitted, by the host or in a queue, in any
/// process. A wait without a number is for the signal that was submitted last; if there is none, it is
/// for the first signal, whichever process submits it. A wait with a number (a *value*) may be for a
/// signal that was not submitted yet, so an event is also a timeline.
/// [`wait_submitted`](Self::wait_submitted) and its siblings treat an event without a signal as complete.
///
/// A process that ends with signals unfinished fails those: their waiters get
/// [`Error::PeerDied`]; all other work carries on. A wait for a number that was never submitted ends with
/// the same error if the process that made the event ends. It also does if another process ends that had
/// the event open, and no other process has it open then. A process that never opened the event cannot
/// be missed: give each wait a timeout.
///
/// Cheap to clone; any thread may use it. Dropping the last clone closes the event for this process
/// alone. A write before a signal is visible after a wait for that signal.
#[derive(Clone)]
pub struct Event {
    core: Arc<EventCore>,
    /// Present if handles can be made.
    exporter: Option<Arc<ContextCore>>,
}

/// The kind of event to make or to open.
#[derive(Clone, Copy, Debug, Default)]
pub struct EventOptions {
    shareable: Option<bool>,
    profiling: bool,
    low_power: bool,
    isolated: bool,
}

impl EventOptions {
    /// Asks for a shareable event without timestamps.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether handles can be made (default: yes, unless the event takes timestamps).
    pub fn shareable(mut self, shareable: bool) -> Self {
        self.shareable = Some(shareable);
        self
    }

    /// Sets whether the event notes when the command that signals it was submitted, started and ended
    /// (default: no).
    pub fn profiling(mut self, profiling: bool) -> Self {
        self.profiling = profiling;
        self
    }

    /// Sets whether a wait sleeps at once (default: no, a wait spins first while that pays).
    pub fn low_power(mut self, low_power: bool) -> Self {
        self.low_power = low_power;
        self
    }

    /// Sets whether the event's counters lie in memory of their own (default: no).
    ///
    /// A process that opens an event can signal, confuse and fail all events whose counters lie in the
    /// same memory: by default up to 1,024 events of the context and more. An isolated event costs
    /// this process a page and a descriptor, and each importer a page.
    pub fn isolated(mut self, isolated: bool) -> Self {
        self.isolated = isolated;
        self
    }

    /// Returns whether handles can be made; `None` if the options contradict each other.
    fn is_shareable(self) -> Option<bool> {
        match self.shareable {
            Some(true) if self.profiling => None,
            Some(shareable) => Some(shareable),
            None => Some(!self.profiling),
        }
    }

    fn mode(self) -> WaitMode {
        if self.low_power {
            WaitMode::LowPower
        } else {
            WaitMode::Spin
        }
    }
}

/// The state of an event.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EventStatus {
    /// The number of the signal that was submitted last; 0 if there was none.
    pub submitted: u64,
    /// The greatest number such that it and all before it are finished.
    pub completed: u64,
    /// The result of the signal that was submitted last; `None` while it is unfinished, and if there is
    /// none.
    pub latest: Option<Result<()>>,
}

/// The times at which the command ran that signalled an event last, in nanoseconds of the system's
/// monotonic clock. A time is `None` until it has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct EventProfile {
    /// The time at which the command was submitted to its queue.
    pub submitted: Option<u64>,
    /// The time at which the command started.
    pub started: Option<u64>,
    /// The time at which the command ended.
    pub ended: Option<u64>,
}

impl Event {
    pub(crate) fn create(context: &Arc<ContextCore>, options: EventOptions) -> Result<Self> {
        let is_shareable = options.is_shareable().ok_or_else(|| {
            Error::invalid("an event can be shareable or take timestamps, but not both")
        })?;
        context.check_birth()?;
        let core = EventCore::create(
            context.exporter(),
            options.mode(),
            options.isolated,
            options.profiling,
            context.backend().driver_events(),
        )?;
        let exporter = is_shareable.then(|| Arc::clone(context));
        Ok(Self { core, exporter })
    }

    pub(crate) fn open(
        context: &ContextCore,
        handle: &EventHandle,
        options: EventOptions,
        deadline: &OpenDeadline,
    ) -> Result<Self> {
        if options.shareable.is_some() || options.profiling || options.isolated {
            return Err(Error::invalid(
                "whether an event can be shared, is isolated or takes timestamps is chosen where it is created, \
                 not where it is opened",
            ));
        }
        let fields = handle.fields();
        context.check_event(&fields)?;
        let attachment = context.attachment(&fields, First::Arena, deadline)?;
        let native = match fields.backend == context.device().info().backend {
            true => context.backend().driver_events(),
            false => None,
        };
        let isolated = fields.segment == ISOLATED_ARENA;
        let credential = Credential::of(&fields);
        let core = EventCore::open(
            attachment,
            credential,
            isolated,
            options.mode(),
            native,
            deadline,
        )?;
        Ok(Self {
            core,
            exporter: None,
        })
    }

    pub(crate) fn core(&self) -> &Arc<EventCore> {
        &self.core
    }

    /// Returns whether both are clones of one event. Events that were opened from one handle may be the same for
    /// other processes, and are not for this.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.core, &other.core)
    }

    /// Gives the event a name, which tools and errors of all processes that share it show: at most
    /// 32 bytes of UTF-8, the rest is cut off. Only the process that created the event can name it;
    /// otherwise this does nothing.
    pub fn set_name(&self, name: &str) {
        self.core.set_name(name);
    }

    /// Returns the name that the event was given, if any.
    pub fn name(&self) -> Option<String> {
        self.core.name()
    }

    /// Returns a handle to the event.
    ///
    /// This announces another process: waits of this process no longer end because of processes that
    /// have ended before.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an event that takes timestamps or was made unshareable, and
    /// for one that was itself opened from a handle (pass that handle on instead); limits of the
    /// system.
    pub fn handle(&self) -> Result<EventHandle> {
        let refused = || {
            Error::invalid(
                "only the process that created an event as shareable can make handles to it",
            )
        };
        let context = self.exporter.as_ref().ok_or_else(refused)?;
        let credential = self.core.export()?.ok_or_else(refused)?;
        self.core.forget_deaths();
        Ok(EventHandle::new(&Fields {
            segment: match self.core.is_isolated() {
                true => ISOLATED_ARENA,
                false => COMMON_ARENA,
            },
            ..context.handle_fields(credential)
        }))
    }

    /// Signals from the host, and returns the signal's number. Never blocks: if an earlier signal is
    /// unfinished, the new one completes after it.
    ///
    /// # Errors
    /// [`Error::LimitReached`] if 16 runs of signals of different processes are unfinished, if 4,096
    /// signals of this process wait for their turn behind unfinished ones, and after 2⁵⁰ signals.
    #[inline]
    pub fn signal(&self) -> Result<u64> {
        self.core.signal()
    }

    /// Signals from the host, all numbers up to `value` at once.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the value is not greater than what was submitted already, or
    /// more than 2²⁹ greater; as [`signal`](Self::signal).
    pub fn signal_value(&self, value: u64) -> Result<()> {
        self.core.signal_up_to(value).map(drop)
    }

    /// Fails all numbers up to `value` at once: whoever waits for one of them, in any process, gets
    /// [`Error::CommandFailed`], in this process with `message` for the last of them. For programs that
    /// signal on behalf of something that has failed.
    ///
    /// # Errors
    /// As [`signal_value`](Self::signal_value).
    pub fn fail_value(&self, value: u64, message: &str) -> Result<()> {
        self.core.fail_value(value, message)
    }

    /// Ends the event as the death of its signaller would: waits for signals that were not submitted, in any
    /// process, get [`Error::PeerDied`]. For programs that signal on behalf of something that is gone.
    ///
    /// This submits the next 2²⁹ numbers and fails them.
    ///
    /// # Errors
    /// As [`signal`](Self::signal).
    pub fn abandon(&self) -> Result<()> {
        self.core.abandon()
    }

    /// Waits for the signal that was submitted last. If there is none, waits for the first one.
    ///
    /// # Errors
    /// [`Error::PeerDied`] if the process that submitted the signal ended first, and as
    /// [`wait_value`](Self::wait_value) if there is no signal; [`Error::CommandFailed`] if the signal's
    /// command failed.
    #[inline]
    pub fn wait(&self) -> Result<()> {
        waited(match self.core.awaited() {
            None => Ok(()),
            Some(number) => self.core.wait(number, Deadline::NEVER),
        })
    }

    /// Waits for the signal that was submitted last, for at most `timeout`. If there is none, waits for
    /// the first one.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; as [`wait`](Self::wait).
    pub fn wait_timeout(&self, timeout: Duration) -> Result<()> {
        waited(match self.core.awaited() {
            None => Ok(()),
            Some(number) => self.core.wait_for(number, timeout),
        })
    }

    /// Returns whether there is a signal and the one submitted last has completed.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    #[inline]
    pub fn try_wait(&self) -> Result<bool> {
        match self.core.awaited() {
            None => Ok(true),
            Some(number) => self.try_wait_value(number),
        }
    }

    /// Waits for what was submitted so far, as Unified Runtime does: for the signal that was submitted
    /// last, or for nothing if there is none.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    #[inline]
    pub fn wait_submitted(&self) -> Result<()> {
        waited(match self.core.unfinished() {
            None => Ok(()),
            Some(number) => self.core.wait(number, Deadline::NEVER),
        })
    }

    /// Waits as [`wait_submitted`](Self::wait_submitted) does, for at most `timeout`.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; as [`wait`](Self::wait).
    pub fn wait_submitted_timeout(&self, timeout: Duration) -> Result<()> {
        waited(match self.core.unfinished() {
            None => Ok(()),
            Some(number) => self.core.wait_for(number, timeout),
        })
    }

    /// Returns whether what was submitted so far has completed; `true` if that is nothing.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    #[inline]
    pub fn try_wait_submitted(&self) -> Result<bool> {
        match self.core.unfinished() {
            None => Ok(true),
            Some(number) => self.try_wait_value(number),
        }
    }

    /// Returns the number of the signal that a wait without a number is for: the one submitted last, or
    /// 1 if there is none.
    #[inline]
    pub fn latest_or_first(&self) -> u64 {
        self.submitted().max(1)
    }

    /// Waits for signal `value`, which may not have been submitted yet.
    ///
    /// # Errors
    /// As [`wait`](Self::wait). Also [`Error::PeerDied`] if the signal has not been submitted and no other
    /// process is left to submit it: the process that made the event has ended, or a process ended that
    /// had the event open, and no other process has it open.
    pub fn wait_value(&self, value: u64) -> Result<()> {
        waited(self.core.wait(value, Deadline::NEVER))
    }

    /// Waits for signal `value`, for at most `timeout`.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; as [`wait_value`](Self::wait_value).
    pub fn wait_value_timeout(&self, value: u64, timeout: Duration) -> Result<()> {
        waited(self.core.wait_for(value, timeout))
    }

    /// Returns whether signal `value` has completed.
    ///
    /// # Errors
    /// As [`wait_value`](Self::wait_value).
    pub fn try_wait_value(&self, value: u64) -> Result<bool> {
        match self.core.result(value) {
            None if self.core.is_known_abandoned(value) => Err(self.core.abandoned(value)),
            None => Ok(false),
            Some(result) => result.map(|()| true),
        }
    }

    /// Returns the number of the signal that was submitted last; 0 if there was none. The next
    /// signal gets one more.
    #[inline]
    pub fn submitted(&self) -> u64 {
        self.core.issued()
    }

    /// Returns the greatest number such that this signal and all before it are finished, well or
    /// not.
    #[inline]
    pub fn completed(&self) -> u64 {
        self.core.completed()
    }

    /// Returns the state of the event, without waiting.
    pub fn status(&self) -> EventStatus {
        let submitted = self.core.issued();
        EventStatus {
            submitted,
            completed: self.core.completed(),
            latest: self.core.result(submitted.max(1)),
        }
    }

    /// Sets whether the signals submitted from now on take timestamps. An event made with
    /// [`EventOptions::profiling`](crate::EventOptions::profiling) takes them until this call turns
    /// them off; any other event never takes any.
    #[inline]
    pub fn set_profiling(&self, wanted: bool) {
        self.core.set_profiling(wanted);
    }

    /// Returns the timestamps of the command that signalled last.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an event made without
    /// [`EventOptions::profiling`](crate::EventOptions::profiling), or while it takes
    /// [none](Self::set_profiling).
    pub fn profile(&self) -> Result<EventProfile> {
        let profile = self.core.profile().ok_or_else(|| {
            Error::Unsupported("this event takes no timestamps; create it with profiling".into())
        })?;
        let (submitted, started, ended) = profile.times();
        Ok(EventProfile {
            submitted: known(submitted),
            started: known(started),
            ended: known(ended),
        })
    }

    /// Waits until the latest signals of all events have completed, for at most `timeout`. An event
    /// without a signal is waited for until its first one. Any number of events may be given.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; the error of the first signal that fails, at once.
    pub fn wait_all(events: &[&Event], timeout: Option<Duration>) -> Result<()> {
        // All are looked at first, so that signals submitted during the wait don't count.
        let unfinished = events
            .iter()
            .filter_map(|event| Some((*event, event.core.awaited()?)));
        waited(wait_many::wait_all(unfinished.collect(), timeout))
    }

    /// Waits until all events have reached the values beside them, for at most `timeout`. Any number
    /// of events may be given.
    ///
    /// # Errors
    /// As [`wait_all`](Self::wait_all).
    pub fn wait_all_value(events: &[(&Event, u64)], timeout: Option<Duration>) -> Result<()> {
        waited(wait_many::wait_all(events.to_vec(), timeout))
    }

    /// Waits until the latest signal of one of the events has completed, for at most `timeout`,
    /// and returns that event's index in the list. An event without a signal is waited for until its
    /// first one. Any number of events may be given.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; the error of the event that ended first, if it failed;
    /// [`Error::InvalidArgument`] for an empty list.
    pub fn wait_any(events: &[&Event], timeout: Option<Duration>) -> Result<usize> {
        let values: Vec<_> = events
            .iter()
            .map(|event| (*event, event.latest_or_first()))
            .collect();
        Self::wait_any_value(&values, timeout)
    }

    /// Waits until one of the events has reached the value beside it, for at most `timeout`, and
    /// returns that event's place in the list.
    ///
    /// # Errors
    /// As [`wait_any`](Self::wait_any).
    pub fn wait_any_value(events: &[(&Event, u64)], timeout: Option<Duration>) -> Result<usize> {
        waited(wait_many::wait_any(events, timeout))
    }

    /// Returns a future that ends when signal `value`, submitted or not, has completed. For the latest
    /// signal, give [`latest_or_first`](Self::latest_or_first).
    pub fn reached(&self, value: u64) -> Reached {
        Reached::new(self.clone(), value)
    }

    /// Returns a stream of the values greater than `after` that the event reaches.
    pub fn values(&self, after: u64) -> Values {
        Values::new(self.clone(), after)
    }

    /// Has a function called when signal `value`, submitted or not, has completed, with the result that a
    /// [wait](Self::wait_value) for it would return; soon, if it has. The event stays open until then.
    ///
    /// The functions of a process are called one after the other by a background thread, without a
    /// lock. They may do anything; one that blocks holds up those that come after it.
    ///
    /// # Errors
    /// [`Error::LimitReached`] if the system starts no thread.
    pub fn on_signal(
        &self,
        value: u64,
        function: impl FnOnce(Result<()>) + Send + 'static,
    ) -> Result<Subscription> {
        callback::on_signal(self, value, Box::new(function))
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}
