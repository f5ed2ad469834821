//! Tests of the byte form.

use std::collections::HashSet;

use super::*;

/// Computes CRC-32C bit by bit, for comparison with the fast implementation.
fn slow_crc32c(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (POLYNOMIAL & 0u32.wrapping_sub(crc & 1))
        })
    })
}

/// Pins the layout, because handles must keep their meaning from release to release.
#[test]
fn the_layout_is_version_2() {
    assert_eq!(
        slow_crc32c(b"123456789"),
        0xe306_9283,
        "the check value of CRC-32C"
    );
    let mut expected = Vec::new();
    expected.extend(b"XHDL\x02\x01\x02\x01");
    expected.extend(b"\x08\x07\x06\x05\x04\x03\x02\x01");
    expected.extend(b"\x18\x17\x16\x15\x14\x13\x12\x11");
    expected.extend(b"\x24\x23\x22\x21\x34\x33\x32\x31");
    expected.extend(b"0123456789abcdefABCDEFGHIJKLMNOP");
    expected.extend(b"\x49\x47\x46\x45\x44\x43\x42\x41");
    expected.extend(b"\x54\x53\x52\x51\x64\x63\x62\x61");
    expected.extend(b"\x74\x73\x72\x71\0\0\0\0");
    expected.extend(b"\xc4\x43\xc3\x42\xc2\x41\xc1\x40\0\0\0\0");
    expected.extend(slow_crc32c(&expected).to_le_bytes());
    assert_eq!(sample(HandleKind::Memory).as_bytes()[..], expected);
    assert_eq!(
        sample(HandleKind::PhysicalMemory).as_bytes()[5..8],
        [2, 2, 1]
    );
    assert_eq!(sample(HandleKind::Event).as_bytes()[5..8], [3, 2, 0]);
    for (backend, code) in [
        (BackendKind::Host, 1),
        (BackendKind::Cuda, 2),
        (BackendKind::LevelZero, 3),
    ] {
        let fields = Fields {
            backend,
            ..sample_fields(HandleKind::Event)
        };
        assert_eq!(EventHandle::new(&fields).as_bytes()[6], code);
    }
}

proptest! {
    #[test]
    fn bytes_round_trip((kind, fields) in any_handle()) {
        let handle = make(kind, &fields);
        prop_assert_eq!(handle.kind(), kind);
        prop_assert_eq!(handle.fields(), fields);
        prop_assert_eq!(AnyHandle::from_bytes(handle.as_bytes()), Ok(handle));
        for wanted in KINDS {
            let expected = if wanted == kind {
                Ok(*handle.as_bytes())
            } else {
                Err(HandleError::WrongKind { expected: wanted, found: kind })
            };
            prop_assert_eq!(parse(wanted, handle.as_bytes()), expected);
        }
    }

    #[test]
    fn every_flipped_bit_is_refused((kind, fields) in any_handle()) {
        let good = *make(kind, &fields).as_bytes();
        for bit in 0..HANDLE_SIZE * 8 {
            let mut bytes = good;
            bytes[bit / 8] ^= 1 << (bit % 8);
            let expected = match bit / 8 {
                0..4 => HandleError::NotAHandle,
                4 => HandleError::UnsupportedVersion { found: bytes[4], supported: VERSION },
                _ => HandleError::Corrupt,
            };
            prop_assert_eq!(AnyHandle::from_bytes(&bytes), Err(expected.clone()), "bit {}", bit);
            for wanted in KINDS {
                prop_assert_eq!(parse(wanted, &bytes), Err(expected.clone()), "bit {}", bit);
            }
        }
    }

    /// Accepts only bytes that an exporter would have written. No bit is ignored.
    #[test]
    fn every_accepted_value_is_canonical(
        (kind, fields) in any_handle(),
        changes in proptest::collection::vec((0..HANDLE_SIZE, any::<u8>()), 1..4),
    ) {
        let mut bytes = *make(kind, &fields).as_bytes();
        for (at, value) in changes {
            bytes[at] = value;
        }
        retag(&mut bytes);
        if let Ok(handle) = AnyHandle::from_bytes(&bytes) {
            let again = make(handle.kind(), &handle.fields());
            prop_assert_eq!(again.as_bytes(), &bytes);
        }
    }
}

#[test]
fn every_other_size_is_refused() {
    for kind in KINDS {
        let mut longer = sample(kind).as_bytes().to_vec();
        longer.extend_from_slice(sample(kind).as_bytes());
        for size in (0..=longer.len()).filter(|size| *size != HANDLE_SIZE) {
            let expected = HandleError::WrongSize {
                expected: HANDLE_SIZE,
                found: size,
            };
            assert_eq!(parse(kind, &longer[..size]), Err(expected.clone()));
            assert_eq!(AnyHandle::from_bytes(&longer[..size]), Err(expected));
        }
    }
}

/// Returns the error for a sample handle after `bytes` were written at `at` and the tag was fixed.
fn error_after(kind: HandleKind, at: usize, bytes: &[u8]) -> HandleError {
    let mut changed = *sample(kind).as_bytes();
    changed[at..at + bytes.len()].copy_from_slice(bytes);
    retag(&mut changed);
    let error = AnyHandle::from_bytes(&changed).unwrap_err();
    assert_eq!(parse(kind, &changed), Err(error.clone()));
    error
}

fn malformed_field_after(kind: HandleKind, at: usize, bytes: &[u8]) -> &'static str {
    match error_after(kind, at, bytes) {
        HandleError::Malformed { field, .. } => field,
        other => panic!("{kind} with {bytes:?} at {at}: {other}"),
    }
}

#[test]
fn each_rule_has_its_own_error() {
    for kind in KINDS {
        assert_eq!(error_after(kind, 0, b"XHDM"), HandleError::NotAHandle);
        for found in [0, 1, 3] {
            assert_eq!(
                error_after(kind, 4, &[found]),
                HandleError::UnsupportedVersion {
                    found,
                    supported: 2
                }
            );
        }
        assert_eq!(malformed_field_after(kind, 5, &[0]), "kind");
        assert_eq!(malformed_field_after(kind, 5, &[4]), "kind");
        assert_eq!(malformed_field_after(kind, 6, &[0]), "backend");
        assert_eq!(malformed_field_after(kind, 6, &[4]), "backend");
        for bit in 1..8 {
            assert_eq!(malformed_field_after(kind, 7, &[1 << bit]), "flags");
        }
        assert_eq!(malformed_field_after(kind, 8, &[0; 8]), "host");
        assert_eq!(malformed_field_after(kind, 16, &[0; 8]), "exporter");
        assert_eq!(malformed_field_after(kind, 28, &[0; 4]), "context");
        assert_eq!(malformed_field_after(kind, 32, &[0; 16]), "key");
        // The kind is in the lowest two bits, and the count above them is not zero.
        for low in (0..4).filter(|low| *low != kind as u8) {
            assert_eq!(malformed_field_after(kind, 64, &[low]), "generation");
        }
        let unused = (kind as u64).to_le_bytes();
        assert_eq!(malformed_field_after(kind, 64, &unused), "generation");
        for byte in 96..100 {
            assert_eq!(malformed_field_after(kind, byte, &[1]), "reserved");
        }
    }
}

#[test]
fn an_event_has_an_arena_and_no_memory() {
    let event = HandleKind::Event;
    assert_eq!(malformed_field_after(event, 7, &[1]), "flags");
    assert_eq!(malformed_field_after(event, 80, &[1]), "offset");
    assert_eq!(malformed_field_after(event, 88, &[1]), "length");
    for segment in [2_u32, 3, 1 << 8, 1 << 31, u32::MAX] {
        let bytes = segment.to_le_bytes();
        assert_eq!(malformed_field_after(event, 76, &bytes), "segment");
    }
    for segment in [0, 1] {
        let fields = Fields {
            segment,
            ..sample_fields(event)
        };
        assert_eq!(make(event, &fields).fields().segment, segment);
    }
}

#[test]
fn shared_bytes_end_somewhere() {
    const LARGEST: u64 = u64::MAX;
    for kind in [HandleKind::Memory, HandleKind::PhysicalMemory] {
        assert_eq!(malformed_field_after(kind, 88, &[0; 8]), "length");
        let extent = |[offset, length]: [u64; 2]| [offset.to_le_bytes(), length.to_le_bytes()];
        for beyond in [[1, LARGEST], [LARGEST, 1], [LARGEST, LARGEST]] {
            let bytes = extent(beyond).concat();
            assert_eq!(malformed_field_after(kind, 80, &bytes), "length");
        }
        for inside in [[0, LARGEST], [LARGEST - 1, 1]] {
            let mut bytes = *sample(kind).as_bytes();
            bytes[80..96].copy_from_slice(&extent(inside).concat());
            retag(&mut bytes);
            assert!(AnyHandle::from_bytes(&bytes).is_ok(), "{inside:?}");
        }
    }
}

#[test]
fn the_kind_is_judged_before_the_other_fields() {
    let mut bytes = *sample(HandleKind::Event).as_bytes();
    bytes[6] = 77;
    retag(&mut bytes);
    let expected = HandleError::WrongKind {
        expected: HandleKind::Memory,
        found: HandleKind::Event,
    };
    assert_eq!(MemoryHandle::from_bytes(&bytes), Err(expected));
}

#[test]
fn handles_are_plain_values() {
    fn is_shareable<T: Send + Sync + Copy + 'static>() {}
    is_shareable::<AnyHandle>();
    is_shareable::<MemoryHandle>();
    is_shareable::<PhysicalMemoryHandle>();
    is_shareable::<EventHandle>();
    is_shareable::<Fields>();

    assert_eq!(size_of::<MemoryHandle>(), HANDLE_SIZE);
    assert_eq!(align_of::<MemoryHandle>(), 1);
    let all: HashSet<AnyHandle> = KINDS.into_iter().chain(KINDS).map(sample).collect();
    assert_eq!(
        all.len(),
        KINDS.len(),
        "equal handles hash alike, different ones differ"
    );

    let handle = MemoryHandle::new(&sample_fields(HandleKind::Memory));
    assert_eq!(handle.backend(), BackendKind::Cuda);
    assert_eq!(handle.device().as_bytes(), b"ABCDEFGHIJKLMNOP");
    assert_eq!(handle.exporter_pid(), 0x2122_2324);
    assert_eq!(handle.len(), 0x40c1_41c2_42c3_43c4);
    assert!(handle.is_read_only());
    assert_eq!(MemoryHandle::try_from(handle.as_ref()), Ok(handle));
}
