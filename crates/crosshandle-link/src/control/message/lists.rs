//! Lists at the end of messages: an event's failed signals, and a named object's parts.

use super::{MAX_BLOB, MAX_FAILURE_TEXT, MAX_FAILURES, MAX_PARTS};
use crate::wire::Fields;
use crosshandle::handle::MEMORY_HANDLE_SIZE;

/// Consecutive signals of an event that failed for the same reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure<'a> {
    /// Number of the first failed signal.
    pub first: u64,
    /// Number of failed signals, at least 1.
    pub count: u32,
    /// The text of the error in the owner's process.
    pub why: &'a str,
}

/// Encodes failures in ascending order. Encodes only the first [`MAX_FAILURES`].
pub fn write_failures<'a>(failures: impl IntoIterator<Item = Failure<'a>>) -> Vec<u8> {
    let mut to = Vec::new();
    for Failure { first, count, why } in failures.into_iter().take(MAX_FAILURES) {
        to.extend_from_slice(&first.to_le_bytes());
        to.extend_from_slice(&count.to_le_bytes());
        put_text(&mut to, &why[..why.floor_char_boundary(MAX_FAILURE_TEXT)]);
    }
    to
}

/// Decodes failures. All of their signal numbers must be at most `last`.
///
/// # Errors
/// Returns an error if the bytes are not in the format of [`write_failures`].
pub fn read_failures(bytes: &[u8], last: u64) -> Result<Vec<Failure<'_>>, &'static str> {
    let mut fields = Fields(bytes);
    let mut failures = Vec::new();
    let mut before = 0;
    while !fields.0.is_empty() {
        let (first, count) = (fields.next::<u64>()?, fields.next::<u32>()?);
        let end = first.checked_add(u64::from(count));
        let is_behind = first > before && end.is_some_and(|end| end - 1 <= last);
        if failures.len() == MAX_FAILURES || count == 0 || !is_behind {
            return Err("the failures of an event are not in order");
        }
        before = first + u64::from(count) - 1;
        let why = read_text(&mut fields, MAX_FAILURE_TEXT)?;
        failures.push(Failure { first, count, why });
    }
    Ok(failures)
}

/// A part of a named object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedPart<'a> {
    /// The purpose of the part.
    pub role: &'a str,
    /// The name of the owner's device that contains the part.
    pub device: &'a str,
    /// The encoded handle of the part's memory.
    pub handle: &'a [u8],
}

/// Encodes the parts of a named object. Returns `None` if they do not fit into one message.
pub fn write_parts<'a>(parts: impl IntoIterator<Item = NamedPart<'a>>) -> Option<Vec<u8>> {
    let mut to = Vec::new();
    for NamedPart {
        role,
        device,
        handle,
    } in parts
    {
        for text in [role, device] {
            u16::try_from(text.len()).ok()?;
            put_text(&mut to, text);
        }
        to.extend_from_slice(handle);
    }
    (to.len() <= MAX_BLOB).then_some(to)
}

/// Decodes the parts of a named object.
///
/// # Errors
/// Returns an error if the bytes are not in the format of [`write_parts`].
pub fn read_parts(bytes: &[u8]) -> Result<Vec<NamedPart<'_>>, &'static str> {
    let mut fields = Fields(bytes);
    let mut parts = Vec::new();
    while !fields.0.is_empty() {
        if parts.len() == MAX_PARTS {
            return Err("a name has more parts than a holder allows");
        }
        parts.push(NamedPart {
            role: read_text(&mut fields, MAX_BLOB)?,
            device: read_text(&mut fields, MAX_BLOB)?,
            handle: fields.take(MEMORY_HANDLE_SIZE)?,
        });
    }
    Ok(parts)
}

/// Appends the length of a text (16 bits) and the text.
fn put_text(to: &mut Vec<u8>, text: &str) {
    to.extend_from_slice(&(text.len() as u16).to_le_bytes());
    to.extend_from_slice(text.as_bytes());
}

/// Decodes a text that [`put_text`] has encoded. Fails if it is longer than `max` bytes.
fn read_text<'a>(fields: &mut Fields<'a>, max: usize) -> Result<&'a str, &'static str> {
    let len = usize::from(fields.next::<u16>()?);
    if len > max {
        return Err("a text is longer than it may be");
    }
    std::str::from_utf8(fields.take(len)?).map_err(|_| "a text is not UTF-8")
}
