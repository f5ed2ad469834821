//! Parses any text with every handle type, and texts that are made from bytes with a valid tag.

#![no_main]

use crosshandle::handle::{HANDLE_SIZE, HandleError, TEXT_LENGTH};
use crosshandle_fuzz::{parse_text, retagged};
use data_encoding::BASE64URL_NOPAD;
use libfuzzer_sys::fuzz_target;

const PREFIXES: [&str; 3] = ["xhm2.", "xhp2.", "xhe2."];

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
    let Some(bytes) = contents.get(..HANDLE_SIZE).and_then(retagged) else {
        return;
    };
    let prefix = PREFIXES[usize::from(*prefix) % PREFIXES.len()];
    let good = format!("{prefix}{}", BASE64URL_NOPAD.encode(&bytes));
    let whole = parse_text(&good);
    assert!(!matches!(
        whole,
        Err(HandleError::Corrupt | HandleError::BadText { .. })
    ));

    let at = usize::from(*at) % TEXT_LENGTH;
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
