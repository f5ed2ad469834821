//! Memory: allocations, physical memory, and reserved addresses that it is mapped into.

mod physical;
mod physical_handles;
mod range;
mod segment;

pub(super) use physical::LevelZeroPhysical;
pub(super) use range::LevelZeroRange;
pub(super) use segment::LevelZeroSegment;
