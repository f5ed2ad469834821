//! A context on the device of these tests, and access to memory that the host may not be able to
//! access.

use crate::common::DEADLINE;
use crosshandle::{
    AllocationOptions, Command, Context, ContextOptions, Device, Memory, MemoryKind, Queue,
    handle::BackendKind,
};
use std::ops::Deref;

/// Environment variable that names the device.
const DEVICE: &str = "CROSSHANDLE_HOLDER_DEVICE";
/// Number of bytes that are copied at a time.
const STAGED: usize = 64 << 10;

pub(crate) struct Place {
    context: Context,
    /// The queue and the staging memory for copies, if the host cannot access the device's memory.
    staging: Option<(Queue, Memory)>,
}

impl Deref for Place {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.context
    }
}

/// Returns the name of the device.
fn device() -> String {
    std::env::var(DEVICE).unwrap_or_else(|_| "host".into())
}

/// Returns whether the tests use host memory.
pub(crate) fn is_host() -> bool {
    device() == "host"
}

/// Returns the free memory of the device in bytes, or `None` on the host, where other processes use
/// it too.
pub(crate) fn free_memory() -> Option<u64> {
    let device = Device::find(&device()).expect("the device");
    (!is_host()).then(|| device.free_memory())?
}

impl Place {
    pub(crate) fn new(options: ContextOptions) -> Self {
        let device = Device::find(&device()).expect("the device");
        let context = Context::with_options(&device, options).expect("a context");
        let is_direct = device.info().capabilities.host_accessible_memory;
        let staging = (!is_direct).then(|| {
            let options = AllocationOptions::new(STAGED).kind(MemoryKind::Host);
            let memory = context.allocate_with(options).expect("memory");
            (context.create_queue().expect("a queue"), memory)
        });
        Self { context, staging }
    }

    pub(crate) fn is_cuda(&self) -> bool {
        self.device().info().backend == BackendKind::Cuda
    }

    pub(crate) fn read(&self, memory: &Memory, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let Some((queue, staging)) = &self.staging else {
            memory.read(offset, &mut bytes).expect("readable");
            return bytes;
        };
        let from = memory.range(offset..offset + len).expect("inside");
        let to = staging.range(..len).expect("inside");
        let copy = Command::copy(from, to).expect("a copy");
        queue.submit(copy).expect("submitted");
        queue.finish_timeout(DEADLINE).expect("copied");
        staging.read(0, &mut bytes).expect("readable");
        bytes
    }

    pub(crate) fn write(&self, memory: &Memory, offset: usize, bytes: &[u8]) {
        let Some((queue, staging)) = &self.staging else {
            return memory.write(offset, bytes).expect("writable");
        };
        staging.write(0, bytes).expect("writable");
        let from = staging.range(..bytes.len()).expect("inside");
        let to = memory.range(offset..offset + bytes.len()).expect("inside");
        let copy = Command::copy(from, to).expect("a copy");
        queue.submit(copy).expect("submitted");
        queue.finish_timeout(DEADLINE).expect("copied");
    }
}

/// Returns the time of a clock that all processes of the machine share, in microseconds.
pub(crate) fn now_us() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1_000
}
