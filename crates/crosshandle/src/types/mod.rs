//! Plain values that users and every layer share: they know nothing of processes or drivers.

mod access;
mod address;
mod allocation_options;
pub(crate) mod byte_range;
mod device_info;
mod kernel_arguments;
mod kernel_properties;
mod launch_shape;
mod memory_kind;
mod native_object;
mod pod;
mod program_image;
mod queue_order;
mod rect;
// Copies from and to memory that others write at the same time.
#[allow(unsafe_code)]
pub(crate) mod shared_bytes;

pub use access::Access;
pub(crate) use address::Address;
pub use allocation_options::AllocationOptions;
pub(crate) use device_info::known;
pub use device_info::{Capabilities, DeviceInfo, KernelLimits};
pub use kernel_arguments::KernelArguments;
pub use kernel_properties::{KernelParameter, KernelProperties};
pub use launch_shape::LaunchShape;
pub use memory_kind::MemoryKind;
pub use native_object::{NativeObject, Ownership};
pub use pod::Pod;
pub(crate) use program_image::Format;
pub use program_image::{ProgramImage, ProgramOptions};
pub use queue_order::QueueOrder;
pub use rect::{Pitches, Region};
pub use shared_bytes::{SharedBytes, TypedSlice};
