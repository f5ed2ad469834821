//! Bundles: the bytes that carry arrays to other processes.
//!
//! A bundle holds handles, the layout of an array in the memory of each, a text that says how the
//! program arranges the arrays, and handles of the events after whose signals arrays are ready. It is
//! plain data: whoever reads a stranger's bundle checks every byte of it and runs nothing.
//!
//! [`Bundle::encode`] writes all of it into the bundle's bytes. Where those would be many, the bytes are
//! a small head instead, and the rest, the *table*, lies in shared memory of which the head has a handle:
//! [`Context::pack_bundle`](crate::Context::pack_bundle) makes that memory and
//! [`Context::unpack_bundle`](crate::Context::unpack_bundle) opens it. Everything in this module is
//! pure computation.
//!
//! # The bytes, version 3
//! All numbers are little-endian.
//!
//! | bytes | hold |
//! |---|---|
//! | 4 | `xhb3` |
//! | 4 | flags: 1, the table lies in shared memory |
//! | 4 | the number of arrays |
//! | 4 | the number of signals |
//! | 4 | the length of the structure, in bytes |
//! | 104 | with flag 1: the handle of the memory that holds the table |
//! | 8 | with flag 1: the length of the table, in bytes |
//! | 4 | with flag 1: CRC-32C of the table |
//! | … | without flag 1: the table |
//! | 4 | CRC-32C of all before |
//!
//! The table is the structure, in UTF-8, then each signal, then each array. A signal is:
//!
//! | bytes | hold |
//! |---|---|
//! | 8 | the number of the signal |
//! | 104 | the handle of the event |
//! | 1 | 1: the signal had completed when the bundle was packed |
//!
//! An array is:
//!
//! | bytes | hold |
//! |---|---|
//! | 104 | the handle of the memory |
//! | 2 | the elements' type: DLPack's code, and its bits; or 255 and 0 for a type that a text describes |
//! | 1 | 1: to be opened read-only |
//! | 1 | the number of dimensions |
//! | 8 | bytes from the start of the handle's memory to the first element |
//! | 4 | the number of signals that the array waits for |
//! | 16 each dimension | its size in elements, its stride in bytes |
//! | 4 | of a described type: the bytes of an element |
//! | 4 | of a described type: the length of the text, in bytes |
//! | … | of a described type: the text, in UTF-8 |
//! | 4 each of these signals | its index among the bundle's signals, ascending |

mod wire;

#[cfg(test)]
mod tests;

use super::{EventHandle, HandleError, MemoryHandle};

pub use wire::{TableHead, Unpacked};

/// The most arrays of a bundle: far more than the tensors of any model.
pub const MAX_ARRAYS: usize = 1 << 20;
/// The most signals of a bundle. Its reader opens the event of each, and no event twice.
pub const MAX_SIGNALS: usize = 1 << 16;
/// The longest structure, in bytes.
pub const MAX_STRUCTURE: usize = 32 << 20;
/// The most dimensions of an array.
pub const MAX_DIMENSIONS: usize = 32;
/// The longest description of a type of elements, in bytes.
pub const MAX_DESCRIPTION: usize = 1 << 16;
/// The longest table in shared memory, in bytes. Its reader makes a copy of it, so this is what a hostile
/// bundle costs at most.
pub const MAX_TABLE: usize = 64 << 20;

/// Arrays on their way to another process.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Bundle {
    /// A text of the program's own, which says how the arrays are arranged.
    pub structure: String,
    /// The arrays, in the order that the structure counts them in.
    pub arrays: Vec<BundledArray>,
    /// The signals that arrays wait for. [`BundledArray::ready`] has their indexes.
    pub signals: Vec<ReadyEvent>,
}

/// The signal of an event after which arrays are ready.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReadyEvent {
    /// The event.
    pub handle: EventHandle,
    /// The number of the signal.
    pub value: u64,
    /// Whether the packer saw the signal complete. Then a reader needs no event that has ended since.
    pub is_complete: bool,
}

/// An array of a bundle: memory, and where the elements lie in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BundledArray {
    /// The memory. It contains all elements.
    pub handle: MemoryHandle,
    /// Whether the memory is to be opened read-only, whatever the handle grants.
    pub read_only: bool,
    /// The elements.
    pub layout: Layout,
    /// The signals after which the elements are ready: indexes into [`Bundle::signals`], ascending. Empty: they
    /// are ready.
    pub ready: Vec<u32>,
}

/// The elements of an array in memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    /// The type of the elements.
    pub element: ElementType,
    /// Bytes from the start of the memory to the first element.
    pub offset: u64,
    /// The dimensions, outermost first; at most [`MAX_DIMENSIONS`].
    pub dimensions: Vec<Dimension>,
}

/// A type of elements. This crate gives codes and texts no meaning: the program that opens a bundle refuses
/// those that it does not know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ElementType {
    /// A type that DLPack numbers.
    Numbered {
        /// DLPack's code of the kind: 0 for signed integers, 2 for floating point, and so on.
        code: u8,
        /// The bits of an element; not 0.
        bits: u8,
    },
    /// A type that DLPack lacks, such as a date or a record.
    Described {
        /// The bytes of an element; not 0.
        bytes: u32,
        /// A text of the program's own, at most [`MAX_DESCRIPTION`] bytes.
        text: String,
    },
}

impl ElementType {
    /// Returns the bytes of an element.
    pub fn bytes(&self) -> u32 {
        match self {
            Self::Numbered { bits, .. } => u32::from(bits.div_ceil(8)),
            Self::Described { bytes, .. } => *bytes,
        }
    }
}

/// A dimension of an array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dimension {
    /// The number of elements.
    pub size: u64,
    /// Bytes from an element to its neighbour; may be negative.
    pub stride: i64,
}

/// The reason why bytes are no bundle, or a bundle has no bytes.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BundleError {
    /// The bytes don't start as a bundle does.
    #[error(
        "these bytes are no bundle: those start with \"xhb\"; pass the bytes as their maker gave them"
    )]
    NotABundle,
    /// The bundle is of another version of the format.
    #[error(
        "the bundle has format version {found}, but this program reads version {supported}; use the \
         same release on both sides"
    )]
    UnsupportedVersion {
        /// The version in the bundle, a character.
        found: char,
        /// The version that this crate reads.
        supported: char,
    },
    /// The bytes end before the bundle does.
    #[error("the bundle ends too early: send all of its bytes")]
    TooShort,
    /// The sum does not match: some bytes were changed in transit.
    #[error("the bundle is damaged: its sum does not match; send it again, unchanged")]
    Damaged,
    /// A handle of the bundle is none.
    #[error("a handle of the bundle is wrong: {0}")]
    Handle(#[from] HandleError),
    /// The sum is right, but a part is not as any bundle has it.
    #[error(
        "the bundle's {part} cannot be: {why}; it was forged, or made by a defective or different program"
    )]
    Malformed {
        /// The part of the bundle.
        part: &'static str,
        /// Description of the fault.
        why: &'static str,
    },
    /// The bundle has more of something than any may have.
    #[error("a bundle has at most {most} {what}; use several bundles")]
    TooLarge {
        /// What there is too much of, with its unit.
        what: &'static str,
        /// The most that a bundle may have.
        most: usize,
    },
}

impl Layout {
    /// Checks that all elements lie inside memory of `len` bytes.
    ///
    /// # Errors
    /// [`BundleError::TooLarge`] for too many dimensions, [`BundleError::Malformed`] otherwise.
    pub fn check(&self, len: u64) -> Result<(), BundleError> {
        let refuse = |why| {
            Err(BundleError::Malformed {
                part: "layout",
                why,
            })
        };
        if self.dimensions.len() > MAX_DIMENSIONS {
            return Err(BundleError::TooLarge {
                what: "dimensions of an array",
                most: MAX_DIMENSIONS,
            });
        }
        let bytes = self.element.bytes();
        if bytes == 0 {
            return refuse("its elements have no bits");
        }
        if let ElementType::Described { text, .. } = &self.element
            && text.len() > MAX_DESCRIPTION
        {
            return Err(BundleError::TooLarge {
                what: "bytes of description of an array's elements",
                most: MAX_DESCRIPTION,
            });
        }
        let (mut first, mut last) = (i128::from(self.offset), i128::from(self.offset));
        let mut elements = 1_u128;
        for Dimension { size, stride } in &self.dimensions {
            elements = elements.saturating_mul(u128::from(*size));
            // At most 127 bits: 64 of the one and 63 of the other.
            let reach = i128::from(size.saturating_sub(1)) * i128::from(*stride);
            match reach < 0 {
                true => first = first.saturating_add(reach),
                false => last = last.saturating_add(reach),
            }
        }
        // Also if elements lie in the same place: consumers count the bytes of all.
        if elements.saturating_mul(u128::from(bytes)) > i64::MAX as u128 {
            return refuse("it has more bytes than there are addresses");
        }
        let end = match elements {
            0 => i128::from(self.offset),
            _ => last.saturating_add(i128::from(bytes)),
        };
        if end > i128::from(len) || (first < 0 && elements > 0) {
            return refuse("it has elements outside of its memory");
        }
        Ok(())
    }
}
