//! Events, which are counters of signals that processes share.

mod callback;
pub(crate) mod device;
mod notifier;
mod reached;
mod set;

pub use callback::Subscription;
pub use device::{DeviceChannel, DeviceChannelAddresses, DeviceEvent, DeviceEventAddresses};
pub use notifier::{Notification, Notifier};
pub use reached::{Reached, Values};
pub use set::EventSet;

use crate::api::core::ContextCore;
use crosshandle_events::WaitMode;
use crosshandle_handle::{DeviceUuid, EventHandle, Fields};
use crosshandle_ipc::{Credential, EventCore, First, OpenDeadline};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::known;
use crosshandle_types::observe::{trace, waited};
use crosshandle_types::sync::Deadline;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A counter of signals, shared by all processes that have it open.
///
/// Each signal gets the next number when it is submitted, by the host or in a queue, in any
/// process. A wait without a number waits for the latest signal. If there is none yet, it waits for
/// the first signal, no matter which process submits it. A wait with a number (a *value*) may wait
/// for a signal that was not submitted yet, so an event is also a timeline.
/// [`wait_submitted`](Self::wait_submitted) and its variants treat an event without a signal as
/// complete.
///
/// If a process ends before its signals are finished, they fail, and their waiters get
/// [`Error::PeerDied`]. All other work continues. A wait for a number that was never submitted ends
/// with the same error in two cases: the event's creator ends, or another process that had the
/// event open ends and no other process still has it open. A process that never opened the event
/// cannot be detected, so give each wait a timeout.
///
/// Cloning is cheap, and any thread may use an event. Dropping the last clone closes the event in
/// this process only. Memory that was written before a signal is visible after a wait for that
/// signal.
///
/// In this example, two processes alternate, and wait for each signal by its number:
///
/// ```standalone_crate
/// use crosshandle::{Context, Device};
/// use std::env;
/// use std::process::Command;
/// use std::time::Duration;
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     const TIMEOUT: Duration = Duration::from_secs(30);
///     let context = Context::new(&Device::find("host")?)?;
///     let arguments: Vec<String> = env::args().skip(1).collect();
///     if let [ping, pong] = &arguments[..] {
///         let ping = context.open_event(&ping.parse()?)?;
///         let pong = context.open_event(&pong.parse()?)?;
///         for round in 1..=3 {
///             ping.wait_value_timeout(round, TIMEOUT)?;
///             pong.signal()?;
///         }
///         return Ok(());
///     }
///     let (ping, pong) = (context.create_event()?, context.create_event()?);
///     let mut second = Command::new(env::current_exe()?)
///         .args([ping.handle()?.to_string(), pong.handle()?.to_string()])
///         .spawn()?;
///     for round in 1..=3 {
///         assert_eq!(ping.signal()?, round);
///         pong.wait_value_timeout(round, TIMEOUT)?;
///     }
///     assert!(second.wait()?.success());
///     Ok(())
/// }
/// ```
#[derive(Clone)]
pub struct Event {
    core: Arc<EventCore>,
    /// Present if this process can make handles to the event.
    exporter: Option<Arc<ContextCore>>,
    /// Keeps the device event of an event with a single signaller, so that its counts need not be
    /// made for each signal.
    counted: Option<Arc<OnceLock<DeviceEvent>>>,
}

/// Options for creating or opening an event.
#[derive(Clone, Copy, Debug, Default)]
pub struct EventOptions {
    shareable: Option<bool>,
    profiling: bool,
    low_power: bool,
    isolated: bool,
    single_signaller: bool,
}

impl EventOptions {
    /// Returns the options of a shareable event without timestamps.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether handles to the event can be made (default: yes, unless the event takes
    /// timestamps).
    pub fn shareable(mut self, shareable: bool) -> Self {
        self.shareable = Some(shareable);
        self
    }

    /// Sets whether the event records when its signalling command was submitted, started and ended
    /// (default: no).
    pub fn profiling(mut self, profiling: bool) -> Self {
        self.profiling = profiling;
        self
    }

    /// Sets whether a wait sleeps at once (default: no). Otherwise a wait spins first where that
    /// helps.
    pub fn low_power(mut self, low_power: bool) -> Self {
        self.low_power = low_power;
        self
    }

    /// Sets whether the event's counters are in memory of their own (default: no).
    ///
    /// A process that opens an event can also signal, corrupt and fail all other events whose
    /// counters are in the same memory. By default these are at least 1,024 events of the context.
    /// An isolated event costs this process a page and a descriptor, and each importer a page.
    pub fn isolated(mut self, isolated: bool) -> Self {
        self.isolated = isolated;
        self
    }

    /// Sets whether only device code of this process signals the event (default: no).
    ///
    /// Kernels and captured graphs can signal no other events, because a GPU cannot take the next
    /// number together with hosts. [`Context::device_event`](crate::Context::device_event) returns
    /// what a kernel needs. All other signals, also by queues and by other processes, are refused.
    pub fn single_signaller(mut self, single_signaller: bool) -> Self {
        self.single_signaller = single_signaller;
        self
    }

    /// Returns whether handles can be made, or `None` if the options contradict each other.
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
    /// The number of the latest signal, or 0 if none was submitted.
    pub submitted: u64,
    /// The number of the last signal up to which all signals are finished.
    pub completed: u64,
    /// The result of the latest signal, or `None` if it is unfinished or none was submitted.
    pub latest: Option<Result<()>>,
}

/// The times of the command that signalled an event last, in nanoseconds of the system's monotonic
/// clock. Each is `None` until that time is known.
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
            options.single_signaller,
            context.backend().driver_events(),
        )?;
        let exporter = is_shareable.then(|| Arc::clone(context));
        let counted = options.single_signaller.then(Arc::default);
        Ok(Self {
            core,
            exporter,
            counted,
        })
    }

    pub(crate) fn open(
        context: &ContextCore,
        handle: &EventHandle,
        options: EventOptions,
        deadline: &OpenDeadline,
    ) -> Result<Self> {
        if options.shareable.is_some()
            || options.profiling
            || options.isolated
            || options.single_signaller
        {
            return Err(Error::invalid(
                "whether an event can be shared, is isolated, takes timestamps or has a single signaller is \
                 chosen where it is created, not where it is opened",
            ));
        }
        let fields = handle.fields();
        context.check_event(&fields)?;
        let attachment = context.attachment(&fields, First::Arena, deadline)?;
        let native = match fields.backend == context.device().info().backend {
            true => context.backend().driver_events(),
            false => None,
        };
        let credential = Credential::of(&fields);
        let core = EventCore::open(
            attachment,
            credential,
            fields.isolated,
            options.mode(),
            native,
            deadline,
        )?;
        Ok(Self {
            core,
            exporter: None,
            counted: None,
        })
    }

    /// Returns an event that cannot make handles.
    pub(crate) fn of(core: &Arc<EventCore>) -> Self {
        Self {
            core: Arc::clone(core),
            exporter: None,
            counted: None,
        }
    }

    pub(crate) fn core(&self) -> &Arc<EventCore> {
        &self.core
    }

    /// Returns whether both are clones of one `Event`. Two results of opening the same handle are
    /// not clones of each other.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.core, &other.core)
    }

    /// Returns whether only device code of the event's creator signals it.
    pub fn has_single_signaller(&self) -> bool {
        self.core.is_single_signaller()
    }

    /// Gives the event a name, which tools and errors of all processes that share the event show.
    /// Names are cut to 32 bytes of UTF-8. Only the process that created the event can name it. In
    /// other processes this call does nothing.
    pub fn set_name(&self, name: &str) {
        self.core.set_name(name);
    }

    /// Returns the name of the event, if it has one.
    pub fn name(&self) -> Option<String> {
        self.core.name()
    }

    /// Returns a handle to the event.
    ///
    /// After this call, this process expects another process to open the event. Waits in this
    /// process no longer fail because of processes that ended before the call.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`] for an event that takes timestamps or was made unshareable, and
    ///   for an event that was itself opened from a handle. In the last case, pass that handle on
    ///   instead.
    /// - [`Error::LimitReached`] if a limit of the system or of this crate is reached.
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
            isolated: self.core.is_isolated(),
            device: DeviceUuid::from_bytes([0; 16]),
            ..context.handle_fields(credential)
        }))
    }

    /// Submits a signal from the host, and returns its number. This never blocks. If an earlier
    /// signal is unfinished, the new one completes after it.
    ///
    /// # Errors
    /// [`Error::LimitReached`] in these cases:
    /// - 16 runs of successive signals by one process each are unfinished.
    /// - 4,096 signals of this process wait behind unfinished ones.
    /// - The event has had 2⁵⁰ signals.
    #[inline]
    pub fn signal(&self) -> Result<u64> {
        self.core.signal()
    }

    /// Submits all signals up to `value` from the host at once.
    ///
    /// # Errors
    /// As [`signal`](Self::signal). Also [`Error::InvalidArgument`] if the value is not greater
    /// than the latest submitted number, or exceeds it by more than 2²⁹.
    pub fn signal_value(&self, value: u64) -> Result<()> {
        self.core.signal_up_to(value).map(drop)
    }

    /// Submits all signals up to `value` at once, as failed. Waits for any of these signals, in all
    /// processes, return [`Error::CommandFailed`]. In this process, the error of the last signal
    /// contains `message`. Use this to report that the work failed for which the program signals.
    ///
    /// # Errors
    /// As [`signal_value`](Self::signal_value).
    pub fn fail_value(&self, value: u64, message: &str) -> Result<()> {
        self.core.fail_value(value, message)
    }

    /// Makes waits for signals that were not submitted, in all processes, return
    /// [`Error::PeerDied`], as if the signalling process had died. Use this if the program signals
    /// on behalf of another process or device that no longer exists.
    ///
    /// The call submits the next 2²⁹ signals as failed.
    ///
    /// # Errors
    /// As [`signal`](Self::signal).
    pub fn abandon(&self) -> Result<()> {
        self.core.abandon()
    }

    /// Waits for the latest signal, or for the first signal if none was submitted.
    ///
    /// # Errors
    /// - [`Error::PeerDied`] if the process that submitted the signal ended first. If no signal was
    ///   submitted, the errors of [`wait_value`](Self::wait_value) also apply.
    /// - [`Error::CommandFailed`] if the signal's command failed.
    #[inline]
    pub fn wait(&self) -> Result<()> {
        waited(match self.core.awaited() {
            None => self.trace_complete(),
            Some(number) => self.core.wait(number, Deadline::NEVER),
        })
    }

    /// Waits for the latest signal, or for the first signal if none was submitted, for at most
    /// `timeout`.
    ///
    /// # Errors
    /// As [`wait`](Self::wait). Also [`Error::TimedOut`].
    pub fn wait_timeout(&self, timeout: Duration) -> Result<()> {
        waited(match self.core.awaited() {
            None => self.trace_complete(),
            Some(number) => self.core.wait_for(number, timeout),
        })
    }

    /// Writes a wait for a signal that was complete into the timeline, if there is one.
    #[inline]
    fn trace_complete(&self) -> Result<()> {
        let begun = trace::begin();
        self.core.trace_wait(begun, self.core.submitted(), None);
        Ok(())
    }

    /// Returns whether a signal was submitted and the latest one has completed.
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

    /// Waits for the latest signal, or returns at once if none was submitted. Unified Runtime has
    /// the same semantics.
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
    /// As [`wait`](Self::wait). Also [`Error::TimedOut`].
    pub fn wait_submitted_timeout(&self, timeout: Duration) -> Result<()> {
        waited(match self.core.unfinished() {
            None => Ok(()),
            Some(number) => self.core.wait_for(number, timeout),
        })
    }

    /// Returns whether all submitted signals have completed. Returns `true` if none was submitted.
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

    /// Returns the number of the signal that a wait without a number waits for. This is the number
    /// of the latest signal, or 1 if none was submitted.
    #[inline]
    pub fn latest_or_first(&self) -> u64 {
        self.submitted().max(1)
    }

    /// Waits for signal `value`, which may not have been submitted yet.
    ///
    /// # Errors
    /// As [`wait`](Self::wait). Also [`Error::PeerDied`] if the signal was not submitted and no
    /// process is left to submit it. No process is left if the event's creator has ended, or if a
    /// process that had the event open has ended and no other process has it open.
    pub fn wait_value(&self, value: u64) -> Result<()> {
        waited(self.core.wait(value, Deadline::NEVER))
    }

    /// Waits for signal `value`, for at most `timeout`.
    ///
    /// # Errors
    /// As [`wait_value`](Self::wait_value). Also [`Error::TimedOut`].
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

    /// Returns the number of the latest signal, or 0 if none was submitted. The next signal gets
    /// the next number.
    #[inline]
    pub fn submitted(&self) -> u64 {
        self.core.submitted()
    }

    /// Returns the largest number such that all signals up to it have succeeded or failed.
    #[inline]
    pub fn completed(&self) -> u64 {
        self.core.completed()
    }

    /// Returns the state of the event without waiting.
    pub fn status(&self) -> EventStatus {
        let submitted = self.core.submitted();
        EventStatus {
            submitted,
            completed: self.core.completed(),
            latest: self.core.result(submitted.max(1)),
        }
    }

    /// Sets whether signals take timestamps from now on. An event with
    /// [`EventOptions::profiling`](crate::EventOptions::profiling) takes timestamps unless this
    /// call turns them off. Other events never take timestamps.
    #[inline]
    pub fn set_profiling(&self, wanted: bool) {
        self.core.set_profiling(wanted);
    }

    /// Returns the timestamps of the command that signalled last.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an event without
    /// [`EventOptions::profiling`](crate::EventOptions::profiling), or while timestamps are [turned
    /// off](Self::set_profiling).
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

    /// Returns a future that completes when signal `value` has completed. The signal may not have
    /// been submitted yet. For the latest signal, pass [`latest_or_first`](Self::latest_or_first).
    pub fn reached(&self, value: u64) -> Reached {
        Reached::new(self.clone(), value)
    }

    /// Returns a stream of the values that the event reaches, starting with values greater than
    /// `after`.
    pub fn values(&self, after: u64) -> Values {
        Values::new(self.clone(), after)
    }

    /// Registers a callback for signal `value`, which may not have been submitted yet. The callback
    /// gets the result that a [wait](Self::wait_value) for the signal would return. If the signal
    /// has already completed, the callback is called soon. The event stays open until then.
    ///
    /// A background thread calls the callbacks of a process one after the other, without holding a
    /// lock. They may do anything, but one that blocks delays those after it.
    ///
    /// # Errors
    /// [`Error::LimitReached`] if the system cannot start a thread.
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
