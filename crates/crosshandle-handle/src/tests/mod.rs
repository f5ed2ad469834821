//! Tests of the byte form and the text form. They are inside the crate, so that they can make
//! handles with any contents.

mod bytes;
mod explain;
mod random;
mod text;

use proptest::prelude::*;

use super::wire;
use super::*;

pub(super) const KINDS: [HandleKind; 4] = [
    HandleKind::Memory,
    HandleKind::PhysicalMemory,
    HandleKind::Event,
    HandleKind::Channel,
];

/// The kinds whose handles have the layout of memory.
pub(super) const MEMORY_KINDS: [HandleKind; 3] = [
    HandleKind::Memory,
    HandleKind::PhysicalMemory,
    HandleKind::Channel,
];

/// Parses bytes as a handle of the kind, and returns the bytes of the handle.
pub(super) fn parse(kind: HandleKind, bytes: &[u8]) -> Result<Vec<u8>, HandleError> {
    Ok(match kind {
        HandleKind::Memory => MemoryHandle::from_bytes(bytes)?.as_bytes().to_vec(),
        HandleKind::PhysicalMemory => PhysicalMemoryHandle::from_bytes(bytes)?.as_bytes().to_vec(),
        HandleKind::Event => EventHandle::from_bytes(bytes)?.as_bytes().to_vec(),
        HandleKind::Channel => ChannelHandle::from_bytes(bytes)?.as_bytes().to_vec(),
    })
}

/// Parses a text as a handle of the kind, and returns the bytes of the handle.
pub(super) fn read(kind: HandleKind, text: &str) -> Result<Vec<u8>, HandleError> {
    Ok(match kind {
        HandleKind::Memory => text.parse::<MemoryHandle>()?.as_bytes().to_vec(),
        HandleKind::PhysicalMemory => text.parse::<PhysicalMemoryHandle>()?.as_bytes().to_vec(),
        HandleKind::Event => text.parse::<EventHandle>()?.as_bytes().to_vec(),
        HandleKind::Channel => text.parse::<ChannelHandle>()?.as_bytes().to_vec(),
    })
}

pub(super) fn make(kind: HandleKind, fields: &Fields) -> AnyHandle {
    match kind {
        HandleKind::Memory => MemoryHandle::new(fields).into(),
        HandleKind::PhysicalMemory => PhysicalMemoryHandle::new(fields).into(),
        HandleKind::Event => EventHandle::new(fields).into(),
        HandleKind::Channel => ChannelHandle::new(fields).into(),
    }
}

/// Fixes the tag after a change, so that only the change itself can be rejected.
pub(super) fn retag(bytes: &mut [u8]) {
    let tag = wire::tag_of(bytes);
    let start = bytes.len() - 4;
    bytes[start..].copy_from_slice(&tag.to_le_bytes());
}

/// Returns fields whose values all differ and are nonzero where the kind allows it.
pub(super) fn sample_fields(kind: HandleKind) -> Fields {
    let is_event = kind == HandleKind::Event;
    let memory_only = |value| if is_event { 0 } else { value };
    Fields {
        backend: BackendKind::Cuda,
        read_only: kind != HandleKind::Event,
        isolated: is_event,
        host: 0x0102_0304_0506_0708,
        exporter: 0x1112_1314_1516_1718,
        pid: 0x2122_2324,
        context: 0x3132_3334,
        key: Key::from_bytes(*b"0123456789abcdef"),
        device: device_of(kind, *b"ABCDEFGHIJKLMNOP"),
        generation: 0x4142_4344_4546_4748 | kind.of_record() as u64,
        record: 0x5152_5354,
        segment: if is_event { 0 } else { 0x6162_6364 },
        offset: memory_only(0x7172_7374),
        length: memory_only(0x8182_8384_8586_8788 >> 1),
    }
}

fn device_of(kind: HandleKind, memory: [u8; 16]) -> DeviceUuid {
    DeviceUuid::from_bytes(match kind {
        HandleKind::Event => [0; 16],
        _ => memory,
    })
}

pub(super) fn sample(kind: HandleKind) -> AnyHandle {
    make(kind, &sample_fields(kind))
}

prop_compose! {
    /// Generates valid contents of a handle of the kind, including extremes.
    pub(super) fn any_fields(kind: HandleKind)(
        backend in proptest::sample::select(BackendKind::ALL),
        flag: bool,
        host in 1..=u64::MAX,
        exporter in 1..=u64::MAX,
        pid: u32,
        context in 1..=u32::MAX,
        key in any::<[u8; 16]>().prop_filter("a key", |key| *key != [0; 16]),
        device: [u8; 16],
        uses in 1..=u64::MAX >> 2,
        record: u32,
        segment: u32,
        // Two offsets that are sorted below: the start and the end of the shared bytes.
        mut points in prop_oneof![
            any::<[u64; 2]>(),
            [0..=2u64, 0..=2u64],
            [u64::MAX - 2..=u64::MAX, u64::MAX - 2..=u64::MAX],
        ],
    ) -> Fields {
        points.sort_unstable();
        let [mut start, mut end] = points;
        if start == end {
            // An empty range is invalid, so make room for one byte.
            match end.checked_add(1) {
                Some(above) => end = above,
                None => start -= 1,
            }
        }
        let is_event = kind == HandleKind::Event;
        let memory_only = |value: u64| if is_event { 0 } else { value };
        Fields {
            backend,
            read_only: flag && kind != HandleKind::Event,
            isolated: flag && is_event,
            host,
            exporter,
            pid,
            context,
            key: Key::from_bytes(key),
            device: device_of(kind, device),
            generation: uses << 2 | kind.of_record() as u64,
            record,
            segment: if is_event { 0 } else { segment },
            offset: memory_only(start),
            length: memory_only(end - start),
        }
    }
}

/// Generates a kind and valid contents of a handle of that kind.
pub(super) fn any_handle() -> impl Strategy<Value = (HandleKind, Fields)> {
    proptest::sample::select(KINDS.to_vec())
        .prop_flat_map(|kind| any_fields(kind).prop_map(move |fields| (kind, fields)))
}
