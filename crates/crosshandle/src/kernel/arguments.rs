//! What a kernel is called with.

use crate::memory::MemoryRange;
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

    /// Adds the address at which a range starts. Its memory is kept until the kernel is done.
    pub fn memory(self, range: &MemoryRange) -> Self {
        let mut this = self.value(range.as_ptr().expose_provenance());
        this.keep.extend(range.keep());
        this
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::address::Address;
    use crate::os::mapping::Access;
    use std::ptr::NonNull;

    #[test]
    fn arguments_are_what_was_added_and_keep_their_memory() {
        let kept = Arc::new(7);
        let place = NonNull::from(&*kept).cast();
        let range = MemoryRange::new(Address::new(place), 4, Access::ReadWrite, true);
        let range = range.keeping(Arc::clone(&kept));
        let arguments = KernelArguments::new()
            .value(5_u32)
            .memory(&range)
            .bytes(&[])
            .bytes(&[1, 2, 3]);
        drop(range);
        let wanted = [
            &5_u32.to_ne_bytes()[..],
            &place.addr().get().to_ne_bytes(),
            &[],
            &[1, 2, 3],
        ];
        assert_eq!(arguments.len(), wanted.len());
        assert!(arguments.iter().eq(wanted));
        assert_eq!(Arc::strong_count(&kept), 2);
        drop(arguments);
        assert_eq!(Arc::strong_count(&kept), 1);
    }
}
