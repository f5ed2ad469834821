//! Memory: allocations, physical memory, and reserved addresses that it is mapped into.

mod physical;
mod physical_handles;
mod range;
mod segment;

pub(super) use physical::LevelZeroPhysical;
pub(super) use range::LevelZeroRange;
pub(super) use segment::LevelZeroSegment;

use crosshandle_hal::Import;
use crosshandle_types::error::{Error, Result};
use rustix::fs::fstat;

/// Returns an error if memory's file is shorter than its exporter claims, before the driver sees
/// the file. The files of some drivers have no size.
fn check_extent(import: &Import) -> Result<()> {
    let file = fstat(&import.file).map_err(Error::os("looking at memory"))?;
    let (end, actual) = (import.len as u64, file.st_size.unsigned_abs());
    match actual > 0 && actual < end {
        true => Err(Error::Extent { end, actual }),
        false => Ok(()),
    }
}
