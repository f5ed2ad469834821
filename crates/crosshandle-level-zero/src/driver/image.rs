//! Images and samplers, and commands that copy images.

use super::list::raw;
use super::{
    DeviceHandle, DriverContext, EventHandle, Handle, ImageHandle, List, SamplerHandle, check,
    description,
};
use crosshandle_types::error::{Error, Result};
use level_zero_sys::{
    ZE_IMAGE_FLAG_KERNEL_WRITE, ze_image_desc_t, ze_image_format_t, ze_image_region_t,
    ze_image_type_t, ze_sampler_address_mode_t, ze_sampler_filter_mode_t,
};
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

/// An image of the driver.
pub(crate) struct DriverImage {
    context: Arc<DriverContext>,
    handle: ImageHandle,
}

/// A sampler of the driver.
pub(crate) struct DriverSampler {
    context: Arc<DriverContext>,
    handle: SamplerHandle,
}

/// The type, format and size of an image, in the driver's terms.
pub(crate) struct ImageShape {
    pub kind: ze_image_type_t,
    pub format: ze_image_format_t,
    /// The size in pixels. Dimensions that the image lacks are 1.
    pub size: [u32; 3],
    /// The number of layers of an array, or 0 if the image is not an array.
    pub layers: u32,
}

/// A region of an image, in pixels.
#[derive(Clone, Copy)]
pub(crate) struct ImageRegion {
    pub origin: [u32; 3],
    pub extent: [u32; 3],
}

impl ImageRegion {
    fn raw(self) -> ze_image_region_t {
        let ([x, y, z], [width, height, depth]) = (self.origin, self.extent);
        ze_image_region_t {
            originX: x,
            originY: y,
            originZ: z,
            width,
            height,
            depth,
        }
    }
}

impl DriverImage {
    /// Creates an image that kernels can read and write.
    pub(crate) fn create(
        context: &Arc<DriverContext>,
        device: DeviceHandle,
        shape: &ImageShape,
    ) -> Result<Self> {
        let mut desc: ze_image_desc_t = description!(ze_image_desc_t, ZE_STRUCTURE_TYPE_IMAGE_DESC);
        desc.flags = ZE_IMAGE_FLAG_KERNEL_WRITE;
        desc.type_ = shape.kind;
        desc.format = shape.format;
        [desc.height, desc.depth] = [shape.size[1], shape.size[2]];
        desc.width = shape.size[0].into();
        desc.arraylevels = shape.layers;
        let mut handle = ptr::null_mut();
        let create = context.driver.loader.zeImageCreate;
        // SAFETY: our context and one of its devices, with a live description and a live result.
        let code = unsafe { create(context.handle.0, device.0, &desc, &mut handle) };
        check("zeImageCreate", code)?;
        Ok(Self {
            context: Arc::clone(context),
            handle: Handle(handle),
        })
    }

    pub(crate) fn handle(&self) -> ImageHandle {
        self.handle
    }
}

impl Drop for DriverImage {
    fn drop(&mut self) {
        self.context.release("an image", |context| {
            // SAFETY: ours. Commands keep the image alive until they have ended.
            let code = unsafe { (context.driver.loader.zeImageDestroy)(self.handle.0) };
            check("zeImageDestroy", code)
        });
    }
}

impl DriverSampler {
    /// Creates a sampler.
    pub(crate) fn create(
        context: &Arc<DriverContext>,
        device: DeviceHandle,
        addressing: ze_sampler_address_mode_t,
        filter: ze_sampler_filter_mode_t,
        is_normalized: bool,
    ) -> Result<Self> {
        let mut desc = description!(ze_sampler_desc_t, ZE_STRUCTURE_TYPE_SAMPLER_DESC);
        desc.addressMode = addressing;
        desc.filterMode = filter;
        desc.isNormalized = is_normalized.into();
        let mut handle = ptr::null_mut();
        let create = context.driver.loader.zeSamplerCreate;
        // SAFETY: our context and one of its devices, with a live description and a live result.
        let code = unsafe { create(context.handle.0, device.0, &desc, &mut handle) };
        check("zeSamplerCreate", code)?;
        Ok(Self {
            context: Arc::clone(context),
            handle: Handle(handle),
        })
    }

    pub(crate) fn handle(&self) -> SamplerHandle {
        self.handle
    }
}

impl Drop for DriverSampler {
    fn drop(&mut self) {
        self.context.release("a sampler", |context| {
            // SAFETY: ours. Launches keep the sampler alive until they have ended.
            let code = unsafe { (context.driver.loader.zeSamplerDestroy)(self.handle.0) };
            check("zeSamplerDestroy", code)
        });
    }
}

/// Commands that copy pixels and then signal an event.
impl List {
    /// Copies a region of an image to a region of the same image or of another one.
    ///
    /// # Safety
    /// The images and the event live until the list has passed this command. The regions lie inside
    /// their images and do not overlap.
    pub(crate) unsafe fn copy_image(
        &self,
        (to, to_region): (ImageHandle, ImageRegion),
        (from, from_region): (ImageHandle, ImageRegion),
        signal: Option<EventHandle>,
    ) -> Result<()> {
        let append = self.loader().zeCommandListAppendImageCopyRegion;
        let (to_region, from_region) = (to_region.raw(), from_region.raw());
        let (list, none) = (self.handle().0, ptr::null_mut());
        // SAFETY: promised by the caller. The regions are live during the call.
        let code = unsafe {
            append(
                list,
                to.0,
                from.0,
                &to_region,
                &from_region,
                raw(signal),
                0,
                none,
            )
        };
        check("zeCommandListAppendImageCopyRegion", code)
    }

    /// Copies a region of an image to tightly packed memory.
    ///
    /// # Safety
    /// The requirements of `copy_image` apply. The memory also lives until the list has passed this
    /// command.
    pub(crate) unsafe fn read_image(
        &self,
        to: *mut c_void,
        (from, region): (ImageHandle, ImageRegion),
        signal: Option<EventHandle>,
    ) -> Result<()> {
        let append = self.loader().zeCommandListAppendImageCopyToMemory;
        let (list, region, none) = (self.handle().0, region.raw(), ptr::null_mut());
        // SAFETY: promised by the caller. The region is live during the call.
        let code = unsafe { append(list, to, from.0, &region, raw(signal), 0, none) };
        check("zeCommandListAppendImageCopyToMemory", code)
    }

    /// Copies tightly packed memory to a region of an image.
    ///
    /// # Safety
    /// The requirements of `read_image` apply.
    pub(crate) unsafe fn write_image(
        &self,
        (to, region): (ImageHandle, ImageRegion),
        from: *const c_void,
        signal: Option<EventHandle>,
    ) -> Result<()> {
        let append = self.loader().zeCommandListAppendImageCopyFromMemory;
        let (list, region, none) = (self.handle().0, region.raw(), ptr::null_mut());
        // SAFETY: promised by the caller. The region is live during the call.
        let code = unsafe { append(list, to.0, from, &region, raw(signal), 0, none) };
        check("zeCommandListAppendImageCopyFromMemory", code)
    }
}

/// Converts a number of pixels to the driver's 32-bit type.
pub(crate) fn small(number: usize) -> Result<u32> {
    u32::try_from(number)
        .map_err(|_| Error::invalid(format!("{number} pixels are more than the driver counts")))
}
