//! Commands.

mod allocation;
mod buffer;
mod host;
mod kernel;
mod order;
mod submission;
mod usm;
mod usm_2d;
mod variable;

pub(crate) use host::wait_while;
pub(crate) use submission::Submission;

use crate::buffer::NoImages;
use crate::stub::Stub;
use crate::unsupported::{CommandBuffers, Graphs, HostPipes};
use unified_runtime_sys::{ur_enqueue_dditable_t, ur_enqueue_exp_dditable_t};

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
    pfnMemImageRead: Stub::<NoImages>::STUB,
    pfnMemImageWrite: Stub::<NoImages>::STUB,
    pfnMemImageCopy: Stub::<NoImages>::STUB,
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

pub(crate) const EXP_TABLE: ur_enqueue_exp_dditable_t = ur_enqueue_exp_dditable_t {
    pfnKernelLaunchWithArgsExp: Some(kernel::launch),
    pfnUSMDeviceAllocExp: Some(allocation::device),
    pfnUSMSharedAllocExp: Some(allocation::shared),
    pfnUSMHostAllocExp: Some(allocation::host),
    pfnUSMFreeExp: Some(allocation::free),
    pfnTimestampRecordingExp: Some(host::timestamp),
    pfnCommandBufferExp: Stub::<CommandBuffers>::STUB,
    pfnHostTaskExp: Some(host::task),
    pfnNativeCommandExp: Some(host::native_command),
    pfnGraphExp: Stub::<Graphs>::STUB,
};
