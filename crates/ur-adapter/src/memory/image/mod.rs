//! Images: pixels that kernels access by coordinates, and that commands copy.
//!
//! An image has its own memory, whose layout the driver chooses. If the program passes a host
//! pointer, the pixels are copied into the image at creation. This also applies if the flags allow
//! direct use of the host memory. Only read commands copy pixels back.

pub(crate) mod format;

use super::buffer::{KERNEL_ACCESS, check_flags};
use super::object::MemoryObject;
use super::replicas::{MemoryUse, Replica, Replicas};
use crate::abi::boundary::{In, MaybeIn, Out, entry_points};
use crate::abi::failure::{Failure, Result};
use crate::abi::lock::Lock;
use crate::abi::object::{Handle, Ref};
use crate::abi::query::Query;
use crate::context::{Context, ContextState};
use crate::discovery::Device;
use crate::enqueue::image::PartLayout;
use crate::queue::destination::Destination;
use crosshandle::{
    Access, Command, Error, MemoryRange,
    image::{ImageDescription, ImageKind, ImagePart},
    memory::Pitches,
};
use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Weak};
use unified_runtime_sys::{
    UR_MEM_FLAG_READ_ONLY, ur_image_desc_t, ur_image_format_t, ur_image_info_t, ur_mem_flags_t,
    ur_mem_handle_t, ur_mem_native_properties_t, ur_native_handle_t, ur_result_t,
};

/// A UR image handle. Images created from one native handle share their pixels.
pub(crate) struct Image {
    context: Ref<Context>,
    pixels: Arc<Pixels>,
}

/// The pixels of an image.
enum Pixels {
    /// All devices of the context share the memory of the first device.
    One(crosshandle::image::Image),
    /// Each device that uses the image has an image in its own memory.
    Replicated(Arc<Replicas<crosshandle::image::Image>>),
}

impl Pixels {
    fn description(&self) -> &ImageDescription {
        match self {
            Self::One(image) => image.description(),
            Self::Replicated(replicas) => replicas.layout(),
        }
    }

    /// Returns the driver's image for which a native handle was returned. Returns `None` if each
    /// device has its own image, and the program has a native handle of none.
    fn given(&self) -> Option<ur_native_handle_t> {
        Some(match self {
            Self::One(image) => image.native().raw(),
            Self::Replicated(replicas) => replicas.pinned()?.native().raw(),
        })
    }
}

/// The image on one of several devices. Its pixels are copied through host memory.
impl Replica for crosshandle::image::Image {
    type Layout = ImageDescription;

    const SERVES_PEERS: bool = false;

    fn create(context: &crosshandle::Context, description: &ImageDescription) -> Result<Self> {
        context.device().images()?;
        Self::new(context, description).map_err(refusal)
    }

    fn len(description: &ImageDescription) -> usize {
        description.bytes().unwrap_or(usize::MAX)
    }

    fn read(&self, to: MemoryRange) -> Result<Command> {
        let (part, pitches) = whole(self.description());
        Ok(Command::read_image(self, part, to, pitches)?)
    }

    fn write(&self, from: MemoryRange) -> Result<Command> {
        let (part, pitches) = whole(self.description());
        Ok(Command::write_image(from, pitches, self, part)?)
    }

    fn copy_to(&self, _to: &Self) -> Option<Result<Command>> {
        None
    }
}

/// Returns all pixels of an image, and the pitches of adjacent rows and slices.
fn whole(description: &ImageDescription) -> (ImagePart, Pitches) {
    let extent = description.extent;
    let row = extent[0] * description.format.pixel_bytes();
    let slice = row * extent[1];
    let origin = [0; 3];
    (ImagePart { origin, extent }, Pitches { row, slice })
}

/// An image for which the adapter has returned a native handle.
struct Given {
    pixels: Weak<Pixels>,
    context: Weak<ContextState>,
}

static GIVEN: Lock<Vec<Given>> = Lock::new(Vec::new());

impl Image {
    pub(super) fn context(&self) -> &Ref<Context> {
        &self.context
    }

    /// Returns whether both UR images share their pixels.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pixels, &other.pixels)
    }

    pub(crate) fn description(&self) -> &ImageDescription {
        self.pixels.description()
    }

    /// Returns the total size of the pixels in bytes.
    pub(super) fn len(&self) -> usize {
        self.description().bytes().unwrap_or(usize::MAX)
    }

    /// Returns the image in `crosshandle` for a command with this access.
    ///
    /// # Errors
    /// Returns `INVALID_MEM_OBJECT` if the image belongs to another context, or if the command's
    /// device cannot access the image.
    pub(crate) fn for_command(
        &self,
        destination: &dyn Destination,
        access: Access,
    ) -> Result<crosshandle::image::Image> {
        if !Arc::ptr_eq(self.context.state(), destination.context().state()) {
            return Err(not_accessible(
                "the image must belong to the queue's context",
            ));
        }
        match &*self.pixels {
            Pixels::One(image) if Arc::ptr_eq(self.context.first().0, destination.device()) => {
                Ok(image.clone())
            }
            Pixels::One(_) => Err(not_accessible(
                "among devices that share memory, only the context's first device has the image",
            )),
            Pixels::Replicated(replicas) => {
                let (replica, image) = replicas.on(destination.device())?;
                destination.note(MemoryUse {
                    object: Arc::clone(replicas) as _,
                    is_written: access == Access::ReadWrite,
                    replica,
                })?;
                Ok(image.as_ref().clone())
            }
        }
    }

    /// Returns the image in `crosshandle` for a kernel argument. `flags` say how the kernel
    /// accesses the image.
    ///
    /// # Errors
    /// Returns the same errors as [`for_command`](Self::for_command).
    pub(crate) fn for_kernel(
        &self,
        destination: &dyn Destination,
        flags: ur_mem_flags_t,
    ) -> Result<crosshandle::image::Image> {
        let access = match flags & KERNEL_ACCESS {
            UR_MEM_FLAG_READ_ONLY => Access::ReadOnly,
            _ => Access::ReadWrite,
        };
        self.for_command(destination, access)
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

    /// Returns the native handle on a device, which is the driver's image. The handle is valid as
    /// long as an object keeps the image alive.
    pub(super) fn native_handle(&self, device: &Device) -> Result<ur_native_handle_t> {
        let native = match &*self.pixels {
            Pixels::One(image) => image.native().raw(),
            Pixels::Replicated(replicas) => replicas.pin(device)?.native().raw(),
        };
        let mut given = GIVEN.lock();
        given.retain(|given| given.pixels.strong_count() > 0);
        let pixels = Arc::downgrade(&self.pixels);
        if !given.iter().any(|known| known.pixels.ptr_eq(&pixels)) {
            let context = Arc::downgrade(self.context.state());
            given.push(Given { pixels, context });
        }
        Ok(native)
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
        let (_, inner) = context.first();
        let first = <crosshandle::image::Image as Replica>::create(inner, description)?;
        let image = Self {
            context: context.clone(),
            pixels: Arc::new(match context.state().has_several_memories() {
                true => Pixels::Replicated(Replicas::starting_with(
                    context.state(),
                    *description,
                    first.clone(),
                    pixels.is_some(),
                )),
                false => Pixels::One(first.clone()),
            }),
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
            queue.submit(Command::write_image(memory, place.pitches(), &first, part)?)?;
            queue.finish()?;
        }
        Ok(image)
    }
}

fn not_accessible(message: &'static str) -> Failure {
    Failure::new(ur_result_t::UR_RESULT_ERROR_INVALID_MEM_OBJECT, message)
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
        let alive = |given: &Given| Some((given.pixels.upgrade()?, given.context.clone()));
        let alive: Vec<_> = GIVEN.lock().iter().filter_map(alive).collect();
        let mut alive = alive.into_iter();
        let found = alive.find(|(pixels, _)| pixels.given() == Some(native));
        let (pixels, maker) = found.ok_or_else(|| {
            Failure::argument("no living image of this adapter has this native handle")
        })?;
        if !ptr::eq(maker.as_ptr(), &**context.state()) {
            return Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_CONTEXT,
                "the image with this native handle belongs to another context",
            ));
        }
        if *pixels.description() != description {
            return Err(format::wrong_description("the image does not match the description"));
        }
        let context = context.to_ref();
        created.put(MemoryObject::Image(Image { context, pixels }).hand_out())
    }
}
