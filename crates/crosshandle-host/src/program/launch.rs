//! Launches and copies of pixels, on the threads that submit to a queue or run its commands.

use super::kernel::{HostKernel, arguments};
use super::{Units, error};
use crate::image;
use crosshandle_hal::{ImageCopy, Launch};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::Mutex;
use opencl_cpu::{Completion, Queue, Shape};
use std::any::Any;

/// The OpenCL queue behind a queue of this library. It is created with the first launch or copy.
pub(crate) struct Launcher {
    units: Units,
    queue: Mutex<Option<Queue>>,
}

/// A launch that was passed to the runtime.
pub(crate) struct StartedLaunch(Completion);

impl Launcher {
    pub(crate) fn new(units: &Units) -> Self {
        Self {
            units: units.clone(),
            queue: Mutex::default(),
        }
    }

    /// Runs a kernel, and returns when it is complete.
    pub(crate) fn run(&self, launch: &Launch) -> Result<()> {
        self.start(launch)?.wait()
    }

    /// Passes a launch to the runtime, which runs it after all launches that were started earlier.
    /// The caller keeps `launch` until it is complete.
    pub(crate) fn start(&self, launch: &Launch) -> Result<StartedLaunch> {
        let kernel: &dyn Any = &*launch.kernel;
        let kernel = kernel.downcast_ref::<HostKernel>();
        let kernel = kernel.ok_or_else(|| Error::invalid("this kernel is not the host's"))?;
        let kernel = kernel.inner();
        let mut queue = self.queue.lock();
        let queue = self.made(&mut queue)?;
        // SAFETY: the creator of the launch promised that it is sound with these arguments, and the
        // caller keeps them until it is complete.
        let started = unsafe { queue.launch(kernel, &shape(launch), arguments(&launch.arguments)) };
        let started = started.map_err(error)?;
        queue.flush().map_err(error)?;
        Ok(StartedLaunch(started))
    }

    /// Copies pixels, and returns when the copy is complete.
    pub(crate) fn copy_image(&self, copy: &ImageCopy) -> Result<()> {
        image::copy(self.made(&mut self.queue.lock())?, copy)
    }

    /// Returns the OpenCL queue, and creates it on the first call.
    fn made<'a>(&self, place: &'a mut Option<Queue>) -> Result<&'a Queue> {
        Ok(match place {
            Some(queue) => queue,
            none => none.insert(Queue::new(&self.units.device()?).map_err(error)?),
        })
    }
}

impl StartedLaunch {
    /// Waits until the launch is complete. The runtime may run it on the calling thread.
    pub(crate) fn wait(&self) -> Result<()> {
        self.0.wait().map_err(error)
    }

    /// Returns the result of a completed launch, or `None` if it is still running.
    pub(crate) fn result(&self) -> Option<Result<()>> {
        match self.0.is_done() {
            Ok(false) => None,
            Ok(true) => Some(Ok(())),
            Err(failure) => Some(Err(error(failure))),
        }
    }
}

/// Returns the shape of a launch in the form that the runtime takes.
fn shape(launch: &Launch) -> Shape {
    let asked = &launch.shape;
    let local = asked.block.map(|count| count as usize);
    let blocks = asked.grid.map(|count| count as usize);
    let all = |index: usize| blocks[index].saturating_mul(local[index]);
    Shape {
        offset: asked.offset,
        global: asked.threads.unwrap_or_else(|| [0, 1, 2].map(all)),
        local: asked.threads.is_none().then_some(local),
    }
}
