//! Makes text from other programs and hosts safe for terminals and JSON. All output of this command
//! passes through this module.

use std::borrow::Cow;
use std::fmt::Write;

/// Returns `true` if a terminal or a viewer interprets a character instead of showing it. Such
/// characters are control characters, marks of writing direction, and characters that have no width
/// or start a line.
pub(crate) fn is_obeyed(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

/// Returns a line in which every character that a terminal would interpret is replaced.
pub(crate) fn line(text: &str) -> Cow<'_, str> {
    match text.contains(is_obeyed) {
        false => Cow::Borrowed(text),
        true => text.replace(is_obeyed, "\u{fffd}").into(),
    }
}

/// Returns JSON with the same value in which every character that a terminal would interpret is
/// escaped.
pub(crate) fn json(text: &str) -> Cow<'_, str> {
    // Outside strings, the only such characters in JSON are line feeds. Inside strings, line feeds
    // are already escaped.
    let is_left = |c: char| c != '\n' && is_obeyed(c);
    if !text.contains(is_left) {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len() + 64);
    for c in text.chars() {
        if is_left(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(clean, "\\u{unit:04x}");
            }
        } else {
            clean.push(c);
        }
    }
    clean.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "a\x1b[2J\x1b]0;t\x07b\u{9b}31mc\u{202e}d\u{2066}e\u{200f}f\n\r\tg\x7f\u{feff}\u{e0041}é日🙂";

    #[test]
    fn nothing_is_left_that_a_terminal_obeys() {
        let clean = line(HOSTILE);
        assert!(!clean.contains(is_obeyed), "{clean:?}");
        assert!(clean.starts_with("a\u{fffd}[2J") && clean.ends_with("é日🙂"));
        assert!(matches!(line("é日🙂 {}"), Cow::Borrowed(_)));
    }

    #[test]
    fn json_keeps_its_value() {
        let value = serde_json::json!({ HOSTILE: [HOSTILE, 1] });
        let text = serde_json::to_string_pretty(&value).expect("plain data");
        let clean = json(&text);
        assert!(!clean.replace('\n', "").contains(is_obeyed), "{clean:?}");
        let read: serde_json::Value = serde_json::from_str(&clean).expect("JSON");
        assert_eq!(read, value);
    }
}
