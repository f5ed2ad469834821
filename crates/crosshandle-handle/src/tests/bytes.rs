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
fn the_layouts_are_version_3() {
    assert_eq!(
        slow_crc32c(b"123456789"),
        0xe306_9283,
        "the check value of CRC-32C"
    );
    let head = |start: &[u8], generation: u8| {
        let mut head = start.to_vec();
        head.extend(b"\x08\x07\x06\x05\x04\x03\x02\x01");
        head.extend(b"\x18\x17\x16\x15\x14\x13\x12\x11");
        head.extend(b"\x24\x23\x22\x21\x34\x33\x32\x31");
        head.extend(b"0123456789abcdef");
        head.extend([generation, 0x47, 0x46, 0x45, 0x44, 0x43, 0x42, 0x41]);
        head.extend(b"\x54\x53\x52\x51");
        head
    };
    let tagged = |mut bytes: Vec<u8>| {
        bytes.extend(slow_crc32c(&bytes).to_le_bytes());
        bytes
    };
    for (kind, start, generation) in [
        (HandleKind::Memory, b"XHDL\x03\x01\x02\x01", 0x49),
        (HandleKind::PhysicalMemory, b"XHDL\x03\x02\x02\x01", 0x4a),
        (HandleKind::Channel, b"XHDL\x03\x04\x02\x01", 0x49),
    ] {
        let mut expected = head(start, generation);
        expected.extend(b"\x64\x63\x62\x61ABCDEFGHIJKLMNOP");
        expected.extend(b"\x74\x73\x72\x71\0\0\0\0");
        expected.extend(b"\xc4\x43\xc3\x42\xc2\x41\xc1\x40\0\0\0\0");
        assert_eq!(sample(kind).as_bytes(), tagged(expected), "{kind}");
        assert_eq!(sample(kind).as_bytes().len(), 104);
    }
    let expected = head(b"XHDL\x03\x03\x02\x02", 0x4b);
    assert_eq!(sample(HandleKind::Event).as_bytes(), tagged(expected));
    assert_eq!(sample(HandleKind::Event).as_bytes().len(), 64);
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
                Ok(handle.as_bytes().to_vec())
            } else {
                Err(HandleError::WrongKind { expected: wanted, found: kind })
            };
            prop_assert_eq!(parse(wanted, handle.as_bytes()), expected);
        }
    }

    #[test]
    fn every_flipped_bit_is_refused((kind, fields) in any_handle()) {
        let good = make(kind, &fields).as_bytes().to_vec();
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
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
        changes in proptest::collection::vec((0..MEMORY_HANDLE_SIZE, any::<u8>()), 1..4),
    ) {
        let mut bytes = make(kind, &fields).as_bytes().to_vec();
        for (at, value) in changes {
            let at = at % bytes.len();
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
        let good = sample(kind).as_bytes().to_vec();
        let longer = [&good[..], &good[..], &good[..]].concat();
        for size in (0..=longer.len()).filter(|size| *size != good.len()) {
            let expected = match size {
                0..4 => HandleError::NotAHandle,
                // The size of another kind. The last bytes are not the tag then.
                EVENT_HANDLE_SIZE | MEMORY_HANDLE_SIZE => HandleError::Corrupt,
                _ => HandleError::WrongSize {
                    expected: good.len(),
                    found: size,
                },
            };
            assert_eq!(parse(kind, &longer[..size]), Err(expected.clone()));
            let any = AnyHandle::from_bytes(&longer[..size]);
            match size {
                // The kind is not among these bytes.
                4 | 5 => assert_eq!(
                    any,
                    Err(HandleError::WrongSize {
                        expected: 104,
                        found: size
                    })
                ),
                _ => assert_eq!(any, Err(expected)),
            }
        }
    }
}

/// A forger can give the bytes of one kind the number of another kind with another size.
#[test]
fn a_kind_of_another_size_is_refused() {
    for (kind, claimed) in [
        (HandleKind::Memory, HandleKind::Event),
        (HandleKind::Event, HandleKind::Memory),
        (HandleKind::Event, HandleKind::PhysicalMemory),
        (HandleKind::Event, HandleKind::Channel),
    ] {
        let expected = HandleError::WrongSize {
            expected: claimed.size(),
            found: kind.size(),
        };
        let mut forged = sample(kind).as_bytes().to_vec();
        forged[5] = claimed as u8;
        retag(&mut forged);
        assert_eq!(AnyHandle::from_bytes(&forged), Err(expected.clone()));
        for wanted in KINDS {
            assert_eq!(parse(wanted, &forged), Err(expected.clone()), "{wanted}");
        }
    }
}

/// Bytes and texts that a program with version 2 of the format made. Every kind had 104 bytes then.
#[test]
fn a_handle_of_version_2_is_named_as_such() {
    let expected = HandleError::UnsupportedVersion {
        found: 2,
        supported: 3,
    };
    const TEXTS: [(HandleKind, &str); 3] = [
        (HandleKind::Memory, OLD_MEMORY),
        (HandleKind::PhysicalMemory, OLD_PHYSICAL_MEMORY),
        (HandleKind::Event, OLD_EVENT),
    ];
    for (kind, text) in TEXTS {
        let bytes = data_encoding::BASE64URL_NOPAD.decode(&text.as_bytes()[5..]);
        let bytes = bytes.expect("it is base64");
        assert_eq!((bytes.len(), bytes[4]), (104, 2));
        assert_eq!(parse(kind, &bytes), Err(expected.clone()));
        assert_eq!(read(kind, text), Err(expected.clone()));
        assert_eq!(AnyHandle::from_bytes(&bytes), Err(expected.clone()));
        assert_eq!(text.parse::<AnyHandle>(), Err(expected.clone()));
    }
    let text = expected.to_string();
    for part in ["version 2", "version 3", "the same release on both sides"] {
        assert!(text.contains(part), "{text}");
    }
}

const OLD_MEMORY: &str = "xhm2.WEhETAIBAgEIBwYFBAMCARgXFhUUExIRJCMiITQzMjEwMTIzNDU2Nzg5YWJjZGVmQUJDREVGR0hJSktMTU5PUElHRkVEQ0JBVFNSUWRjYmF0c3JxAAAAAMRDw0LCQcFAAAAAAPiLNYc";
const OLD_PHYSICAL_MEMORY: &str = "xhp2.WEhETAICAgEIBwYFBAMCARgXFhUUExIRJCMiITQzMjEwMTIzNDU2Nzg5YWJjZGVmQUJDREVGR0hJSktMTU5PUEpHRkVEQ0JBVFNSUWRjYmF0c3JxAAAAAMRDw0LCQcFAAAAAAAViVc8";
const OLD_EVENT: &str = "xhe2.WEhETAIDAgAIBwYFBAMCARgXFhUUExIRJCMiITQzMjEwMTIzNDU2Nzg5YWJjZGVmQUJDREVGR0hJSktMTU5PUEtHRkVEQ0JBVFNSUQEAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAE5XqYw";

/// Returns the error for a sample handle after `bytes` were written at `at` and the tag was fixed.
fn error_after(kind: HandleKind, at: usize, bytes: &[u8]) -> HandleError {
    let mut changed = sample(kind).as_bytes().to_vec();
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
        for found in [0, 1, 2, 4] {
            assert_eq!(
                error_after(kind, 4, &[found]),
                HandleError::UnsupportedVersion {
                    found,
                    supported: 3
                }
            );
        }
        assert_eq!(malformed_field_after(kind, 5, &[0]), "kind");
        assert_eq!(malformed_field_after(kind, 5, &[5]), "kind");
        assert_eq!(malformed_field_after(kind, 6, &[0]), "backend");
        assert_eq!(malformed_field_after(kind, 6, &[4]), "backend");
        let flag = u8::from(kind == HandleKind::Event);
        for bit in (0..8).filter(|bit| *bit != flag) {
            assert_eq!(malformed_field_after(kind, 7, &[1 << bit]), "flags");
        }
        assert_eq!(malformed_field_after(kind, 8, &[0; 8]), "host");
        assert_eq!(malformed_field_after(kind, 16, &[0; 8]), "exporter");
        assert_eq!(malformed_field_after(kind, 28, &[0; 4]), "context");
        assert_eq!(malformed_field_after(kind, 32, &[0; 16]), "key");
        // The kind is in the lowest two bits, and the count above them is not zero.
        for low in (0..4).filter(|low| *low != kind.of_record() as u8) {
            assert_eq!(malformed_field_after(kind, 48, &[low]), "generation");
        }
        let unused = (kind.of_record() as u64).to_le_bytes();
        assert_eq!(malformed_field_after(kind, 48, &unused), "generation");
    }
    for kind in MEMORY_KINDS {
        for byte in 96..100 {
            assert_eq!(malformed_field_after(kind, byte, &[1]), "reserved");
        }
    }
}

#[test]
fn a_channel_is_memory_of_another_kind() {
    for read_only in [false, true] {
        let fields = Fields {
            read_only,
            ..sample_fields(HandleKind::Memory)
        };
        let memory = MemoryHandle::new(&fields);
        let channel = ChannelHandle::of_memory(&memory);
        assert_eq!(channel.memory(), memory);
        assert_eq!(channel.is_consumers(), read_only);
        assert_eq!(AnyHandle::from(channel).kind(), HandleKind::Channel);
    }
    let channel = ChannelHandle::of_memory(&MemoryHandle::new(&sample_fields(HandleKind::Memory)));
    assert_eq!(AnyHandle::from(channel), sample(HandleKind::Channel));
}

#[test]
fn shared_bytes_end_somewhere() {
    const LARGEST: u64 = u64::MAX;
    for kind in MEMORY_KINDS {
        assert_eq!(malformed_field_after(kind, 88, &[0; 8]), "length");
        let extent = |[offset, length]: [u64; 2]| [offset.to_le_bytes(), length.to_le_bytes()];
        for beyond in [[1, LARGEST], [LARGEST, 1], [LARGEST, LARGEST]] {
            let bytes = extent(beyond).concat();
            assert_eq!(malformed_field_after(kind, 80, &bytes), "length");
        }
        for inside in [[0, LARGEST], [LARGEST - 1, 1]] {
            let mut bytes = sample(kind).as_bytes().to_vec();
            bytes[80..96].copy_from_slice(&extent(inside).concat());
            retag(&mut bytes);
            assert!(AnyHandle::from_bytes(&bytes).is_ok(), "{inside:?}");
        }
    }
}

#[test]
fn the_kind_is_judged_before_the_other_fields() {
    let mut bytes = sample(HandleKind::Event).as_bytes().to_vec();
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
    is_shareable::<ChannelHandle>();
    is_shareable::<Fields>();

    assert_eq!(size_of::<MemoryHandle>(), MEMORY_HANDLE_SIZE);
    assert_eq!(size_of::<EventHandle>(), EVENT_HANDLE_SIZE);
    assert_eq!(align_of::<MemoryHandle>(), 1);
    assert_eq!(align_of::<EventHandle>(), 1);
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
