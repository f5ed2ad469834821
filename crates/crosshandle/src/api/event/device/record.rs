//! Signals and waits in graphs that other code captures from a stream, and signals that a queue
//! counts on the device.
//!
//! A captured memory operation would use the same number in each run. Therefore these commands are
//! kernels of one thread (`nodes.cu`), which count on the device.
//!
//! If a wait fails, the later signals of the run fail. *Later* are the nodes that follow the wait
//! in the captured graph, so parallel branches do not fail each other. Each wait has a word for its
//! failure, and takes over the failure of the waits before it. Where branches join, a node joins
//! their words.

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
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// The kernels, which all drivers for CUDA 12 and later load.
const NODES: &str = include_str!("nodes.ptx");

/// Bytes of the word that keeps the failure of a node in a run, and the distance to the next one.
const FAULT_BYTES: usize = 64;

/// The kernels that signal and wait, loaded in one context.
pub(crate) struct Recorder {
    wait: Kernel,
    join: Kernel,
    signal: Kernel,
}

/// A recorded node, by the driver's number of the capture and of the node. The word tells whether a
/// wait at this node or before it has failed in the present run.
struct Recorded {
    capture: u64,
    node: usize,
    fault: Weak<Memory>,
}

/// The recorded nodes of captures whose graphs exist.
static RECORDED: PerProcess<Mutex<Vec<Recorded>>> = PerProcess::new(Mutex::default);

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
            join: program.kernel("crosshandle_record_join")?,
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
        let before = Self::fault_before(context, queue, capture)?;
        let event = context.beside_captures(|| context.device_event(&Event::of(event)))?;
        let fault = new_fault(context)?;
        let arguments = KernelArguments::new().with(&event);
        let arguments = with_fault(with_fault(arguments, Some(&fault)), before.as_ref());
        let launch = Self::launch(&context.recorder()?.wait, arguments)?;
        remember(capture, queue.record(Box::new(launch))?, &fault);
        Ok(())
    }

    /// Records a signal with the next number of an event. The signal fails if a wait before it, in
    /// its own branch of the graph, has failed.
    pub(crate) fn record_signal(
        context: &Context,
        queue: &dyn NativeQueue,
        capture: u64,
        event: &Arc<EventCore>,
    ) -> Result<()> {
        // An event that cannot be signalled is refused before anything is recorded.
        let event = context.beside_captures(|| signaller(context, event))?;
        let before = Self::fault_before(context, queue, capture)?;
        let arguments = with_fault(KernelArguments::new().with(&event), before.as_ref());
        let launch = Self::launch(&context.recorder()?.signal, arguments)?;
        let node = queue.record(Box::new(launch))?;
        if let Some(fault) = &before {
            remember(capture, node, fault);
        }
        Ok(())
    }

    /// Returns the word that tells whether a wait before the next command has failed, if there is
    /// such a wait. Records nodes that join the words of several branches.
    fn fault_before(
        context: &Context,
        queue: &dyn NativeQueue,
        capture: u64,
    ) -> Result<Option<Arc<Memory>>> {
        let known: HashMap<usize, Arc<Memory>> = {
            let recorded = RECORDED.lock();
            let of_capture = recorded.iter().filter(|known| known.capture == capture);
            of_capture
                .filter_map(|known| Some((known.node, known.fault.upgrade()?)))
                .collect()
        };
        let nodes = queue.recorded_before(&|node| known.contains_key(&node))?;
        // If the driver does not tell, every wait is treated as one before the command.
        let nodes = nodes.unwrap_or_else(|| known.keys().copied().collect());
        let mut faults: Vec<&Arc<Memory>> = Vec::new();
        for fault in nodes.iter().filter_map(|node| known.get(node)) {
            if !faults.iter().any(|other| Arc::ptr_eq(other, fault)) {
                faults.push(fault);
            }
        }
        let mut faults = faults.into_iter();
        let Some(mut before) = faults.next().cloned() else {
            return Ok(None);
        };
        for other in faults {
            let joined = new_fault(context)?;
            let arguments = with_fault(KernelArguments::new(), Some(&joined));
            let arguments = with_fault(with_fault(arguments, Some(&before)), Some(other));
            let launch = Self::launch(&context.recorder()?.join, arguments)?;
            remember(capture, queue.record(Box::new(launch))?, &joined);
            before = joined;
        }
        Ok(Some(before))
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

/// Allocates the word of a node. Each run writes it before a later node reads it.
fn new_fault(context: &Context) -> Result<Arc<Memory>> {
    let memory = context.beside_captures(|| context.allocate(FAULT_BYTES))?;
    Ok(Arc::new(memory))
}

/// Adds the address of a word to the arguments of a launch, which keeps the word. Without a word,
/// adds a null pointer.
fn with_fault(arguments: KernelArguments, fault: Option<&Arc<Memory>>) -> KernelArguments {
    let address = fault.map_or(0, |fault| fault.as_ptr().expose_provenance());
    let mut arguments = arguments.address(address);
    if let Some(fault) = fault {
        arguments.keep(Arc::clone(fault) as _);
    }
    arguments
}

fn remember(capture: u64, node: usize, fault: &Arc<Memory>) {
    let mut recorded = RECORDED.lock();
    recorded.retain(|known| known.fault.strong_count() > 0);
    recorded.push(Recorded {
        capture,
        node,
        fault: Arc::downgrade(fault),
    });
}
