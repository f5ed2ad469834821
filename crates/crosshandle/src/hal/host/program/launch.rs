//! Launches and copies of pixels, on the thread of a queue.

use super::kernel::{HostKernel, arguments};
use super::{Place, error, images};
use crate::error::{Error, Result};
use crate::hal::{ImageCopy, Launch};
use crate::sync::Mutex;
use opencl_cpu::{Completion, Queue, Shape};
use std::any::Any;

/// The runtime's queue behind one of ours, made with its first launch or copy.
pub(crate) struct Launcher {
    place: Place,
    queue: Mutex<Option<Queue>>,
}

/// A launch that the runtime has.
pub(crate) struct StartedLaunch(Completion);

impl Launcher {
    pub(in crate::hal::host) fn new(place: &Place) -> Self {
        Self {
            place: place.clone(),
            queue: Mutex::default(),
        }
    }

    /// Runs a kernel, and returns when it is done.
    pub(crate) fn run(&self, launch: &Launch) -> Result<()> {
        self.start(launch)?.wait()
    }

    /// Gives a launch to the runtime, which runs it behind all that were started before. The caller keeps
    /// `launch` until it is done.
    pub(crate) fn start(&self, launch: &Launch) -> Result<StartedLaunch> {
        let kernel: &dyn Any = &*launch.kernel;
        let kernel = kernel.downcast_ref::<HostKernel>();
        let kernel = kernel.ok_or_else(|| Error::invalid("this kernel is not the host's"))?;
        let kernel = kernel.inner();
        let mut queue = self.queue.lock();
        let queue = self.made(&mut queue)?;
        // SAFETY: the maker of the launch promised that it is sound, with these arguments, which the
        // caller keeps until it is done.
        let started = unsafe { queue.launch(kernel, &shape(launch), arguments(&launch.arguments)) };
        let started = started.map_err(error)?;
        queue.flush().map_err(error)?;
        Ok(StartedLaunch(started))
    }

    /// Copies pixels, and returns when that is done.
    pub(crate) fn copy_image(&self, copy: &ImageCopy) -> Result<()> {
        images::copy(self.made(&mut self.queue.lock())?, copy)
    }

    /// Returns the runtime's queue, and makes it if that was not done.
    fn made<'a>(&self, place: &'a mut Option<Queue>) -> Result<&'a Queue> {
        Ok(match place {
            Some(queue) => queue,
            none => none.insert(Queue::new(&self.place.device()?).map_err(error)?),
        })
    }
}

impl StartedLaunch {
    /// Waits until the launch is done. The runtime may run it on the calling thread.
    pub(crate) fn wait(&self) -> Result<()> {
        self.0.wait().map_err(error)
    }

    /// Returns the result of a launch that is done.
    pub(crate) fn result(&self) -> Option<Result<()>> {
        match self.0.is_done() {
            Ok(false) => None,
            Ok(true) => Some(Ok(())),
            Err(failure) => Some(Err(error(failure))),
        }
    }
}

/// Returns the shape of a launch as the runtime takes it.
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
