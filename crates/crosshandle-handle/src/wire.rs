//! The byte form of a handle, version 2: the layout, the integrity tag, and the checks of every
//! field.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute, transmute_ref};

use super::{BackendKind, DeviceUuid, Fields, HandleError, HandleKind, Key};

/// Size of a handle of any kind in bytes.
pub const HANDLE_SIZE: usize = 104;

/// Version of the handle format that this crate writes and reads.
pub const VERSION: u8 = 2;

/// Value of an event's `segment` field if the event lies in an arena of its context.
pub const COMMON_ARENA: u32 = 0;
/// Value of an event's `segment` field if the event has an arena to itself.
pub const ISOLATED_ARENA: u32 = 1;

const MAGIC: [u8; 4] = *b"XHDL";
const FLAG_READ_ONLY: u8 = 1 << 0;
/// Bits of a generation that hold the kind of the object. The exporter counts in the other bits. A
/// record that is reused for another kind therefore has another generation.
const KIND_BITS: u64 = 3;
/// Offset of the tag in bytes. The tag covers all bytes before it.
const TAG_AT: usize = HANDLE_SIZE - size_of::<U32>();

/// The layout of a handle. [`Fields`] documents the meaning of each field.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Wire {
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
    device: [u8; 16],
    generation: U64,
    record: U32,
    segment: U32,
    offset: U64,
    length: U64,
    reserved: U32,
    tag: U32,
}

const _: () = assert!(size_of::<Wire>() == HANDLE_SIZE);

/// Returns the tag of a handle, which is the CRC-32C of all bytes before the tag. At this length it
/// detects every change of up to five bits, and every burst of up to 32 bits.
pub(super) fn tag_of(bytes: &[u8; HANDLE_SIZE]) -> u32 {
    crc32c::crc32c(&bytes[..TAG_AT])
}

/// Encodes a handle. The exporter ensures that [`check`] accepts `fields`.
pub(super) fn encode(kind: HandleKind, fields: &Fields) -> [u8; HANDLE_SIZE] {
    // The bytes are stored as whole words, because the tag is computed from words right after.
    // Reading words that were stored in smaller pieces stalls the processor for half the time of
    // this function.
    let halves = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
    let [key_0, key_1] = words(*fields.key.as_bytes());
    let [device_0, device_1] = words(*fields.device.as_bytes());
    let flags = if fields.read_only { FLAG_READ_ONLY } else { 0 };
    let kinds = [VERSION, kind as u8, fields.backend as u8, flags];
    let wire: [U64; HANDLE_SIZE / 8] = [
        halves(u32::from_le_bytes(MAGIC), u32::from_le_bytes(kinds)),
        fields.host,
        fields.exporter,
        halves(fields.pid, fields.context),
        key_0,
        key_1,
        device_0,
        device_1,
        fields.generation,
        halves(fields.record, fields.segment),
        fields.offset,
        fields.length,
        halves(0, 0),
    ]
    .map(U64::new);
    let mut bytes: [u8; HANDLE_SIZE] = transmute!(wire);
    let tag = tag_of(&bytes);
    bytes[TAG_AT..].copy_from_slice(&tag.to_le_bytes());
    debug_assert_eq!(
        check(&bytes),
        Ok(kind),
        "an exporter made an invalid handle"
    );
    bytes
}

fn words(bytes: [u8; 16]) -> [u64; 2] {
    let number = u128::from_le_bytes(bytes);
    [number as u64, (number >> 64) as u64]
}

/// Decodes bytes that [`check`] has accepted.
pub(super) fn decode(bytes: &[u8; HANDLE_SIZE]) -> Fields {
    let wire: &Wire = transmute_ref!(bytes);
    let Some(backend) = BackendKind::from_code(wire.backend) else {
        unreachable!("a handle is checked before it is decoded")
    };
    Fields {
        backend,
        read_only: wire.flags & FLAG_READ_ONLY != 0,
        host: wire.host.get(),
        exporter: wire.exporter.get(),
        pid: wire.pid.get(),
        context: wire.context.get(),
        key: Key::from_bytes(wire.key),
        device: DeviceUuid::from_bytes(wire.device),
        generation: wire.generation.get(),
        record: wire.record.get(),
        segment: wire.segment.get(),
        offset: wire.offset.get(),
        length: wire.length.get(),
    }
}

/// Returns the bytes if they are a valid handle of the kind `expected`.
pub(super) fn parse(bytes: &[u8], expected: HandleKind) -> Result<[u8; HANDLE_SIZE], HandleError> {
    let bytes = sized(bytes)?;
    let found = check_envelope(bytes)?;
    if found != expected {
        return Err(HandleError::WrongKind { expected, found });
    }
    check_fields(transmute_ref!(bytes), found)?;
    Ok(*bytes)
}

/// Returns the bytes and their kind if they are a valid handle of any kind.
pub(super) fn parse_any(bytes: &[u8]) -> Result<([u8; HANDLE_SIZE], HandleKind), HandleError> {
    let bytes = sized(bytes)?;
    let kind = check(bytes)?;
    Ok((*bytes, kind))
}

fn sized(bytes: &[u8]) -> Result<&[u8; HANDLE_SIZE], HandleError> {
    bytes.try_into().map_err(|_| HandleError::WrongSize {
        expected: HANDLE_SIZE,
        found: bytes.len(),
    })
}

fn check(bytes: &[u8; HANDLE_SIZE]) -> Result<HandleKind, HandleError> {
    let kind = check_envelope(bytes)?;
    check_fields(transmute_ref!(bytes), kind)?;
    Ok(kind)
}

/// Checks everything that must hold before the kind can be trusted.
fn check_envelope(bytes: &[u8; HANDLE_SIZE]) -> Result<HandleKind, HandleError> {
    let wire: &Wire = transmute_ref!(bytes);
    if wire.magic != MAGIC {
        return Err(HandleError::NotAHandle);
    }
    if wire.version != VERSION {
        return Err(HandleError::UnsupportedVersion {
            found: wire.version,
            supported: VERSION,
        });
    }
    if wire.tag.get() != tag_of(bytes) {
        return Err(HandleError::Corrupt);
    }
    HandleKind::from_code(wire.kind).ok_or(malformed("kind", "no object has this number"))
}

fn check_fields(wire: &Wire, kind: HandleKind) -> Result<(), HandleError> {
    let require = |holds: bool, field, why| {
        if holds {
            Ok(())
        } else {
            Err(malformed(field, why))
        }
    };
    require(
        BackendKind::from_code(wire.backend).is_some(),
        "backend",
        "no backend has this number",
    )?;
    require(wire.host != 0, "host", "it is zero")?;
    require(wire.exporter != 0, "exporter", "it is zero")?;
    require(wire.context != 0, "context", "it is zero")?;
    require(wire.key != [0; 16], "key", "it is all zero")?;
    require(
        wire.generation.get() & KIND_BITS == kind as u64 && wire.generation.get() > KIND_BITS,
        "generation",
        "it is not one of this kind of object",
    )?;
    require(wire.reserved == 0, "reserved", "it is not zero")?;
    match kind {
        HandleKind::Memory | HandleKind::PhysicalMemory => {
            require(
                wire.flags & !FLAG_READ_ONLY == 0,
                "flags",
                "an unknown flag is set",
            )?;
            require(wire.length != 0, "length", "it is zero")?;
            let end = wire.offset.get().checked_add(wire.length.get());
            require(end.is_some(), "length", "the range ends beyond all memory")
        }
        HandleKind::Event => {
            const WHY: &str = "it is not zero, as it is for every event";
            require(wire.flags == 0, "flags", WHY)?;
            require(
                wire.segment.get() <= ISOLATED_ARENA,
                "segment",
                "no arena of events has this number",
            )?;
            require(wire.offset == 0, "offset", WHY)?;
            require(wire.length == 0, "length", WHY)
        }
    }
}

const fn malformed(field: &'static str, why: &'static str) -> HandleError {
    HandleError::Malformed { field, why }
}
