//! Checks that several fuzz targets for handles use, and access to internals of the library.

mod exchange;

pub use exchange::*;

use crosshandle::handle::{
    AnyHandle, EventHandle, HANDLE_SIZE, HandleError, HandleKind, MemoryHandle,
    PhysicalMemoryHandle, TEXT_LENGTH,
};

/// Returns the bytes with a valid tag, or `None` if they do not have the size of a handle. A fuzzer
/// cannot find a CRC by itself, and without a valid tag it would never reach the later checks.
pub fn retagged(bytes: &[u8]) -> Option<[u8; HANDLE_SIZE]> {
    let mut bytes: [u8; HANDLE_SIZE] = bytes.try_into().ok()?;
    let (contents, tag) = bytes.split_at_mut(HANDLE_SIZE - 4);
    tag.copy_from_slice(&crc32c::crc32c(contents).to_le_bytes());
    Some(bytes)
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
        (any, one) => assert_eq!(*any, one),
    }
}

/// Checks the rules for every value of a handle type.
fn check_accepted(handle: &AnyHandle) {
    assert_eq!(AnyHandle::from_bytes(handle.as_bytes()), Ok(*handle));
    let text = handle.to_string();
    assert_eq!(text.len(), TEXT_LENGTH);
    assert_eq!(text.parse(), Ok(*handle));
    let explanation = handle.explain(Some(1));
    assert_eq!(explanation.kind, handle.kind().to_string());
    match (&explanation.memory, handle.kind()) {
        (None, HandleKind::Event) => assert!(matches!(handle.as_bytes()[76..80], [0 | 1, 0, 0, 0])),
        (Some(range), HandleKind::Memory | HandleKind::PhysicalMemory) => {
            assert_ne!(range.length, 0);
            assert!(range.offset.checked_add(range.length).is_some());
        }
        (memory, kind) => panic!("{kind} with {memory:?}"),
    }
    assert_ne!(explanation.context, 0);
    assert_eq!(explanation.generation & 3, handle.kind() as u64);
    assert!(explanation.to_string().lines().count() > explanation.opening.len());
    assert!(format!("{handle:?}").contains("Key(..)"));
}
