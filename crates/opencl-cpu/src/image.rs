//! Images, samplers, and the commands on images.

use crate::failure::{Failure, check};
use crate::queue::{Completion, Queue};
use crate::runtime::value;
use crate::types::*;
use crate::{Device, Runtime};
use std::ffi::c_void;
use std::ptr;

/// The limits of images on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageLimits {
    /// Maximum size of images of one or two dimensions, in pixels.
    pub size_2d: [usize; 2],
    /// Maximum size of images of three dimensions, in pixels.
    pub size_3d: [usize; 3],
    /// Maximum number of images in an array.
    pub layers: usize,
    /// Maximum number of images that a kernel reads.
    pub read_arguments: u32,
    /// Maximum number of images that a kernel writes.
    pub write_arguments: u32,
    /// Maximum number of images that a kernel both reads and writes.
    pub read_write_arguments: u32,
    /// Maximum number of samplers of a kernel.
    pub samplers: u32,
}

/// The dimensions of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageKind {
    /// A row of pixels.
    OneD,
    /// A rectangle of pixels.
    TwoD,
    /// A cuboid of pixels.
    ThreeD,
    /// An array of rows.
    OneDArray,
    /// An array of rectangles.
    TwoDArray,
}

/// The channels of a pixel, in their order, as OpenCL names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs, reason = "each is the name of its channels")]
pub enum ChannelOrder {
    R = 0x10B0,
    A = 0x10B1,
    Rg = 0x10B2,
    Ra = 0x10B3,
    Rgb = 0x10B4,
    Rgba = 0x10B5,
    Bgra = 0x10B6,
    Argb = 0x10B7,
    Intensity = 0x10B8,
    Luminance = 0x10B9,
    Rx = 0x10BA,
    Rgx = 0x10BB,
    Rgbx = 0x10BC,
    Srgba = 0x10C1,
    Abgr = 0x10C3,
}

/// The type of each channel, as OpenCL names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs, reason = "each is the name of its type")]
pub enum ChannelType {
    SnormInt8 = 0x10D0,
    SnormInt16 = 0x10D1,
    UnormInt8 = 0x10D2,
    UnormInt16 = 0x10D3,
    UnormShort565 = 0x10D4,
    UnormShort555 = 0x10D5,
    UnormInt101010 = 0x10D6,
    SignedInt8 = 0x10D7,
    SignedInt16 = 0x10D8,
    SignedInt32 = 0x10D9,
    UnsignedInt8 = 0x10DA,
    UnsignedInt16 = 0x10DB,
    UnsignedInt32 = 0x10DC,
    HalfFloat = 0x10DD,
    Float = 0x10DE,
}

/// The description of an image to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageDescription {
    /// The dimensions of the image.
    pub kind: ImageKind,
    /// The channels of a pixel.
    pub order: ChannelOrder,
    /// The type of each channel.
    pub channel: ChannelType,
    /// The size in pixels. An array's number of layers is in the dimension after those of its
    /// images.
    pub extent: [usize; 3],
}

/// An image that kernels read and write. Any thread may use it.
pub struct ImageObject {
    runtime: &'static Runtime,
    memory: cl_mem,
    kind: ImageKind,
}

/// How a sampler treats coordinates outside an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Addressing {
    /// Coordinates outside the image are not allowed.
    None = 0x1130,
    /// The nearest pixel of the image is returned.
    ClampToEdge = 0x1131,
    /// The border colour is returned.
    Clamp = 0x1132,
    /// The image is repeated.
    Repeat = 0x1133,
    /// The image is repeated, and every second copy is mirrored.
    MirroredRepeat = 0x1134,
}

/// The description of a sampler to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SamplerDescription {
    /// Whether coordinates are fractions of the image's size.
    pub is_normalized: bool,
    /// How the sampler treats coordinates outside the image.
    pub addressing: Addressing,
    /// Whether the sampler interpolates between pixels. Otherwise it returns the nearest pixel.
    pub is_linear: bool,
}

/// A sampler, which defines how kernels read an image. Any thread may use it.
pub struct SamplerObject {
    runtime: &'static Runtime,
    sampler: cl_sampler,
}

/// A part of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The first pixel in each dimension.
    pub origin: [usize; 3],
    /// The size in pixels. No dimension is 0.
    pub extent: [usize; 3],
}

impl ImageObject {
    /// Creates an image with arbitrary contents.
    ///
    /// # Errors
    /// Fails with the runtime's code. For an unsupported pixel format,
    /// [`is_unsupported_format`](Failure::is_unsupported_format) returns true.
    pub fn new(device: &Device, image: &ImageDescription) -> Result<Self, Failure> {
        let runtime = device.runtime();
        let [x, y, z] = image.extent;
        let (kind, height, depth, layers) = match image.kind {
            ImageKind::OneD => (CL_MEM_OBJECT_IMAGE1D, 0, 0, 0),
            ImageKind::TwoD => (CL_MEM_OBJECT_IMAGE2D, y, 0, 0),
            ImageKind::ThreeD => (CL_MEM_OBJECT_IMAGE3D, y, z, 0),
            ImageKind::OneDArray => (CL_MEM_OBJECT_IMAGE1D_ARRAY, 0, 0, y),
            ImageKind::TwoDArray => (CL_MEM_OBJECT_IMAGE2D_ARRAY, y, 0, z),
        };
        let format = cl_image_format {
            image_channel_order: image.order as cl_uint,
            image_channel_data_type: image.channel as cl_uint,
        };
        let description = cl_image_desc {
            image_type: kind,
            image_width: x,
            image_height: height,
            image_depth: depth,
            image_array_size: layers,
            image_row_pitch: 0,
            image_slice_pitch: 0,
            num_mip_levels: 0,
            num_samples: 0,
            mem_object: cl_mem::NULL,
        };
        let mut code = CL_SUCCESS;
        // SAFETY: the context is alive, and the format and the description are valid for the call.
        // There is no host pointer.
        let memory = unsafe {
            (runtime.library.clCreateImage)(
                device.context(),
                CL_MEM_READ_WRITE,
                &format,
                &description,
                ptr::null_mut(),
                &mut code,
            )
        };
        check("clCreateImage", code)?;
        Ok(Self {
            runtime,
            memory,
            kind: image.kind,
        })
    }

    /// Returns the runtime of the image.
    pub fn runtime(&self) -> &'static Runtime {
        self.runtime
    }

    /// Returns the size of a pixel, in bytes.
    ///
    /// # Errors
    /// Fails with the runtime's code.
    pub fn pixel_bytes(&self) -> Result<usize, Failure> {
        value("clGetImageInfo", |size, place, written| {
            // SAFETY: the image is alive, and `place` has room for `size` bytes.
            unsafe {
                (self.runtime.library.clGetImageInfo)(
                    self.memory,
                    CL_IMAGE_ELEMENT_SIZE,
                    size,
                    place,
                    written,
                )
            }
        })
    }

    /// Returns the `cl_mem` as a number, whose bytes are passed as a kernel's argument.
    pub fn raw(&self) -> usize {
        self.memory.0.expose_provenance()
    }

    /// Returns the pitches in the runtime's form for memory with these row and slice pitches, in
    /// bytes.
    fn pitches(&self, row: usize, slice: usize) -> (usize, usize) {
        match self.kind {
            ImageKind::OneD => (0, 0),
            ImageKind::TwoD => (row, 0),
            // By the specification the layers are slices, but Intel's runtime treats them as rows.
            ImageKind::OneDArray => (row, row),
            ImageKind::ThreeD | ImageKind::TwoDArray => (row, slice),
        }
    }
}

impl Drop for ImageObject {
    fn drop(&mut self) {
        if self.runtime.is_elsewhere() {
            return;
        }
        // SAFETY: the image was created here and is released once. Commands have their own
        // references.
        unsafe { (self.runtime.library.clReleaseMemObject)(self.memory) };
    }
}

impl SamplerObject {
    /// Creates a sampler.
    ///
    /// # Errors
    /// Fails with the runtime's code.
    pub fn new(device: &Device, sampler: &SamplerDescription) -> Result<Self, Failure> {
        let runtime = device.runtime();
        const CL_FILTER_NEAREST: cl_bitfield = 0x1140;
        let properties = [
            CL_SAMPLER_NORMALIZED_COORDS,
            cl_bitfield::from(sampler.is_normalized),
            CL_SAMPLER_ADDRESSING_MODE,
            sampler.addressing as cl_bitfield,
            CL_SAMPLER_FILTER_MODE,
            CL_FILTER_NEAREST + cl_bitfield::from(sampler.is_linear),
            0,
        ];
        let mut code = CL_SUCCESS;
        // SAFETY: the context is alive, and the properties end with a zero.
        let sampler = unsafe {
            (runtime.library.clCreateSamplerWithProperties)(
                device.context(),
                properties.as_ptr(),
                &mut code,
            )
        };
        check("clCreateSamplerWithProperties", code)?;
        Ok(Self { runtime, sampler })
    }

    /// Returns the `cl_sampler` as a number, whose bytes are passed as a kernel's argument.
    pub fn raw(&self) -> usize {
        self.sampler.0.expose_provenance()
    }
}

impl Drop for SamplerObject {
    fn drop(&mut self) {
        if self.runtime.is_elsewhere() {
            return;
        }
        // SAFETY: the sampler was created here and is released once. Kernels have their own
        // references.
        unsafe { (self.runtime.library.clReleaseSampler)(self.sampler) };
    }
}

/// Commands on images. The caller gives the row and slice pitch in memory, in bytes. An array of
/// rows has one row per layer.
impl Queue {
    /// Submits a copy of a part of an image to memory.
    ///
    /// # Errors
    /// Fails with the runtime's code if the part is not inside the image.
    ///
    /// # Safety
    /// The rows and slices in memory must be valid for writes until the copy is complete.
    pub unsafe fn read_image(
        &self,
        image: &ImageObject,
        part: &Part,
        (to, row, slice): (*mut u8, usize, usize),
    ) -> Result<Completion, Failure> {
        let (row, slice) = image.pitches(row, slice);
        let mut event = cl_event::NULL;
        // SAFETY: the queue and the image are alive. The caller guarantees that the memory is valid
        // for writes.
        let code = unsafe {
            (self.runtime().library.clEnqueueReadImage)(
                self.handle(),
                image.memory,
                CL_FALSE,
                part.origin.as_ptr(),
                part.extent.as_ptr(),
                row,
                slice,
                to.cast::<c_void>(),
                0,
                ptr::null(),
                &mut event,
            )
        };
        check("clEnqueueReadImage", code)?;
        Ok(self.completion(event))
    }

    /// Submits a copy of memory to a part of an image.
    ///
    /// # Errors
    /// Fails with the runtime's code if the part is not inside the image.
    ///
    /// # Safety
    /// The rows and slices in memory must be valid for reads until the copy is complete.
    pub unsafe fn write_image(
        &self,
        image: &ImageObject,
        part: &Part,
        (from, row, slice): (*const u8, usize, usize),
    ) -> Result<Completion, Failure> {
        let (row, slice) = image.pitches(row, slice);
        let mut event = cl_event::NULL;
        // SAFETY: the queue and the image are alive. The caller guarantees that the memory is valid
        // for reads.
        let code = unsafe {
            (self.runtime().library.clEnqueueWriteImage)(
                self.handle(),
                image.memory,
                CL_FALSE,
                part.origin.as_ptr(),
                part.extent.as_ptr(),
                row,
                slice,
                from.cast::<c_void>(),
                0,
                ptr::null(),
                &mut event,
            )
        };
        check("clEnqueueWriteImage", code)?;
        Ok(self.completion(event))
    }

    /// Submits a copy of a part of an image to another image, or to another place in the same
    /// image.
    ///
    /// # Errors
    /// Fails with the runtime's code if a part is not inside its image, if the parts overlap, or if
    /// the pixel formats differ.
    pub fn copy_image(
        &self,
        from: (&ImageObject, [usize; 3]),
        to: (&ImageObject, [usize; 3]),
        extent: [usize; 3],
    ) -> Result<Completion, Failure> {
        let mut event = cl_event::NULL;
        // SAFETY: the queue and the images are alive, and each array has three elements.
        let code = unsafe {
            (self.runtime().library.clEnqueueCopyImage)(
                self.handle(),
                from.0.memory,
                to.0.memory,
                from.1.as_ptr(),
                to.1.as_ptr(),
                extent.as_ptr(),
                0,
                ptr::null(),
                &mut event,
            )
        };
        check("clEnqueueCopyImage", code)?;
        Ok(self.completion(event))
    }
}
