//! Errors of decoding a handle, before anything is opened.

use super::HandleKind;
use std::fmt;

/// The reason why bytes or a text are not a valid handle of the expected kind.
///
/// A text is decoded first ([`BadText`]). The other checks run in the order of the variants. A
/// damaged handle is therefore reported as [`Corrupt`], and an intact handle of another kind as
/// [`WrongKind`].
///
/// [`BadText`]: Self::BadText
/// [`Corrupt`]: Self::Corrupt
/// [`WrongKind`]: Self::WrongKind
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandleError {
    /// The bytes lack the magic number, or the text lacks a handle's prefix.
    #[error(
        "this is not a handle: its bytes start with \"XHDL\", its text with \"xhm3.\", \"xhp3.\", \
         \"xhe3.\" or \"xhc3.\" (a fabric handle's with \"XHDF\" and \"xhf1.\"); pass the handle as its exporter gave it"
    )]
    NotAHandle,
    /// The handle has another version of the format.
    #[error(
        "the handle has format version {found}, but this program reads version {supported}; \
         use the same release on both sides"
    )]
    UnsupportedVersion {
        /// Version in the handle.
        found: u8,
        /// Version that this crate reads.
        supported: u8,
    },
    /// The input is too short or too long for a handle of its kind.
    #[error(
        "a handle of this kind is {expected} bytes long, but {found} were given; \
         pass all bytes of one handle and nothing else"
    )]
    WrongSize {
        /// Size of a handle in bytes.
        expected: usize,
        /// Size of the input in bytes.
        found: usize,
    },
    /// The integrity tag does not match, so some bytes were changed in transit.
    #[error(
        "the handle is damaged: its tag does not match its contents; \
         pass it on again, unchanged, from its exporter"
    )]
    Corrupt,
    /// The handle is intact, but has another kind than expected.
    #[error(
        "expected a handle of kind \"{expected}\", found one of kind \"{found}\"; \
         open it as its own kind, or ask the exporter for a handle of the other kind"
    )]
    WrongKind {
        /// Kind that the caller expects.
        expected: HandleKind,
        /// Kind of the handle.
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
        /// Description of the fault.
        why: &'static str,
    },
    /// The text form cannot be decoded.
    #[error("the handle's text is wrong at character {at}: {why}; copy the whole word again")]
    BadText {
        /// Position of the first wrong or missing character. Positions are counted from 1, after
        /// leading white space.
        at: usize,
        /// Description of the fault.
        why: &'static str,
    },
}

/// Prints the text, because Rust prints this form of an error that `main` returns.
impl fmt::Debug for HandleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
