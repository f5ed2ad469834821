//! The driver's contexts, streams and events: those of the program and those of this library.

use super::context::CudaContext;
use super::device::Gpu;
use super::driver::{ContextHandle, CudaEvent, EventHandle, StreamHandle};
use super::memory::external;
use super::queue;
use crosshandle_hal::{
    BackendContext, BackendQueue, BackendSegment, NativeBarrier, NativeContext, NativeDevice,
    NativeEvent, NativeRecording,
};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{DriverAllocation, Ownership};
use std::any::Any;
use std::sync::Arc;

/// The default stream that synchronises with all other streams of its context. Depending on how a
/// program was compiled, its null stream means this stream too.
const LEGACY_STREAM: usize = 1;
/// The default stream of the calling thread. Each thread has its own.
const PER_THREAD_STREAM: usize = 2;

impl NativeDevice for Gpu {
    fn raw(&self) -> usize {
        self.handle().number() as usize
    }

    unsafe fn adopt_context(&self, context: usize) -> Result<Arc<dyn BackendContext>> {
        let gpu = self.shared()?;
        // SAFETY: promised by the caller.
        let context = unsafe { ContextHandle::from_raw(context) };
        if context == gpu.context()? {
            return Ok(Arc::new(CudaContext::new(gpu)));
        }
        let inside = gpu.inside(context);
        let _current = inside.enter()?;
        if inside.driver().current_device()? != gpu.handle() {
            return Err(Error::invalid(format!(
                "this context is on another device than {}",
                gpu.info().name
            )));
        }
        Ok(Arc::new(CudaContext::new(&inside)))
    }
}

impl NativeContext for CudaContext {
    fn raw(&self) -> Result<usize> {
        Ok(self.gpu().context()?.number())
    }

    unsafe fn adopt_queue(
        &self,
        stream: usize,
        ownership: Ownership,
    ) -> Result<Box<dyn BackendQueue>> {
        if stream == PER_THREAD_STREAM {
            return Err(Error::Unsupported(
                "each thread has its own per-thread default stream, so no queue can be \
                 created from it; create a stream"
                    .into(),
            ));
        }
        let is_default = stream == 0 || stream == LEGACY_STREAM;
        let stream = if is_default { LEGACY_STREAM } else { stream };
        // SAFETY: promised by the caller.
        let stream = unsafe { StreamHandle::from_raw(stream) };
        let gpu = self.gpu();
        let driver = gpu.driver();
        let _current = gpu.enter()?;
        if driver.context_of(stream)? != gpu.context()? {
            return Err(Error::invalid(
                "this stream belongs to another context; adopt that context first",
            ));
        }
        let own = match ownership {
            Ownership::Owned if is_default => {
                return Err(Error::invalid("a default stream cannot be destroyed"));
            }
            // SAFETY: promised by the caller.
            Ownership::Owned => Some(unsafe { driver.take_stream(stream) }),
            Ownership::Borrowed => None,
        };
        queue::adopt(gpu, stream, own)
    }

    fn create_event(&self) -> Result<Arc<dyn NativeEvent>> {
        let gpu = self.gpu();
        let _current = gpu.enter()?;
        Ok(Arc::new(Recorded {
            event: gpu.driver().create_event(false)?,
            gpu: Arc::clone(gpu),
        }))
    }

    fn beside_captures(&self, call: &mut dyn FnMut()) {
        self.gpu().driver().beside_captures(call);
    }

    fn create_recording(&self) -> Result<Arc<dyn NativeRecording>> {
        Ok(Arc::new(queue::graph::RecordedGraph::create(self.gpu())?))
    }

    unsafe fn wait_for_event(
        &self,
        stream: usize,
        event: usize,
        ownership: Ownership,
    ) -> Result<Option<Box<dyn Any + Send>>> {
        let gpu = self.gpu();
        let driver = gpu.driver();
        // SAFETY: promised by the caller.
        let stream = unsafe { StreamHandle::from_raw(stream) };
        // SAFETY: promised by the caller.
        let event = unsafe { EventHandle::from_raw(event) };
        let _current = gpu.enter()?;
        // SAFETY: promised by the caller. The driver keeps the event until the stream has waited
        // for it.
        let _given = (ownership == Ownership::Owned).then(|| unsafe { driver.take_event(event) });
        driver.wait_for_event(stream, event)?;
        Ok(None)
    }

    fn barrier(&self) -> Option<&dyn NativeBarrier> {
        Some(self)
    }

    fn allocation_at(&self, address: usize) -> Result<Option<DriverAllocation>> {
        external::find(self.gpu(), address)
    }

    unsafe fn adopt_memory(
        &self,
        address: usize,
        len: usize,
    ) -> Result<(Arc<dyn BackendSegment>, usize)> {
        let mut adopted = external::adopt(self.gpu(), &[(address, len)])?;
        Ok(adopted.remove(0))
    }

    unsafe fn adopt_memory_parts(
        &self,
        parts: &[(usize, usize)],
    ) -> Result<Vec<(Arc<dyn BackendSegment>, usize)>> {
        external::adopt(self.gpu(), parts)
    }
}

impl NativeBarrier for CudaContext {
    fn synchronize(&self) -> Result<()> {
        let gpu = self.gpu();
        let _current = gpu.enter()?;
        gpu.driver().synchronize()
    }
}

/// An event of the driver, created for a program.
struct Recorded {
    gpu: Arc<Gpu>,
    event: CudaEvent,
}

impl NativeEvent for Recorded {
    fn raw(&self) -> usize {
        self.event.handle().number()
    }

    unsafe fn record(&self, stream: usize) -> Result<()> {
        let _current = self.gpu.enter()?;
        // SAFETY: promised by the caller.
        let stream = unsafe { StreamHandle::from_raw(stream) };
        self.gpu.driver().record_event(self.event.handle(), stream)
    }
}
