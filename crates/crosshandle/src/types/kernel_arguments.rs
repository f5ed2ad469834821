//! What a kernel is called with.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use zerocopy::{Immutable, IntoBytes};

/// The arguments of a launch, in the order of the kernel's parameters.
#[derive(Clone, Default)]
pub struct KernelArguments {
    bytes: Vec<u8>,
    places: Vec<Range<usize>>,
    keep: Vec<Arc<dyn Any + Send + Sync>>,
}

impl KernelArguments {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a value, as many bytes as the parameter has.
    pub fn value<T>(self, value: T) -> Self
    where
        T: IntoBytes + Immutable,
    {
        self.bytes(value.as_bytes())
    }

    /// The same for a value that is there as bytes.
    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.places.push(start..self.bytes.len());
        self
    }

    /// Keeps an object until the kernel is done.
    pub(crate) fn keep(&mut self, object: Arc<dyn Any + Send + Sync>) {
        self.keep.push(object);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The bytes of each.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.places.iter().map(|place| &self.bytes[place.clone()])
    }
}

impl fmt::Debug for KernelArguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
