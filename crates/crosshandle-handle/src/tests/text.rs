//! Tests of the text form.

use std::cmp::Ordering;

use super::*;

fn text_of(kind: HandleKind) -> String {
    sample(kind).to_string()
}

/// Returns the error position for a text that the parser of the kind must reject.
fn bad_at(kind: HandleKind, text: &str) -> usize {
    match read(kind, text) {
        Err(HandleError::BadText { at, .. }) => at,
        other => panic!("{text:?} gave {other:?}"),
    }
}

proptest! {
    #[test]
    fn text_round_trips((kind, fields) in any_handle()) {
        let handle = make(kind, &fields);
        let text = handle.to_string();
        prop_assert_eq!(text.len(), kind.text_length());
        prop_assert!(text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)));
        prop_assert_eq!(text.parse(), Ok(handle));
        prop_assert_eq!(format!("\t {text}\r\n").parse(), Ok(handle));
        for wanted in KINDS {
            let expected = if wanted == kind {
                Ok(handle.as_bytes().to_vec())
            } else {
                Err(HandleError::WrongKind { expected: wanted, found: kind })
            };
            prop_assert_eq!(read(wanted, &text), expected);
        }
    }

    #[test]
    fn any_string_is_refused_without_panic(text: String) {
        prop_assert!(text.parse::<AnyHandle>().is_err());
        let prefixed = format!("xhm3.{text}");
        prop_assert!(prefixed.parse::<AnyHandle>().is_err());
    }
}

/// Pins the text form with texts that were computed without this crate, so that stored texts stay
/// valid.
#[test]
fn the_texts_are_version_3() {
    const TEXTS: [&str; 4] = [
        "xhm3.WEhETAMBAgEIBwYFBAMCARgXFhUUExIRJCMiITQzMjEwMTIzNDU2Nzg5YWJjZGVmSUdGRURDQkFUU1JRZGNiYUFCQ0RFRkdISUpLTE1OT1B0c3JxAAAAAMRDw0LCQcFAAAAAAGYI_Dg",
        "xhp3.WEhETAMCAgEIBwYFBAMCARgXFhUUExIRJCMiITQzMjEwMTIzNDU2Nzg5YWJjZGVmSkdGRURDQkFUU1JRZGNiYUFCQ0RFRkdISUpLTE1OT1B0c3JxAAAAAMRDw0LCQcFAAAAAAFBGls0",
        "xhe3.WEhETAMDAgIIBwYFBAMCARgXFhUUExIRJCMiITQzMjEwMTIzNDU2Nzg5YWJjZGVmS0dGRURDQkFUU1JRf37I9Q",
        "xhc3.WEhETAMEAgEIBwYFBAMCARgXFhUUExIRJCMiITQzMjEwMTIzNDU2Nzg5YWJjZGVmSUdGRURDQkFUU1JRZGNiYUFCQ0RFRkdISUpLTE1OT1B0c3JxAAAAAMRDw0LCQcFAAAAAAC1noxw",
    ];
    for (kind, text) in KINDS.into_iter().zip(TEXTS) {
        assert_eq!(text_of(kind), text);
        assert_eq!(text.parse(), Ok(sample(kind)));
    }
}

/// Tries every ASCII character and some others in place of each character of each handle.
#[test]
fn every_substituted_character_is_refused() {
    let others: Vec<char> = (0..=127)
        .map(char::from)
        .chain(['é', '€', '\u{2003}', '𝕏'])
        .collect();
    for kind in KINDS {
        let good: Vec<char> = text_of(kind).chars().collect();
        for at in 0..good.len() {
            for other in others.iter().filter(|other| **other != good[at]) {
                let mut characters = good.clone();
                characters[at] = *other;
                let text: String = characters.iter().collect();
                assert!(read(kind, &text).is_err(), "{other:?} at {at} of {kind}");
                assert!(
                    text.parse::<AnyHandle>().is_err(),
                    "{other:?} at {at} of {kind}"
                );
            }
        }
    }
}

#[test]
fn deleted_doubled_and_swapped_characters_are_refused() {
    for kind in KINDS {
        let good = text_of(kind);
        for at in 0..good.len() {
            let mut deleted = good.clone();
            let character = deleted.remove(at);
            assert!(read(kind, &deleted).is_err(), "without character {at}");
            let mut doubled = good.clone();
            doubled.insert(at, character);
            assert!(read(kind, &doubled).is_err(), "with character {at} doubled");
            if at + 1 < good.len() && good.as_bytes()[at] != good.as_bytes()[at + 1] {
                let mut swapped = deleted;
                swapped.insert(at + 1, character);
                assert!(
                    read(kind, &swapped).is_err(),
                    "characters {at} and next swapped"
                );
            }
        }
    }
}

#[test]
fn truncated_and_extended_texts_say_where() {
    for kind in KINDS {
        let good = text_of(kind);
        for length in 0..good.len() {
            let text = &good[..length];
            if length < "xhm3.".len() {
                assert_eq!(
                    read(kind, text),
                    Err(HandleError::NotAHandle),
                    "{length} characters"
                );
            } else {
                assert_eq!(bad_at(kind, text), length + 1);
            }
        }
        assert_eq!(bad_at(kind, &format!("{good}A")), kind.text_length() + 1);
        assert_eq!(
            bad_at(kind, &format!("{good}=")),
            kind.text_length() + 1,
            "padding"
        );
        assert_eq!(
            bad_at(kind, &format!("{good} {good}")),
            kind.text_length() + 1,
            "two words"
        );
    }
}

#[test]
fn bad_characters_say_where() {
    let kind = HandleKind::Memory;
    let good = text_of(kind);
    for (at, character) in [(6, "+"), (20, "/"), (50, " "), (100, "é"), (144, "=")] {
        let mut text = good.clone();
        text.replace_range(at - 1..at, character);
        assert_eq!(bad_at(kind, &text), at);
        assert_eq!(
            bad_at(kind, &format!("  {text}")),
            at,
            "space before is not counted"
        );
    }
}

/// Rejects texts whose unused bits are not zero. 104 bytes leave two bits of the last character
/// unused, and 64 bytes leave four.
#[test]
fn a_handle_has_one_text_only() {
    const ALPHABET: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    for kind in KINDS {
        let good = text_of(kind);
        let accepted = ALPHABET
            .chars()
            .filter(|last| {
                let text = format!("{}{last}", &good[..good.len() - 1]);
                match read(kind, &text) {
                    Ok(_) => true,
                    Err(HandleError::Corrupt) => false,
                    Err(HandleError::BadText { at, .. }) => {
                        assert_eq!(at, kind.text_length());
                        false
                    }
                    Err(other) => panic!("{text}: {other}"),
                }
            })
            .count();
        assert_eq!(accepted, 1);
        let body = &good[5..];
        let letter = &good[2..3];
        for spelling in [
            "xh{}03.", "xh{}+3.", "xh{}3 .", "xh{}.", "XH{}3.", "xh{}-3.", "xh{}256.",
        ] {
            let text = format!("{}{body}", spelling.replace("{}", letter));
            assert_eq!(
                read(kind, &text),
                Err(HandleError::NotAHandle),
                "{spelling}"
            );
        }
    }
}

#[test]
fn unknown_prefixes_and_other_versions() {
    let body = &text_of(HandleKind::Memory)[5..];
    for text in ["", " ", ".", "xhm3", "hello", "xhq3.", "xhm", "é.", "XHDL"] {
        assert_eq!(
            text.parse::<AnyHandle>(),
            Err(HandleError::NotAHandle),
            "{text:?}"
        );
    }
    assert_eq!(body.parse::<AnyHandle>(), Err(HandleError::NotAHandle));
    for found in [0, 1, 2, 255] {
        let expected = Err(HandleError::UnsupportedVersion {
            found,
            supported: 3,
        });
        assert_eq!(format!("xhm{found}.{body}").parse::<AnyHandle>(), expected);
        assert_eq!(format!("xhm{found}.").parse::<AnyHandle>(), expected);
    }
}

#[test]
fn the_prefix_must_agree_with_the_bytes() {
    for kind in KINDS {
        let good = text_of(kind);
        for claimed in KINDS.into_iter().filter(|claimed| *claimed != kind) {
            let text = format!("{}{}", &text_of(claimed)[..5], &good[5..]);
            let error = read(claimed, &text).expect_err("of another kind");
            match claimed.size().cmp(&kind.size()) {
                Ordering::Equal => assert_eq!(
                    error,
                    HandleError::WrongKind {
                        expected: claimed,
                        found: kind
                    }
                ),
                Ordering::Greater => assert_eq!(bad_at(claimed, &text), text.len() + 1),
                Ordering::Less => assert_eq!(bad_at(claimed, &text), claimed.text_length() + 1),
            }
            assert_eq!(text.parse::<AnyHandle>(), Err(error));
        }
    }
}

#[test]
fn names_of_backends() {
    for &backend in BackendKind::ALL {
        assert_eq!(backend.to_string().parse(), Ok(backend));
    }
    let error = "Cuda".parse::<BackendKind>().unwrap_err().to_string();
    assert!(
        error.contains("\"Cuda\"") && error.contains("level_zero"),
        "{error}"
    );
}
