//! Parses any text with every handle type, and texts that are made from bytes with a valid tag.

#![no_main]

use crosshandle::handle::HandleError;
use crosshandle_fuzz::{parse_text, retagged, size_by_start};
use data_encoding::BASE64URL_NOPAD;
use libfuzzer_sys::fuzz_target;

const PREFIXES: [&str; 4] = ["xhm3.", "xhp3.", "xhe3.", "xhc3."];

fuzz_target!(|data: &[u8]| {
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = parse_text(text);
    }
    // Makes the text of a handle with a valid tag, and edits it once.
    let Some((contents, [prefix, at, edit, character])) = data.split_last_chunk() else {
        return;
    };
    let decoded = BASE64URL_NOPAD.decode(contents);
    let contents = decoded.as_deref().unwrap_or(contents);
    let Some(bytes) = contents.get(..size_by_start(contents)).and_then(retagged) else {
        return;
    };
    let prefix = PREFIXES[usize::from(*prefix) % PREFIXES.len()];
    let good = format!("{prefix}{}", BASE64URL_NOPAD.encode(&bytes));
    // A prefix of a kind with another size makes the text too short or too long.
    assert_ne!(parse_text(&good), Err(HandleError::Corrupt));

    let at = usize::from(*at) % good.len();
    let mut edited: Vec<char> = good.chars().collect();
    match edit % 3 {
        0 => edited[at] = char::from(*character),
        1 => edited.insert(at, char::from(*character)),
        _ => drop(edited.remove(at)),
    }
    let edited: String = edited.into_iter().collect();
    if edited.trim_ascii() != good {
        assert!(
            parse_text(&edited).is_err(),
            "{edited:?} was taken for {good:?}"
        );
    }
});
