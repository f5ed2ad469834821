//! Checks that several fuzz targets for handles use, and access to internals of the library.

mod exchange;

pub use exchange::*;

use crosshandle::handle::{
    AnyHandle, ChannelHandle, EVENT_HANDLE_SIZE, EventHandle, HandleError, HandleKind,
    MEMORY_HANDLE_SIZE, MemoryHandle, PhysicalMemoryHandle,
};

/// Returns the bytes with a valid tag, or `None` if they do not have the size of a handle. A fuzzer
/// cannot find a CRC by itself, and without a valid tag it would never reach the later checks.
pub fn retagged(bytes: &[u8]) -> Option<Vec<u8>> {
    if !matches!(bytes.len(), EVENT_HANDLE_SIZE | MEMORY_HANDLE_SIZE) {
        return None;
    }
    let (mut bytes, tag_at) = (bytes.to_vec(), bytes.len() - 4);
    let (contents, tag) = bytes.split_at_mut(tag_at);
    tag.copy_from_slice(&crc32c::crc32c(contents).to_le_bytes());
    Some(bytes)
}

/// Returns the size that a handle has if it begins with these bytes.
pub fn size_by_start(bytes: &[u8]) -> usize {
    match bytes.get(5) {
        Some(&kind) if kind == HandleKind::Event as u8 => EVENT_HANDLE_SIZE,
        _ => MEMORY_HANDLE_SIZE,
    }
}

/// Parses the bytes with each type, and checks that the types agree.
pub fn parse_bytes(bytes: &[u8]) -> Result<AnyHandle, HandleError> {
    let any = AnyHandle::from_bytes(bytes);
    agree(
        &any,
        MemoryHandle::from_bytes(bytes).map(AnyHandle::from),
        HandleKind::Memory,
    );
    agree(
        &any,
        PhysicalMemoryHandle::from_bytes(bytes).map(AnyHandle::from),
        HandleKind::PhysicalMemory,
    );
    agree(
        &any,
        EventHandle::from_bytes(bytes).map(AnyHandle::from),
        HandleKind::Event,
    );
    agree(
        &any,
        ChannelHandle::from_bytes(bytes).map(AnyHandle::from),
        HandleKind::Channel,
    );
    if let Ok(handle) = &any {
        assert_eq!(handle.as_bytes(), bytes);
        check_accepted(handle);
    }
    any
}

/// Parses the text with each type, and checks that the types agree.
pub fn parse_text(text: &str) -> Result<AnyHandle, HandleError> {
    let any = text.parse::<AnyHandle>();
    agree(
        &any,
        text.parse::<MemoryHandle>().map(AnyHandle::from),
        HandleKind::Memory,
    );
    agree(
        &any,
        text.parse::<PhysicalMemoryHandle>().map(AnyHandle::from),
        HandleKind::PhysicalMemory,
    );
    agree(
        &any,
        text.parse::<EventHandle>().map(AnyHandle::from),
        HandleKind::Event,
    );
    agree(
        &any,
        text.parse::<ChannelHandle>().map(AnyHandle::from),
        HandleKind::Channel,
    );
    match &any {
        Ok(handle) => {
            assert_eq!(
                handle.to_string(),
                text.trim_ascii(),
                "two texts for one handle"
            );
            check_accepted(handle);
        }
        Err(HandleError::BadText { at, .. }) => {
            let characters = text.trim_ascii().chars().count();
            assert!((1..=characters + 1).contains(at), "no such character: {at}");
        }
        Err(_) => {}
    }
    any
}

/// Checks that a handle type accepts what `AnyHandle` accepts of its kind. Both must refuse other
/// input for the same reason, unless the kind is the reason.
fn agree(
    any: &Result<AnyHandle, HandleError>,
    one: Result<AnyHandle, HandleError>,
    kind: HandleKind,
) {
    match (any, one) {
        (Ok(handle), Err(HandleError::WrongKind { expected, found })) => {
            assert_eq!((expected, found), (kind, handle.kind()));
            assert_ne!(expected, found);
        }
        (Err(_), Err(HandleError::WrongKind { expected, found })) => {
            assert_eq!(expected, kind);
            assert_ne!(expected, found);
        }
        // Without a valid tag, each type expects the size of its own handles. With one, all types
        // expect the size of the kind that the bytes state.
        (
            Err(HandleError::WrongSize { found, expected }),
            Err(HandleError::WrongSize {
                found: again,
                expected: by_one,
            }),
        ) => {
            assert_eq!(*found, again);
            assert!(by_one == kind.size() || by_one == *expected, "{by_one}");
        }
        (any, one) => assert_eq!(*any, one),
    }
}

/// Checks the rules for every value of a handle type.
fn check_accepted(handle: &AnyHandle) {
    assert_eq!(AnyHandle::from_bytes(handle.as_bytes()), Ok(*handle));
    let text = handle.to_string();
    assert_eq!(text.len(), handle.kind().text_length());
    assert_eq!(handle.as_bytes().len(), handle.kind().size());
    assert_eq!(text.parse(), Ok(*handle));
    let explanation = handle.explain(Some(1));
    assert_eq!(explanation.kind, handle.kind().to_string());
    match (&explanation.memory, handle.kind()) {
        (None, HandleKind::Event) => assert!(matches!(handle.as_bytes()[7], 0 | 2)),
        (Some(range), HandleKind::Memory | HandleKind::PhysicalMemory | HandleKind::Channel) => {
            assert_ne!(range.length, 0);
            assert!(range.offset.checked_add(range.length).is_some());
        }
        (memory, kind) => panic!("{kind} with {memory:?}"),
    }
    assert_ne!(explanation.context, 0);
    let kind = match handle.kind() {
        HandleKind::Channel => HandleKind::Memory,
        kind => kind,
    };
    assert_eq!(explanation.generation & 3, kind as u64);
    assert!(explanation.to_string().lines().count() > explanation.opening.len());
    assert!(format!("{handle:?}").contains("Key(..)"));
}
