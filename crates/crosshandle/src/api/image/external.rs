//! Memory of other interfaces of the same device.

use super::view::{LevelledImage, check_levels, views};
use crate::api::core::ContextCore;
use crate::api::memory::MemoryRange;
use crate::error::{Error, Result};
use crate::hal;
use crate::types::{Access, ImageDescription};
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Memory that another interface of the same device has allocated and exported, such as Vulkan, by a descriptor that
/// only the device's driver understands. Cheap to clone; any thread may use it.
#[derive(Clone)]
pub struct ExternalMemory {
    core: Arc<ContextCore>,
    inner: Arc<dyn hal::ExternalMemory>,
    len: u64,
}

impl ExternalMemory {
    pub(crate) fn import(core: &Arc<ContextCore>, file: OwnedFd, len: u64) -> Result<Self> {
        let (views, _) = views(core)?;
        if len == 0 {
            return Err(Error::invalid("memory of no bytes is not imported"));
        }
        Ok(Self {
            core: Arc::clone(core),
            inner: views.import_external(file, len)?,
            len,
        })
    }

    /// Returns the bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether there are none: never.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Maps a part of the memory, for commands and kernels. The mapping lasts as long as the range and what was made of
    /// it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a part that is empty or not inside; what the driver refuses.
    pub fn map(&self, offset: u64, len: u64) -> Result<MemoryRange> {
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        let size = usize::try_from(len).ok();
        let size = size.filter(|size| *size > 0 && is_inside).ok_or_else(|| {
            Error::invalid(format!(
                "{len} bytes at {offset} are not a part of {} bytes of imported memory",
                self.len
            ))
        })?;
        let mapping = Arc::clone(&self.inner).map(offset, len)?;
        let start = mapping.start();
        Ok(MemoryRange::of_memory(
            start,
            size,
            Access::ReadWrite,
            false,
            mapping,
        ))
    }

    /// Returns the image of one or several levels that the other interface has in the memory, from its start on.
    ///
    /// # Errors
    /// As [`Context::create_levelled_image`](crate::Context::create_levelled_image); what the driver refuses.
    pub fn image(&self, description: &ImageDescription, levels: u32) -> Result<LevelledImage> {
        let core = &self.core;
        let (_, limits) = views(core)?;
        description.check(core.device().images()?)?;
        if levels != 1 {
            check_levels(description, levels, &limits)?;
        }
        let inner = Arc::clone(&self.inner).levels(description, levels)?;
        Ok(LevelledImage::new(core, inner, description, levels))
    }
}

impl fmt::Debug for ExternalMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExternalMemory")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
