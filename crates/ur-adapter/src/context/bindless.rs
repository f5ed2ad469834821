//! Images and image views that users identify by the driver's numeric handles.

use crate::abi::failure::{Failure, Result};
use crate::abi::lock::Lock;
use crosshandle::{
    MemoryRange,
    image::{Image, ImageView, LevelledImage},
};
use std::collections::HashMap;
use std::ffi::c_void;

/// An image for which a user has a handle.
#[derive(Clone)]
pub(crate) enum Known {
    /// An image with a single mipmap level.
    Image(Image),
    /// An image with several mipmap levels.
    Levels(LevelledImage),
    /// One mipmap level, and the handle of the image that contains it.
    Level(Image, usize),
}

/// The kind of an image view.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum ViewKind {
    Sampled,
    Unsampled,
}

/// The images and views of a context, indexed by their handles.
#[derive(Default)]
pub(crate) struct BindlessImages {
    images: Lock<HashMap<usize, Known>>,
    views: Lock<HashMap<(ViewKind, u64), Vec<ImageView>>>,
    /// Mapped external memory from other graphics interfaces, indexed by its start address.
    mappings: Lock<HashMap<usize, MemoryRange>>,
}

fn unknown_image() -> Failure {
    Failure::argument("no image in this context has this handle")
}

impl BindlessImages {
    /// Adds an image, and returns its handle.
    pub(crate) fn add(&self, image: Known) -> usize {
        let number = match &image {
            Known::Image(image) | Known::Level(image, _) => image.native().raw(),
            Known::Levels(levels) => levels.native().raw(),
        };
        self.images.lock().insert(number, image);
        number
    }

    /// Adds a mipmap level of an image, and returns the level's handle. Repeated calls for the same
    /// level return the same handle.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` if `whole` is not the handle of an image with several levels.
    /// Returns an error from `crosshandle` if the level cannot be created.
    pub(crate) fn add_level(&self, whole: usize, level: u32) -> Result<usize> {
        let found = self.find(whole)?;
        let Known::Levels(levels) = &found else {
            return Err(Failure::argument(
                "this image has only one mipmap level: use the image itself",
            ));
        };
        let made = levels.level(level)?;
        let number = made.native().raw();
        let mut images = self.images.lock();
        // Another thread may have freed the image in the meantime. The image's handle is not reused
        // while `levels` exists.
        if !images.contains_key(&whole) {
            drop(images);
            return Err(unknown_image());
        }
        let replaced = images.insert(number, Known::Level(made, whole));
        drop(images);
        // Dropping the replaced level calls the driver, so it happens after the lock is released.
        drop(replaced);
        Ok(number)
    }

    /// Looks up an image by its handle.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` if no image has this handle.
    pub(crate) fn find(&self, number: usize) -> Result<Known> {
        let found = self.images.lock().get(&number).cloned();
        found.ok_or_else(unknown_image)
    }

    /// Looks up an image with a single mipmap level, or a level of an image, by its handle.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` if no image has this handle, or if the image has several levels.
    pub(crate) fn find_flat(&self, number: usize) -> Result<Image> {
        match self.find(number)? {
            Known::Image(image) | Known::Level(image, _) => Ok(image),
            Known::Levels(_) => Err(Failure::argument(
                "this image has several mipmap levels: pass the handle of one level",
            )),
        }
    }

    /// Removes an image and all its mipmap levels. The caller receives them and drops them.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` if no image has this handle, or if it is the handle of a single
    /// level.
    pub(crate) fn remove(&self, number: usize) -> Result<impl Sized + use<>> {
        let mut images = self.images.lock();
        match images.get(&number) {
            None => return Err(unknown_image()),
            Some(Known::Level(..)) => {
                return Err(Failure::argument(
                    "this is a mipmap level, which is freed together with its image",
                ));
            }
            Some(Known::Image(_) | Known::Levels(_)) => {}
        }
        let is_gone = |own: usize, image: &Known| {
            own == number || matches!(image, Known::Level(_, whole) if *whole == number)
        };
        let gone: Vec<_> = images
            .extract_if(|own, image| is_gone(*own, image))
            .collect();
        Ok(gone)
    }

    /// Adds a view, and returns its handle. Views of the same image may have the same handle.
    pub(crate) fn add_view(&self, kind: ViewKind, view: ImageView) -> u64 {
        let number = view.number();
        let mut views = self.views.lock();
        views.entry((kind, number)).or_default().push(view);
        number
    }

    /// Removes a view. The caller receives the view and drops it.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` if no view of this kind has this handle.
    pub(crate) fn remove_view(&self, kind: ViewKind, number: u64) -> Result<ImageView> {
        let mut views = self.views.lock();
        let known = views.get_mut(&(kind, number));
        let found = known.and_then(Vec::pop);
        views.retain(|_, same| !same.is_empty());
        found.ok_or_else(|| {
            Failure::argument(match kind {
                ViewKind::Sampled => "no sampled image in this context has this handle",
                ViewKind::Unsampled => "no unsampled image in this context has this handle",
            })
        })
    }

    /// Adds mapped external memory, and returns its address.
    pub(crate) fn add_mapping(&self, range: MemoryRange) -> *mut c_void {
        let start = range.as_ptr();
        self.mappings.lock().insert(start.addr(), range);
        start.cast()
    }

    /// Returns the mapped external memory that starts at an address.
    pub(crate) fn mapping(&self, start: *const c_void) -> Option<MemoryRange> {
        self.mappings.lock().get(&start.addr()).cloned()
    }

    /// Removes mapped external memory. The caller receives the memory and drops it.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` if no mapped external memory starts at `start`.
    pub(crate) fn remove_mapping(&self, start: *const c_void) -> Result<MemoryRange> {
        let found = self.mappings.lock().remove(&start.addr());
        found.ok_or_else(|| Failure::argument("no external memory is mapped at this address"))
    }
}
