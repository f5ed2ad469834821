//! OpenCL runtimes for the CPU, found at run time.
//!
//! A CPU runtime with fine-grained *system* shared virtual memory runs kernels on any memory that the
//! process has mapped, in place: what a kernel needs of OpenCL is then only its compiler and its threads.
//! This crate finds such a runtime ([`Runtime::get`]) and has safe objects for the few things that
//! are needed: [`Device`], [`Program`], [`Kernel`], and [`Queue`], an in-order queue of launches. Images are the
//! runtime's own memory ([`ImageObject`]): how it lays them out is its affair.
//!
//! Nothing is loaded before [`Runtime::get`] is called, and nothing is ever unloaded. In a child of `fork`,
//! drops leave the runtime alone: its threads are not there, and its locks may be held for ever.

#![allow(non_camel_case_types)]

mod device;
mod failure;
mod image;
mod kernel;
mod library;
mod program;
mod promises;
mod queue;
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
pub use runtime::{Limits, Runtime};
pub use search::{LIBRARY_VARIABLE, REMEDY, is_at_hand, load_loader};
