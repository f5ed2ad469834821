//! OpenCL runtimes for the CPU, found at run time.
//!
//! A CPU runtime with fine-grained *system* shared virtual memory runs kernels in place, on any
//! memory that the process has mapped. Such a kernel needs only OpenCL's compiler and threads.
//!
//! This crate finds such a runtime ([`Runtime::get`]) and wraps the few objects that are needed:
//! [`Device`], [`Program`], [`Kernel`], and [`Queue`], an in-order queue of launches. Images are
//! the runtime's own memory ([`ImageObject`]), and the runtime decides their layout.
//!
//! No library is loaded before [`Runtime::get`] is called, and none is ever unloaded. In a child of
//! `fork`, drops do not call the runtime. The child does not have the runtime's threads, and the
//! runtime's locks may stay locked forever.

#![allow(non_camel_case_types)]

mod device;
mod failure;
mod image;
mod kernel;
mod library;
mod program;
mod promises;
mod queue;
mod recording;
mod runtime;
mod search;
mod types;

pub use device::{Affinity, Device, Partition, PartitionLimits};
pub use failure::Failure;
pub use image::{
    Addressing, ChannelOrder, ChannelType, ImageDescription, ImageKind, ImageLimits, ImageObject,
    Part, SamplerDescription, SamplerObject,
};
pub use kernel::{Argument, Kernel, KernelInfo, Parameter, name_of, program_of, release};
pub use program::{Code, Image, Program, constant_sizes};
pub use queue::{Completion, Queue, Shape};
pub use recording::{MemoryObject, Recording};
pub use runtime::{Limits, Runtime};
pub use search::{LIBRARY_VARIABLE, REMEDY, is_at_hand, load_loader};
