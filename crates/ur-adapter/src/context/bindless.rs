//! Images and views that users identify by the driver's numbers.

use crate::abi::failure::{Failure, Result};
use crate::abi::lock::Lock;
use crosshandle::{
    MemoryRange,
    image::{Image, ImageView, LevelledImage},
};
use std::collections::HashMap;
use std::ffi::c_void;

/// An image whose number a user has.
#[derive(Clone)]
pub(crate) enum Known {
    Image(Image),
    Levels(LevelledImage),
    /// One level of an image, and the number of the whole image.
    Level(Image, usize),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum ViewKind {
    Sampled,
    Unsampled,
}

/// The images and views of a context, by their numbers.
#[derive(Default)]
pub(crate) struct BindlessImages {
    images: Lock<HashMap<usize, Known>>,
    views: Lock<HashMap<(ViewKind, u64), Vec<ImageView>>>,
    /// Mapped memory of other graphics interfaces, by its start address.
    mappings: Lock<HashMap<usize, MemoryRange>>,
}

fn unknown_image() -> Failure {
    Failure::argument("this is not an image of this context")
}

impl BindlessImages {
    /// Adds an image, and returns its number.
    pub(crate) fn add(&self, image: Known) -> usize {
        let number = match &image {
            Known::Image(image) | Known::Level(image, _) => image.native().raw(),
            Known::Levels(levels) => levels.native().raw(),
        };
        self.images.lock().insert(number, image);
        number
    }

    /// Adds a level of an image, and returns its number. The same level always gets the same
    /// number.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` if the number is not an image with several levels. Returns errors
    /// of the library.
    pub(crate) fn add_level(&self, whole: usize, level: u32) -> Result<usize> {
        let found = self.find(whole)?;
        let Known::Levels(levels) = &found else {
            return Err(Failure::argument(
                "this image has only one level: use the image itself",
            ));
        };
        let made = levels.level(level)?;
        let number = made.native().raw();
        let mut images = self.images.lock();
        // Another thread may have freed the image meanwhile. The image's number is not reused while
        // `levels` lives.
        if !images.contains_key(&whole) {
            drop(images);
            return Err(unknown_image());
        }
        let replaced = images.insert(number, Known::Level(made, whole));
        drop(images);
        // The replaced level is dropped after the lock is released, because the drop calls the
        // driver.
        drop(replaced);
        Ok(number)
    }

    /// Returns an image by its number.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` if there is no image with this number.
    pub(crate) fn find(&self, number: usize) -> Result<Known> {
        let found = self.images.lock().get(&number).cloned();
        found.ok_or_else(unknown_image)
    }

    /// Returns an image with one level, or one level of an image.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` if the number does not belong to such an image.
    pub(crate) fn find_flat(&self, number: usize) -> Result<Image> {
        match self.find(number)? {
            Known::Image(image) | Known::Level(image, _) => Ok(image),
            Known::Levels(_) => Err(Failure::argument(
                "this image has several levels: get one of them",
            )),
        }
    }

    /// Removes an image with all its levels, and returns them so that the caller can drop them.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` if the number belongs to a single level or to no image.
    pub(crate) fn remove(&self, number: usize) -> Result<impl Sized + use<>> {
        let mut images = self.images.lock();
        match images.get(&number) {
            None => return Err(unknown_image()),
            Some(Known::Level(..)) => {
                return Err(Failure::argument(
                    "this is a level of an image, which is freed with the image",
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

    /// Adds a view, and returns its number. Views of the same image may have the same number.
    pub(crate) fn add_view(&self, kind: ViewKind, view: ImageView) -> u64 {
        let number = view.number();
        let mut views = self.views.lock();
        views.entry((kind, number)).or_default().push(view);
        number
    }

    /// Removes a view, and returns it so that the caller can drop it.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` if there is no view of this kind with this number.
    pub(crate) fn remove_view(&self, kind: ViewKind, number: u64) -> Result<ImageView> {
        let mut views = self.views.lock();
        let known = views.get_mut(&(kind, number));
        let found = known.and_then(Vec::pop);
        views.retain(|_, same| !same.is_empty());
        found.ok_or_else(|| {
            Failure::argument(match kind {
                ViewKind::Sampled => "this is not a sampled image of this context",
                ViewKind::Unsampled => "this is not an unsampled image of this context",
            })
        })
    }

    /// Adds mapped memory of another graphics interface, and returns its address.
    pub(crate) fn add_mapping(&self, range: MemoryRange) -> *mut c_void {
        let start = range.as_ptr();
        self.mappings.lock().insert(start.addr(), range);
        start.cast()
    }

    pub(crate) fn mapping(&self, start: *const c_void) -> Option<MemoryRange> {
        self.mappings.lock().get(&start.addr()).cloned()
    }

    /// Removes mapped memory, and returns it so that the caller can drop it.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` if no mapped memory starts at `start`.
    pub(crate) fn remove_mapping(&self, start: *const c_void) -> Result<MemoryRange> {
        let found = self.mappings.lock().remove(&start.addr());
        found.ok_or_else(|| Failure::argument("no memory of another interface is mapped here"))
    }
}
