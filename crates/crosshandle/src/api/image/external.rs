//! Memory that other interfaces of the same device have allocated.

use super::view::{LevelledImage, check_levels, views};
use crate::api::context::Context;
use crate::api::core::ContextCore;
use crate::api::memory::MemoryRange;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{Access, ImageDescription};
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Memory that another interface of the same device, such as Vulkan, has allocated and exported. It
/// is imported through a descriptor that only the driver of the device understands. Cloning is
/// cheap, and any thread may use it.
#[derive(Clone)]
pub struct ExternalMemory {
    core: Arc<ContextCore>,
    inner: Arc<dyn crosshandle_hal::BackendExternalMemory>,
    len: u64,
}

impl ExternalMemory {
    /// Imports memory of another API of the same device, such as Vulkan. `file` is the opaque file
    /// descriptor that the other API exported, for `len` bytes. Memory of another process's context
    /// is opened by its handle instead.
    ///
    /// # Errors
    /// - [`Error::Unsupported`] if the device has no views of images.
    /// - [`Error::Driver`] if the driver refuses.
    pub fn import(context: &Context, file: OwnedFd, len: u64) -> Result<Self> {
        let core = context.core();
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

    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Always returns `false`, because imported memory is never empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Maps a part of the memory for commands and kernels. The mapping lasts as long as the range
    /// and everything made from it.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`] for a part that is empty or out of bounds.
    /// - Errors of the driver.
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

    /// Returns the image that the other interface stores at the start of the memory. The image has
    /// `levels` levels.
    ///
    /// # Errors
    /// The errors of [`LevelledImage::new`], and
    /// errors of the driver.
    pub fn image(&self, description: &ImageDescription, levels: u32) -> Result<LevelledImage> {
        let core = &self.core;
        let (_, limits) = views(core)?;
        description.check(core.device().images()?)?;
        if levels != 1 {
            check_levels(description, levels, &limits)?;
        }
        check_len(description, levels, self.len)?;
        let inner = Arc::clone(&self.inner).levels(description, levels)?;
        Ok(LevelledImage::of(core, inner, description, levels))
    }
}

/// Checks that the pixels of an image fit into `len` bytes. Only the driver knows how much more its
/// layout needs.
fn check_len(image: &ImageDescription, levels: u32, len: u64) -> Result<()> {
    let level = |number| image.level(number).bytes().unwrap_or(usize::MAX) as u64;
    let pixels = (0..levels).map(level).fold(0, u64::saturating_add);
    if pixels <= len {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "an image of {:?} pixels and {levels} levels has {pixels} bytes, and is in no memory of {len}",
        image.extent
    )))
}

impl fmt::Debug for ExternalMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExternalMemory")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crosshandle_types::{ChannelOrder, ChannelType, ImageFormat, ImageKind};

    #[test]
    fn images_are_in_memory_that_holds_their_pixels() {
        let format = ImageFormat {
            order: ChannelOrder::R,
            channel: ChannelType::UnsignedInt8,
        };
        let image = |extent| ImageDescription::new(ImageKind::TwoD, format, extent);
        let flat = image([8, 4, 1]);
        assert!(check_len(&flat, 1, 32).is_ok() && check_len(&flat, 1, 31).is_err());
        // The four levels have 32, 8, 2 and 1 pixels.
        assert!(check_len(&flat, 4, 43).is_ok() && check_len(&flat, 4, 42).is_err());
        assert!(check_len(&image([usize::MAX, 2, 1]), 1, 1 << 40).is_err());
    }
}
