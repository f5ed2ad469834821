//! Images and views that the user knows by the driver's numbers.

use crate::abi::failure::{Failure, Result};
use crate::abi::lock::Lock;
use crosshandle::{Image, ImageView, LevelledImage, MemoryRange};
use std::collections::HashMap;
use std::ffi::c_void;

/// An image that the user knows.
#[derive(Clone)]
pub(crate) enum Known {
    /// An image of one level.
    Image(Image),
    /// An image of several levels.
    Levels(LevelledImage),
    /// A level of the image with this number.
    Level(Image, usize),
}

/// A view's kind.
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
    /// Mapped memory of other interfaces, by its address.
    mappings: Lock<HashMap<usize, MemoryRange>>,
}

fn unknown_image() -> Failure {
    Failure::argument("this is no image of this context")
}

impl BindlessImages {
    /// Makes an image known, and returns its number.
    pub(crate) fn add(&self, image: Known) -> usize {
        let number = match &image {
            Known::Image(image) | Known::Level(image, _) => image.native().raw(),
            Known::Levels(levels) => levels.native().raw(),
        };
        self.images.lock().insert(number, image);
        number
    }

    /// Makes a level of an image known, and returns its number, which is the same for the same level.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for what is no image of several levels; the library's.
    pub(crate) fn add_level(&self, whole: usize, level: u32) -> Result<usize> {
        let found = self.find(whole)?;
        let Known::Levels(levels) = &found else {
            return Err(Failure::argument(
                "this image has one level, which it is itself",
            ));
        };
        let made = levels.level(level)?;
        let number = made.native().raw();
        let mut images = self.images.lock();
        // Another thread may have freed the image since, whose number nothing else has while `levels` lives.
        if !images.contains_key(&whole) {
            drop(images);
            return Err(unknown_image());
        }
        let replaced = images.insert(number, Known::Level(made, whole));
        drop(images);
        // Not under the lock, as all that goes to the driver.
        drop(replaced);
        Ok(number)
    }

    /// Returns an image by its number.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if there is none.
    pub(crate) fn find(&self, number: usize) -> Result<Known> {
        let found = self.images.lock().get(&number).cloned();
        found.ok_or_else(unknown_image)
    }

    /// Returns an image of one level, or a level.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for anything else.
    pub(crate) fn find_flat(&self, number: usize) -> Result<Image> {
        match self.find(number)? {
            Known::Image(image) | Known::Level(image, _) => Ok(image),
            Known::Levels(_) => Err(Failure::argument(
                "this image has several levels: get one of them",
            )),
        }
    }

    /// Forgets an image, with all its levels, and returns them to be dropped.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for a level, and for what is no image.
    pub(crate) fn remove(&self, number: usize) -> Result<impl Sized + use<>> {
        let mut images = self.images.lock();
        match images.get(&number) {
            None => return Err(unknown_image()),
            Some(Known::Level(..)) => {
                return Err(Failure::argument(
                    "this is a level of an image: it goes with the image",
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

    /// Makes a view known, and returns its number. Views of one image may have one number.
    pub(crate) fn add_view(&self, kind: ViewKind, view: ImageView) -> u64 {
        let number = view.number();
        let mut views = self.views.lock();
        views.entry((kind, number)).or_default().push(view);
        number
    }

    /// Forgets a view, and returns it to be dropped.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if there is none of this kind.
    pub(crate) fn remove_view(&self, kind: ViewKind, number: u64) -> Result<ImageView> {
        let mut views = self.views.lock();
        let known = views.get_mut(&(kind, number));
        let found = known.and_then(Vec::pop);
        views.retain(|_, same| !same.is_empty());
        found.ok_or_else(|| {
            Failure::argument(match kind {
                ViewKind::Sampled => "this is no sampled image of this context",
                ViewKind::Unsampled => "this is no unsampled image of this context",
            })
        })
    }

    /// Keeps mapped memory of another interface, and returns its address.
    pub(crate) fn add_mapping(&self, range: MemoryRange) -> *mut c_void {
        let start = range.as_ptr();
        self.mappings.lock().insert(start.addr(), range);
        start.cast()
    }

    /// Returns mapped memory by its start.
    pub(crate) fn mapping(&self, start: *const c_void) -> Option<MemoryRange> {
        self.mappings.lock().get(&start.addr()).cloned()
    }

    /// Forgets mapped memory, and returns it to be dropped.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if none is mapped there.
    pub(crate) fn remove_mapping(&self, start: *const c_void) -> Result<MemoryRange> {
        let found = self.mappings.lock().remove(&start.addr());
        found.ok_or_else(|| Failure::argument("no memory of another interface is mapped here"))
    }
}
