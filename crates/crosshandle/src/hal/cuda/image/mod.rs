//! Images as arrays of the driver, and how kernels reach them.
//!
//! A kernel of CUDA takes no image. It takes the number of a *surface object*, which loads and stores pixels as
//! they are, or of a *texture object*, which samples an image by rules that are part of the object. So an image
//! that is an argument is its surface, as in SYCL's backend for CUDA, and a sampler is a word that describes
//! it, for code that samples by itself; who wants the device to sample makes a view.

mod copy;
mod format;
mod object;
mod view;

pub(super) use copy::{calls, copies};
pub(super) use format::check_format;
pub(super) use object::{create, create_levels, create_sampler};
pub(super) use view::{sampled, unsampled};
