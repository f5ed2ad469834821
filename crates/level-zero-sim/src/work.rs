//! The work of commands.

use std::sync::Arc;

use level_zero_sys::ze_copy_region_t;

use crate::call::Few;
use crate::image::ImageWork;
use crate::kernel::Launch;
use crate::space::Use;

/// A rectangle, or a stack of them, in memory.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) address: usize,
    /// Distance between rows, and between slices, in bytes.
    pub(crate) pitch: usize,
    pub(crate) slice_pitch: usize,
}

impl Place {
    /// Returns the place of a region's origin.
    pub(crate) fn new(
        address: usize,
        region: &ze_copy_region_t,
        pitch: u32,
        slice_pitch: u32,
    ) -> Self {
        let pitch = if pitch == 0 { region.width } else { pitch } as usize;
        let slice_pitch = match slice_pitch {
            0 => pitch * region.height as usize,
            given => given as usize,
        };
        let [x, y, z] = [region.originX, region.originY, region.originZ].map(|at| at as usize);
        Self {
            address: address + x + y * pitch + z * slice_pitch,
            pitch,
            slice_pitch,
        }
    }

    /// Returns the number of bytes between the first and the last byte of a region of this size.
    pub(crate) fn reach(&self, width: usize, height: usize, depth: usize) -> usize {
        match (width, height, depth) {
            (0, _, _) | (_, 0, _) | (_, _, 0) => 0,
            _ => (depth - 1) * self.slice_pitch + (height - 1) * self.pitch + width,
        }
    }
}

/// The work of one command. The memory at its addresses lives until the command is complete.
#[derive(Clone)]
pub(crate) enum Work {
    Nothing,
    Copy {
        to: usize,
        from: usize,
        size: usize,
    },
    CopyRegion {
        to: Place,
        from: Place,
        width: usize,
        height: usize,
        depth: usize,
    },
    Fill {
        to: usize,
        pattern: Few<u8>,
        size: usize,
    },
    Launch(Arc<Launch>),
    Image(Arc<ImageWork>),
}

impl Work {
    /// Marks kernels and images as used while the result lives.
    pub(crate) fn uses(&self) -> Few<Use> {
        match self {
            Self::Launch(launch) => launch.uses(),
            Self::Image(work) => work.uses(),
            _ => Few::new(),
        }
    }

    /// Executes the work. Returns `false` if it failed, after which the device is lost.
    pub(crate) fn execute(&self) -> bool {
        match self {
            Self::Launch(launch) => return launch.run(),
            Self::Image(work) => return work.run(),
            Self::Nothing => {}
            Self::Copy { to, from, size } => copy(*to, *from, *size),
            Self::CopyRegion {
                to,
                from,
                width,
                height,
                depth,
            } => {
                for slice in 0..*depth {
                    for row in 0..*height {
                        let at = |place: &Place| {
                            place.address + slice * place.slice_pitch + row * place.pitch
                        };
                        copy(at(to), at(from), *width);
                    }
                }
            }
            Self::Fill { to, pattern, size } => {
                for offset in (0..*size).step_by(pattern.len().max(1)) {
                    let part = pattern.len().min(size - offset);
                    copy(to + offset, pattern.as_ptr().expose_provenance(), part);
                }
            }
        }
        true
    }
}

fn copy(to: usize, from: usize, size: usize) {
    let to = std::ptr::with_exposed_provenance_mut::<u8>(to);
    let from = std::ptr::with_exposed_provenance::<u8>(from);
    // SAFETY: the entry point checked ranges of the driver's memory when it appended the command.
    // The caller of Level Zero guarantees that other memory is valid, and that all memory stays
    // valid until the command is complete.
    unsafe { to.copy_from(from, size) };
}
