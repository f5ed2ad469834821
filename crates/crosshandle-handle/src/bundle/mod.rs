//! Bundles carry arrays to other processes as plain bytes.
//!
//! A bundle holds handles, and the layout of an array in the memory of each handle. A text of the
//! program describes how the arrays are arranged. A bundle also has handles of events: an array may
//! wait for signals of these events before it is ready. A reader checks every byte of a bundle and
//! runs no code from it.
//!
//! [`Bundle::encode`] writes everything into the bundle's bytes. A large bundle consists of a small
//! head instead. The rest, the *table*, lies in shared memory, and the head contains a handle of
//! that memory. `PackedBundle::pack` allocates the memory and `PackedBundle::unpack` opens it. This
//! module is pure computation.
//!
//! # The bytes, version 4
//! All numbers are little-endian.
//!
//! | bytes | content |
//! |---|---|
//! | 4 | `xhb4` |
//! | 4 | flags; flag 1 means that the table lies in shared memory |
//! | 4 | number of arrays |
//! | 4 | number of signals |
//! | 4 | length of the structure in bytes |
//! | 104 | with flag 1: handle of the memory that holds the table |
//! | 8 | with flag 1: length of the table in bytes |
//! | 4 | with flag 1: CRC-32C of the table |
//! | … | without flag 1: the table |
//! | 4 | CRC-32C of all bytes before it |
//!
//! The table contains the structure in UTF-8, then all signals, then all arrays. A signal is:
//!
//! | bytes | content |
//! |---|---|
//! | 8 | number of the signal |
//! | 64 | handle of the event |
//! | 1 | 1 if the signal was complete when the bundle was packed, otherwise 0 |
//!
//! An array is:
//!
//! | bytes | content |
//! |---|---|
//! | 104 | handle of the memory |
//! | 2 | DLPack's type code and bits of the elements, or 255 and 0 for a described type |
//! | 1 | 1 if the array must be opened read-only, otherwise 0 |
//! | 1 | number of dimensions |
//! | 8 | offset of the first element from the start of the handle's memory, in bytes |
//! | 4 | number of signals that the array waits for |
//! | 16 per dimension | size in elements, stride in bytes |
//! | 4 | only for a described type: bytes of an element |
//! | 4 | only for a described type: length of the description in bytes |
//! | … | only for a described type: the description in UTF-8 |
//! | 4 per awaited signal | index of the signal in the bundle; the indexes ascend |

mod wire;

#[cfg(test)]
mod tests;

use super::{EventHandle, HandleError, MemoryHandle};
use std::fmt;

pub use wire::{TableHead, Unpacked};

/// Maximum number of arrays in a bundle, far more than the tensors of any model.
pub const MAX_ARRAYS: usize = 1 << 20;
/// Maximum number of signals in a bundle. A reader opens the event of each signal, and opens no
/// event twice.
pub const MAX_SIGNALS: usize = 1 << 16;
/// Maximum length of the structure in bytes.
pub const MAX_STRUCTURE: usize = 32 << 20;
/// Maximum number of dimensions of an array.
pub const MAX_DIMENSIONS: usize = 32;
/// Maximum length of the description of an element type, in bytes.
pub const MAX_DESCRIPTION: usize = 1 << 16;
/// Maximum length of a table in shared memory, in bytes. The reader copies the table, so this
/// limits the memory that a hostile bundle can cost.
pub const MAX_TABLE: usize = 64 << 20;

/// Arrays that are sent to another process.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Bundle {
    /// A text of the program that describes how the arrays are arranged.
    pub structure: String,
    /// The arrays, in the order that the structure refers to.
    pub arrays: Vec<BundledArray>,
    /// The signals that arrays wait for. [`BundledArray::ready`] contains indexes into this list.
    pub signals: Vec<ReadyEvent>,
}

/// A signal of an event after which arrays are ready.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReadyEvent {
    /// The event.
    pub handle: EventHandle,
    /// The number of the signal.
    pub value: u64,
    /// Whether the signal was complete when the bundle was packed. A reader then does not need the
    /// event, which may have ended since.
    pub is_complete: bool,
}

/// An array of a bundle: its memory, and the position of its elements there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BundledArray {
    /// The memory. It contains all elements.
    pub handle: MemoryHandle,
    /// Whether the memory must be opened read-only, even if the handle grants writing.
    pub read_only: bool,
    /// The elements.
    pub layout: Layout,
    /// The signals after which the elements are ready, as ascending indexes into
    /// [`Bundle::signals`]. If the list is empty, the elements are ready.
    pub ready: Vec<u32>,
}

/// The positions of an array's elements in memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    /// The type of the elements.
    pub element: ElementType,
    /// Offset of the first element from the start of the memory, in bytes.
    pub offset: u64,
    /// The dimensions, outermost first; at most [`MAX_DIMENSIONS`].
    pub dimensions: Vec<Dimension>,
}

/// The type of an array's elements. This crate does not interpret codes and descriptions. The
/// program that opens a bundle must reject types that it does not know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ElementType {
    /// A type that has a number in DLPack.
    Numbered {
        /// DLPack's type code, such as 0 for signed integers and 2 for floating point.
        code: u8,
        /// Number of bits of an element; not 0.
        bits: u8,
    },
    /// A type that has no number in DLPack, such as a date or a record.
    Described {
        /// Size of an element in bytes; not 0.
        bytes: u32,
        /// A description that the program defines, at most [`MAX_DESCRIPTION`] bytes.
        text: String,
    },
}

impl ElementType {
    /// Returns the size of an element in bytes.
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
    /// Distance from an element to its neighbour in bytes; may be negative.
    pub stride: i64,
}

/// The reason why bytes are not a bundle, or why a bundle cannot be encoded.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BundleError {
    /// The bytes do not start like a bundle.
    #[error(
        "these bytes are not a bundle, which starts with \"xhb\"; pass the bytes as their exporter gave them"
    )]
    NotABundle,
    /// The bundle has another version of the format.
    #[error(
        "the bundle has format version {found}, but this program reads version {supported}; use the \
         same release on both sides"
    )]
    UnsupportedVersion {
        /// The version of the bundle, a character.
        found: char,
        /// The version that this crate reads.
        supported: char,
    },
    /// The bytes end before the bundle does.
    #[error("the bundle ends too early: send all of its bytes")]
    TooShort,
    /// The checksum does not match, so some bytes were changed in transit.
    #[error("the bundle is damaged: its sum does not match; send it again, unchanged")]
    Damaged,
    /// A handle in the bundle is invalid.
    #[error("a handle of the bundle is wrong: {0}")]
    Handle(#[from] HandleError),
    /// The checksum is right, but a part has a value that no valid bundle has.
    #[error(
        "the bundle's {part} is invalid: {why}; it was forged, or made by a defective or different program"
    )]
    Malformed {
        /// The part of the bundle.
        part: &'static str,
        /// Description of the fault.
        why: &'static str,
    },
    /// The bundle exceeds a limit.
    #[error("a bundle has at most {most} {what}; use several bundles")]
    TooLarge {
        /// The counted parts, with their unit.
        what: &'static str,
        /// The maximum number in a bundle.
        most: usize,
    },
}

/// Prints the text, because Rust prints this form of an error that `main` returns.
impl fmt::Debug for BundleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Layout {
    /// Checks that all elements lie inside memory of `len` bytes.
    ///
    /// # Errors
    /// Returns [`BundleError::TooLarge`] for too many dimensions, [`BundleError::Malformed`]
    /// otherwise.
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
            // The product has at most 127 bits: 64 of the size and 63 of the stride.
            let reach = i128::from(size.saturating_sub(1)) * i128::from(*stride);
            match reach < 0 {
                true => first = first.saturating_add(reach),
                false => last = last.saturating_add(reach),
            }
        }
        // This limit also applies if elements share memory, because consumers count the bytes of
        // all elements.
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
