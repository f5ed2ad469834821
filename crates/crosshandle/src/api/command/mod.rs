//! Commands: the work that queues run, the events that it waits for, and the event that it signals.

pub(crate) mod graph;

use crate::api::event::Event;
use crate::api::memory::MemoryRange;
use crate::api::program::kernel::Kernel;
use crosshandle_hal::{HostFunction, Pattern, RectCopy, RowFill, Submission, WaitPoint, Work};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{KernelArguments, LaunchShape, Pitches, Region};
use graph::DividedRun;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A command for a queue: its work, the events that it waits for, and the event that it signals.
///
/// A command keeps the memory, kernels and events that it uses until it is complete. Any thread may
/// create commands.
///
/// In this example, an event orders the commands of two queues:
///
/// ```
/// use crosshandle::{Command, Context, Device};
/// use std::time::Duration;
///
/// # fn main() -> crosshandle::Result<()> {
/// let context = Context::new(&Device::find("host")?)?;
/// let memory = context.allocate(8)?;
/// let filled = context.create_event()?;
/// let done = context.create_event()?;
/// let (first, second) = (context.create_queue()?, context.create_queue()?);
/// // The copy waits for signal 1, which is submitted after it.
/// let copy = Command::copy(memory.range(..4)?, memory.range(4..)?)?;
/// second.submit(copy.after_value(&filled, 1).signal(&done))?;
/// first.submit(Command::fill(memory.range(..4)?, &[1, 2])?.signal(&filled))?;
/// done.wait_timeout(Duration::from_secs(30))?;
/// let mut bytes = [0; 8];
/// memory.read(0, &mut bytes)?;
/// assert_eq!(bytes, [1, 2, 1, 2, 1, 2, 1, 2]);
/// # Ok(())
/// # }
/// ```
#[must_use = "a command does nothing until it is submitted"]
pub struct Command {
    /// The command as a backend receives it. Until the submission, a wait may contain [`LATEST`] or
    /// [`SUBMITTED`] instead of a signal number.
    pub(crate) submission: Submission,
    /// The parts of a graph, if the command runs one that is submitted in parts. The work of
    /// `submission` is a marker then.
    pub(crate) divided: Option<Box<DividedRun>>,
}

/// Placeholder for the latest signal at the time of submission, or for the first signal if there is
/// none. Signals are numbered from 1.
pub(crate) const LATEST: u64 = 0;

/// Placeholder for the latest signal at the time of submission, or for no wait if there is none. No
/// signal has this number.
pub(crate) const SUBMITTED: u64 = u64::MAX;

impl Command {
    #[inline]
    pub(crate) fn new(work: Work) -> Self {
        Self {
            submission: Submission::new(work),
            divided: None,
        }
    }

    /// Creates a command that uses memory. `is_on_host` says whether the host can access all of it.
    #[inline]
    pub(crate) fn with_memory(work: Work, is_on_host: bool) -> Self {
        let mut command = Self::new(work);
        command.submission.is_on_host = is_on_host;
        command
    }

    /// Creates a command that copies the bytes of `source` to `destination`, a range of the same
    /// length. The two ranges may overlap.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`] for different lengths.
    /// - [`Error::ReadOnly`] for a destination that was opened read-only.
    #[inline(always)] // Builds the command in place, because moving it costs more.
    pub fn copy(source: MemoryRange, destination: MemoryRange) -> Result<Self> {
        let (from, to) = (source, destination);
        to.check_writable()?;
        if to.len() != from.len() {
            return Err(unequal(to.len(), from.len()));
        }
        let len = to.len();
        let is_on_host = to.is_on_host() && from.is_on_host();
        let (to, from) = (to.into_operand(), from.into_operand());
        Ok(Self::with_memory(Work::Copy { to, from, len }, is_on_host))
    }

    /// Creates a command that copies a rectangle of rows. The rectangles begin at the start of
    /// `source` and of `destination`. The rectangles should not overlap: afterwards, the bytes that
    /// belong to both are arbitrary.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`] for pitches that [`Pitches`] does not allow, or if the
    ///   rectangle is not inside both ranges.
    /// - [`Error::ReadOnly`] for a destination that was opened read-only.
    pub fn copy_rect(
        source: MemoryRange,
        source_pitches: Pitches,
        destination: MemoryRange,
        destination_pitches: Pitches,
        region: Region,
    ) -> Result<Self> {
        let (from, from_pitches) = (source, source_pitches);
        let (to, to_pitches) = (destination, destination_pitches);
        to.check_writable()?;
        region.check(to_pitches, "destination", to.len())?;
        region.check(from_pitches, "source", from.len())?;
        if region.is_empty() {
            return Ok(Self::new(Work::Marker));
        }
        let mut sides = [to_pitches, from_pitches];
        let region = region.simplify(&mut sides);
        let [to_pitches, from_pitches] = sides;
        let is_on_host = to.is_on_host() && from.is_on_host();
        let (to, from) = (to.into_operand(), from.into_operand());
        let work = if region.rows == 1 {
            Work::Copy {
                to,
                from,
                len: region.width,
            }
        } else {
            Work::CopyRect(Box::new(RectCopy {
                to,
                to_pitches,
                from,
                from_pitches,
                region,
            }))
        };
        Ok(Self::with_memory(work, is_on_host))
    }

    /// Creates a command that copies `rows` rows of `width` bytes. The rows start every
    /// `source_pitch` bytes in `source` and every `destination_pitch` bytes in `destination`.
    ///
    /// This is [`copy_rect`](Self::copy_rect) in two dimensions.
    ///
    /// # Errors
    /// The errors of [`copy_rect`](Self::copy_rect).
    pub fn copy_2d(
        source: MemoryRange,
        source_pitch: usize,
        destination: MemoryRange,
        destination_pitch: usize,
        width: usize,
        rows: usize,
    ) -> Result<Self> {
        Self::copy_rect(
            source,
            Pitches::new_2d(source_pitch),
            destination,
            Pitches::new_2d(destination_pitch),
            Region::new_2d(width, rows),
        )
    }

    /// Creates a command that fills a range with a pattern of any length.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`] for an empty pattern, or a range that is not a whole number of
    ///   patterns.
    /// - [`Error::ReadOnly`] for a range that was opened read-only.
    #[inline]
    pub fn fill(destination: MemoryRange, pattern: &[u8]) -> Result<Self> {
        let to = destination;
        to.check_writable()?;
        check_pattern(to.len(), pattern)?;
        let is_on_host = to.is_on_host();
        let work = Work::Fill {
            len: to.len(),
            to: to.into_operand(),
            pattern: Pattern::from_slice(pattern),
        };
        Ok(Self::with_memory(work, is_on_host))
    }

    /// Creates a command that fills each of `rows` rows of `width` bytes with a pattern. The rows
    /// start every `pitch` bytes.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`] for an empty pattern, a width that is not a whole number of
    ///   patterns, a pitch smaller than the width, or rows that are not inside the range.
    /// - [`Error::ReadOnly`] for a range that was opened read-only.
    pub fn fill_2d(
        destination: MemoryRange,
        pitch: usize,
        width: usize,
        rows: usize,
        pattern: &[u8],
    ) -> Result<Self> {
        let to = destination;
        to.check_writable()?;
        check_pattern(width, pattern)?;
        let region = Region::new_2d(width, rows);
        let mut side = [Pitches::new_2d(pitch)];
        region.check(side[0], "destination", to.len())?;
        if region.is_empty() {
            return Ok(Self::new(Work::Marker));
        }
        let Region { width, rows, .. } = region.simplify(&mut side);
        let is_on_host = to.is_on_host();
        let (to, pattern) = (to.into_operand(), Pattern::from_slice(pattern));
        let work = if rows == 1 {
            Work::Fill {
                to,
                len: width,
                pattern,
            }
        } else {
            Work::Fill2d(Box::new(RowFill {
                to,
                pitch,
                width,
                rows,
                pattern,
            }))
        };
        Ok(Self::with_memory(work, is_on_host))
    }

    /// Creates a command that calls a function of the program on a thread of this library, in the
    /// order of the queue. The command fails if the function returns an error or panics.
    pub fn call<F, E>(function: F) -> Self
    where
        F: FnOnce() -> std::result::Result<(), E> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let function = Box::new(move || function().map_err(Into::into));
        Self::new(Work::Call(HostFunction::Once(function)))
    }

    /// Creates a command as [`call`](Self::call) does, with a function that can run any number of
    /// times. A [graph](crate::graph::Graph) can record this command, and calls the function once
    /// in each run. Runs in different queues may call it at the same time.
    pub fn call_repeatedly<F, E>(function: F) -> Self
    where
        F: Fn() -> std::result::Result<(), E> + Send + Sync + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let function = Arc::new(move || function().map_err(Into::into));
        Self::new(Work::Call(HostFunction::Repeatable(function)))
    }

    /// Creates a command that calls a function with the driver's own queue. The work that the
    /// function submits to that queue is the command.
    ///
    /// The function usually runs on the submitting thread during the submission. If earlier
    /// commands are still pending, it runs later, on a thread of this library. It must not use the
    /// [`Queue`] that the command is submitted to. The command fails if the function returns an
    /// error or panics. A queue without a [native queue](crate::Queue::native) refuses the command.
    ///
    /// [`Queue`]: crate::Queue
    ///
    /// # Safety
    /// The function only submits to the driver's queue. The work that it submits stays valid until
    /// the command is complete.
    #[allow(unsafe_code)] // The promise is the caller's; nothing here relies on it.
    pub unsafe fn native<F, E>(function: F) -> Self
    where
        F: Fn(usize) -> std::result::Result<(), E> + Send + 'static,
        E: fmt::Display,
    {
        Self::new(Work::Native(Box::new(move |queue| {
            let call = || function(queue).map_err(|error| error.to_string());
            let message = match catch_unwind(AssertUnwindSafe(call)) {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(message)) => message,
                Err(panic) => {
                    // Dropping the panic's value would run code of the program, which may panic
                    // again.
                    std::mem::forget(panic);
                    "a function that submits to a driver's queue panicked".into()
                }
            };
            Err(Error::CommandFailed(message.into()))
        })))
    }

    /// Creates a command that runs a kernel in a queue of the device of the kernel's context. The
    /// command keeps the memory of the arguments and the program of the kernel until it is
    /// complete.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`] for a shape that the kernel or the device does not allow, and
    ///   for arguments that do not match the parameters that the driver reports.
    /// - [`Error::Unsupported`] for a kind of shape that the device does not support.
    ///
    /// # Safety
    /// Everything that the kernel does with these arguments and this shape must be sound, from the
    /// submission of the command until it is complete:
    /// - The kernel accesses only memory that stays valid for the device until then. Only memory
    ///   added with [`with`](KernelArguments::with) is kept valid. An address inside a value or
    ///   inside other memory keeps nothing.
    /// - The kernel writes no memory that was opened read-only, and none to which host code has a
    ///   plain Rust reference.
    /// - If the driver does not report the kernel's
    ///   [`parameters`](crate::kernel::KernelProperties::parameters), there must be at least as
    ///   many arguments as parameters, and each argument must be at least as large as its
    ///   parameter.
    /// - The kernel ends. A kernel that faults makes the device unusable for this process, and all
    ///   commands in flight fail.
    #[allow(unsafe_code)] // The promise is the caller's; the device acts on it.
    pub unsafe fn launch(
        kernel: &Kernel,
        shape: LaunchShape,
        arguments: KernelArguments,
    ) -> Result<Self> {
        let launch = kernel.launch(shape, arguments)?;
        Ok(Self::new(match launch {
            Some(launch) => Work::Launch(Box::new(launch)),
            None => Work::Marker,
        }))
    }

    /// Creates a command that only waits and signals. In an in-order queue it runs after all
    /// commands submitted before it.
    #[inline]
    pub fn marker() -> Self {
        Self::new(Work::Marker)
    }

    /// Creates a command that only waits and signals, and that orders other commands even in an
    /// out-of-order queue. It runs after all commands submitted before it, and before all commands
    /// submitted after it.
    #[inline]
    pub fn barrier() -> Self {
        Self {
            submission: Submission::barrier(),
            divided: None,
        }
    }

    /// Makes the command start after all commands submitted before it are complete, even in an
    /// out-of-order queue.
    #[inline]
    pub fn after_earlier(mut self) -> Self {
        self.submission.after_earlier = true;
        self
    }

    /// Makes all commands submitted later start after this one is complete, even in an out-of-order
    /// queue.
    #[inline]
    pub fn before_later(mut self) -> Self {
        self.submission.before_later = true;
        self
    }

    /// Makes the command start after the latest signal of `event` at the time of submission. If
    /// there is none, the command starts after the first signal, unless the command itself signals
    /// the event.
    #[inline]
    pub fn after(self, event: &Event) -> Self {
        self.wait(event, LATEST)
    }

    /// Makes the command start after the latest signal of `event` at the time of submission. If
    /// there is none, the command does not wait. Unified Runtime has the same semantics.
    #[inline]
    pub fn after_submitted(self, event: &Event) -> Self {
        self.wait(event, SUBMITTED)
    }

    /// Makes the command start after signal `value` of `event`. The signal need not have been
    /// submitted yet.
    #[inline]
    pub fn after_value(self, event: &Event, value: u64) -> Self {
        // Signals are numbered from 1, so there is nothing to wait for.
        if value == LATEST {
            return self;
        }
        // No signal ever has a number this high, and `SUBMITTED` itself has another meaning.
        self.wait(event, value.min(SUBMITTED - 1))
    }

    #[inline]
    fn wait(mut self, event: &Event, number: u64) -> Self {
        self.submission
            .waits
            .push(WaitPoint::new(event.core(), number));
        self
    }

    /// Makes the command signal `event` when it is complete. The signal is submitted together with
    /// the command.
    #[inline(always)] // For the same reason as `copy`.
    pub fn signal(mut self, event: &Event) -> Self {
        self.submission.signal = Some(Arc::clone(event.core()));
        self
    }
}

#[cold]
fn unequal(to: usize, from: usize) -> Error {
    Error::invalid(format!(
        "a copy needs two ranges of one length, but got {to} and {from} bytes"
    ))
}

/// Checks that a whole number of patterns fills `len` bytes.
#[inline]
fn check_pattern(len: usize, pattern: &[u8]) -> Result<()> {
    match pattern.is_empty() || !len.is_multiple_of(pattern.len()) {
        true => Err(no_pattern(len, pattern.len())),
        false => Ok(()),
    }
}

#[cold]
fn no_pattern(len: usize, pattern: usize) -> Error {
    Error::invalid(format!(
        "{len} bytes are not a whole number of patterns of {pattern} bytes"
    ))
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Command")
            .field("waits", &self.submission.waits.len())
            .field("signals", &self.submission.signal.is_some())
            .finish_non_exhaustive()
    }
}
