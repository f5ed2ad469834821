//! Signals and waits in graphs that other code captures from a stream, and signals that a queue
//! counts on the device.
//!
//! A captured memory operation would use the same number in each run. Therefore these commands are
//! kernels of one thread (`nodes.cu`), which count on the device.

use super::{DeviceEvent, HostWord};
use crate::api::context::Context;
use crate::api::event::Event;
use crate::api::memory::Memory;
use crate::api::program::Program;
use crate::api::program::kernel::Kernel;
use crosshandle_hal::{Launch, NativeQueue};
use crosshandle_ipc::EventCore;
use crosshandle_os::fork::PerProcess;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::Mutex;
use crosshandle_types::{KernelArguments, LaunchShape, ProgramImage};
use std::sync::{Arc, Weak};

/// The kernels, which all drivers for CUDA 12 and later load.
const NODES: &str = include_str!("nodes.ptx");

/// Bytes of the word that keeps the failure of a run.
const FAULT_BYTES: usize = 64;

/// The kernels that signal and wait, loaded in one context.
pub(crate) struct Recorder {
    wait: Kernel,
    signal: Kernel,
}

/// The word that keeps the failure of a run of one capture's graph.
struct Fault {
    memory: Memory,
    /// Whether a wait was recorded, which resets the word in each run.
    has_wait: Mutex<bool>,
}

/// Captures that have recorded waits, by the driver's number of the capture.
type Faults = Vec<(u64, Weak<Fault>)>;

static FAULTS: PerProcess<Mutex<Faults>> = PerProcess::new(Mutex::default);

impl Recorder {
    pub(crate) fn new(context: &Context) -> Result<Self> {
        if context.core().backend().native().is_none() {
            return Err(Error::Unsupported(
                "queues of this device cannot signal an event with a single signaller".into(),
            ));
        }
        let program = Program::new(context, ProgramImage::text(NODES))?;
        Ok(Self {
            wait: program.kernel("crosshandle_record_wait")?,
            signal: program.kernel("crosshandle_record_signal")?,
        })
    }

    fn launch(kernel: &Kernel, arguments: KernelArguments) -> Result<Launch> {
        let launch = kernel.launch(LaunchShape::covering(1, 1)?, arguments)?;
        Ok(launch.expect("one thread is not empty"))
    }

    /// Returns the launch that signals an event once. The signal fails if `fault` is not 0 when the
    /// launch runs.
    pub(crate) fn signal_once(
        context: &Context,
        event: &Arc<EventCore>,
        fault: Option<&Arc<HostWord>>,
    ) -> Result<Launch> {
        let event = signaller(context, event)?;
        let address = fault.map_or(0, |fault| fault.address());
        let mut arguments = KernelArguments::new().with(&event).address(address);
        if let Some(fault) = fault {
            arguments.keep(Arc::clone(fault) as _);
        }
        Self::launch(&context.recorder()?.signal, arguments)
    }

    /// Records a wait for the next signal of an event.
    pub(crate) fn record_wait(
        context: &Context,
        queue: &dyn NativeQueue,
        capture: u64,
        event: &Arc<EventCore>,
    ) -> Result<()> {
        let launch = context.beside_captures(|| {
            let event = context.device_event(&Event::of(event))?;
            let fault = fault_of(context, capture)?;
            let is_first = !std::mem::replace(&mut *fault.has_wait.lock(), true);
            let mut arguments = KernelArguments::new()
                .with(&event)
                .address(fault.memory.as_ptr().expose_provenance())
                .value(u32::from(is_first));
            arguments.keep(fault);
            Self::launch(&context.recorder()?.wait, arguments)
        })?;
        queue.record(Box::new(launch))
    }

    /// Records a signal with the next number of an event.
    pub(crate) fn record_signal(
        context: &Context,
        queue: &dyn NativeQueue,
        capture: u64,
        event: &Arc<EventCore>,
    ) -> Result<()> {
        let launch = context.beside_captures(|| {
            let event = signaller(context, event)?;
            let fault = known_fault(capture);
            let address = fault
                .as_ref()
                .map_or(0, |fault| fault.memory.as_ptr().expose_provenance());
            let mut arguments = KernelArguments::new().with(&event).address(address);
            if let Some(fault) = fault {
                arguments.keep(fault);
            }
            Self::launch(&context.recorder()?.signal, arguments)
        })?;
        queue.record(Box::new(launch))
    }
}

/// Returns the event for code that signals it, or an error if code on the device cannot.
fn signaller(context: &Context, event: &Arc<EventCore>) -> Result<DeviceEvent> {
    let has_other_signallers = || {
        Error::Unsupported(
            "this stream is being captured, and other processes and queues signal this event too: \
             replays would signal stale numbers; create the event with a single signaller in this \
             context"
                .into(),
        )
    };
    if !event.is_single_signaller() {
        return Err(has_other_signallers());
    }
    let event = context.device_event(&Event::of(event))?;
    match event.can_signal() {
        true => Ok(event),
        false => Err(has_other_signallers()),
    }
}

/// Returns the fault word of a capture that has recorded a wait.
fn known_fault(capture: u64) -> Option<Arc<Fault>> {
    let faults = FAULTS.lock();
    let mut found = faults.iter().filter(|(known, _)| *known == capture);
    found.find_map(|(_, fault)| fault.upgrade())
}

/// Returns the fault word of a capture, and creates it if necessary.
fn fault_of(context: &Context, capture: u64) -> Result<Arc<Fault>> {
    if let Some(fault) = known_fault(capture) {
        return Ok(fault);
    }
    let memory = context.allocate(FAULT_BYTES)?;
    context.fill_now(&memory, &[0])?;
    let fault = Arc::new(Fault {
        memory,
        has_wait: Mutex::new(false),
    });
    let mut faults = FAULTS.lock();
    faults.retain(|(_, fault)| fault.strong_count() > 0);
    faults.push((capture, Arc::downgrade(&fault)));
    Ok(fault)
}
