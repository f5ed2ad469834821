//! Images as arrays of the driver, and the ways in which kernels access them.
//!
//! A CUDA kernel takes no image. It takes the number of a *surface object*, which loads and stores
//! unchanged pixels, or of a *texture object*, which samples an image by the rules in that object.
//! An image that is a kernel argument is therefore its surface, as in SYCL's backend for CUDA. A
//! sampler is a word that describes it, for code that does its own sampling. To have the device
//! sample, a program creates a view.

mod copy;
mod external;
mod format;
mod object;
mod view;

pub(super) use copy::{calls, copies};
pub(super) use external::import;
pub(super) use format::check_format;
pub(super) use object::{create, create_levels, create_sampler};
pub(super) use view::{sampled, unsampled};
