//! The text form of a handle.
//!
//! A prefix names the kind and the version. The bytes follow in base64url. The alphabet is letters,
//! digits, `-`, `_` and one `.`, none of which is special to a shell inside a word.

use std::fmt;

use data_encoding::BASE64URL_NOPAD as BASE64;

use super::wire::VERSION;
use super::{HandleError, HandleKind};

pub(super) const PREFIX_LENGTH: usize = "xhm3.".len();

const fn prefix(kind: HandleKind) -> &'static str {
    match kind {
        HandleKind::Memory => "xhm3.",
        HandleKind::PhysicalMemory => "xhp3.",
        HandleKind::Event => "xhe3.",
        HandleKind::Channel => "xhc3.",
    }
}

pub(super) fn write(kind: HandleKind, bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str(prefix(kind))?;
    BASE64.encode_write(bytes, f)
}

/// Returns the kind that a text's prefix names.
pub(super) fn kind_of(text: &str) -> Result<HandleKind, HandleError> {
    read_prefix(text.trim_ascii())
}

/// Decodes a text whose prefix must name the kind `expected`, which has `SIZE` bytes. Does not
/// check the bytes.
pub(super) fn decode<const SIZE: usize>(
    text: &str,
    expected: HandleKind,
) -> Result<[u8; SIZE], HandleError> {
    let text = text.trim_ascii();
    match read_prefix(text)? {
        found if found == expected => read_bytes(text),
        found => Err(HandleError::WrongKind { expected, found }),
    }
}

fn read_prefix(text: &str) -> Result<HandleKind, HandleError> {
    let (head, _) = text.split_once('.').ok_or(HandleError::NotAHandle)?;
    let (kind, version) = if let Some(version) = head.strip_prefix("xhm") {
        (HandleKind::Memory, version)
    } else if let Some(version) = head.strip_prefix("xhp") {
        (HandleKind::PhysicalMemory, version)
    } else if let Some(version) = head.strip_prefix("xhe") {
        (HandleKind::Event, version)
    } else if let Some(version) = head.strip_prefix("xhc") {
        (HandleKind::Channel, version)
    } else {
        return Err(HandleError::NotAHandle);
    };
    if text.starts_with(prefix(kind)) {
        return Ok(kind);
    }
    match version.parse() {
        Ok(found) if found != VERSION => Err(HandleError::UnsupportedVersion {
            found,
            supported: VERSION,
        }),
        // This is another spelling of the version ("01", "+1"). Every handle has only one text.
        _ => Err(HandleError::NotAHandle),
    }
}

/// Decodes the text after the prefix, which [`read_prefix`] has accepted.
fn read_bytes<const SIZE: usize>(text: &str) -> Result<[u8; SIZE], HandleError> {
    let bad = |index: usize, why| HandleError::BadText { at: index + 1, why };
    let is_strange = |c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_');
    let length = PREFIX_LENGTH + (SIZE * 8).div_ceil(6);
    // All characters before the first strange one are ASCII, so a byte index is a character index.
    if let Some(index) = text[PREFIX_LENGTH..].find(is_strange) {
        return Err(bad(
            PREFIX_LENGTH + index,
            "no handle has this character here",
        ));
    }
    if text.len() < length {
        return Err(bad(
            text.len(),
            "it ends too early, a handle has 144 characters and an event's 91",
        ));
    }
    if text.len() > length {
        return Err(bad(
            length,
            "it continues after the handle, which has 144 characters, or 91 for an event",
        ));
    }
    let mut bytes = [0; SIZE];
    // Length and alphabet are right, so only unused bits of the last character can be wrong.
    BASE64
        .decode_mut(&text.as_bytes()[PREFIX_LENGTH..], &mut bytes)
        .map_err(|partial| {
            bad(
                PREFIX_LENGTH + partial.error.position,
                "no handle has this character here",
            )
        })?;
    Ok(bytes)
}

const _: () = assert!(
    HandleKind::Memory.text_length() == 144 && HandleKind::Event.text_length() == 91,
    "the messages above give the numbers"
);
