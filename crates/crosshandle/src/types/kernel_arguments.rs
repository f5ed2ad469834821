//! The arguments of kernels.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use zerocopy::{Immutable, IntoBytes};

/// The arguments of a launch, in the order of the kernel's parameters.
#[derive(Clone, Default)]
pub struct KernelArguments {
    bytes: Vec<u8>,
    /// The part of `bytes` of each argument.
    parts: Vec<Range<usize>>,
    keep: Vec<Arc<dyn Any + Send + Sync>>,
}

impl KernelArguments {
    /// Makes an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a value, which has as many bytes as the kernel's parameter.
    pub fn value<T>(self, value: T) -> Self
    where
        T: IntoBytes + Immutable,
    {
        self.bytes(value.as_bytes())
    }

    /// Adds a value given as its bytes.
    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.parts.push(start..self.bytes.len());
        self
    }

    /// Keeps an object until the kernel is done.
    pub(crate) fn keep(&mut self, object: Arc<dyn Any + Send + Sync>) {
        self.keep.push(object);
    }

    /// Returns the number of arguments.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Returns whether there are no arguments.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Returns the bytes of each argument.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.parts.iter().map(|part| &self.bytes[part.clone()])
    }
}

impl fmt::Debug for KernelArguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
