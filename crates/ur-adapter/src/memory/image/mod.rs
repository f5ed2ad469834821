//! Images: pixels that kernels access by coordinates, and that commands copy.
//!
//! An image has its own memory, whose layout the driver chooses. If the program passes a host
//! pointer, the pixels are copied into the image at creation. This also applies if the flags allow
//! direct use of the host memory. Only read commands copy pixels back.

pub(crate) mod format;

use super::buffer::check_flags;
use super::object::MemoryObject;
use crate::abi::boundary::{In, MaybeIn, Out, entry_points};
use crate::abi::failure::{Failure, Result};
use crate::abi::lock::Lock;
use crate::abi::object::{Handle, Ref};
use crate::abi::query::Query;
use crate::context::{Context, ContextState};
use crate::enqueue::image::PartLayout;
use crate::queue::destination::Destination;
use crosshandle::{
    Command, Error,
    image::{ImageDescription, ImageKind, ImagePart},
};
use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Weak};
use unified_runtime_sys::{
    ur_image_desc_t, ur_image_format_t, ur_image_info_t, ur_mem_flags_t, ur_mem_handle_t,
    ur_mem_native_properties_t, ur_native_handle_t, ur_result_t,
};

/// A UR image handle. Images created from one native handle share the image in `crosshandle`.
pub(crate) struct Image {
    context: Ref<Context>,
    inner: Arc<crosshandle::image::Image>,
}

/// An image for which the adapter has returned a native handle.
struct Given {
    image: Weak<crosshandle::image::Image>,
    context: Weak<ContextState>,
}

static GIVEN: Lock<Vec<Given>> = Lock::new(Vec::new());

impl Image {
    pub(super) fn context(&self) -> &Ref<Context> {
        &self.context
    }

    /// Returns the image in `crosshandle`.
    pub(crate) fn inner(&self) -> &crosshandle::image::Image {
        &self.inner
    }

    /// Returns whether both UR images share one image in `crosshandle`.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    fn description(&self) -> &ImageDescription {
        self.inner.description()
    }

    /// Returns the total size of the pixels in bytes.
    pub(super) fn len(&self) -> usize {
        self.description().bytes().unwrap_or(usize::MAX)
    }

    /// Returns the image in `crosshandle` for a command.
    ///
    /// # Errors
    /// Returns `INVALID_MEM_OBJECT` if the image belongs to another context, or if the command's
    /// device is not the first device of the context.
    pub(crate) fn for_command(
        &self,
        destination: &dyn Destination,
    ) -> Result<&crosshandle::image::Image> {
        let (own, _) = self.context.first();
        let is_near = Arc::ptr_eq(own, destination.device());
        if !Arc::ptr_eq(self.context.state(), destination.context().state()) || !is_near {
            return Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_MEM_OBJECT,
                "the image must belong to the queue's context, and the queue must be on the context's first device",
            ));
        }
        Ok(&self.inner)
    }

    /// Writes a property of the image to the caller's memory. Unused dimensions are reported as 0,
    /// which is OpenCL's convention.
    pub(super) fn answer(&self, name: ur_image_info_t, query: Query<'_>) -> Result<()> {
        let description = self.description();
        let [x, y, z] = description.extent;
        let pixel = description.format.pixel_bytes();
        let (height, depth, layers) = match description.kind {
            ImageKind::OneD => (0, 0, 0),
            ImageKind::TwoD => (y, 0, 0),
            ImageKind::ThreeD => (y, z, 0),
            ImageKind::OneDArray => (0, 0, y),
            ImageKind::TwoDArray | ImageKind::Cube => (y, 0, z),
        };
        let row = x * pixel;
        let slice = match description.kind {
            ImageKind::OneD | ImageKind::TwoD => 0,
            ImageKind::OneDArray => row,
            ImageKind::ThreeD | ImageKind::TwoDArray | ImageKind::Cube => row * y,
        };
        match name {
            ur_image_info_t::UR_IMAGE_INFO_FORMAT => {
                query.value(format::name_of(description.format))
            }
            ur_image_info_t::UR_IMAGE_INFO_ELEMENT_SIZE => query.value(pixel),
            ur_image_info_t::UR_IMAGE_INFO_ROW_PITCH => query.value(row),
            ur_image_info_t::UR_IMAGE_INFO_SLICE_PITCH => query.value(slice),
            ur_image_info_t::UR_IMAGE_INFO_WIDTH => query.value(x),
            ur_image_info_t::UR_IMAGE_INFO_HEIGHT => query.value(height),
            ur_image_info_t::UR_IMAGE_INFO_DEPTH => query.value(depth),
            ur_image_info_t::UR_IMAGE_INFO_ARRAY_SIZE => query.value(layers),
            ur_image_info_t::UR_IMAGE_INFO_NUM_MIP_LEVELS
            | ur_image_info_t::UR_IMAGE_INFO_NUM_SAMPLES => query.value(0_u32),
            _ => Err(Failure::ENUMERATION),
        }
    }

    /// Returns the native handle, which is the driver's image. The handle is valid as long as an
    /// object keeps the image alive.
    pub(super) fn native_handle(&self) -> ur_native_handle_t {
        let mut given = GIVEN.lock();
        given.retain(|given| given.image.strong_count() > 0);
        let image = Arc::downgrade(&self.inner);
        if !given.iter().any(|known| known.image.ptr_eq(&image)) {
            let context = Arc::downgrade(self.context.state());
            given.push(Given { image, context });
        }
        self.inner.native().raw()
    }

    /// Creates an image. If `pixels` is given, copies the pixels from its address.
    ///
    /// # Safety
    /// The caller must ensure that the address in `pixels` is valid for reads of all pixels, with
    /// the pitches from the description.
    unsafe fn new(
        context: &Ref<Context>,
        description: &ImageDescription,
        pixels: Option<(*mut c_void, &ur_image_desc_t)>,
    ) -> Result<Self> {
        let (device, inner) = context.first();
        device.inner().images()?;
        let made = crosshandle::image::Image::new(inner, description).map_err(refusal)?;
        let image = Self {
            context: context.clone(),
            inner: Arc::new(made),
        };
        if let Some((pointer, desc)) = pixels {
            let part = ImagePart {
                origin: [0; 3],
                extent: description.extent,
            };
            let place = PartLayout::new(&image, &part, desc.rowPitch, desc.slicePitch);
            let wrong = "these pitches are smaller than the image's rows or slices";
            let place = place.map_err(|_| format::wrong_description(wrong))?;
            // SAFETY: the caller ensures that the pixels are readable. The command that reads them
            // is complete when `finish` returns, even if the command fails.
            let memory = unsafe { place.in_user_memory(pointer) }?;
            let queue = inner.create_queue()?;
            queue.submit(Command::write_image(
                memory,
                place.pitches(),
                &image.inner,
                part,
            )?)?;
            queue.finish()?;
        }
        Ok(image)
    }
}

/// Converts an error that `crosshandle` returns when it creates an image. The device supports
/// images.
fn refusal(error: Error) -> Failure {
    let result = match error {
        Error::InvalidArgument(_) => ur_result_t::UR_RESULT_ERROR_INVALID_IMAGE_SIZE,
        Error::Unsupported(_) => ur_result_t::UR_RESULT_ERROR_UNSUPPORTED_IMAGE_FORMAT,
        error => return error.into(),
    };
    Failure::from(error).with_result(result)
}

entry_points! {
    pub(super) fn create(
        context: Handle<Context>,
        flags: ur_mem_flags_t,
        format: In<ur_image_format_t>,
        desc: In<ur_image_desc_t>,
        pointer: *mut c_void,
        created: Out<ur_mem_handle_t>,
    ) {
        let has_pointer = !pointer.is_null();
        check_flags(flags, has_pointer)?;
        let description = format::description(format, desc, has_pointer)?;
        let pixels = has_pointer.then_some((pointer, desc));
        // SAFETY: the caller passes null, or an address from which all pixels can be read.
        let image = unsafe { Image::new(&context.to_ref(), &description, pixels) }?;
        created.put(MemoryObject::Image(image).hand_out())
    }

    /// Creates an image from a native handle that this adapter has returned. It refuses all other
    /// native handles, because it cannot know when their images are destroyed. The context must be
    /// that of the original image.
    pub(super) fn create_with_native_handle(
        native: ur_native_handle_t,
        context: Handle<Context>,
        format: In<ur_image_format_t>,
        desc: In<ur_image_desc_t>,
        properties: MaybeIn<ur_mem_native_properties_t>,
        created: Out<ur_mem_handle_t>,
    ) {
        let description = format::description(format, desc, false)?;
        // The images and contexts must not be dropped while the lock is held, so they are collected
        // first.
        let alive = |given: &Given| Some((given.image.upgrade()?, given.context.clone()));
        let alive: Vec<_> = GIVEN.lock().iter().filter_map(alive).collect();
        let mut alive = alive.into_iter();
        let found = alive.find(|(image, _)| image.native().raw() == native);
        let (inner, maker) = found.ok_or_else(|| {
            Failure::argument("no living image of this adapter has this native handle")
        })?;
        if !ptr::eq(maker.as_ptr(), &**context.state()) {
            return Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_CONTEXT,
                "the image with this native handle belongs to another context",
            ));
        }
        if *inner.description() != description {
            return Err(format::wrong_description("the image does not match the description"));
        }
        let context = context.to_ref();
        created.put(MemoryObject::Image(Image { context, inner }).hand_out())
    }
}
