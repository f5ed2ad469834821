//! What can be wrong with a handle before anything is opened.

use super::HandleKind;

/// Why bytes or a text are not a handle of the wanted kind.
///
/// The checks run in the order of the variants (a text is first decoded: [`BadText`]), so a
/// damaged handle says [`Corrupt`], and an intact one of another kind says [`WrongKind`].
///
/// [`BadText`]: Self::BadText
/// [`Corrupt`]: Self::Corrupt
/// [`WrongKind`]: Self::WrongKind
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandleError {
    /// The number of bytes is not that of a handle.
    #[error(
        "a handle is {expected} bytes long, but {found} were given; \
         pass all bytes of one handle and nothing else"
    )]
    WrongSize {
        /// Bytes that a handle has.
        expected: usize,
        /// Bytes that were given.
        found: usize,
    },
    /// The bytes lack the magic number, or the text lacks a handle's prefix.
    #[error(
        "this is not a handle: its bytes start with \"XHDL\", its text with \"xhm1.\", \"xhp1.\" \
         or \"xhe1.\"; pass the handle as its exporter gave it"
    )]
    NotAHandle,
    /// The handle is of another version of the format.
    #[error(
        "the handle has format version {found}, but this program reads version {supported}; \
         use the same release on both sides"
    )]
    UnsupportedVersion {
        /// Version that the handle claims.
        found: u8,
        /// The version that is read here.
        supported: u8,
    },
    /// The integrity tag does not match: some bytes were changed on the way.
    #[error(
        "the handle is damaged: its tag does not match its contents; \
         pass it on again, unchanged, from its exporter"
    )]
    Corrupt,
    /// An intact handle of another kind than the one asked for.
    #[error(
        "expected a handle of kind \"{expected}\", found one of kind \"{found}\"; \
         open it as what it is, or ask the exporter for the other"
    )]
    WrongKind {
        /// The kind that was asked for.
        expected: HandleKind,
        /// The kind that the handle has.
        found: HandleKind,
    },
    /// The tag is right, but a field has a value that no exporter of this version writes.
    #[error(
        "the handle's field \"{field}\" is invalid: {why}; it was forged, or made by a defective \
         or different program: get a new one from the exporter"
    )]
    Malformed {
        /// Name of the field.
        field: &'static str,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The shared bytes do not lie inside the segment.
    #[error(
        "the handle names {length} bytes at offset {offset}, which is not inside its segment of \
         {segment_length} bytes; get a new one from the exporter"
    )]
    Extent {
        /// Bytes from the segment's start to the first shared byte.
        offset: u64,
        /// Bytes shared.
        length: u64,
        /// Bytes in the whole segment.
        segment_length: u64,
    },
    /// The text form cannot be decoded.
    #[error("the handle's text is wrong at character {at}: {why}; copy the whole word again")]
    BadText {
        /// Position of the first wrong or missing character, counted from 1 after leading space.
        at: usize,
        /// What is wrong there.
        why: &'static str,
    },
}
