//! Lists at the ends of messages: the failed signals of an event, and the parts of a name.

use super::wire::Fields;
use super::{MAX_BLOB, MAX_FAILURE_TEXT, MAX_FAILURES};
use crosshandle::handle::HANDLE_SIZE;

/// Signals of an event that have failed, one after the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure<'a> {
    /// The first one's number.
    pub first: u64,
    /// How many they are; never 0.
    pub count: u32,
    /// The owner's error.
    pub why: &'a str,
}

/// Writes failures, which must be in the order of their numbers, as far as there is room.
pub fn write_failures<'a>(failures: impl IntoIterator<Item = Failure<'a>>) -> Vec<u8> {
    let mut to = Vec::new();
    for Failure { first, count, why } in failures.into_iter().take(MAX_FAILURES) {
        to.extend_from_slice(&first.to_le_bytes());
        to.extend_from_slice(&count.to_le_bytes());
        put_text(&mut to, &why[..why.floor_char_boundary(MAX_FAILURE_TEXT)]);
    }
    to
}

/// Reads failures of signals up to `last`.
///
/// # Errors
/// They are not as [`write_failures`] writes them.
pub fn read_failures(bytes: &[u8], last: u64) -> Result<Vec<Failure<'_>>, &'static str> {
    let mut fields = Fields(bytes);
    let mut failures = Vec::new();
    let mut before = 0;
    while !fields.0.is_empty() {
        let (first, count) = (fields.u64()?, fields.u32()?);
        let end = first.checked_add(u64::from(count));
        let is_behind = first > before && end.is_some_and(|end| end - 1 <= last);
        if failures.len() == MAX_FAILURES || count == 0 || !is_behind {
            return Err("the failures of an event are not in their order");
        }
        before = first + u64::from(count) - 1;
        let why = fields.short_text(MAX_FAILURE_TEXT)?;
        failures.push(Failure { first, count, why });
    }
    Ok(failures)
}

/// A part of what has a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedPart<'a> {
    /// What it is for.
    pub role: &'a str,
    /// The device that it is on, at its owner.
    pub device: &'a str,
    /// Its handle.
    pub handle: &'a [u8],
}

/// Writes the parts of a name; `None` if they are more than one message carries.
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

/// Reads the parts of a name.
///
/// # Errors
/// They are not as [`write_parts`] writes them.
pub fn read_parts(bytes: &[u8]) -> Result<Vec<NamedPart<'_>>, &'static str> {
    let mut fields = Fields(bytes);
    let mut parts = Vec::new();
    while !fields.0.is_empty() {
        parts.push(NamedPart {
            role: fields.short_text(MAX_BLOB)?,
            device: fields.short_text(MAX_BLOB)?,
            handle: fields.take(HANDLE_SIZE)?,
        });
    }
    Ok(parts)
}

/// Writes a text behind its length, which 16 bits hold.
fn put_text(to: &mut Vec<u8>, text: &str) {
    to.extend_from_slice(&(text.len() as u16).to_le_bytes());
    to.extend_from_slice(text.as_bytes());
}
