//! Memory that is shared by a descriptor alone. The structures are chained to the memory's
//! description and to its properties.

use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use level_zero_sys::*;
use rustix::fs::fstat;

use crate::call::{
    INVALID_ARGUMENT, OUT_OF_DEVICE_MEMORY, Result, UNSUPPORTED_ENUMERATION, read, write,
};
use crate::checks::{Check, misuse};
use crate::ipc::{Exported, duplicate, take};
use crate::os::Segment;
use crate::switches::switches;

/// How memory takes part in sharing by a descriptor.
#[derive(Clone, Copy)]
pub(crate) enum Extension {
    None,
    Export,
    /// The memory is imported from the descriptor with this number. The driver owns the descriptor
    /// if the call succeeds.
    Import(i32),
}

/// The first driver version that imports physical memory: 26.18, as the number in
/// `ze_driver_properties_t`. Earlier drivers ignore the chained structure and return new memory.
const IMPORTS_PHYSICAL: u32 = 0x0103_0000 + 38_308;

/// Reads the structures that are chained to the description of physical memory.
pub(crate) fn physical_extension(next: *const c_void) -> Result<Extension> {
    match extension(next)? {
        Extension::Import(_) if switches().driver_version < IMPORTS_PHYSICAL => Ok(Extension::None),
        other => Ok(other),
    }
}

/// Reads the structures that are chained to the description of new memory.
pub(crate) fn extension(next: *const c_void) -> Result<Extension> {
    if next.is_null() {
        return Ok(Extension::None);
    }
    let known = ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF | ZE_EXTERNAL_MEMORY_TYPE_FLAG_OPAQUE_FD;
    let base = read(next.cast::<ze_base_desc_t>())?;
    let (flags, extension) = match base.stype {
        ze_structure_type_t::ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_DESC => {
            let desc = read(next.cast::<ze_external_memory_export_desc_t>())?;
            (desc.flags, Extension::Export)
        }
        ze_structure_type_t::ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_IMPORT_FD => {
            let desc = read(next.cast::<ze_external_memory_import_fd_t>())?;
            (desc.flags, Extension::Import(desc.fd))
        }
        _ => return self::extension(base.pNext),
    };
    match flags & known != 0 && !switches().missing("external_memory") {
        true => Ok(extension),
        false => Err(UNSUPPORTED_ENUMERATION),
    }
}

impl Extension {
    /// Returns the memory itself. It is new, or the descriptor's file.
    pub(crate) fn segment(self, size: usize) -> Result<Segment> {
        let Self::Import(number) = self else {
            return Segment::new(size);
        };
        if switches().refuse_descriptors {
            return Err(OUT_OF_DEVICE_MEMORY);
        }
        match duplicate(number).and_then(Segment::from_file) {
            Some(segment) if segment.size() >= size => Ok(segment),
            found => {
                let what = match found {
                    Some(_) => "leads to less memory",
                    None => "is not open in this process, or not the driver's",
                };
                misuse(
                    Check::ForeignDescriptor,
                    &format!("descriptor {number} {what}"),
                );
                Err(OUT_OF_DEVICE_MEMORY)
            }
        }
    }
}

/// The number of a descriptor that the program passed to the driver. The driver closes it with the
/// memory.
pub(crate) struct Given {
    number: i32,
    inode: u64,
}

impl Given {
    /// Returns the descriptor that `segment` was imported from, if it was imported.
    pub(crate) fn new(extension: Extension, segment: &Segment) -> Option<Self> {
        let Extension::Import(number) = extension else {
            return None;
        };
        Some(Self {
            number,
            inode: segment.inode(),
        })
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        let number = self.number;
        let inode = duplicate(number).and_then(|file| fstat(&file).ok());
        match inode.is_some_and(|status| status.st_ino == self.inode) {
            true => drop(take(number)),
            false => misuse(
                Check::DescriptorClosed,
                &format!("descriptor {number}, which the driver was given"),
            ),
        }
    }
}

/// Fills the structures that are chained to the memory's properties with its descriptor. The driver
/// still owns the descriptor.
pub(crate) fn export_to(
    next: *mut c_void,
    segment: &Segment,
    exported: &Mutex<Option<Exported>>,
) -> Result<()> {
    let chained = next.cast::<ze_external_memory_export_fd_t>();
    let mut export = read(chained.cast_const())?;
    if export.stype != ze_structure_type_t::ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_FD {
        return Err(UNSUPPORTED_ENUMERATION);
    }
    let mut exported = exported.lock().unwrap_or_else(PoisonError::into_inner);
    if exported.is_none() {
        *exported = Some(Exported::new(segment)?);
    }
    let exported = exported.as_ref().ok_or(INVALID_ARGUMENT)?;
    exported.check()?;
    export.fd = exported.number();
    write(chained, export)
}
