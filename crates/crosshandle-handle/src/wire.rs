//! The byte form of a handle, version 3: the two layouts, the integrity tag, and the checks of
//! every field.
//!
//! All handles start with the same 60 bytes, and end with the tag. Only handles of memory have
//! fields between the two.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use super::{BackendKind, DeviceUuid, Fields, HandleError, HandleKind, Key};

/// Size in bytes of a handle of memory, physical memory or a channel. No handle is longer.
pub const MEMORY_HANDLE_SIZE: usize = 104;
/// Size of an event's handle in bytes.
pub const EVENT_HANDLE_SIZE: usize = 64;

/// Version of the handle format that this crate writes and reads.
pub const VERSION: u8 = 3;

const MAGIC: [u8; 4] = *b"XHDL";
/// Flag of memory that the importer can only read.
const FLAG_READ_ONLY: u8 = 1 << 0;
/// Flag of an event that has an arena to itself.
const FLAG_ISOLATED: u8 = 1 << 1;
/// Bits of a generation that hold the kind of the record's object. The exporter counts in the other
/// bits. A record that is reused for another kind therefore has another generation.
const KIND_BITS: u64 = 3;
const TAG_SIZE: usize = size_of::<U32>();

/// The first fields of every handle. [`Fields`] documents the meaning of each field.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Head {
    magic: [u8; 4],
    version: u8,
    kind: u8,
    backend: u8,
    flags: u8,
    host: U64,
    exporter: U64,
    pid: U32,
    context: U32,
    key: [u8; 16],
    generation: U64,
    record: U32,
}

/// The layout of an event's handle.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct EventWire {
    head: Head,
    tag: U32,
}

/// The layout of a handle of memory of any kind.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct MemoryWire {
    head: Head,
    segment: U32,
    device: [u8; 16],
    offset: U64,
    length: U64,
    reserved: U32,
    tag: U32,
}

const _: () = assert!(size_of::<EventWire>() == EVENT_HANDLE_SIZE);
const _: () = assert!(size_of::<MemoryWire>() == MEMORY_HANDLE_SIZE);

/// Returns the tag of a handle, which is the CRC-32C of all bytes before the tag. At these lengths
/// it detects every change of up to five bits, and every burst of up to 32 bits.
pub(super) fn tag_of(bytes: &[u8]) -> u32 {
    crc32c::crc32c(&bytes[..bytes.len() - TAG_SIZE])
}

/// Encodes a handle of memory of any kind. The exporter ensures that [`check`] accepts `fields`.
pub(super) fn encode_memory(kind: HandleKind, fields: &Fields) -> [u8; MEMORY_HANDLE_SIZE] {
    let flags = if fields.read_only { FLAG_READ_ONLY } else { 0 };
    let [device_0, device_1] = halves_of(*fields.device.as_bytes());
    let [magic, host, exporter, origin, key_0, key_1, generation] = head(kind, flags, fields);
    tagged(
        kind,
        [
            magic,
            host,
            exporter,
            origin,
            key_0,
            key_1,
            generation,
            word(fields.record, fields.segment),
            device_0,
            device_1,
            fields.offset,
            fields.length,
            0,
        ]
        .map(U64::new),
    )
}

/// Encodes an event's handle. The exporter ensures that [`check`] accepts `fields`.
pub(super) fn encode_event(kind: HandleKind, fields: &Fields) -> [u8; EVENT_HANDLE_SIZE] {
    let flags = if fields.isolated { FLAG_ISOLATED } else { 0 };
    let [magic, host, exporter, origin, key_0, key_1, generation] = head(kind, flags, fields);
    tagged(
        kind,
        [
            magic,
            host,
            exporter,
            origin,
            key_0,
            key_1,
            generation,
            word(fields.record, 0),
        ]
        .map(U64::new),
    )
}

/// Returns the first seven words of a handle.
///
/// The bytes are stored as whole words, because the tag is computed from words right after. Reading
/// words that were stored in smaller pieces stalls the processor for half the time of encoding.
fn head(kind: HandleKind, flags: u8, fields: &Fields) -> [u64; 7] {
    let kinds = [VERSION, kind as u8, fields.backend as u8, flags];
    let [key_0, key_1] = halves_of(*fields.key.as_bytes());
    [
        word(u32::from_le_bytes(MAGIC), u32::from_le_bytes(kinds)),
        fields.host,
        fields.exporter,
        word(fields.pid, fields.context),
        key_0,
        key_1,
        fields.generation,
    ]
}

fn word(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn halves_of(bytes: [u8; 16]) -> [u64; 2] {
    let number = u128::from_le_bytes(bytes);
    [number as u64, (number >> 64) as u64]
}

/// Returns the words as bytes, with the tag in the last four of them.
fn tagged<const WORDS: usize, const SIZE: usize>(
    kind: HandleKind,
    words: [U64; WORDS],
) -> [u8; SIZE] {
    let mut bytes = [0; SIZE];
    bytes.copy_from_slice(words.as_bytes());
    let tag = tag_of(&bytes);
    bytes[SIZE - TAG_SIZE..].copy_from_slice(&tag.to_le_bytes());
    debug_assert_eq!(
        check(&bytes, None),
        Ok(kind),
        "an exporter made an invalid handle"
    );
    bytes
}

/// Decodes bytes of memory of any kind that [`check`] has accepted.
pub(super) fn decode_memory(bytes: &[u8; MEMORY_HANDLE_SIZE]) -> Fields {
    let wire: MemoryWire = transmute!(*bytes);
    Fields {
        device: DeviceUuid::from_bytes(wire.device),
        segment: wire.segment.get(),
        offset: wire.offset.get(),
        length: wire.length.get(),
        ..decode_head(&wire.head)
    }
}

/// Decodes bytes of an event that [`check`] has accepted.
pub(super) fn decode_event(bytes: &[u8; EVENT_HANDLE_SIZE]) -> Fields {
    let wire: EventWire = transmute!(*bytes);
    decode_head(&wire.head)
}

fn decode_head(head: &Head) -> Fields {
    let Some(backend) = BackendKind::from_code(head.backend) else {
        unreachable!("a handle is checked before it is decoded")
    };
    Fields {
        backend,
        read_only: head.flags & FLAG_READ_ONLY != 0,
        isolated: head.flags & FLAG_ISOLATED != 0,
        host: head.host.get(),
        exporter: head.exporter.get(),
        pid: head.pid.get(),
        context: head.context.get(),
        key: Key::from_bytes(head.key),
        device: DeviceUuid::from_bytes([0; 16]),
        generation: head.generation.get(),
        record: head.record.get(),
        segment: 0,
        offset: 0,
        length: 0,
    }
}

/// Returns the bytes if they are a valid handle of the kind `expected`, which has `SIZE` bytes.
pub(super) fn parse<const SIZE: usize>(
    bytes: &[u8],
    expected: HandleKind,
) -> Result<[u8; SIZE], HandleError> {
    check(bytes, Some(expected))?;
    sized(bytes, expected)
}

/// Returns the bytes if they have the size of a handle of this kind.
pub(super) fn sized<const SIZE: usize>(
    bytes: &[u8],
    kind: HandleKind,
) -> Result<[u8; SIZE], HandleError> {
    bytes.try_into().map_err(|_| wrong_size(kind, bytes.len()))
}

/// Returns the kind of the bytes if they are a valid handle of the kind `expected`, or of any kind.
///
/// The size is checked twice. Before the tag is right, the kind cannot be trusted, so any size that
/// handles have is accepted first.
pub(super) fn check(bytes: &[u8], expected: Option<HandleKind>) -> Result<HandleKind, HandleError> {
    if !bytes.starts_with(&MAGIC) {
        return Err(HandleError::NotAHandle);
    }
    if let Some(&found) = bytes.get(MAGIC.len())
        && found != VERSION
    {
        return Err(HandleError::UnsupportedVersion {
            found,
            supported: VERSION,
        });
    }
    let head = match bytes.len() {
        EVENT_HANDLE_SIZE | MEMORY_HANDLE_SIZE => Head::ref_from_prefix(bytes).ok(),
        _ => None,
    };
    let Some((head, rest)) = head else {
        let claimed = bytes.get(MAGIC.len() + 1);
        let claimed = claimed.and_then(|code| HandleKind::from_code(*code));
        let kind = expected.or(claimed).unwrap_or(HandleKind::Memory);
        return Err(wrong_size(kind, bytes.len()));
    };
    if !rest.ends_with(&tag_of(bytes).to_le_bytes()) {
        return Err(HandleError::Corrupt);
    }
    let kind = HandleKind::from_code(head.kind);
    let kind = kind.ok_or(malformed("kind", "no object has this number"))?;
    if bytes.len() != kind.size() {
        return Err(wrong_size(kind, bytes.len()));
    }
    if let Some(expected) = expected
        && kind != expected
    {
        return Err(HandleError::WrongKind {
            expected,
            found: kind,
        });
    }
    check_head(head, kind)?;
    match MemoryWire::ref_from_bytes(bytes) {
        Ok(wire) => check_memory(wire)?,
        Err(_) => require(
            head.flags & !FLAG_ISOLATED == 0,
            "flags",
            "an unknown flag is set",
        )?,
    }
    Ok(kind)
}

fn wrong_size(kind: HandleKind, found: usize) -> HandleError {
    HandleError::WrongSize {
        expected: kind.size(),
        found,
    }
}

fn require(holds: bool, field: &'static str, why: &'static str) -> Result<(), HandleError> {
    if holds {
        Ok(())
    } else {
        Err(malformed(field, why))
    }
}

fn check_head(head: &Head, kind: HandleKind) -> Result<(), HandleError> {
    require(
        BackendKind::from_code(head.backend).is_some(),
        "backend",
        "no backend has this number",
    )?;
    require(head.host != 0, "host", "it is zero")?;
    require(head.exporter != 0, "exporter", "it is zero")?;
    require(head.context != 0, "context", "it is zero")?;
    require(head.key != [0; 16], "key", "it is all zero")?;
    let generation = head.generation.get();
    require(
        generation & KIND_BITS == kind.of_record() as u64 && generation > KIND_BITS,
        "generation",
        "it is not one of this kind of object",
    )
}

fn check_memory(wire: &MemoryWire) -> Result<(), HandleError> {
    require(
        wire.head.flags & !FLAG_READ_ONLY == 0,
        "flags",
        "an unknown flag is set",
    )?;
    require(wire.reserved == 0, "reserved", "it is not zero")?;
    require(wire.length != 0, "length", "it is zero")?;
    let end = wire.offset.get().checked_add(wire.length.get());
    require(end.is_some(), "length", "the range ends beyond all memory")
}

const fn malformed(field: &'static str, why: &'static str) -> HandleError {
    HandleError::Malformed { field, why }
}
