//! The work of commands.

use std::sync::Arc;

use level_zero_sys::ze_copy_region_t;

use crate::call::Few;
use crate::device::now;
use crate::event::{Event, State};
use crate::image::ImageWork;
use crate::kernel::Launch;
use crate::space::Use;

/// A rectangle, or a stack of them, in memory.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) address: usize,
    /// From row to row and from slice to slice, in bytes.
    pub(crate) pitch: usize,
    pub(crate) slice_pitch: usize,
}

impl Place {
    /// The place of a region's origin.
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

    /// Returns the number of bytes that a region of this size reaches over.
    pub(crate) fn reach(&self, width: usize, height: usize, depth: usize) -> usize {
        match (width, height, depth) {
            (0, _, _) | (_, 0, _) | (_, _, 0) => 0,
            _ => (depth - 1) * self.slice_pitch + (height - 1) * self.pitch + width,
        }
    }
}

/// Addresses are those of memory that lives until the command is done.
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
    Timestamp {
        to: usize,
    },
    Reset(Arc<Event>),
    Launch(Arc<Launch>),
    Image(Arc<ImageWork>),
}

impl Work {
    /// Counts the use of kernels and images for as long as the result lives.
    pub(crate) fn uses(&self) -> Few<Use> {
        match self {
            Self::Launch(launch) => launch.uses(),
            Self::Image(work) => work.uses(),
            _ => Few::new(),
        }
    }

    /// Does the work; returns `false` if that has failed, which is the end of the device.
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
            Self::Timestamp { to } => {
                let time = now().to_ne_bytes();
                copy(*to, time.as_ptr().expose_provenance(), time.len());
            }
            Self::Reset(event) => {
                if let State::Slot(slot) = &*event.state {
                    slot.reset();
                }
            }
        }
        true
    }
}

fn copy(to: usize, from: usize, size: usize) {
    let to = std::ptr::with_exposed_provenance_mut::<u8>(to);
    let from = std::ptr::with_exposed_provenance::<u8>(from);
    // SAFETY: whoever appended the command has checked the ranges of memory of the driver's; for
    // other memory, and for its staying there, the caller of Level Zero answers.
    unsafe { to.copy_from(from, size) };
}
