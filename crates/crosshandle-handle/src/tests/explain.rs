//! Tests that explanations and debug output are complete and do not show the key.

use super::*;

/// Checks that no form of the sample's key is in `output`.
fn assert_no_key(output: &str) {
    let key = sample_fields(HandleKind::Memory).key;
    let plain = String::from_utf8(key.as_bytes().to_vec()).unwrap();
    let hex: String = key
        .as_bytes()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let list = format!("{:?}", key.as_bytes());
    for leak in [&plain, &hex, list.trim_matches(['[', ']'])] {
        assert!(!output.to_lowercase().contains(leak), "{leak} in {output}");
    }
}

#[test]
fn debug_and_explanations_hide_the_key() {
    for kind in KINDS {
        let handle = sample(kind);
        let debug = format!("{handle:?} {handle:#?} {:?}", handle.fields());
        assert!(debug.contains("Key(..)"), "{debug}");
        assert_no_key(&debug);
        let explanation = handle.explain(None);
        assert_no_key(&format!("{explanation} {explanation:?}"));
    }
}

#[test]
fn memory_is_explained() {
    let fields = Fields {
        backend: BackendKind::Host,
        pid: 4242,
        context: 3,
        segment: 2,
        record: 7,
        generation: 13,
        offset: 8192,
        length: 4096,
        ..sample_fields(HandleKind::Memory)
    };
    let explanation = make(HandleKind::Memory, &fields).explain(Some(fields.host));
    assert_eq!(explanation.same_host, Some(true));
    assert_eq!(explanation.exporter_pid, 4242);
    let range = explanation.memory.unwrap();
    assert_eq!((range.segment, range.offset, range.length), (2, 8192, 4096));
    assert!(range.read_only);
    assert_eq!((explanation.context, explanation.record), (3, 7));
    let expected = "\
kind      memory, format version 3, 104 bytes
backend   host
device    41424344-4546-4748-494a-4b4c4d4e4f50
host      this machine, id 0102030405060708
exporter  process 4242, id 1112131415161718, context 3
shares    4096 bytes at offset 8192 of segment 2
access    read only
record    7, generation 13
opening   It can be opened on this machine, until the next boot.";
    let text = explanation.to_string();
    assert!(text.starts_with(expected), "{text}");
    assert!(
        text.lines()
            .skip(9)
            .all(|line| line.starts_with("          ")),
        "{text}"
    );
    assert!(!text.ends_with('\n'));
}

#[test]
fn an_event_has_a_record_and_no_range() {
    let event = HandleKind::Event;
    let fields = Fields {
        record: 7,
        generation: 15,
        ..sample_fields(event)
    };
    let explanation = make(event, &fields).explain(Some(fields.host + 1));
    assert_eq!(explanation.kind, "event");
    assert_eq!((explanation.memory, &explanation.device), (None, &None));
    assert_eq!(explanation.handle_size, 64);
    assert_eq!(explanation.same_host, Some(false));
    let text = explanation.to_string();
    assert!(text.contains("\nrecord    7, generation 15\n"), "{text}");
    assert!(
        text.contains("another machine") && text.contains("cannot be opened here"),
        "{text}"
    );
    assert!(
        !["shares", "access", "device"]
            .iter()
            .any(|word| text.contains(word)),
        "{text}"
    );
}

#[test]
fn an_unknown_host_is_not_judged() {
    let explanation = sample(HandleKind::PhysicalMemory).explain(None);
    assert_eq!(
        (explanation.kind, explanation.same_host),
        ("physical memory", None)
    );
    assert!(!explanation.to_string().contains("this machine"));
}

#[test]
fn errors_say_what_to_do() {
    for (error, says) in [
        (
            HandleError::WrongSize {
                expected: 104,
                found: 7,
            },
            ["104 bytes", "7 were given"],
        ),
        (HandleError::NotAHandle, ["not a handle", "xhm3."]),
        (
            HandleError::UnsupportedVersion {
                found: 9,
                supported: 3,
            },
            ["version 9", "same release"],
        ),
        (HandleError::Corrupt, ["damaged", "unchanged"]),
        (
            HandleError::WrongKind {
                expected: HandleKind::Memory,
                found: HandleKind::Event,
            },
            ["\"memory\"", "\"event\""],
        ),
        (
            HandleError::Malformed {
                field: "host",
                why: "it is zero",
            },
            ["\"host\"", "it is zero"],
        ),
        (
            HandleError::BadText {
                at: 33,
                why: "it is odd",
            },
            ["character 33: it is odd", "again"],
        ),
    ] {
        let text = error.to_string();
        for part in says {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
    }
}
