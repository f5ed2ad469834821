//! Plain values that users and all crates of the library share: errors, deadlines, and descriptions
//! of devices, kernels, images and memory. [`observe`] has what a program can watch, and [`sync`]
//! has locks without poison.
//!
//! Internal to `crosshandle`: this crate promises no stable interface.

#![allow(missing_docs, rustdoc::private_intra_doc_links)]
#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod error;
pub mod observe;
pub mod sync;

mod address;
pub mod byte_range;
mod device_info;
mod image;
mod kernel;
mod memory;
mod native_object;
mod pod;
mod program_image;
mod queue_order;
mod rect;
pub mod report;
// Copies from and to memory that other threads and processes write at the same time.
#[allow(unsafe_code)]
pub mod shared_bytes;

pub use address::Address;
pub use device_info::{
    AffinityDomain, Capabilities, DeviceInfo, KernelLimits, Partition, PartitionLimits,
};
pub use device_info::{dlpack, known};
pub use image::{
    Addressing, ChannelOrder, ChannelType, Filter, ImageDescription, ImageFormat, ImageKind,
    ImageLimits, ImagePart, SamplerDescription, Sampling, ViewLimits,
};
pub use kernel::{ArgumentKind, number};
pub use kernel::{KernelArgument, KernelArguments, KernelParameter, KernelProperties, LaunchShape};
pub use memory::{Access, AllocationOptions, MemoryKind};
pub use native_object::{DriverAllocation, NativeObject, NativeRuntime, Ownership};
pub use pod::Pod;
pub use program_image::{Format, spirv};
pub use program_image::{ProgramImage, ProgramOptions};
pub use queue_order::QueueOrder;
pub use rect::{Pitches, Region};
pub use shared_bytes::{SharedBytes, TypedSlice};
