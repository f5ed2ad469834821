//! The text form of a handle.
//!
//! A prefix names the kind and the version. The bytes follow in base64url. The alphabet is letters,
//! digits, `-`, `_` and one `.`, none of which is special to a shell inside a word.

use std::fmt;

use data_encoding::BASE64URL_NOPAD as BASE64;

use super::wire::{HANDLE_SIZE, VERSION};
use super::{HandleError, HandleKind};

const PREFIX_LENGTH: usize = "xhm2.".len();

/// Number of characters in the text form of a handle of any kind. All are ASCII.
pub const TEXT_LENGTH: usize = PREFIX_LENGTH + (HANDLE_SIZE * 8).div_ceil(6);

const fn prefix(kind: HandleKind) -> &'static str {
    match kind {
        HandleKind::Memory => "xhm2.",
        HandleKind::PhysicalMemory => "xhp2.",
        HandleKind::Event => "xhe2.",
    }
}

pub(super) fn write(
    kind: HandleKind,
    bytes: &[u8; HANDLE_SIZE],
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    f.write_str(prefix(kind))?;
    BASE64.encode_write(bytes, f)
}

/// Decodes a text into its bytes and the kind that its prefix names. Checks neither the bytes nor
/// whether they have that kind.
pub(super) fn decode(text: &str) -> Result<(HandleKind, [u8; HANDLE_SIZE]), HandleError> {
    let text = text.trim_ascii();
    let kind = read_prefix(text)?;
    Ok((kind, read_bytes(text)?))
}

/// Decodes a text into its bytes, and rejects a prefix of another kind than `expected`.
pub(super) fn decode_as(
    text: &str,
    expected: HandleKind,
) -> Result<[u8; HANDLE_SIZE], HandleError> {
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
fn read_bytes(text: &str) -> Result<[u8; HANDLE_SIZE], HandleError> {
    let bad = |index: usize, why| HandleError::BadText { at: index + 1, why };
    let is_strange = |c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_');
    // All characters before the first strange one are ASCII, so a byte index is a character index.
    if let Some(index) = text[PREFIX_LENGTH..].find(is_strange) {
        return Err(bad(
            PREFIX_LENGTH + index,
            "no handle has this character here",
        ));
    }
    if text.len() < TEXT_LENGTH {
        return Err(bad(
            text.len(),
            "it ends too early, a handle has 144 characters",
        ));
    }
    if text.len() > TEXT_LENGTH {
        return Err(bad(
            TEXT_LENGTH,
            "it continues after the 144 characters of a handle",
        ));
    }
    let mut bytes = [0; HANDLE_SIZE];
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

const _: () = assert!(TEXT_LENGTH == 144, "the messages above give the number");
