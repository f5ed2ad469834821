//! Appends copies of pixels to lists.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use level_zero_sys::*;
use opencl_cpu::{Completion, Failure, ImageKind, Part, Queue};

use super::Image;
use crate::call::{Few, INVALID_ARGUMENT, INVALID_NULL_POINTER, INVALID_SIZE, Result, entry, read};
use crate::checks::{Check, misuse};
use crate::handles;
use crate::list::List;
use crate::runtime_queue;
use crate::space::{Use, find_range};
use crate::work::Work;

/// A copy of pixels. The memory at its addresses lives until the command is complete.
pub(crate) enum ImageWork {
    Read {
        to: usize,
        from: Arc<Image>,
        part: Part,
    },
    Write {
        to: Arc<Image>,
        part: Part,
        from: usize,
    },
    Copy {
        to: (Arc<Image>, [usize; 3]),
        from: (Arc<Image>, [usize; 3]),
        extent: [usize; 3],
    },
}

impl ImageWork {
    /// Performs the copy and waits for it. Returns `false` if the OpenCL runtime refused it.
    pub(crate) fn run(&self) -> bool {
        let image = match self {
            Self::Read { from: image, .. } | Self::Write { to: image, .. } => image,
            Self::Copy { to: (image, _), .. } => image,
        };
        runtime_queue::run(image.object.runtime(), |queue| self.submit(queue))
    }

    /// Submits the copy to the OpenCL runtime's queue.
    fn submit(&self, queue: &Queue) -> std::result::Result<Completion, Failure> {
        // SAFETY: the entry point checked ranges of the driver's memory when it appended the
        // command. The caller of Level Zero guarantees that other memory is valid, and that all
        // memory stays valid until the command is complete.
        unsafe {
            match self {
                Self::Read { to, from, part } => {
                    let (row, slice) = from.pitches(part);
                    let to = ptr::with_exposed_provenance_mut(*to);
                    queue.read_image(&from.object, part, (to, row, slice))
                }
                Self::Write { to, part, from } => {
                    let (row, slice) = to.pitches(part);
                    let from = ptr::with_exposed_provenance(*from);
                    queue.write_image(&to.object, part, (from, row, slice))
                }
                Self::Copy { to, from, extent } => {
                    queue.copy_image((&from.0.object, from.1), (&to.0.object, to.1), *extent)
                }
            }
        }
    }

    /// Marks the images as used while the result lives.
    pub(crate) fn uses(&self) -> Few<Use> {
        match self {
            Self::Read { from: image, .. } | Self::Write { to: image, .. } => {
                Few::from_iter([image.use_count.take()])
            }
            Self::Copy { to, from, .. } => {
                Few::from_iter([to.0.use_count.take(), from.0.use_count.take()])
            }
        }
    }
}

impl Image {
    /// Returns the row and slice pitch of a part in memory, which has no gaps.
    fn pitches(&self, part: &Part) -> (usize, usize) {
        let row = part.extent[0] * self.pixel;
        (row, row * part.extent[1])
    }

    fn bytes(&self, part: &Part) -> usize {
        part.extent.iter().product::<usize>() * self.pixel
    }

    /// Reads a region. A null pointer means the whole image. A size may be 0 in a dimension that
    /// the image lacks.
    fn part(&self, region: *const ze_image_region_t) -> Result<Part> {
        if region.is_null() {
            return Ok(Part {
                origin: [0; 3],
                extent: self.extent,
            });
        }
        let region = read(region)?;
        let dimensions = match self.kind {
            ImageKind::OneD => 1,
            ImageKind::TwoD | ImageKind::OneDArray => 2,
            ImageKind::ThreeD | ImageKind::TwoDArray => 3,
        };
        let mut extent = [region.width, region.height, region.depth].map(|size| size as usize);
        for size in &mut extent[dimensions..] {
            *size = (*size).max(1);
        }
        let origin = [region.originX, region.originY, region.originZ].map(|at| at as usize);
        let is_inside = |index: usize| origin[index] + extent[index] <= self.extent[index];
        if extent.contains(&0) {
            return Err(INVALID_SIZE);
        }
        if !(0..3).all(is_inside) {
            let what = format!("{extent:?} pixels from {origin:?} on reach beyond the image");
            misuse(Check::OutOfBounds, &what);
            return Err(INVALID_ARGUMENT);
        }
        Ok(Part { origin, extent })
    }
}

entry! {
    fn zeCommandListAppendImageCopyRegion(
        list: ze_command_list_handle_t,
        to: ze_image_handle_t,
        from: ze_image_handle_t,
        to_region: *const ze_image_region_t,
        from_region: *const ze_image_region_t,
        signal: ze_event_handle_t,
        count: u32,
        waits: *mut ze_event_handle_t,
    ) {
        let list = handles::get::<List, _>(list)?;
        let to = handles::get::<Image, _>(to)?;
        let from = handles::get::<Image, _>(from)?;
        let (to_part, part) = (to.part(to_region)?, from.part(from_region)?);
        if to_part.extent != part.extent || to.pixel != from.pixel {
            return Err(INVALID_SIZE);
        }
        let meets =
            |index: usize| to_part.origin[index].abs_diff(part.origin[index]) < part.extent[index];
        if Arc::ptr_eq(&to, &from) && (0..3).all(meets) {
            return Err(ze_result_t::ZE_RESULT_ERROR_OVERLAPPING_REGIONS);
        }
        let work = ImageWork::Copy {
            to: (to, to_part.origin),
            from: (from, part.origin),
            extent: part.extent,
        };
        list.append(Work::Image(Arc::new(work)), Few::new(), signal, (count, waits))
    }

    fn zeCommandListAppendImageCopyToMemory(
        list: ze_command_list_handle_t,
        to: *mut c_void,
        from: ze_image_handle_t,
        region: *const ze_image_region_t,
        signal: ze_event_handle_t,
        count: u32,
        waits: *mut ze_event_handle_t,
    ) {
        let list = handles::get::<List, _>(list)?;
        let from = handles::get::<Image, _>(from)?;
        if to.is_null() {
            return Err(INVALID_NULL_POINTER);
        }
        let part = from.part(region)?;
        let to = to.expose_provenance();
        let regions = find_range(to, from.bytes(&part))?;
        let work = ImageWork::Read { to, from, part };
        list.append(Work::Image(Arc::new(work)), regions, signal, (count, waits))
    }

    fn zeCommandListAppendImageCopyFromMemory(
        list: ze_command_list_handle_t,
        to: ze_image_handle_t,
        from: *const c_void,
        region: *const ze_image_region_t,
        signal: ze_event_handle_t,
        count: u32,
        waits: *mut ze_event_handle_t,
    ) {
        let list = handles::get::<List, _>(list)?;
        let to = handles::get::<Image, _>(to)?;
        if from.is_null() {
            return Err(INVALID_NULL_POINTER);
        }
        let part = to.part(region)?;
        let from = from.expose_provenance();
        let regions = find_range(from, to.bytes(&part))?;
        let work = ImageWork::Write { to, part, from };
        list.append(Work::Image(Arc::new(work)), regions, signal, (count, waits))
    }
}
