//! Enqueue calls. Each module contains the entry points for one family of commands. `submission`
//! contains the code by which all commands enter their queue.

mod allocation;
pub(crate) mod bindless;
pub(crate) mod buffer;
pub(crate) mod command_buffer;
pub(crate) mod graph;
mod host;
pub(crate) mod image;
pub(crate) mod kernel;
mod order;
mod submission;
pub(crate) mod usm;
mod usm_2d;
mod variable;

pub(crate) use submission::{Submission, WaitList};

use crate::abi::stub::Stub;
use crate::abi::unsupported::HostPipes;
use graph::executable;
use unified_runtime_sys::{ur_enqueue_dditable_t, ur_enqueue_exp_dditable_t};

/// The entry points that enqueue commands.
pub(crate) const TABLE: ur_enqueue_dditable_t = ur_enqueue_dditable_t {
    pfnEventsWait: Some(order::events_wait),
    pfnEventsWaitWithBarrier: Some(order::events_wait_with_barrier),
    pfnMemBufferRead: Some(buffer::read),
    pfnMemBufferWrite: Some(buffer::write),
    pfnMemBufferReadRect: Some(buffer::read_rect),
    pfnMemBufferWriteRect: Some(buffer::write_rect),
    pfnMemBufferCopy: Some(buffer::copy),
    pfnMemBufferCopyRect: Some(buffer::copy_rect),
    pfnMemBufferFill: Some(buffer::fill),
    pfnMemImageRead: Some(image::read),
    pfnMemImageWrite: Some(image::write),
    pfnMemImageCopy: Some(image::copy),
    pfnMemBufferMap: Some(buffer::map),
    pfnMemUnmap: Some(buffer::unmap),
    pfnUSMFill: Some(usm::fill),
    pfnUSMMemcpy: Some(usm::memcpy),
    pfnUSMPrefetch: Some(usm::prefetch),
    pfnUSMAdvise: Some(usm::advise),
    pfnUSMFill2D: Some(usm_2d::fill),
    pfnUSMMemcpy2D: Some(usm_2d::memcpy),
    pfnDeviceGlobalVariableWrite: Some(variable::write),
    pfnDeviceGlobalVariableRead: Some(variable::read),
    pfnReadHostPipe: Stub::<HostPipes>::STUB,
    pfnWriteHostPipe: Stub::<HostPipes>::STUB,
    pfnEventsWaitWithBarrierExt: Some(order::events_wait_with_barrier_ext),
};

/// The experimental entry points that enqueue commands.
pub(crate) const EXP_TABLE: ur_enqueue_exp_dditable_t = ur_enqueue_exp_dditable_t {
    pfnKernelLaunchWithArgsExp: Some(kernel::launch),
    pfnUSMDeviceAllocExp: Some(allocation::device),
    pfnUSMSharedAllocExp: Some(allocation::shared),
    pfnUSMHostAllocExp: Some(allocation::host),
    pfnUSMFreeExp: Some(allocation::free),
    pfnTimestampRecordingExp: Some(host::timestamp),
    pfnCommandBufferExp: Some(command_buffer::enqueue),
    pfnHostTaskExp: Some(host::task),
    pfnNativeCommandExp: Some(host::native_command),
    pfnGraphExp: Some(executable::enqueue),
};
