//! Memory: unified shared memory, buffers, images, and physical memory that is mapped at reserved
//! addresses.

pub(crate) mod bindless;
pub(crate) mod buffer;
pub(crate) mod image;
pub(crate) mod object;
pub(crate) mod physical;
pub(crate) mod replicas;
pub(crate) mod usm;
pub(crate) mod virtual_memory;
