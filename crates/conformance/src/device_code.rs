//! Kernels that signal events and wait for them.

use crosshandle::event::DeviceEvent;
use crosshandle::kernel::{Kernel, KernelArguments, LaunchShape, Program, ProgramImage};
use crosshandle::{
    AllocationOptions, Command, Context, Device, Event, Memory, MemoryKind, Queue, Result,
};
use std::time::Duration;

/// The kernels, which are made from the CUDA source in the same folder.
const PTX: &str = include_str!("../kernels/device_signals.ptx");

/// Bytes of the results, and the number of 64-bit words of one.
const RESULT_BYTES: usize = 24;

/// The kernels, with a queue that runs one of them at a time.
pub struct DeviceCode {
    context: Context,
    queue: Queue,
    turns: Kernel,
    wait: Kernel,
    signals: Kernel,
    result: Memory,
}

/// The result of a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceResult {
    /// The status of the last wait, as `crosshandle.cuh` numbers it.
    pub status: u64,
    /// The number of rounds, or of the last signal.
    pub rounds: u64,
    /// The duration by the clock of the device.
    pub time: Duration,
}

impl DeviceResult {
    /// The signal is complete.
    pub const COMPLETE: u64 = 0;
    /// The deadline has passed.
    pub const TIMED_OUT: u64 = 1;
    /// The process that should have signalled has ended.
    pub const PEER_DIED: u64 = 2;
    /// The signaller reported a failure.
    pub const FAILED: u64 = 3;
    /// The host told the kernel to stop.
    pub const ABORTED: u64 = 4;
}

impl DeviceCode {
    /// Returns whether a device can run the kernels.
    pub fn runs_on(device: &Device) -> bool {
        device.info().backend.to_string() == "cuda"
            && device.info().capabilities.device_signals
            && device.kernels().is_ok()
    }

    /// Loads the kernels.
    ///
    /// # Errors
    /// Fails as [`Program::new`] does.
    pub fn load(context: &Context) -> Result<Self> {
        let program = Program::new(context, ProgramImage::text(PTX))?;
        let result = AllocationOptions::new(RESULT_BYTES).kind(MemoryKind::Host);
        Ok(Self {
            context: context.clone(),
            queue: context.create_queue()?,
            turns: program.kernel("turns")?,
            wait: program.kernel("wait_for")?,
            signals: program.kernel("signals")?,
            result: context.allocate_with(result)?,
        })
    }

    fn event(&self, event: &Event) -> Result<DeviceEvent> {
        self.context.device_event(event)
    }

    fn start(&self, kernel: &Kernel, arguments: KernelArguments) -> Result<()> {
        self.result.write(0, &[0xff; RESULT_BYTES])?;
        let shape = LaunchShape::covering(1, 1)?;
        let arguments = arguments.with(&self.result.all());
        // SAFETY: the kernels access only events and the result, which the arguments keep alive.
        let launch = unsafe { Command::launch(kernel, shape, arguments)? };
        self.queue.submit(launch)
    }

    /// Starts a kernel that waits for `theirs` and signals `ours`, in turns.
    ///
    /// # Errors
    /// Fails as [`Queue::submit`] does.
    pub fn start_turns(
        &self,
        ours: &Event,
        theirs: &Event,
        rounds: u64,
        is_first: bool,
        timeout: Duration,
    ) -> Result<()> {
        let arguments = KernelArguments::new()
            .with(&self.event(ours)?)
            .with(&self.event(theirs)?)
            .value(rounds)
            .value(u64::from(is_first))
            .value(timeout.as_nanos() as u64);
        self.start(&self.turns, arguments)
    }

    /// Starts a kernel that waits for one signal.
    ///
    /// # Errors
    /// Fails as [`Queue::submit`] does.
    pub fn start_wait(&self, event: &Event, number: u64, timeout: Duration) -> Result<()> {
        let arguments = KernelArguments::new()
            .with(&self.event(event)?)
            .value(number)
            .value(timeout.as_nanos() as u64);
        self.start(&self.wait, arguments)
    }

    /// Starts a kernel that signals several times, with a pause before each signal. The last
    /// `failures` signals fail.
    ///
    /// # Errors
    /// Fails as [`Queue::submit`] does.
    pub fn start_signals(
        &self,
        event: &Event,
        successes: u64,
        failures: u64,
        pause: Duration,
    ) -> Result<()> {
        let arguments = KernelArguments::new()
            .with(&self.event(event)?)
            .value(successes)
            .value(failures)
            .value(pause.as_nanos() as u64);
        self.start(&self.signals, arguments)
    }

    /// Waits for the end of the kernel, and returns its result.
    ///
    /// # Errors
    /// Fails as [`Queue::finish_timeout`] does.
    pub fn end(&self, timeout: Duration) -> Result<DeviceResult> {
        self.queue.finish_timeout(timeout)?;
        let mut bytes = [0; RESULT_BYTES];
        self.result.read(0, &mut bytes)?;
        let words = bytes.as_chunks::<8>().0;
        Ok(DeviceResult {
            status: u64::from_ne_bytes(words[0]),
            rounds: u64::from_ne_bytes(words[1]),
            time: Duration::from_nanos(u64::from_ne_bytes(words[2])),
        })
    }
}
