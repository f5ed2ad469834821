//! Tests of the bytes of bundles.

use super::*;
use crate::tests::{any_fields, sample};
use crate::{AnyHandle, HandleKind, MEMORY_HANDLE_SIZE};
use proptest::prelude::*;

fn memory() -> MemoryHandle {
    match sample(HandleKind::Memory) {
        AnyHandle::Memory(handle) => handle,
        _ => unreachable!("asked for"),
    }
}

fn event() -> EventHandle {
    match sample(HandleKind::Event) {
        AnyHandle::Event(handle) => handle,
        _ => unreachable!("asked for"),
    }
}

fn layout(offset: u64, dimensions: &[(u64, i64)]) -> Layout {
    let dimension = |(size, stride): &(u64, i64)| Dimension {
        size: *size,
        stride: *stride,
    };
    Layout {
        element: ElementType::Numbered { code: 2, bits: 32 },
        offset,
        dimensions: dimensions.iter().map(dimension).collect(),
    }
}

/// Elements that share one place pass the check of the range, but are limited in their total bytes.
#[test]
fn arrays_of_repeated_elements_are_bounded() {
    let most = (1 << 61) - 1;
    assert_eq!(layout(0, &[(most, 0)]).check(4), Ok(()));
    for dimensions in [&[(most + 1, 0)][..], &[(1 << 32, 0), (1 << 29, 0)]] {
        assert!(layout(0, dimensions).check(4).is_err(), "{dimensions:?}");
    }
}

/// Returns the layout of an array of dates, which have no number in DLPack.
fn dates() -> Layout {
    Layout {
        element: ElementType::Described {
            bytes: 8,
            text: "<M8[ns]".into(),
        },
        ..layout(16, &[(4, 8)])
    }
}

fn bundle() -> Bundle {
    let array = |offset, dimensions: &[_]| BundledArray {
        handle: memory(),
        read_only: offset != 0,
        layout: layout(offset, dimensions),
        ready: (0..2).filter(|index| offset != 0 || *index == 0).collect(),
    };
    let signal = |value| ReadyEvent {
        handle: event(),
        value,
        is_complete: value == 9,
    };
    Bundle {
        structure: "{\"d\":{\"weight\":null,\"bias\":null}}".into(),
        arrays: vec![
            array(0, &[(3, 16), (4, 4)]),
            array(64, &[]),
            BundledArray {
                layout: dates(),
                ..array(0, &[])
            },
        ],
        signals: vec![signal(7), signal(9)],
    }
}

/// Fixes the checksum after a change, so that only the change itself can be rejected.
fn resummed(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.len() - 4;
    let sum = crc32c::crc32c(&bytes[..end]);
    bytes[end..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn whole(bytes: &[u8]) -> Bundle {
    match Bundle::decode(bytes) {
        Ok(Unpacked::Whole(bundle)) => bundle,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_bundle_is_read_as_it_was_written() {
    let mut without = bundle();
    without.signals.clear();
    without
        .arrays
        .iter_mut()
        .for_each(|array| array.ready.clear());
    for bundle in [bundle(), without] {
        assert_eq!(whole(&bundle.encode().unwrap()), bundle);
    }
    let empty = Bundle::default();
    let bytes = empty.encode().unwrap();
    assert_eq!((bytes.len(), whole(&bytes)), (24, empty));
}

#[test]
fn the_bytes_stay_as_they_are_described() {
    let bytes = bundle().encode().unwrap();
    assert_eq!(&bytes[..4], b"xhb4");
    assert_eq!(bytes[4..12], [0, 0, 0, 0, 3, 0, 0, 0]);
    assert_eq!(bytes[12..20], [2, 0, 0, 0, 33, 0, 0, 0]);
    let signals = 20 + 33;
    assert_eq!(bytes[signals..signals + 8], 7_u64.to_le_bytes());
    assert_eq!(bytes[signals + 8..signals + 72], *event().as_bytes());
    assert_eq!((bytes[signals + 72], bytes[signals + 145]), (0, 1));
    let first = signals + 2 * 73;
    assert_eq!(bytes[first..first + 104], *memory().as_bytes());
    assert_eq!(bytes[first + 104..first + 108], [2, 32, 0, 2]);
    assert_eq!(bytes[first + 116..first + 120], [1, 0, 0, 0]);
    let second = first + 120 + 32 + 4;
    assert_eq!(
        bytes[second + 116..second + 128],
        [2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]
    );
    let dates = second + 128;
    assert_eq!(bytes[dates + 104..dates + 108], [255, 0, 0, 1]);
    let description = dates + 120 + 16;
    assert_eq!(
        bytes[description..description + 8],
        [8, 0, 0, 0, 7, 0, 0, 0]
    );
    assert_eq!(&bytes[description + 8..][..7], b"<M8[ns]");
    assert_eq!(bytes.len(), description + 8 + 7 + 4 + 4);
}

#[test]
fn every_prefix_and_every_flipped_bit_is_refused() {
    let bytes = bundle().encode().unwrap();
    for end in 0..bytes.len() {
        assert!(Bundle::decode(&bytes[..end]).is_err(), "{end} bytes");
        if end == bytes.len() - 4 {
            continue;
        }
        let cut = resummed([&bytes[..end], &[0; 4]].concat());
        let short = Bundle::decode(&cut);
        assert!(short.is_err(), "{end} bytes with a sum: {short:?}");
    }
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(Bundle::decode(&damaged).is_err(), "bit {bit}");
    }
    let longer = resummed([&bytes[..bytes.len() - 4], &[0; 5]].concat());
    assert!(matches!(
        Bundle::decode(&longer),
        Err(BundleError::Malformed { part: "end", .. })
    ));
}

#[test]
fn each_fault_has_its_error() {
    let bytes = bundle().encode().unwrap();
    let with = |at: usize, value: &[u8]| {
        let mut bytes = bytes.clone();
        bytes[at..at + value.len()].copy_from_slice(value);
        Bundle::decode(&resummed(bytes)).unwrap_err()
    };
    assert_eq!(with(0, b"y"), BundleError::NotABundle);
    let version = with(3, b"1");
    assert!(matches!(
        version,
        BundleError::UnsupportedVersion { found: '1', .. }
    ));
    assert!(version.to_string().contains("version 1"), "{version}");
    let flags = with(4, &[8]);
    assert!(matches!(
        flags,
        BundleError::Malformed { part: "flags", .. }
    ));
    let arrays = with(8, &u32::MAX.to_le_bytes());
    assert!(matches!(
        arrays,
        BundleError::TooLarge { what: "arrays", .. }
    ));
    for at in [12, 16] {
        let many = with(at, &u32::MAX.to_le_bytes());
        assert!(matches!(many, BundleError::TooLarge { .. }));
    }
    // These counts are allowed, but the bytes are too few for them.
    for (at, most) in [(8, MAX_ARRAYS), (12, MAX_SIGNALS), (16, 1 << 20)] {
        let short = with(at, &(most as u32).to_le_bytes());
        assert_eq!(short, BundleError::TooShort);
    }
    let signals = 20 + 33;
    assert!(matches!(
        with(signals + 20, &[0xff]),
        BundleError::Handle(_)
    ));
    let state = with(signals + 72, &[2]);
    assert!(matches!(
        state,
        BundleError::Malformed { part: "signal", .. }
    ));
    let text = with(20, &[0xff]);
    assert!(matches!(
        text,
        BundleError::Malformed {
            part: "structure",
            ..
        }
    ));
    let first = signals + 2 * 73;
    assert!(matches!(with(first, &[0]), BundleError::Handle(_)));
    let bits = with(first + 105, &[0]);
    assert!(matches!(
        bits,
        BundleError::Malformed { part: "layout", .. }
    ));
    let access = with(first + 106, &[2]);
    assert!(matches!(
        access,
        BundleError::Malformed { part: "array", .. }
    ));
    let dimensions = with(first + 107, &[33]);
    assert!(matches!(dimensions, BundleError::TooLarge { .. }));
    // An unknown signal, an unknown signal of the second array, and one signal twice.
    let second = first + 120 + 32 + 4;
    for (at, index) in [(first + 152, 2), (second + 124, 2), (second + 124, 0)] {
        let unknown = with(at, &[index]);
        assert!(matches!(
            unknown,
            BundleError::Malformed { part: "array", .. }
        ));
    }
    assert_eq!(with(second + 116, &[0xff; 4]), BundleError::TooShort);
    let described = second + 128 + 120 + 16;
    let no_bytes = with(described, &[0]);
    assert!(matches!(
        no_bytes,
        BundleError::Malformed { part: "layout", .. }
    ));
    let long = with(described + 4, &u32::MAX.to_le_bytes());
    assert!(matches!(long, BundleError::TooLarge { .. }));
    let no_text = with(described + 8, &[0xff]);
    assert!(matches!(
        no_text,
        BundleError::Malformed {
            part: "description of elements",
            ..
        }
    ));
    let unchanged = Bundle::decode(&{
        let mut bytes = bytes.clone();
        bytes[200] ^= 1;
        bytes
    });
    assert_eq!(unchanged, Err(BundleError::Damaged));
}

#[test]
fn elements_outside_of_their_memory_are_refused() {
    let outside = [
        (layout(97, &[]), 100),
        (layout(0, &[(26, 4)]), 100),
        (layout(0, &[(2, -4)]), 100),
        (layout(8, &[(4, -4)]), 100),
        (layout(u64::MAX, &[(u64::MAX, i64::MAX)]), u64::MAX),
        (layout(0, &[(u64::MAX, i64::MIN)]), u64::MAX),
        (layout(0, &[(1 << 32, 0), (1 << 32, 0)]), 100),
        (layout(101, &[(0, 4)]), 100),
        (layout(0, &[(1, 0); 33]), 100),
    ];
    for (layout, len) in outside {
        assert!(layout.check(len).is_err(), "{layout:?} in {len}");
    }
    let inside = [
        (layout(96, &[]), 100),
        (layout(0, &[(25, 4)]), 100),
        (layout(4, &[(2, -4)]), 8),
        (layout(12, &[(4, -4)]), 16),
        // An array without elements fits, whatever its other sizes are.
        (layout(100, &[(0, 4), (u64::MAX, 1)]), 100),
        (layout(0, &[(1 << 40, 0)]), 4),
        (layout(0, &[(1, 0); 32]), 100),
    ];
    for (layout, len) in inside {
        assert_eq!(layout.check(len), Ok(()), "{layout:?} in {len}");
    }
    let mut bundle = bundle();
    bundle.arrays[0].layout = layout(memory().len(), &[(1, 1)]);
    assert!(bundle.encode().is_err(), "nobody could open it");
}

#[test]
fn a_table_elsewhere_is_the_one_that_was_meant() {
    let bundle = bundle();
    let table = bundle.encode_table().unwrap();
    let bytes = bundle.encode_head(&memory(), &table).unwrap();
    assert_eq!(bytes.len(), 20 + 104 + 12 + 4);
    let head = || match Bundle::decode(&bytes) {
        Ok(Unpacked::Head(head)) => head,
        other => panic!("{other:?}"),
    };
    assert_eq!((head().table(), head().len()), (&memory(), table.len()));
    assert_eq!(head().finish(&table), Ok(bundle.clone()));
    let mut other = table.clone();
    other[0] ^= 1;
    assert_eq!(head().finish(&other), Err(BundleError::Damaged));
    let short = head().finish(&table[1..]);
    assert_eq!(short, Err(BundleError::TooShort));
    for end in 0..bytes.len() {
        assert!(Bundle::decode(&bytes[..end]).is_err(), "{end} bytes");
    }
    let len_at = bytes.len() - 16;
    for (len, why) in [
        (u64::MAX, "longer than any"),
        (MAX_TABLE as u64 + 1, "longer than any"),
        (10, "too short for its arrays"),
    ] {
        let mut bytes = bytes.clone();
        bytes[len_at..len_at + 8].copy_from_slice(&len.to_le_bytes());
        assert!(Bundle::decode(&resummed(bytes)).is_err(), "{why}");
    }
}

proptest! {
    #[test]
    fn any_bundle_is_read_as_it_was_written(
        structure in ".{0,40}",
        fields in proptest::collection::vec(any_fields(HandleKind::Memory), 0..5),
        signals in proptest::collection::vec((any_fields(HandleKind::Event), any::<u64>()), 0..4),
        dimensions in proptest::collection::vec((0..9_u64, -9..9_i64), 0..4),
        description in proptest::option::of((1..40_u32, ".{0,20}")),
    ) {
        let element = description.map_or(ElementType::Numbered { code: 2, bits: 32 }, |(bytes, text)| {
            ElementType::Described { bytes, text }
        });
        let arrays = fields.iter().map(|fields| BundledArray {
            handle: MemoryHandle::new(fields),
            read_only: fields.read_only,
            layout: Layout {
                element: element.clone(),
                ..layout(fields.length / 2, &dimensions)
            },
            ready: (fields.read_only as u32..signals.len() as u32).collect(),
        });
        let arrays: Vec<_> = arrays
            .filter(|array| array.layout.check(array.handle.len()).is_ok())
            .collect();
        let signals = signals.iter().map(|(fields, value)| ReadyEvent {
            handle: EventHandle::new(fields),
            value: *value,
            is_complete: value % 2 == 0,
        });
        let bundle = Bundle { structure, arrays, signals: signals.collect() };
        let bytes = bundle.encode().unwrap();
        prop_assert_eq!(&whole(&bytes), &bundle);
        let table = bundle.encode_table().unwrap();
        prop_assert_eq!(&bytes[bytes.len() - 4 - table.len()..bytes.len() - 4], &table[..]);
    }

    #[test]
    fn any_bytes_are_read_or_refused(mut bytes: Vec<u8>, starts: bool, flags in 0..4_u8) {
        if starts {
            let start = [b'x', b'h', b'b', b'4', flags, 0, 0, 0];
            bytes.splice(..0, start);
            bytes.extend([0; MEMORY_HANDLE_SIZE]);
        }
        let bytes = if bytes.len() < 4 { bytes } else { resummed(bytes) };
        if let Ok(Unpacked::Whole(bundle)) = Bundle::decode(&bytes) {
            prop_assert_eq!(bundle.encode().unwrap(), bytes);
        }
    }
}
